//! What is particular to a directory: symbolic links, names of any bytes, hidden files.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};

use super::pieces::PIECE;
use super::*;

fn origin(root: &Path) -> FileOrigin {
    FileOrigin::new("file:///t", root, &OriginOptions::default()).unwrap()
}

#[tokio::test]
async fn a_symbolic_link_is_followed_inside_the_origin_and_refused_outside_of_it() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), b"s").unwrap();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sub")).unwrap();
    std::fs::write(root.path().join("sub/file"), b"inside").unwrap();
    symlink("sub/file", root.path().join("relative")).unwrap();
    symlink(root.path().join("sub/file"), root.path().join("absolute")).unwrap();
    symlink(outside.path().join("secret"), root.path().join("escape")).unwrap();
    symlink(outside.path(), root.path().join("escape-dir")).unwrap();
    symlink("nowhere", root.path().join("dangling")).unwrap();
    symlink("loop", root.path().join("loop")).unwrap();

    let origin = origin(root.path());
    for inside in ["relative", "absolute"] {
        let attr = origin.stat(inside.as_bytes()).await.unwrap();
        let mut into = [0; 6];
        origin.read(attr.version().unwrap(), 0..6, &mut into).await.unwrap();
        assert_eq!(&into, b"inside", "{inside}");
    }
    for escape in ["escape", "escape-dir", "escape-dir/secret"] {
        let failure = origin.stat(escape.as_bytes()).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
    }
    assert_eq!(origin.stat(b"dangling").await.unwrap_err().kind(), FailureKind::NotFound);
    assert_eq!(origin.stat(b"loop").await.unwrap_err().kind(), FailureKind::InvalidArgument);
    let page = origin.list(b"", None, 100).await.unwrap();
    let mut names: Vec<_> = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
    names.sort();
    assert_eq!(names, ["absolute", "relative", "sub"]);
}

#[tokio::test]
async fn names_are_any_bytes() {
    let root = tempfile::tempdir().unwrap();
    let name = b"\xff\xfe odd\n\"name";
    std::fs::write(root.path().join(OsStr::from_bytes(name)), b"x").unwrap();
    let origin = origin(root.path());
    assert_eq!(&*origin.list(b"", None, 10).await.unwrap().entries[0].name, name);
    assert_eq!(origin.stat(name).await.unwrap().size(), 1);
}

#[tokio::test]
async fn a_file_rewritten_in_place_with_its_old_times_is_another_version() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    std::fs::write(&path, b"old").unwrap();
    let origin = origin(root.path());
    let version = origin.stat(b"f").await.unwrap().version().unwrap().clone();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    // The clock of the file system may need a tick to tell the two writes apart.
    loop {
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        file.set_modified(modified).unwrap();
        let mut into = [0; 3];
        match origin.read(&version, 0..3, &mut into).await {
            Err(failure) => break assert_eq!(failure.kind(), FailureKind::VersionChanged),
            Ok(()) => assert!(Instant::now() < deadline, "the change was never seen"),
        }
    }
}

/// Bytes of a file that tell where they lie.
fn telling(length: u64) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn what_is_read_comes_in_pieces_and_is_the_same_as_at_once() {
    let root = tempfile::tempdir().unwrap();
    let whole = telling(3 * PIECE + 5);
    std::fs::write(root.path().join("f"), &whole).unwrap();
    let origin = origin(root.path());
    let attr = origin.stat(b"f").await.unwrap();
    let version = attr.version().unwrap();
    let ends = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5];
    for (from, to) in ends.into_iter().flat_map(|from| ends.map(|to| (from, to))).filter(|(from, to)| from < to) {
        let expected = &whole[from as usize..to as usize];
        let mut into = vec![0; expected.len()];
        let checksums = origin.read_checksummed(version, from..to, &mut into).await.unwrap();
        assert!(into == expected, "{from}..{to}");
        assert_eq!(checksums, SectorChecksums::of(expected), "{from}..{to}");

        let mut pieces = Vec::new();
        let last = origin.directory.read(version, from..to, |piece| {
            pieces.push(piece.len() as u64);
            true
        });
        pieces.push(last.unwrap().len() as u64);
        assert!(pieces.iter().all(|piece| (1..=PIECE).contains(piece)), "{from}..{to}: {pieces:?}");
        assert_eq!(pieces.iter().sum::<u64>(), to - from);
    }
}

#[tokio::test]
async fn a_file_that_changes_between_two_pieces_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    let origin = origin(root.path());
    let rewritten = |path: &Path| std::fs::write(path, telling(2 * PIECE)).unwrap();
    let cut = |path: &Path| File::options().write(true).open(path).unwrap().set_len(PIECE).unwrap();
    for change in [rewritten, cut] as [fn(&Path); 2] {
        rewritten(&path);
        let attr = origin.stat(b"f").await.unwrap();
        let read = origin.directory.read(attr.version().unwrap(), 0..2 * PIECE, |_| {
            change(&path);
            true
        });
        assert_eq!(read.unwrap_err().kind(), FailureKind::VersionChanged);
    }
}

#[tokio::test]
async fn a_read_that_nobody_waits_for_any_more_ends_with_its_piece() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("f"), telling(3 * PIECE)).unwrap();
    let origin = origin(root.path());
    let attr = origin.stat(b"f").await.unwrap();
    let mut pieces = 0;
    let read = origin.directory.read(attr.version().unwrap(), 0..3 * PIECE, |_| {
        pieces += 1;
        false
    });
    assert_eq!((read.unwrap_err().kind(), pieces), (FailureKind::TimedOut, 1));
}

#[test]
fn a_file_is_no_origin() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(
        FileOrigin::new("file:///t", file.path(), &OriginOptions::default()),
        Err(OriginError::Directory { .. })
    ));
}

#[tokio::test]
async fn pipes_and_sockets_are_not_there() {
    let root = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    let origin = origin(root.path());
    assert_eq!(origin.stat(b"socket").await.unwrap_err().kind(), FailureKind::NotFound);
    assert!(origin.list(b"", None, 10).await.unwrap().entries.is_empty());
}

fn names_in(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_is_on_its_way_is_hidden_and_cannot_be_reached() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let upload = origin.begin_upload(b"f").await.unwrap();
    let tag = [origin.upload_part(b"f", &upload, 1, Bytes::from_static(b"part")).await.unwrap()];
    let hidden = names_in(root.path()).pop().unwrap();
    assert!(hidden.starts_with(".forebay-upload-"));
    assert!(origin.list(b"", None, 10).await.unwrap().entries.is_empty());
    let part = format!("{hidden}/1");
    for path in [hidden.as_bytes(), part.as_bytes()] {
        assert_eq!(origin.stat(path).await.unwrap_err().kind(), FailureKind::NotFound);
        assert_eq!(origin.list(path, None, 10).await.unwrap_err().kind(), FailureKind::NotFound);
        assert_eq!(origin.copy(path, b"g").await.unwrap_err().kind(), FailureKind::NotFound);
        for (verb, result) in crate::conformance::all_verbs(&origin, path).await {
            assert_eq!(result.unwrap_err().kind(), FailureKind::InvalidArgument, "{verb}");
        }
    }
    // Another process goes on with it.
    let other = super::tests::origin(root.path());
    assert_eq!(other.complete_upload(b"f", &upload, 4, &tag).await.unwrap(), origin.stat(b"f").await.unwrap());
    assert_eq!(names_in(root.path()), ["f"]);
    for bad in ["../f", "/", &"0".repeat(31), &"g".repeat(32), &"0".repeat(32)] {
        let failure = origin.upload_part(b"f", bad, 1, Bytes::new()).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::NotFound, "{failure}");
    }
}

#[tokio::test]
async fn what_is_on_its_way_is_hidden_from_links_and_from_an_origin_that_has_the_root_in_it() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("in/ner");
    std::fs::create_dir_all(&root).unwrap();
    let (inner, around) = (origin(&root), origin(outer.path()));
    let upload = inner.begin_upload(b"f").await.unwrap();
    let tag = [inner.upload_part(b"f", &upload, 1, Bytes::from_static(b"part")).await.unwrap()];
    let hidden = format!(".forebay-upload-{upload}");
    assert!(root.join(&hidden).join("1").is_file());
    symlink(".", root.join("self")).unwrap();
    symlink(&hidden, root.join("link")).unwrap();

    for (origin, directory) in [(&inner, ""), (&inner, "self"), (&inner, "self/self"), (&around, "in/ner")] {
        let page = origin.list(directory.as_bytes(), None, 100).await.unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
        assert_eq!(names, ["self"], "in `{directory}`");
        let slash = if directory.is_empty() { "" } else { "/" };
        for path in [format!("{directory}{slash}{hidden}"), format!("{directory}{slash}{hidden}/1")] {
            let found = origin.stat(path.as_bytes()).await.map_err(|failure| failure.kind());
            assert_eq!(found, Err(FailureKind::NotFound), "{path}");
            let put = origin.put(path.as_bytes(), Bytes::new()).await.map_err(|failure| failure.kind());
            assert_eq!(put, Err(FailureKind::InvalidArgument), "{path}");
        }
        for path in [format!("{directory}{slash}link"), format!("{directory}{slash}link/1")] {
            let found = origin.stat(path.as_bytes()).await.map_err(|failure| failure.kind());
            assert_eq!(found, Err(FailureKind::NotFound), "{path}");
            let listed = origin.list(path.as_bytes(), None, 100).await.map_err(|failure| failure.kind());
            assert_eq!(listed.map(drop), Err(FailureKind::NotFound), "{path}");
        }
        let through = format!("{directory}{slash}link/1");
        assert!(origin.put(through.as_bytes(), Bytes::new()).await.is_err());
        origin.remove(through.as_bytes()).await.unwrap();
    }
    inner.complete_upload(b"f", &upload, 4, &tag).await.unwrap();
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"part");
}

#[tokio::test]
async fn a_file_is_not_copied_to_where_it_is_though_links_lead_there() {
    let root = tempfile::tempdir().unwrap();
    let (sub, origin) = (root.path().join("sub"), origin(root.path()));
    std::fs::create_dir(&sub).unwrap();
    symlink("sub", root.path().join("alias")).unwrap();
    std::fs::write(sub.join("one"), b"one").unwrap();
    std::fs::write(sub.join("two"), b"two").unwrap();
    std::fs::hard_link(sub.join("two"), sub.join("second")).unwrap();
    symlink("one", sub.join("link")).unwrap();
    for (from, to) in
        [("alias/one", "sub/one"), ("sub/one", "alias/one"), ("alias/two", "sub/two"), ("alias/link", "sub/link")]
    {
        let failure = origin.copy(from.as_bytes(), to.as_bytes()).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{from} to {to}: {failure}");
    }
    assert_eq!(names_in(&sub), ["link", "one", "second", "two"]);
    assert!(sub.join("link").is_symlink());
    // Other names of one file are other files, once one of them is replaced.
    for (from, to) in [("alias/two", "sub/second"), ("sub/one", "alias/link"), ("alias/one", "new/one")] {
        origin.copy(from.as_bytes(), to.as_bytes()).await.unwrap();
        origin.remove(from.as_bytes()).await.unwrap();
        std::fs::write(sub.join("one"), b"one").unwrap();
    }
    assert_eq!(std::fs::read(sub.join("second")).unwrap(), b"two");
    assert_eq!(std::fs::read(sub.join("link")).unwrap(), b"one");
    assert_eq!(std::fs::read(root.path().join("new/one")).unwrap(), b"one");
}

#[tokio::test]
async fn a_change_that_nobody_waits_for_any_more_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    std::fs::write(root.path().join("f"), b"later").unwrap();
    let given_up = super::GivenUp::default();
    drop(given_up.waited_for());
    let put = origin.directory.put(b"f", &Bytes::from_static(b"earlier"), &given_up);
    assert_eq!(put.unwrap_err().kind(), FailureKind::TimedOut);
    assert_eq!(origin.directory.remove(b"f", &given_up).unwrap_err().kind(), FailureKind::TimedOut);
    assert_eq!(std::fs::read(root.path().join("f")).unwrap(), b"later");
    assert_eq!(names_in(root.path()), ["f"]);
}

#[tokio::test]
async fn an_upload_is_of_the_file_that_it_was_begun_for() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let upload = origin.begin_upload(b"f").await.unwrap();
    let failure = origin.upload_part(b"g", &upload, 1, Bytes::new()).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NotFound, "{failure}");
}

#[tokio::test]
async fn what_was_left_over_a_week_ago_is_removed_when_the_origin_is_opened() {
    let root = tempfile::tempdir().unwrap();
    let first = origin(root.path());
    let old = first.begin_upload(b"old").await.unwrap();
    let new = first.begin_upload(b"new").await.unwrap();
    std::fs::write(root.path().join(".forebay-upload-draft"), b"x").unwrap();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    for name in [&*format!(".forebay-upload-{old}"), ".forebay-upload-draft", "f"] {
        let time = std::time::SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
        File::open(root.path().join(name)).unwrap().set_modified(time).unwrap();
    }
    let _second = origin(root.path());
    assert_eq!(names_in(root.path()), [format!(".forebay-upload-{new}"), "f".to_owned()]);
}

#[tokio::test]
async fn completing_and_giving_up_at_once_does_one_of_both() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    for round in 0..8 {
        let path = format!("f{round}").into_bytes();
        let upload = origin.begin_upload(&path).await.unwrap();
        let tag = [origin.upload_part(&path, &upload, 1, Bytes::from(vec![7; 1 << 20])).await.unwrap()];
        let complete = || origin.complete_upload(&path, &upload, 1 << 20, &tag);
        let (first, aborted, second) = tokio::join!(complete(), origin.abort_upload(&path, &upload), complete());
        aborted.unwrap();
        match origin.stat(&path).await {
            Ok(attr) => {
                assert!(first.is_ok() || second.is_ok());
                for completed in [first, second].into_iter().flatten() {
                    assert_eq!(completed, attr);
                }
            }
            Err(failure) => {
                assert_eq!(failure.kind(), FailureKind::NotFound);
                for completed in [first, second] {
                    assert_eq!(completed.unwrap_err().kind(), FailureKind::NotFound);
                }
            }
        }
        assert!(names_in(root.path()).iter().all(|name| !name.starts_with('.')), "nothing is left over");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_given_up_leaves_nothing_though_parts_are_on_their_way() {
    let root = tempfile::tempdir().unwrap();
    let origin = Arc::new(origin(root.path()));
    for _ in 0..50 {
        let upload = origin.begin_upload(b"f").await.unwrap();
        let parts: Vec<_> = (1..=4)
            .map(|number| {
                let (origin, upload) = (Arc::clone(&origin), upload.clone());
                let part = async move { origin.upload_part(b"f", &upload, number, Bytes::from_static(b"x")).await };
                tokio::spawn(part)
            })
            .collect();
        origin.abort_upload(b"f", &upload).await.unwrap();
        assert!(names_in(root.path()).is_empty(), "it is gone when that is said");
        for part in parts {
            let _ = part.await.unwrap();
        }
        assert!(names_in(root.path()).is_empty());
    }
}

#[tokio::test]
async fn nothing_is_written_through_a_symbolic_link() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), b"theirs").unwrap();
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sub")).unwrap();
    std::fs::write(root.path().join("file"), b"old").unwrap();
    symlink(outside.path().join("file"), root.path().join("file-out")).unwrap();
    symlink(outside.path(), root.path().join("dir-out")).unwrap();
    symlink("file", root.path().join("file-in")).unwrap();
    symlink("sub", root.path().join("dir-in")).unwrap();
    symlink("nowhere", root.path().join("dangling")).unwrap();
    let origin = origin(root.path());
    let new = || Bytes::from_static(b"new");

    for path in ["dir-out/file", "dir-out/new"] {
        for (verb, result) in crate::conformance::all_verbs(&origin, path.as_bytes()).await {
            match verb {
                // There is no such upload, nor file to copy, whatever the name.
                "upload_part" | "complete_upload" | "abort_upload" | "copy" => {}
                _ => {
                    let failure = result.unwrap_err();
                    assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{verb} of {path}: {failure}");
                }
            }
        }
    }
    for result in [origin.put(b"dir-out/new/below", new()).await, origin.make_directory(b"dir-out/new/below").await] {
        assert_eq!(result.unwrap_err().kind(), FailureKind::PermissionDenied);
    }
    // A link is replaced itself.
    for path in ["file-out", "file-in", "dangling"] {
        origin.put(path.as_bytes(), new()).await.unwrap();
        assert!(!root.path().join(path).is_symlink());
    }
    assert_eq!(std::fs::read(outside.path().join("file")).unwrap(), b"theirs");
    assert_eq!(std::fs::read(root.path().join("file")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);

    // A directory that a link leads to is one.
    origin.put(b"dir-in/file", new()).await.unwrap();
    assert_eq!(std::fs::read(root.path().join("sub/file")).unwrap(), b"new");
    assert_eq!(origin.put(b"dir-in", new()).await.unwrap_err().kind(), FailureKind::IsADirectory);
    assert_eq!(origin.remove(b"dir-in").await.unwrap_err().kind(), FailureKind::IsADirectory);
    assert_eq!(origin.remove_directory(b"dir-in").await.unwrap_err().kind(), FailureKind::NotPermitted);
    origin.remove(b"dir-out").await.unwrap();
    assert!(outside.path().join("file").is_file() && !root.path().join("dir-out").is_symlink());
}

#[tokio::test]
async fn a_file_that_is_replaced_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;

    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    let mode = |name: &str| std::fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o777;
    for name in ["private", "script"] {
        origin.put(name.as_bytes(), Bytes::from_static(b"1")).await.unwrap();
    }
    std::fs::set_permissions(root.path().join("private"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(root.path().join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    origin.put(b"private", Bytes::from_static(b"2")).await.unwrap();
    origin.copy(b"script", b"copy").await.unwrap();
    assert_eq!((mode("private"), mode("copy")), (0o600, 0o755));
    origin.copy(b"script", b"private").await.unwrap();
    assert_eq!(mode("private"), 0o600);
}

#[tokio::test]
async fn a_file_is_no_directory_of_others() {
    let root = tempfile::tempdir().unwrap();
    let origin = origin(root.path());
    origin.put(b"file", Bytes::new()).await.unwrap();
    for path in ["file/below", "file/further/below"] {
        let (path, bytes) = (path.as_bytes(), Bytes::new());
        for result in
            [origin.put(path, bytes).await, origin.copy(b"file", path).await, origin.make_directory(path).await]
        {
            assert_eq!(result.unwrap_err().kind(), FailureKind::NotADirectory);
        }
        origin.remove(path).await.unwrap();
    }
    assert_eq!(names_in(root.path()), ["file"]);
}

#[tokio::test]
async fn names_in_changes_are_any_bytes_and_sockets_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    let origin = origin(root.path());
    let name = b"\xff\xfe odd\n\"name";
    let attr = origin.put(name, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(origin.stat(name).await.unwrap(), attr);
    let failure = origin.put(b"socket", Bytes::new()).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Exists, "{failure}");
    assert_eq!(names_in(&root.path().join(".")).len(), 2, "no draft is left over");
}
