use std::time::Duration;

use super::*;
use forebay_types::VersionTag;

#[test]
fn what_lost_its_name_while_its_directory_was_copied_gets_no_other() {
    let version = |nanos| FileVersion {
        origin: "s3://b".into(),
        path: b"d/f".as_slice().into(),
        size: 1,
        tag: VersionTag::Modified { nanos, inode: 1 },
    };
    let (copied, other) = (Attr::file(version(1)), Attr::file(version(2)));
    let known = Known::new(copied.clone(), Instant::now(), Duration::ZERO);
    let inode = Inode::new(20, FsPath::new("/b/d/f").unwrap(), known);
    assert!(goes_along(&inode, &copied) && !goes_along(&inode, &other));
    inode.remove();
    assert!(!goes_along(&inode, &copied));
}

#[test]
fn a_copy_within_the_directory_that_it_is_made_of_is_known_whatever_the_mounts_are_called() {
    let version = |origin: &str, path: &str| FileVersion {
        origin: origin.into(),
        path: path.as_bytes().into(),
        size: 1,
        tag: VersionTag::Modified { nanos: 1, inode: 1 },
    };
    for (source, below, made, expected) in [
        ("d/f", "f", "d/sub/f", true),
        ("d/x/f", "x/f", "d/sub/x/f", true),
        ("d/f", "f", "d2/f", false),
        ("d/x/f", "x/f", "e/x/f", false),
        // The directory is the origin's root.
        ("f", "f", "sub/f", true),
        // Another mount is in the directory, and the file is of that.
        ("f", "in/f", "sub/in/f", false),
    ] {
        let (source, made) = (version("s3://b", source), version("s3://b", made));
        assert_eq!(is_beside(&made, &source, below.as_bytes()), expected, "{source:?} {made:?}");
        assert!(!is_beside(&version("s3://c", "d/sub/f"), &source, below.as_bytes()));
    }
}
