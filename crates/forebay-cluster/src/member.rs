//! A member of the cluster.

use std::sync::Arc;

/// A worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name: what placement hashes, so it must not change while its cache is worth something.
    pub name: Arc<str>,
    /// Where it is reached, `HOST:PORT`.
    pub address: Arc<str>,
    /// Its share of the blocks, relative to the other members'. Positive and finite.
    pub weight: f64,
    /// Its name in the certificate that it shows, where it told one: who listens at its address is it, or gets no request.
    pub identity: Option<Arc<str>>,
}
