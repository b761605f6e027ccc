//! What a session writes, with a worker of a directory in its process.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_session::runtime::runtime;
use forebay_session::{CallerMemory, Error, Existing, Place, Read, Session, Settings};

const SOON: Duration = Duration::from_secs(60);
/// More than one part, and a last one that is short.
const LARGE: usize = (11 << 20) + 123;

fn content(size: usize) -> Bytes {
    (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    runtime().unwrap().block_on(async { tokio::time::timeout(SOON, work).await.expect("it does not hang") })
}

fn started(directory: &Path, more: &[(&str, &str)]) -> Arc<Session> {
    let small = [("worker_memory_size", "64MiB"), ("worker.memory.prewarm", "false"), ("write.part_size", "5MiB")];
    let more = small.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let settings = Settings { up: Some(directory.display().to_string()), more, ..Settings::default() };
    wait(Session::start(settings)).unwrap()
}

fn read_by(session: &Arc<Session>, reads: &[(&str, u64, usize)]) -> Vec<Result<Vec<u8>, Error>> {
    let mut buffers: Vec<Vec<u8>> = reads.iter().map(|(_, _, length)| vec![0; *length]).collect();
    let into = |(buffer, (path, offset, _)): (&mut Vec<u8>, &(&str, u64, usize))| {
        let start = NonNull::new(buffer.as_mut_ptr()).unwrap();
        // SAFETY: the buffer is not looked at before the read has ended.
        let into = unsafe { CallerMemory::new(start, buffer.len()) };
        Read { place: Place::Path(path.as_bytes().to_vec()), offset: *offset, into }
    };
    let all = buffers.iter_mut().zip(reads).map(into).collect();
    let outcomes = wait(Arc::clone(session).read_each(all, None)).unwrap();
    let found = |(mut buffer, outcome): (Vec<u8>, Result<usize, Error>)| {
        outcome.map(|count| {
            buffer.truncate(count);
            buffer
        })
    };
    buffers.into_iter().zip(outcomes).map(found).collect()
}

fn read(session: &Arc<Session>, path: &str, length: usize) -> Vec<u8> {
    read_by(session, &[(path, 0, length)]).remove(0).unwrap()
}

fn put(session: &Arc<Session>, path: &str, bytes: &Bytes) -> Result<u64, Error> {
    let put = wait(Arc::clone(session).put(path.into(), bytes.clone(), Existing::Replaced))?;
    Ok(put.version.map_or(0, |version| version.size))
}

/// The files in a directory that are not on their way.
fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

#[test]
fn what_is_put_is_at_the_origin_and_is_what_is_read_next() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    for size in [0, 5, 5 << 20, (5 << 20) + 1, LARGE] {
        let bytes = content(size);
        // Of the version before, there is a handle.
        assert_eq!(put(&session, "/made/file", &content(7)).unwrap(), 7);
        assert_eq!(read(&session, "/made/file", 100), &content(7)[..]);
        assert_eq!(put(&session, "/made/file", &bytes).unwrap(), size as u64);
        assert!(std::fs::read(directory.path().join("made/file")).unwrap() == bytes, "{size}");
        assert!(read(&session, "/made/file", size + 1) == bytes, "{size}");
    }
    wait(Arc::clone(&session).close()).unwrap();
}

#[test]
fn of_those_who_make_a_file_only_where_there_is_none_one_does() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    let create = || wait(Arc::clone(&session).create(b"/file".to_vec(), Existing::Kept)).unwrap();
    // All of them have found nothing of its name.
    let (first, second) = (create(), create());
    wait(first.write(content(5))).unwrap();
    wait(second.write(content(6))).unwrap();
    wait(first.finish()).unwrap();
    let refused = wait(second.finish()).map(drop).unwrap_err();
    assert_eq!(refused.errno, libc::EEXIST, "{refused:?}");
    assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), content(5));
}

#[test]
fn nothing_is_seen_of_a_file_that_is_not_finished_or_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    let create = || wait(Arc::clone(&session).create(b"/file".to_vec(), Existing::Replaced)).unwrap();
    let (given_up, dropped, kept) = (create(), create(), create());
    for writer in [&given_up, &dropped, &kept] {
        for piece in content(LARGE).chunks(1 << 20) {
            wait(writer.write(Bytes::copy_from_slice(piece))).unwrap();
        }
        assert_eq!(names(directory.path()), [""; 0]);
    }
    wait(given_up.abort()).unwrap();
    wait(given_up.abort()).unwrap();
    drop(dropped);
    assert!(wait(given_up.write(content(1))).unwrap_err().to_string().contains("create it again"));
    let made = wait(kept.finish()).unwrap();
    assert_eq!(made.version.unwrap().size, LARGE as u64);
    assert!(wait(kept.finish()).is_err());
    assert!(std::fs::read(directory.path().join("file")).unwrap() == content(LARGE));
    // What was on its way is gone in the end, also of the one that was dropped.
    let began = Instant::now();
    while std::fs::read_dir(directory.path()).unwrap().count() > 1 {
        assert!(began.elapsed() < SOON, "parts of an upload stay");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_is_to_be_new_is_refused_where_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    let put = |path: &str| wait(Arc::clone(&session).put(path.into(), content(3), Existing::Kept));
    put("/new").unwrap();
    let refused = put("/new").unwrap_err();
    assert_eq!((refused.errno, refused.path.as_deref()), (libc::EEXIST, Some(&b"/new"[..])));
    // Made by somebody else, and never asked about here.
    std::fs::write(directory.path().join("theirs"), "").unwrap();
    assert_eq!(put("/theirs").unwrap_err().errno, libc::EEXIST);
}

#[test]
fn a_file_of_several_parts_that_is_to_be_new_does_not_replace_what_came_while_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    let writer = wait(Arc::clone(&session).create(b"/file".to_vec(), Existing::Kept)).unwrap();
    wait(writer.write(content(LARGE))).unwrap();
    // Somebody else makes it, and is told so.
    std::fs::write(directory.path().join("file"), "theirs").unwrap();
    assert_eq!(wait(writer.finish()).unwrap_err().errno, libc::EEXIST);
    assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), b"theirs");
}

#[test]
fn names_are_copied_and_removed_and_errors_are_those_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[]);
    let session = || Arc::clone(&session);
    let errno = |error: Error| error.errno;
    std::os::unix::fs::symlink("a", directory.path().join("alias")).unwrap();
    put(&session(), "/a/1", &content(1000)).unwrap();
    wait(session().copy(b"/a/1".to_vec(), b"/b/2".to_vec())).unwrap();
    assert_eq!(read(&session(), "/b/2", 2000), &content(1000)[..]);
    for itself in ["/a/1", "/alias/1"] {
        let refused = wait(session().copy(b"/a/1".to_vec(), itself.into())).map(drop).map_err(errno);
        assert_eq!(refused, Err(libc::EINVAL), "{itself}");
    }
    assert_eq!(read(&session(), "/a/1", 2000), &content(1000)[..]);
    std::fs::remove_file(directory.path().join("alias")).unwrap();
    assert_eq!(wait(session().copy(b"/no".to_vec(), b"/c".to_vec())).map(drop).map_err(errno), Err(libc::ENOENT));
    assert_eq!(wait(session().copy(b"/a".to_vec(), b"/c".to_vec())).map(drop).map_err(errno), Err(libc::EISDIR));
    assert_eq!(wait(session().remove(b"/a".to_vec())).map_err(errno), Err(libc::EISDIR));
    assert_eq!(wait(session().remove_directory(b"/a".to_vec())).map_err(errno), Err(libc::ENOTEMPTY));
    wait(session().remove(b"/a/1".to_vec())).unwrap();
    assert_eq!(wait(session().remove(b"/a/1".to_vec())).map_err(errno), Err(libc::ENOENT));
    wait(session().remove_directory(b"/a".to_vec())).unwrap();
    wait(session().make_directory(b"/d/e".to_vec())).unwrap();
    assert_eq!(wait(session().make_directory(b"/d/e".to_vec())).map(drop).map_err(errno), Err(libc::EEXIST));
    assert_eq!(names(directory.path()), ["b", "d"]);
}

#[test]
fn a_session_that_takes_no_changes_says_so_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let session = started(directory.path(), &[("write.mode", "none")]);
    let refused = wait(Arc::clone(&session).create(b"/file".to_vec(), Existing::Replaced)).err().unwrap();
    assert_eq!(refused.errno, libc::EROFS, "{refused}");
    assert_eq!(wait(Arc::clone(&session).remove(b"/file".to_vec())).unwrap_err().errno, libc::EROFS);
    assert_eq!(wait(session.make_directory(b"/d".to_vec())).unwrap_err().errno, libc::EROFS);
}

#[test]
fn a_read_that_fails_leaves_the_others_of_its_batch_alone() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), content(100)).unwrap();
    std::fs::create_dir(directory.path().join("directory")).unwrap();
    let session = started(directory.path(), &[]);
    // Cold, and then from memory.
    for _ in 0..2 {
        let reads = [("/file", 10, 5), ("/missing", 0, 5), ("/directory", 0, 5), ("/missing", 5, 5), ("/file", 98, 5)];
        let errnos: Vec<_> =
            read_by(&session, &reads).into_iter().map(|found| found.map_err(|error| error.errno)).collect();
        let (missing, directory) = (Err(libc::ENOENT), Err(libc::EISDIR));
        let content = content(100);
        assert_eq!(
            errnos,
            [Ok(content[10..15].to_vec()), missing.clone(), directory, missing, Ok(content[98..].to_vec())]
        );
    }
}

#[test]
fn files_are_opened_together_and_each_says_why_not() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), content(100)).unwrap();
    let session = started(directory.path(), &[]);
    let open = |revalidate| {
        let paths = [&b"/file"[..], b"/missing"].map(<[u8]>::to_vec).to_vec();
        let opened = wait(Arc::clone(&session).open_each(paths, revalidate)).unwrap();
        opened
            .into_iter()
            .map(|file| file.map(|file| file.version().size).map_err(|error| error.errno))
            .collect::<Vec<_>>()
    };
    assert_eq!(open(false), [Ok(100), Err(libc::ENOENT)]);
    std::fs::write(directory.path().join("file"), content(50)).unwrap();
    assert_eq!(open(true), [Ok(50), Err(libc::ENOENT)]);
}
