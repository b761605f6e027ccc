//! What a fuzzer sends to a client over UCX whose calls wait for their answers: replies whose payload comes with them, and such that
//! announce it, which is then fetched, or is not. There is no UCX below.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_identity::Pass;
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_transport::wire::{HEADER_LEN, ReplyHeader};
use forebay_transport::{CallError, Payload};
use forebay_types::{ByteSize, MAX_BLOCK_SIZE};
use forebay_ucx::{Error, Status, Version};
use tokio::sync::Semaphore;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{self, Receiver};

use crate::client_link::{Answer, Call, LinkState};
use crate::fuzzing::Data;
use crate::gauges::Gauges;
use crate::options::ClientOptions;
use crate::ucx::exchange::{self, Announced};
use crate::wire::{self, check_hello};

/// Both sides'.
const VERSION: Version = Version { major: 1, minor: 20, patch: 0 };
/// What is fetched.
const LANDED: u8 = 0x5a;

thread_local! {
    /// Where payload goes.
    static POOL: Pool = {
        let options = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) };
        Pool::new(options).unwrap_or_else(|error| unreachable!("{error}"))
    };
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Somebody asks for at most so many bytes.
    Call {
        /// How many.
        limit: u16,
    },
    /// Whoever made a call leaves.
    Leave {
        /// Which call.
        which: u8,
    },
    /// A hello arrives.
    Welcome(&'a [u8]),
    /// A reply arrives.
    Reply {
        /// Its header.
        header: &'a [u8],
        /// Its data.
        data: Data<'a>,
    },
    /// A payload that was announced has been fetched.
    Fetched {
        /// Which.
        which: u8,
        /// How that ended.
        end: FetchEnd,
    },
}

/// How a fetch ends.
#[derive(Clone, Copy, Debug)]
pub enum FetchEnd {
    /// So many bytes arrived, or all.
    Bytes(u16),
    /// UCX has no memory for it.
    NoMemory,
    /// The connection ended.
    Canceled,
}

/// All of it happens on a connection on which each side shows its half of `pass`, and whose peer has said hello before, or not.
///
/// # Panics
/// When a call ends by what is no answer to it, with other bytes than were sent, or more than were asked for; when what is announced has no
/// room; when a message counts that shows no pass, or a peer is greeted that may not be; when a buffer stays in use; when a reason is more
/// than a line of a log.
pub fn answers(pass: Option<(u64, u64)>, is_greeted: bool, steps: &[Step<'_>]) {
    let pass = pass.map(|(client, server)| Pass { client, server });
    let state = LinkState::new(&Arc::from("w1:29999"), pass, &ClientOptions::new("prod", MAX_BLOCK_SIZE));
    state.greeted.set(is_greeted);
    let mut client = Client { state, gauges: Gauges::default(), calls: Vec::new(), fetching: Vec::new() };
    for step in steps {
        match *step {
            Step::Call { limit } => client.call(limit),
            Step::Leave { which } => client.leave(which),
            Step::Welcome(hello) => client.welcome(hello),
            Step::Reply { header, data } => client.reply(header, data),
            Step::Fetched { which, end } => client.fetched(which, end),
        }
    }
    let broken = client.state.broken.take();
    if let Some(why) = broken {
        is_one_line(&why.to_string());
    }
    drop(client);
    assert_eq!(POOL.with(Pool::used), 0, "a buffer stays in use");
}

/// A call, as whoever made it sees it.
struct Asked {
    id: u64,
    limit: u32,
    /// `None`: it has come, or is not waited for.
    answer: Option<Receiver<Answer>>,
}

struct Client {
    state: LinkState,
    gauges: Gauges,
    calls: Vec<Asked>,
    /// What is being fetched, by the number of its call, and to where.
    fetching: Vec<(u64, Announced, SpanMut)>,
}

impl Client {
    fn call(&mut self, limit: u16) {
        let (answer, answered) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let permit = permit.unwrap_or_else(|_| unreachable!("it is the only one"));
        let into = if limit == 0 { None } else { POOL.with(|pool| pool.try_alloc(limit.into())) };
        let limit: u32 = if into.is_some() { limit.into() } else { 0 };
        let call = Call { into, window: None, came: 0, limit, answer, timing: None, _permit: permit };
        let begun = self.state.calls.borrow_mut().begin(call);
        if let Ok(begun) = begun {
            self.calls.push(Asked { id: begun.id, limit, answer: Some(answered) });
        }
    }

    fn leave(&mut self, which: u8) {
        let count = self.calls.len().max(1);
        if let Some(asked) = self.calls.get_mut(usize::from(which) % count) {
            asked.answer = None;
        }
    }

    fn welcome(&self, hello: &[u8]) {
        let was_greeted = self.state.greeted.get();
        let is_right = |tag: u64| self.state.pass.is_none_or(|pass| pass.server == tag);
        let fits = check_hello(&self.state.hello, VERSION, hello).is_ok_and(is_right);
        exchange::welcome(&self.state, &self.gauges, VERSION, hello);
        assert_eq!(self.state.greeted.get(), was_greeted || fits);
    }

    fn reply(&mut self, header: &[u8], data: Data<'_>) {
        let forged = self.gauges.forged.load(Ordering::Relaxed);
        let is_greeted = self.state.greeted.get();
        let shows = !is_greeted || self.state.pass.is_none_or(|pass| wire::carries(header, pass.server));
        let read = header.first_chunk::<HEADER_LEN>().and_then(|head| ReplyHeader::decode(head).ok());
        let read = read.filter(|_| shows);
        match exchange::answer(&self.state, &self.gauges, header, data.into()) {
            Ok(Some(announced)) => {
                let Some(read) = &read else { unreachable!("what shows nothing is fetched") };
                self.announced(announced, read, data);
            }
            Ok(None) => {}
            Err(reason) => {
                assert!(shows, "who is lied about goes on: {reason}");
                is_one_line(&reason);
                self.state.protocol(reason);
            }
        }
        assert_eq!(self.gauges.forged.load(Ordering::Relaxed), forged + u64::from(!shows));
        for asked in &mut self.calls {
            let Some(answer) = &mut asked.answer else { continue };
            let ended = match answer.try_recv() {
                Ok(ended) => ended,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Closed) => unreachable!("a call ends without an answer"),
            };
            asked.answer = None;
            match &read {
                Some(read) if read.id == asked.id => is_answer(read, asked.limit, header, data, ended),
                _ => unreachable!("call {} is answered by another's message", asked.id),
            }
        }
    }

    fn announced(&mut self, mut announced: Announced, read: &ReplyHeader, data: Data<'_>) {
        let Data::Rendezvous(length) = data else { unreachable!("it is fetched, and it is here") };
        assert!(read.failure.is_none() && length == read.payload_len as usize && announced.call.has_caller());
        let into = announced.call.into.take().filter(|into| into.len() >= length);
        let Some(mut into) = into else { unreachable!("there is no room for what is announced") };
        // UCX gets no more of it.
        into.truncate(length);
        self.fetching.push((read.id, announced, into));
    }

    fn fetched(&mut self, which: u8, end: FetchEnd) {
        if self.fetching.is_empty() {
            return;
        }
        let which = usize::from(which) % self.fetching.len();
        let (id, announced, mut into) = self.fetching.swap_remove(which);
        let length = into.len();
        into.fill(LANDED);
        let outcome = match end {
            FetchEnd::Bytes(count) => Ok(length.min(count.into())),
            FetchEnd::NoMemory => Err(Error::Ended(Status::NO_MEMORY)),
            FetchEnd::Canceled => Err(Error::Ended(Status::CANCELED)),
        };
        let is_whole = matches!(outcome, Ok(count) if count == length);
        announced.ended(&self.state, Some(into), outcome);
        let asked = self.calls.iter_mut().find(|asked| asked.id == id);
        let Some(mut answer) = asked.and_then(|asked| asked.answer.take()) else { return };
        match answer.try_recv() {
            Ok(Ok(reply)) => {
                let Payload::Landed(span) = reply.payload else { unreachable!("a payload does not land") };
                assert!(is_whole && span.len() == length && span.iter().all(|byte| *byte == LANDED));
            }
            Ok(Err(error)) => {
                assert!(!is_whole, "{error}");
                is_one_line(&error.to_string());
            }
            Err(error) => unreachable!("what was fetched is no answer: {error}"),
        }
    }
}

/// A call for at most `limit` bytes ended so by the message with this header and this data.
fn is_answer(read: &ReplyHeader, limit: u32, header: &[u8], data: Data<'_>, ended: Answer) {
    match ended {
        Ok(reply) => {
            assert!(read.failure.is_none() && read.payload_len <= limit);
            let inline = &header[HEADER_LEN..];
            let (body, payload) = match data {
                Data::Eager(bytes) if inline.len() == read.body_len as usize => (inline, bytes),
                Data::Eager(bytes) => (bytes, &bytes[..0]),
                Data::Rendezvous(length) => {
                    assert_eq!(length, 0, "what waits at the sender is not here");
                    (inline, &inline[..0])
                }
            };
            assert_eq!((reply.provenance, &reply.body[..]), (read.provenance, body));
            match reply.payload {
                Payload::Landed(span) => assert_eq!(&span[..], payload),
                Payload::None => assert!(payload.is_empty(), "nobody asked for payload"),
                Payload::Shared(_) => unreachable!("nothing is shared over UCX"),
            }
        }
        Err(CallError::Service(failure)) => {
            assert_eq!(read.failure, Some(failure.kind()));
            is_one_line(failure.message());
        }
        Err(CallError::Link(error)) => {
            assert!(read.payload_len > limit, "{error}");
            is_one_line(&error.to_string());
        }
    }
}

fn is_one_line(told: &str) {
    assert!(!told.contains(char::is_control), "{told:?}");
}
