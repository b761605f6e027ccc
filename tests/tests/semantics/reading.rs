//! "Reading".

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use forebay_e2e::eventually;
use forebay_e2e::mapping::Mapping;

use super::{One, SOON, TTL, Two, bytes, errno};

/// > A file that is open for reading is one version of the object: a read returns bytes of that version, or fails with `ESTALE` if the object was replaced and the bytes are not cached.
#[test]
fn a_handle_never_shows_another_version() {
    let one = One::with(|setup| setup.option("metadata.ttl=0"));
    let (old, new) = (bytes(1, 9 << 20), bytes(2, 9 << 20));
    std::fs::write(one.path("f"), &old).unwrap();
    let file = std::fs::File::open(one.path("f")).unwrap();
    let mut start = vec![0; 4096];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, old[..4096]);
    std::fs::write(one.bucket.path_of("f"), &new).unwrap();
    let mut end = vec![0; 4096];
    match file.read_exact_at(&mut end, 8 << 20) {
        Ok(()) => assert_eq!(end, old[8 << 20..][..4096]),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    }
}

/// > An open after the file was replaced elsewhere reads the new version once `metadata.ttl` has passed. An open that detects the replacement earlier switches to the new version by itself.
#[test]
fn an_open_after_the_ttl_finds_the_new_version() {
    let two = Two::new();
    std::fs::write(two.a.path("f"), b"old").unwrap();
    assert_eq!(std::fs::read(two.b.path("f")).unwrap(), b"old");
    two.bucket.put_text("f", "replaced");
    eventually("the new version", SOON.max(10 * TTL), || std::fs::read(two.b.path("f")).unwrap() == b"replaced");
}

/// > A read returns all the bytes that were requested, except at the end of the file, or if the object was replaced while it was open: then it may end before the first byte that is no longer available, and the next read there fails with `ESTALE`.
///
/// > No read returns bytes of two versions, even if the kernel splits it into several requests.
#[test]
fn a_read_over_a_replacement_ends_before_what_is_gone_or_fails() {
    let one = One::with(|setup| setup.options(&["metadata.ttl=0", "block.size=256KiB"]));
    let (old, new) = (bytes(5, 32 << 20), bytes(6, 32 << 20));
    for (name, read_size) in [("a", 1 << 20), ("b", 4 << 20)] {
        std::fs::write(one.bucket.path_of(name), &old).unwrap();
        let file = std::fs::File::open(one.path(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut start = vec![0; 4096];
        file.read_exact_at(&mut start, 0).unwrap();
        std::fs::write(one.bucket.path_of(name), &new).unwrap();
        // Over the part that was read before, and to the end: what is cached is as it was, and the rest is gone.
        let (mut at, mut into) = (0, vec![0; read_size]);
        let gone = loop {
            match file.read_at(&mut into, at as u64) {
                Ok(0) => panic!("all of it is cached: nothing was shown"),
                Ok(read) => {
                    assert!(into[..read] == old[at..at + read], "other bytes at {at}");
                    at += read;
                }
                Err(error) => break error,
            }
        };
        assert_eq!(gone.raw_os_error(), Some(libc::ESTALE), "at {at}");
    }
}

/// > A read returns all the bytes that were requested, except at the end of the file, or if the object was replaced while it was open: then it may end before the first byte that is no longer available, and the next read there fails with `ESTALE`.
#[test]
fn reads_are_short_at_the_end_only() {
    let one = One::new();
    let content = bytes(3, (5 << 20) + 17);
    std::fs::write(one.path("f"), &content).unwrap();
    let file = std::fs::File::open(one.path("f")).unwrap();
    for (offset, wanted, got) in [(0, 5 << 20, 5 << 20), ((4 << 20) - 3, 7, 7), (5 << 20, 4096, 17), (6 << 20, 9, 0)] {
        let mut into = vec![0; wanted];
        assert_eq!(file.read_at(&mut into, offset as u64).unwrap(), got, "{offset}");
        assert_eq!(into[..got], content[offset.min(content.len())..][..got]);
    }
}

/// > A mapping shows the same bytes as `read(2)`.
#[test]
fn a_mapping_shows_what_read_shows() {
    let one = One::new();
    let content = bytes(4, 1 << 20);
    std::fs::write(one.path("f"), &content).unwrap();
    let mapping = Mapping::of(&one.path("f"), content.len()).unwrap();
    assert_eq!(mapping.read(0..content.len()).unwrap(), content);
}

#[test]
fn what_is_read_only_cannot_be_written_through() {
    let one = One::new();
    std::fs::write(one.path("f"), b"text").unwrap();
    let mut file = std::fs::File::open(one.path("f")).unwrap();
    assert_eq!(errno(file.write(b"x")), libc::EBADF);
}
