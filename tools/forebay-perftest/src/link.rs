//! One job's way to the server: as the cache goes, one-sidedly by verbs or by UCX, or by plain sockets. [`Connector::connect`] chooses.

mod cache;
mod one_sided;
mod stream;
mod traits;
mod verbs;

use crate::error::Error;
use crate::options::Kind;

pub(crate) use traits::{Connector, Link, Operation, Patience};

impl Connector {
    /// A new link for operations of `kind`, in the thread that is going to use it.
    pub(crate) fn connect(&self, kind: Kind) -> Result<Box<dyn Link>, Error> {
        if let (Some((side, from, to)), Kind::Read | Kind::Seal | Kind::Write) = (&self.verbs, kind) {
            return Ok(Box::new(verbs::VerbsLink::connect(self, side, (*from, *to), kind)?));
        }
        Ok(match (kind, &self.ucx, &self.offer.ucx) {
            (Kind::Cache, ..) => Box::new(cache::CacheLink::new(self)),
            (_, Some((context, registration)), Some(offer)) => {
                Box::new(one_sided::OneSidedLink::connect(self, context, registration, offer)?)
            }
            _ => Box::new(stream::StreamLink::connect(self)?),
        })
    }
}
