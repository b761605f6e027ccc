//! Both ends over a real socket, with a file in the place of the kernel's connection.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::states::full;
use crate::exchange::{Given, GivingSide, give, take, take_if};
use crate::giving::Outcome;
use crate::identity::tests::identity;
use crate::message::{Ask, Hello, Order, Refusal, Say};
use crate::state::{Nonsense, Reads, State, Written};
use crate::taking::NotTaken;
use crate::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(30);

/// An old process that notes what it is asked.
#[derive(Default)]
struct Old {
    did: Vec<&'static str>,
    writers: u32,
    /// A file is open for writing that goes on in the next process.
    is_written: bool,
}

/// With a handle that writes.
fn state(is_written: bool) -> State {
    let mut state = full();
    if is_written {
        state.files.open[0].1.reads = Reads::Lost;
    }
    state
}

fn written() -> Written {
    let (handle, file) = state(true).files.open.swap_remove(0);
    let (writers, processes, draft) = (vec![handle], vec![vec![7]], b"a draft".to_vec());
    Written { inode: file.inode, writers, processes, pid_namespace: Some(1), changed: false, draft }
}

impl GivingSide for Old {
    fn writers(&mut self) -> Vec<String> {
        let is_written = self.writers > 0;
        self.writers = self.writers.saturating_sub(1);
        is_written.then(|| "/written".to_owned()).into_iter().collect()
    }

    fn drain(&mut self, _: Duration) -> Result<(), Refusal> {
        self.did.push("drain");
        Ok(())
    }

    fn give(&mut self) -> io::Result<Given> {
        let mut connection = tempfile::tempfile()?;
        connection.write_all(b"the kernel")?;
        connection.rewind()?;
        let mut bytes = tempfile::tempfile()?;
        bytes.write_all(b"what was written")?;
        let written = if self.is_written { vec![(written(), bytes.into())] } else { Vec::new() };
        Ok(Given { state: state(self.is_written), connection: connection.into(), written })
    }

    fn resume(&mut self) {
        self.did.push("resume");
    }

    fn taken_back(&mut self) {
        self.did.push("taken back");
    }

    fn release(&mut self) {
        self.did.push("release");
    }

    fn rescue(&mut self, given: Given) {
        assert_eq!(given.state, full());
        let mut text = String::new();
        std::fs::File::from(given.connection).read_to_string(&mut text).unwrap();
        assert_eq!(text, "the kernel");
        self.did.push("rescue");
    }
}

#[test]
fn state_and_connection_go_over_a_socket_in_both_orders() {
    for order in [Order::ServeFirst, Order::ReleaseFirst] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let gives = thread::spawn(move || {
            let mut old = Old { writers: 3, ..Old::default() };
            (give(ours, identity(), None, &mut old), old.did)
        });
        let mut told = Vec::new();
        let held = take(theirs, identity(), order, PATIENCE, &mut |names| told.extend_from_slice(names)).unwrap();
        assert_eq!(held.state, full());
        let mut connection = std::fs::File::from(held.connection);
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        assert_eq!((&*text, told), ("the kernel", vec!["/written".to_owned()]));
        let mut holding = held.holding;
        holding.serves().unwrap();
        holding.released().unwrap();
        assert_eq!(gives.join().unwrap(), (Outcome::Gone, vec!["drain", "release"]));
    }
}

#[test]
fn what_is_open_for_writing_goes_beside_the_state_with_its_bytes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || give(ours, identity(), None, &mut Old { is_written: true, ..Old::default() }));
    let mut held = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap();
    assert_eq!((&held.state, held.written.len()), (&state(true), 1));
    let (file, bytes) = held.written.remove(0);
    assert_eq!(file, written());
    let (mut bytes, mut text) = (std::fs::File::from(bytes), String::new());
    bytes.rewind().unwrap();
    bytes.read_to_string(&mut text).unwrap();
    assert_eq!(text, "what was written");
    held.holding.serves().unwrap();
    held.holding.released().unwrap();
    assert_eq!(gives.join().unwrap(), Outcome::Gone);
}

#[test]
fn who_cannot_go_on_with_what_is_open_for_writing_leaves_the_mount_to_the_old_process() {
    for order in [Order::ServeFirst, Order::ReleaseFirst] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let gives = thread::spawn(move || {
            let mut old = Old { is_written: true, ..Old::default() };
            (give(ours, identity(), None, &mut old), old.did)
        });
        let accepts = |files: &[(Written, OwnedFd)]| Err(format!("{} of another directory", files.len()));
        let refused = take_if(theirs, identity(), order, PATIENCE, &mut |_| {}, &accepts).unwrap_err();
        assert_eq!(refused, NotTaken::NotUnderstood("1 of another directory".to_owned()));
        assert_eq!(gives.join().unwrap(), (Outcome::Kept, vec!["drain", "resume"]));
    }
}

#[test]
fn what_is_open_for_writing_has_handles_that_write_and_is_named_once() {
    let check = |files: &[Written]| state(true).check_written(files);
    assert_eq!((check(&[]), check(&[written()])), (Ok(()), Ok(())));
    assert_eq!(check(&[written(), written()]), Err(Nonsense::Writer));
    assert_eq!(check(&[Written { writers: Vec::new(), ..written() }]), Err(Nonsense::Writer));
    assert_eq!(check(&[Written { writers: vec![written().writers[0]; 2], ..written() }]), Err(Nonsense::Writer));
    assert_eq!(check(&[Written { writers: vec![u64::MAX], ..written() }]), Err(Nonsense::Writer));
    assert_eq!(check(&[Written { inode: u32::MAX, ..written() }]), Err(Nonsense::NoInode));
    assert_eq!(state(false).check_written(&[written()]), Err(Nonsense::Writer), "it reads");
}

#[test]
fn who_does_not_come_to_serve_leaves_the_mount_to_the_old_process() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || {
        let mut old = Old::default();
        (give(ours, identity(), None, &mut old), old.did)
    });
    let held = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap();
    drop(held);
    assert_eq!(gives.join().unwrap(), (Outcome::Kept, vec!["drain", "resume"]));
}

#[test]
fn who_does_not_come_to_start_leaves_the_mount_to_whoever_the_old_process_has_rescue_it() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || {
        let mut old = Old::default();
        (give(ours, identity(), None, &mut old), old.did)
    });
    let held = take(theirs, identity(), Order::ReleaseFirst, PATIENCE, &mut |_| {}).unwrap();
    // The old one has let go of everything, and waits.
    assert!(!gives.is_finished());
    drop(held);
    assert_eq!(gives.join().unwrap(), (Outcome::Gone, vec!["drain", "release", "rescue"]));
}

/// A new process that has the mount, and has not said that it serves; and the old one.
fn has_the_mount() -> (Wire, thread::JoinHandle<(Outcome, Vec<&'static str>)>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || {
        let mut old = Old::default();
        (give(ours, identity(), None, &mut old), old.did)
    });
    let mut wire = Wire::of_hand_over(theirs).unwrap();
    wire.send(&Ask::Hello(Hello::new(identity(), Order::ServeFirst, PATIENCE)), &[]).unwrap();
    for expected in [Say::Welcome, Say::Given, Say::Yours] {
        let (said, _) = wire.receive::<Say>(Some(Instant::now() + PATIENCE)).unwrap().unwrap();
        assert_eq!(said, expected);
        if said == Say::Given {
            wire.send(&Ask::Holding, &[]).unwrap();
        }
    }
    (wire, gives)
}

#[test]
fn nonsense_of_who_may_serve_is_not_taken_for_its_end() {
    let (mut wire, gives) = has_the_mount();
    // No such message.
    wire.send(&77u8, &[]).unwrap();
    wire.send(&Ask::Serving, &[]).unwrap();
    assert_eq!(wire.receive::<Say>(None).unwrap().unwrap().0, Say::Released);
    assert_eq!(gives.join().unwrap(), (Outcome::Gone, vec!["drain", "release"]));

    let (mut wire, gives) = has_the_mount();
    wire.send(&77u8, &[]).unwrap();
    drop(wire);
    assert_eq!(gives.join().unwrap(), (Outcome::Kept, vec!["drain", "resume"]));
}

/// As a process that was stopped, and goes on.
#[test]
fn who_comes_to_serve_too_late_is_told_that_the_mount_was_taken_back_and_does_not() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let takes = thread::spawn(move || take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap());
    let mut old = Wire::of_hand_over(ours).unwrap();
    old.receive::<Ask>(None).unwrap().unwrap();
    old.send(&Say::Welcome, &[]).unwrap();
    let memory = crate::sealed::sealed(&crate::encode(&full()).unwrap()).unwrap();
    let connection = tempfile::tempfile().unwrap();
    old.send(&Say::Given, &[memory.as_fd(), connection.as_fd()]).unwrap();
    assert_eq!(old.receive::<Ask>(None).unwrap().unwrap().0, Ask::Holding);
    old.send(&Say::Yours, &[]).unwrap();
    let mut held = takes.join().unwrap();
    old.send(&Say::TakenBack, &[]).unwrap();
    old.hear_no_more().unwrap();
    assert_eq!(held.holding.serves(), Err(NotTaken::TakenBack));
    // And one whose old process has died serves.
    let (mut held, old) = {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let gives = thread::spawn(move || give(ours, identity(), None, &mut Old::default()));
        (take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap(), gives)
    };
    assert_eq!(held.holding.serves(), Ok(()));
    assert_eq!(held.holding.released(), Ok(()));
    assert_eq!(old.join().unwrap(), Outcome::Gone);
}

#[test]
fn who_dies_after_it_has_said_that_it_serves_is_not_followed_by_the_old_process() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || {
        let mut old = Old::default();
        (give(ours, identity(), None, &mut old), old.did)
    });
    let mut held = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap();
    held.holding.serves().unwrap();
    drop(held);
    assert_eq!(gives.join().unwrap(), (Outcome::Gone, vec!["drain", "release"]));
}

#[test]
fn who_is_refused_hears_why_and_who_says_nothing_is_left_alone() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gives = thread::spawn(move || give(ours, identity(), Some(Refusal::Detached), &mut Old::default()));
    let refused = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap_err();
    assert_eq!((refused, gives.join().unwrap()), (NotTaken::Refused(Refusal::Detached), Outcome::Kept));

    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert_eq!(give(ours, identity(), None, &mut Old::default()), Outcome::Kept);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let silent = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap_err();
    assert_eq!(silent, NotTaken::Closed);
}

#[test]
fn a_program_of_another_protocol_is_told_by_its_number() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(&[0, 0, 0, 0, 77, 0, 0, 0]).unwrap();
    let other = take(theirs, identity(), Order::ServeFirst, PATIENCE, &mut |_| {}).unwrap_err();
    assert_eq!(other, NotTaken::Protocol { theirs: 77, ours: 2 });
}
