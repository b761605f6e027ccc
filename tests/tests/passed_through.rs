//! What goes wrong while the kernel reads files by itself, as it does by default: flipped bits, an origin that is gone, objects that are
//! replaced, writers beside readers, processes that are killed or replaced. Each test has seen that the kernel was what read.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use forebay_e2e::mapping::Mapping;
use forebay_e2e::passing::{materialised, open_passed, passed, passing, until_passed};
use forebay_e2e::{Bucket, Mount, can_survive, close, ended, eventually, once, signal};
use forebay_testkit::DataSet;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const OLD: DataSet = DataSet::new(31);
const NEW: DataSet = DataSet::new(32);
/// Large enough to be adopted, in more than one block.
const SIZE: u64 = 9 * MIB + 777;

fn old() -> Vec<u8> {
    OLD.expected(0..SIZE)
}

/// A mount whose file `a` the kernel reads; `None` where it passes none through.
fn mounted(settings: &[&str]) -> Option<(Mount, Bucket)> {
    let bucket = Bucket::new();
    bucket.put("a", OLD, SIZE);
    let mount = passing(&bucket, settings)?;
    until_passed(&mount, "a", &old());
    Some((mount, bucket))
}

fn all_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn byte_of(file: &File, at: u64) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0]
}

/// Sectors of materialised files that were found wrong.
fn corrupt_sectors(mount: &Mount) -> u64 {
    mount.own_stats()["local"]["corrupt_sectors"].as_u64().expect("a count")
}

/// > If a byte of a materialised copy changes in memory, a program that has the file open may read it until it closes the file; an
/// > open after the next check of the copy (`client.local.check_interval`) reads the right one.
#[test]
fn a_flipped_bit_is_seen_by_who_has_the_file_open_and_by_nobody_else_once_it_was_checked() {
    const AT: u64 = 5 * MIB + 5;
    let Some((mount, _bucket)) = mounted(&["client.local.check_interval=1s"]) else { return };
    let open = open_passed(&mount, "a");
    let wrong = !old()[AT as usize];
    materialised(&mount, SIZE).write_all_at(&[wrong], AT).unwrap();
    assert_eq!(byte_of(&open, AT), wrong, "nobody checks what the kernel reads");
    eventually("who opens it reads what is right", SOON, || std::fs::read(mount.path("a")).unwrap() == old());
    eventually("somebody is told", SOON, || mount.log_text().contains("may read wrong bytes"));
    let mapping = Mapping::of(&mount.path("a"), SIZE as usize).unwrap();
    assert!(mapping.read(0..SIZE as usize).unwrap() == old(), "and who maps it");
    assert!(std::fs::read(mount.path("a")).unwrap() == old());
    assert_eq!(byte_of(&open, AT), wrong, "an open handle keeps what it has");
    drop((open, mapping));
    until_passed(&mount, "a", &old());
}

/// > If a byte of a materialised copy changes in memory, a worker that checks it (`worker.memory.verify_interval`) reads the right one
/// > from the origin, and the copy is dropped.
#[test]
fn a_flipped_bit_is_never_read_from_the_worker_whose_blocks_lie_in_the_file_and_ends_the_file() {
    let Some((mount, bucket)) = mounted(&["client.local.check_interval=0", "worker.memory.verify_interval=0"]) else {
        return;
    };
    eventually("the worker's own copy is gone", SOON, || mount.counter("/store/memory/runs") == 0);
    let gets = bucket.gets();
    materialised(&mount, SIZE).write_all_at(&[!old()[12_345]], 12_345).unwrap();
    assert!(mount.ask_of("a", &["fs", "cat"]).succeeded().stdout == old(), "it checks what it reads");
    assert!(bucket.gets() > gets, "and fetches what is wrong");
    eventually("the kernel gets the file no more", SOON, || corrupt_sectors(&mount) > 0);
    eventually("it is right", SOON, || std::fs::read(mount.path("a")).unwrap() == old());
    until_passed(&mount, "a", &old());
}

#[test]
fn readers_that_the_kernel_serves_notice_nothing_of_an_origin_that_is_gone() {
    let Some((mount, bucket)) = mounted(&["metadata.ttl=1h"]) else { return };
    // Names and attributes are believed for an hour.
    let open = open_passed(&mount, "a");
    bucket.proxy().stop();
    for _ in 0..20 {
        assert!(all_of(&open) == old());
        let again = open_passed(&mount, "a");
        assert!(all_of(&again) == old());
    }
    bucket.proxy().resume().unwrap();
}

#[test]
fn an_object_that_is_replaced_is_read_as_it_was_by_who_has_it_open_and_anew_by_the_next() {
    let Some((mount, bucket)) = mounted(&["metadata.ttl=0"]) else { return };
    let open = open_passed(&mount, "a");
    let mapping = Mapping::of(&mount.path("a"), SIZE as usize).unwrap();
    bucket.put("a", NEW, SIZE - MIB);
    let new = NEW.expected(0..SIZE - MIB);
    eventually("the next one reads the new object", SOON, || match std::fs::read(mount.path("a")) {
        Ok(bytes) => {
            assert!(bytes == new || bytes == old(), "a mix");
            bytes == new
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
            false
        }
    });
    until_passed(&mount, "a", &new);
    assert!(all_of(&open) == old());
    assert!(mapping.read(0..SIZE as usize).unwrap() == old());
    drop(open);
    assert!(mapping.read(0..SIZE as usize).unwrap() == old(), "a mapping outlives its handle");
    drop(mapping);
    eventually("what it took is given back", SOON, || {
        let of_files = mount.own_stats()["local"]["bytes"].clone();
        ["leaving", "lingering"].iter().all(|of| of_files[of] == 0)
    });
}

#[test]
fn an_object_that_is_replaced_again_and_again_is_read_as_one_version_or_estale_and_by_the_kernel_now_and_then() {
    const VERSIONS: u64 = 12;
    let Some((mount, bucket)) = mounted(&["metadata.ttl=0"]) else { return };
    let version = |number: u64| DataSet::new(4000 + number);
    let before = passed(&mount);
    for number in 0..VERSIONS {
        bucket.put("a", version(number), SIZE);
        for _ in 0..6 {
            match std::fs::read(mount.path("a")) {
                Ok(bytes) => {
                    assert_eq!(bytes.len() as u64, SIZE);
                    let of = (0..=number)
                        .map(version)
                        .chain([OLD])
                        .find(|of| of.first_difference(0, &bytes[..64]).is_none());
                    let of = of.expect("the start of some version");
                    assert_eq!(of.first_difference(0, &bytes), None, "a mix");
                }
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
            }
        }
    }
    until_passed(&mount, "a", &version(VERSIONS - 1).expected(0..SIZE));
    assert!(passed(&mount) > before);
}

#[test]
fn a_writer_beside_readers_that_the_kernel_serves_leaves_them_their_version() {
    let Some((mount, bucket)) = mounted(&[]) else { return };
    let mut right = old();
    // Whatever a name with a writer leads to is not passed through for some seconds.
    for round in 1..3_u8 {
        let (reader, read) = (open_passed(&mount, "a"), right.clone());
        let writer = OpenOptions::new().write(true).open(mount.path("a")).unwrap();
        let at = u64::from(round) * 2 * MIB + 17;
        writer.write_all_at(&[round; 5], at).unwrap();
        right[at as usize..at as usize + 5].fill(round);
        assert!(all_of(&File::open(mount.path("a")).unwrap()) == right, "what was opened since");
        assert!(all_of(&reader) == read);
        close(writer).unwrap();
        assert!(all_of(&reader) == read, "to its end");
        assert!(std::fs::read(bucket.path_of("a")).unwrap() == right);
        drop(reader);
        until_passed(&mount, "a", &right);
    }
}

/// The memory of the next process is another one's: what is open goes on in that of the one before.
#[test]
fn what_the_kernel_reads_goes_on_when_another_process_takes_the_mount_over() {
    let Some((mut mount, _bucket)) = mounted(&[]) else { return };
    let open = open_passed(&mount, "a");
    let mapping = Mapping::of(&mount.path("a"), SIZE as usize).unwrap();
    for _ in 0..2 {
        let before = mount.pid();
        let _ = mount.replace(&[]).succeeded();
        eventually("the process before has ended", SOON, || ended(before));
        assert!(all_of(&open) == old());
        assert!(mapping.read(3 * MIB as usize..8 * MIB as usize).unwrap() == old()[3 * MIB as usize..8 * MIB as usize]);
        assert!(std::fs::read(mount.path("a")).unwrap() == old(), "the next one's daemon serves it beside that");
    }
    drop((open, mapping));
    until_passed(&mount, "a", &old());
}

#[test]
fn what_the_kernel_reads_goes_on_when_the_process_is_killed() {
    if !can_survive() {
        return;
    }
    let Some((mount, _bucket)) = mounted(&["fuse.survive_crash=true"]) else { return };
    let open = open_passed(&mount, "a");
    let mapping = Mapping::of(&mount.path("a"), SIZE as usize).unwrap();
    let killed = once("a process serves the mount", SOON, || mount.served_by());
    signal(killed, Signal::KILL);
    assert!(all_of(&open) == old(), "no process is needed for that");
    assert!(mapping.read(0..SIZE as usize).unwrap() == old());
    eventually("another process serves the mount", SOON, || mount.served_by().is_some_and(|pid| pid != killed));
    assert!(std::fs::read(mount.path("a")).unwrap() == old());
    drop((open, mapping));
    until_passed(&mount, "a", &old());
}
