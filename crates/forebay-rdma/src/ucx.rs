//! What is UCX's alone: how a request and its answer lie in its messages, and connections that threads drive which wait for their
//! answers themselves (ADR 0038).
//!
//! * `exchange`: a request and its answer, whoever receives; `fetches`: answers whose payload is on its way to the I/O thread;
//! * `lone`: a worker of UCX that one thread has at a time, with a connection to each server that it asked;
//! * `worker_pool`: those of an I/O thread; `lones`: a link's way to them.

pub(crate) mod exchange;
pub(crate) mod fetches;
pub(crate) mod lone;
pub(crate) mod lones;
pub(crate) mod worker_pool;
