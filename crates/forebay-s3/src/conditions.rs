//! Conditions that a request is under, and the part of an object that it asks for (RFC 9110, 13.2.2 and 14.2). Pure.

use std::ops;

use forebay_types::Attr;
use s3s::dto::{ETag, ETagCondition, Range, Timestamp};
use time::OffsetDateTime;

use crate::etag;

/// The conditions of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The object is another one than the client wants: 412.
    Failed,
    /// The client has this one: 304.
    NotModified,
}

impl Conditions {
    /// Whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        let Self { if_match, if_none_match, if_modified_since, if_unmodified_since } = self;
        if_match.is_some() || if_none_match.is_some() || if_modified_since.is_some() || if_unmodified_since.is_some()
    }

    /// Whether an object with this entity tag, modified at that time, meets them. An entity tag counts more than a
    /// time.
    pub(crate) fn check(&self, tag: &ETag, attr: &Attr) -> Result<(), Unmet> {
        // As Amazon does, tags are compared as texts: clients that send a weak one back mean it.
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(other) => etag::is_meant(tag, other.value()),
        };
        let modified = etag::seconds(attr).and_then(|seconds| i64::try_from(seconds).ok());
        let is_newer = |than: &Timestamp| modified.is_some_and(|modified| modified > unix_seconds(than));
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !is(condition) => return Err(Unmet::Failed),
            (None, Some(since)) if is_newer(since) => return Err(Unmet::Failed),
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) if is(condition) => Err(Unmet::NotModified),
            (None, Some(since)) if modified.is_some() && !is_newer(since) => Err(Unmet::NotModified),
            _ => Ok(()),
        }
    }
}

/// Whether a write is to make an object only where there is none. `None`: it has a condition that nobody keeps.
pub(crate) fn is_only_new(if_match: Option<&ETagCondition>, if_none_match: Option<&ETagCondition>) -> Option<bool> {
    match (if_match, if_none_match) {
        (None, None) => Some(false),
        (None, Some(ETagCondition::Any)) => Some(true),
        _ => None,
    }
}

fn unix_seconds(timestamp: &Timestamp) -> i64 {
    OffsetDateTime::from(timestamp.clone()).unix_timestamp()
}

/// The bytes of an object of `size` bytes that `range` asks for; `None`: there are no such bytes.
pub(crate) fn resolve(range: Option<&Range>, size: u64) -> Option<ops::Range<u64>> {
    match range {
        None => Some(0..size),
        Some(Range::Int { first, last }) => {
            let end = last.unwrap_or(u64::MAX).saturating_add(1).min(size);
            (*first < end).then_some(*first..end)
        }
        Some(Range::Suffix { length }) => (*length > 0 && size > 0).then(|| size.saturating_sub(*length)..size),
    }
}

/// `bytes 0-9/100`, of a range that has bytes.
pub(crate) fn content_range(range: &ops::Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(text.to_owned())))
    }

    fn checked(conditions: Conditions) -> Result<(), Unmet> {
        let attr = Attr { modified_nanos: 100_500_000_000, ..Attr::directory() };
        conditions.check(&ETag::Strong("a".to_owned()), &attr)
    }

    #[test]
    fn conditions_are_met_as_http_says() {
        let none = Conditions::default;
        for (conditions, met) in [
            (none(), Ok(())),
            (Conditions { if_match: tag("a"), ..none() }, Ok(())),
            (Conditions { if_match: Some(ETagCondition::Any), ..none() }, Ok(())),
            (Conditions { if_match: tag("b"), ..none() }, Err(Unmet::Failed)),
            (Conditions { if_none_match: tag("a"), ..none() }, Err(Unmet::NotModified)),
            (Conditions { if_none_match: tag("b"), ..none() }, Ok(())),
            (Conditions { if_none_match: Some(ETagCondition::Any), ..none() }, Err(Unmet::NotModified)),
            (Conditions { if_modified_since: at(99), ..none() }, Ok(())),
            (Conditions { if_modified_since: at(100), ..none() }, Err(Unmet::NotModified)),
            (Conditions { if_unmodified_since: at(100), ..none() }, Ok(())),
            (Conditions { if_unmodified_since: at(99), ..none() }, Err(Unmet::Failed)),
            // A tag counts more than a time.
            (Conditions { if_match: tag("a"), if_unmodified_since: at(99), ..none() }, Ok(())),
            (Conditions { if_none_match: tag("b"), if_modified_since: at(100), ..none() }, Ok(())),
            (Conditions { if_match: tag("b"), if_none_match: tag("a"), ..none() }, Err(Unmet::Failed)),
        ] {
            assert_eq!(checked(conditions.clone()), met, "{conditions:?}");
        }
        let one = [
            Conditions { if_match: tag("a"), ..none() },
            Conditions { if_none_match: tag("a"), ..none() },
            Conditions { if_modified_since: at(1), ..none() },
            Conditions { if_unmodified_since: at(1), ..none() },
        ];
        assert!(one.iter().all(Conditions::are_any) && !none().are_any());
    }

    #[test]
    fn of_the_conditions_of_writes_one_is_kept() {
        let (any, one) = (Some(ETagCondition::Any), tag("a"));
        assert_eq!(is_only_new(None, None), Some(false));
        assert_eq!(is_only_new(None, any.as_ref()), Some(true));
        for (if_match, if_none_match) in [(&one, &None), (&any, &None), (&None, &one), (&one, &any)] {
            assert_eq!(is_only_new(if_match.as_ref(), if_none_match.as_ref()), None);
        }
    }

    #[test]
    fn ranges_are_cut_at_the_end_and_nothing_is_no_range() {
        let int = |first, last| resolve(Some(&Range::Int { first, last }), 10);
        assert_eq!(int(0, Some(0)), Some(0..1));
        assert_eq!(int(9, None), Some(9..10));
        assert_eq!(int(3, Some(u64::MAX)), Some(3..10));
        assert_eq!((int(10, None), int(u64::MAX, Some(u64::MAX)), int(5, Some(4))), (None, None, None));
        let suffix = |length| resolve(Some(&Range::Suffix { length }), 10);
        assert_eq!((suffix(3), suffix(u64::MAX), suffix(0)), (Some(7..10), Some(0..10), None));
        assert_eq!(resolve(None, 0), Some(0..0));
        assert_eq!(resolve(Some(&Range::Suffix { length: 1 }), 0), None);
        assert_eq!(content_range(&(3..10), 10), "bytes 3-9/10");
    }

    proptest! {
        #[test]
        fn what_is_resolved_lies_within_the_object(first: u64, last: Option<u64>, length: u64, size: u64) {
            for range in [Range::Int { first, last }, Range::Suffix { length }] {
                if let Some(range) = resolve(Some(&range), size) {
                    prop_assert!(range.start < range.end && range.end <= size);
                }
            }
        }
    }
}
