//! The part of the suite that is about changes: for origins that take them.

use std::sync::Arc;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind, FileVersion, PartPage};

use super::asking::{assert_not_found, file, is_directory, list_all, read, stat};
use super::fixture::Fixture;
use crate::Origin;

/// S3's least size of a part that is not the last.
const PART: usize = 5 << 20;

pub(super) async fn check(fixture: &dyn Fixture) {
    let origin = fixture.origin();
    if !origin.takes_changes() {
        return;
    }
    what_is_put_is_there_at_once_and_as_answered(&*origin).await;
    a_file_that_is_created_is_there_once(&origin).await;
    an_upload_is_seen_when_it_is_complete_and_not_before(&*origin).await;
    a_part_that_is_sent_again_replaces_the_one_before(&*origin).await;
    parts_that_do_not_add_up_change_nothing(&*origin).await;
    completing_again_is_answered_alike(&*origin).await;
    an_upload_that_is_given_up_leaves_nothing(&*origin).await;
    parts_are_numbered_from_one_to_ten_thousand(&*origin).await;
    the_parts_of_an_upload_are_told_as_they_were_sent_last(&*origin).await;
    uploads_are_told_until_they_are_over(&*origin).await;
    a_copy_has_the_bytes_of_now_and_replaces_what_was_there(&*origin).await;
    a_removed_file_is_gone(&*origin).await;
    each_replacement_is_another_version(&origin).await;
    a_directory_is_there_with_nothing_in_it(&*origin).await;
    only_an_empty_directory_goes(&*origin).await;
    no_file_takes_the_place_of_a_directory(&*origin).await;
    names_that_cannot_be_are_refused(&*origin).await;
}

async fn what_is_put_is_there_at_once_and_as_answered(origin: &dyn Origin) {
    for name in ["plain", "with space", "grüße-数据-🚰", "a+b&c=d%20e", "quote\"s'", "hash#q?x", "[~]{}^`|\\<>*"]
    {
        let path = format!("put/made by the way/{name}");
        let attr = put(origin, &path, name).await;
        assert_eq!(attr, stat(origin, &path).await, "stat of {path} right after it");
        assert_contents(origin, &file(&attr), name.as_bytes()).await;
    }
    let listed = list_all(origin, "put/made by the way", 100).await;
    assert_eq!(listed.len(), 7);
    assert_eq!(listed["plain"], stat(origin, "put/made by the way/plain").await);
    assert_eq!(file(&put(origin, "put/empty", "").await).size, 0);
    let replaced = put(origin, "put/empty", "no more").await;
    assert_eq!(replaced, stat(origin, "put/empty").await);
    assert_contents(origin, &file(&replaced), b"no more").await;
}

async fn a_file_that_is_created_is_there_once(origin: &Arc<dyn Origin>) {
    let create = |text: String| {
        let origin = Arc::clone(origin);
        async move { origin.create(b"created/once", text.into()).await }
    };
    // Each on a task of its own: at once, as far as the origin lets them.
    let creating: Vec<_> = (0..8).map(|number| tokio::spawn(create(format!("the {number}th")))).collect();
    let mut made = Vec::new();
    for created in creating {
        match created.await.unwrap() {
            Ok(attr) => made.push(attr),
            Err(failure) => assert_eq!(failure.kind(), FailureKind::Exists, "{failure}"),
        }
    }
    let [attr] = &made[..] else { panic!("{} of them made it", made.len()) };
    assert_eq!(*attr, stat(&**origin, "created/once").await);
    let again = create("another".to_owned()).await.unwrap_err();
    assert_eq!(again.kind(), FailureKind::Exists, "{again}");
    assert_eq!(*attr, stat(&**origin, "created/once").await, "it is as it was");
    let directory = origin.create(b"created", Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(directory.kind(), FailureKind::IsADirectory, "{directory}");
    assert_eq!(list_all(&**origin, "created", 100).await.len(), 1);
}

async fn an_upload_is_seen_when_it_is_complete_and_not_before(origin: &dyn Origin) {
    let path = "uploads/in parts";
    let first: Vec<u8> = (0..PART as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let upload = begin(origin, path).await;
    // In any order.
    let last_tag = part(origin, path, &upload, 2, b"and the rest").await;
    let first_tag = part(origin, path, &upload, 1, &first).await;
    assert_not_found(origin, path).await;
    assert!(!list_all(origin, "", 100).await.contains_key("uploads"), "nothing of it can be seen");
    let size = (PART + 12) as u64;
    let tags = [first_tag, last_tag];
    let attr = origin.complete_upload(path.as_bytes(), &upload, size, &tags).await.unwrap();
    assert_eq!(attr, stat(origin, path).await, "stat right after it");
    assert_eq!(attr, list_all(origin, "uploads", 100).await["in parts"], "listing right after it");
    assert_contents(origin, &file(&attr), &[&first[..], b"and the rest"].concat()).await;

    let upload = begin(origin, path).await;
    let tag = part(origin, path, &upload, 1, b"one small part").await;
    assert_eq!(stat(origin, path).await, attr, "the version before stays until then");
    let replaced = origin.complete_upload(path.as_bytes(), &upload, 14, &[tag]).await.unwrap();
    assert_contents(origin, &file(&replaced), b"one small part").await;
}

async fn a_part_that_is_sent_again_replaces_the_one_before(origin: &dyn Origin) {
    let path = "uploads/again";
    let upload = begin(origin, path).await;
    let old = part(origin, path, &upload, 1, b"old").await;
    let new = part(origin, path, &upload, 1, b"new").await;
    let failure = origin.complete_upload(path.as_bytes(), &upload, 3, &[old]).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::InvalidArgument, "a tag that is out of date: {failure}");
    assert_not_found(origin, path).await;
    let attr = origin.complete_upload(path.as_bytes(), &upload, 3, &[new]).await.unwrap();
    assert_contents(origin, &file(&attr), b"new").await;
}

async fn parts_that_do_not_add_up_change_nothing(origin: &dyn Origin) {
    let path = "uploads/short";
    let before = put(origin, path, "as it was").await;
    let upload = begin(origin, path).await;
    let tag = [part(origin, path, &upload, 1, b"five.").await];
    for size in [0, 4, 6] {
        let failure = origin.complete_upload(path.as_bytes(), &upload, size, &tag).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Corrupt, "{failure}");
    }
    assert_eq!(stat(origin, path).await, before);
    origin.complete_upload(path.as_bytes(), &upload, 5, &tag).await.unwrap();
}

async fn completing_again_is_answered_alike(origin: &dyn Origin) {
    let path = "uploads/twice";
    let upload = begin(origin, path).await;
    let tag = [part(origin, path, &upload, 1, b"once").await];
    let attr = origin.complete_upload(path.as_bytes(), &upload, 4, &tag).await.unwrap();
    let again = origin.complete_upload(path.as_bytes(), &upload, 4, &tag).await;
    assert_eq!(again, Ok(attr.clone()));
    assert_eq!(stat(origin, path).await, attr);
}

async fn an_upload_that_is_given_up_leaves_nothing(origin: &dyn Origin) {
    let path = "given up/file";
    let upload = begin(origin, path).await;
    let tag = [part(origin, path, &upload, 1, b"never").await];
    for _ in 0..2 {
        origin.abort_upload(path.as_bytes(), &upload).await.unwrap();
    }
    for upload in [&*upload, "nonsense", "0:0", ""] {
        let sent = origin.upload_part(path.as_bytes(), upload, 1, Bytes::from_static(b"x")).await;
        assert_eq!(sent.unwrap_err().kind(), FailureKind::NotFound, "a part of `{upload}`");
        let completed = origin.complete_upload(path.as_bytes(), upload, 5, &tag).await;
        assert_eq!(completed.unwrap_err().kind(), FailureKind::NotFound, "completing `{upload}`");
    }
    assert_not_found(origin, path).await;
    assert!(!list_all(origin, "", 100).await.contains_key("given up"));
}

async fn parts_are_numbered_from_one_to_ten_thousand(origin: &dyn Origin) {
    let path = "uploads/numbers";
    let upload = begin(origin, path).await;
    for number in [0, 10_001] {
        let sent = origin.upload_part(path.as_bytes(), &upload, number, Bytes::from_static(b"x")).await;
        assert_eq!(sent.unwrap_err().kind(), FailureKind::InvalidArgument, "part {number}");
    }
    for count in [0, 10_001] {
        let tags = vec!["tag".to_owned(); count];
        let completed = origin.complete_upload(path.as_bytes(), &upload, 0, &tags).await;
        assert_eq!(completed.unwrap_err().kind(), FailureKind::InvalidArgument, "{count} parts");
    }
    origin.abort_upload(path.as_bytes(), &upload).await.unwrap();
}

async fn the_parts_of_an_upload_are_told_as_they_were_sent_last(origin: &dyn Origin) {
    let path = "uploads/told";
    let upload = begin(origin, path).await;
    assert_eq!(origin.list_parts(path.as_bytes(), &upload, 0, 10).await, Ok(PartPage::default()));
    // A server may leave the quotes out that another one has.
    let plain = |tag: &str| tag.replace('"', "");
    part(origin, path, &upload, 2, b"not the last word").await;
    let mut sent = Vec::new();
    for (number, bytes) in [(1, &b"one"[..]), (2, b"two, sent again"), (7, b"seven")] {
        let tag = part(origin, path, &upload, number, bytes).await;
        sent.push((number, plain(&tag), bytes.len() as u64));
    }
    for (after, max, told, has_more) in [
        (0, 10, &sent[..], false),
        (0, 3, &sent, false),
        (0, 2, &sent[..2], true),
        (1, 1, &sent[1..2], true),
        (2, 1, &sent[2..], false),
        (5, 9, &sent[2..], false),
        (7, 9, &[], false),
    ] {
        let page = origin.list_parts(path.as_bytes(), &upload, after, max).await.unwrap();
        let found: Vec<_> = page.parts.iter().map(|part| (part.number, plain(&part.tag), part.size)).collect();
        assert_eq!((&found[..], page.has_more), (told, has_more), "at most {max} after {after}");
    }
    let first = origin.list_parts(path.as_bytes(), &upload, 0, 1).await.unwrap().parts.remove(0);
    for (path, upload) in [("uploads/another", &*upload), (path, "nonsense"), (path, "0:0"), (path, "")] {
        let failure = origin.list_parts(path.as_bytes(), upload, 0, 10).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NotFound, "`{upload}` of {path}: {failure}");
    }
    let attr = origin.complete_upload(path.as_bytes(), &upload, 3, &[first.tag]).await.unwrap();
    assert_contents(origin, &file(&attr), b"one").await;
    let failure = origin.list_parts(path.as_bytes(), &upload, 0, 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NotFound, "it is complete: {failure}");
}

async fn uploads_are_told_until_they_are_over(origin: &dyn Origin) {
    let paths = ["pending/a/one", "pending/a/two", "pending/b"];
    let mut begun = Vec::new();
    for path in paths.into_iter().chain(["pending/a/one"]) {
        begun.push((path, begin(origin, path).await));
    }
    let told = async |prefix: &str| {
        let page = origin.list_uploads(prefix.as_bytes(), None, 100).await.unwrap();
        assert_eq!(page.next, None);
        let pending = page.uploads.into_iter();
        pending.map(|pending| (String::from_utf8(pending.path).unwrap(), pending.upload)).collect::<Vec<_>>()
    };
    for (prefix, expected) in [
        ("pending/", &[paths[0], paths[0], paths[1], paths[2]][..]),
        ("pending/a/", &[paths[0], paths[0], paths[1]]),
        ("pending/a/t", &[paths[1]]),
        ("pending/a/two", &[paths[1]]),
        ("pending/c", &[]),
    ] {
        let found = told(prefix).await;
        let mut names: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{prefix}");
    }
    // By whatever name it is called.
    let (path, upload) = told("pending/b").await.remove(0);
    part(origin, &path, &upload, 1, b"a part").await;
    assert_eq!(origin.list_parts(path.as_bytes(), &begun[2].1, 0, 10).await.unwrap().parts.len(), 1);
    for (path, upload) in told("pending/").await {
        origin.abort_upload(path.as_bytes(), &upload).await.unwrap();
    }
    assert_eq!(told("pending/").await, []);
    for (path, upload) in begun {
        let failure = origin.list_parts(path.as_bytes(), &upload, 0, 10).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NotFound, "{path}: {failure}");
    }
}

/// Not of versitygw, which goes on elsewhere than it ended where one file has several uploads.
#[cfg(test)]
pub(crate) async fn uploads_come_in_pages(origin: &dyn Origin) {
    use forebay_types::UploadMarker;

    let mut begun = Vec::new();
    for path in ["paged/c", "paged/a b&c", "paged/b", "paged/b", "paged/ü"] {
        begun.push((path, begin(origin, path).await));
    }
    let expected = ["paged/a b&c", "paged/b", "paged/b", "paged/c", "paged/ü"];
    for max in [1, 2, 3, 5, 100] {
        let (mut found, mut after): (Vec<_>, Option<UploadMarker>) = (Vec::new(), None);
        loop {
            let page = origin.list_uploads(b"paged/", after.as_ref(), max).await.unwrap();
            assert!(page.uploads.len() <= max);
            found.extend(page.uploads.into_iter().map(|pending| (pending.path, pending.upload)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let names: Vec<_> = found.iter().map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect();
        assert_eq!(names, expected, "pages of {max}");
        assert_ne!(found[1].1, found[2].1, "pages of {max}");
    }
    // From a name on that need not be there.
    let marker = UploadMarker { path: b"paged/b".to_vec(), upload: String::new() };
    let page = origin.list_uploads(b"paged/", Some(&marker), 100).await.unwrap();
    let names: Vec<_> = page.uploads.iter().map(|pending| &*pending.path).collect();
    assert_eq!(names, [b"paged/c".as_slice(), "paged/ü".as_bytes()]);
    for (path, upload) in begun {
        origin.abort_upload(path.as_bytes(), &upload).await.unwrap();
    }
}

async fn a_copy_has_the_bytes_of_now_and_replaces_what_was_there(origin: &dyn Origin) {
    put(origin, "copies/from", "old bytes").await;
    put(origin, "copies/from", "the bytes").await;
    put(origin, "copies/over", "what was there").await;
    for to in ["copies/new/to", "copies/over", "copies/grüße +%20?"] {
        let attr = origin.copy(b"copies/from", to.as_bytes()).await.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(attr, stat(origin, to).await, "stat of {to} right after it");
        assert_contents(origin, &file(&attr), b"the bytes").await;
    }
    let itself = origin.copy(b"copies/over", b"copies/over").await.unwrap();
    assert_contents(origin, &file(&itself), b"the bytes").await;
    for missing in ["copies/none", "copies", "copies/from/below", ""] {
        let failure = origin.copy(missing.as_bytes(), b"copies/to").await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NotFound, "a copy of `{missing}`: {failure}");
    }
    assert_not_found(origin, "copies/to").await;
    assert_contents(origin, &file(&stat(origin, "copies/from").await), b"the bytes").await;
}

async fn a_removed_file_is_gone(origin: &dyn Origin) {
    put(origin, "removed/stays", "x").await;
    let version = file(&put(origin, "removed/goes", "x").await);
    for path in ["removed/goes", "removed/goes", "removed/never/was"] {
        origin.remove(path.as_bytes()).await.unwrap_or_else(|failure| panic!("removing {path}: {failure}"));
    }
    assert_not_found(origin, "removed/goes").await;
    assert_eq!(list_all(origin, "removed", 100).await.len(), 1);
    assert_changed(origin, &version, "removed").await;
}

async fn each_replacement_is_another_version(origin: &Arc<dyn Origin>) {
    let (origin, path) = (&**origin, "versions/file");
    put(origin, "versions/other", "copy").await;
    let mut version = file(&put(origin, path, "1st.").await);
    let upload = begin(origin, path).await;
    let tag = part(origin, path, &upload, 1, b"2nd.").await;
    let uploaded = origin.complete_upload(path.as_bytes(), &upload, 4, &[tag]).await.unwrap();
    assert_changed(origin, &version, "an upload").await;
    version = file(&uploaded);
    assert_contents(origin, &version, b"2nd.").await;
    let copied = origin.copy(b"versions/other", path.as_bytes()).await.unwrap();
    assert_changed(origin, &version, "a copy").await;
    version = file(&copied);
    assert_contents(origin, &version, b"copy").await;
    put(origin, path, "4th.").await;
    assert_changed(origin, &version, "a put").await;
}

async fn a_directory_is_there_with_nothing_in_it(origin: &dyn Origin) {
    let attr = origin.make_directory(b"made/by the way/d").await.unwrap();
    assert!(is_directory(&attr));
    assert_eq!(attr, stat(origin, "made/by the way/d").await);
    assert!(is_directory(&list_all(origin, "made/by the way", 100).await["d"]));
    assert!(list_all(origin, "made/by the way/d", 100).await.is_empty());
    put(origin, "made/file", "x").await;
    for path in ["made/by the way/d", "made", "made/file"] {
        let failure = origin.make_directory(path.as_bytes()).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Exists, "making {path}: {failure}");
    }
    put(origin, "made/by the way/d/file", "x").await;
    origin.remove(b"made/by the way/d/file").await.unwrap();
    assert!(is_directory(&stat(origin, "made/by the way/d").await), "it stays when the last file goes");
}

async fn only_an_empty_directory_goes(origin: &dyn Origin) {
    origin.make_directory(b"rmdir/d").await.unwrap();
    put(origin, "rmdir/d/file", "x").await;
    origin.make_directory(b"rmdir/d/e").await.unwrap();
    put(origin, "rmdir/file", "x").await;
    for (path, kind) in [
        ("rmdir/d", FailureKind::NotEmpty),
        ("rmdir", FailureKind::NotEmpty),
        ("rmdir/file", FailureKind::NotADirectory),
        ("rmdir/none", FailureKind::NotFound),
        ("rmdir/fil", FailureKind::NotFound),
        ("rmdir/file/below", FailureKind::NotFound),
    ] {
        let failure = origin.remove_directory(path.as_bytes()).await.unwrap_err();
        assert_eq!(failure.kind(), kind, "removing {path}: {failure}");
    }
    origin.remove(b"rmdir/d/file").await.unwrap();
    let failure = origin.remove_directory(b"rmdir/d").await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NotEmpty, "an empty directory is something: {failure}");
    for path in ["rmdir/d/e", "rmdir/d"] {
        origin.remove_directory(path.as_bytes()).await.unwrap_or_else(|failure| panic!("removing {path}: {failure}"));
        assert_not_found(origin, path).await;
    }
    assert_eq!(list_all(origin, "rmdir", 100).await.into_keys().collect::<Vec<_>>(), ["file"]);
}

async fn no_file_takes_the_place_of_a_directory(origin: &dyn Origin) {
    put(origin, "place/implied/file", "x").await;
    origin.make_directory(b"place/made").await.unwrap();
    for path in ["place/implied", "place/made", "place"] {
        let path = path.as_bytes();
        let put = origin.put(path, Bytes::from_static(b"x")).await.map(drop);
        let begun = origin.begin_upload(path).await.map(drop);
        let copied = origin.copy(b"place/implied/file", path).await.map(drop);
        for result in [put, begun, copied] {
            assert_eq!(result.unwrap_err().kind(), FailureKind::IsADirectory, "{}", String::from_utf8_lossy(path));
        }
    }
    assert!(is_directory(&stat(origin, "place/made").await));
    assert_contents(origin, &file(&stat(origin, "place/implied/file").await), b"x").await;
}

async fn names_that_cannot_be_are_refused(origin: &dyn Origin) {
    put(origin, "names that can be", "x").await;
    let too_long = "x".repeat(256);
    let cannot =
        ["", "/", "a//b", "a/", "/a", ".", "..", "a/../b", "a\0b"].map(|path| (path, FailureKind::InvalidArgument));
    for (path, kind) in cannot.into_iter().chain([(&*too_long, FailureKind::NameTooLong)]) {
        for (verb, result) in all_verbs(origin, path.as_bytes()).await {
            assert_eq!(result.unwrap_err().kind(), kind, "{verb} of {path:?}");
        }
        let listed = origin.list_parts(path.as_bytes(), "upload", 0, 1).await;
        assert_eq!(listed.unwrap_err().kind(), kind, "list_parts of {path:?}");
    }
}

/// What each verb says of a path.
pub(crate) async fn all_verbs(origin: &dyn Origin, path: &[u8]) -> [(&'static str, Result<(), Failure>); 9] {
    let bytes = || Bytes::from_static(b"x");
    [
        ("put", origin.put(path, bytes()).await.map(drop)),
        ("begin_upload", origin.begin_upload(path).await.map(drop)),
        ("upload_part", origin.upload_part(path, "upload", 1, bytes()).await.map(drop)),
        ("complete_upload", origin.complete_upload(path, "upload", 1, &["tag".to_owned()]).await.map(drop)),
        ("abort_upload", origin.abort_upload(path, "upload").await),
        ("copy", origin.copy(b"names that can be", path).await.map(drop)),
        ("remove", origin.remove(path).await),
        ("make_directory", origin.make_directory(path).await.map(drop)),
        ("remove_directory", origin.remove_directory(path).await),
    ]
}

async fn put(origin: &dyn Origin, path: &str, text: &str) -> Attr {
    let put = origin.put(path.as_bytes(), Bytes::copy_from_slice(text.as_bytes())).await;
    put.unwrap_or_else(|failure| panic!("put of `{path}`: {failure}"))
}

async fn begin(origin: &dyn Origin, path: &str) -> String {
    origin.begin_upload(path.as_bytes()).await.unwrap_or_else(|failure| panic!("upload of `{path}`: {failure}"))
}

async fn part(origin: &dyn Origin, path: &str, upload: &str, number: u32, bytes: &[u8]) -> String {
    let sent = origin.upload_part(path.as_bytes(), upload, number, Bytes::copy_from_slice(bytes)).await;
    sent.unwrap_or_else(|failure| panic!("part {number} of `{path}`: {failure}"))
}

async fn assert_contents(origin: &dyn Origin, version: &FileVersion, expected: &[u8]) {
    let path = String::from_utf8_lossy(&version.path);
    assert_eq!(version.size, expected.len() as u64, "size of {path}");
    if !expected.is_empty() {
        let found = read(origin, version, 0, version.size).await.unwrap_or_else(|failure| panic!("{path}: {failure}"));
        assert!(found == expected, "contents of {path}");
    }
}

async fn assert_changed(origin: &dyn Origin, old: &FileVersion, by: &str) {
    let failure = read(origin, old, 0, old.size).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "the version before {by}: {failure}");
}
