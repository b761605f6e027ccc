//! Directories that tell their names in the order of keys, as object stores do: where in one a page of a listing begins.
//!
//! That a directory does is learned when it is read from its beginning to its end, and believed for a while. Who goes by it
//! looks at what comes, and reads the directory from its beginning where it is otherwise by now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_types::{DirEntry, FsPath};

/// Pages of a directory whose beginnings are kept: of more, each second one, and so on.
const MAX_BEGINNINGS: usize = 256;
/// Directories that are known to be in order.
const MAX_DIRECTORIES: usize = 64;
/// How long one is believed to be since it was last listed.
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// What a name of a directory adds to its keys: a directory's ends in `/`.
fn key_of(entry: &DirEntry) -> Vec<u8> {
    let end: &[u8] = if entry.attr.version().is_none() { b"/" } else { b"" };
    [&entry.name[..], end].concat()
}

/// The smallest and the largest key of a page; `None` if it is empty.
pub(super) fn ends_of(entries: &[DirEntry]) -> Option<(Vec<u8>, Vec<u8>)> {
    let smallest = entries.iter().map(key_of).min()?;
    let largest = entries.iter().map(key_of).max()?;
    Some((smallest, largest))
}

/// A directory of several pages, each of which has keys behind all of the one before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// The smallest key of some pages, and the token of each.
    beginnings: Vec<(Vec<u8>, Option<String>)>,
}

impl Order {
    /// The token of a page from which on there is all that is not less than `least`; `None` is the first page.
    ///
    /// It is the page before: the first names of a page may be in its token, where an object store's origin held them back
    /// (`forebay-origin`), and are as they were when that was made.
    pub(super) fn page_of(&self, least: &[u8]) -> Option<String> {
        let behind = self.beginnings.partition_point(|(smallest, _)| smallest.as_slice() <= least);
        self.beginnings.get(behind.checked_sub(2)?).and_then(|(_, token)| token.clone())
    }
}

/// What is learned of a directory while it is read from its beginning to its end.
#[derive(Debug, Default)]
pub(super) struct Learning {
    beginnings: Vec<(Vec<u8>, Option<String>)>,
    /// The largest key so far.
    largest: Option<Vec<u8>>,
    /// Pages so far, but for empty ones.
    pages: usize,
    /// Of how many pages one is kept; none once it is not in order.
    each: usize,
}

impl Learning {
    /// The page of this token is that.
    pub(super) fn page(&mut self, token: Option<String>, entries: &[DirEntry]) {
        let Some((smallest, largest)) = ends_of(entries) else { return };
        let is_first = self.pages == 0;
        if is_first {
            self.each = 1;
        } else if self.each == 0 || self.largest.as_ref().is_some_and(|last| smallest <= *last) {
            (self.each, self.beginnings) = (0, Vec::new());
            return;
        }
        if self.pages.is_multiple_of(self.each) {
            self.beginnings.push((smallest, token));
        }
        (self.largest, self.pages) = (Some(largest), self.pages + 1);
        if self.beginnings.len() > MAX_BEGINNINGS {
            let mut number = 0;
            self.beginnings.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.each *= 2;
        }
    }

    /// Its order, if it has one that is of use.
    pub(super) fn learned(self) -> Option<Order> {
        let is_of_use = self.each > 0 && self.pages > 1;
        is_of_use.then_some(Order { beginnings: self.beginnings })
    }
}

/// The directories that are known to be in order.
#[derive(Debug, Default)]
pub(crate) struct Orders(Mutex<HashMap<FsPath, Known>>);

#[derive(Debug)]
struct Known {
    until: Instant,
    order: Arc<Order>,
}

impl Orders {
    /// That of a directory.
    pub(crate) fn of(&self, path: &FsPath, now: Instant) -> Option<Arc<Order>> {
        let mut known = self.0.lock();
        let found = known.get_mut(path).filter(|found| found.until > now)?;
        found.until = now + BELIEVED_FOR;
        Some(Arc::clone(&found.order))
    }

    /// A directory has this one, or none.
    pub(crate) fn learned(&self, path: &FsPath, order: Option<Order>, now: Instant) {
        let mut known = self.0.lock();
        let Some(order) = order else {
            known.remove(path);
            return;
        };
        if known.len() >= MAX_DIRECTORIES {
            known.retain(|_, found| found.until > now);
            let first = known.iter().min_by_key(|(_, found)| found.until).map(|(path, _)| path.clone());
            if let Some(first) = first.filter(|_| known.len() >= MAX_DIRECTORIES) {
                known.remove(&first);
            }
        }
        known.insert(path.clone(), Known { until: now + BELIEVED_FOR, order: Arc::new(order) });
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Attr;

    use super::*;

    fn page(names: &[&str]) -> Vec<DirEntry> {
        names.iter().map(|name| DirEntry { name: name.as_bytes().into(), attr: Attr::directory() }).collect()
    }

    fn learned(pages: &[&[&str]]) -> Option<Order> {
        let mut learning = Learning::default();
        for (number, names) in pages.iter().enumerate() {
            learning.page((number > 0).then(|| number.to_string()), &page(names));
        }
        learning.learned()
    }

    #[test]
    fn a_page_is_found_from_which_on_there_is_all_that_is_wanted() {
        let order = learned(&[&["b", "a"], &["c"], &[], &["d", "f", "e"]]).unwrap();
        let of = |least: &str| order.page_of(least.as_bytes());
        for least in ["", "a", "b/", "c/", "cc", "d"] {
            assert_eq!(of(least), None, "{least}");
        }
        // One page earlier than it begins.
        assert_eq!((of("d/"), of("z")), (Some("1".to_owned()), Some("1".to_owned())));
    }

    #[test]
    fn what_is_in_no_order_or_one_page_has_none() {
        assert_eq!(learned(&[&["a", "c"], &["b", "d"]]), None);
        assert_eq!(learned(&[&["a"], &["a"], &["b"]]), None);
        assert_eq!(learned(&[&["b"], &["a"], &["c"]]), None);
        assert_eq!(learned(&[&["a", "b"]]), None);
        assert_eq!(learned(&[]), None);
    }

    #[test]
    fn of_many_pages_some_beginnings_are_kept() {
        let mut learning = Learning::default();
        for number in 0..5000 {
            let name = format!("{number:04}");
            learning.page((number > 0).then(|| number.to_string()), &page(&[&name]));
        }
        let order = learning.learned().unwrap();
        assert!(order.beginnings.len() <= MAX_BEGINNINGS && order.beginnings.len() > MAX_BEGINNINGS / 4);
        for wanted in [0, 1, 17, 2500, 4999] {
            let found: usize =
                order.page_of(format!("{wanted:04}/").as_bytes()).map_or(0, |token| token.parse().unwrap());
            assert!(found <= wanted && wanted - found < 128, "{wanted}: {found}");
        }
    }

    #[test]
    fn orders_are_believed_for_a_while_and_are_few() {
        let (orders, now) = (Orders::default(), Instant::now());
        let path = |number: usize| FsPath::new(format!("/{number}")).unwrap();
        let some = || learned(&[&["a"], &["b"]]);
        orders.learned(&path(0), some(), now);
        assert!(orders.of(&path(0), now).is_some() && orders.of(&path(1), now).is_none());
        let later = now + BELIEVED_FOR - Duration::from_secs(1);
        assert!(orders.of(&path(0), later).is_some(), "and from now on once more");
        assert!(orders.of(&path(0), later + BELIEVED_FOR / 2).is_some());
        assert!(orders.of(&path(0), later + BELIEVED_FOR * 2).is_none());
        orders.learned(&path(0), None, now);
        assert!(orders.of(&path(0), now).is_none());
        for number in 1..=MAX_DIRECTORIES * 2 {
            orders.learned(&path(number), some(), now + Duration::from_millis(number as u64));
        }
        assert!(orders.0.lock().len() <= MAX_DIRECTORIES);
        assert!(orders.of(&path(MAX_DIRECTORIES * 2), now).is_some());
    }
}
