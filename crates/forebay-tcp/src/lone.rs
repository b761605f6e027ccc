//! A connection that carries one call at a time, of a thread that waits for the answer itself.
//!
//! The runtime does not watch it: what arrives would wake one of its threads, and the thread that waits is awake already. So
//! between two calls nobody looks at it. That the peer has closed it, or said goodbye, is found by the next call, which then
//! goes over another connection: a request that was not answered here does no harm twice, as only reads come this way, and no
//! byte arrives for it any more once the connection is closed at this end.
//!
//! A call whose answer does not come in time is taken on by a [`Connection`](crate::connection::Connection), with all that has
//! arrived of it.

use std::io::{ErrorKind, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_transport::driving::Waits;
use forebay_transport::wire::{HEADER_LEN, RequestHeader};
use forebay_transport::{CallError, LinkError, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::connection::establish;
use crate::options::ClientOptions;
use crate::replies::{Call, Ended, Replies};
use crate::socket;

/// How often bytes are received before the thread looks at the clock: a peer may send without end.
const BURST: usize = 32;

/// See above.
#[derive(Debug)]
pub(crate) struct Lone {
    stream: TcpStream,
    replies: Replies,
    /// The number of the next call.
    next: u64,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Came {
    /// Its answer. The connection takes another call, if it is there: it may have ended behind the answer.
    Answered(Option<Lone>, Result<Reply, CallError>),
    /// Nothing yet, or a part of it.
    Late(LateCall),
    /// The connection has ended. Nothing writes to the call's buffer any more.
    Gone(Option<Call>),
}

/// A call that is to be waited for by others.
#[derive(Debug)]
pub(crate) struct LateCall {
    pub(crate) stream: TcpStream,
    pub(crate) replies: Replies,
    /// Its number on the wire.
    pub(crate) id: u64,
    /// The call, unless its answer is arriving: then it is with `replies`.
    pub(crate) call: Option<Call>,
    pub(crate) answered: oneshot::Receiver<Ended>,
}

/// What a look at the socket found.
enum Found {
    /// The answer. `is_last`: nothing that follows can be trusted, or will follow.
    Answer {
        result: Result<Reply, CallError>,
        is_last: bool,
    },
    End,
}

impl Lone {
    /// A connection to `peer`. `None`: all is encrypted, which is done by who has the keys.
    ///
    /// # Errors
    /// As for any connection.
    pub(crate) async fn connect(peer: &Arc<str>, options: &ClientOptions) -> Result<Option<Self>, LinkError> {
        let Some(stream) = establish(peer, options).await?.into_plain() else { return Ok(None) };
        // It stays one that does not wait.
        let stream = stream.into_std().map_err(|error| LinkError::Connect {
            peer: peer.to_string(),
            reason: format!("it cannot be had from the runtime: {error}"),
        })?;
        Ok(Some(Self { stream, replies: Replies::new(), next: 1 }))
    }

    /// Sends `request` and waits for its answer, which goes to `answered`, until then.
    pub(crate) fn call(
        mut self,
        request: &Request,
        call: Call,
        mut answered: oneshot::Receiver<Ended>,
        waits: &Waits,
        until: Instant,
    ) -> Came {
        let id = self.next;
        // 2^64 calls do not happen in the life of a connection.
        self.next += 1;
        let mut call = Some(call);
        if !self.send(id, request) {
            return Came::Gone(call);
        }
        let (stream, replies) = (&self.stream, &mut self.replies);
        let look = || look(stream, replies, id, &mut call, &mut answered);
        match waits.wait(until, look, |left| sleep(stream, left)) {
            Some(Found::Answer { result, is_last }) => Came::Answered((!is_last).then_some(self), result),
            Some(Found::End) => Came::Gone(call.or_else(|| self.replies.into_call())),
            None => Came::Late(LateCall { stream: self.stream, replies: self.replies, id, call, answered }),
        }
    }

    /// Whether the socket, which has nothing else to send, has taken all of it.
    fn send(&self, id: u64, request: &Request) -> bool {
        let head = RequestHeader::of(id, request).encode();
        let slices = [IoSlice::new(&head), IoSlice::new(&request.body), IoSlice::new(&request.tail)];
        let sent = socket::send_unasked(&self.stream, &slices, socket::flags(false));
        sent.is_ok_and(|sent| sent == HEADER_LEN + request.body_len())
    }
}

/// Takes in what has arrived, without waiting.
fn look(
    stream: &TcpStream,
    replies: &mut Replies,
    id: u64,
    call: &mut Option<Call>,
    answered: &mut oneshot::Receiver<Ended>,
) -> Option<Found> {
    for _ in 0..BURST {
        let received = replies.receive(|buffers| Ok(rustix::io::retry_on_intr(|| rustix::io::readv(stream, buffers))?));
        match received {
            Ok(0) => return Some(Found::End),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(_) => return Some(Found::End),
        }
        let delivered = replies.deliver(|number| call.take_if(|_| number == id));
        if let Err(broken) = &delivered {
            tracing::debug!(?broken, "a connection of a thread that waits for answers itself ended");
        }
        match answered.try_recv() {
            Ok(Ok(result)) => return Some(Found::Answer { result, is_last: delivered.is_err() }),
            Err(TryRecvError::Empty) if delivered.is_ok() => {}
            // Or it was given back, or dropped, which nothing does here.
            _ => return Some(Found::End),
        }
    }
    None
}

/// Sleeps until something arrives, for that long at most.
fn sleep(stream: &TcpStream, at_most: Duration) {
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    // If it fails, or a signal comes, there is one look more.
    let _ = poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_transport::conformance::{Behaviour, pool, read};
    use forebay_transport::wire::{CONNECTION_ID, ReplyHeader};
    use forebay_transport::{Payload, Provenance};
    use forebay_types::FailureKind;
    use tokio::sync::Semaphore;

    const LONG: Duration = Duration::from_secs(60);
    const LENGTH: u32 = 4096;

    fn pair() -> (Lone, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let peer = listener.accept().unwrap().0;
        peer.set_read_timeout(Some(LONG)).unwrap();
        (Lone { stream, replies: Replies::new(), next: 1 }, peer)
    }

    fn ask(lone: Lone, until: Instant) -> Came {
        let (answer, answered) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let into = pool(1).try_alloc(LENGTH as usize);
        let call = Call { into, limit: LENGTH, answer, load: None, permit };
        lone.call(&read(Behaviour::AtOnce, 0, 0, LENGTH, LONG), call, answered, &Waits::new(Duration::ZERO), until)
    }

    fn reply(id: u64) -> Vec<u8> {
        let length = if id == CONNECTION_ID { 0 } else { LENGTH };
        let provenance = Provenance::default();
        let header = ReplyHeader { id, failure: None, body_len: 0, payload_len: length, provenance };
        [&header.encode()[..], &vec![id as u8; length as usize][..]].concat()
    }

    /// Has a peer answer so many requests, in two pieces each.
    fn answers(mut peer: TcpStream, requests: u64) -> std::thread::JoinHandle<TcpStream> {
        std::thread::spawn(move || {
            for id in 1..=requests {
                let mut header = [0; HEADER_LEN];
                peer.read_exact(&mut header).unwrap();
                assert_eq!(RequestHeader::decode(&header).unwrap().id, id);
                let bytes = [reply(CONNECTION_ID), reply(id)].concat();
                peer.write_all(&bytes[..1000]).unwrap();
                peer.write_all(&bytes[1000..]).unwrap();
            }
            peer
        })
    }

    #[test]
    fn the_thread_that_asks_has_its_answers_one_after_the_other() {
        let (mut lone, peer) = pair();
        let peer = answers(peer, 3);
        for id in 1..=3u8 {
            let Came::Answered(again, result) = ask(lone, Instant::now() + LONG) else { panic!("no answer") };
            let Payload::Landed(span) = result.unwrap().payload else { panic!("no payload") };
            assert!(span.len() == LENGTH as usize && span.iter().all(|byte| *byte == id));
            lone = again.unwrap();
        }
        drop(peer.join().unwrap());
    }

    /// Waits until so many bytes are there to be received.
    fn until_here(lone: &Lone, bytes: usize) {
        let begun = Instant::now();
        while !lone.stream.peek(&mut vec![0; bytes]).is_ok_and(|count| count == bytes) {
            assert!(begun.elapsed() < LONG, "they do not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_comes_before_a_goodbye_is_an_answer_and_the_connection_is_not_used_again() {
        let (lone, mut peer) = pair();
        let (failure, provenance) = (Some(FailureKind::NotReady), Provenance::default());
        let goodbye = ReplyHeader { id: CONNECTION_ID, failure, body_len: 3, payload_len: 0, provenance };
        let bytes = [&reply(1)[..], &goodbye.encode()[..], &b"bye"[..]].concat();
        peer.write_all(&bytes).unwrap();
        until_here(&lone, bytes.len());
        let Came::Answered(again, result) = ask(lone, Instant::now() + LONG) else { panic!("no answer") };
        assert!(again.is_none() && result.is_ok());
    }

    #[test]
    fn a_peer_that_says_something_else_without_end_is_waited_for_no_longer_than_that() {
        let (lone, mut peer) = pair();
        let is_over = Arc::new(AtomicBool::new(false));
        let chatter = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let pongs = reply(CONNECTION_ID).repeat(1000);
                while !is_over.load(Ordering::Relaxed) && peer.write_all(&pongs).is_ok() {}
            }
        });
        let came = ask(lone, Instant::now() + Duration::from_millis(20));
        assert!(matches!(&came, Came::Late(late) if late.call.is_some()), "{came:?}");
        is_over.store(true, Ordering::Relaxed);
        drop(came);
        chatter.join().unwrap();
    }

    #[test]
    fn what_is_late_goes_on_with_all_that_has_arrived() {
        let (lone, mut peer) = pair();
        let bytes = reply(1);
        peer.write_all(&bytes[..100]).unwrap();
        until_here(&lone, 100);
        let Came::Late(late) = ask(lone, Instant::now() + Duration::from_millis(20)) else { panic!("it is not late") };
        let is_arriving = late.call.is_none() && late.replies.is_partial();
        assert!(is_arriving || late.call.is_some(), "the call is here or there");
        assert_eq!(late.id, 1);
    }

    #[test]
    fn a_connection_that_has_ended_gives_the_call_back() {
        let (lone, peer) = pair();
        drop(peer);
        let Came::Gone(Some(call)) = ask(lone, Instant::now() + LONG) else { panic!("it goes on") };
        assert_eq!(call.into.map(|into| into.len()), Some(LENGTH as usize));

        let (lone, mut peer) = pair();
        peer.write_all(&reply(7)).unwrap();
        let Came::Gone(call) = ask(lone, Instant::now() + LONG) else { panic!("it believes what nobody asked") };
        assert!(call.is_some());
    }

    #[test]
    fn a_peer_that_ends_in_the_middle_of_an_answer_gives_the_call_back_too() {
        let (lone, mut peer) = pair();
        peer.write_all(&reply(1)[..2000]).unwrap();
        drop(peer);
        let Came::Gone(Some(call)) = ask(lone, Instant::now() + LONG) else { panic!("it goes on") };
        assert!(call.into.is_some(), "nobody writes to its buffer");
    }
}
