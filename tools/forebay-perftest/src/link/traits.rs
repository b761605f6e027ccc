//! The interface: one job's way to the server. What measures knows nothing of what carries the bytes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_memory::Pool;
use forebay_rdma::Resource;
use forebay_transport::Transport;
use forebay_ucx::{Context, Registration};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::memory::Buffer;
use crate::plan::{Place, place};
use crate::verbs::Side;
use crate::wire::{Offer, Region};

/// What to do with a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// Into the server's memory, rather than out of it.
    pub(crate) writes: bool,
    /// Which memory.
    pub(crate) region: Region,
    /// How many operations of the same size came before; see [`place`].
    pub(crate) number: u64,
}

impl Operation {
    /// The place of a part of the payload, with `count` parts of `length` bytes, in a region of so many frames.
    pub(crate) fn part(self, part: usize, count: usize, length: usize, frames: usize) -> Place {
        let number = self.number.wrapping_mul(count as u64).wrapping_add(part as u64);
        place(number, length, frames as u32)
    }
}

/// What to do while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Look again and again for a while: the shortest latency, and a core in use.
    Poll,
    /// Sleep until something happens.
    Sleep,
}

/// One job's way to the server. It belongs to the job's thread.
pub(crate) trait Link {
    /// Begins an operation on all of `buffer`.
    fn start(&mut self, operation: Operation, buffer: Buffer) -> Result<(), Error>;

    /// Waits until one of those that were begun has ended, or several have, and adds their buffers to `ended`.
    fn wait(&mut self, ended: &mut Vec<Buffer>, patience: Patience) -> Result<(), Error>;

    /// What must be done now and then while there is no operation.
    fn rest(&mut self) {}
}

/// How to make links, and what they share.
pub(crate) struct Connector {
    /// The server's control address.
    pub(crate) server: SocketAddr,
    pub(crate) bind: Option<IpAddr>,
    pub(crate) offer: Offer,
    /// The jobs' buffers.
    pub(crate) pool: Pool,
    /// For one-sided operations by verbs: this side, from where, and to where.
    pub(crate) verbs: Option<(Side, IpAddr, SocketAddr)>,
    /// For those by UCX; plain sockets without either.
    pub(crate) ucx: Option<(Context, Registration)>,
    /// The way of the cache, shared by all jobs.
    pub(crate) cache: Arc<dyn Transport>,
    /// Where the cache's tasks run.
    pub(crate) runtime: Handle,
    pub(crate) stop: CancellationToken,
    /// What carries one-sided operations, once one is connected.
    pub(crate) lanes: Mutex<Vec<Resource>>,
    /// The processors that jobs are pinned to, in turn.
    pub(crate) cpus: Vec<usize>,
}
