//! The index against a backend and a shell that do what they are told, in any order, and know nothing of its reasons.

mod room;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use forebay_types::{FileId, FileVersion, VersionTag};
use proptest::prelude::*;

use super::entry::room_of;
use super::*;
use crate::policy::{HALF_LIFE, Rules};

const MIB: u64 = 1 << 20;

fn limits(size: u64) -> Limits {
    let rules = Rules { size, max_file_size: size, min_opens: 2, small_min_opens: None, first_open_size: 0 };
    Limits { rules, fills: 2, sets_aside: false }
}

fn version(number: u32, size: u64) -> (FileId, FileVersion) {
    let tag = VersionTag::Etag("1".into());
    let path = number.to_string().into_bytes().into();
    (FileId(u128::from(number).to_be_bytes()), FileVersion { origin: "s3://bucket".into(), path, size, tag })
}

/// An index, and what the backend has by what it said.
struct Rig {
    index: FileIndex,
    size: u64,
    now: Instant,
    filling: Vec<FileId>,
    whole: HashMap<FileId, u64>,
    removing: Vec<FileId>,
    pins: HashMap<FileId, u64>,
    waiting: HashSet<FileId>,
    /// Those that may go though they were asked for.
    dropped: HashSet<FileId>,
    /// Those whose bytes turned bad.
    bad: HashSet<FileId>,
    asked: HashSet<FileId>,
    sizes: HashMap<FileId, u64>,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        Self {
            index: FileIndex::new(limits),
            size: limits.rules.size,
            now: Instant::now(),
            filling: Vec::new(),
            whole: HashMap::new(),
            removing: Vec::new(),
            pins: HashMap::new(),
            waiting: HashSet::new(),
            dropped: HashSet::new(),
            bad: HashSet::new(),
            asked: HashSet::new(),
            sizes: HashMap::new(),
        }
    }

    fn open(&mut self, number: u32, size: u64) -> Answer {
        let (file, version) = version(number, size);
        self.sizes.insert(file, size);
        let answer = self.index.opened(file, &version, self.now);
        self.answered(file, answer);
        self.obey();
        answer
    }

    fn want(&mut self, number: u32, size: u64) -> Result<Answer, NotTaken> {
        let (file, version) = version(number, size);
        self.sizes.insert(file, size);
        let answer = self.index.want(file, &version, Why::Job, self.now);
        if let Ok(answer) = answer {
            self.dropped.remove(&file);
            self.asked.insert(file);
            self.answered(file, answer);
        }
        self.obey();
        answer
    }

    fn answered(&mut self, file: FileId, answer: Answer) {
        match answer {
            Answer::Ready => {
                assert!(self.whole.contains_key(&file) && !self.removing.contains(&file), "{file} is not there");
                *self.pins.entry(file).or_default() += 1;
            }
            Answer::Wait => drop(self.waiting.insert(file)),
            Answer::No => {}
        }
    }

    fn obey(&mut self) {
        for action in self.index.actions() {
            match action {
                Action::Fill(file) => {
                    assert!(!self.filling.contains(&file) && !self.whole.contains_key(&file), "{file} is filled twice");
                    self.filling.push(file);
                }
                Action::Cancel(file) => assert!(self.filling.contains(&file)),
                Action::Remove(file) => {
                    assert!(self.whole.contains_key(&file), "{file} is removed and is not there");
                    assert_eq!(self.pins.get(&file).copied().unwrap_or(0), 0, "{file} is removed and open");
                    assert!(!self.removing.contains(&file), "{file} is removed twice");
                    assert!(
                        !self.asked.contains(&file) || self.dropped.contains(&file) || self.bad.contains(&file),
                        "{file} was asked for"
                    );
                    self.removing.push(file);
                }
                Action::Tell(file, None) => {
                    assert!(self.whole.contains_key(&file));
                    self.waiting.remove(&file);
                }
                Action::Tell(file, Some(_)) => {
                    self.waiting.remove(&file);
                    if !self.index.files.contains_key(&file) {
                        self.asked.remove(&file);
                    }
                }
                Action::Used(file) => assert!(self.whole.contains_key(&file)),
            }
        }
        let taken: u64 = self
            .whole
            .values()
            .chain(self.filling.iter().map(|file| &self.sizes[file]))
            .map(|size| room_of(*size))
            .sum();
        assert!(taken <= self.size, "{taken} of {}", self.size);
        assert!(self.filling.len() <= 2);
    }

    fn end_fill(&mut self, at: usize, failure: Option<NotTaken>) {
        if self.filling.is_empty() {
            return;
        }
        let file = self.filling.remove(at % self.filling.len());
        match failure {
            None => {
                self.whole.insert(file, self.sizes[&file]);
                self.index.filled(file, self.now);
            }
            Some(failure) => self.index.failed(file, failure, self.now),
        }
        self.obey();
    }

    fn end_removal(&mut self, at: usize) {
        if self.removing.is_empty() {
            return;
        }
        let file = self.removing.remove(at % self.removing.len());
        self.whole.remove(&file);
        self.bad.remove(&file);
        self.index.removed(file, self.now);
        self.obey();
    }

    fn close(&mut self, number: u32) {
        let (file, _) = version(number, 0);
        if let Some(pins) = self.pins.get_mut(&file).filter(|pins| **pins > 0) {
            *pins -= 1;
            self.index.unpin(file, self.now);
            self.obey();
        }
    }

    fn drop_file(&mut self, number: u32) -> bool {
        let (file, _) = version(number, 0);
        self.dropped.insert(file);
        let was_there = self.index.drop_file(file, self.now);
        self.obey();
        was_there
    }

    /// All fills and removals end.
    fn settle(&mut self) {
        while !self.filling.is_empty() || !self.removing.is_empty() {
            self.end_removal(0);
            self.end_fill(0, None);
        }
    }

    fn whole(&self) -> Vec<u32> {
        let mut whole: Vec<u32> = self.whole.keys().map(|file| u128::from_be_bytes(file.0) as u32).collect();
        whole.sort_unstable();
        whole
    }

    fn hold(&mut self, number: u32, size: u64) {
        for _ in 0..2 {
            if self.open(number, size) == Answer::Ready {
                self.close(number);
            }
        }
        self.settle();
    }
}

#[test]
fn a_file_that_was_only_asked_for_was_not_opened() {
    let mut rig = Rig::new(limits(10 * MIB));
    rig.want(1, MIB).unwrap();
    rig.open(2, MIB);
    rig.open(2, MIB);
    rig.settle();
    let opens = |rig: &Rig, number| {
        let id = version(number, MIB).0;
        rig.index.list().iter().find(|shown| shown.id == id).map(|shown| shown.opens)
    };
    assert_eq!((opens(&rig, 1), opens(&rig, 2)), (Some(0), Some(1)));
    rig.open(1, MIB);
    assert_eq!(opens(&rig, 1), Some(1));
}

#[test]
fn a_file_that_is_opened_twice_is_there_at_the_third_open() {
    let mut rig = Rig::new(limits(100 * MIB));
    assert_eq!((rig.open(1, MIB), rig.open(1, MIB)), (Answer::No, Answer::No));
    assert_eq!(rig.filling.len(), 1);
    rig.end_fill(0, None);
    assert_eq!(rig.open(1, MIB), Answer::Ready);
}

#[test]
fn an_open_waits_for_a_first_open_file_and_for_what_is_nearly_there() {
    let mut rules = limits(100 * MIB);
    rules.rules.first_open_size = 2 * MIB;
    let mut rig = Rig::new(rules);
    assert_eq!(
        (rig.open(1, 2 * MIB), rig.open(2, 3 * MIB), rig.open(2, 3 * MIB)),
        (Answer::Wait, Answer::No, Answer::No)
    );
    let (second, _) = version(2, 0);
    rig.index.progress(&second, 2 * MIB);
    assert_eq!(rig.open(2, 3 * MIB), Answer::No);
    rig.index.progress(&second, 3 * MIB - 1000);
    assert_eq!(rig.open(2, 3 * MIB), Answer::Wait);
    let mut rig = Rig::new(limits(100 * MIB));
    assert_eq!([rig.open(3, 50), rig.open(3, 50), rig.open(3, 50)], [Answer::No; 3], "nothing of it is there yet");
}

#[test]
fn a_scan_drives_out_nothing_that_was_opened_twice() {
    for first_open_size in [0, MIB] {
        let mut limits = limits(10 * MIB);
        limits.rules.first_open_size = first_open_size;
        let mut rig = Rig::new(limits);
        for number in 0..5 {
            rig.hold(number, MIB);
        }
        let kept = rig.whole();
        assert_eq!(kept.len(), 5);
        for number in 100..2000 {
            if rig.open(number, MIB) == Answer::Ready {
                rig.close(number);
            }
            rig.settle();
        }
        assert!(kept.iter().all(|number| rig.whole().contains(number)), "{:?}", rig.whole());
        // What is not opened any more goes in time.
        rig.now += 3 * HALF_LIFE;
        for number in 3000..3020 {
            rig.hold(number, MIB);
        }
        assert!(kept.iter().all(|number| !rig.whole().contains(number)), "{:?}", rig.whole());
    }
}

#[test]
fn what_is_open_does_not_go_and_what_was_asked_for_goes_for_nobody() {
    let mut rig = Rig::new(limits(3 * MIB));
    rig.hold(1, MIB);
    assert_eq!(rig.open(1, MIB), Answer::Ready);
    assert_eq!(rig.want(2, MIB), Ok(Answer::Wait));
    rig.settle();
    for _ in 0..10 {
        rig.hold(3, 2 * MIB - 100_000);
    }
    assert_eq!(rig.whole(), [1, 2]);
    assert_eq!(rig.want(3, 2 * MIB - 100_000), Err(NotTaken::NoRoom));
    rig.close(1);
    assert_eq!(rig.want(3, MIB * 3 / 2), Ok(Answer::Wait));
    assert_eq!(rig.removing.len(), 1);
    rig.settle();
    assert_eq!(rig.whole(), [2, 3]);
    assert_eq!((rig.want(4, 4 * MIB), rig.want(5, 0)), (Err(NotTaken::Size), Err(NotTaken::Size)));
}

#[test]
fn a_dropped_file_stays_for_those_who_have_it_open() {
    let mut rig = Rig::new(limits(10 * MIB));
    rig.hold(1, MIB);
    rig.open(1, MIB);
    assert!(rig.drop_file(1) && !rig.drop_file(1));
    assert_eq!((rig.open(1, MIB), rig.whole(), rig.removing.len()), (Answer::No, vec![1], 0));
    rig.close(1);
    rig.settle();
    assert_eq!(rig.whole(), []);
    // It is asked for while it goes: it comes again.
    rig.hold(1, MIB);
    rig.drop_file(1);
    assert_eq!(rig.want(1, MIB), Ok(Answer::Wait));
    rig.settle();
    assert_eq!((rig.whole(), rig.waiting.len()), (vec![1], 0));
}

#[test]
fn what_failed_is_left_alone_longer_each_time() {
    let mut rig = Rig::new(limits(10 * MIB));
    rig.open(1, MIB);
    for wait in [1, 2, 4, 8] {
        rig.open(1, MIB);
        assert_eq!(rig.filling.len(), 1, "{wait}");
        rig.end_fill(0, Some(NotTaken::Failed("no".into())));
        rig.now += Duration::from_secs(wait) - Duration::from_millis(1);
        rig.open(1, MIB);
        assert_eq!(rig.filling.len(), 0, "{wait}");
        rig.now += Duration::from_millis(1);
    }
    // What was asked for is tried again without another open.
    assert_eq!(rig.want(2, MIB), Ok(Answer::Wait));
    rig.end_fill(0, Some(NotTaken::Failed("no".into())));
    rig.now += Duration::from_secs(1);
    rig.index.tick(rig.now);
    rig.obey();
    assert_eq!(rig.filling.len(), 1);
    // What changed is forgotten.
    rig.end_fill(0, Some(NotTaken::Changed));
    assert!(rig.index.version(&version(2, 0).0).is_none());
}

#[test]
fn room_that_the_backend_has_not_got_is_given_to_nobody() {
    let mut rig = Rig::new(limits(10 * MIB));
    // A removed file is still mapped.
    rig.index.free(4 * MIB, rig.now);
    rig.hold(1, 3 * MIB);
    assert_eq!(rig.whole(), [1]);
    rig.hold(2, 3 * MIB);
    assert_eq!(rig.whole(), [1]);
    rig.index.free(7 * MIB, rig.now);
    rig.now += Duration::from_secs(2);
    rig.hold(2, 3 * MIB);
    assert_eq!(rig.whole(), [1, 2]);
}

#[test]
fn what_a_restart_found_is_there_when_it_was_checked() {
    let mut rig = Rig::new(limits(10 * MIB));
    let (old, _) = version(1, 0);
    let (late, late_version) = version(2, MIB);
    assert!(rig.index.found(old, MIB, rig.now - Duration::from_secs(9), rig.now));
    assert!(rig.index.found(late, MIB, rig.now - Duration::from_secs(3), rig.now));
    assert!(!rig.index.found(version(3, 0).0, 9 * MIB, rig.now, rig.now), "it does not fit");
    rig.whole.extend([(old, MIB), (late, MIB)]);
    rig.sizes.extend([(old, MIB), (late, MIB)]);
    assert_eq!(rig.open(2, MIB), Answer::No);
    assert_eq!(rig.index.next_check(None, rig.now), Some(late));
    rig.index.checked(late, Some(late_version), true, rig.now);
    assert_eq!(rig.open(2, MIB), Answer::Ready);
    assert_eq!(rig.index.next_check(None, rig.now), Some(old));
    rig.index.checked(old, None, false, rig.now);
    rig.obey();
    rig.settle();
    assert_eq!((rig.whole(), rig.index.next_check(None, rig.now)), (vec![2], None));
    let hour = Duration::from_secs(3600);
    assert_eq!(rig.index.next_check(Some(hour), rig.now), None);
    assert_eq!(rig.index.next_check(Some(hour), rig.now + hour), Some(late));
    // It turned bad while it is open: no other open gets it.
    rig.index.checked(late, None, false, rig.now);
    assert_eq!((rig.open(2, MIB), rig.removing.len()), (Answer::No, 0));
    rig.close(2);
    rig.settle();
    assert_eq!(rig.whole(), []);
}

#[derive(Clone, Debug)]
enum Event {
    Open(u32),
    Close(u32),
    Want(u32),
    Filled(usize),
    Failed(usize, u8),
    Removed(usize),
    Drop(u32),
    DropAll,
    Bad(u32),
    Later(u16),
    Free(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let file = || 0u32..12;
    let event = prop_oneof![
        8 => file().prop_map(Event::Open),
        6 => file().prop_map(Event::Close),
        1 => file().prop_map(Event::Want),
        5 => any::<usize>().prop_map(Event::Filled),
        1 => any::<(usize, u8)>().prop_map(|(at, why)| Event::Failed(at, why)),
        4 => any::<usize>().prop_map(Event::Removed),
        1 => file().prop_map(Event::Drop),
        1 => Just(Event::DropAll),
        1 => file().prop_map(Event::Bad),
        2 => any::<u16>().prop_map(Event::Later),
        1 => (0..20 * MIB).prop_map(Event::Free),
    ];
    prop::collection::vec(event, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_happens_the_room_is_enough_and_nothing_goes_that_is_open(events in events(), first_open in any::<bool>()) {
        let size_of = |number: u32| u64::from(number % 5 + 1) * MIB;
        let mut limits = limits(12 * MIB);
        limits.rules.first_open_size = if first_open { 3 * MIB } else { 0 };
        let mut rig = Rig::new(limits);
        for event in events {
            match event {
                Event::Open(number) => drop(rig.open(number, size_of(number))),
                Event::Close(number) => rig.close(number),
                Event::Want(number) => drop(rig.want(number, size_of(number))),
                Event::Filled(at) => rig.end_fill(at, None),
                Event::Failed(at, why) => {
                    let whys = [NotTaken::Changed, NotTaken::NoRoom, NotTaken::Failed("no".into()), NotTaken::Dropped];
                    rig.end_fill(at, Some(whys[usize::from(why) % 4].clone()));
                }
                Event::Removed(at) => rig.end_removal(at),
                Event::Drop(number) => drop(rig.drop_file(number)),
                Event::DropAll => {
                    rig.dropped.extend((0..12).map(|number| version(number, 0).0));
                    rig.index.drop_all(rig.now);
                    rig.obey();
                }
                Event::Bad(number) => {
                    let (file, _) = version(number, 0);
                    if rig.whole.contains_key(&file) {
                        rig.bad.insert(file);
                        rig.index.checked(file, None, false, rig.now);
                        rig.obey();
                    }
                }
                Event::Later(seconds) => {
                    rig.now += Duration::from_secs(u64::from(seconds));
                    rig.index.tick(rig.now);
                    rig.obey();
                }
                Event::Free(bytes) => {
                    rig.index.free(bytes, rig.now);
                    rig.obey();
                }
            }
        }
        // Every waiter gets an answer, and nothing is left in the end.
        rig.index.free(u64::MAX / 2, rig.now);
        rig.obey();
        for number in 0..12 {
            for _ in 0..rig.pins.get(&version(number, 0).0).copied().unwrap_or(0) {
                rig.close(number);
            }
        }
        rig.settle();
        prop_assert!(rig.waiting.is_empty(), "{:?} wait", rig.waiting);
        rig.dropped.extend((0..12).map(|number| version(number, 0).0));
        rig.index.close(rig.now);
        rig.index.drop_all(rig.now);
        rig.obey();
        rig.settle();
        prop_assert!(rig.whole.is_empty() && rig.index.files.is_empty(), "{:?}", rig.index.files);
        prop_assert_eq!((rig.index.taken, rig.index.going, rig.index.filling, rig.index.queue.len()), (0, 0, 0, 0));
    }
}
