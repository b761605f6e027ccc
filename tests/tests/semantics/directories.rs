//! "Directories", and the first of "Names".

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use forebay_e2e::eventually;

use super::{One, SOON, Two, close, errno, refused_below};

/// > `mkdir(2)` makes a directory that stays when it is empty, for every mount.
#[test]
fn a_directory_stays_when_it_is_empty() {
    let two = Two::new();
    std::fs::create_dir_all(two.a.path("d/e")).unwrap();
    std::fs::write(two.a.path("d/e/f"), b"x").unwrap();
    std::fs::remove_file(two.a.path("d/e/f")).unwrap();
    assert!(two.a.path("d/e").is_dir());
    eventually("the other mount sees it", SOON, || two.b.path("d/e").is_dir());
    assert_eq!(errno(std::fs::create_dir(two.a.path("d"))), libc::EEXIST);
    assert_eq!(std::fs::read_dir(two.b.path("d/e")).unwrap().count(), 0);
}

/// > `rmdir(2)` removes an empty directory and fails with `ENOTEMPTY` for any other.
#[test]
fn only_an_empty_directory_is_removed() {
    let one = One::new();
    std::fs::create_dir(one.path("d")).unwrap();
    let file = OpenOptions::new().write(true).create_new(true).open(one.path("d/new")).unwrap();
    assert_eq!(errno(std::fs::remove_dir(one.path("d"))), libc::ENOTEMPTY, "a file that is not at the origin yet");
    close(file).unwrap();
    assert_eq!(errno(std::fs::remove_dir(one.path("d"))), libc::ENOTEMPTY);
    std::fs::remove_file(one.path("d/new")).unwrap();
    std::fs::remove_dir(one.path("d")).unwrap();
    assert_eq!(errno(std::fs::metadata(one.path("d"))), libc::ENOENT);
    std::fs::create_dir(one.path("d")).unwrap();
    std::fs::write(one.path("d/again"), b"x").unwrap();
    assert_eq!(one.object("d/again").unwrap(), b"x");
    std::fs::remove_dir_all(one.path("d")).unwrap();
    assert!(!one.path("d").exists());
}

/// > A directory that exists only because there are objects below it disappears with the last of them.
#[test]
fn an_implied_directory_goes_with_its_last_file() {
    let one = One::with(|setup| setup.option("metadata.ttl=0"));
    one.bucket.put_text("d/f", "x");
    assert!(one.path("d").is_dir());
    std::fs::remove_file(one.path("d/f")).unwrap();
    assert!(!one.path("d").exists());
    one.bucket.put_text("e/f/g", "x");
    std::fs::remove_dir_all(one.path("e")).unwrap();
    assert_eq!(std::fs::read_dir(one.mount.root()).unwrap().count(), 0);
}

/// > Directories above the mounted paths, such as the root above `/s3`, cannot be changed: `EROFS`, or `EACCES` if the mode bits do not allow it to the user, because the kernel checks them first.
#[test]
fn what_leads_to_mounts_cannot_be_changed() {
    let bucket = forebay_e2e::Bucket::new();
    let mounts = format!("mounts=/data/s3={}", bucket.url());
    let worker = forebay_e2e::Setup::of(&bucket).option(&mounts).member("w1");
    let staging = tempfile::tempdir().unwrap();
    let mount = super::staged(forebay_e2e::Setup::of_user(), staging.path()).mount([&worker]);
    std::fs::write(mount.path("data/s3/f"), b"x").unwrap();
    for path in ["f", "data/f"] {
        assert_eq!(errno(std::fs::write(mount.path(path), b"x")), refused_below(), "{path}");
        assert_eq!(errno(std::fs::create_dir(mount.path(path))), refused_below(), "{path}");
    }
    assert_eq!(errno(std::fs::rename(mount.path("data/s3"), mount.path("data/s4"))), refused_below());
    assert_eq!(std::fs::read(bucket.path_of("f")).unwrap(), b"x");
}

/// > `unlink(2)` removes the object before it returns.
#[test]
fn removing_a_file() {
    let one = One::new();
    std::fs::write(one.path("f"), b"x").unwrap();
    assert!(one.object("f").is_some());
    std::fs::remove_file(one.path("f")).unwrap();
    assert!(one.object("f").is_none());
    assert_eq!(errno(std::fs::remove_file(one.path("f"))), libc::ENOENT);
    assert_eq!(errno(std::fs::File::open(one.path("f"))), libc::ENOENT);
}

/// > A file that is removed while it is being written stays readable and writable through its handles, and never comes back.
#[test]
fn a_removed_file_lives_on_for_its_handles() {
    use std::os::unix::fs::MetadataExt as _;
    let one = One::new();
    std::fs::write(one.path("old"), b"as it was").unwrap();
    for name in ["new", "old"] {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(one.path(name)).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        let reader = std::fs::File::open(one.path(name)).unwrap();
        std::fs::remove_file(one.path(name)).unwrap();
        file.write_all_at(b" and after", 6).unwrap();
        let mut read = [0; 16];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"before and after");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.sync_all().unwrap();
        assert!(one.object(name).is_none());
        // Another file of that name is another file.
        std::fs::write(one.path(name), b"another").unwrap();
        close(file).unwrap();
        assert_eq!(one.object(name).unwrap(), b"another");
        assert_eq!(std::fs::read(one.path(name)).unwrap(), b"another");
        // The mount hears a moment later that the writer is gone.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert_eq!(reader.metadata().unwrap().len(), 16, "{name}");
            reader.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"before and after", "{name}");
        }
    }
}

/// > A name with a byte that the origin cannot hold is refused when the file is created or closed; it is not changed.
#[test]
fn names_that_the_origin_cannot_hold() {
    use std::os::unix::ffi::OsStrExt as _;
    let one = One::new();
    let name = std::ffi::OsStr::from_bytes(b"not \xff utf-8");
    let path = one.mount.root().join(name);
    let created = std::fs::File::create(&path).and_then(close);
    assert_eq!(errno(created), libc::EINVAL);
    let name = std::ffi::OsStr::from_bytes(b"nor \xff is this");
    assert_eq!(errno(std::fs::create_dir(one.mount.root().join(name))), libc::EINVAL);
    eventually("nothing is listed", SOON, || std::fs::read_dir(one.mount.root()).unwrap().count() == 0);
    eventually("the name leads nowhere", SOON, || !path.exists());
    for name in ["with blank", "ünïcödé", "50% & more?#", "a+b=c", "'\""] {
        std::fs::write(one.path(name), name.as_bytes()).unwrap();
        assert_eq!(one.object(name).as_deref(), Some(name.as_bytes()), "{name}");
        assert_eq!(std::fs::read(one.path(name)).unwrap(), name.as_bytes());
    }
}
