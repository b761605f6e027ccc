//! A session of a program, with a worker of a directory in its process.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use forebay_session::runtime::runtime;
use forebay_session::{CallerMemory, Entry, Error, ErrorClass, FetchTo, Place, Range, Read, Session, Settings, Within};

const SOON: Duration = Duration::from_secs(60);
const LARGE: usize = (9 << 20) + 123;

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn origin() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("large"), content(LARGE)).unwrap();
    std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
    for name in ["a/1", "a/b/2"] {
        std::fs::write(directory.path().join(name), name).unwrap();
    }
    directory
}

fn settings(directory: &Path, more: &[(&str, &str)]) -> Settings {
    let small = [("worker_memory_size", "64MiB"), ("worker.memory.prewarm", "false")];
    let more = small.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Settings { up: Some(directory.display().to_string()), more, ..Settings::default() }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    runtime().unwrap().block_on(async { tokio::time::timeout(SOON, work).await.expect("it does not hang") })
}

fn started(directory: &Path, more: &[(&str, &str)]) -> Arc<Session> {
    wait(Session::start(settings(directory, more))).unwrap()
}

/// What reads of `(place, offset, length)` bring.
fn read(session: &Arc<Session>, reads: &[(Place, u64, usize)]) -> Result<Vec<Vec<u8>>, Error> {
    let mut buffers: Vec<Vec<u8>> = reads.iter().map(|(_, _, length)| vec![0; *length]).collect();
    let into = |(buffer, (place, offset, _)): (&mut Vec<u8>, &(Place, u64, usize))| {
        let start = NonNull::new(buffer.as_mut_ptr()).unwrap();
        // SAFETY: the buffer is not looked at before the read has ended.
        Read { place: place.clone(), offset: *offset, into: unsafe { CallerMemory::new(start, buffer.len()) } }
    };
    let all = buffers.iter_mut().zip(reads).map(into).collect();
    let counts = wait(Arc::clone(session).read(all))?;
    buffers.iter_mut().zip(counts).for_each(|(buffer, count)| buffer.truncate(count));
    Ok(buffers)
}

fn path(path: &str) -> Place {
    Place::Path(path.into())
}

#[test]
fn a_batch_brings_every_range_of_paths_and_of_files() {
    let (directory, large) = (origin(), content(LARGE));
    let session = started(directory.path(), &[]);
    let (file, entry) = wait(Arc::clone(&session).open(b"/large".to_vec())).unwrap();
    assert_eq!(entry.version.unwrap().size, LARGE as u64);
    let ranges = [(0, LARGE + 7), (5, 10), ((4 << 20) - 3, 6), (LARGE - 4, 100), (LARGE + 1, 5), (1 << 20, 0)];
    // Cold, and then from memory.
    for _ in 0..2 {
        let reads: Vec<_> = ranges
            .iter()
            .flat_map(|(at, length)| {
                [path("/large"), Place::File(Arc::clone(&file))].map(|place| (place, *at as u64, *length))
            })
            .collect();
        let found = read(&session, &reads).unwrap();
        for (found, (_, at, length)) in found.iter().zip(&reads) {
            let at = (*at as usize).min(LARGE);
            assert!(*found == large[at..(at + length).min(LARGE)], "{length} bytes at {at}");
        }
    }
    wait(Arc::clone(&session).close()).unwrap();
}

#[test]
fn errors_have_errno_and_path_and_a_batch_ends_with_the_first() {
    let directory = origin();
    let session = started(directory.path(), &[]);
    let missing = read(&session, &[(path("/large"), 0, 5), (path("/missing"), 0, 5)]).unwrap_err();
    assert_eq!((missing.errno, missing.path.as_deref()), (libc::ENOENT, Some(&b"/missing"[..])));
    let directory = read(&session, &[(path("/a"), 0, 5)]).unwrap_err();
    assert_eq!((directory.errno, directory.class), (libc::EISDIR, ErrorClass::System));
    assert!(session.reopen(b"nonsense", 1).is_err());
}

#[test]
fn names_are_listed_and_walked_once() {
    let directory = origin();
    let session = started(directory.path(), &[]);
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut listed: Vec<_> = wait(Arc::clone(&session).list(b"/".to_vec())).unwrap();
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(listed.iter().map(|entry| shown(&entry.path)).collect::<Vec<_>>(), ["/a", "/large"]);
    let walk = session.walk(b"/a", Within::default()).unwrap();
    let mut found = Vec::new();
    while let Some(page) = wait(walk.next_page()).unwrap() {
        found.extend(page.into_iter().map(|entry| shown(&entry.path)));
    }
    found.sort();
    assert_eq!(found, ["/a/1", "/a/b", "/a/b/2"]);
}

#[test]
fn a_walk_stays_within_what_is_wanted() {
    let directory = origin();
    let session = started(directory.path(), &[]);
    let found = |path: &[u8], depth: Option<usize>, prefix: &str| {
        let walk = session.walk(path, Within { depth, prefix: prefix.into() }).unwrap();
        let mut found = Vec::new();
        while let Some(page) = wait(walk.next_page()).unwrap() {
            found.extend(page.into_iter().map(|entry| String::from_utf8(entry.path).unwrap()));
        }
        found.sort();
        found
    };
    assert_eq!(found(b"/", Some(1), ""), ["/a", "/large"]);
    assert_eq!(found(b"/", Some(2), ""), ["/a", "/a/1", "/a/b", "/large"]);
    assert_eq!(found(b"/", None, "/a/b"), ["/a/b", "/a/b/2"]);
    assert_eq!(found(b"/", Some(2), "/a/b"), ["/a/b"]);
    assert_eq!(found(b"/large", Some(1), "/l"), ["/large"]);
    assert!(found(b"/large", None, "/x").is_empty() && found(b"/", None, "/x").is_empty());
}

#[test]
fn a_directory_that_goes_away_during_a_walk_hides_nothing_beside_it() {
    let directory = origin();
    for name in ["c", "d"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
        std::fs::write(directory.path().join(name).join("1"), "1").unwrap();
    }
    let session = started(directory.path(), &[]);
    let walk = session.walk(b"/", Within::default()).unwrap();
    let shown = |entry: Entry| String::from_utf8_lossy(&entry.path).into_owned();
    let mut found: Vec<_> = wait(walk.next_page()).unwrap().unwrap().into_iter().map(shown).collect();
    // The first directory was listed by its name, and is what is looked into next.
    let gone = found.last().unwrap().clone();
    std::fs::remove_dir_all(directory.path().join(gone.trim_start_matches('/'))).unwrap();
    while let Some(page) = wait(walk.next_page()).unwrap() {
        found.extend(page.into_iter().map(shown));
    }
    for name in ["/a", "/c", "/d", "/large"] {
        assert!(found.iter().any(|found| found == name), "{name} in {found:?}");
    }
    for file in ["/a/1", "/a/b/2", "/c/1", "/d/1"] {
        let is_there = found.iter().any(|found| found == file);
        assert_eq!(is_there, !file.starts_with(&gone), "{file} in {found:?}");
    }
}

#[test]
fn a_walk_through_many_directories_has_each_name_once_and_right_behind_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    // More in one than are asked for ahead, some empty, and some that are no more than the way to others.
    for year in 0..3 {
        expected.push(format!("/{year}"));
        for month in 0..40 {
            let at = format!("/{year}/{month:02}");
            std::fs::create_dir_all(directory.path().join(&at[1..])).unwrap();
            expected.push(at.clone());
            for day in 0..month % 3 {
                let file = format!("{at}/{day}");
                std::fs::write(directory.path().join(&file[1..]), b"").unwrap();
                expected.push(file);
            }
        }
    }
    let session = started(directory.path(), &[]);
    let walk = session.walk(b"/", Within::default()).unwrap();
    let mut found = Vec::new();
    while let Some(page) = wait(walk.next_page()).unwrap() {
        found.extend(page.into_iter().map(|entry| String::from_utf8(entry.path).unwrap()));
    }
    for (at, name) in found.iter().enumerate() {
        let (above, _) = name.rsplit_once('/').unwrap();
        // What is before a name is in the same directory, below it, or the directory itself.
        assert!(
            at == 0 || above.is_empty() || found[at - 1].starts_with(above),
            "{name} after {}",
            found[at.max(1) - 1]
        );
    }
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    // One that is left in the middle ends what it has asked for.
    let left = session.walk(b"/", Within::default()).unwrap();
    wait(left.next_page()).unwrap();
    wait(left.next_page()).unwrap();
    drop(left);
    wait(Arc::clone(&session).close()).unwrap();
}

#[test]
fn a_view_of_a_path_is_as_long_as_what_is_there_now() {
    let (directory, longer) = (origin(), vec![7; LARGE + 10_000]);
    let session = started(directory.path(), &[("client_prefetch_max_part_number", "0")]);
    // The path is known, and nothing of the end of the file was read.
    wait(Arc::clone(&session).open(b"/large".to_vec())).unwrap();
    std::fs::write(directory.path().join("next"), &longer).unwrap();
    std::fs::rename(directory.path().join("next"), directory.path().join("large")).unwrap();
    let view = wait(Arc::clone(&session).view(path("/large"), LARGE as u64 - 10, 5000)).unwrap();
    assert_eq!(view.bytes(), &longer[..5000]);
}

#[test]
fn a_path_leads_to_the_new_version_and_a_file_to_estale() {
    let directory = origin();
    let session = started(directory.path(), &[("client_prefetch_max_part_number", "0")]);
    let (file, _) = wait(Arc::clone(&session).open(b"/large".to_vec())).unwrap();
    let old = content(LARGE);
    assert_eq!(read(&session, &[(Place::File(Arc::clone(&file)), 0, 10)]).unwrap(), [&old[..10]]);
    std::fs::write(directory.path().join("next"), [7; 1000]).unwrap();
    std::fs::rename(directory.path().join("next"), directory.path().join("large")).unwrap();
    // Of the old version nothing of the last block was ever read.
    let end = LARGE as u64 - 10;
    let stale = read(&session, &[(Place::File(file), end, 10)]).unwrap_err();
    assert_eq!(stale.errno, libc::ESTALE, "{stale}");
    assert_eq!(read(&session, &[(path("/large"), end, 10)]).unwrap(), [b""]);
    assert_eq!(read(&session, &[(path("/large"), 0, 2000)]).unwrap(), [[7_u8; 1000]]);
}

#[test]
fn a_view_outlives_its_session_and_what_it_shows_stays() {
    let (directory, large) = (origin(), content(LARGE));
    let session = started(directory.path(), &[]);
    let view = |at, length| wait(Arc::clone(&session).view(path("/large"), at, length)).unwrap();
    let (first, across, end) = (view(10, 1000), view((4 << 20) - 5, 10), view(LARGE as u64 - 5, 100));
    assert!(!first.is_copy() && across.is_copy());
    wait(Arc::clone(&session).close()).unwrap();
    assert!(first.bytes() == &large[10..1010] && end.bytes() == &large[LARGE - 5..]);
    assert_eq!(across.bytes(), &large[(4 << 20) - 5..(4 << 20) + 5]);
}

#[test]
fn what_was_fetched_is_read_without_waiting_and_one_that_fails_holds_up_no_other() {
    let directory = origin();
    let session = started(directory.path(), &[]);
    let range = |place, offset, length| Range { place, offset, length };
    let middle = 5 << 20;
    let ranges =
        vec![range(path("/missing"), 0, 1), range(path("/large"), middle, 1 << 20), range(path("/a/1"), 0, 99)];
    let failed = wait(Arc::clone(&session).fetch(ranges, FetchTo::Here)).unwrap_err();
    assert_eq!((failed.errno, failed.path.as_deref()), (libc::ENOENT, Some(&b"/missing"[..])));
    let (file, _) = wait(Arc::clone(&session).open(b"/large".to_vec())).unwrap();
    assert_eq!(
        file.try_look(middle, 1 << 20, |parts| parts.concat()).unwrap(),
        content(LARGE)[middle as usize..][..1 << 20]
    );
    wait(Arc::clone(&session).fetch(vec![range(Place::File(file), 0, u64::MAX)], FetchTo::Workers)).unwrap();
    assert_eq!(read(&session, &[(path("/large"), 0, LARGE)]).unwrap(), [content(LARGE)]);
}

#[test]
fn short_reads_of_a_batch_that_lie_close_together_come_with_what_lies_between() {
    let (directory, large) = (origin(), content(LARGE));
    let between = |reads: &[u64], max_gap| {
        let session = started(directory.path(), &[("client.prefetch.max_part_number", "0")]);
        let (file, _) = wait(Arc::clone(&session).open(b"/large".to_vec())).unwrap();
        let mut buffers = vec![vec![0; 4096]; reads.len()];
        let into = |(buffer, offset): (&mut Vec<u8>, &u64)| {
            let start = NonNull::new(buffer.as_mut_ptr()).unwrap();
            // SAFETY: the buffer is not looked at before the read has ended.
            let into = unsafe { CallerMemory::new(start, buffer.len()) };
            Read { place: Place::File(Arc::clone(&file)), offset: *offset, into }
        };
        let all = buffers.iter_mut().zip(reads).map(into).collect();
        let counts = wait(Arc::clone(&session).read_each(all, max_gap)).unwrap();
        assert!(counts.into_iter().all(|count| count.unwrap() == 4096));
        for (buffer, offset) in buffers.iter().zip(reads) {
            assert!(*buffer == large[*offset as usize..][..4096], "{offset}");
        }
        file.try_read((1 << 20) + (192 << 10), 4096).is_some()
    };
    // The second one is 396 KiB behind the first, and the third one in another block.
    let (first, second, third) = (1 << 20, (1 << 20) + (400 << 10), 5 << 20);
    assert!(between(&[second, third, first], None));
    assert!(!between(&[second, third, first], Some(256 << 10)));
    assert!(!between(&[first, third], None));
    assert!(!between(&[first], None));
    // 1 MiB is too far.
    assert!(!between(&[first, second + (624 << 10)], None));
}

#[test]
fn a_start_that_nobody_waits_for_ends_what_it_started() {
    let directory = origin();
    let given_up = runtime().unwrap().block_on(async {
        // Polled once: the thread of the node runs by then.
        tokio::time::timeout(Duration::ZERO, Session::start(settings(directory.path(), &[]))).await
    });
    assert!(given_up.is_err());
    // It takes nothing along that the next one needs.
    let session = started(directory.path(), &[]);
    assert_eq!(read(&session, &[(path("/a/1"), 0, 3)]).unwrap(), [b"a/1"]);
    drop(session);
}
