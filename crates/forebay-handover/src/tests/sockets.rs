//! Both ends over a real socket, with a file in the place of the kernel's connection.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use super::states::full;
use crate::exchange::{Given, GivingSide, give, take};
use crate::giving::Outcome;
use crate::identity::tests::identity;
use crate::message::{Order, Refusal};
use crate::taking::NotTaken;

const PATIENCE: Duration = Duration::from_secs(30);

/// An old process that notes what it is asked.
#[derive(Default)]
struct Old {
    did: Vec<&'static str>,
    writers: u32,
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
        Ok(Given { state: full(), connection: connection.into() })
    }

    fn resume(&mut self) {
        self.did.push("resume");
    }

    fn release(&mut self) {
        self.did.push("release");
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
        held.holding.serving().unwrap();
        assert_eq!(gives.join().unwrap(), (Outcome::Gone, vec!["drain", "release"]));
    }
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
    assert_eq!(other, NotTaken::Protocol { theirs: 77, ours: 1 });
}
