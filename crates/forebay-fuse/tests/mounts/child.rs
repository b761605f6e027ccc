//! What must happen in another process: mounting, to be killed or to be another user; mapping, since a process that
//! serves a mount must not fault on its own pages.
//!
//! Such a process is this test binary again, told by an environment variable which part to play.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_fuse::MountOptions;
use rustix::mm::{MapFlags, ProtFlags};

use crate::bucket::{Bucket, pattern};
use crate::harness::{MINUTE, client, options, runtime};
use crate::passthrough::eager_options;

const ROLE: &str = "FOREBAY_TEST_ROLE";
const PLACE: &str = "FOREBAY_TEST_PLACE";
pub(crate) const NOBODY: u32 = 65534;

/// A child process, killed when it is dropped.
pub(crate) struct Actor(pub(crate) Child);

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Actor {
    /// Starts the part `role` with `place`.
    pub(crate) fn start(role: &str, place: &Path, user: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child::a_part_in_another_test", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(PLACE, place)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        Self(command.spawn().unwrap())
    }

    /// Waits for a line that ends with `text`; what else it says is given back.
    pub(crate) fn says(&mut self, text: &str) -> Result<(), String> {
        let mut said = String::new();
        for line in BufReader::new(self.0.stdout.as_mut().unwrap()).lines().map_while(Result::ok) {
            if line.ends_with(text) {
                return Ok(());
            }
            said.push_str(&line);
            said.push('\n');
        }
        Err(said)
    }
}

/// The bucket that a mounting child serves.
fn bucket() -> std::sync::Arc<Bucket> {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(1 << 20, 1));
    bucket
}

#[test]
#[ignore = "a process of other tests"]
fn a_part_in_another_test() {
    let role = std::env::var(ROLE).expect("another test starts this");
    let place = std::env::var_os(PLACE).unwrap();
    let place = Path::new(&place);
    match &*role {
        "mount" => mount(place, &options()),
        "mount for all" => mount(place, &MountOptions { allow_other: true, ..options() }),
        "mount with materialised files" => mount(place, &eager_options()),
        "map" => map(place),
        "map and wait" => map_and_wait(place),
        "read directly" => read_directly(place),
        role => panic!("no part {role}"),
    }
}

/// Mounts until standard input ends.
fn mount(place: &Path, options: &MountOptions) {
    let runtime = runtime();
    let client = client(&bucket(), &runtime, MINUTE);
    match forebay_fuse::Mount::start(client, runtime.handle().clone(), place, options) {
        Err(error) => println!("\n{error}"),
        Ok(mut mount) => {
            let report = mount.reporter();
            println!("\nmounted");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let unmounted =
                runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), mount.unmount()).await });
            let passed = report()["local"]["handles"]["passed"].as_u64().unwrap_or(0);
            println!("\npassed: {passed}, unmounted: {}", matches!(unmounted, Ok(Ok(forebay_fuse::Unmounted::Clean))));
        }
    }
}

/// Reads past the page cache when standard input ends.
fn read_directly(place: &Path) {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(place).unwrap();
    println!("\nopened");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let _ = file.read_at(&mut [0; 4096], 0);
}

/// Maps the file that version 1 of the pattern is in.
fn map(place: &Path) {
    check(mapped(place));
    println!("\nmapped");
}

/// The same, and closes the file; looks again when standard input ends.
fn map_and_wait(place: &Path) {
    let mapped = mapped(place);
    println!("\nclosed");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    check(mapped);
    println!("\nthe same");
}

/// The mapping of a file that is closed.
fn mapped(place: &Path) -> &'static [u8] {
    let file = File::open(place).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping at no fixed address, of which the file has every byte: the mount is read-only and its files
    // never change in place.
    unsafe {
        let start =
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap();
        std::slice::from_raw_parts(start.cast::<u8>(), length)
    }
}

fn check(mapped: &[u8]) {
    let length = mapped.len();
    let expected = pattern(length, 1);
    // Backwards by pages first: faults without read-ahead.
    for page in (0..length).step_by(4096).rev().take(200) {
        assert_eq!(mapped[page], expected[page]);
    }
    assert!(mapped == expected);
}
