//! Readers, a worker and its cards in virtual time: large reads over cards that become slow, die and come back, decided
//! by [`PathLoads`] and [`Stripe`] as the shell (`paths/striped.rs`) has them decide. Bytes go over a card in the order
//! in which they were asked for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_transport::{Op, Request};
use forebay_types::{BlockKey, FileId};
use proptest::prelude::*;

use super::division::{Division, PartOfRead, parts_of};
use super::loads::{Ended, PathLoads};
use super::speed::Sent;
use super::stripe::{AfterFailure, Stripe};

const BLOCK: u32 = 4 << 20;
/// How long after its death the requests over a card fail, in microseconds.
const FOUND_DEAD: u64 = 1000;
/// Bytes a microsecond over TCP, which is there when no card is.
const TCP: u64 = 100;

#[derive(Default)]
struct Card {
    /// Bytes a microsecond; 0: it is dead.
    speed: u64,
    /// At which time it has which speed.
    changes: VecDeque<(u64, u64)>,
    jobs: VecDeque<Job>,
    /// When its requests fail.
    fails_at: Option<u64>,
}

struct Job {
    read: usize,
    part: usize,
    left: u64,
    /// None over TCP, and for what nobody waits for any more.
    sent: Option<Sent>,
}

struct Read {
    reader: usize,
    parts: Vec<PartOfRead>,
    stripe: Stripe,
    came: Vec<u32>,
    began: u64,
    took: Option<u64>,
}

struct World {
    start: Instant,
    now: u64,
    /// TCP is the last.
    cards: Vec<Card>,
    loads: PathLoads,
    reads: Vec<Read>,
    /// How many reads each reader has before it.
    left: Vec<usize>,
    asked_again: usize,
}

impl World {
    /// Cards with their speeds from when on; readers that make so many reads, one after the other.
    fn new(cards: &[&[(u64, u64)]], left: &[usize]) -> Self {
        let card = |changes: &&[(u64, u64)]| Card { changes: changes.iter().copied().collect(), ..Card::default() };
        let tcp = Card { speed: TCP, ..Card::default() };
        Self {
            start: Instant::now(),
            now: 0,
            cards: cards.iter().map(card).chain([tcp]).collect(),
            loads: PathLoads::new(cards.iter().map(|_| None)),
            reads: Vec::new(),
            left: left.to_vec(),
            asked_again: 0,
        }
    }

    fn at(&self, micros: u64) -> Instant {
        self.start + Duration::from_micros(micros)
    }

    fn tcp(&self) -> usize {
        self.cards.len() - 1
    }

    fn run(&mut self) -> &mut Self {
        self.change();
        for reader in 0..self.left.len() {
            self.begin(reader);
        }
        let mut steps = 0;
        while self.reads.iter().any(|read| read.took.is_none()) {
            steps += 1;
            assert!(steps < 100_000, "it does not end");
            let next = self.next();
            for card in &mut self.cards {
                if let Some(job) = card.jobs.front_mut() {
                    job.left = job.left.saturating_sub(card.speed * (next - self.now));
                }
            }
            self.now = next;
            self.deliver();
            self.change();
            self.fail();
            self.look();
        }
        self
    }

    /// When something happens next.
    fn next(&self) -> u64 {
        let done = |card: &Card| {
            let job = card.jobs.front().filter(|_| card.speed > 0)?;
            Some(self.now + job.left.div_ceil(card.speed))
        };
        let of_cards = self.cards.iter().flat_map(|card| {
            [card.changes.front().map(|(at, _)| *at), card.fails_at, done(card)].into_iter().flatten()
        });
        let look_at = |read: &Read| {
            let at = read.stripe.look_at().filter(|_| read.took.is_none())?;
            Some(u64::try_from(at.duration_since(self.start).as_micros()).unwrap() + 1)
        };
        let next = of_cards.chain(self.reads.iter().filter_map(look_at)).min().expect("something happens");
        next.max(self.now)
    }

    fn change(&mut self) {
        let now = self.now;
        for card in &mut self.cards {
            while card.changes.front().is_some_and(|(at, _)| *at <= now)
                && let Some((_, speed)) = card.changes.pop_front()
            {
                card.speed = speed;
                card.fails_at = (speed == 0).then_some(now + FOUND_DEAD);
            }
        }
    }

    fn is_up(&self, card: usize) -> bool {
        card < self.tcp() && self.cards[card].speed > 0
    }

    fn up(&self) -> Vec<bool> {
        (0..self.tcp()).map(|card| self.is_up(card)).collect()
    }

    fn begin(&mut self, reader: usize) {
        let Some(left) = self.left[reader].checked_sub(1) else { return };
        self.left[reader] = left;
        let (now, up) = (self.at(self.now), self.up());
        let block = BlockKey { file: FileId([0; 16]), index: 0 };
        let request = Request::on_block(Op::Read, block, 0, BLOCK, Duration::from_secs(60));
        let division = self.loads.divide(BLOCK, |path| up[path], now).unwrap_or_else(|| {
            let best = self.loads.best(BLOCK, None, |path| up[path], self.now, now);
            Division::from_iter([(best.unwrap_or(self.tcp()), BLOCK)])
        });
        let parts = parts_of(&request, &division).to_vec();
        let (stripe, came) = (Stripe::new(parts.len(), now), vec![0; parts.len()]);
        let number = self.reads.len();
        self.reads.push(Read { reader, parts: parts.clone(), stripe, came, began: self.now, took: None });
        for (part, PartOfRead { path, .. }) in parts.into_iter().enumerate() {
            self.send(number, part, path);
        }
    }

    fn send(&mut self, read: usize, part: usize, path: usize) {
        let (bytes, now) = (self.reads[read].parts[part].length, self.at(self.now));
        let sent = self.loads.sent(path, bytes, now);
        self.cards[path].jobs.push_back(Job { read, part, left: u64::from(bytes), sent });
    }

    /// Asks for a part over another path than `path`, if there is one.
    fn ask_again(&mut self, read: usize, part: usize, path: usize, may_use_tcp: bool) {
        let (now, up) = (self.at(self.now), self.up());
        let bytes = self.reads[read].parts[part].length;
        let other = self.loads.best(bytes, None, |other| other != path && up[other], self.now, now);
        if let Some(other) = other.or(may_use_tcp.then_some(self.tcp())) {
            self.asked_again += 1;
            self.reads[read].stripe.asked(part);
            self.send(read, part, other);
        }
    }

    fn deliver(&mut self) {
        let now = self.at(self.now);
        for path in 0..self.cards.len() {
            while self.cards[path].jobs.front().is_some_and(|job| job.left == 0)
                && let Some(Job { read, part, sent, .. }) = self.cards[path].jobs.pop_front()
            {
                if let Some(sent) = sent {
                    self.loads.ended(path, sent, Ended::Delivered, now);
                }
                let of = &mut self.reads[read];
                if of.took.is_some() || !of.stripe.came(part, now) {
                    continue;
                }
                of.came[part] += 1;
                if of.stripe.is_done() {
                    assert!(of.came.iter().all(|came| *came == 1), "each part once: {:?}", of.came);
                    self.end(read);
                }
            }
        }
    }

    fn end(&mut self, read: usize) {
        let (now, ended) = (self.at(self.now), &mut self.reads[read]);
        ended.took = Some(self.now - ended.began);
        // Nobody waits for what was asked for twice. The card goes on.
        for (path, card) in self.cards.iter_mut().enumerate() {
            for job in card.jobs.iter_mut().filter(|job| job.read == read) {
                job.sent.take().into_iter().for_each(|sent| self.loads.ended(path, sent, Ended::Otherwise, now));
            }
        }
        self.begin(self.reads[read].reader);
    }

    fn fail(&mut self) {
        let now = self.at(self.now);
        for path in 0..self.tcp() {
            if self.cards[path].fails_at.is_none_or(|at| at > self.now) {
                continue;
            }
            self.cards[path].fails_at = None;
            for Job { read, part, sent, .. } in std::mem::take(&mut self.cards[path].jobs) {
                if let Some(sent) = sent {
                    self.loads.ended(path, sent, Ended::Otherwise, now);
                }
                if self.reads[read].took.is_some() {
                    continue;
                }
                match self.reads[read].stripe.failed(part) {
                    AfterFailure::Wait => {}
                    AfterFailure::Again => self.ask_again(read, part, path, true),
                    // Four cards died under it. Its caller reads again.
                    AfterFailure::GiveUp => self.end(read),
                }
            }
        }
    }

    fn look(&mut self) {
        let now = self.at(self.now);
        for read in 0..self.reads.len() {
            while self.reads[read].took.is_none()
                && let Some(part) = self.reads[read].stripe.late(now)
            {
                let (path, waited) = (self.reads[read].parts[part].path, self.now - self.reads[read].began);
                self.loads.late(path, Duration::from_micros(waited), now);
                self.ask_again(read, part, path, false);
            }
        }
    }

    fn took(&self) -> Vec<u64> {
        self.reads.iter().filter_map(|read| read.took).collect()
    }
}

/// Microseconds that a block takes over cards that carry so many bytes a microsecond in all.
fn ideal(speed: u64) -> u64 {
    u64::from(BLOCK) / speed
}

#[test]
fn one_reader_gets_what_both_cards_carry_though_one_has_a_quarter_of_the_speed() {
    for cards in [[4000, 1000], [1000, 1000], [1000, 4000]] {
        let mut world = World::new(&[&[(0, cards[0])], &[(0, cards[1])]], &[60]);
        let took = world.run().took();
        let usual = ideal(cards[0] + cards[1]) * 5 / 4;
        assert!(took[10..].iter().all(|took| *took <= usual), "{usual}: {took:?}");
    }
}

#[test]
fn a_card_that_becomes_slow_in_the_middle_costs_its_part_and_no_read_after_it() {
    for slow in [250, 10, 1] {
        let mut world = World::new(&[&[(0, 1000)], &[(0, 1000), (50_000, slow)]], &[100]);
        let took = world.run().took();
        // Until it is late, three times as long as the other card took for its part, and then over that card.
        let worst = ideal(1000) * 4 + 2000;
        assert!(took.iter().all(|took| *took <= worst), "{worst}: {took:?}");
        let slower = took.iter().filter(|took| **took > ideal(1000) * 5 / 4).count();
        // When it becomes slow, and while its speed is not known yet; then it is tried once a second.
        assert!(slower <= 6, "{slow}: {took:?}");
        assert!(world.asked_again <= 6, "{}", world.asked_again);
    }
}

#[test]
fn a_card_that_dies_in_the_middle_costs_its_part_and_comes_back() {
    let mut world = World::new(&[&[(0, 1000)], &[(0, 1000), (50_000, 0), (200_000, 1000)]], &[200]);
    let took = world.run().took();
    assert!(took.iter().all(|took| *took <= ideal(2000) * 4 + 2 * FOUND_DEAD), "{took:?}");
    assert_eq!(world.loads.in_flight(), 0);
    let last = &took[took.len() - 50..];
    assert!(last.iter().all(|took| *took <= ideal(2000) * 5 / 4), "{last:?}");
}

#[test]
fn readers_that_keep_all_cards_busy_get_what_they_carry() {
    let mut world = World::new(&[&[(0, 1000)], &[(0, 500)]], &[40; 8]);
    world.run();
    let best = ideal(1500) * 40 * 8;
    assert!(world.now <= best * 5 / 4, "{} instead of {best}", world.now);
}

fn changes() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let change = (1u64..100_000, prop_oneof![1 => Just(0u64), 4 => 5u64..5000]);
    prop::collection::vec(change, 0..4).prop_map(|mut changes| {
        changes.sort_unstable();
        changes.insert(0, (0, 1000));
        changes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_cards_do_every_read_gets_each_of_its_parts_and_nothing_stays_under_way(
        cards in prop::collection::vec(changes(), 1..5),
        readers in prop::collection::vec(1usize..15, 1..5),
    ) {
        let cards: Vec<&[(u64, u64)]> = cards.iter().map(Vec::as_slice).collect();
        let mut world = World::new(&cards, &readers);
        world.run();
        prop_assert_eq!(world.took().len(), readers.iter().sum::<usize>());
        prop_assert_eq!(world.loads.in_flight(), 0);
    }
}
