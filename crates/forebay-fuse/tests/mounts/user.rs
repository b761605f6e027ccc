//! Mounting as a user, through `fusermount3`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use forebay_fuse::mount_table::{MountState, inspect};
use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::MountPropagationFlags;
use tempfile::TempDir;

use crate::child::{Actor, NOBODY};
use crate::harness::{is_root, skipped, wait_until};

/// Directories that the test and the processes that it starts see differently from all others.
struct Place {
    /// Owned by the user `nobody`.
    mountpoint: TempDir,
    /// Holds a `/dev/fuse` that is open to users, where the machine's is not.
    _device: TempDir,
}

impl Place {
    fn path(&self) -> &Path {
        self.mountpoint.path()
    }
}

/// A place where the user `nobody` can mount, or why there cannot be one.
fn place() -> Result<Place, &'static str> {
    if !is_root() {
        return Err("only root can become another user");
    }
    if !["/usr/bin", "/bin"].iter().any(|place| Path::new(place).join("fusermount3").exists()) {
        return Err("fusermount3 is not installed");
    }
    let mountpoint = tempfile::tempdir().unwrap();
    chown(mountpoint.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let device = tempfile::tempdir().unwrap();
    let machines = fs::metadata("/dev/fuse").unwrap();
    if machines.mode() & 0o006 != 0o006 {
        // SAFETY: only this thread, which runs this test and nothing else, gets another view of the mounts.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change("/", private).unwrap();
        // Copies of the mounts of other tests would keep them from ending. There may be none.
        let types = "fuse.forebay,fuse.forebay-test";
        let _ = Command::new("umount").args(["--all", "--lazy", "--types", types]).output();
        let open = device.path().join("fuse");
        rustix::fs::mknodat(CWD, &open, FileType::CharacterDevice, Mode::empty(), machines.rdev()).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        rustix::mount::mount_bind(&open, "/dev/fuse").unwrap();
    }
    Ok(Place { mountpoint, _device: device })
}

macro_rules! place_or_skip {
    () => {
        match place() {
            Ok(place) => place,
            Err(reason) => return skipped(reason),
        }
    };
}

fn as_nobody(program: &str, arguments: &[&str], place: &Path) -> std::process::Output {
    Command::new(program).args(arguments).arg(place).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

#[test]
fn a_user_mounts_reads_and_unmounts() {
    let directory = place_or_skip!();
    let place = directory.path();
    let mut server = Actor::start("mount", place, Some(NOBODY));
    server.says("mounted").unwrap();
    let counted = as_nobody("wc", &["-c"], &place.join("file"));
    assert!(String::from_utf8_lossy(&counted.stdout).starts_with("1048576"), "{counted:?}");
    drop(server.0.stdin.take());
    server.says("unmounted: true").unwrap();
    wait_until("it is unmounted", || inspect(place).unwrap() == MountState::NotMounted);
}

#[test]
fn without_the_capability_everything_works_and_nothing_is_passed_through() {
    let directory = place_or_skip!();
    let place = directory.path();
    let mut server = Actor::start("mount with materialised files", place, Some(NOBODY));
    server.says("mounted").unwrap();
    for _ in 0..4 {
        let counted = as_nobody("wc", &["-c"], &place.join("file"));
        assert!(String::from_utf8_lossy(&counted.stdout).starts_with("1048576"), "{counted:?}");
    }
    drop(server.0.stdin.take());
    server.says("passed: 0, unmounted: true").unwrap();
}

#[test]
fn a_users_dead_mount_is_repaired_by_the_users_next_mount() {
    let directory = place_or_skip!();
    let place = directory.path();
    let mut server = Actor::start("mount", place, Some(NOBODY));
    server.says("mounted").unwrap();
    drop(server);
    wait_until("the mount is dead", || matches!(inspect(place).unwrap(), MountState::Dead { .. }));
    let mut server = Actor::start("mount", place, Some(NOBODY));
    server.says("mounted").unwrap();
    drop(server.0.stdin.take());
    server.says("unmounted: true").unwrap();
}

#[test]
fn a_user_without_leave_is_told_what_to_do() {
    let directory = place_or_skip!();
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    if allowed {
        return skipped("/etc/fuse.conf has `user_allow_other`");
    }
    let mut server = Actor::start("mount for all", directory.path(), Some(NOBODY));
    server.says("without `allow_other`").unwrap();

    let roots = tempfile::tempdir().unwrap();
    fs::set_permissions(roots.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut server = Actor::start("mount", roots.path(), Some(NOBODY));
    server.says("with fuse3 installed").unwrap();
}
