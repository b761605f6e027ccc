//! The kernel's side, played by tests: one fake a channel, and what both need to speak.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::abi::{IN_HEADER, capability};
use crate::protocol::request::Header;
use crate::reply::Dispatch;
use crate::session::SessionOptions;

pub(crate) mod device;
pub(crate) mod ring;

/// How long a fake waits for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A kernel that has mounted a session of ours, over one of the channels.
pub(crate) trait FakeKernel: Sized {
    /// Mounts.
    fn start<D: Dispatch>(dispatch: Arc<D>, options: &SessionOptions) -> Self;

    /// Sends a request; gives what it is called. `unique` and `length` of the header are filled in.
    fn request(&mut self, header: Header, head: &[u8], tail: &[u8]) -> u64;

    /// Sends what is not answered, which any channel gets over the device.
    fn tell(&mut self, header: Header, head: &[u8], tail: &[u8]);

    /// The answer to a request, waiting for it.
    fn reply(&mut self, unique: u64) -> Answered;

    /// Unmounts, whatever is under way; returns when every thread of the session has ended.
    fn abort(self) -> std::io::Result<()>;
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// 0, or a positive error number.
    pub(crate) error: i32,
    /// What follows the header.
    pub(crate) body: Vec<u8>,
}

impl Answered {
    pub(crate) fn error(error: i32) -> Self {
        Self { error, body: Vec::new() }
    }

    pub(crate) fn bytes(body: &[u8]) -> Self {
        Self { error: 0, body: body.to_vec() }
    }
}

/// Fields one after the other, as the kernel lays them out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

/// A request of `user` 1000 about `node`.
pub(crate) fn about(opcode: u32, node: u64) -> Header {
    Header { opcode, node, uid: 1000, gid: 100, pid: 77, ..Header::default() }
}

/// The header as the kernel lays it out.
pub(crate) fn encode(header: &Header) -> Vec<u8> {
    let fields = Fields::default().u32(header.length).u32(header.opcode).u64(header.unique).u64(header.node);
    let fields = fields.u32(header.uid).u32(header.gid).u32(header.pid).u16(header.extensions).u16(0);
    assert_eq!(fields.0.len(), IN_HEADER);
    fields.0
}

/// The body of an INIT of a kernel that offers `capabilities` beside what all do.
pub(crate) fn init(capabilities: u64) -> Vec<u8> {
    let common = capability::ASYNC_READ
        | capability::BIG_WRITES
        | capability::ASYNC_DIO
        | capability::PARALLEL_DIROPS
        | capability::MAX_PAGES
        | capability::DO_READDIRPLUS
        | capability::READDIRPLUS_AUTO
        | capability::ATOMIC_O_TRUNC
        | capability::INIT_EXT;
    let all = common | capabilities;
    let fields = Fields::default().u32(7).u32(45).u32(128 << 10).u32(all as u32).u32((all >> 32) as u32);
    let mut body = fields.0;
    body.resize(64, 0);
    body
}
