//! What was true when: the history of every object, which answers are held against, and what each worker fetched.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use forebay_types::FileVersion;

use crate::kernel::{self, Process};

/// As the product's `FetchPolicy::origin` has it, in bytes.
const BRIDGE: u64 = 64 << 10;
/// What happened so long ago is not asked about any more.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// One state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Object {
    pub(crate) number: u64,
    pub(crate) size: u64,
}

/// From when on it was what.
type History = Vec<(Duration, Option<Object>)>;

#[derive(Default)]
struct Model {
    /// By origin and path: from when it was what.
    history: HashMap<(usize, Vec<u8>), History>,
    fetched: BTreeMap<Process, Fetched>,
}

/// What a process fetched from origins.
#[derive(Default)]
struct Fetched {
    /// Counts whatever leaves its cache.
    leaves: Option<Box<dyn Fn() -> u64>>,
    left: u64,
    held: HashMap<FileVersion, Vec<Range<u64>>>,
    under_way: Vec<(u64, FileVersion, Range<u64>, Duration)>,
    next: u64,
}

thread_local! {
    static MODEL: RefCell<Model> = RefCell::default();
}

fn model<T>(with: impl FnOnce(&mut Model) -> T) -> T {
    MODEL.with_borrow_mut(with)
}

/// An object is this from now on.
pub(crate) fn changed(origin: usize, path: &[u8], object: Option<Object>) {
    let now = kernel::now();
    model(|model| {
        let history = model.history.entry((origin, path.to_vec())).or_default();
        if history.last().is_some_and(|(_, last)| *last == object) {
            return;
        }
        history.push((now, object));
        // The one before the oldest that counts says what it was until then.
        let old = history.iter().take_while(|(at, _)| *at + REMEMBERED < now).count();
        history.drain(..old.saturating_sub(1));
    });
}

/// What a path was at any time from `since` to `until`, in order, each with the time from which it was.
pub(crate) fn between(origin: usize, path: &[u8], since: Duration, until: Duration) -> Vec<(Duration, Option<Object>)> {
    model(|model| {
        let none = vec![];
        let history = model.history.get(&(origin, path.to_vec())).unwrap_or(&none);
        let at_first = history.iter().rev().find(|(at, _)| *at <= since).copied().unwrap_or((Duration::ZERO, None));
        let later = history.iter().filter(|(at, _)| *at > since && *at <= until).copied();
        std::iter::once(at_first).chain(later).collect()
    })
}

/// Whether a path was `object` at any time from `since` to `until`.
pub(crate) fn was(origin: usize, path: &[u8], object: Option<Object>, since: Duration, until: Duration) -> bool {
    between(origin, path, since, until).iter().any(|(_, was)| *was == object)
}

/// The first time from `since` on at which a path became `object`.
pub(crate) fn became(origin: usize, path: &[u8], object: Option<Object>, since: Duration) -> Option<Duration> {
    let all = between(origin, path, since, kernel::now());
    all.into_iter().find(|(_, was)| *was == object).map(|(at, _)| at.max(since))
}

/// A worker caches from now on; `leaves` counts whatever leaves its cache.
pub(crate) fn caches(process: Process, leaves: impl Fn() -> u64 + 'static) {
    model(|model| {
        model.fetched.retain(|other, _| other.node != process.node);
        model.fetched.insert(process, Fetched { leaves: Some(Box::new(leaves)), ..Fetched::default() });
    });
}

/// A worker caches no more.
pub(crate) fn gone(node: usize) {
    let gone = model(|model| {
        let of_it: Vec<Process> = model.fetched.keys().filter(|process| process.node == node).copied().collect();
        of_it.iter().filter_map(|process| model.fetched.remove(process)).collect::<Vec<_>>()
    });
    drop(gone);
}

/// A GET of an origin that is under way.
pub(crate) struct Get {
    process: Process,
    number: u64,
    version: FileVersion,
    range: Range<u64>,
}

impl Get {
    /// A worker asks for bytes of a version. No worker asks for what it holds, nor for what it is being sent.
    pub(crate) fn begin(process: Process, version: &FileVersion, range: Range<u64>) -> Self {
        let twice = model(|model| {
            let fetched = model.fetched.get_mut(&process)?;
            fetched.forget_what_left();
            let is_held = fetched.held.get(version).is_some_and(|held| covers(held, &range));
            // Small holes are bridged: what is smaller may come a second time with what lies around it.
            let is_bridged = |other: &Range<u64>| range.end - range.start <= BRIDGE && *other != range;
            let coming = fetched
                .under_way
                .iter()
                .filter(|(_, of, other, _)| of == version && !is_bridged(other))
                .map(|(_, _, range, _)| range.clone());
            let is_coming = covers(&coming.collect::<Vec<_>>(), &range);
            fetched.next += 1;
            let known: Vec<_> = fetched
                .under_way
                .iter()
                .filter(|(_, of, ..)| of == version)
                .map(|(number, _, range, since)| (*number, range.clone(), *since))
                .collect();
            fetched.under_way.push((fetched.next, version.clone(), range.clone(), kernel::now()));
            match (is_held, is_coming) {
                (true, _) => Some(("holds", known)),
                (_, true) => Some(("is being sent", known)),
                _ => None,
            }
        });
        if let Some((why, known)) = twice {
            let path = String::from_utf8_lossy(&version.path);
            kernel::violated(
                "one miss, one GET",
                format!("{process:?} asks for {range:?} of {path}, which it {why}: {known:?}"),
            );
        }
        let number = model(|model| model.fetched.get(&process).map_or(0, |fetched| fetched.next));
        Self { process, number, version: version.clone(), range }
    }

    /// The bytes came.
    pub(crate) fn succeeded(&self) {
        model(|model| {
            let Some(fetched) = model.fetched.get_mut(&self.process) else { return };
            fetched.forget_what_left();
            fetched.held.entry(self.version.clone()).or_default().push(self.range.clone());
        });
    }
}

impl Drop for Get {
    fn drop(&mut self) {
        model(|model| {
            if let Some(fetched) = model.fetched.get_mut(&self.process) {
                fetched.under_way.retain(|(number, ..)| *number != self.number);
            }
        });
    }
}

impl Fetched {
    /// When something left the cache, the model does not know what it was, and forgets all that is held.
    fn forget_what_left(&mut self) {
        let left = self.leaves.as_ref().map_or(0, |leaves| leaves());
        if left != self.left {
            self.left = left;
            self.held.clear();
        }
        if self.held.len() > 10_000 {
            self.held.clear();
        }
    }
}

/// Whether these ranges together have all of that one.
fn covers(ranges: &[Range<u64>], wanted: &Range<u64>) -> bool {
    let mut sorted: Vec<_> =
        ranges.iter().filter(|range| range.end > wanted.start && range.start < wanted.end).collect();
    sorted.sort_by_key(|range| range.start);
    let mut at = wanted.start;
    for range in sorted {
        if range.start > at {
            return false;
        }
        at = at.max(range.end);
    }
    at >= wanted.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_another_together_or_not() {
        assert!(covers(&[0..4, 4..9], &(2..8)) && covers(&[3..9, 0..4], &(0..9)));
        assert!(
            !covers(&[0..4, 5..9], &(2..8)) && !covers(&[], &(0..1)) && !covers(std::slice::from_ref(&(0..4)), &(2..5))
        );
    }
}
