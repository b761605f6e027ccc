//! A keeper over real sockets, with files in the place of the kernel's connection.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::keeper::{KeeperProcess, Visitors};
use crate::kept::{KeeperLink, Keeps as _, Kept, Taken};
use crate::restart::Restart;

fn keeper() -> (JoinHandle<()>, Visitors) {
    let (mut keeper, visitors) = KeeperProcess::new(None);
    (thread::spawn(move || keeper.run()), visitors)
}

fn daemon(visitors: &Visitors, restart: Option<Restart>) -> KeeperLink {
    let (ours, theirs) = UnixStream::pair().unwrap();
    visitors.connected(theirs);
    KeeperLink::new(ours, restart).unwrap()
}

fn descriptor(text: &str) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn kept(name: &str, clones: usize) -> Kept {
    let clones = (0..clones).map(|number| descriptor(&format!("{name} {number}"))).collect();
    Kept { memory: descriptor(&format!("memory of {name}")), connection: descriptor(name), clones }
}

fn text(descriptor: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(descriptor), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// What a daemon gets, as soon as the one before is seen to be dead.
fn taken(link: &KeeperLink) -> (String, String, Vec<String>) {
    loop {
        match link.take().unwrap() {
            Taken::Given(Kept { memory, connection, clones }) => {
                return (text(memory), text(connection), clones.into_iter().map(text).collect());
            }
            Taken::Served => thread::yield_now(),
            Taken::Nothing => panic!("it was kept"),
        }
    }
}

#[test]
fn what_one_process_gives_the_next_one_gets_in_the_same_order() {
    for clones in [0, 1, 8, 9, 40] {
        let (keeper, visitors) = keeper();
        let first = daemon(&visitors, None);
        assert!(matches!(first.take().unwrap(), Taken::Nothing));
        first.keep(&kept("one", 3)).unwrap();
        first.keep(&kept("two", clones)).unwrap();
        assert!(first.is_there());
        drop(first);
        let second = daemon(&visitors, None);
        let (memory, connection, given) = taken(&second);
        assert_eq!((memory.as_str(), connection.as_str()), ("memory of two", "two"));
        assert_eq!(given, (0..clones).map(|number| format!("two {number}")).collect::<Vec<_>>());
        second.forget();
        keeper.join().unwrap();
    }
}

#[test]
fn a_process_that_says_what_makes_no_sense_takes_nothing_with_it() {
    let (keeper, visitors) = keeper();
    let first = daemon(&visitors, None);
    first.keep(&kept("one", 2)).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    visitors.connected(theirs);
    ours.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 99]).unwrap();
    assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0, "it is sent away");
    drop(first);
    let second = daemon(&visitors, None);
    assert_eq!(taken(&second).1, "one");
    second.forget();
    keeper.join().unwrap();
}

#[test]
fn a_mount_that_was_given_to_another_process_is_its_own() {
    let (keeper, visitors) = keeper();
    let (old, new) = (daemon(&visitors, None), daemon(&visitors, None));
    old.keep(&kept("old", 2)).unwrap();
    assert!(matches!(new.take().unwrap(), Taken::Served));
    old.leave();
    drop(old);
    new.keep(&kept("new", 2)).unwrap();
    drop(new);
    let next = daemon(&visitors, None);
    assert_eq!(taken(&next).1, "new");
    next.forget();
    keeper.join().unwrap();
}

/// A process that was killed while the kernel holds one of its threads, as a read of a mount that nobody serves does: its first thread
/// has ended, and what it had open stays open.
#[test]
fn a_process_that_was_killed_and_does_not_end_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keeper.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (keeper, visitors) = keeper();
    let mut held = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::keepers::a_process_that_is_held", "--ignored", "--test-threads=1"])
        .env(HELD, &path)
        .spawn()
        .unwrap();
    visitors.connected(listener.accept().unwrap().0);
    let next = daemon(&visitors, None);
    // First it serves.
    while matches!(next.take().unwrap(), Taken::Nothing) {
        thread::yield_now();
    }
    assert_eq!(taken(&next).1, "one");
    assert!(held.try_wait().unwrap().is_none(), "it has not ended");
    held.kill().unwrap();
    held.wait().unwrap();
    next.forget();
    keeper.join().unwrap();
}

/// Where a process that is held connects.
const HELD: &str = "FOREBAY_TEST_HELD";

#[test]
#[ignore = "a process of another test"]
fn a_process_that_is_held() {
    let Some(path) = std::env::var_os(HELD) else { return };
    let link = KeeperLink::new(UnixStream::connect(path).unwrap(), None).unwrap();
    link.keep(&kept("one", 0)).unwrap();
    // SAFETY: the handler ends the thread that runs it, the first one of this process, and nothing else.
    unsafe {
        let leave: extern "C" fn(libc::c_int) = end_this_thread;
        libc::signal(libc::SIGUSR1, leave as libc::sighandler_t);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::getpid(), libc::SIGUSR1);
    }
    thread::sleep(Duration::from_secs(60));
}

extern "C" fn end_this_thread(_: libc::c_int) {
    // SAFETY: what the thread has stays where it is.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}
