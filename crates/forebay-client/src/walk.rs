//! Which files of one directory to fetch before they are opened: a state machine. Pure.
//!
//! A program that opens the files of a directory in the order of its listing waits for the origin once for each of
//! them. It is seen by where the files that it opens stand in the listing. Several readers may be at it, side by side
//! or each in a part of its own, so a directory has a few *cursors*: an open near the place where one stands moves it
//! on, and any other open begins one. A cursor that has moved on [`SHOWN_BY`] times in order is a walk, and the next
//! names are guessed to be opened: as many as [`FIRST_WINDOW`] at first, and twice as many with each guess that comes
//! true, up to [`MAX_WINDOW`].
//!
//! Of the names only small files are guessed that end as one of those that were opened: who reads `.jpg` leaves out the
//! `.txt` beside it. What is to be looked at only is not fetched: questions about names count for nothing here.
//!
//! Guesses may be wrong. One is when its name was passed over, when it could not be fetched, or when nobody opened
//! anything there for [`IDLE`]. A directory is *worth* something at first, each guess that comes true adds [`GAIN`],
//! each wrong one takes [`LOSS`], and at zero it is given up for [`GIVEN_UP_FOR`]. So is one whose files are opened
//! without any order. And where what was guessed was in reach already, as when a data set is read again, nothing is
//! guessed for the next [`REST`] files.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::time::Duration;

/// A cursor has to move on so often, in order, before anything is fetched: that is the third file.
const SHOWN_BY: u32 = 2;
/// Files that are guessed at first.
const FIRST_WINDOW: usize = 4;
/// And at most: of 100 KiB each, 64 come in 6.4 MB, which is 2.5 Gb/s over 20 ms.
const MAX_WINDOW: usize = 64;
/// So many names may be left out between two files that are opened in order.
const REACH: u64 = 16;
/// Readers of one walk are so far from each other at most. A guess that lies further behind was passed over.
const BEHIND: u64 = 16;
/// How far from its cursor the last guess may lie: directories and other files may stand between.
const SPAN: u64 = 4 * MAX_WINDOW as u64;
/// Cursors of a directory: the readers that each go through a part of their own.
const CURSORS: usize = 8;
/// Endings of names that were opened lately.
const ENDINGS: usize = 4;
const WORTH_AT_FIRST: i32 = 8;
const MAX_WORTH: i32 = 16;
const GAIN: i32 = 1;
const LOSS: i32 = 2;
/// A reader that left its walk shows no more than that it left: so many wrong guesses, however many they were.
const LEFT: u64 = 2;
/// A walk in which nothing was opened for so long is over.
const IDLE: Duration = Duration::from_secs(10);
/// How long a directory that was given up is left alone.
const GIVEN_UP_FOR: Duration = Duration::from_secs(60);
/// So many opened files that continued nothing say that there is no order. One that continued something makes up for
/// four.
const JUMPS: u32 = 64;
const MADE_UP_FOR: u32 = 4;
/// So many guesses in a row that were in reach already say that the next ones are, too.
const NEEDLESS: u32 = 16;
/// Then so many files are opened before the next guess, and each time that turns out so again twice as many, up to 16
/// times.
const REST: u32 = 256;
const MAX_DOUBLED: u32 = 4;

/// What a name of a listing is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A small file.
    Small {
        /// Its length.
        bytes: u64,
        /// What its name ends with: the same for names that end alike.
        ending: u64,
    },
    /// Nothing to fetch: a directory, a large file, an empty one.
    Other,
}

/// The names of a directory, in the order of its listing.
pub(crate) trait Names {
    /// The one at a position; `None` from where they are not known any more.
    fn at(&self, position: u64) -> Option<Name>;
    /// Whether memory of this process has that file.
    fn is_here(&self, position: u64) -> bool;
}

/// What came of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Guesses that came true.
    pub(crate) used: u64,
    /// Wrong ones.
    pub(crate) wasted: u64,
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.wasted += other.wasted;
    }
}

/// What to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// These positions.
    pub(crate) fetch: Vec<u64>,
    /// It would go on, but the names end there.
    pub(crate) is_short: bool,
}

#[derive(Clone, Copy, Debug)]
struct Guess {
    position: u64,
    bytes: u64,
}

/// Where readers stand.
#[derive(Clone, Debug)]
struct Cursor {
    /// After the furthest file that was opened.
    next: u64,
    steps: u32,
    /// Names before this were looked at.
    ahead: u64,
    window: usize,
    /// In order. What was fetched, or is being fetched, and was not opened yet.
    guesses: VecDeque<Guess>,
    moved: Duration,
}

impl Cursor {
    fn at(next: u64, steps: u32, now: Duration) -> Self {
        Self { next, steps, ahead: next, window: FIRST_WINDOW, guesses: VecDeque::new(), moved: now }
    }

    /// Whether an open there is one of the same walk.
    fn continues(&self, position: u64) -> bool {
        position.saturating_add(BEHIND) >= self.next && position < self.ahead.max(self.next.saturating_add(REACH))
    }

    /// Takes the guess of a position away, if there is one.
    fn take(&mut self, position: u64) -> bool {
        let at = self.guesses.iter().position(|guess| guess.position == position);
        at.and_then(|at| self.guesses.remove(at)).is_some()
    }

    /// Takes those away that were passed over. How many they are.
    fn pass(&mut self) -> u64 {
        let before = self.guesses.len();
        self.guesses.retain(|guess| guess.position.saturating_add(BEHIND) >= self.next);
        (before - self.guesses.len()) as u64
    }

    /// A guess came true: there may be more of them, unless others are being passed over.
    fn grow(&mut self) {
        let behind = self.guesses.iter().take_while(|guess| guess.position < self.next).count();
        if behind <= self.window / 4 {
            self.window = (2 * self.window).min(MAX_WINDOW);
        }
    }

    fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.moved) >= IDLE
    }

    fn outstanding(&self) -> u64 {
        self.guesses.iter().map(|guess| guess.bytes).sum()
    }
}

/// The endings of names that were opened lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endings(VecDeque<u64>);

impl Endings {
    fn note(&mut self, ending: u64) {
        if self.0.front() == Some(&ending) {
            return;
        }
        self.0.retain(|known| *known != ending);
        self.0.push_front(ending);
        self.0.truncate(ENDINGS);
    }
}

/// The walks in one directory.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    cursors: Vec<Cursor>,
    endings: Endings,
    worth: i32,
    /// How many guesses came true.
    used: u64,
    jumps: u32,
    needless: u32,
    /// Files to be opened before the next guess.
    rest: u32,
    /// How often there was such a rest, since something that was not in reach was fetched.
    rests: u32,
    given_up: Option<Duration>,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            cursors: Vec::new(),
            endings: Endings::default(),
            worth: WORTH_AT_FIRST,
            used: 0,
            jumps: 0,
            needless: 0,
            rest: 0,
            rests: 0,
            given_up: None,
        }
    }
}

impl Walk {
    /// The file at a position is opened. What came of guesses, and the cursor that was moved, for [`Walk::plan`].
    pub(crate) fn opened(&mut self, position: u64, ending: u64, now: Duration) -> (Outcome, Option<usize>) {
        let mut outcome = self.expire(now);
        if !self.is_on(now) {
            return (outcome, None);
        }
        self.endings.note(ending);
        self.rest = self.rest.saturating_sub(1);
        if let Some(cursor) = self.cursors.iter_mut().find_map(|cursor| cursor.take(position).then_some(cursor)) {
            cursor.grow();
            outcome.used += 1;
            self.used += 1;
            self.worth = (self.worth + GAIN).min(MAX_WORTH);
        }
        let Some(at) = self.cursors.iter().position(|cursor| cursor.continues(position)) else {
            self.jumps += 1;
            outcome += if self.jumps < JUMPS { self.begin(position, now) } else { self.give_up(now) };
            return (outcome, None);
        };
        let cursor = &mut self.cursors[at];
        cursor.moved = now;
        if position >= cursor.next {
            (cursor.next, cursor.steps) = (position + 1, cursor.steps + 1);
            self.jumps = self.jumps.saturating_sub(MADE_UP_FOR);
        }
        let passed = cursor.pass();
        outcome.wasted += passed;
        outcome += self.lose(passed, now);
        (outcome, Some(at).filter(|_| self.given_up.is_none()))
    }

    /// What to fetch for a cursor now, of `room` bytes at most beyond what is fetched already.
    pub(crate) fn plan(&mut self, at: usize, room: u64, names: &impl Names) -> Plan {
        let (mut plan, mut room) = (Plan::default(), room);
        let Some(cursor) = self.cursors.get_mut(at) else { return plan };
        if self.rest > 0 || cursor.steps < SHOWN_BY {
            return plan;
        }
        cursor.ahead = cursor.ahead.max(cursor.next);
        while cursor.ahead < cursor.next + SPAN && cursor.guesses.len() < cursor.window {
            let position = cursor.ahead;
            let Some(name) = names.at(position) else {
                plan.is_short = true;
                break;
            };
            if let Name::Small { bytes, ending } = name
                && self.endings.0.contains(&ending)
            {
                if names.is_here(position) {
                    self.needless += 1;
                } else if bytes > room {
                    break;
                } else {
                    room -= bytes;
                    cursor.guesses.push_back(Guess { position, bytes });
                    plan.fetch.push(position);
                }
            }
            cursor.ahead += 1;
            if self.needless >= NEEDLESS {
                self.take_a_rest();
                break;
            }
        }
        plan
    }

    /// Whether a guess was not opened yet, nor found wrong.
    pub(crate) fn is_guessed(&self, position: u64) -> bool {
        let mut guesses = self.cursors.iter().flat_map(|cursor| &cursor.guesses);
        guesses.any(|guess| guess.position == position)
    }

    /// A guess was fetched. `brought`: it was not in reach already.
    pub(crate) fn fetched(&mut self, position: u64, brought: bool) {
        // A reader that was faster has brought it.
        if !self.is_guessed(position) {
            return;
        }
        if brought {
            (self.needless, self.rests) = (0, 0);
            return;
        }
        self.needless += 1;
        if self.needless >= NEEDLESS {
            self.take_a_rest();
        }
    }

    /// A guess could not be fetched: what is there is another version, or nothing, or there is no room.
    pub(crate) fn failed(&mut self, position: u64, now: Duration) -> Outcome {
        // It may have been opened meanwhile.
        if !self.cursors.iter_mut().any(|cursor| cursor.take(position)) {
            return Outcome::default();
        }
        let mut outcome = Outcome { used: 0, wasted: 1 };
        outcome += self.lose(1, now);
        outcome
    }

    /// The directory was listed anew, so that names may have other positions.
    pub(crate) fn listed_anew(&mut self) {
        self.cursors.clear();
        self.jumps = 0;
    }

    /// It is expected that the files are opened from the first on, those that end as `endings` say.
    pub(crate) fn expect(&mut self, endings: &Endings, now: Duration) -> Option<usize> {
        if !self.is_on(now) || !self.cursors.is_empty() {
            return None;
        }
        endings.0.iter().rev().for_each(|ending| self.endings.note(*ending));
        self.cursors.push(Cursor::at(0, SHOWN_BY, now));
        Some(0)
    }

    /// Ends walks in which nothing happens any more.
    pub(crate) fn expire(&mut self, now: Duration) -> Outcome {
        let idle = self.cursors.iter().filter(|cursor| cursor.is_idle(now));
        let wasted = idle.map(|cursor| cursor.guesses.len() as u64).sum();
        self.cursors.retain(|cursor| !cursor.is_idle(now));
        let mut outcome = Outcome { used: 0, wasted };
        outcome += self.lose(wasted.min(LEFT), now);
        outcome
    }

    /// Bytes of guesses that were not opened yet.
    pub(crate) fn outstanding(&self) -> u64 {
        self.cursors.iter().map(Cursor::outstanding).sum()
    }

    /// How many guesses are open.
    pub(crate) fn guesses(&self) -> u64 {
        self.cursors.iter().map(|cursor| cursor.guesses.len() as u64).sum()
    }

    /// How many came true.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// How many opened files continued nothing, less those that are made up for.
    pub(crate) fn jumps(&self) -> u32 {
        self.jumps
    }

    /// Whether it was given up, and not long ago.
    pub(crate) fn is_left_alone(&self, now: Duration) -> bool {
        self.given_up.is_some_and(|since| now.saturating_sub(since) < GIVEN_UP_FOR)
    }

    /// Before this position nobody reads any more.
    pub(crate) fn reached(&self) -> Option<u64> {
        self.cursors.iter().map(|cursor| cursor.next.saturating_sub(BEHIND)).min()
    }

    /// The positions where cursors stand.
    pub(crate) fn places(&self) -> impl Iterator<Item = u64> {
        self.cursors.iter().map(|cursor| cursor.next)
    }

    /// The endings of what was opened.
    pub(crate) fn endings(&self) -> &Endings {
        &self.endings
    }

    /// Whether anything may be guessed; after a while again.
    fn is_on(&mut self, now: Duration) -> bool {
        if self.is_left_alone(now) {
            return false;
        }
        if self.given_up.is_some() {
            *self = Self { worth: WORTH_AT_FIRST / 2, ..Self::default() };
        }
        true
    }

    /// A cursor begins behind this position, in the place of the one that has not moved for longest.
    fn begin(&mut self, position: u64, now: Duration) -> Outcome {
        let begun = Cursor::at(position + 1, 0, now);
        if self.cursors.len() < CURSORS {
            self.cursors.push(begun);
            return Outcome::default();
        }
        let Some(idlest) = self.cursors.iter_mut().min_by_key(|cursor| cursor.moved) else { return Outcome::default() };
        let wasted = std::mem::replace(idlest, begun).guesses.len() as u64;
        let mut outcome = Outcome { used: 0, wasted };
        outcome += self.lose(wasted.min(LEFT), now);
        outcome
    }

    /// Nothing is guessed for a while, and then few.
    fn take_a_rest(&mut self) {
        (self.needless, self.rest) = (0, REST << self.rests);
        self.rests = (self.rests + 1).min(MAX_DOUBLED);
        self.cursors.iter_mut().for_each(|cursor| cursor.window = FIRST_WINDOW);
    }

    /// So many guesses were wrong.
    fn lose(&mut self, wrong: u64, now: Duration) -> Outcome {
        let wrong = i32::try_from(wrong).unwrap_or(i32::MAX);
        self.worth = self.worth.saturating_sub(LOSS.saturating_mul(wrong));
        if wrong > 0 && self.worth <= 0 { self.give_up(now) } else { Outcome::default() }
    }

    fn give_up(&mut self, now: Duration) -> Outcome {
        let wasted = self.guesses();
        self.cursors.clear();
        self.given_up = Some(now);
        Outcome { used: 0, wasted }
    }
}

#[cfg(test)]
mod tests;
