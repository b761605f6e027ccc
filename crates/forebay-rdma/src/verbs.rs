//! The transport over verbs: what [`forebay_transport::wire`] says, over reliable connections that rdma_cm makes.
//!
//! * [`VerbsThread`]: a thread that drives one card; [`RdmaTransport::over_verbs`](crate::RdmaTransport::over_verbs): the client's side;
//!   [`VerbsServer`]: the worker's;
//! * `frame`, `payload`, `credits`, `channel`: the protocol, pure, and tested in virtual time against a card that is made up;
//! * `links`, `connecting`, `connection`, `server`: the shell around it, on queue pairs of [`forebay_verbs`];
//! * `lone`, `lones`: connections that threads drive which wait for their answers themselves (ADR 0038).
//!
//! A request goes into the peer's receive queue. What is small comes back so, too. The payload of a longer read is written by the
//! worker's card into the caller's buffer, through a memory window that was bound to that buffer for this read alone; the message behind
//! it ends the use of the window's key. So a worker that goes mad can write into buffers that wait for it, and into nothing else, and
//! only until it has said that they are filled. Clients write nowhere at all. A connection that breaks is drained before the buffers
//! of its reads belong to somebody else.
//!
//! A worker whose pool has a board lets clients read its memory by themselves, where both ends want that (`teller`, `reader`; ADR
//! 0035): through windows, too, that belong to one connection and let nobody write.
//!
//! Where a client's card has no windows of type 2, its payload comes in messages, into receives of its own, and is copied (`payload`;
//! ADR 0043): the worker's card writes nowhere then, and nothing is read one-sidedly. What the worker's card has does not matter for that:
//! it binds none for its answers.
//!
//! Nothing here needs immediate data, shared receive queues or atomics, which iWARP's cards do not all have. Over iWARP, who connects has
//! to send first: a client says hello, and a server nothing before that but why it closes the connection.

mod channel;
mod connecting;
mod connection;
mod core;
mod credits;
mod exchange;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod links;
mod lone;
mod lones;
mod options;
mod own_queue;
mod payload;
mod reader;
mod server;
mod teller;
mod thread;

pub(crate) use connection::Connection as VerbsConnection;
pub use forebay_verbs::{Device, Error as VerbsError, Library as VerbsLibrary};
pub(crate) use lones::Lones;
pub use options::VerbsOptions;
pub use server::VerbsServer;
pub use thread::{VerbsThread, VerbsThreadStats};
