//! The directories whose files are opened in the order of their listings: their names, and what to fetch ahead of all
//! of them within one budget. Pure; [`crate::walking`] fetches.
//!
//! A listing comes page by page. The names of the last few directories that were listed are kept, in pages that their
//! reader has anyway ([`crate::listed`]), up to [`MAX_NAMES`]: of a directory with more names the first pages, and
//! later ones are listed again when its walk comes there. An open names a version, whose origin and path lead to the
//! directory and to the place in it.
//!
//! A guess is of the version that the listing named. If that was replaced, the fetch fails, as each carries the
//! version, and the open that comes asks what the file is now: nothing here decides what a reader sees.
//!
//! What was fetched and not opened yet counts against the budget. Each directory may take half of what the others
//! leave, as streams do ([`crate::prefetch`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::{FileVersion, FsPath};

use crate::habits::Habits;
use crate::listed::{ListedName, Page};
use crate::order::{Held, InOrder, Order, ending};
use crate::small::place;
use crate::walk::{Outcome, Plan, Walk};

/// Directories whose names are kept.
const MAX_DIRECTORIES: usize = 32;
/// Names of all of them: some 500 bytes each, in pages that are often kept anyway.
const MAX_NAMES: usize = 32_768;
/// Names of one of them.
const MAX_NAMES_OF_ONE: usize = 20_000;
/// A directory with so many guesses that came true is one that was walked.
const WALKED: u64 = 8;
/// After so many opens out of the order of the listing, that of inode numbers is tried. Each of eight readers begins
/// somewhere.
const UNORDERED: u32 = 16;
/// How often walks that nobody goes on with are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes that may be fetched ahead of opens.
    pub(crate) budget: u64,
    /// The largest small file.
    pub(crate) small: u64,
}

/// Which walk of a directory a guess is of, and the position in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    walk: usize,
    position: u64,
}

/// A file to fetch.
#[derive(Clone, Debug)]
pub(crate) struct Guess {
    pub(crate) place: Place,
    /// The page that has it, and where.
    pub(crate) page: Arc<Page>,
    pub(crate) at: usize,
}

impl Guess {
    /// The name.
    pub(crate) fn name(&self) -> &ListedName {
        &self.page.names()[self.at]
    }
}

/// A page to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextPage {
    pub(crate) directory: FsPath,
    /// Where it starts.
    pub(crate) token: String,
    /// Names in it, at most.
    pub(crate) max: u32,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Files to fetch.
    pub(crate) fetch: Vec<Guess>,
    /// The walk has come to the end of the names that are kept.
    pub(crate) list: Option<NextPage>,
    /// What came of earlier guesses.
    pub(crate) outcome: Outcome,
}

/// All of a client's.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    directories: HashMap<FsPath, Directory>,
    /// Which directory the versions of files belong to.
    places: HashMap<u64, FsPath>,
    habits: Habits,
    swept: Duration,
    /// Counts what was listed or opened.
    turn: u64,
}

#[derive(Debug)]
struct Directory {
    pages: Vec<Held>,
    /// Names that were asked for in a page.
    max: u32,
    /// The walks in the order of the listing, and if there is none, in that of inode numbers.
    walks: Vec<(Order, Walk)>,
    /// Whether the second order was looked for.
    is_tried: bool,
    /// How many guesses had come true when its files were expected to be opened.
    expected: Option<u64>,
    /// The token that is being listed for the walk.
    listing: Option<String>,
    /// The turn in which it was listed or opened last.
    turn: u64,
}

impl Default for Directory {
    fn default() -> Self {
        let walks = vec![(Order::Listing, Walk::default())];
        Self { pages: Vec::new(), max: 0, walks, is_tried: false, expected: None, listing: None, turn: 0 }
    }
}

impl Directory {
    fn names(&self) -> usize {
        self.pages.iter().map(|held| held.page.names().len()).sum()
    }

    /// The walk in the order of the listing.
    fn listed_walk(&mut self) -> &mut Walk {
        &mut self.walks[0].1
    }

    fn each_walk(&self) -> impl Iterator<Item = &Walk> {
        self.walks.iter().map(|(_, walk)| walk)
    }

    fn used(&self) -> u64 {
        self.each_walk().map(Walk::used).sum()
    }

    fn guesses(&self) -> u64 {
        self.each_walk().map(Walk::guesses).sum()
    }

    fn outstanding(&self) -> u64 {
        self.each_walk().map(Walk::outstanding).sum()
    }

    /// Which page, and where in it, a version stands.
    fn find(&self, version: &FileVersion) -> Option<(usize, usize)> {
        let is_at = |place: &(usize, usize)| {
            let known = self.pages[place.0].page.names()[place.1].entry().attr.version();
            known.is_some_and(|known| known.path == version.path)
        };
        let places = |(order, walk): &(Order, Walk)| {
            let places = walk.places().filter_map(|position| order.place(&self.pages, position));
            places.collect::<Vec<_>>()
        };
        // Mostly it is the next one.
        if let Some(next) = self.walks.iter().flat_map(places).find(is_at) {
            return Some(next);
        }
        let find = |(at, held): (usize, &Held)| Some((at, held.page.find(&version.path)?));
        self.pages.iter().enumerate().find_map(find)
    }

    /// Other names may be at its positions from now on.
    fn forget_second_order(&mut self) {
        self.walks.truncate(1);
        self.is_tried = false;
    }

    /// A file is opened. What came of guesses, and the cursors that were moved, each with its walk.
    fn opened(&mut self, version: &FileVersion, now: Duration) -> (Outcome, Vec<(usize, usize)>) {
        let (mut outcome, mut moved) = (Outcome::default(), Vec::new());
        let is_unordered = self.each_walk().all(|walk| walk.jumps() >= UNORDERED || walk.is_left_alone(now));
        if is_unordered && !self.is_tried {
            let by_number = Order::of_numbers(&self.pages);
            self.walks.extend(by_number.map(|order| (order, Walk::default())));
            self.is_tried = true;
        }
        if self.each_walk().all(|walk| walk.is_left_alone(now)) {
            return (outcome, moved);
        }
        let Some(place) = self.find(version) else { return (outcome, moved) };
        let ending = ending(version.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        for (number, (order, walk)) in self.walks.iter_mut().enumerate() {
            let Some(position) = order.position(&self.pages, place) else { continue };
            let (more, cursor) = walk.opened(position, ending, now);
            outcome += more;
            moved.extend(cursor.map(|cursor| (number, cursor)));
        }
        (outcome, moved)
    }

    /// Ends walks that nobody goes on with.
    fn expire(&mut self, now: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        self.walks.iter_mut().for_each(|(_, walk)| outcome += walk.expire(now));
        outcome
    }

    /// Takes a page that was listed from `token` on; `is_wanted`: for the walk. Whether it is another first page than
    /// the one before.
    fn listed(&mut self, token: Option<&str>, page: &Arc<Page>, is_wanted: bool) -> bool {
        if is_wanted {
            self.listing = None;
        }
        let Some(token) = token else {
            let is_same = self.pages.first().is_some_and(|held| held.start == 0 && Arc::ptr_eq(&held.page, page));
            if !is_same {
                self.pages = vec![Held { start: 0, page: Arc::clone(page) }];
                self.forget_second_order();
                self.listed_walk().listed_anew();
            }
            return !is_same;
        };
        let Some(before) = self.pages.iter().position(|held| held.page.next() == Some(token)) else { return false };
        let start = self.pages[before].end();
        if self.pages.get(before + 1).is_some_and(|held| Arc::ptr_eq(&held.page, page)) {
            return false;
        }
        self.pages.truncate(before + 1);
        self.forget_second_order();
        let reached = self.listed_walk().reached().unwrap_or(0);
        while self.names() + page.names().len() > MAX_NAMES_OF_ONE {
            // What nobody has come to yet is worth more than what comes later, unless that is where the walk is.
            let is_past = self.pages.first().is_some_and(|held| is_wanted || held.end() <= reached);
            if !is_past || self.pages.len() == 1 {
                return false;
            }
            self.pages.remove(0);
        }
        self.pages.push(Held { start, page: Arc::clone(page) });
        false
    }

    /// What to fetch for a cursor of a walk, and the token to list.
    fn plan(
        &mut self,
        (number, cursor): (usize, usize),
        room: u64,
        small: u64,
        is_here: &dyn Fn(&ListedName) -> bool,
    ) -> (Vec<Guess>, Option<String>) {
        let Some((order, walk)) = self.walks.get_mut(number) else { return (Vec::new(), None) };
        let names = InOrder { order, pages: &self.pages, small, is_here };
        let Plan { fetch, is_short } = walk.plan(cursor, room, &names);
        let is_short = is_short && matches!(order, Order::Listing);
        let guess = |position: u64| {
            let (page, at) = order.place(&self.pages, position)?;
            let page = Arc::clone(&self.pages[page].page);
            Some(Guess { place: Place { walk: number, position }, page, at })
        };
        let guesses = fetch.into_iter().filter_map(guess).collect();
        let next = self.pages.last().and_then(|held| held.page.next()).filter(|_| is_short && self.listing.is_none());
        let next = next.map(str::to_owned);
        if next.is_some() {
            self.listing.clone_from(&next);
        }
        (guesses, next)
    }
}

impl Walks {
    /// A page of a directory, of at most `max` names, was listed from `token` on. `is_here` says whether memory of this
    /// process has a file.
    pub(crate) fn listed(
        &mut self,
        token: Option<&str>,
        page: &Arc<Page>,
        max: u32,
        now: Duration,
        limits: Limits,
        is_here: &dyn Fn(&ListedName) -> bool,
    ) -> Wanted {
        let path = page.directory();
        let place = page.names().iter().find_map(|name| name.entry().attr.version()).map(place);
        if place.is_none() && !self.directories.contains_key(path) {
            return Wanted::default();
        }
        if let Some(place) = place.filter(|place| self.places.get(place) != Some(path)) {
            self.places.insert(place, path.clone());
        }
        self.turn += 1;
        let directory = self.directories.entry(path.clone()).or_default();
        (directory.turn, directory.max) = (self.turn, max);
        let is_wanted = directory.listing.as_deref().is_some_and(|listing| Some(listing) == token);
        let is_new = directory.listed(token, page, is_wanted);
        let mut wanted = Wanted::default();
        if is_new && directory.expected.take().is_some() {
            self.habits.settle(path, false);
        }
        let cursor = match is_new {
            true => self.habits.expect(path).and_then(|endings| {
                let cursor = directory.listed_walk().expect(&endings, now);
                directory.expected = cursor.map(|_| directory.used());
                cursor
            }),
            false => None,
        };
        if is_new && cursor.is_none() {
            self.habits.settle(path, false);
        }
        // The walks that came to the end of what was known go on.
        let cursors = if is_wanted { directory.listed_walk().places().count() } else { usize::from(cursor.is_some()) };
        for at in 0..cursors {
            let more = self.plan(path, (0, at), limits, is_here);
            wanted.fetch.extend(more.fetch);
            wanted.list = wanted.list.or(more.list);
        }
        wanted.outcome += self.make_room(path);
        wanted.outcome += self.sweep(now);
        wanted
    }

    /// A file of this version is opened.
    pub(crate) fn opened(
        &mut self,
        version: &FileVersion,
        now: Duration,
        limits: Limits,
        is_here: &dyn Fn(&ListedName) -> bool,
    ) -> Wanted {
        let mut wanted = Wanted { outcome: self.sweep(now), ..Wanted::default() };
        let Some(path) = self.places.get(&place(version)).cloned() else { return wanted };
        let Some(directory) = self.directories.get_mut(&path) else { return wanted };
        self.turn += 1;
        directory.turn = self.turn;
        let (outcome, moved) = directory.opened(version, now);
        wanted.outcome += outcome;
        let used = directory.used();
        if directory.expected.is_some_and(|before| used > before) {
            directory.expected = None;
            self.habits.settle(&path, true);
        }
        if outcome.used > 0 && used.is_multiple_of(WALKED) {
            self.habits.walked(&path, directory.listed_walk().endings());
        }
        for cursor in moved {
            let more = self.plan(&path, cursor, limits, is_here);
            wanted.fetch.extend(more.fetch);
            wanted.list = wanted.list.or(more.list);
        }
        wanted
    }

    /// Whether a guess was not opened yet, nor found wrong.
    pub(crate) fn is_guessed(&self, path: &FsPath, place: Place) -> bool {
        let walk = self.directories.get(path).and_then(|directory| directory.walks.get(place.walk));
        walk.is_some_and(|(_, walk)| walk.is_guessed(place.position))
    }

    /// What became of the fetch of a guess: whether it brought what was not in reach, or nothing came.
    pub(crate) fn fetched(&mut self, path: &FsPath, place: Place, brought: Option<bool>, now: Duration) -> Outcome {
        let walk = self.directories.get_mut(path).and_then(|directory| directory.walks.get_mut(place.walk));
        let Some((_, walk)) = walk else { return Outcome::default() };
        match brought {
            Some(brought) => {
                walk.fetched(place.position, brought);
                Outcome::default()
            }
            None => walk.failed(place.position, now),
        }
    }

    /// The page that was wanted could not be listed.
    pub(crate) fn not_listed(&mut self, path: &FsPath) {
        if let Some(directory) = self.directories.get_mut(path) {
            directory.listing = None;
        }
    }

    /// Bytes of guesses that were not opened yet.
    pub(crate) fn outstanding(&self) -> u64 {
        self.directories.values().map(Directory::outstanding).sum()
    }

    fn plan(
        &mut self,
        path: &FsPath,
        cursor: (usize, usize),
        limits: Limits,
        is_here: &dyn Fn(&ListedName) -> bool,
    ) -> Wanted {
        let all = self.outstanding();
        let Some(directory) = self.directories.get_mut(path) else { return Wanted::default() };
        let own = directory.outstanding();
        let room = (limits.budget.saturating_sub(all - own) / 2).saturating_sub(own);
        let (fetch, next) = directory.plan(cursor, room, limits.small, is_here);
        let list = next.map(|token| NextPage { directory: path.clone(), token, max: directory.max });
        Wanted { fetch, list, outcome: Outcome::default() }
    }

    /// Ends walks that nobody goes on with.
    fn sweep(&mut self, now: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        if now.saturating_sub(self.swept) < SWEEP {
            return outcome;
        }
        self.swept = now;
        for (path, directory) in &mut self.directories {
            outcome += directory.expire(now);
            if directory.expected.is_some() && directory.guesses() == 0 {
                directory.expected = None;
                self.habits.settle(path, false);
            }
        }
        outcome
    }

    /// Forgets the directories that were not used for longest, but for `but`, while there are too many names.
    fn make_room(&mut self, but: &FsPath) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            let names: usize = self.directories.values().map(Directory::names).sum();
            if names <= MAX_NAMES && self.directories.len() <= MAX_DIRECTORIES {
                return outcome;
            }
            let others = self.directories.iter().filter(|(path, _)| *path != but);
            let oldest = others.min_by_key(|(_, directory)| directory.turn).map(|(path, _)| path.clone());
            let Some((oldest, gone)) = oldest.and_then(|path| self.directories.remove_entry(&path)) else {
                return outcome;
            };
            outcome.wasted += gone.guesses();
            self.places.retain(|_, path| *path != oldest);
            self.habits.settle(&oldest, false);
        }
    }
}

#[cfg(test)]
mod tests;
