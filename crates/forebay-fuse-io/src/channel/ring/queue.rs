//! What becomes of each entry of a ring thread: a machine without a kernel, a clock or memory of its own.
//!
//! It is told what the kernel completed and what was answered, and says what to submit, when the mount has ended and when it cannot
//! be served any more. It keeps three promises: a request is committed once, an entry that is lent is never committed, and after
//! the end of the mount it is over as soon as the kernel has given back every entry.

use std::collections::VecDeque;

/// What the kernel is asked to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Take it for the first time.
    Register,
    /// Take the answer that is in it, and the entry for another request.
    Commit,
}

/// What a completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is a request in the entry: serve it, then say [`Machine::on_answered`] when it is answered.
    Serve,
    /// Nothing to do now; the command will be submitted again.
    Again,
    /// The mount has ended, and the kernel has given the entry back.
    Ended,
    /// The kernel does not take the entry, with this error number. The others of its queue go on.
    Lost(i32),
    /// The same of the last entry of a queue: its requests would wait for ever.
    QueueLost(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// Not submitted.
    Waiting(Command),
    WithKernel(Command),
    /// With a request that is not answered.
    Held,
    /// Answered, but its payload may still be written to.
    Lent,
    Gone,
}

/// The entries of one thread.
#[derive(Debug)]
pub(crate) struct Machine {
    states: Box<[EntryState]>,
    /// For each entry the place of its queue in `left`.
    queues: Box<[usize]>,
    /// For each queue, how many of its entries are not gone.
    left: Vec<u32>,
    /// For each queue, how many of them are neither the kernel's nor about to be.
    held: Vec<u32>,
    to_submit: VecDeque<u32>,
    lent: Vec<u32>,
    with_kernel: usize,
    has_ended: bool,
}

impl Machine {
    /// For queues of so many entries each, in this order; all are to be registered.
    pub(crate) fn new(depths: impl IntoIterator<Item = u32>) -> Self {
        let left: Vec<u32> = depths.into_iter().collect();
        let queues: Box<[usize]> =
            left.iter().enumerate().flat_map(|(queue, depth)| std::iter::repeat_n(queue, *depth as usize)).collect();
        Self {
            states: vec![EntryState::Waiting(Command::Register); queues.len()].into(),
            to_submit: (0..queues.len() as u32).collect(),
            queues,
            held: vec![0; left.len()],
            left,
            lent: Vec::new(),
            with_kernel: 0,
            has_ended: false,
        }
    }

    /// The next command to submit. From here on the entry is the kernel's.
    pub(crate) fn next(&mut self) -> Option<(u32, Command)> {
        let entry = self.to_submit.pop_front()?;
        let EntryState::Waiting(command) = self.states[entry as usize] else {
            debug_assert!(false, "entry {entry} does not wait to be submitted");
            return None;
        };
        self.states[entry as usize] = EntryState::WithKernel(command);
        self.with_kernel += 1;
        Some((entry, command))
    }

    /// The kernel has completed the command of `entry` with `result`: 0, or a negative error number.
    pub(crate) fn on_completion(&mut self, entry: u32, result: i32) -> Step {
        let EntryState::WithKernel(command) = self.states[entry as usize] else {
            debug_assert!(false, "entry {entry} was not the kernel's");
            return Step::Again;
        };
        self.with_kernel -= 1;
        match -result {
            error if error <= 0 => {
                self.states[entry as usize] = EntryState::Held;
                self.held[self.queues[entry as usize]] += 1;
                Step::Serve
            }
            libc::EAGAIN | libc::EINTR if !self.has_ended => {
                self.submit(entry, command);
                Step::Again
            }
            libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => {
                self.has_ended = true;
                self.lose(entry);
                Step::Ended
            }
            _ if self.has_ended => {
                self.lose(entry);
                Step::Ended
            }
            error if self.lose(entry) == 0 => Step::QueueLost(error),
            error => Step::Lost(error),
        }
    }

    /// The request in `entry` is answered. `is_lent`: and its payload may still be written to.
    pub(crate) fn on_answered(&mut self, entry: u32, is_lent: bool) {
        debug_assert!(
            matches!(self.states[entry as usize], EntryState::Held | EntryState::Lent),
            "entry {entry} was not held"
        );
        if is_lent && !self.has_ended {
            self.states[entry as usize] = EntryState::Lent;
            self.lent.push(entry);
            return;
        }
        self.held[self.queues[entry as usize]] -= 1;
        if self.has_ended {
            self.lose(entry);
        } else {
            self.submit(entry, Command::Commit);
        }
    }

    /// Whether the kernel has no entry of this one's queue, and gets none before a request is answered.
    pub(crate) fn is_starved(&self, entry: u32) -> bool {
        let queue = self.queues[entry as usize];
        self.held[queue] == self.left[queue]
    }

    /// Looks again at entries that were lent when they were answered.
    pub(crate) fn look_at_lent(&mut self, mut is_lent: impl FnMut(u32) -> bool) {
        for entry in std::mem::take(&mut self.lent) {
            self.on_answered(entry, is_lent(entry));
        }
    }

    /// Whether any entry is answered but lent: then look again soon.
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// The mount has ended, as was learnt from elsewhere.
    pub(crate) fn on_end(&mut self) {
        self.has_ended = true;
        while let Some(entry) = self.to_submit.pop_front() {
            self.lose(entry);
        }
    }

    /// Whether the mount has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the mount has ended and the kernel holds no entry. No program waits for requests that are not answered
    /// yet.
    pub(crate) fn is_over(&self) -> bool {
        self.has_ended && self.with_kernel == 0 && self.to_submit.is_empty()
    }

    /// Entries that the kernel holds.
    pub(crate) fn with_kernel(&self) -> usize {
        self.with_kernel
    }

    fn submit(&mut self, entry: u32, command: Command) {
        self.states[entry as usize] = EntryState::Waiting(command);
        self.to_submit.push_back(entry);
    }

    /// Gives how many entries its queue has left.
    fn lose(&mut self, entry: u32) -> u32 {
        self.states[entry as usize] = EntryState::Gone;
        let left = &mut self.left[self.queues[entry as usize]];
        *left -= 1;
        *left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_registered_then_committed_as_often_as_it_brings_a_request() {
        let mut machine = Machine::new([1]);
        assert_eq!(machine.next(), Some((0, Command::Register)));
        assert_eq!(machine.next(), None);
        for _ in 0..3 {
            assert_eq!(machine.on_completion(0, 0), Step::Serve);
            assert_eq!(machine.next(), None);
            machine.on_answered(0, false);
            assert_eq!(machine.next(), Some((0, Command::Commit)));
        }
    }

    #[test]
    fn a_command_that_the_kernel_could_not_take_now_is_given_again() {
        let mut machine = Machine::new([1]);
        machine.next();
        assert_eq!(machine.on_completion(0, -libc::EAGAIN), Step::Again);
        assert_eq!(machine.next(), Some((0, Command::Register)));
        machine.on_completion(0, 0);
        machine.on_answered(0, false);
        machine.next();
        assert_eq!(machine.on_completion(0, -libc::EINTR), Step::Again);
        assert_eq!(machine.next(), Some((0, Command::Commit)));
    }

    #[test]
    fn a_lent_entry_is_committed_only_when_it_is_back() {
        let mut machine = Machine::new([1]);
        machine.next();
        machine.on_completion(0, 0);
        machine.on_answered(0, true);
        assert!(machine.has_lent());
        machine.look_at_lent(|_| true);
        assert_eq!(machine.next(), None);
        machine.look_at_lent(|_| false);
        assert!(!machine.has_lent());
        assert_eq!(machine.next(), Some((0, Command::Commit)));
    }

    #[test]
    fn a_queue_starves_beside_others_that_do_not() {
        let mut machine = Machine::new([2, 1]);
        while machine.next().is_some() {}
        machine.on_completion(0, 0);
        assert!(!machine.is_starved(0));
        machine.on_completion(1, 0);
        assert!(machine.is_starved(0) && !machine.is_starved(2));
        machine.on_answered(1, true);
        assert!(machine.is_starved(1), "a lent entry is of no use to the kernel");
        machine.look_at_lent(|_| false);
        assert!(!machine.is_starved(0));
    }

    #[test]
    fn a_queue_outlives_its_entries_but_the_last() {
        let mut machine = Machine::new([1, 2]);
        while machine.next().is_some() {}
        assert_eq!(machine.on_completion(1, -libc::ENOENT), Step::Lost(libc::ENOENT));
        assert_eq!(machine.on_completion(2, -libc::EINVAL), Step::QueueLost(libc::EINVAL));
        assert_eq!(machine.on_completion(0, 0), Step::Serve);
    }

    #[test]
    fn after_the_end_nothing_is_waited_for_but_the_kernel() {
        let mut machine = Machine::new([3]);
        while machine.next().is_some() {}
        assert_eq!(machine.on_completion(0, 0), Step::Serve);
        assert_eq!(machine.on_completion(1, -libc::ENOTCONN), Step::Ended);
        assert!(!machine.is_over());
        assert_eq!(machine.on_completion(2, -libc::ENOTCONN), Step::Ended);
        assert!(machine.is_over(), "the request in entry 0 nobody waits for");
        machine.on_answered(0, false);
        assert_eq!(machine.next(), None);
        assert!(machine.is_over());
    }

    /// What happens to some entry.
    #[derive(Clone, Debug)]
    enum Event {
        Submit,
        Complete(prop::sample::Index, i32),
        Answer(prop::sample::Index, bool),
        Return,
        End,
    }

    fn event() -> impl Strategy<Value = Event> {
        let result = prop_oneof![
            8 => Just(0),
            2 => Just(-libc::EAGAIN),
            1 => Just(-libc::ENOENT),
        ];
        prop_oneof![
            6 => Just(Event::Submit),
            6 => (any::<prop::sample::Index>(), result).prop_map(|(entry, result)| Event::Complete(entry, result)),
            6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.2)).prop_map(|(entry, lent)| Event::Answer(entry, lent)),
            1 => Just(Event::Return),
            1 => Just(Event::End),
        ]
    }

    proptest! {
        #[test]
        fn every_request_is_committed_once_or_the_mount_has_ended(
            depths in prop::collection::vec(1u32..5, 1..4),
            events in prop::collection::vec(event(), 1..300),
        ) {
            let mut machine = Machine::new(depths.iter().copied());
            // The reference: whose each entry is.
            let (mut kernel, mut held, mut lent) = (Vec::<(u32, Command)>::new(), Vec::<u32>::new(), Vec::<u32>::new());
            let (mut requests, mut commits, mut refused, mut ended) = (0u32, 0u32, 0u32, false);
            let drain = |machine: &mut Machine, kernel: &mut Vec<(u32, Command)>| {
                let mut commits = 0;
                while let Some((entry, command)) = machine.next() {
                    assert!(kernel.iter().all(|(other, _)| *other != entry));
                    commits += u32::from(command == Command::Commit);
                    kernel.push((entry, command));
                }
                commits
            };
            for event in events {
                match event {
                    Event::Submit => commits += drain(&mut machine, &mut kernel),
                    Event::Complete(pick, result) if !kernel.is_empty() => {
                        let (entry, command) = kernel.swap_remove(pick.index(kernel.len()));
                        let result = if ended { -libc::ENOTCONN } else { result };
                        match machine.on_completion(entry, result) {
                            Step::Serve => { requests += 1; held.push(entry); }
                            Step::Again => { prop_assert_eq!(result, -libc::EAGAIN); refused += u32::from(command == Command::Commit); }
                            Step::Ended => prop_assert!(ended),
                            Step::Lost(_) | Step::QueueLost(_) => prop_assert_eq!(result, -libc::ENOENT),
                        }
                    }
                    Event::Answer(pick, is_lent) if !held.is_empty() => {
                        let entry = held.swap_remove(pick.index(held.len()));
                        machine.on_answered(entry, is_lent);
                        if is_lent && !ended { lent.push(entry); }
                    }
                    Event::Return => { lent.clear(); machine.look_at_lent(|_| false); }
                    Event::End => { ended = true; machine.on_end(); lent.clear(); }
                    _ => {}
                }
                prop_assert_eq!(machine.with_kernel(), kernel.len());
                for entry in &lent {
                    prop_assert!(kernel.iter().all(|(other, _)| other != entry));
                }
            }
            if !ended {
                // What was taken and not refused was committed once, but for what is still ours.
                machine.look_at_lent(|_| false);
                commits += drain(&mut machine, &mut kernel);
                prop_assert_eq!(commits - refused + held.len() as u32, requests);
            }
            // The end comes at last, and the kernel gives back what it has.
            machine.on_end();
            for (entry, _) in kernel {
                prop_assert!(!machine.is_over());
                prop_assert_eq!(machine.on_completion(entry, -libc::ENOTCONN), Step::Ended);
            }
            prop_assert!(machine.is_over());
        }
    }
}
