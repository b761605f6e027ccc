//! What can be set, with the defaults.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::{Auditing, Pass};
use forebay_memory::Pool;
use forebay_transport::LinkError;
use forebay_transport::driving::DriveOptions;
use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;

use crate::security::{ClientSecurity, ServerSecurity};
use crate::trace::Trace;

/// How long an I/O thread busy-polls unless told otherwise. Measured over shared memory on two cores: 20 µs does not last until
/// a peer that sleeps has answered, so that neither end begins.
const SPIN: Duration = Duration::from_micros(50);

/// What an I/O thread is to use.
#[derive(Clone, Debug)]
pub struct IoThreadOptions {
    /// The I/O thread's name, for logs: the card's.
    pub name: String,
    /// UCX's names of devices, `mlx5_0:1` or `eth0`; none leaves the choice to UCX.
    pub devices: Vec<String>,
    /// UCX's names of transports; none leaves the choice to UCX.
    pub transports: Vec<String>,
    /// What is asked of the fabric.
    pub fabric: FabricOptions,
    /// Leave out the transports by which a peer reaches UCX without a connection that was accepted: its TCP, and unreliable and
    /// other datagrams. Of no effect where `transports` are named, or the environment's `UCX_TLS` does so.
    pub only_connected: bool,
    /// Memory that payload comes from, or goes to.
    pub pool: Pool,
    /// How much of it to register at start. The rest works too, but UCX registers it for each use, or copies.
    pub registered: ByteSize,
    /// How long its thread, and a caller whose call is the only one, ask for the next message before they sleep; zero is not
    /// at all. See [`forebay_ucx::Spin`] for when they sleep at once all the same.
    pub spin: Duration,
    /// Where registering memory is recorded.
    pub trace: Option<Arc<Trace>>,
    /// Once this is cancelled, no caller waits for the thread any more: it does not start, and registers nothing more.
    pub given_up: CancellationToken,
}

impl IoThreadOptions {
    /// An I/O thread called `name` over what UCX chooses, with `registered` of `pool` registered at start.
    #[must_use]
    pub fn new(name: impl Into<String>, pool: Pool, registered: ByteSize) -> Self {
        let (devices, transports, fabric) = (Vec::new(), Vec::new(), FabricOptions::default());
        let given_up = CancellationToken::new();
        Self {
            name: name.into(),
            devices,
            transports,
            fabric,
            only_connected: false,
            pool,
            registered,
            spin: SPIN,
            trace: None,
            given_up,
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
    /// Whether only cards that move the bytes by themselves are good enough. Otherwise UCX may use TCP or shared memory.
    pub require_rdma: bool,
    /// How long connecting may take, the exchange of hellos included.
    pub connect_timeout: Duration,
    /// With calls under way: how long the peer may be silent before it is asked whether it lives.
    pub keepalive: Duration,
    /// With calls under way: how long it may be silent before its connection is given up.
    pub dead_after: Duration,
    /// Calls under way at once; further ones wait for their turn.
    pub max_outstanding: usize,
    /// Calls without a caller that a connection may have under way; with more, it takes no new ones and ends with the last that has a
    /// caller. Through memory windows there are no more than half of those, 128.
    pub max_abandoned: usize,
    /// The address to connect from.
    pub bind: Option<IpAddr>,
    /// Read the server's memory without its help, where it lets us and it is known what lies there. Over verbs alone.
    pub one_sided: bool,
    /// How it is admitted. `None`: the peer admits everybody.
    pub security: Option<ClientSecurity>,
    /// Where calls are recorded.
    pub trace: Option<Arc<Trace>>,
    /// How long threads that may wait for the answers to short reads themselves do so. They post and poll, too, unless the worker's
    /// memory is read without it, and over UCX unless that is older than 1.18, or its fabric is polled. Otherwise they do not receive
    /// the answers: they sleep until the I/O thread has, and busy-poll as its options say.
    pub drive: DriveOptions,
}

impl ClientOptions {
    /// The pass for one attempt to connect, where connections are admitted: a pass is good for one.
    ///
    /// # Errors
    /// Why the peer gave none.
    pub(crate) async fn pass(&self, client_id: NonZeroU64, peer: &str) -> Result<Option<Pass>, LinkError> {
        match &self.security {
            Some(security) => security.pass(client_id, peer, self.connect_timeout).await.map(Some),
            None => Ok(None),
        }
    }

    /// Connect to members of `cluster`, whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn new(cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            cluster: cluster.into(),
            block_size,
            require_rdma: false,
            connect_timeout: Duration::from_secs(3),
            keepalive: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            max_outstanding: 4096,
            max_abandoned: 256,
            bind: None,
            one_sided: false,
            security: None,
            trace: None,
            drive: DriveOptions::default(),
        }
    }
}

/// How a worker's side listens and what it allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// The cluster that clients must name.
    pub cluster: String,
    /// Bytes of a block, which must be the clients' too: they ask for blocks by number.
    pub block_size: u32,
    /// Connections at once that have said hello. One more is refused.
    pub max_connections: usize,
    /// Those of them that may come from one address.
    pub max_connections_per_client: usize,
    /// Connections at once that have not said hello yet. One more takes the place of the oldest, if that has had half a
    /// second; else it is refused.
    pub max_greeting: usize,
    /// Those of them that may come from one address.
    pub max_greeting_per_client: usize,
    /// Requests of one connection that are being answered at once; one more is answered with a failure.
    pub max_requests_per_connection: usize,
    /// How long a port is tried that is taken: a connection manager keeps it for up to 10 s after a process has ended. There is an
    /// attempt at the end of it.
    pub listen_within: Duration,
    /// How long a peer may take for its hello.
    pub hello_timeout: Duration,
    /// How long a peer may take none of the replies that there are for it.
    pub stall_timeout: Duration,
    /// Whom it accepts. `None`: everybody, and all may do everything.
    pub security: Option<ServerSecurity>,
    /// Where is recorded who asks for what. `None`: nowhere.
    pub audit: Option<Auditing>,
    /// Where answers are recorded.
    pub trace: Option<Arc<Trace>>,
}

impl ServerOptions {
    /// Listen on `address` for members of `cluster`, whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn new(address: SocketAddr, cluster: impl Into<String>, block_size: u32) -> Self {
        Self {
            address,
            cluster: cluster.into(),
            block_size,
            max_connections: 8192,
            max_connections_per_client: 1024,
            // UCX takes its time to make a connection, and has many at once in the making when a host starts.
            max_greeting: 2048,
            max_greeting_per_client: 1024,
            max_requests_per_connection: 4096,
            listen_within: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            security: None,
            audit: None,
            trace: None,
        }
    }
}

/// What an I/O thread asks of its fabric; what is `None` is the choice of UCX, or of rdma_cm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricOptions {
    /// The entry of the port's GID table to use. Over verbs, the address that a card connects and listens at says which.
    pub gid_index: Option<u32>,
    /// InfiniBand's service level; over RoCE the priority of Ethernet.
    pub service_level: Option<u8>,
    /// The byte that carries the DSCP over RoCE, and InfiniBand's traffic class.
    pub traffic_class: Option<u8>,
    /// The partition, with or without the bit of full membership. Over verbs, it is that of the interface.
    pub partition_key: Option<u16>,
    /// Bytes of the largest packet, a power of two from 256 to 4096. Over verbs, the end that connects says so for both.
    pub mtu: Option<u16>,
    /// How long the card waits for an acknowledgement before it sends again.
    pub ack_timeout: Option<Duration>,
    /// How often it does, 7 at most. Over verbs, the end that connects says so for both.
    pub retry_count: Option<u8>,
    /// How often a message is sent again for which the peer had no receive; 7 is for ever. Over verbs, each end says how often the
    /// other one does.
    pub rnr_retry_count: Option<u8>,
}

/// The bit of a partition key that says how its owner is a member: UCX takes the key without.
const FULL_MEMBER: u16 = 0x8000;

impl FabricOptions {
    /// UCX's settings for it, without their prefix.
    pub(crate) fn settings(self) -> impl Iterator<Item = (&'static str, String)> {
        let settings = [
            ("IB_GID_INDEX", self.gid_index.map(|index| index.to_string())),
            ("IB_SL", self.service_level.map(|level| level.to_string())),
            ("IB_TRAFFIC_CLASS", self.traffic_class.map(|class| class.to_string())),
            ("IB_PKEY", self.partition_key.map(|key| format!("{:#x}", key & !FULL_MEMBER))),
            ("IB_PATH_MTU", self.mtu.map(|bytes| bytes.to_string())),
            ("RC_TIMEOUT", self.ack_timeout.map(|each| format!("{}us", each.as_micros()))),
            ("RC_RETRY_COUNT", self.retry_count.map(|count| count.to_string())),
            ("RC_RNR_RETRY_COUNT", self.rnr_retry_count.map(|count| count.to_string())),
        ];
        settings.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_the_fabric_is_told_to_ucx_and_nothing_else() {
        assert_eq!(FabricOptions::default().settings().count(), 0);
        let options = FabricOptions {
            gid_index: Some(3),
            service_level: Some(5),
            traffic_class: Some(106),
            partition_key: Some(0x8012),
            mtu: Some(2048),
            ack_timeout: Some(Duration::from_millis(67)),
            retry_count: Some(6),
            rnr_retry_count: Some(3),
        };
        let settings: Vec<_> = options.settings().map(|(key, value)| format!("{key}={value}")).collect();
        let of_ports = ["IB_GID_INDEX=3", "IB_SL=5", "IB_TRAFFIC_CLASS=106", "IB_PKEY=0x12", "IB_PATH_MTU=2048"];
        let of_connections = ["RC_TIMEOUT=67000us", "RC_RETRY_COUNT=6", "RC_RNR_RETRY_COUNT=3"];
        assert_eq!(settings, [&of_ports[..], &of_connections].concat());
    }
}
