//! The transport over verbs, on the two devices that the environment names, and peers there that break the protocol.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::Pool;
use forebay_rdma::verbs::{VerbsOptions, VerbsServer, VerbsThread};
use forebay_rdma::{ClientOptions, FabricOptions, RdmaTransport, ServerOptions, ServerSecurity};
use forebay_transport::Service;
use forebay_transport::wire::{HEADER_LEN, ReplyHeader};
use forebay_types::ByteSize;
use forebay_verbs::{
    CompletionChannel, CompletionQueue, Device, Domain, Ended, Event, EventChannel, EventKind, Handshake, Id, Library,
    PathOptions, Post, QueuePair, QueuePairOptions, Read, ReadDone, Reading, Registration, Shown,
};

use super::{BLOCK_SIZE, CLUSTER, client_options, ours, pool, skipped};

/// Names the devices and their addresses: `rxe0,10.77.0.1,rxe1,10.77.0.2`, the server's first.
const DEVICES: &str = "FOREBAY_TEST_VERBS";
/// How long what must happen may take, on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a card may be without acknowledgement: 2 s for each attempt, less than a client takes for death. Soft-RoCE sends again what was
/// only late, by a timer that it does not set anew for each request; it then binds windows once more that are bound, and may give
/// packets new numbers, either of which ends a connection that lost nothing (ADR 0032).
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// The kinds of frames.
pub(crate) const HELLO: u8 = 1;
pub(crate) const REQUEST: u8 = 2;
pub(crate) const REPLY: u8 = 3;
pub(crate) const WELCOME: u8 = 4;
pub(crate) const CREDITS: u8 = 5;
pub(crate) const MORE: u8 = 6;
pub(crate) const OPENED: u8 = 7;
pub(crate) const FORGET: u8 = 8;
pub(crate) const FORGOTTEN: u8 = 9;
pub(crate) const PAYLOAD: u8 = 10;

/// The two devices.
pub(crate) struct Devices {
    pub(crate) server: (String, IpAddr),
    pub(crate) client: (String, IpAddr),
}

/// The devices, or `None` with a word about why not.
pub(crate) fn devices() -> Option<Devices> {
    let Ok(named) = std::env::var(DEVICES) else {
        skipped(format!("{DEVICES} names no devices; in the virtual machine it does (make test-rdma)"));
        return None;
    };
    let [server, server_address, client, client_address] = named.split(',').collect::<Vec<_>>()[..] else {
        panic!("{DEVICES} is {named}")
    };
    // Why a card has given up a connection, its thread tells the log alone. Another test may have set it.
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let _ = log.with_writer(std::io::stderr).try_init();
    let address = |text: &str| text.parse().unwrap();
    Some(Devices {
        server: (server.to_owned(), address(server_address)),
        client: (client.to_owned(), address(client_address)),
    })
}

impl Devices {
    pub(crate) fn thread(device: &(String, IpAddr), pool: Pool) -> Arc<VerbsThread> {
        Self::thread_on(device, pool, FabricOptions::default())
    }

    /// One that asks something of the fabric.
    pub(crate) fn thread_on((device, _): &(String, IpAddr), pool: Pool, fabric: FabricOptions) -> Arc<VerbsThread> {
        Self::start(VerbsOptions { fabric, ..Self::options(device, pool) })
    }

    fn options(device: &str, pool: Pool) -> VerbsOptions {
        let registered = pool.capacity();
        VerbsOptions { unacknowledged: UNACKNOWLEDGED, ..VerbsOptions::new(device, pool, registered) }
    }

    fn start(options: VerbsOptions) -> Arc<VerbsThread> {
        Arc::new(VerbsThread::start(Library::load().unwrap(), options).unwrap())
    }

    pub(crate) async fn serve(
        &self,
        port: u16,
        service: Arc<dyn Service>,
        security: Option<ServerSecurity>,
    ) -> VerbsServer {
        let address = SocketAddr::new(self.server.1, port);
        let options = ServerOptions { security, ..ServerOptions::new(address, CLUSTER, BLOCK_SIZE) };
        VerbsServer::bind(Self::thread(&self.server, pool(8)), options, service).await.unwrap()
    }

    /// A link whose thread has `memory` registered.
    pub(crate) fn link(&self, server: SocketAddr, options: ClientOptions, memory: Pool) -> Arc<RdmaTransport> {
        self.link_by(server, options, memory, None)
    }

    /// The same, whose payload comes in messages, into so many bytes of `buffers`, if that is said.
    pub(crate) fn link_by(
        &self,
        server: SocketAddr,
        options: ClientOptions,
        memory: Pool,
        buffers: Option<ByteSize>,
    ) -> Arc<RdmaTransport> {
        let options = ClientOptions { bind: Some(self.client.1), ..options };
        let defaults = Self::options(&self.client.0, memory);
        let receive_buffers = buffers.unwrap_or(defaults.receive_buffers);
        let thread = Self::start(VerbsOptions { windows: buffers.is_none(), receive_buffers, ..defaults });
        Arc::new(RdmaTransport::over_verbs(server.to_string(), thread, options))
    }

    /// A link that behaves.
    pub(crate) fn good_link(&self, server: SocketAddr) -> Arc<RdmaTransport> {
        self.link(server, client_options(), pool(8))
    }
}

/// What a peer by hand tells rdma_cm: that it takes so many frames of so many bytes.
pub(crate) fn offer(credits: u16, frame_length: u32) -> Vec<u8> {
    let mut offer = b"FBVB\x01\x00".to_vec();
    offer.extend_from_slice(&credits.to_le_bytes());
    offer.extend_from_slice(&frame_length.to_le_bytes());
    offer.resize(24, 0);
    offer
}

/// The same of one that reads memory by itself, or lets others read its own.
pub(crate) fn one_sided_offer(credits: u16, frame_length: u32) -> Vec<u8> {
    let mut offer = offer(credits, frame_length);
    offer[12] = 1;
    offer
}

/// The same of a client whose card has no memory windows, or of a server that sends payload in messages.
pub(crate) fn messages_offer(credits: u16, frame_length: u32) -> Vec<u8> {
    let mut offer = offer(credits, frame_length);
    offer[12] = 2;
    offer
}

/// A frame that returns credits.
pub(crate) fn frame_with(kind: u8, credits: u16, (key, address): (u32, u64), message: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, 0];
    frame.extend_from_slice(&credits.to_le_bytes());
    frame.extend_from_slice(&key.to_le_bytes());
    frame.extend_from_slice(&address.to_le_bytes());
    frame.extend_from_slice(message);
    frame
}

pub(crate) fn frame(kind: u8, message: &[u8]) -> Vec<u8> {
    frame_with(kind, 0, (0, 0), message)
}

pub(crate) fn hello() -> Vec<u8> {
    [&ours().encode()[..], &[0; 8]].concat()
}

/// A peer by hand, on this thread.
pub(crate) struct Raw {
    events: Arc<EventChannel>,
    queue: Arc<CompletionQueue>,
    pub(crate) registration: Arc<Registration>,
    reading: Reading,
    in_messages: bool,
}

impl Raw {
    pub(crate) fn new(device: &(String, IpAddr)) -> Self {
        Self::reading(device, Reading::None)
    }

    /// The same, which reads the memory of its peers, or has them read its own.
    pub(crate) fn reading((device, _): &(String, IpAddr), reading: Reading) -> Self {
        let library = Library::load().unwrap();
        let device = Device::open(library, device).unwrap();
        let channel = CompletionChannel::new(&device).unwrap();
        let queue = CompletionQueue::new(&channel, 4096).unwrap();
        let memory = pool(8);
        let registration = Registration::growing(&Domain::new(device).unwrap(), &memory, memory.capacity());
        registration.grow_with(memory.capacity(), |_| true).unwrap();
        let (events, registration) = (EventChannel::new(library).unwrap(), Arc::new(registration));
        Self { events, queue, registration, reading, in_messages: false }
    }

    /// The same, which sends payload in messages.
    pub(crate) fn in_messages(device: &(String, IpAddr)) -> Self {
        Self { in_messages: true, ..Self::new(device) }
    }

    /// The next event that is about more than that a number may be used again.
    fn event(&self, what: &str) -> Event {
        wait(what, || self.events.next_event().unwrap().filter(|event| event.kind != EventKind::TimewaitExit))
    }

    /// Connects; the words of a rejection otherwise.
    pub(crate) fn connect(&self, devices: &Devices, to: SocketAddr, offer: &[u8]) -> Result<RawPair<'_>, String> {
        let id = Id::new(&self.events).unwrap();
        id.resolve_address(Some(SocketAddr::new(devices.client.1, 0)), to, PATIENCE).unwrap();
        assert_eq!(self.event("an address").kind, EventKind::AddressResolved);
        id.resolve_route(PATIENCE).unwrap();
        assert_eq!(self.event("a way").kind, EventKind::RouteResolved);
        let pair = RawPair::new(self, id);
        pair.pair.connect(handshake(offer, self.reading)).unwrap();
        let answer = self.event("an answer");
        match answer.kind {
            EventKind::Established => Ok(pair),
            _ => Err(String::from_utf8_lossy(&answer.private_data).trim_end_matches('\0').to_owned()),
        }
    }

    pub(crate) fn listen(&self, address: IpAddr) -> (Id, SocketAddr) {
        let listener = Id::new(&self.events).unwrap();
        listener.listen(SocketAddr::new(address, 0)).unwrap();
        let address = listener.local_address().unwrap();
        (listener, address)
    }

    /// Accepts the next connection, and answers its hello; with the request that follows, and the frame's key and address.
    pub(crate) fn serve_one(&self) -> (RawPair<'_>, Vec<u8>) {
        let request = wait("a client", || {
            let event = self.events.next_event().unwrap()?;
            event.request
        });
        let mut pair = RawPair::new(self, request);
        let offer = match self.reading {
            Reading::None if self.in_messages => messages_offer(32, 1024),
            Reading::None => offer(32, 1024),
            Reading::Ours | Reading::Theirs => one_sided_offer(32, 1024),
        };
        pair.pair.accept(handshake(&offer, self.reading)).unwrap();
        assert_eq!(pair.hear("a hello")[0], HELLO);
        pair.send(&frame(WELCOME, &hello()), Post::default());
        let request = pair.hear("a request");
        assert_eq!(request[0], REQUEST);
        (pair, request)
    }
}

fn handshake(offer: &[u8], reading: Reading) -> Handshake<'_> {
    Handshake { private_data: offer, retries: 7, receiver_not_ready_retries: 7, reading, path: PathOptions::default() }
}

/// What `poll` gives in the end.
pub(crate) fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection of one.
pub(crate) struct RawPair<'a> {
    raw: &'a Raw,
    pair: QueuePair,
    heard: VecDeque<Vec<u8>>,
    is_broken: bool,
}

impl<'a> RawPair<'a> {
    fn new(raw: &'a Raw, id: Id) -> Self {
        let options = QueuePairOptions {
            receives: 64,
            receive_length: 8192,
            requests: 128,
            frames: 64,
            frame_length: 8192,
            inline: 96,
            windows: 0,
            reads: if raw.reading == Reading::Ours { 4 } else { 0 },
        };
        let pair = QueuePair::new(id, &raw.registration, &raw.queue, &options).unwrap();
        Self { raw, pair, heard: VecDeque::new(), is_broken: false }
    }

    pub(crate) fn send(&mut self, frame: &[u8], post: Post) {
        self.poll();
        let post = Post { signalled: true, ..post };
        // If it fails, the connection has.
        let _ = self.pair.send(post, |place| {
            place[..frame.len()].copy_from_slice(frame);
            frame.len()
        });
    }

    fn poll(&mut self) {
        let mut ended = Vec::new();
        self.raw.queue.poll(&mut ended).unwrap();
        // Soft-RoCE leaves what ended with a pair before in the queue.
        let number = self.pair.number();
        for completion in ended.into_iter().filter(|completion| completion.queue_pair() == number) {
            match self.pair.ended(completion) {
                Ended::Received { receive, length } => {
                    self.heard.push_back(self.pair.message_in(receive, length).to_vec());
                    self.is_broken |= self.pair.receive_again(receive).is_err();
                }
                Ended::Sent => {}
                Ended::Failed(_) | Ended::Flushed => self.is_broken = true,
            }
        }
        if let Some(event) = self.raw.events.next_event().unwrap() {
            self.is_broken |= event.kind == EventKind::Disconnected && event.about == self.pair.id().key();
        }
    }

    /// The next frame, but for those of credits alone.
    pub(crate) fn hear(&mut self, what: &str) -> Vec<u8> {
        wait(what, || {
            self.poll();
            let heard = self.heard.pop_front().filter(|frame| frame[0] != CREDITS);
            assert!(heard.is_some() || !self.is_broken, "{what}: the connection has ended");
            heard
        })
    }

    /// Reads the peer's memory. `None`: that ended the connection.
    pub(crate) fn read(&mut self, read: Read, what: &str) -> Option<ReadDone> {
        self.pair.read(read).unwrap();
        wait(what, || {
            self.poll();
            self.pair.next_read().map(Some).or(self.is_broken.then_some(None))
        })
    }

    /// What lets the peer read the memory that its pool begins with, once it is bound.
    pub(crate) fn show(&mut self) -> Shown {
        self.pair.show(0).unwrap().unwrap()
    }

    /// The header and the text of the next reply.
    pub(crate) fn reply(&mut self, what: &str) -> (ReplyHeader, Vec<u8>) {
        let frame = self.hear(what);
        assert_eq!(frame[0], REPLY, "{what}");
        let (header, rest) = frame[16..].split_first_chunk::<HEADER_LEN>().unwrap();
        (ReplyHeader::decode(header).unwrap(), rest.to_vec())
    }

    /// Waits until the connection has ended.
    pub(crate) fn ends(&mut self, what: &str) {
        wait(what, || {
            self.poll();
            self.is_broken.then_some(())
        });
    }
}
