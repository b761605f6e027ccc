//! Where an open directory is being read: one page of names, and how to get to any other.
//!
//! A directory may have a million names, so a handle holds one page of them and the tokens that lead to some others.
//! The kernel reads on from any position that it was given before (`telldir`, `seekdir`); position 0 starts anew
//! (`rewinddir`). Tokens are kept for at most [`MAX_MARKS`] places, thinned out evenly: a seek between two of them lists
//! forward from the one before.
//!
//! This is the plain state machine; the workers are asked in [`crate::directories`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use forebay_client::{ListedName, Page as Names};
use forebay_handover as handover;
use forebay_types::FsPath;

/// A token of S3 has some hundred bytes: these are some tens of kilobytes a handle.
const MAX_MARKS: usize = 128;

/// The names of one open directory, from a position on.
#[derive(Default)]
pub(crate) struct Listing {
    page: Option<Page>,
    /// Position of a page's first name → the token that gets the page. Position 0 needs none.
    marks: BTreeMap<u64, String>,
    /// How often any of it has changed.
    changes: u64,
}

struct Page {
    start: u64,
    names: Arc<Names>,
    fresh_until: Instant,
}

/// What is at a position.
#[derive(Debug)]
pub(crate) enum At<'a> {
    /// These names, the first one being at the position.
    Names {
        /// The directory that they are of: where it was when they were listed.
        directory: &'a FsPath,
        /// At least one.
        names: &'a [ListedName],
        /// Until when their attributes may be believed.
        fresh_until: Instant,
    },
    /// The directory ends before it: it has so many names.
    End(u64),
    /// This page must be listed first, and told to [`Listing::listed`]; then ask again.
    Unlisted {
        /// The position of its first name.
        start: u64,
        /// Its token.
        token: Option<String>,
    },
}

/// Attributes of a directory's names that the kernel was told with the names, and believes for a while.
///
/// A listing begins with a question for names and attributes, whatever the reader wants, and for as many as fit into the buffer of the
/// C library: thousands. Each of them costs the kernel an entry, and us an inode. Where the same directory is listed again, they
/// bring nothing new before long. So that answer ends after [`ENOUGH`] names, and the kernel goes on with names alone, unless the
/// reader looks at what it lists: then the kernel asks for attributes again by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAttributes {
    at: Instant,
    until: Instant,
}

/// Names of an answer that need not have told more: by how the reader takes these the kernel decides how it goes on.
pub(crate) const ENOUGH: u64 = 64;

impl SentAttributes {
    /// They were told at `at`, and are believed until `until`.
    pub(crate) fn new(at: Instant, until: Instant) -> Self {
        Self { at, until }
    }

    /// Whether that is enough for a listing that begins now: not in the second half of the time, so that what is listed again and
    /// again is believed all the time.
    pub(crate) fn is_enough(&self, now: Instant) -> bool {
        now < self.at + self.until.saturating_duration_since(self.at) / 2
    }
}

impl Listing {
    /// It as the next process is told of it: the page, and the marks.
    pub(crate) fn handed(&self) -> (Option<handover::Names>, Vec<(u64, String)>) {
        let page = self.page.as_ref().map(|page| handover::Names {
            start: page.start,
            entries: page.names.names().iter().map(|name| name.entry().clone()).collect(),
            next: page.names.next().map(str::to_owned),
        });
        (page, self.marks.iter().map(|(position, token)| (*position, token.clone())).collect())
    }

    /// That of another process of `directory`, whose attributes are believed no more.
    pub(crate) fn restored(
        directory: &FsPath,
        page: Option<handover::Names>,
        marks: Vec<(u64, String)>,
        now: Instant,
    ) -> Self {
        let page = page.map(|page| {
            let handover::Names { start, entries, next } = page;
            Page { start, names: Arc::new(Names::new(directory.clone(), entries, next)), fresh_until: now }
        });
        Self { page, marks: marks.into_iter().collect(), changes: 0 }
    }

    /// How often it has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Forgets everything, so that the names are listed anew.
    pub(crate) fn rewind(&mut self) {
        *self = Self { changes: self.changes + 1, ..Self::default() };
    }

    /// What is at `position`.
    pub(crate) fn at(&self, position: u64) -> At<'_> {
        if let Some(page) = &self.page {
            let names = page.names.names();
            let end = page.start + names.len() as u64;
            if (page.start..end).contains(&position) {
                // Within the page, whose length is a usize.
                let names = &names[(position - page.start) as usize..];
                return At::Names { directory: page.names.directory(), names, fresh_until: page.fresh_until };
            }
            if position >= end && page.names.next().is_none() {
                return At::End(end);
            }
        }
        match self.marks.range(..=position).next_back() {
            Some((start, token)) => At::Unlisted { start: *start, token: Some(token.clone()) },
            None => At::Unlisted { start: 0, token: None },
        }
    }

    /// Takes the page that starts at `start`.
    pub(crate) fn listed(&mut self, start: u64, names: Arc<Names>, fresh_until: Instant) {
        if let Some(token) = names.next() {
            // A page without names leads to another token for the same position: the later one counts.
            self.marks.insert(start + names.names().len() as u64, token.to_owned());
            if self.marks.len() > MAX_MARKS {
                self.thin_out();
            }
        }
        self.page = Some(Page { start, names, fresh_until });
        self.changes += 1;
    }

    /// Drops every other mark, but never the last one: reading goes on from there.
    fn thin_out(&mut self) {
        let last = self.marks.keys().next_back().copied();
        let mut keep = false;
        self.marks.retain(|position, _| {
            keep = !keep;
            keep || Some(*position) == last
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Attr, DirEntry};
    use proptest::prelude::*;

    fn directory() -> FsPath {
        FsPath::new("/s3/d").unwrap()
    }

    fn page_of(entries: Vec<DirEntry>, next: Option<String>) -> Arc<Names> {
        Arc::new(Names::new(directory(), entries, next))
    }

    /// The start and the token of the page that must be listed first.
    fn unlisted(listing: &Listing, position: u64) -> (u64, Option<String>) {
        match listing.at(position) {
            At::Unlisted { start, token } => (start, token),
            at => panic!("{at:?}"),
        }
    }

    /// A directory of names `0..size`, listed in pages of `page`; the token is where the page starts.
    fn name_at(listing: &mut Listing, size: u64, page: u64, position: u64, now: Instant) -> (Option<u64>, u32) {
        let mut listed = 0;
        loop {
            let (start, token) = match listing.at(position) {
                At::Names { names, .. } => {
                    return (Some(String::from_utf8_lossy(&names[0].entry().name).parse().unwrap()), listed);
                }
                At::End(_) => return (None, listed),
                At::Unlisted { start, token } => (start, token),
            };
            listed += 1;
            assert_eq!(token.map_or(0, |token| token.parse().unwrap()), start);
            let end = (start + page).min(size);
            let entries = (start..end)
                .map(|name| DirEntry { name: name.to_string().into_bytes().into(), attr: Attr::directory() })
                .collect();
            listing.listed(start, page_of(entries, (end < size).then(|| end.to_string())), now);
        }
    }

    #[test]
    fn attributes_are_told_again_when_half_of_the_time_is_over_for_which_they_are_believed() {
        let (now, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let told = SentAttributes::new(now, now + 60 * second);
        assert!(told.is_enough(now) && told.is_enough(now + 29 * second));
        assert!(!told.is_enough(now + 30 * second) && !told.is_enough(now + 90 * second));
        assert!(!SentAttributes::new(now, now).is_enough(now), "they were not believed at all");
        assert!(!SentAttributes::new(now + second, now).is_enough(now + second));
    }

    #[test]
    fn reading_on_lists_each_page_once_with_few_tokens_kept() {
        let (mut listing, now) = (Listing::default(), Instant::now());
        let mut listed = 0;
        for position in 0..=20_000 {
            let (name, pages) = name_at(&mut listing, 20_000, 10, position, now);
            assert_eq!(name, (position < 20_000).then_some(position));
            listed += pages;
            assert!(listing.marks.len() <= MAX_MARKS);
        }
        assert_eq!(listed, 2_000);
    }

    #[test]
    fn pages_without_names_are_passed_over() {
        let (mut listing, now) = (Listing::default(), Instant::now());
        listing.listed(0, page_of(vec![], Some("a".into())), now);
        assert_eq!(unlisted(&listing, 0), (0, Some("a".into())));
        listing.listed(0, page_of(vec![], Some("b".into())), now);
        assert_eq!(unlisted(&listing, 0), (0, Some("b".into())));
        listing.listed(0, page_of(vec![], None), now);
        assert!(matches!(listing.at(0), At::End(0)));
        listing.rewind();
        assert_eq!(unlisted(&listing, 0), (0, None));
    }

    proptest! {
        #[test]
        fn another_process_reads_on_where_one_stopped(
            size in 1u64..3_000, page in 1u64..20, first in 0u64..3_000, then in 0u64..3_500,
        ) {
            let (mut listing, now) = (Listing::default(), Instant::now());
            name_at(&mut listing, size, page, first, now);
            let (handed, marks) = listing.handed();
            let mut restored = Listing::restored(&directory(), handed, marks, now);
            prop_assert_eq!(name_at(&mut restored, size, page, then, now), name_at(&mut listing, size, page, then, now));
        }

        #[test]
        fn any_position_finds_its_name(
            size in 0u64..3_000, page in 1u64..20, seeks in prop::collection::vec(0u64..3_500, 0..40),
        ) {
            let (mut listing, now) = (Listing::default(), Instant::now());
            for position in seeks {
                let (name, _) = name_at(&mut listing, size, page, position, now);
                prop_assert_eq!(name, (position < size).then_some(position));
            }
        }
    }
}
