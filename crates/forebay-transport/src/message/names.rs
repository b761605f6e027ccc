//! A page of a directory's names.
//!
//! On the wire the names come first, and how long they may be believed comes last. So a worker that answers with the
//! same names again encodes them once ([`PageOfNames`]), and a client that gets them again sees so by comparing bytes,
//! which takes a hundredth of the time of decoding a thousand names.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use forebay_types::{Attr, DirEntry, Failure};
use serde::{Deserialize, Serialize};

use super::octets::Octets;
use super::{WireAttr, decode, encode, malformed};

const WHAT: &str = "list reply";

/// One page of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListReply {
    /// The names.
    pub entries: Vec<DirEntry>,
    /// Where the next page starts; `None` after the last.
    pub next: Option<String>,
    /// How long the answer may be believed.
    pub valid_for: Duration,
}

/// The names of a page and where the next one starts, as they are on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOfNames(Bytes);

#[derive(Serialize, Deserialize)]
struct WireNames<'a> {
    #[serde(borrow)]
    entries: Vec<(Octets<'a>, WireAttr<'a>)>,
    #[serde(borrow)]
    next: Option<&'a str>,
}

impl PageOfNames {
    /// These names, on the wire.
    #[must_use]
    pub fn encode(entries: &[DirEntry], next: Option<&str>) -> Self {
        let entries = entries.iter().map(|entry| (Octets(Cow::Borrowed(&*entry.name)), WireAttr::from(&entry.attr)));
        Self(encode(&WireNames { entries: entries.collect(), next }))
    }

    /// The body of a reply that says them, and that they may be believed for so long.
    #[must_use]
    pub fn for_so_long(&self, valid_for: Duration) -> Bytes {
        [&self.0[..], &encode(&valid_for)].concat().into()
    }

    /// The names that the body of a reply says, and the reply.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn read(body: &Bytes) -> Result<(Self, ListReply), Failure> {
        let (entries, next, rest) = take(body)?;
        let names = body.slice(..body.len() - rest.len());
        Ok((Self(names), ListReply { entries, next, valid_for: decode(WHAT, rest)? }))
    }

    /// How long they may be believed, if the body of a reply says the same names.
    #[must_use]
    pub fn is_said_by(&self, body: &[u8]) -> Option<Duration> {
        // What starts with all of a page's names has no other ones: how many they are comes first.
        decode(WHAT, body.strip_prefix(&self.0[..])?).ok()
    }

    /// The same in memory of their own.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl ListReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        PageOfNames::encode(&self.entries, self.next.as_deref()).for_so_long(self.valid_for)
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let (entries, next, rest) = take(bytes)?;
        Ok(Self { entries, next, valid_for: decode(WHAT, rest)? })
    }
}

/// Names, where the next page starts, and what follows.
type Taken<'a> = (Vec<DirEntry>, Option<String>, &'a [u8]);

/// Those at the beginning of `bytes`.
fn take(bytes: &[u8]) -> Result<Taken<'_>, Failure> {
    let (WireNames { entries, next }, rest) =
        postcard::take_from_bytes(bytes).map_err(|error| malformed(WHAT, error))?;
    let mut taken: Vec<DirEntry> = Vec::with_capacity(entries.len());
    // Of those that are of files, the last one: the next is of the same origin.
    let mut file = None;
    for (name, wire) in entries {
        let beside = file.and_then(|at: usize| taken.get(at)).and_then(|entry| entry.attr.version());
        let attr: Attr = wire.attr_beside(beside)?;
        if attr.version().is_some() {
            file = Some(taken.len());
        }
        taken.push(DirEntry { name: name.0.into(), attr });
    }
    Ok((taken, next.map(str::to_owned), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{FileVersion, VersionTag};
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = DirEntry> {
        let file = ("[a-c]{1,8}", any::<u64>(), "[a-f0-9]{4}").prop_map(|(path, size, etag)| {
            let tag = VersionTag::Etag(etag.into());
            Attr::file(FileVersion { origin: "s3://b".into(), path: path.into_bytes().into(), size, tag })
        });
        let attr = prop_oneof![1 => Just(Attr::directory()), 3 => file];
        (prop::collection::vec(any::<u8>(), 1..20), attr).prop_map(|(name, attr)| DirEntry { name: name.into(), attr })
    }

    /// As releases before this one write and read it.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct EarlierList {
        entries: Vec<(Vec<u8>, EarlierAttr)>,
        next: Option<String>,
        valid_for: Duration,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct EarlierAttr {
        version: Option<Vec<u8>>,
        modified_nanos: i64,
        replicas: u8,
        writable: bool,
    }

    impl From<&ListReply> for EarlierList {
        fn from(reply: &ListReply) -> Self {
            let attr = |attr: &Attr| EarlierAttr {
                version: attr.version().map(FileVersion::encode),
                modified_nanos: attr.modified_nanos,
                replicas: attr.replicas,
                writable: attr.writable,
            };
            let entries = reply.entries.iter().map(|entry| (entry.name.to_vec(), attr(&entry.attr))).collect();
            Self { entries, next: reply.next.clone(), valid_for: reply.valid_for }
        }
    }

    proptest! {
        #[test]
        fn a_page_is_on_the_wire_what_it_was_in_earlier_releases(
            entries in prop::collection::vec(entry(), 0..20), next in prop::option::of(".{0,20}"),
            millis in 0u64..1 << 40,
        ) {
            let reply = ListReply { entries, next, valid_for: Duration::from_millis(millis) };
            let earlier = EarlierList::from(&reply);
            prop_assert_eq!(&reply.encode()[..], &postcard::to_stdvec(&earlier).unwrap()[..]);
            prop_assert_eq!(ListReply::decode(&reply.encode()), Ok(reply));
        }

        #[test]
        fn the_same_names_are_known_by_their_bytes_and_others_are_not(
            one in prop::collection::vec(entry(), 0..6), other in prop::collection::vec(entry(), 0..6),
            nexts in prop::array::uniform2(prop::option::of("[a-c]{0,2}")),
            millis in prop::array::uniform2(0u64..1 << 40),
        ) {
            let [a, b] = nexts;
            let one = ListReply { entries: one, next: a, valid_for: Duration::from_millis(millis[0]) };
            let other = ListReply { entries: other, next: b, valid_for: Duration::from_millis(millis[1]) };
            let (names, read) = PageOfNames::read(&one.encode()).unwrap();
            prop_assert_eq!(&read, &one);
            prop_assert_eq!(&names, &PageOfNames::encode(&one.entries, one.next.as_deref()));
            let again = ListReply { valid_for: other.valid_for, ..one.clone() };
            prop_assert_eq!(names.is_said_by(&again.encode()), Some(other.valid_for));
            let is_same = (&one.entries, &one.next) == (&other.entries, &other.next);
            prop_assert_eq!(names.is_said_by(&other.encode()).is_some(), is_same);
        }
    }
}
