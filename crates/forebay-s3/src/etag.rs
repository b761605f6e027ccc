//! Entity tags: those of objects, which are the origin's, and those of parts of uploads, which carry a size besides.
//! Pure.

use std::time::{Duration, UNIX_EPOCH};

use forebay_types::{Attr, FileVersion, VersionTag};
use s3s::dto::{ETag, Timestamp};

const NANOS: u64 = 1_000_000_000;

/// Digits of an MD5 in hexadecimal.
const MD5_DIGITS: usize = 32;
/// Marks an entity tag that is no MD5, as the number of parts does in Amazon's.
const NO_MD5: &str = "-1";

/// The entity tag of a version: the origin's, or, where that has none, one that is another for each version.
///
/// Clients (s3cmd, the SDK for Java) compare a tag with the MD5 of what they sent or got, unless there is a `-` in it.
/// So an origin's tag that has none, and is no MD5, as those of other stores than S3's, ends in [`NO_MD5`].
pub(crate) fn of_version(version: &FileVersion) -> ETag {
    match &version.tag {
        VersionTag::Etag(text) => match text.strip_prefix("W/") {
            Some(weak) => ETag::Weak(marked(unquoted(weak))),
            None => ETag::Strong(marked(unquoted(text))),
        },
        VersionTag::Modified { nanos, inode } => {
            ETag::Strong(format!("{:x}-{inode:x}-{:x}", nanos.cast_unsigned(), version.size))
        }
    }
}

/// When a file was modified, in whole seconds as HTTP has it; `None` where the origin does not know.
pub(crate) fn modified(attr: &Attr) -> Option<Timestamp> {
    time(attr.modified_nanos)
}

/// The same of a time in nanoseconds since 1970.
pub(crate) fn time(nanos: i64) -> Option<Timestamp> {
    whole_seconds(nanos).map(|seconds| Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
}

/// When a file was modified, in seconds since 1970.
pub(crate) fn seconds(attr: &Attr) -> Option<u64> {
    whole_seconds(attr.modified_nanos)
}

fn whole_seconds(nanos: i64) -> Option<u64> {
    u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(|nanos| nanos / NANOS)
}

/// Whether a client that asks for `asked` means the version with this tag: as it is told here, or as the origin tells
/// it.
pub(crate) fn is_meant(tag: &ETag, asked: &str) -> bool {
    tag.value() == asked || tag.value() == marked(asked)
}

/// Whether a version is one part: it was put at once, or as the only part of an upload. The tag of others ends in how many
/// they are.
pub(crate) fn is_of_one_part(version: &FileVersion) -> bool {
    let VersionTag::Etag(text) = &version.tag else { return true };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let tag = unquoted(text.strip_prefix("W/").unwrap_or(text));
    tag.rsplit_once('-').is_none_or(|(_, parts)| parts == "1" || !is_number(parts))
}

fn marked(tag: &str) -> String {
    let is_md5 = tag.len() == MD5_DIGITS && tag.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mark = if is_md5 || tag.contains('-') { "" } else { NO_MD5 };
    format!("{tag}{mark}")
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// What an uploaded part is known by: the origin's tag of it, and how many bytes it has. An origin wants to know at the
/// end how long the whole is. With that in what clients keep and send back, no endpoint has to remember it, and any of
/// several may complete an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartTag {
    pub(crate) tag: String,
    pub(crate) size: u64,
}

impl PartTag {
    /// As the entity tag that a client is told. The first letter says how the origin's tag is in it: in quotes there,
    /// plain, or in hexadecimal where it has characters that an entity tag cannot have. The size follows a `-`, as the
    /// number of parts does in the tag of an object: so clients do not take it for an MD5, and compare it with theirs.
    pub(crate) fn encode(&self) -> String {
        let is_fit = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        let inner = unquoted(&self.tag);
        let size = self.size;
        if !is_fit(inner) {
            let hex: String = self.tag.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("x{hex}-{size}")
        } else if inner.len() == self.tag.len() {
            format!("p{inner}-{size}")
        } else {
            format!("q{inner}-{size}")
        }
    }

    /// Reads it back; `None` if it is none of ours, as [`PartTag::encode`] writes them: what a client makes up might have characters that
    /// no tag has, and goes to the origin.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (coded, size) = text.rsplit_once('-')?;
        let size = size.parse().ok()?;
        let (kind, inner) = (coded.chars().next()?, coded.get(1..)?);
        let tag = match kind {
            'p' => inner.to_owned(),
            'q' => format!("\"{inner}\""),
            'x' => {
                let digits = |at: usize| u8::from_str_radix(inner.get(at..at + 2)?, 16).ok();
                let bytes: Option<Vec<u8>> = (0..inner.len()).step_by(2).map(digits).collect();
                String::from_utf8(bytes?).ok()?
            }
            _ => return None,
        };
        Some(Self { tag, size }).filter(|part| part.encode() == text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(tag: VersionTag) -> FileVersion {
        FileVersion { origin: "s3://b".into(), path: b"k"[..].into(), size: 255, tag }
    }

    #[test]
    fn an_entity_tag_is_the_origins_without_its_quotes() {
        for (text, tag) in [
            ("\"abc-2\"", ETag::Strong("abc-2".to_owned())),
            ("W/\"abc-2\"", ETag::Weak("abc-2".to_owned())),
            ("0123456789abcdef0123456789abcdef", ETag::Strong("0123456789abcdef0123456789abcdef".to_owned())),
            ("\"0123456789abcdef0123456789abcdef\"", ETag::Strong("0123456789abcdef0123456789abcdef".to_owned())),
        ] {
            assert_eq!(of_version(&version(VersionTag::Etag(text.into()))), tag);
        }
        let of = |nanos, inode| of_version(&version(VersionTag::Modified { nanos, inode }));
        assert_eq!(of(16, 10), ETag::Strong("10-a-ff".to_owned()));
        assert_ne!(of(16, 10), of(16, 11));
        assert_ne!(of(-1, 0), of(1, 0));
    }

    #[test]
    fn a_tag_that_is_no_md5_does_not_look_like_one() {
        for (text, tag) in [
            ("\"0x8DC0FFEE\"", ETag::Strong("0x8DC0FFEE-1".to_owned())),
            ("W/\"abc\"", ETag::Weak("abc-1".to_owned())),
            ("\"0123456789abcdef0123456789abcdex\"", ETag::Strong("0123456789abcdef0123456789abcdex-1".to_owned())),
        ] {
            assert_eq!(of_version(&version(VersionTag::Etag(text.into()))), tag);
        }
        let told = of_version(&version(VersionTag::Etag("\"0x8DC0FFEE\"".into())));
        assert!(is_meant(&told, "0x8DC0FFEE-1") && is_meant(&told, "0x8DC0FFEE"));
        assert!(!is_meant(&told, "0x8DC0FFE") && !is_meant(&told, "0x8DC0FFEE-2"));
        // Of one part, as Amazon tells it: the rest is the MD5 of something else.
        let of_parts = of_version(&version(VersionTag::Etag("\"0123456789abcdef0123456789abcdef-1\"".into())));
        assert!(!is_meant(&of_parts, "0123456789abcdef0123456789abcdef"));
        let part = PartTag { tag: "\"0123456789abcdef0123456789abcdef\"".to_owned(), size: 5 };
        assert_eq!(part.encode(), "q0123456789abcdef0123456789abcdef-5");
    }

    #[test]
    fn what_was_put_at_once_is_one_part() {
        let of = |text: &str| is_of_one_part(&version(VersionTag::Etag(text.into())));
        for text in ["\"0123456789abcdef0123456789abcdef\"", "\"0x8DC0FFEE\"", "W/\"abc\"", "\"abc-1\"", "a-b", "abc-"]
        {
            assert!(of(text), "{text}");
        }
        for text in ["\"0123456789abcdef0123456789abcdef-2\"", "W/\"abc-12\"", "abc-10000"] {
            assert!(!of(text), "{text}");
        }
        assert!(is_of_one_part(&version(VersionTag::Modified { nanos: 5, inode: 7 })));
    }

    #[test]
    fn times_are_whole_seconds_and_unknown_where_nobody_knows() {
        let attr = |modified_nanos| Attr { modified_nanos, ..Attr::directory() };
        assert_eq!(seconds(&attr(1_999_999_999)), Some(1));
        assert_eq!((seconds(&attr(0)), seconds(&attr(-5))), (None, None));
    }

    #[test]
    fn what_is_no_tag_of_a_part_is_none() {
        for text in [
            "", "abc", "-5", "pabc", "pabc-", "pabc-x", "yabc-5", "x0-5", "xzz-5", "é-5", "pabc.5", "pabc-+x",
            "pabc-+1", "pabc-01",
        ] {
            assert_eq!(PartTag::decode(text), None, "{text}");
        }
        for text in ["pa b-5", "pa\nb-5", "p\"a\"-5", "qé-5", "x61-5", "x+1-5", "x2261FF22-5", "p\u{85}-5"] {
            assert_eq!(PartTag::decode(text), None, "it would be written otherwise: {text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_part_is_known_again_by_its_tag(tag in ".{0,40}", quoted: bool, size: u64) {
            let tag = if quoted { format!("\"{tag}\"") } else { tag };
            let part = PartTag { tag, size };
            let text = part.encode();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'));
            prop_assert_eq!(PartTag::decode(&text), Some(part));
        }

        #[test]
        fn no_text_makes_the_decoder_panic(text in ".{0,60}") {
            let _ = PartTag::decode(&text);
        }
    }
}
