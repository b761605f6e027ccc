//! Which payloads the kernel sends from where they lie, and until when they must stay there. A state machine; it does no I/O.
//!
//! Of a send with `MSG_ZEROCOPY` the kernel keeps no copy but the pages themselves: it sends from them, and once more when a packet
//! was lost. It numbers these sends of a connection from 0, 32 bits that wrap, and says later of a range of numbers that it needs
//! their pages no more. Until then each send has its *pin* here: what keeps the memory from being used for anything else.
//!
//! With that, the kernel says whether it copied after all, as it must where the bytes end on this host, or packets are
//! captured, or the device cannot gather. Such a send costs more than one that copied at once. So `auto` believes the
//! kernel and nothing else: the first large payload of a connection is a probe, everything else is copied until its
//! completion has come, and the first completion that says "copied" ends it for this connection. (Of several sends at
//! once the kernel says what it did with the first, so that may take some completions.)

use std::collections::VecDeque;

use forebay_types::TcpZeroCopy;

/// The shortest part of a payload that is sent so. The kernel's documentation (`msg_zerocopy.rst`) sees a gain from about 10 KiB on;
/// here a reply costs one system call more besides, as header and body are copied, and its completion three. A sector is well above
/// that; the short reads, of which there are most, go the way they always went.
pub(crate) const MIN_LENGTH: usize = 32 << 10;

/// The most that are remembered of a connection from the earliest on that the kernel is not done with.
const MAX_OUTSTANDING: usize = 4096;

/// What the kernel says of the sends `first` to `last`, both included: it needs their pages no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// It made a copy of the first. It may say the same of later ones with which it did otherwise: it joins ranges without looking.
    pub(crate) copied: bool,
}

/// What a completion released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) sends: usize,
    pub(crate) bytes: usize,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stance {
    /// It copies.
    Never,
    /// Nothing: the next large payload shows it.
    Unknown,
    /// That payload is under way.
    Probing,
    /// The kernel made no copy so far.
    Wins,
    /// The kernel was not asked: the configuration says so.
    Always,
}

#[derive(Debug)]
struct Send<P> {
    bytes: usize,
    pin: P,
}

/// The sends of one connection, each with a pin `P`.
#[derive(Debug)]
pub(crate) struct Sends<P> {
    stance: Stance,
    /// The kernel had no room for one more: until it is done with all that it has, it is not asked again.
    rests: bool,
    /// The number of the first of `sends`.
    first: u32,
    /// From the earliest that the kernel is not done with; `None` where it was done out of order.
    sends: VecDeque<Option<Send<P>>>,
    outstanding: usize,
}

impl<P> Sends<P> {
    /// None yet. `stays_here` says that the peer is known to be on this host.
    pub(crate) fn new(choice: TcpZeroCopy, stays_here: bool) -> Self {
        let stance = match choice {
            TcpZeroCopy::On => Stance::Always,
            TcpZeroCopy::Auto if !stays_here => Stance::Unknown,
            TcpZeroCopy::Auto | TcpZeroCopy::Off => Stance::Never,
        };
        Self { stance, rests: false, first: 0, sends: VecDeque::new(), outstanding: 0 }
    }

    /// Whether `length` bytes of a payload are to be sent so, were they next.
    pub(crate) fn takes(&self, length: usize) -> bool {
        let may = matches!(self.stance, Stance::Unknown | Stance::Wins | Stance::Always);
        length >= MIN_LENGTH && may && !self.rests && self.sends.len() < MAX_OUTSTANDING
    }

    /// How many sends the kernel is not done with.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The kernel took `bytes`, under the next number. `pin` is dropped when it is done with them.
    pub(crate) fn sent(&mut self, bytes: usize, pin: P) {
        self.sends.push_back(Some(Send { bytes, pin }));
        self.outstanding += 1;
        if self.stance == Stance::Unknown {
            self.stance = Stance::Probing;
        }
    }

    /// The kernel has no room for one more (`ENOBUFS`); that one got no number. When it has none of ours, others have taken all that
    /// this user may lock, and it is left to them.
    pub(crate) fn refused(&mut self) {
        match self.outstanding {
            0 => self.stance = Stance::Never,
            _ => self.rests = true,
        }
    }

    /// This connection cannot have it.
    pub(crate) fn give_up(&mut self) {
        self.stance = Stance::Never;
    }

    /// The kernel is done with some, whose pins are dropped. Numbers that are not outstanding mean nothing.
    pub(crate) fn completed(&mut self, completion: Completion) -> Released {
        let mut released = Released::default();
        let start = completion.first.wrapping_sub(self.first) as usize;
        let count = completion.last.wrapping_sub(completion.first) as usize + 1;
        let length = self.sends.len();
        for send in self.sends.range_mut(start.min(length)..start.saturating_add(count).min(length)) {
            if let Some(send) = send.take() {
                released.sends += 1;
                released.bytes += send.bytes;
                drop(send.pin);
            }
        }
        self.outstanding -= released.sends;
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.rests &= self.outstanding > 0;
        self.stance = match self.stance {
            Stance::Unknown | Stance::Probing | Stance::Wins if completion.copied => Stance::Never,
            Stance::Probing => Stance::Wins,
            stance => stance,
        };
        released
    }

    /// No more completions will come. What the kernel may still send from is never used again, and never given back.
    pub(crate) fn abandon(&mut self) -> Released {
        let mut lost = Released::default();
        for send in self.sends.drain(..).flatten() {
            lost.sends += 1;
            lost.bytes += send.bytes;
            std::mem::forget(send.pin);
        }
        self.outstanding = 0;
        self.give_up();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    fn done(first: u32, last: u32, copied: bool) -> Completion {
        Completion { first, last, copied }
    }

    #[test]
    fn the_first_large_payload_is_a_probe_and_the_others_wait_for_what_the_kernel_says_of_it() {
        let mut sends = Sends::new(TcpZeroCopy::Auto, false);
        assert!(!sends.takes(MIN_LENGTH - 1) && sends.takes(MIN_LENGTH));
        sends.sent(MIN_LENGTH, ());
        assert!(!sends.takes(1 << 20));
        assert_eq!(sends.completed(done(0, 0, false)), Released { sends: 1, bytes: MIN_LENGTH });
        assert!(sends.takes(MIN_LENGTH));
        sends.sent(MIN_LENGTH, ());
        assert!(sends.takes(MIN_LENGTH));
    }

    #[test]
    fn one_copy_of_the_kernels_ends_it_for_the_connection() {
        for others in [0, 3] {
            let mut sends = Sends::new(TcpZeroCopy::Auto, false);
            for number in 0..others {
                sends.sent(MIN_LENGTH, ());
                sends.completed(done(number, number, false));
            }
            sends.sent(MIN_LENGTH, ());
            sends.completed(done(others, others, true));
            sends.completed(done(others, others, false));
            assert!(!sends.takes(1 << 20));
        }
    }

    #[test]
    fn where_it_is_on_no_copy_of_the_kernels_ends_it_and_where_it_is_off_nothing_begins_it() {
        let mut on = Sends::new(TcpZeroCopy::On, true);
        on.sent(MIN_LENGTH, ());
        assert!(on.takes(MIN_LENGTH));
        on.completed(done(0, 0, true));
        assert!(on.takes(MIN_LENGTH));
        assert!(!Sends::<()>::new(TcpZeroCopy::Off, false).takes(1 << 20));
        assert!(!Sends::<()>::new(TcpZeroCopy::Auto, true).takes(1 << 20));
    }

    #[test]
    fn a_kernel_without_room_is_asked_again_when_it_is_done_with_what_it_has() {
        let mut sends = Sends::new(TcpZeroCopy::On, false);
        sends.sent(MIN_LENGTH, ());
        sends.sent(MIN_LENGTH, ());
        sends.refused();
        assert!(!sends.takes(MIN_LENGTH));
        sends.completed(done(1, 1, false));
        assert!(!sends.takes(MIN_LENGTH));
        sends.completed(done(0, 0, false));
        assert!(sends.takes(MIN_LENGTH));
        sends.refused();
        assert!(!sends.takes(MIN_LENGTH), "others have it all");
    }

    #[test]
    fn what_is_abandoned_is_never_released() {
        let pin = Rc::new(());
        let mut sends = Sends::new(TcpZeroCopy::On, false);
        (0..3).for_each(|_| sends.sent(MIN_LENGTH, Rc::clone(&pin)));
        sends.completed(done(1, 1, false));
        assert_eq!(sends.abandon(), Released { sends: 2, bytes: 2 * MIN_LENGTH });
        drop(sends);
        assert_eq!(Rc::strong_count(&pin), 3);
    }

    /// What the kernel may do with the sends that it has: say that it is done with `count` of them from the `at`th on.
    #[derive(Clone, Debug)]
    enum Step {
        Send,
        Refuse,
        Complete { at: usize, count: usize, copied: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Send),
            1 => Just(Step::Refuse),
            3 => (any::<prop::sample::Index>(), 1usize..5, prop::bool::weighted(0.1))
                .prop_map(|(at, count, copied)| Step::Complete { at: at.index(64), count, copied }),
        ]
    }

    proptest! {
        #[test]
        fn every_pin_is_released_once_and_with_its_completion_in_any_order_and_over_the_wrap(
            choice in prop_oneof![Just(TcpZeroCopy::Auto), Just(TcpZeroCopy::On)],
            first in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX],
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut sends = Sends::new(choice, false);
            sends.first = first;
            // By how many sends came before it.
            let mut held: BTreeMap<u32, Rc<()>> = BTreeMap::new();
            let (mut next, mut copied_once) = (0u32, false);
            for step in steps {
                match step {
                    Step::Send if sends.takes(MIN_LENGTH) => {
                        prop_assert!(choice == TcpZeroCopy::On || !copied_once);
                        let pin = Rc::new(());
                        held.insert(next, Rc::clone(&pin));
                        sends.sent(MIN_LENGTH, pin);
                        next += 1;
                    }
                    Step::Send => {}
                    Step::Refuse => sends.refused(),
                    Step::Complete { at, count, copied } => {
                        // The kernel tells of none twice: a run of those that it has.
                        let Some(&from) = held.keys().nth(at % held.len().max(1)) else { continue };
                        let run = (from..).take(count).take_while(|number| held.contains_key(number)).count() as u32;
                        copied_once |= copied;
                        let wire = |number: u32| first.wrapping_add(number);
                        let released = sends.completed(done(wire(from), wire(from + run - 1), copied));
                        prop_assert_eq!(released, Released { sends: run as usize, bytes: run as usize * MIN_LENGTH });
                        for number in from..from + run {
                            let pin = held.remove(&number).unwrap();
                            prop_assert_eq!(Rc::strong_count(&pin), 1, "released with its completion");
                        }
                    }
                }
                prop_assert_eq!(sends.outstanding(), held.len());
                prop_assert!(held.values().all(|pin| Rc::strong_count(pin) == 2), "none before its completion");
            }
        }
    }
}
