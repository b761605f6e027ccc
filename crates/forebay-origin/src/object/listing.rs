//! Pages of a listing: reading them, and letting directories shadow files across them.
//!
//! A listing with the delimiter `/` comes in the order of keys. Between the file `a` and the directory `a/` come
//! `a-b`, `a.txt` and whatever else has a byte below `/` after the `a`, so a page can end between the two. A file whose
//! directory may still come is *held*: it travels in the page token and is given out, or dropped, by a later page that
//! asks what it is by then. Few are held at a time, as each held key is a prefix of the page's last one; memory stays
//! bounded for any number of keys.

use std::collections::HashSet;

use object_store::ListResult;

use crate::names::is_posix_name;

/// An object as a listing tells of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) etag: Option<String>,
    /// Whole seconds, in nanoseconds since 1970: HEAD and GET tell no finer time, and all must agree.
    pub(crate) modified_nanos: i64,
}

/// One page as the origin gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawPage {
    pub(crate) objects: Vec<Listed>,
    /// Common prefixes, each ending in `/`.
    pub(crate) prefixes: Vec<String>,
    /// The origin's token for the next page.
    pub(crate) next: Option<String>,
}

/// Where a listing stands: our page token.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Position {
    /// The origin's token; `None` when the origin has no more pages and only held entries are left.
    pub(crate) after: Option<String>,
    pub(crate) held: Vec<Listed>,
}

/// What a page gives out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) directories: Vec<String>,
    /// Name and object.
    pub(crate) files: Vec<(String, Listed)>,
    /// Names that no POSIX file can have, or that the client cannot address.
    pub(crate) unnameable: usize,
    pub(crate) next: Option<Position>,
}

/// Whether a key's name can be shown and asked for again: the client takes no control characters.
pub(crate) fn is_usable_name(name: &str) -> bool {
    is_posix_name(name.as_bytes()) && !name.bytes().any(|byte| byte.is_ascii_control())
}

/// Takes a page of the directory whose keys start with `prefix`, with what earlier pages held, and gives out at most
/// `max` entries (more directories than that do not come, as the page was asked for with at most `max` keys).
pub(crate) fn merge(prefix: &str, held: Vec<Listed>, page: RawPage, max: usize) -> Given {
    let mut given = Given::default();
    let last_key =
        page.objects.iter().map(|object| &object.key).chain(&page.prefixes).max().cloned().unwrap_or_default();
    let mut shadowing = HashSet::new();
    for directory in &page.prefixes {
        let name = directory.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('/')).unwrap_or_default();
        if is_usable_name(name) {
            shadowing.insert(directory.strip_suffix('/').unwrap_or(directory));
            given.directories.push(name.to_owned());
        } else {
            given.unnameable += 1;
        }
    }
    let mut still_held = Vec::new();
    for object in held.into_iter().chain(page.objects) {
        // The directory's own marker is no entry of it.
        if object.key == prefix || shadowing.contains(object.key.as_str()) {
            continue;
        }
        let name = object.key.strip_prefix(prefix).unwrap_or_default().to_owned();
        if !is_usable_name(&name) {
            given.unnameable += 1;
            continue;
        }
        let directory_may_come = page.next.is_some() && *format!("{}/", object.key) > *last_key;
        if directory_may_come || given.directories.len() + given.files.len() >= max {
            still_held.push(object);
        } else {
            given.files.push((name, object));
        }
    }
    if page.next.is_some() || !still_held.is_empty() {
        given.next = Some(Position { after: page.next, held: still_held });
    }
    given
}

/// Its variant is the name of the document's root, so that a web page is not taken for an empty listing.
#[derive(Debug, serde::Deserialize)]
enum Document {
    ListBucketResult(ListBucketResult),
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListBucketResult {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    next_continuation_token: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    last_modified: chrono::DateTime<chrono::Utc>,
    #[serde(rename = "ETag")]
    etag: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

/// Reads the XML of S3's ListObjectsV2, which is GCS's too.
pub(crate) fn parse(xml: &[u8]) -> Result<RawPage, quick_xml::DeError> {
    let Document::ListBucketResult(result) = quick_xml::de::from_reader(xml)?;
    let listed = |contents: Contents| Listed {
        key: contents.key,
        size: contents.size,
        etag: contents.etag.as_deref().map(quoted),
        modified_nanos: whole_seconds(contents.last_modified),
    };
    Ok(RawPage {
        objects: result.contents.into_iter().map(listed).collect(),
        prefixes: result.common_prefixes.into_iter().map(|common| common.prefix).collect(),
        // Some servers send an empty token on the last page.
        next: result.next_continuation_token.filter(|token| !token.is_empty()),
    })
}

/// What the client itself read: Azure and WebDAV.
pub(crate) fn from_client(result: ListResult, next: Option<String>) -> RawPage {
    let objects = result.objects.into_iter().map(|meta| Listed {
        key: meta.location.into(),
        size: meta.size,
        etag: meta.e_tag.as_deref().map(quoted),
        modified_nanos: whole_seconds(meta.last_modified),
    });
    let prefixes = result.common_prefixes.into_iter().map(|path| format!("{path}/"));
    RawPage { objects: objects.collect(), prefixes: prefixes.collect(), next: next.filter(|token| !token.is_empty()) }
}

/// The entity tag with its quotes, which Azure's listings leave out: a tag is compared as text.
pub(crate) fn quoted(etag: &str) -> String {
    if etag.starts_with('"') || etag.starts_with("W/") { etag.to_owned() } else { format!("\"{etag}\"") }
}

/// Nanoseconds since 1970, down to whole seconds.
pub(crate) fn whole_seconds(time: chrono::DateTime<chrono::Utc>) -> i64 {
    time.timestamp().saturating_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn listed(key: &str) -> Listed {
        Listed { key: key.to_owned(), size: 1, etag: None, modified_nanos: 0 }
    }

    /// ListObjectsV2 with the delimiter `/`, as S3 documents it.
    fn list_objects(keys: &BTreeSet<String>, prefix: &str, after: Option<&str>, max_keys: usize) -> RawPage {
        let mut names = BTreeMap::new();
        for key in keys.iter().filter(|key| key.starts_with(prefix)) {
            match key[prefix.len()..].split_once('/') {
                Some((directory, _)) => names.insert(format!("{prefix}{directory}/"), None),
                None => names.insert(key.clone(), Some(listed(key))),
            };
        }
        let mut rest = names.into_iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
        let mut page = RawPage::default();
        let mut last = None;
        for (name, object) in rest.by_ref().take(max_keys) {
            last = Some(name.clone());
            match object {
                Some(object) => page.objects.push(object),
                None => page.prefixes.push(name),
            }
        }
        page.next = if rest.next().is_some() { last } else { None };
        page
    }

    /// All pages of a directory, each checked.
    fn walk(keys: &BTreeSet<String>, prefix: &str, max: usize) -> Vec<String> {
        let (mut names, mut position) = (Vec::new(), None::<Position>);
        loop {
            let is_first = position.is_none();
            let Position { after, held } = position.take().unwrap_or_default();
            let page = if is_first || after.is_some() {
                list_objects(keys, prefix, after.as_deref(), max.saturating_sub(held.len()).max(1))
            } else {
                RawPage::default()
            };
            let given = merge(prefix, held, page, max);
            assert!(given.directories.len() + given.files.len() <= max);
            names.extend(given.directories.into_iter().map(|name| format!("{name}/")));
            names.extend(given.files.into_iter().map(|(name, _)| name));
            match given.next {
                Some(next) => position = Some(next),
                None => return names,
            }
        }
    }

    #[test]
    fn a_directory_shadows_the_file_of_its_name_many_pages_before() {
        let keys: BTreeSet<String> =
            ["a", "a-1", "a-2", "a-3", "a.txt", "a/x", "b"].into_iter().map(str::to_owned).collect();
        let mut names = walk(&keys, "", 1);
        names.sort();
        assert_eq!(names, ["a-1", "a-2", "a-3", "a.txt", "a/", "b"]);
    }

    #[test]
    fn names_that_no_file_can_have_are_counted_and_left_out() {
        let long = "x".repeat(256);
        let page = RawPage {
            objects: [".", "..", "ok", "new\nline", &long].map(|key| listed(&format!("d/{key}"))).into(),
            prefixes: vec!["d//".into(), "d/../".into()],
            next: None,
        };
        let given = merge("d/", Vec::new(), page, 100);
        assert_eq!(given.files.len(), 1);
        assert_eq!(given.unnameable, 6);
        assert!(given.directories.is_empty());
    }

    #[test]
    fn the_marker_of_the_directory_itself_is_no_entry() {
        let page = RawPage { objects: vec![listed("d/")], ..RawPage::default() };
        assert_eq!(merge("d/", Vec::new(), page, 10), Given::default());
    }

    #[test]
    fn a_page_of_s3_is_read() {
        let xml = br#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Name>b</Name><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>
            <CommonPrefixes><Prefix>x//</Prefix></CommonPrefixes>
            <Contents><Key>a &amp; b</Key><LastModified>2024-05-06T07:08:09.123Z</LastModified>
            <ETag>&quot;abc&quot;</ETag><Size>5</Size></Contents>
            <NextContinuationToken>t</NextContinuationToken></ListBucketResult>"#;
        let page = parse(xml).unwrap();
        assert_eq!(page.prefixes, ["x//"]);
        assert_eq!(page.objects[0].key, "a & b");
        assert_eq!(page.objects[0].etag.as_deref(), Some("\"abc\""));
        assert_eq!(page.objects[0].modified_nanos, 1_714_979_289_000_000_000);
        assert_eq!(page.next.as_deref(), Some("t"));
    }

    #[test]
    fn a_document_that_is_no_listing_is_refused() {
        for xml in ["<html>a web page</html>", "<Error><Code>AccessDenied</Code></Error>", ""] {
            assert!(parse(xml.as_bytes()).is_err(), "{xml}");
        }
    }

    proptest! {
        #[test]
        fn pages_give_each_name_once_and_a_directory_for_each_shadowed_file(
            keys in prop::collection::btree_set("[ab]{1,2}[-./]{0,1}[ab-]{0,2}(/[ab])?", 0..40),
            max in 1usize..6,
        ) {
            let keys: BTreeSet<String> = keys
                .into_iter()
                .filter(|key| !key.split('/').any(|name| !is_usable_name(name)))
                .collect();
            let directories: BTreeSet<&str> = keys.iter().filter_map(|key| Some(key.split_once('/')?.0)).collect();
            let mut expected: Vec<String> = directories.iter().map(|name| format!("{name}/")).collect();
            expected.extend(keys.iter().filter(|key| !key.contains('/') && !directories.contains(key.as_str())).cloned());
            expected.sort();
            let mut names = walk(&keys, "", max);
            names.sort();
            prop_assert_eq!(names, expected);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
