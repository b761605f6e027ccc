//! Which parts of a draft the origin has, which are under way, and which should go next. Pure.
//!
//! Every change of the file has a *generation*. A part that is sent carries the generation at which its bytes began to
//! be read; it is *current* as long as it was not changed after that. A part that is changed again is sent again; never
//! are two sends of one part under way at once, because nothing would tell which of them the origin keeps.
//!
//! A part goes *early*, before a sync is asked for, when as many bytes were written to it as it has (since it was sent
//! last), all of it is staged, and it was not written to for a while. So a writer that goes through the file in order
//! has its parts sent behind it, and one that changes a few bytes here and there does not have whole parts sent for
//! each of them. As long as every write has begun where the one before ended there is no wait: such a writer will not
//! come back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::schedule::Schedule;

/// The parts of a draft since it was last synced. A part that was not touched since has no entry.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    schedule: Arc<Schedule>,
    touched: BTreeMap<u32, Part>,
    /// Parts that may go early, by when they were written; checked when their time comes.
    candidates: BinaryHeap<Reverse<(Instant, u32)>>,
    generation: u64,
    /// The generation at which the file was last cut or grown.
    resized: u64,
    in_flight: usize,
    /// Where the next write begins, if it goes on where the last one ended.
    next: Option<u64>,
    /// All of them did.
    in_order: bool,
}

#[derive(Clone, Debug)]
struct Part {
    /// The generation of the last change; 0 if there was none.
    changed: u64,
    written_at: Instant,
    /// Bytes written since it was last sent.
    written: u64,
    candidate: bool,
    in_flight: bool,
    sent: Option<Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    generation: u64,
    length: u64,
    tag: String,
}

/// What a sync must carry to the origin: all that was changed until `generation`, and `size` bytes in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) generation: u64,
    pub(crate) size: u64,
}

/// What may go early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// This part, now.
    Part(u32, Range<u64>),
    /// Nothing before then.
    At(Instant),
    /// Nothing.
    Never,
}

impl Part {
    fn new(now: Instant) -> Self {
        Self { changed: 0, written_at: now, written: 0, candidate: false, in_flight: false, sent: None }
    }

    fn is_current(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.generation >= self.changed)
    }
}

impl Parts {
    pub(crate) fn new(schedule: Arc<Schedule>) -> Self {
        Self {
            schedule,
            touched: BTreeMap::new(),
            candidates: BinaryHeap::new(),
            generation: 0,
            resized: 0,
            in_flight: 0,
            next: None,
            in_order: true,
        }
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The generation of the last change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// How many parts are under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes were written. Returns whether a part became one that may go early.
    pub(crate) fn write(&mut self, range: Range<u64>, now: Instant) -> bool {
        self.generation += 1;
        self.in_order &= self.next.is_none_or(|next| next == range.start);
        self.next = Some(range.end);
        let mut more = false;
        for number in self.schedule.touched(&range) {
            let whole = self.schedule.range(number);
            let part = self.touched.entry(number).or_insert_with(|| Part::new(now));
            part.changed = self.generation;
            part.written_at = now;
            part.written += whole.end.min(range.end) - whole.start.max(range.start);
            if !part.candidate && part.written >= whole.end - whole.start {
                part.candidate = true;
                self.candidates.push(Reverse((now, number)));
                more = true;
            }
        }
        more
    }

    /// Bytes became zeros.
    pub(crate) fn zero(&mut self, range: Range<u64>, now: Instant) {
        self.generation += 1;
        for number in self.schedule.touched(&range) {
            let part = self.touched.entry(number).or_insert_with(|| Part::new(now));
            (part.changed, part.written_at) = (self.generation, now);
        }
    }

    /// The file was cut, or grown with zeros.
    pub(crate) fn resize(&mut self, from: u64, to: u64, now: Instant) {
        self.generation += 1;
        self.resized = self.generation;
        self.next = None;
        if to >= from {
            return;
        }
        let cut = self.schedule.part_at(to);
        let whole = self.schedule.range(cut);
        let last = if whole.start < to {
            self.touched.entry(cut).or_insert_with(|| Part::new(now)).changed = self.generation;
            cut + 1
        } else {
            cut
        };
        let beyond = self.touched.split_off(&last);
        // What is under way must be known until it ends, so that nothing overtakes it.
        let generation = self.generation;
        let under_way = beyond.into_iter().filter(|(_, part)| part.in_flight);
        self.touched.extend(under_way.map(|(number, part)| {
            let kept = Part { changed: generation, in_flight: true, ..Part::new(part.written_at) };
            (number, kept)
        }));
    }

    /// What may go early, of a file of which `staged` tells what is in the staged file.
    pub(crate) fn due(&mut self, now: Instant, quiet: Duration, staged: impl Fn(&Range<u64>) -> bool) -> Due {
        let quiet = if self.in_order { Duration::ZERO } else { quiet };
        while let Some(&Reverse((at, number))) = self.candidates.peek() {
            if at + quiet > now {
                return Due::At(at + quiet);
            }
            let whole = self.schedule.range(number);
            match self.touched.get_mut(&number).filter(|part| part.candidate) {
                Some(part) if part.written_at > at => {
                    let later = part.written_at;
                    self.candidates.pop();
                    self.candidates.push(Reverse((later, number)));
                }
                Some(part) if !part.in_flight && staged(&whole) => return Due::Part(number, whole),
                // It comes again with the next write, or when what is under way has ended.
                Some(part) => {
                    part.candidate = false;
                    self.candidates.pop();
                }
                None => {
                    self.candidates.pop();
                }
            }
        }
        Due::Never
    }

    /// The first part from `from` on that still has to be sent for `target`, and is not under way.
    pub(crate) fn next_unsent(&self, from: u32, target: Target) -> Option<(u32, Range<u64>)> {
        let unsent = |&number: &u32| {
            !self.touched.get(&number).is_some_and(|part| part.in_flight) && self.tag(number, target).is_none()
        };
        (from..=self.schedule.count(target.size)).find(unsent).map(|number| (number, self.range(number, target.size)))
    }

    /// The tags of all parts, if all have been sent for `target` and none is under way.
    pub(crate) fn tags(&self, target: Target) -> Option<Vec<String>> {
        if self.in_flight > 0 {
            return None;
        }
        (1..=self.schedule.count(target.size)).map(|number| self.tag(number, target).map(str::to_owned)).collect()
    }

    /// The tag of a part that was sent with all that `target` asks for.
    fn tag(&self, number: u32, target: Target) -> Option<&str> {
        let part = self.touched.get(&number)?;
        let range = self.range(number, target.size);
        let enough = |sent: &&Sent| {
            sent.length == range.end - range.start && sent.generation >= part.changed.min(target.generation)
        };
        part.sent.as_ref().filter(enough).map(|sent| sent.tag.as_str())
    }

    fn range(&self, number: u32, size: u64) -> Range<u64> {
        let whole = self.schedule.range(number);
        whole.start..whole.end.min(size)
    }

    /// A part is about to be read and sent. Returns the generation that it carries; `None` when it is under way
    /// already.
    pub(crate) fn start(&mut self, number: u32, now: Instant) -> Option<u64> {
        let part = self.touched.entry(number).or_insert_with(|| Part::new(now));
        if part.in_flight {
            return None;
        }
        (part.in_flight, part.candidate, part.written) = (true, false, 0);
        self.in_flight += 1;
        Some(self.generation)
    }

    /// A part has arrived.
    pub(crate) fn sent(&mut self, number: u32, generation: u64, length: u64, tag: String) {
        self.ended(number, 0);
        if let Some(part) = self.touched.get_mut(&number) {
            part.sent = Some(Sent { generation, length, tag });
        }
    }

    /// A part did not arrive.
    pub(crate) fn failed(&mut self, number: u32) {
        let whole = self.schedule.range(number);
        self.ended(number, whole.end - whole.start);
    }

    /// What was under way has ended; `written` bytes of it are as if they had just been written.
    fn ended(&mut self, number: u32, written: u64) {
        let whole = self.schedule.range(number);
        let Some(part) = self.touched.get_mut(&number).filter(|part| part.in_flight) else { return };
        part.in_flight = false;
        part.written += written;
        self.in_flight -= 1;
        if !part.candidate && part.written >= whole.end - whole.start {
            part.candidate = true;
            self.candidates.push(Reverse((part.written_at, number)));
        }
    }

    /// The upload is gone, and all that was sent with it.
    pub(crate) fn forget_sent(&mut self) {
        let numbers: Vec<u32> = self.touched.keys().copied().collect();
        for number in numbers {
            let whole = self.schedule.range(number);
            let Some(part) = self.touched.get_mut(&number) else { continue };
            let was_sent = part.sent.take().is_some() || part.in_flight;
            part.in_flight = false;
            if was_sent && !part.candidate {
                (part.candidate, part.written) = (true, whole.end - whole.start);
                self.candidates.push(Reverse((part.written_at, number)));
            }
        }
        self.in_flight = 0;
    }

    /// The whole parts, with their ranges, whose staged bytes the origin has in the upload.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = (u32, Range<u64>)> {
        self.touched.iter().filter_map(|(&number, part)| {
            let whole = self.schedule.range(number);
            let sent = part.sent.as_ref()?;
            let arrived = part.is_current() && !part.in_flight && sent.length == whole.end - whole.start;
            arrived.then_some((number, whole))
        })
    }

    /// The tags of all parts that are current, whatever their length.
    pub(crate) fn current(&self) -> impl Iterator<Item = (u32, u64, &str)> {
        let current = self.touched.iter().filter(|(_, part)| part.is_current() && !part.in_flight);
        current.filter_map(|(&number, part)| part.sent.as_ref().map(|sent| (number, sent.length, sent.tag.as_str())))
    }

    /// A part that was sent by a process that is gone.
    pub(crate) fn restore(&mut self, number: u32, length: u64, tag: String, now: Instant) {
        self.generation += 1;
        let sent = Some(Sent { generation: self.generation, length, tag });
        self.touched.insert(number, Part { changed: self.generation, sent, ..Part::new(now) });
    }

    /// A part of which so many bytes are staged, which another process may have changed, unless it is known that it was sent. It may go early,
    /// or what is staged would take room until the next sync.
    pub(crate) fn restore_unsent(&mut self, number: u32, staged: u64, now: Instant) {
        if self.touched.contains_key(&number) {
            return;
        }
        self.generation += 1;
        let whole = self.schedule.range(number);
        let candidate = staged >= whole.end - whole.start;
        let part = Part { changed: self.generation, written: staged, candidate, ..Part::new(now) };
        self.touched.insert(number, part);
        if candidate {
            self.candidates.push(Reverse((now, number)));
        }
    }

    /// Whether the part was not changed since the last sync, and is not being sent.
    pub(crate) fn is_untouched(&self, number: u32) -> bool {
        self.touched.get(&number).is_none_or(|part| part.changed == 0 && !part.in_flight)
    }

    /// The file is at the origin with all that its parts carried (`put` is `None`), or with all that was changed until
    /// then. `sized`: the generation at which its size was decided; `size`: the one that it has here now. Returns
    /// whether there is something that the origin does not have.
    pub(crate) fn settle(&mut self, put: Option<u64>, sized: u64, size: u64) -> bool {
        debug_assert_eq!(self.in_flight, 0);
        self.touched.retain(|&number, part| {
            let carried = put.or(part.sent.take().map(|sent| sent.generation)).unwrap_or(0);
            // One that was under way when it was cut off is still known, and is nothing any more.
            part.changed > carried && self.schedule.range(number).start < size
        });
        // Of what is not touched any more, the heap gets rid as it comes to it; it must not grow with every sync.
        if self.touched.is_empty() {
            self.candidates.clear();
        }
        !self.touched.is_empty() || self.resized > sized
    }
}

#[cfg(test)]
mod tests;
