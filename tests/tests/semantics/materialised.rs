//! "Writing", where the kernel reads a materialised copy.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::{Ends, eventually, skipped};
use forebay_testkit::Fault;
use rustix::fs::{Mode, OFlags};

use super::{One, SOON, bytes, close, truncate};

const SIZE: usize = (5 << 20) + 123;

/// A mount that materialises every file when it is first opened, with a file `f`; `None` where the kernel passes none through.
fn one() -> Option<(One, Vec<u8>)> {
    let one = One::with(|setup| {
        setup.options(&["client.local.size=128MiB", "client.local.min_opens=1", "client.local.first_open_size=64MiB"])
    });
    let local = one.mount.own_stats()["local"].clone();
    if local["on"] != true {
        skipped(&format!("the kernel passes no files through here: {}", local["why_off"]));
        return None;
    }
    let content = bytes(1, SIZE);
    std::fs::write(one.bucket.path_of("f"), &content).unwrap();
    Some((one, content))
}

fn all_of(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// A handle that the kernel reads by itself.
fn passed(one: &One, name: &str) -> File {
    let before = one.mount.own_stats()["local"]["handles"]["passed"].as_u64().unwrap();
    let file = File::open(one.path(name)).unwrap();
    assert_eq!(one.mount.own_stats()["local"]["handles"]["passed"].as_u64(), Some(before + 1));
    file
}

/// > If the kernel reads a materialised copy (`client.local.size`), a file that is open for reading stays the opened version when another process writes to it; every later open sees the written bytes.
#[test]
fn a_writer_gets_an_inode_of_its_own_and_readers_keep_their_version() {
    let Some((one, old)) = one() else { return };
    let reader = passed(&one, "f");
    let writer = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    writer.write_all_at(b"new", 7).unwrap();
    let mut new = old.clone();
    new[7..10].copy_from_slice(b"new");
    let late = File::open(one.path("f")).unwrap();
    assert!(all_of(&late) == new, "what was opened since");
    assert!(all_of(&reader) == old);
    assert_ne!(late.metadata().unwrap().ino(), reader.metadata().unwrap().ino());
    close(writer).unwrap();
    assert!(one.object("f").unwrap() == new);
    assert!(all_of(&reader) == old, "to its end");
    assert!(std::fs::read(one.path("f")).unwrap() == new);
    assert_eq!(one.mount.own_stats()["local"]["splits"].as_u64(), Some(1));
    drop((reader, late));
    eventually("what was written is passed through, too", SOON, || {
        let before = one.mount.own_stats()["local"]["handles"]["passed"].as_u64();
        assert!(std::fs::read(one.path("f")).unwrap() == new);
        one.mount.own_stats()["local"]["handles"]["passed"].as_u64() > before
    });
}

#[test]
fn a_file_that_the_kernel_reads_is_truncated_by_its_name() {
    let Some((one, old)) = one() else { return };
    let reader = passed(&one, "f");
    for size in [SIZE / 2, 0] {
        truncate(&one.path("f"), size as u64);
        assert!(one.object("f").unwrap() == old[..size]);
        assert!(std::fs::read(one.path("f")).unwrap() == old[..size]);
        assert!(all_of(&reader) == old);
    }
}

#[test]
fn a_file_that_the_kernel_reads_is_renamed_and_removed() {
    let Some((one, old)) = one() else { return };
    let reader = passed(&one, "f");
    std::fs::rename(one.path("f"), one.path("g")).unwrap();
    assert!(all_of(&reader) == old);
    let again = File::open(one.path("g")).unwrap();
    assert!(all_of(&again) == old);
    std::fs::write(one.path("f"), b"another").unwrap();
    std::fs::rename(one.path("f"), one.path("g")).unwrap();
    assert_eq!(std::fs::read(one.path("g")).unwrap(), b"another");
    assert!(all_of(&reader) == old && all_of(&again) == old);
    std::fs::remove_file(one.path("g")).unwrap();
    assert!(all_of(&reader) == old);
    assert!(File::open(one.path("g")).is_err());
}

/// The kernel has no lock on a directory that is renamed: files in it are opened meanwhile.
#[test]
fn what_is_written_goes_along_with_its_directory_also_where_its_writer_got_an_inode_of_its_own() {
    let Some((one, old)) = one() else { return };
    std::fs::create_dir(one.bucket.path_of("from")).unwrap();
    std::fs::write(one.bucket.path_of("from/f"), &old).unwrap();
    let reader = passed(&one, "from/f");
    let directory = File::open(one.path("from")).unwrap();
    let proxy = one.bucket.proxy();
    // Copies are made, and their answers wait.
    proxy.inject_changes(1000, Fault::Stall { after: 0 });
    let writer = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| std::fs::rename(one.path("from"), one.path("to")));
        eventually("it is copied", SOON, || one.object("to/f").is_some());
        let writer = rustix::fs::openat(&directory, "f", OFlags::WRONLY, Mode::empty());
        proxy.heal();
        eventually("it is renamed", SOON, || {
            // An answer may have begun to wait since.
            proxy.release();
            renaming.is_finished()
        });
        renaming.join().unwrap().unwrap();
        File::from(writer.unwrap())
    });
    writer.write_all_at(b"new", 7).unwrap();
    close(writer).unwrap();
    let mut new = old.clone();
    new[7..10].copy_from_slice(b"new");
    assert!(one.object("to/f").unwrap() == new && one.object("from/f").is_none());
    assert!(std::fs::read(one.path("to/f")).unwrap() == new);
    assert!(all_of(&reader) == old, "to its end");
    assert_eq!(one.mount.own_stats()["local"]["splits"].as_u64(), Some(1));
}

#[test]
fn many_writers_come_while_readers_have_it_open() {
    let Some((one, _)) = one() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let one = &one;
            scope.spawn(move || {
                for round in 0..12 {
                    let reader = File::open(one.path("f")).unwrap();
                    let content = all_of(&reader);
                    assert!(content.len() == SIZE && content[16..] == bytes(1, SIZE)[16..]);
                    // No writer is ever turned away, however often the file is opened for reading in between.
                    let writer = OpenOptions::new().write(true).open(one.path("f")).unwrap();
                    writer.write_all_at(&[round as u8; 2], thread * 2).unwrap();
                    drop(reader);
                    close(writer).unwrap();
                }
            });
        }
    });
    assert!(one.object("f").unwrap()[..8] == [11; 8]);
}

#[test]
fn a_writer_comes_again_and_again_between_readers_that_come_and_go() {
    let Some((one, old)) = one() else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Read whole, which makes it worth passing through. What the kernel looks up it forgets soon.
                    let read = std::fs::read(one.path("f")).unwrap();
                    assert!(read.len() == SIZE && read[1..] == old[1..]);
                }
            });
        }
        for round in 0..100 {
            std::thread::sleep(Duration::from_millis(20));
            let writer = OpenOptions::new().write(true).open(one.path("f"));
            let writer = writer.unwrap_or_else(|error| panic!("{round}: {error}"));
            writer.write_all_at(&[round as u8], 0).unwrap();
            close(writer).unwrap();
        }
    });
    assert!(one.object("f").unwrap()[0] == 99);
}
