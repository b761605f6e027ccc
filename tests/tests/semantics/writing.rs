//! "Writing".

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_e2e::mapping::Mapping;
use rustix::fs::FallocateFlags;

use super::{One, bytes, close, errno, truncate};

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// > A file can be written at any offset and in any order; bytes that were never written are zeros.
#[test]
fn writes_come_in_any_order() {
    let one = One::new();
    let (head, tail) = (bytes(1, 300_000), bytes(2, 3 << 20));
    let file = both(&one.path("f"));
    file.write_all_at(&tail, 9 << 20).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.write_all_at(b"x", 5_000_001).unwrap();
    close(file).unwrap();
    let mut expected = vec![0; 12 << 20];
    expected[..head.len()].copy_from_slice(&head);
    expected[5_000_001] = b'x';
    expected[9 << 20..].copy_from_slice(&tail);
    assert!(one.object("f").unwrap() == expected);
    assert!(std::fs::read(one.path("f")).unwrap() == expected);
}

/// > Several handles and processes of one mount can write one file at the same time.
#[test]
fn many_write_one_file() {
    let one = One::new();
    let path = one.path("f");
    drop(File::create(&path).unwrap());
    const PIECE: usize = 100_000;
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for piece in (writer..40).step_by(4) {
                    file.write_all_at(&bytes(piece, PIECE), piece * PIECE as u64).unwrap();
                }
                close(file).unwrap();
            });
        }
    });
    let expected: Vec<u8> = (0..40).flat_map(|piece| bytes(piece, PIECE)).collect();
    assert!(one.object("f").unwrap() == expected);
}

/// > Written bytes are visible at once through every handle on the same mount, and through mappings.
#[test]
fn what_was_written_is_read_at_once() {
    let one = One::new();
    std::fs::write(one.path("f"), vec![b'-'; 8192]).unwrap();
    let reader = File::open(one.path("f")).unwrap();
    let mapping = Mapping::of(&one.path("f"), 8192).unwrap();
    assert_eq!(mapping.read(5000..5001).unwrap(), b"-");
    let writer = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    writer.write_all_at(b"new", 5000).unwrap();
    let mut read = [0; 5];
    reader.read_exact_at(&mut read, 4999).unwrap();
    assert_eq!(&read, b"-new-");
    assert_eq!(mapping.read(4999..5004).unwrap(), b"-new-");
    assert_eq!(&std::fs::read(one.path("f")).unwrap()[4999..5004], b"-new-");
    close(writer).unwrap();
    reader.read_exact_at(&mut read, 4999).unwrap();
    assert_eq!(&read, b"-new-", "also by who had it open before");
}

/// > A shared mapping can be written; bytes written through it are in the file.
#[test]
fn a_shared_mapping_is_written() {
    let one = One::new();
    let file = both(&one.path("f"));
    file.set_len(3 << 20).unwrap();
    let length = 3 << 20;
    let mapping = Mapping::writable(&one.path("f"), length).unwrap();
    mapping.write(1 << 20, b"first").unwrap();
    let mut seen = [0; 5];
    file.read_exact_at(&mut seen, 1 << 20).unwrap();
    assert_eq!(&seen, b"first");
    mapping.sync().unwrap();
    file.sync_all().unwrap();
    assert_eq!(&one.object("f").unwrap()[1 << 20..][..5], b"first");
    mapping.write(2 << 20, b"last").unwrap();
    drop(mapping);
    close(file).unwrap();
    let object = one.object("f").unwrap();
    assert_eq!((&object[1 << 20..][..5], &object[2 << 20..][..4], object.len()), (&b"first"[..], &b"last"[..], length));
}

/// > `O_APPEND` writes at the end of the file.
#[test]
fn appending() {
    let one = One::new();
    std::fs::write(one.path("f"), b"one\n").unwrap();
    for text in ["two\n", "three\n"] {
        let mut file = OpenOptions::new().append(true).open(one.path("f")).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        close(file).unwrap();
    }
    assert_eq!(one.object("f").unwrap(), b"one\ntwo\nthree\n");
}

/// > `ftruncate(2)` and `truncate(2)` shorten and lengthen a file; the added part reads as zeros.
#[test]
fn truncation_goes_both_ways() {
    let one = One::new();
    let content = bytes(5, 9 << 20);
    let file = both(&one.path("f"));
    file.write_all_at(&content, 0).unwrap();
    file.set_len(1000).unwrap();
    file.set_len(20_000).unwrap();
    close(file).unwrap();
    let mut expected = content[..1000].to_vec();
    expected.resize(20_000, 0);
    assert!(one.object("f").unwrap() == expected);
    assert!(std::fs::read(one.path("f")).unwrap() == expected);
    // What was there before it was opened.
    let file = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    file.set_len(500).unwrap();
    file.set_len(600).unwrap();
    close(file).unwrap();
    expected.truncate(500);
    expected.resize(600, 0);
    assert!(one.object("f").unwrap() == expected);
}

/// > `truncate(2)` of a file that is not open for writing is at the origin when it returns.
#[test]
fn truncation_by_name() {
    let one = One::new();
    std::fs::write(one.path("f"), b"some text").unwrap();
    for (size, expected) in [(4, &b"some"[..]), (6, b"some\0\0"), (0, b"")] {
        truncate(&one.path("f"), size);
        assert_eq!(one.object("f").unwrap(), expected);
        assert_eq!(std::fs::metadata(one.path("f")).unwrap().len(), size);
        assert_eq!(std::fs::read(one.path("f")).unwrap(), expected);
    }
}

/// > A part of an existing file can be changed: the rest stays as it was, and the whole object is uploaded.
#[test]
fn a_part_is_changed() {
    let one = One::new();
    let mut content = bytes(6, 21 << 20);
    std::fs::write(one.path("f"), &content).unwrap();
    let file = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    for offset in [0, 9 << 20, (21 << 20) - 3] {
        file.write_all_at(b"new", offset as u64).unwrap();
        content[offset..offset + 3].copy_from_slice(b"new");
    }
    close(file).unwrap();
    assert!(one.object("f").unwrap() == content);
    assert!(std::fs::read(one.path("f")).unwrap() == content);
}

/// > `fallocate(2)` lengthens a file, and can punch holes and zero ranges; collapsing and inserting ranges fail with `EOPNOTSUPP`.
#[test]
fn allocation() {
    let one = One::new();
    let mut expected = bytes(7, 40_000);
    let file = both(&one.path("f"));
    file.write_all_at(&expected, 0).unwrap();
    let allocate = |how, offset, length| rustix::fs::fallocate(&file, how, offset, length);
    allocate(FallocateFlags::empty(), 0, 50_000).unwrap();
    expected.resize(50_000, 0);
    allocate(FallocateFlags::KEEP_SIZE, 0, 90_000).unwrap();
    allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5_000, 7_000).unwrap();
    expected[5_000..12_000].fill(0);
    allocate(FallocateFlags::ZERO_RANGE, 20_000, 100).unwrap();
    expected[20_000..20_100].fill(0);
    for how in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(allocate(how, 4096, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    }
    let mut read = vec![0; 50_000];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected);
    close(file).unwrap();
    assert!(one.object("f").unwrap() == expected);
}

/// > `copy_file_range(2)` copies from file to file.
#[test]
fn copying_ranges() {
    let one = One::new();
    let content = bytes(8, 6 << 20);
    std::fs::write(one.path("from"), &content).unwrap();
    let (from, to) = (File::open(one.path("from")).unwrap(), both(&one.path("to")));
    let (mut read, mut written) = (1000, 10);
    let mut left = 5 << 20;
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut written), left).unwrap();
        assert!(copied > 0);
        left -= copied;
    }
    close(to).unwrap();
    let object = one.object("to").unwrap();
    assert!(object[..10] == [0; 10] && object[10..] == content[1000..][..5 << 20]);
}

/// > A file that was opened for writing and not changed is not uploaded.
#[test]
fn opening_alone_uploads_nothing() {
    let one = One::new();
    std::fs::write(one.path("f"), b"text").unwrap();
    let before = std::fs::metadata(one.bucket.path_of("f")).unwrap().modified().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(one.path("f")).unwrap();
    file.read_exact_at(&mut [0; 4], 0).unwrap();
    close(file).unwrap();
    assert_eq!(std::fs::metadata(one.bucket.path_of("f")).unwrap().modified().unwrap(), before);
}

/// > Files larger than the staging directory can be written from the beginning to the end.
#[test]
fn a_file_larger_than_the_staging_directory() {
    let one = One::with(|setup| setup.option("write.staging_size=128MiB"));
    let piece = bytes(9, 1 << 20);
    let mut file = File::create(one.path("f")).unwrap();
    for number in 0..300u32 {
        file.write_all(&number.to_le_bytes()).unwrap();
        file.write_all(&piece[4..]).unwrap();
        let staged: u64 = std::fs::read_dir(one.staging.path()).unwrap().map(|entry| allocated(&entry.unwrap())).sum();
        assert!(staged <= 130 << 20, "{staged} bytes are staged");
    }
    close(file).unwrap();
    let object = one.object("f").unwrap();
    assert_eq!(object.len(), 300 << 20);
    for (number, chunk) in object.chunks(1 << 20).enumerate() {
        assert!(chunk[..4] == (number as u32).to_le_bytes() && chunk[4..] == piece[4..], "{number}");
    }
}

fn allocated(entry: &std::fs::DirEntry) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    entry.metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

#[test]
fn a_closed_handle_writes_no_more() {
    let one = One::new();
    let file = both(&one.path("f"));
    let duplicate = file.try_clone().unwrap();
    close(file).unwrap();
    duplicate.write_all_at(b"by the duplicate", 0).unwrap();
    close(duplicate).unwrap();
    assert_eq!(one.object("f").unwrap(), b"by the duplicate");
    assert_eq!(errno(std::fs::read(one.path("f/below"))), libc::ENOTDIR);
}
