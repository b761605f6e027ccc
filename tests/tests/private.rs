//! What a worker and a mount keep is their user's alone: nobody else of the machine lists it, reads it, or puts
//! something in its place.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{Bucket, Mount, STRANGER, Setup, Tree, as_stranger, eventually, is_root, reading, skipped};

const SOON: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4 << 20;

/// A place that all users can enter, so that what is kept from them is so by its own directory.
fn open_to_all() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    place
}

/// A directory in it as an earlier version would have made it.
fn made(place: &Path, name: &str) -> PathBuf {
    let path = place.join(name);
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Whether another user gets anything of `path`: a list, bytes, or an answer other than that it is forbidden.
fn is_open_to_others(path: &Path) -> Option<bool> {
    let path = path.to_owned();
    as_stranger(move || {
        let denied = |error: Option<std::io::Error>| error.is_some_and(|it| it.kind() == ErrorKind::PermissionDenied);
        // A socket of packets refuses streams in other words, once one gets there.
        let tries = [path.read_dir().err(), File::open(&path).err(), UnixStream::connect(&path).err()];
        !tries.into_iter().all(denied)
    })
}

fn wait_until_seen(mount: &Mount) {
    let file = reading::DirectFile::open(&mount.path("file00")).unwrap();
    eventually("the mount sees the worker's memory", SOON, || {
        (0..2).for_each(|block| drop(file.read_at(block * BLOCK, 4096).unwrap()));
        mount.own_stats()["window"]["workers"][0]["state"] == "open"
    });
}

#[test]
fn another_user_can_neither_list_nor_open_slabs_sockets_and_what_is_staged() {
    let place = open_to_all();
    match is_open_to_others(place.path()) {
        Some(is_open) => assert!(is_open, "the place itself is open"),
        None => return,
    }
    let [disk, sockets, staging] = ["disk", "sockets", "staging"].map(|name| made(place.path(), name));
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 2 * BLOCK));
    tree.put_into(&bucket, "");
    let directory = format!("network.shared_memory_dir={}", sockets.display());
    let sharing = ["network.shared_memory=on", directory.as_str()];
    let setup = Setup::of(&bucket).disk(&disk, "64MiB").options(&sharing).option("worker.memory.prewarm=false");
    let worker = setup.worker(&bucket);
    let setup = Setup::without_origin().option("client.memory.size=8MiB").options(&sharing);
    let mount = setup.option(&format!("write.staging_dir={}", staging.display())).mount([&worker]);
    wait_until_seen(&mount);
    let mut written = File::create(mount.path("written")).unwrap();
    written.write_all(b"not yet uploaded").unwrap();
    eventually("it is staged", SOON, || !entries(&staging).is_empty());

    for directory in [disk, sockets, staging] {
        assert_eq!(directory.metadata().unwrap().mode() & 0o7777, 0o700, "{}", directory.display());
        let kept = entries(&directory);
        assert!(!kept.is_empty());
        for path in kept.iter().chain([&directory]) {
            assert_eq!(is_open_to_others(path), Some(false), "{}", path.display());
            assert_eq!(path.metadata().unwrap().mode() & 0o077, 0, "{}", path.display());
        }
    }
}

#[test]
fn a_link_or_another_users_directory_in_the_place_of_a_slab_stops_the_start_in_words() {
    let (bucket, place) = (Bucket::new(), tempfile::tempdir().unwrap());
    let disk = made(place.path(), "disk");
    let precious = place.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    symlink(&precious, disk.join("slab")).unwrap();
    let refused = Setup::of(&bucket).disk(&disk, "8MiB").prepare_up(&bucket.url()).start();
    let slab = disk.join("slab").display().to_string();
    refused.failed(5, &[&slab, "it is a symbolic link", "next: ", "readlink -f"]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");

    if !is_root() {
        return skipped("only root gives a directory to another user");
    }
    std::fs::remove_file(disk.join("slab")).unwrap();
    std::os::unix::fs::chown(&disk, Some(STRANGER), None).unwrap();
    let refused = Setup::of(&bucket).disk(&disk, "8MiB").prepare_up(&bucket.url()).start();
    refused.failed(5, &[disk.to_str().unwrap(), "belongs to user 65534", "next: ", "chown -R 0"]);
    let staging = format!("write.staging_dir={}", disk.display());
    let refused = Setup::of(&bucket).option(&staging).prepare_up(&bucket.url()).start();
    refused.failed(5, &[disk.to_str().unwrap(), "belongs to user 65534", "next: ", "chown -R 0"]);
}
