//! What can be set, with the defaults.

use std::path::PathBuf;
use std::time::Duration;

use forebay_identity::Auditing;
use forebay_transport::driving::DriveOptions;
use forebay_types::ByteSize;

use crate::path::default_directory;
use crate::security::{ClientSecurity, ServerSecurity};

/// How a worker lets its memory be seen and what it allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The socket to listen on: [`socket_path`](crate::socket_path) of its address.
    pub path: PathBuf,
    /// The cluster that clients must name.
    pub cluster: String,
    /// Bytes of a block, which must be the clients' too: they ask for blocks by number.
    pub block_size: u32,
    /// Which worker it is: what it answers to a ping on its other ways, in eight bytes, little-endian. Zero for one that answers
    /// with none. Clients use the session only if both are the same.
    pub instance: u64,
    /// Sessions at once. One more is refused, and told why.
    pub max_connections: usize,
    /// Those of them that have not said hello yet, or not proved who they are. One more is sent away, and may try again.
    pub max_greeting: usize,
    /// Requests of one session that are being answered at once. Clients are told, and one that sends more has no further use.
    pub max_requests_per_connection: usize,
    /// Bytes that clients may look at, all together, in whole frames: half of the pool unless it is said. One reply of each session
    /// goes beyond it, up to half as much again.
    pub max_pinned: Option<ByteSize>,
    /// How long a request waits for others to be released before its client is sent another way.
    pub patience: Duration,
    /// How long a client may take for its hello, and to prove who it is.
    pub hello_timeout: Duration,
    /// How long closing waits for clients to be done with what they see. What they still see then is given up for good.
    pub close_timeout: Duration,
    /// What clients have to prove. `None`: nothing.
    pub security: Option<ServerSecurity>,
    /// Where is recorded who sees the memory, and who may not. `None`: nowhere.
    pub audit: Option<Auditing>,
}

impl ServerOptions {
    /// Listen at `path` for members of `cluster`, whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            path: path.into(),
            cluster: cluster.into(),
            block_size,
            instance: 0,
            max_connections: 256,
            max_greeting: 64,
            max_requests_per_connection: 512,
            max_pinned: None,
            patience: Duration::from_millis(50),
            hello_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(1),
            security: None,
            audit: None,
        }
    }
}

/// How a client connects and how much it asks for at once.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where the sockets of this user's workers lie.
    pub directory: PathBuf,
    /// The cluster that the worker must belong to.
    pub cluster: String,
    /// Bytes of a block, which must be the worker's too: it is asked for blocks by number.
    pub block_size: u32,
    /// How long connecting may take, proofs and the exchange of hellos included.
    pub connect_timeout: Duration,
    /// Reads under way at once, those included whose caller has left; further ones wait for their turn. The worker may allow fewer.
    pub max_calls: usize,
    /// Reads without a caller that a session may have under way; with more, it takes no new ones and ends with the last that has
    /// a caller.
    pub max_abandoned: usize,
    /// What is proved to the worker, and which one it has to be. `None`: nothing is proved.
    pub security: Option<ClientSecurity>,
    /// How long threads that may wait for the answers to short reads themselves do so.
    pub drive: DriveOptions,
}

impl ClientOptions {
    /// Connect to members of `cluster`, whose blocks are of `block_size` bytes, in the [`default_directory`].
    #[must_use]
    pub fn new(cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            directory: default_directory(),
            cluster: cluster.into(),
            block_size,
            connect_timeout: Duration::from_secs(1),
            max_calls: 256,
            max_abandoned: 64,
            security: None,
            drive: DriveOptions::default(),
        }
    }
}
