//! What can be set, with the defaults.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::{Auditing, Passes};
use forebay_locks::Mutex;
use forebay_transport::driving::DriveOptions;
use forebay_transport::wire::MAX_REQUEST_BODY;
use forebay_types::{ByteSize, TcpZeroCopy};

use crate::protection::MAX_RECORDS;
use crate::security::{ClientSecurity, ServerSecurity};

/// A request with a longer body waits for memory at the server.
pub(crate) const LARGE_BODY: usize = MAX_REQUEST_BODY as usize;

/// How a worker's side listens and what it allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one. It does not matter to a server at a Unix socket.
    pub address: SocketAddr,
    /// The cluster that clients must name.
    pub cluster: String,
    /// Bytes of a block, which must be the clients' too: they ask for blocks by number.
    pub block_size: u32,
    /// Connections at once that have said hello. One more takes the place of the one that was idle longest; if none is
    /// idle, it is refused, and told why.
    pub max_connections: usize,
    /// Those of them that may come from one address. One more takes the place of one of its own.
    pub max_connections_per_client: usize,
    /// Connections at once that have not said hello yet. One more takes the place of the oldest, when that has had half a
    /// second.
    pub max_greeting: usize,
    /// Those of them that may come from one address.
    pub max_greeting_per_client: usize,
    /// How long a connection is idle before it makes way for another where there are too many.
    pub makes_way_after: Duration,
    /// How long a connection may be idle at all. Its client connects again when it needs it.
    pub idle_timeout: Duration,
    /// Requests of one connection that are being answered at once; it is not read beyond that.
    pub max_requests_per_connection: usize,
    /// The same for all connections together.
    pub max_requests: usize,
    /// Bytes of the bodies of uploads under way on all connections together, at least one of the longest. A connection whose
    /// next body has no room is not read until it has. Ordinary bodies, up to 64 KiB, do not count.
    pub body_memory: ByteSize,
    /// How long such a body may take, from when its memory is there for it, besides the time for its length.
    pub body_grace: Duration,
    /// The bytes of it that must arrive in a second, on average: what is slower holds memory that others wait for.
    pub body_rate: ByteSize,
    /// How often a client whose requests are not being read is told that we are alive. Less than its `dead_after`.
    pub keepalive: Duration,
    /// How long a peer may take for its hello, or for the rest of a message that it has begun; of a long one, for the next
    /// 64 KiB of it.
    pub hello_timeout: Duration,
    /// How long a peer may take next to nothing, less than 64 KiB, of what is there to be sent; a third of it while there
    /// is no place for requests of others.
    pub stall_timeout: Duration,
    /// Whether the service may answer with files, which the kernel then sends without a copy in user space.
    pub takes_files: bool,
    /// Threads that serve connections, and do nothing else; with none, connections are served by the runtime that the
    /// server was started on. `None`: one for each processor that the process may use, if those are four or more.
    pub io_threads: Option<usize>,
    /// Whether the kernel sends large payloads from where they lie.
    pub zero_copy: TcpZeroCopy,
    /// What those who connect have to prove. `None`: nothing, and all may do everything.
    pub security: Option<ServerSecurity>,
    /// Where the passes wait that it gives to those who proved who they are, for connections that prove nothing themselves
    /// ([`forebay_transport::Op::Admit`]). `None`: it gives none.
    pub passes: Option<Arc<Mutex<Passes>>>,
    /// What is recorded of those who connect, and where. `None`: nothing.
    pub audit: Option<Auditing>,
}

impl ServerOptions {
    /// Listen on `address` for members of `cluster`, whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn new(address: SocketAddr, cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            address,
            cluster: cluster.into(),
            block_size,
            max_connections: 4096,
            max_connections_per_client: 1024,
            max_greeting: 1024,
            max_greeting_per_client: 256,
            makes_way_after: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            max_requests_per_connection: 256,
            max_requests: 4096,
            body_memory: ByteSize::mib(256),
            body_grace: Duration::from_secs(30),
            body_rate: ByteSize::kib(256),
            keepalive: Duration::from_secs(1),
            hello_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            takes_files: false,
            io_threads: None,
            zero_copy: TcpZeroCopy::Auto,
            security: None,
            passes: None,
            audit: None,
        }
    }
}

/// How a client connects and when it gives up.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The cluster that the server must belong to.
    pub cluster: String,
    /// Bytes of a block, which must be the server's too: it is asked for blocks by number.
    pub block_size: u32,
    /// Connections to the peer. They are made when calls need them.
    pub connections: usize,
    /// How long making one may take, the exchange of hellos included.
    pub connect_timeout: Duration,
    /// With calls under way: how long the peer may be silent before it is asked whether it lives.
    pub keepalive: Duration,
    /// With calls under way: how long it may be silent before its connection is given up.
    pub dead_after: Duration,
    /// Calls under way at once, those included whose caller has left; further ones wait for their turn.
    pub max_outstanding: usize,
    /// Calls without a caller that one connection may have under way; with more, it takes no new ones and ends with the
    /// last that has a caller.
    pub max_abandoned: usize,
    /// Records that the keys of an encrypted connection protect in one direction before another takes its place, as the last one
    /// is (RFC 8446, 5.5): at most 2^24, beyond which a connection is cut.
    pub max_records: u64,
    /// The address, and so the network interface, to connect from.
    pub bind: Option<IpAddr>,
    /// What is proved to the peer, and whom it has to be. `None`: nothing is proved, and anybody is believed.
    pub security: Option<ClientSecurity>,
    /// How long threads that may wait for the answers to short reads themselves do so. Not where all is encrypted.
    pub drive: DriveOptions,
}

impl ClientOptions {
    /// Connect to members of `cluster`, whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn new(cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            cluster: cluster.into(),
            block_size,
            connections: 4,
            connect_timeout: Duration::from_secs(3),
            keepalive: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            max_outstanding: 4096,
            max_abandoned: 256,
            max_records: MAX_RECORDS / 2,
            bind: None,
            security: None,
            drive: DriveOptions::default(),
        }
    }
}
