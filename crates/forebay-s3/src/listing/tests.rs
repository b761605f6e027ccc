//! Listings against what the keys themselves say.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use forebay_types::{FileVersion, VersionTag};
use proptest::prelude::*;

use super::*;

/// A bucket at `/b` of these keys. Its directories tell their names backwards, or in the order of keys, in pages of two.
#[derive(Debug, Default)]
struct Keys {
    keys: BTreeSet<String>,
    hidden: Option<FsPath>,
    in_order: bool,
    orders: Orders,
    /// Pages that were asked for.
    pages: AtomicUsize,
}

impl Keys {
    fn new(keys: &[&str]) -> Self {
        Self { keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..Self::default() }
    }

    fn entries(&self, path: &FsPath) -> Option<Vec<DirEntry>> {
        let below = path.relative_to(&root()).expect("below the bucket");
        let below = std::str::from_utf8(below).unwrap();
        let prefix = if below.is_empty() { String::new() } else { format!("{below}/") };
        let rests: Vec<&str> = self.keys.iter().filter_map(|key| key.strip_prefix(&*prefix)).collect();
        if rests.is_empty() {
            return None;
        }
        let names: BTreeSet<(&str, bool)> = rests
            .iter()
            .filter(|rest| !rest.is_empty())
            .map(|rest| rest.split_once('/').map_or((*rest, false), |(name, _)| (name, true)))
            .collect();
        let entry = |(name, is_directory): (&str, bool)| DirEntry {
            name: name.as_bytes().into(),
            attr: if is_directory { Attr::directory() } else { file(&format!("{prefix}{name}")) },
        };
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|(name, is_directory)| format!("{name}{}", if *is_directory { "/" } else { "" }));
        if !self.in_order {
            names.reverse();
        }
        Some(names.into_iter().map(entry).collect())
    }
}

impl Names for Keys {
    async fn page(&self, path: &FsPath, token: Option<String>) -> Result<(Vec<DirEntry>, Option<String>), Failure> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        let missing = || Failure::new(FailureKind::NotFound, "no such directory");
        let entries = self.entries(path).ok_or_else(missing)?;
        let from: usize = token.map_or(0, |token| token.parse().unwrap());
        let to = (from + 2).min(entries.len());
        Ok((entries[from..to].to_vec(), (to < entries.len()).then(|| to.to_string())))
    }

    fn shows(&self, path: &FsPath) -> bool {
        self.hidden.as_ref() != Some(path)
    }

    fn order(&self, path: &FsPath) -> Option<Arc<Order>> {
        self.orders.of(path, Instant::now())
    }

    fn has_order(&self, path: &FsPath, order: Option<Order>) {
        self.orders.learned(path, order, Instant::now());
    }
}

fn root() -> FsPath {
    FsPath::new("/b").unwrap()
}

fn file(key: &str) -> Attr {
    let (origin, tag) = ("s3://b".into(), VersionTag::Etag("\"t\"".into()));
    Attr::file(FileVersion { origin, path: key.as_bytes().into(), size: 1, tag })
}

fn now<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

/// An empty one stands for none.
fn some(delimiter: &str) -> Option<String> {
    (!delimiter.is_empty()).then(|| delimiter.to_owned())
}

/// All pages of a listing, as keys.
fn all(names: &Keys, prefix: &str, delimiter: &str, max: usize) -> Vec<String> {
    let mut query = Query { prefix: prefix.to_owned(), delimiter: some(delimiter), after: String::new(), max };
    let mut keys = Vec::new();
    loop {
        let page = now(list(names, &root(), &query)).unwrap();
        assert!(page.listed.len() <= max);
        keys.extend(page.listed.iter().map(|listed| listed.key().to_owned()));
        match page.next() {
            Some(next) => query.after = key_of_token(&token(next)).unwrap(),
            None => return keys,
        }
    }
}

/// What S3 lists of these keys that come after `after`.
fn expected(keys: &Keys, prefix: &str, delimiter: &str, after: &str) -> Vec<String> {
    let matching = keys.keys.iter().filter(|key| key.starts_with(prefix) && key.as_str() > after);
    let listed = matching.map(|key| match key[prefix.len()..].find(delimiter) {
        Some(at) if !delimiter.is_empty() => key[..prefix.len() + at + delimiter.len()].to_owned(),
        _ => key.clone(),
    });
    // The prefix that a page ended with is not told once more.
    BTreeSet::from_iter(listed.filter(|listed| listed != after)).into_iter().collect()
}

#[test]
fn keys_come_in_the_order_of_keys_and_not_of_names() {
    // `-` and `.` come before `/`.
    let keys = Keys::new(&["a/x", "a-b", "a.c", "b/c/d", "b/c.d"]);
    assert_eq!(all(&keys, "", "", 2), ["a-b", "a.c", "a/x", "b/c.d", "b/c/d"]);
    assert_eq!(all(&keys, "", "/", 2), ["a-b", "a.c", "a/", "b/"]);
    assert_eq!(all(&keys, "b/", "/", 1), ["b/c.d", "b/c/"]);
    assert_eq!(all(&keys, "b/c", "/", 1), ["b/c.d", "b/c/"]);
}

#[test]
fn an_empty_directory_is_an_object_and_another_one_is_not() {
    let keys = Keys::new(&["d/", "e/f"]);
    assert_eq!(all(&keys, "", "", 10), ["d/", "e/f"]);
    assert_eq!(all(&keys, "", "/", 10), ["d/", "e/"]);
    assert_eq!(all(&keys, "d/", "/", 10), ["d/"]);
    assert_eq!(all(&keys, "d/", "", 1), ["d/"]);
}

#[test]
fn what_is_not_there_or_cannot_be_has_no_keys() {
    let keys = Keys::new(&["a/b"]);
    for prefix in ["c", "c/", "a/b/", "../", "/", "a//", "a\0/"] {
        assert_eq!(all(&keys, prefix, "", 10), Vec::<String>::new(), "{prefix}");
    }
    assert!(now(list(&keys, &root(), &Query::default())).unwrap().listed.is_empty(), "no keys were asked for");
}

#[test]
fn what_may_not_be_seen_is_not_listed_and_its_name_is() {
    let mut keys = Keys::new(&["open/a", "secret/b"]);
    keys.hidden = Some(FsPath::new("/b/secret").unwrap());
    assert_eq!(all(&keys, "", "", 10), ["open/a"]);
    assert_eq!(all(&keys, "", "/", 10), ["open/", "secret/"]);
    assert_eq!(all(&keys, "secret/", "", 10), Vec::<String>::new());
}

#[test]
fn any_text_is_a_delimiter() {
    let keys = Keys::new(&["2026-01-a/x", "2026-01-b", "2026-02", "logs/2026-03/y", "logs/x-z", "z"]);
    assert_eq!(all(&keys, "", "-", 1), ["2026-", "logs/2026-", "logs/x-", "z"]);
    assert_eq!(all(&keys, "2026-", "-", 1), ["2026-01-", "2026-02"]);
    assert_eq!(all(&keys, "", "-a/", 2), ["2026-01-a/", "2026-01-b", "2026-02", "logs/2026-03/y", "logs/x-z", "z"]);
    assert_eq!(all(&keys, "", "s/2", 2), ["2026-01-a/x", "2026-01-b", "2026-02", "logs/2", "logs/x-z", "z"]);
    assert_eq!(all(&keys, "logs/", "z", 2), ["logs/2026-03/y", "logs/x-z"]);
}

#[test]
fn a_page_may_begin_anywhere() {
    let keys = Keys::new(&["a/1", "a/2", "b"]);
    let after = |after: &str, delimiter| {
        let query = Query { prefix: String::new(), delimiter: some(delimiter), after: after.to_owned(), max: 10 };
        let page = now(list(&keys, &root(), &query)).unwrap();
        page.listed.iter().map(|listed| listed.key().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(after("a/1", ""), ["a/2", "b"]);
    assert_eq!(after("a/", ""), ["a/1", "a/2", "b"]);
    assert_eq!(after("a/1", "/"), ["a/", "b"]);
    assert_eq!(after("a/", "/"), ["b"]);
    assert_eq!(after("a/2", "/"), ["b"], "nothing in `a/` comes after it");
    assert_eq!(after("zz", ""), Vec::<String>::new());
}

#[test]
fn a_directory_in_order_is_read_once_for_all_pages_and_not_once_for_each() {
    let keys: Vec<String> = (0..400).map(|number| format!("d/{number:03}")).collect();
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let asked = |in_order| {
        let bucket = Keys { in_order, ..Keys::new(&names) };
        assert_eq!(all(&bucket, "d/", "/", 10), keys);
        bucket.pages.into_inner()
    };
    // 200 pages of two names; and for each of 40 listed ones those that it has, and some before and behind them.
    assert!(asked(true) <= 200 + 40 * 10, "{}", asked(true));
    assert_eq!(asked(false), 200 * 40);
    // What begins otherwise is not looked at.
    let bucket = Keys { in_order: true, ..Keys::new(&names) };
    assert_eq!(all(&bucket, "d/19", "/", 10).len(), 10);
    let before = bucket.pages.load(Ordering::Relaxed);
    assert_eq!(all(&bucket, "d/19", "/", 10).len(), 10);
    assert!(bucket.pages.load(Ordering::Relaxed) - before <= 10);
}

#[test]
fn an_order_that_is_none_any_more_is_not_gone_by() {
    let mut bucket = Keys { in_order: true, ..Keys::new(&["a", "b", "c", "d", "e", "f"]) };
    assert_eq!(all(&bucket, "", "", 2), ["a", "b", "c", "d", "e", "f"]);
    bucket.in_order = false;
    assert_eq!(all(&bucket, "", "", 2), ["a", "b", "c", "d", "e", "f"]);
    // What is gone at the beginning moves the pages.
    bucket.in_order = true;
    assert_eq!(all(&bucket, "", "", 2).len(), 6);
    bucket.keys.remove("a");
    assert_eq!(all(&bucket, "", "", 2), ["b", "c", "d", "e", "f"]);
}

#[test]
fn a_token_of_another_server_is_none_of_ours() {
    for text in ["", "f1", "f1-0", "f1-zz", "f1-ff", "1ueGcxLPRx1Tr"] {
        assert_eq!(key_of_token(text), None, "{text}");
    }
    assert_eq!(key_of_token(&token("é/x")).as_deref(), Some("é/x"));
    assert_eq!(key_of_token("f1-"), Some(String::new()));
}

/// Keys of which none is a directory of another.
fn keys() -> impl Strategy<Value = Keys> {
    prop::collection::btree_set("[ab.-](/[ab.-]){0,3}", 0..30).prop_map(|keys| {
        let is_path = |key: &String| key.split('/').all(|name| name != "." && name != "..");
        let keys: BTreeSet<String> = keys.into_iter().filter(is_path).collect();
        let is_file = |key: &String| {
            let directory = format!("{key}/");
            !keys.iter().any(|other| other.starts_with(&directory))
        };
        Keys { keys: keys.iter().filter(|key| is_file(key)).cloned().collect(), ..Keys::default() }
    })
}

proptest! {
    #[test]
    fn all_pages_together_are_what_s3_lists(
        keys in keys(),
        prefix in "([ab.-]|[ab.-]/|[ab.-]/[ab.-])?",
        delimiter in "(|/|-|b|/b|a/|-/-)",
        max in 1usize..5,
        in_order: bool,
    ) {
        let keys = Keys { in_order, ..keys };
        let is_path = prefix.split('/').all(|name| name != "." && name != "..") || !prefix.contains('/');
        prop_assume!(is_path);
        // The second time, the orders of directories are known from the beginning.
        for _ in 0..2 {
            prop_assert_eq!(all(&keys, &prefix, &delimiter, max), expected(&keys, &prefix, &delimiter, ""));
        }
    }

    #[test]
    fn a_page_has_what_comes_after_any_text(
        keys in keys(),
        delimiter in "(|/|-|b|/b|a/)",
        after in "[ab.-]?(/[ab.-]){0,2}/?",
        in_order: bool,
    ) {
        let keys = Keys { in_order, ..keys };
        let query = Query { prefix: String::new(), delimiter: some(&delimiter), after: after.clone(), max: 100 };
        for _ in 0..2 {
            let page = now(list(&keys, &root(), &query)).unwrap();
            let listed: Vec<_> = page.listed.iter().map(|listed| listed.key().to_owned()).collect();
            prop_assert_eq!(listed, expected(&keys, "", &delimiter, &after));
        }
    }

    #[test]
    fn no_token_makes_the_decoder_panic(text in ".{0,40}") {
        let _ = key_of_token(&text);
    }
}
