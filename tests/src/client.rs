//! A client that asks a worker whatever there is to ask, in the name of whoever it likes to be: an attacker's own
//! program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_rdma::{ClientSecurity as Admission, IoThread, IoThreadOptions, Library, RdmaTransport};
use forebay_tcp::{ClientSecurity, TcpSecurity, TcpTransport};
use forebay_transport::message::PathsReply;
use forebay_transport::{CallError, Op, Reply, Request, Transport};
use forebay_types::{ByteSize, Role};
use tokio::runtime::Runtime;

use crate::{Worker, member};

/// The name of the cluster, unless it is set.
const CLUSTER: &str = "forebay";
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// UCX's transports between processes of one machine.
const TRANSPORTS: [&str; 2] = ["tcp", "self"];

/// Settings of a worker that [`Client::over_ucx`] reaches.
pub const LISTENS_OVER_UCX: [&str; 5] = [
    "network.shared_memory=off",
    "network.rdma.data.enabled=true",
    "network.rdma.data.transports=tcp,self",
    "network.rdma.data.bind.host=127.0.0.1",
    "network.rdma.data.port=0",
];

/// A client of one worker, with its own thread for the network.
pub struct Client {
    tcp: Arc<TcpTransport>,
    /// What requests go over in place of TCP.
    ucx: Option<RdmaTransport>,
    block_size: u32,
    memory: Pool,
    runtime: Runtime,
}

impl Client {
    /// Somebody whom the cluster key in this file makes `name` in this role, over TCP.
    ///
    /// # Panics
    /// When there is no such key.
    #[must_use]
    pub fn new(worker: &Worker, block_size: u64, key: &Path, role: Role, name: &str) -> Self {
        let security = ClientSecurity::to_worker(&member(key, role, name), TcpSecurity::Encrypt).expect("TLS");
        let block_size = u32::try_from(block_size).expect("a block size");
        let options = forebay_tcp::ClientOptions {
            security: Some(security),
            ..forebay_tcp::ClientOptions::new(CLUSTER, block_size)
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let memory = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) });
        Self {
            tcp: Arc::new(TcpTransport::new(worker.address().to_string(), options)),
            ucx: None,
            block_size,
            memory: memory.expect("memory for replies"),
            runtime: runtime.expect("a runtime"),
        }
    }

    /// The same client over UCX, admitted by its worker.
    ///
    /// # Panics
    /// When there is no libucp, or the worker does not listen for it.
    #[must_use]
    pub fn over_ucx(self) -> Self {
        let (address, admission) = (self.ucx_address(), self.admission());
        self.over_ucx_at(&address, Some(admission))
    }

    /// The same over UCX at whatever address, admitted by whomever, or by nobody.
    ///
    /// # Panics
    /// When there is no libucp.
    #[must_use]
    pub fn over_ucx_at(mut self, address: &str, admission: Option<Admission>) -> Self {
        let options = IoThreadOptions {
            // Not what other tests make and remove meanwhile.
            devices: vec!["lo".to_owned()],
            transports: TRANSPORTS.map(str::to_owned).to_vec(),
            ..IoThreadOptions::new("attacker", self.memory.clone(), self.memory.capacity())
        };
        let io_thread = IoThread::start(Library::load(None).expect("libucp"), options).expect("an I/O thread");
        let options = forebay_rdma::ClientOptions {
            connect_timeout: ANSWER_WITHIN / 2,
            security: admission,
            ..forebay_rdma::ClientOptions::new(CLUSTER, self.block_size)
        };
        self.ucx = Some(RdmaTransport::new(address, Arc::new(io_thread), options));
        self
    }

    /// Where its worker listens for reads over UCX.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn ucx_address(&self) -> String {
        let paths = Request::on_path(Op::Paths, Default::default(), ANSWER_WITHIN);
        let reply = self.runtime.block_on(self.tcp.call(paths, None)).expect("the worker says where it listens");
        let paths = PathsReply::decode(&reply.body).expect("paths");
        let port = paths.data.first().unwrap_or_else(|| panic!("it listens over {paths}")).port;
        format!("127.0.0.1:{port}")
    }

    /// By which its worker admits it over TCP, to one connection over UCX at a time.
    #[must_use]
    pub fn admission(&self) -> Admission {
        let _entered = self.runtime.enter();
        Admission::over(Arc::clone(&self.tcp) as Arc<dyn Transport>)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the worker refuses, or the link.
    pub fn call(&self, request: Request) -> Result<Reply, CallError> {
        let into = request.op.brings_payload().then(|| self.memory.try_alloc(request.length as usize)).flatten();
        let link: &dyn Transport = match &self.ucx {
            Some(ucx) => ucx,
            None => &*self.tcp,
        };
        self.runtime.block_on(link.call(request, into))
    }
}
