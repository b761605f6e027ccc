//! One connection of a client: the shell around [`Outstanding`], [`Replies`] and [`Liveness`].
//!
//! A caller's own task sends its request, when nothing is queued before it; one task receives, sends what did not fit
//! into the socket, and watches for silence. A short request on a connection that is busy with others is left to that task:
//! by the time when it has its turn, those whose answers came together have asked again, and leave by one system call.

use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_transport::connection::{Liveness, Outstanding, Verdict};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, HELLO_LEN, Hello, ReplyHeader, RequestHeader, WireError};
use forebay_transport::{LinkError, Op, Request};
use forebay_types::{Failure, FailureKind};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::channel::Channel;
use crate::opening::open;
use crate::options::{ClientOptions, LARGE_BODY};
use crate::records::Records;
use crate::replies::{Broken, Call, Replies, is_refusal, is_unread, refusal};
use crate::security::{is_encrypted, link_error, turned_away};
use crate::socket;
use crate::unsent::{Message, Unsent};

/// Bytes after which the task looks at what has arrived again.
const TURN: usize = 4 << 20;
/// How long the peer may take no more bytes of a large body: it has no memory for it before it is done with others, and says
/// meanwhile that it lives, which the kernel does not know.
const CLOSED_WINDOW: Duration = Duration::from_secs(600);

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    peer: Arc<str>,
    channel: Channel,
    keepalive: Duration,
    dead_after: Duration,
    calls: Mutex<Outstanding<Call>>,
    /// Whether `calls` takes more, for those that choose a connection.
    accepting: AtomicBool,
    /// What is not sent yet: the socket did not take it, or it waits for company.
    unsent: Mutex<Unsent>,
    /// The task has something to do that the socket does not tell it.
    wake: Notify,
}

/// Ends the connection when its task does, however that ends: also when its runtime goes away under it.
struct EndsWithTask<'a>(&'a Connection);

impl Drop for EndsWithTask<'_> {
    fn drop(&mut self) {
        let error = LinkError::Lost { peer: self.0.peer.to_string(), reason: "its task was stopped".to_owned() };
        self.0.end(&error, None);
    }
}

impl Connection {
    /// Connects to `peer`, a host and a port or a Unix socket, and exchanges hellos.
    ///
    /// # Errors
    /// [`LinkError::Connect`], and [`LinkError::Refused`] or [`LinkError::Unproved`] when the other side is not one that we may
    /// talk to.
    pub(crate) async fn connect(peer: &Arc<str>, options: &ClientOptions) -> Result<Self, LinkError> {
        let channel = establish(peer, options).await?;
        Ok(Self::over(peer, channel, Outstanding::new(options.max_abandoned), options))
    }

    fn over(peer: &Arc<str>, channel: Channel, calls: Outstanding<Call>, options: &ClientOptions) -> Self {
        Self {
            peer: Arc::clone(peer),
            channel,
            keepalive: options.keepalive,
            dead_after: options.dead_after,
            accepting: AtomicBool::new(calls.is_accepting()),
            calls: Mutex::new(calls),
            unsent: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// One that a thread drove itself until its call was late, which has the number `id`; if `call` is not here, its answer is arriving.
    /// It takes no other, and ends with this one.
    pub(crate) fn of_late(
        peer: &Arc<str>,
        stream: TcpStream,
        id: u64,
        call: Option<Call>,
        options: &ClientOptions,
    ) -> Self {
        let mut calls = Outstanding::beginning_at(id, 0);
        if let Some(call) = call {
            // It is the first, and none is refused yet.
            let _ = calls.begin(call);
        }
        calls.retire();
        let connection = Self::over(peer, Channel::new(stream, None), calls, options);
        // Its task begins to watch for silence at once.
        connection.wake.notify_one();
        connection
    }

    /// Whether new calls may start.
    pub(crate) fn is_open(&self) -> bool {
        self.accepting.load(Ordering::Acquire)
    }

    /// Sends `request`, or gives its call back when the connection takes no more. The number is for
    /// [`Connection::abandon`]. `is_patient`: it may wait for others to leave together with it, as there are calls under way.
    pub(crate) fn start(&self, request: &Request, call: Call, is_patient: bool) -> Result<u64, Call> {
        let begun = self.calls.lock().begin(call)?;
        if request.body_len() > LARGE_BODY {
            // If it cannot be set, the connection may be lost too soon, and the call be made again.
            let _ = socket::bear_closed_window(self.channel.stream(), CLOSED_WINDOW);
        }
        let complete = self.send(begun.id, request, is_patient);
        if begun.watch || !complete {
            self.wake.notify_one();
        }
        Ok(begun.id)
    }

    /// The caller of `id` has left. What has not begun to be sent is not sent any more.
    pub(crate) fn abandon(&self, id: u64) {
        let withdrawn = self.unsent.lock().withdraw(id);
        let mut calls = self.calls.lock();
        let call = if withdrawn { calls.take(id) } else { None };
        // Nothing is written to its buffer before its reply begins to arrive, which is received aside then: so the caller has it
        // back now, and not when the worker answers.
        let into = calls.call_mut(id).and_then(|call| call.into.take());
        let spent = if withdrawn { calls.is_spent() } else { calls.abandon(id) };
        self.accepting.store(calls.is_accepting(), Ordering::Release);
        drop(calls);
        // Gives its memory back, which is no work to be done under the lock.
        drop((call, into));
        if spent {
            self.wake.notify_one();
        }
    }

    /// Sends a request, or queues it, or what the socket does not take of it. False when the task is to be told that there is
    /// something left for it, which also meets, and reports, whatever error there was.
    fn send(&self, id: u64, request: &Request, is_patient: bool) -> bool {
        let head = RequestHeader::of(id, request).encode();
        let mut unsent = self.unsent.lock();
        let (is_first, mut sent) = (unsent.is_empty(), 0);
        if is_first && !is_patient {
            let slices = [IoSlice::new(&head), IoSlice::new(&request.body), IoSlice::new(&request.tail)];
            let count = if request.tail.is_empty() { 2 } else { 3 };
            sent = self.channel.send(&slices[..count], false).unwrap_or(0);
            if sent == HEADER_LEN + request.body_len() {
                return self.channel.is_flushed();
            }
        }
        unsent.push(Message { id, head, body: request.body.clone(), tail: request.tail.clone(), sent });
        // Of what is queued before it, the task knows.
        !is_first
    }

    /// Sends what was queued, up to a turn's worth. False while something is left.
    fn send_queued(&self) -> io::Result<bool> {
        let mut unsent = self.unsent.lock();
        let mut total = 0;
        while !unsent.is_empty() && total < TURN {
            let outcome = {
                let slices = unsent.gather();
                self.channel.send(&slices, false)
            };
            match outcome {
                Ok(sent) => {
                    total += sent;
                    unsent.sent(sent);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(unsent.is_empty() && self.channel.flush()?)
    }

    /// Takes no more calls, and only then fails those that are left, `arriving` among them: a caller that learns that this
    /// connection is lost must get another one for its next call.
    fn end(&self, error: &LinkError, arriving: Option<Call>) {
        for call in self.retire().into_iter().chain(arriving) {
            call.fail(error.clone().into());
        }
    }

    /// Takes no more calls, and only then gives back those that are left: the peer has looked at none of them. Of one that
    /// was sent in part, or is still queued, it has not even heard.
    fn give_back(&self) {
        self.retire().into_iter().for_each(Call::give_back);
    }

    /// Takes no more calls; those that are left.
    fn retire(&self) -> Vec<Call> {
        let mut calls = self.calls.lock();
        self.accepting.store(false, Ordering::Release);
        calls.end()
    }

    /// Receives until the connection ends, or is told to. `replies` has what has arrived before.
    pub(crate) async fn run(&self, mut replies: Replies, stop: &CancellationToken) {
        let _ends = EndsWithTask(self);
        let error = self.receive(&mut replies, stop).await;
        tracing::debug!(peer = %self.peer, %error, "connection ended");
        self.end(&error, replies.into_call());
        // Callers may hold the connection for a moment yet; the peer need not wait for them. It may be gone already.
        let _ = SockRef::from(self.channel.stream()).shutdown(Shutdown::Both);
    }

    async fn receive(&self, replies: &mut Replies, stop: &CancellationToken) -> LinkError {
        let mut liveness = Liveness::new(self.keepalive, self.dead_after, Instant::now());
        let mut timer = pin!(tokio::time::sleep(self.keepalive));
        let mut watching = replies.is_partial();
        loop {
            let all_sent = match self.send_queued() {
                Ok(all_sent) => all_sent,
                Err(error) => return self.lost(error),
            };
            // Biased: what has arrived is looked at before the clock says that nothing did.
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.lost("it was closed"),
                ready = self.channel.readable() => {
                    let received = ready.and_then(|()| replies.receive(|buffers| self.channel.receive(buffers)));
                    match received {
                        Ok(0) if replies.is_partial() => return self.lost("the peer closed it in the middle of a reply"),
                        Ok(0) => return self.lost("the peer closed it"),
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                        Err(error) => return self.lost(error),
                    }
                    liveness.heard(Instant::now());
                    if let Err(broken) = replies.deliver(|id| self.calls.lock().take(id)) {
                        if is_unread(&broken) {
                            self.give_back();
                        }
                        return self.broken(broken);
                    }
                    if self.channel.is_worn() {
                        self.accepting.store(false, Ordering::Release);
                        self.calls.lock().retire();
                    }
                    // One whose answer arrives is none of the calls any more, and its caller still waits.
                    if !replies.is_partial() && self.calls.lock().is_spent() {
                        return self.spent();
                    }
                }
                ready = self.channel.stream().writable(), if !all_sent => if let Err(error) = ready {
                    return self.lost(error);
                },
                () = self.wake.notified() => {
                    {
                        let mut calls = self.calls.lock();
                        if !replies.is_partial() && calls.is_spent() {
                            return self.spent();
                        }
                        if !watching && calls.watch() {
                            watching = true;
                            liveness.heard(Instant::now());
                            timer.as_mut().reset(tokio::time::Instant::now() + self.keepalive);
                        }
                    }
                    let has_more = !self.unsent.lock().is_empty();
                    if has_more {
                        // Other callers that are ready to ask do so first.
                        tokio::task::yield_now().await;
                    }
                }
                () = &mut timer, if watching => {
                    watching = self.calls.lock().watch() || replies.is_partial();
                    if !watching {
                        continue;
                    }
                    let again = match liveness.check(Instant::now()) {
                        Verdict::Wait(until) => until,
                        Verdict::Ping(until) => {
                            self.ping();
                            until
                        }
                        Verdict::Dead => return self.lost(format_args!("nothing heard for {:?}", self.dead_after)),
                    };
                    timer.as_mut().reset(again.into());
                }
            }
        }
    }

    fn ping(&self) {
        let ping = Request::on_path(Op::Ping, Bytes::new(), self.dead_after);
        self.send(CONNECTION_ID, &ping, false);
    }

    /// Why it ends when it takes no more calls and nobody waits for those that it has.
    fn spent(&self) -> LinkError {
        let worn = self.channel.is_worn();
        self.lost(if worn { "its keys have protected enough" } else { "too many of its calls were given up" })
    }

    fn lost(&self, reason: impl std::fmt::Display) -> LinkError {
        LinkError::Lost { peer: self.peer.to_string(), reason: reason.to_string() }
    }

    fn broken(&self, broken: Broken) -> LinkError {
        let peer = self.peer.to_string();
        match broken {
            Broken::Protocol(reason) => LinkError::Protocol { peer, reason },
            Broken::Goodbye(why) if is_refusal(&why) => refused(peer, &why),
            Broken::Goodbye(why) => LinkError::Lost { peer, reason: why.message().to_owned() },
        }
    }
}

/// What it means that `peer` would not have us: also who is admitted may be denied later, or ask for what it may not.
fn refused(peer: String, why: &Failure) -> LinkError {
    let reason = why.message().to_owned();
    match why.kind() {
        FailureKind::PermissionDenied => LinkError::Unproved { peer, reason },
        _ => LinkError::Refused { peer, reason },
    }
}

/// Connects to `peer`, a host and a port or a Unix socket, and exchanges hellos.
///
/// # Errors
/// As for [`Connection::connect`].
pub(crate) async fn establish(peer: &Arc<str>, options: &ClientOptions) -> Result<Channel, LinkError> {
    let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
    let attempt = async {
        let opened = open(peer, options.bind, options.connect_timeout).await;
        let mut stream = opened.map_err(|error| failed(error.to_string()))?;
        socket::tune(&stream, options.dead_after).map_err(|error| failed(error.to_string()))?;
        let hello = Hello::ours(&options.cluster, options.block_size);
        let records = match &options.security {
            None => {
                greet(&mut stream, peer, &hello, true).await?;
                hear_pong(&mut stream, peer).await?;
                None
            }
            Some(security) => {
                let mut tls = security.connect(&mut stream, peer).await?;
                greet(&mut tls, peer, &hello, false).await?;
                let sent = |outcome: io::Result<()>| outcome.map_err(|error| failed(error.to_string()));
                if is_encrypted(tls.get_ref().1) {
                    sent(send_ping(&mut tls).await)?;
                    hear_pong(&mut tls, peer).await?;
                    let records = Records::new(tls.into_inner().1.into(), options.max_records);
                    Some(records.map_err(|error| failed(error.to_string()))?)
                } else {
                    drop(tls);
                    sent(send_ping(&mut stream).await)?;
                    hear_pong(&mut stream, peer).await?;
                    None
                }
            }
        };
        Ok(Channel::new(stream, records))
    };
    match tokio::time::timeout(options.connect_timeout, attempt).await {
        Ok(channel) => channel,
        Err(_) => Err(failed(format!("no answer within {:?}", options.connect_timeout))),
    }
}

/// Exchanges hellos. A ping goes with ours, unless what carries the hellos, which is TLS, ends with them.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &Arc<str>,
    ours: &Hello,
    with_ping: bool,
) -> Result<(), LinkError> {
    let refused = |reason: String| LinkError::Refused { peer: peer.to_string(), reason };
    let closed = || {
        let reason = "it closed the connection before it said hello".to_owned();
        LinkError::Connect { peer: peer.to_string(), reason }
    };
    // Over TLS we hear only now that our certificate was refused.
    let failed_io = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => closed(),
        _ => link_error(peer, &error),
    };
    let mut first = ours.encode().to_vec();
    if with_ping {
        first.extend_from_slice(&ping());
    }
    stream.write_all(&first).await.map_err(failed_io)?;
    stream.flush().await.map_err(failed_io)?;
    let mut theirs = [0; HELLO_LEN];
    let mut received = 0;
    while received < HELLO_LEN {
        match stream.read(&mut theirs[received..]).await.map_err(failed_io)? {
            0 => break,
            count => received += count,
        }
    }
    if let Some(error) = turned_away(peer, &theirs[..received], !with_ping) {
        return Err(error);
    }
    let checked = ours.check(&theirs);
    // A short answer that is no hello, such as a web server's, tells more than that the connection was closed.
    let is_other = received > 0 && matches!(checked, Err(WireError::Magic(_)));
    if received < HELLO_LEN && !is_other {
        return Err(closed());
    }
    checked.map(drop).map_err(|error| refused(error.to_string()))
}

fn ping() -> [u8; HEADER_LEN] {
    RequestHeader::of(CONNECTION_ID, &Request::on_path(Op::Ping, Bytes::new(), Duration::ZERO)).encode()
}

async fn send_ping(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(&ping()).await?;
    stream.flush().await
}

/// Waits until the peer has answered the ping that went with our hello, or after it: only then has it taken us.
async fn hear_pong(stream: &mut (impl AsyncRead + Unpin), peer: &Arc<str>) -> Result<(), LinkError> {
    let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
    let failed_io = |error: io::Error| failed(error.to_string());
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await.map_err(failed_io)?;
    let broken = |reason| LinkError::Protocol { peer: peer.to_string(), reason };
    let header = ReplyHeader::decode(&header).map_err(|error| broken(error.to_string()))?;
    if header.id != CONNECTION_ID {
        return Err(broken("it answered what nobody asked".to_owned()));
    }
    if let Some(reason) = refusal(&header, None) {
        return Err(broken(reason));
    }
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await.map_err(failed_io)?;
    match header.failure(&body) {
        None => Ok(()),
        Some(why) if is_refusal(&why) => Err(refused(peer.to_string(), &why)),
        Some(why) => Err(failed(why.message().to_owned())),
    }
}
