//! The suite that every implementation of [`Origin`](crate::Origin) runs.
//!
//! An implementation brings a [`Fixture`], which puts and deletes objects behind the origin's back, and calls
//! [`check`].

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a suite of tests: what fails is an assertion")]

mod asking;
mod fixture;
mod writes;

use std::time::{Duration, Instant};

use forebay_types::{FailureKind, FileVersion};

use asking::{assert_not_found, file, is_directory, list_all, read, stat};
pub use fixture::Fixture;
#[cfg(test)]
pub(crate) use writes::{all_verbs, uploads_come_in_pages};

/// Runs the suite; panics with the name of what does not hold.
pub async fn check(fixture: &dyn Fixture) {
    names_and_sizes_are_those_that_were_put(fixture).await;
    ranges_are_exact(fixture).await;
    a_replaced_object_is_another_version(fixture).await;
    directories_are_implied_and_listed_once(fixture).await;
    pages_join_to_the_whole(fixture).await;
    files_and_directories_are_told_apart(fixture).await;
    a_directory_shadows_a_file(fixture).await;
    nonsense_is_refused(fixture).await;
    writes::check(fixture).await;
}

async fn names_and_sizes_are_those_that_were_put(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    let names = ["plain", "with space", "grüße-数据-🚰", "a+b&c=d%20e", "quote\"s'", "hash#q?x", "[~]{}^`|\\<>*"];
    for name in names {
        fixture.put(&format!("names/{name}"), name.as_bytes()).await;
    }
    fixture.put("names/empty", b"").await;
    for name in names {
        let path = format!("names/{name}");
        let version = file(&stat(&*origin, &path).await);
        assert_eq!(version.size, name.len() as u64, "size of {path}");
        assert_eq!(version.origin, *origin.url());
        assert_eq!(&*version.path, path.as_bytes());
        assert_eq!(read(&*origin, &version, 0, version.size).await.unwrap(), name.as_bytes(), "contents of {path}");
    }
    assert_eq!(file(&stat(&*origin, "names/empty").await).size, 0);
    let listed = list_all(&*origin, "names", 100).await;
    let mut expected: Vec<&str> = names.to_vec();
    expected.push("empty");
    expected.sort_unstable();
    assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), expected);
    for (name, attr) in &listed {
        let stat = stat(&*origin, &format!("names/{name}")).await;
        assert_eq!(*attr, stat, "stat and list agree on {name}");
    }
}

async fn ranges_are_exact(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    let bytes: Vec<u8> = (0..200_000u32).flat_map(|word| (word.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    fixture.put("ranges/file", &bytes).await;
    let version = file(&stat(&*origin, "ranges/file").await);
    let size = version.size;
    for (start, end) in [(0, 1), (0, size), (size - 1, size), (1, 2), (4095, 4097), (65_535, 300_001), (7, size - 7)] {
        let got = read(&*origin, &version, start, end).await.unwrap();
        assert!(got == bytes[start as usize..end as usize], "bytes {start}..{end}");
    }
    for (start, end, length) in [(0, 0, 0), (size, size + 1, 1), (0, size + 1, size + 1), (0, 10, 9), (5, 4, 0)] {
        let mut into = vec![0; length as usize];
        let failure = origin.read(&version, start..end, &mut into).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{start}..{end} into {length}: {failure}");
    }
}

async fn a_replaced_object_is_another_version(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    fixture.put("replaced", b"the old bytes").await;
    let old = file(&stat(&*origin, "replaced").await);
    assert_eq!(file(&stat(&*origin, "replaced").await), old, "an unchanged object keeps its version");
    // Where versions are told apart by time, its tick may have to pass.
    let deadline = Instant::now() + Duration::from_secs(10);
    let new = loop {
        fixture.put("replaced", b"the NEW bytes").await;
        let new = file(&stat(&*origin, "replaced").await);
        if new != old {
            break new;
        }
        assert!(Instant::now() < deadline, "a replaced object never got another version");
    };
    let failure = read(&*origin, &old, 0, 13).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "{failure}");
    assert_eq!(read(&*origin, &new, 0, 13).await.unwrap(), b"the NEW bytes");
    fixture.put("replaced", b"short").await;
    let failure = read(&*origin, &new, 6, 13).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "a shorter one: {failure}");
    let last = file(&stat(&*origin, "replaced").await);
    fixture.delete("replaced").await;
    let failure = read(&*origin, &last, 0, 5).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "a deleted one: {failure}");
    assert_not_found(&*origin, "replaced").await;
}

async fn directories_are_implied_and_listed_once(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    for path in ["tree/a/b/c", "tree/a/b/d", "tree/a/e", "tree/f"] {
        fixture.put(path, b"x").await;
    }
    for directory in ["", "tree", "tree/a", "tree/a/b"] {
        assert!(is_directory(&stat(&*origin, directory).await), "`{directory}`");
    }
    let listed = list_all(&*origin, "tree", 100).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["a", "f"]);
    assert!(is_directory(&listed["a"]) && !is_directory(&listed["f"]));
    assert!(list_all(&*origin, "", 100).await.contains_key("tree"));
    assert_eq!(list_all(&*origin, "tree/a/b", 100).await.len(), 2);
    if fixture.make_directory("tree/empty").await {
        assert!(is_directory(&stat(&*origin, "tree/empty").await));
        assert!(is_directory(&list_all(&*origin, "tree", 100).await["empty"]));
        assert!(list_all(&*origin, "tree/empty", 100).await.is_empty());
    }
}

async fn pages_join_to_the_whole(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    let mut expected = Vec::new();
    for number in 0..23 {
        fixture.put(&format!("pages/file-{number:02}"), b"x").await;
        expected.push(format!("file-{number:02}"));
        if number % 3 == 0 {
            fixture.put(&format!("pages/file-{number:02}.d/x"), b"x").await;
            expected.push(format!("file-{number:02}.d"));
        }
    }
    expected.sort();
    for max in [1, 2, 7, 1000] {
        let listed = list_all(&*origin, "pages", max).await;
        assert_eq!(listed.into_keys().collect::<Vec<_>>(), expected, "pages of {max}");
    }
}

async fn files_and_directories_are_told_apart(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    fixture.put("kinds/file", b"x").await;
    assert_not_found(&*origin, "kinds/missing").await;
    assert_not_found(&*origin, "kinds/missing/below").await;
    // A name is not there because another one starts with it.
    assert_not_found(&*origin, "kinds/fil").await;
    assert_not_found(&*origin, "kin").await;
    assert_not_found(&*origin, "kinds/file/below").await;
    let failure = origin.list(b"kinds/file", None, 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NotADirectory, "{failure}");
    for missing in ["kinds/missing", "kin"] {
        let failure = origin.list(missing.as_bytes(), None, 10).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NotFound, "{failure}");
    }
}

async fn a_directory_shadows_a_file(fixture: &dyn Fixture) {
    if !fixture.has_shadowing() {
        return;
    }
    let origin = fixture.origin();
    for path in ["shadow/a", "shadow/a-1", "shadow/a.txt", "shadow/a/below", "shadow/b"] {
        fixture.put(path, b"x").await;
    }
    assert!(is_directory(&stat(&*origin, "shadow/a").await));
    assert!(!is_directory(&stat(&*origin, "shadow/a/below").await));
    for max in [1, 2, 3, 1000] {
        let listed = list_all(&*origin, "shadow", max).await;
        assert_eq!(listed.keys().collect::<Vec<_>>(), ["a", "a-1", "a.txt", "b"], "pages of {max}");
        assert!(is_directory(&listed["a"]), "pages of {max}");
    }
}

async fn nonsense_is_refused(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    fixture.put("nonsense", b"xyz").await;
    for path in ["/", "a//b", "a/", "/a", ".", "..", "a/../b", "a\0b"] {
        let failure = origin.stat(path.as_bytes()).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "stat of {path:?}: {failure}");
        let failure = origin.list(path.as_bytes(), None, 10).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "list of {path:?}: {failure}");
    }
    let failure = origin.stat("x".repeat(256).as_bytes()).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NameTooLong, "{failure}");
    let failure = origin.list(b"", Some("no token"), 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{failure}");
    let version = file(&stat(&*origin, "nonsense").await);
    let foreign = FileVersion { origin: "other://origin".into(), ..version };
    let failure = read(&*origin, &foreign, 0, 3).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{failure}");
}

#[cfg(test)]
mod tests;
