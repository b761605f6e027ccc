//! Unknown names of one directory that are asked for one after the other, as the files of a data set are: after a few of them,
//! a page of the directory costs the origin less than to be asked about each name that is still to come. Pure.
//!
//! A page is *earned* by [`EARNED_BY`] unknown names within [`WITHIN`]. So a data set of small files costs a request
//! for each file and little more, in whatever order they are read. A client that looks at a few names of a directory of
//! millions makes at most one request more for every three, as the pages that do not help have to be earned, too. Pages
//! are taken from the first on: with names in random order, any page is as good as another, and no name is listed
//! twice.
//!
//! A page is waited for, as it may tell of the names that come meanwhile, but for [`PATIENCE`] only. A directory that was given up
//! is left alone for [`GIVEN_UP_FOR`] at least.

use std::time::{Duration, Instant};

/// Unknown names that a page is listed for.
pub(crate) const EARNED_BY: u32 = 3;
/// Names that come slower than this are asked about one by one.
const WITHIN: Duration = Duration::from_secs(1);
/// How long a page is waited for: several times what S3 takes for one. Then to ask about the name is likely the quicker way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long a directory is not listed that could not be, however short its names are believed: to find out again costs some
/// reader [`PATIENCE`].
const GIVEN_UP_FOR: Duration = Duration::from_secs(60);

/// Where a page starts: what the one before said, and nothing for the first.
pub(crate) type Token = Option<String>;

/// A page that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) token: Token,
    /// Since when.
    since: Instant,
}

/// What to do about a name that is not known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Ask the origin about it.
    Ask,
    /// Wait this long for the page that is asked for.
    Wait(Duration),
    /// List this page, and wait for it.
    List(Page),
}

/// What is known of one directory's names.
#[derive(Debug)]
pub(crate) struct ListAhead {
    /// When it was first asked for, in this life of its listing, or given up.
    began: Instant,
    /// The number of the scope that it was asked under.
    scope: u64,
    /// The first of the unknown names that count towards a page.
    since: Instant,
    unknown: u32,
    pages: Pages,
}

/// How far its pages are listed.
#[derive(Debug, PartialEq, Eq)]
enum Pages {
    /// This one is next.
    Next(Token),
    /// This one is asked for.
    Asked(Page),
    /// All are known.
    Over,
    /// They cannot be had, or not soon enough.
    GivenUp,
}

impl ListAhead {
    pub(crate) fn new(now: Instant, scope: u64) -> Self {
        Self { began: now, scope, since: now, unknown: 0, pages: Pages::Next(None) }
    }

    /// Begins anew where what is listed is not believed any more: after `ttl`, in another scope, or because names have changed,
    /// as `is_believed` says of what was asked at a time.
    pub(crate) fn renew(&mut self, now: Instant, scope: u64, ttl: Duration, is_believed: impl FnOnce(Instant) -> bool) {
        let age = now.saturating_duration_since(self.began);
        let is_over = match self.pages {
            // Its end will be told.
            Pages::Asked(_) => false,
            Pages::GivenUp => self.scope != scope || age >= ttl.max(GIVEN_UP_FOR),
            Pages::Next(_) | Pages::Over => self.scope != scope || age >= ttl || !is_believed(self.began),
        };
        if is_over {
            *self = Self::new(now, scope);
        }
    }

    /// A name is asked for that is not known.
    pub(crate) fn note(&mut self, now: Instant) -> Advice {
        let token = match &self.pages {
            Pages::Over | Pages::GivenUp => return Advice::Ask,
            // It may tell of this name, too.
            Pages::Asked(page) => {
                let left = PATIENCE.saturating_sub(now.saturating_duration_since(page.since));
                return if left.is_zero() { Advice::Ask } else { Advice::Wait(left) };
            }
            Pages::Next(token) => token,
        };
        if now.saturating_duration_since(self.since) > WITHIN {
            (self.since, self.unknown) = (now, 0);
        }
        self.unknown += 1;
        if self.unknown < EARNED_BY {
            return Advice::Ask;
        }
        let page = Page { token: token.clone(), since: now };
        self.pages = Pages::Asked(page.clone());
        Advice::List(page)
    }

    /// The page is known, and says where the next one starts, if there is one.
    pub(crate) fn listed(&mut self, page: &Page, next: Token, now: Instant) {
        if self.is_asked(page) {
            self.pages = next.map_or(Pages::Over, |next| Pages::Next(Some(next)));
            (self.since, self.unknown) = (now, 0);
        }
    }

    /// The page cannot be had, or took too long.
    pub(crate) fn give_up(&mut self, page: &Page, now: Instant) {
        if self.is_asked(page) {
            (self.pages, self.began) = (Pages::GivenUp, now);
        }
    }

    fn is_asked(&self, page: &Page) -> bool {
        matches!(&self.pages, Pages::Asked(asked) if asked == page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A page, once it is earned.
    fn earned(list_ahead: &mut ListAhead, now: Instant) -> Page {
        for _ in 1..EARNED_BY {
            assert_eq!(list_ahead.note(now), Advice::Ask);
        }
        match list_ahead.note(now) {
            Advice::List(page) => page,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_third_unknown_name_earns_a_page_and_those_who_come_meanwhile_wait_for_it_for_a_moment() {
        let start = Instant::now();
        let mut list_ahead = ListAhead::new(start, 0);
        let first = earned(&mut list_ahead, start);
        assert_eq!(first.token, None);
        let moment = PATIENCE / 4;
        assert_eq!(list_ahead.note(start + moment), Advice::Wait(PATIENCE - moment));
        assert_eq!(list_ahead.note(start + PATIENCE), Advice::Ask, "whoever comes late does not begin to wait");
        let now = start + 2 * PATIENCE;
        list_ahead.listed(&first, Some("2".to_owned()), now);
        let second = earned(&mut list_ahead, now);
        assert_eq!(second.token.as_deref(), Some("2"), "the next one is to be earned again");
        list_ahead.listed(&first, Some("2".to_owned()), now);
        list_ahead.give_up(&first, now);
        assert_eq!(
            list_ahead.note(now),
            Advice::Wait(PATIENCE),
            "whoever is late with the page before changes nothing"
        );
        list_ahead.listed(&second, None, now);
        assert!((0..9).all(|_| list_ahead.note(now) == Advice::Ask), "all is known");
    }

    #[test]
    fn names_that_come_slowly_earn_nothing() {
        let start = Instant::now();
        let mut list_ahead = ListAhead::new(start, 0);
        for second in 0..100 {
            assert_eq!(list_ahead.note(start + Duration::from_millis(600 * second)), Advice::Ask);
        }
    }

    #[test]
    fn what_is_given_up_is_left_alone_from_then_on_and_what_is_asked_for_is_not_asked_for_again() {
        let start = Instant::now();
        let mut list_ahead = ListAhead::new(start, 0);
        let page = earned(&mut list_ahead, start);
        let failed = start + 100 * SECOND;
        list_ahead.renew(failed, 0, SECOND, |_| false);
        assert_eq!(list_ahead.note(failed), Advice::Ask, "a page that is stuck for long is still the only one");
        list_ahead.give_up(&page, failed);
        let mut renew = |at, ttl, scope| {
            list_ahead.renew(at, scope, ttl, |_| false);
            (0..EARNED_BY).any(|_| list_ahead.note(at) != Advice::Ask)
        };
        assert!(!renew(failed, SECOND, 0), "counted from when it failed, and though names change");
        assert!(!renew(failed + 99 * SECOND, 100 * SECOND, 0));
        assert!(renew(failed + GIVEN_UP_FOR, SECOND, 0));
        let mut list_ahead = ListAhead::new(start, 0);
        let page = earned(&mut list_ahead, start);
        list_ahead.give_up(&page, start);
        list_ahead.renew(start, 1, SECOND, |_| true);
        assert_eq!(earned(&mut list_ahead, start).token, None, "other mounts or policies are another matter");
    }
}
