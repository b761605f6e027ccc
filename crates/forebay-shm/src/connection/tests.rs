use super::*;
use std::os::fd::AsFd;
use std::time::Duration;

use forebay_memory::Place;
use forebay_transport::{Op, Provenance};
use forebay_types::{BlockKey, FileId};
use rustix::fs::MemfdFlags;

use crate::socket::Socket;

const LENGTH: u64 = 64 << 10;
const LONG: Duration = Duration::from_secs(30);

fn request(body: usize) -> Request {
    let block = BlockKey { file: FileId([1; 16]), index: 0 };
    Request::on_block(Op::Read, block, 0, 100, LONG).with_body(Bytes::from(vec![7; body]))
}

/// The next packet.
async fn receive(socket: &Socket) -> Vec<u8> {
    let mut buffer = vec![0; wire::MAX_ASKED];
    loop {
        socket.readable().await.unwrap();
        match socket.receive(&mut buffer, |_| false) {
            Ok(Received::Packet(length)) => return buffer[..length].to_vec(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            ended => panic!("{ended:?}"),
        }
    }
}

#[tokio::test]
async fn a_packet_that_the_kernel_does_not_take_ends_the_session_and_what_is_seen_stays_until_it_is_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = crate::socket::listen(&path).unwrap();
    let socket = crate::socket::connect(&path).unwrap();
    let worker = listener.accept().await.unwrap();
    // A packet of more than that is refused with EMSGSIZE, and not for want of room.
    socket.narrow(4096);
    let memory = rustix::fs::memfd_create("forebay-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, LENGTH).unwrap();
    let window = Window::map(memory.as_fd(), LENGTH).unwrap();
    let seen = Seen { socket, window, max_requests: 8, instance: 0 };
    let session = Arc::new(Connection::over(&"worker".into(), seen, &ClientOptions::new("test", 4 << 20)));
    let running = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.run(&CancellationToken::new()).await }
    });

    let serving = async {
        receive(&worker).await;
        let mut packet = Vec::new();
        wire::put_reply(&mut packet, 1, Provenance::default(), b"", &[Place { offset: 0, length: 100 }]);
        worker.send(&[IoSlice::new(&packet)]).unwrap();
    };
    let (reply, ()) = tokio::join!(session.read(request(0)), serving);
    let Payload::Shared(spans) = reply.unwrap().payload else { panic!("no view") };

    let refused = tokio::time::timeout(LONG, session.read(request(60_000))).await.unwrap();
    assert!(matches!(refused, Err(ReadError::Link(LinkError::Lost { .. }))), "{refused:?}");
    let end = tokio::time::timeout(LONG, running).await.unwrap().unwrap();
    assert!(!session.is_open() && matches!(end, LinkError::Lost { .. }), "{end}");
    // The worker learns what is seen no more from the end of the socket, which the views hold.
    drop(session);
    assert!(!worker.is_closed_by_peer());
    drop(spans);
    worker.until_closed_by_peer().await;
}
