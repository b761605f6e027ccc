//! Verbs as client and server set them up, for the cache.

use std::sync::Arc;

use forebay_memory::Pool;
use forebay_rdma::RdmaError;
use forebay_rdma::verbs::{VerbsLibrary, VerbsOptions, VerbsThread};

use crate::error::Error;
use crate::options::VerbsCard;

/// An I/O thread of the cache.
pub(crate) fn verbs_thread(card: &VerbsCard, pool: &Pool) -> Result<Arc<VerbsThread>, Error> {
    let library = VerbsLibrary::load().map_err(RdmaError::from)?;
    let options = VerbsOptions::new(&card.device, pool.clone(), pool.capacity());
    Ok(Arc::new(VerbsThread::start(library, options)?))
}
