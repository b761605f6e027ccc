use super::*;
use crate::fakes::device::Wire;
use crate::fakes::{SOON, about, init};
use crate::reply::{Answer as _, Request};

struct Silent;

impl Dispatch for Silent {
    fn dispatch(&self, request: Request<'_>) {
        drop(request);
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupted(&self, _: u64) {}
}

fn begin(capabilities: u64, options: &SessionOptions) -> (Wire, Result<Session<Silent>, SessionError>) {
    let (mut wire, device) = Wire::new();
    wire.send(about(opcode::INIT, 0), &init(capabilities), &[]);
    let session = Session::start(device, Arc::new(Silent), options);
    (wire, session)
}

#[test]
fn what_is_wanted_of_the_kernel_is_agreed_on() {
    let options = SessionOptions { max_background: 48, congestion_threshold: 48, ..SessionOptions::default() };
    let (mut wire, session) = begin(capability::PASSTHROUGH | capability::OVER_IO_URING, &options);
    let session = session.unwrap();
    let answer = wire.answer(2).body;
    assert_eq!(answer[16..20], [48, 0, 48, 0], "max_background and congestion_threshold");
    assert_eq!(answer[20..24], MAX_PAYLOAD.to_ne_bytes());
    let wanted = capability::ASYNC_READ
        | capability::ASYNC_DIO
        | capability::PARALLEL_DIROPS
        | capability::DO_READDIRPLUS
        | capability::READDIRPLUS_AUTO
        | capability::MAX_PAGES
        | capability::ATOMIC_O_TRUNC;
    assert!(session.negotiated.has(wanted));
    assert!(!session.negotiated.passthrough() && !session.negotiated.uring());
    assert!(session.payloads().is_none(), "nothing lands in memory of a thread on the device");
    assert_eq!(session.served().passthrough(), Err(NoPassthrough::NotAsked));
    assert_eq!(session.served().kernel(), (7, 45));
}

#[test]
fn passing_files_through_is_tried_before_anybody_relies_on_it() {
    let options = SessionOptions { passthrough: true, ..SessionOptions::default() };
    let (_wire, session) = begin(0, &options);
    assert_eq!(session.unwrap().served().passthrough(), Err(NoPassthrough::NotInKernel));
    // The kernel says that it can, but a socket cannot.
    let (_wire, session) = begin(capability::PASSTHROUGH, &options);
    session.unwrap().served().passthrough().unwrap_err();
}

#[test]
fn rings_that_are_demanded_and_not_offered_are_an_error_and_otherwise_none() {
    let options = |io| SessionOptions { io, ..SessionOptions::default() };
    let (_wire, session) = begin(0, &options(FuseIo::Uring));
    assert!(matches!(session.err(), Some(SessionError::NoUring(NoUring::Off | NoUring::NotInKernel))));
    for io in [FuseIo::Auto, FuseIo::Device] {
        let (_wire, session) = begin(0, &options(io));
        assert!(session.unwrap().rings.is_none());
    }
}

#[test]
fn a_kernel_that_is_later_begins_again_and_one_that_is_too_old_is_refused() {
    let (mut wire, device) = Wire::new();
    let version = |major: u32, minor: u32| [major.to_ne_bytes(), minor.to_ne_bytes()].concat();
    wire.send(about(opcode::INIT, 0), &[version(8, 1), vec![0; 56]].concat(), &[]);
    wire.send(about(opcode::INIT, 0), &init(0), &[]);
    Session::start(device, Arc::new(Silent), &SessionOptions::default()).unwrap();
    assert_eq!(wire.answer(2).body[..4], 7u32.to_ne_bytes());
    assert_eq!(wire.answer(4).body.len(), 64);

    let (mut wire, device) = Wire::new();
    wire.send(about(opcode::INIT, 0), &[version(7, 19), vec![0; 8]].concat(), &[]);
    let session = Session::start(device, Arc::new(Silent), &SessionOptions::default());
    assert!(session.err().unwrap().to_string().contains("older than Linux 5.8"));
    assert_eq!(wire.answer(2).error, libc::EPROTO);
}

#[test]
fn a_first_message_that_is_no_beginning_is_refused() {
    for (opcode, body) in [(opcode::STATFS, vec![]), (opcode::INIT, vec![1, 2, 3])] {
        let (mut wire, device) = Wire::new();
        wire.send(about(opcode, 1), &body, &[]);
        assert!(Session::start(device, Arc::new(Silent), &SessionOptions::default()).is_err());
    }
}

#[test]
fn the_kernel_is_told_over_a_descriptor_of_its_own() {
    let (mut wire, session) = begin(0, &SessionOptions::default());
    let notifier = session.unwrap().notifier();
    notifier.inval_entry(1, b"name").unwrap();
    notifier.inval_inode(5, 0, 0).unwrap();
    notifier.delete(1, 5, b"name").unwrap();
    assert_eq!(wire.notification().0, 3);
    assert_eq!(wire.notification(), (2, [5u64.to_ne_bytes(), [0; 8], [0; 8]].concat()));
    assert_eq!(wire.notification().0, 6);
    assert_eq!(notifier.inval_entry(1, b"a/b").unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Answers everything with nothing.
struct Polite;

impl Dispatch for Polite {
    fn dispatch(&self, request: Request<'_>) {
        request.now().ok();
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupted(&self, _: u64) {}
}

#[test]
fn a_session_pauses_goes_on_and_then_another_one_goes_on_with_its_connection() {
    let (mut wire, device) = Wire::new();
    wire.send(about(opcode::INIT, 0), &init(0), &[]);
    let options = SessionOptions { threads: 3, ..SessionOptions::default() };
    let mut session = Session::start(device, Arc::new(Polite), &options).unwrap();
    let (pauser, served, agreed) = (session.pauser(), session.served(), session.agreed());
    for _ in 0..3 {
        let serving = thread::spawn(move || (session.serve(), session));
        assert!(served.wait(SOON).is_some());
        let asked = wire.send(about(opcode::STATFS, 1), &[], &[]);
        assert_eq!(wire.answer(asked).error, 0);
        assert!(pauser.pause(SOON));
        let (stopped, paused) = serving.join().unwrap();
        assert_eq!(stopped.unwrap(), Stopped::Paused);
        pauser.go_on();
        session = paused;
    }
    let asked = wire.send(about(opcode::STATFS, 1), &[], &[]);
    let connection = pauser.connection().unwrap();
    session.leave();
    assert_eq!(pauser.connection().unwrap_err().raw_os_error(), Some(libc::ENODEV));

    let connection = Adopted::new(connection, agreed).unwrap();
    let next = Session::resume(connection, Arc::new(Polite), &options).unwrap();
    let serving = thread::spawn(move || next.run());
    assert_eq!(wire.answer(asked).error, 0, "what nobody took waits for the next");
    wire.end();
    serving.join().unwrap().unwrap();
}

#[test]
fn the_end_of_a_mount_is_no_pause() {
    let (mut wire, device) = Wire::new();
    wire.send(about(opcode::INIT, 0), &init(0), &[]);
    let mut session = Session::start(device, Arc::new(Polite), &SessionOptions::default()).unwrap();
    wire.end();
    assert_eq!(session.serve().unwrap(), Stopped::Ended);
}

#[test]
fn what_a_session_reads_outlives_it_where_somebody_keeps_it() {
    let (mut wire, device) = Wire::new();
    wire.send(about(opcode::INIT, 0), &init(0), &[]);
    let options = SessionOptions { threads: 3, ..SessionOptions::default() };
    let mut session = Session::start(device, Arc::new(Polite), &options).unwrap();
    let agreed = session.agreed();
    let (kept, clones) = session.descriptors().unwrap();
    assert!(clones.is_empty(), "a socket has no clones");
    // As if its process had been killed.
    drop(session);
    let asked = wire.send(about(opcode::STATFS, 1), &[], &[]);
    let mut next = Session::resume(Adopted::new(kept, agreed).unwrap(), Arc::new(Polite), &options).unwrap();
    let kept = next.descriptors().unwrap();
    next.notifier().resend().unwrap();
    let serving = thread::spawn(move || next.run());
    assert_eq!((wire.answer(asked).error, wire.notification()), (0, (7, Vec::new())));
    wire.end();
    serving.join().unwrap().unwrap();
    drop(kept);
}
