//! What asks an S3 server by requests of our own.

use std::sync::Arc;

use object_store::client::HttpClient;
use object_store::signer::Signer;

/// What asks an S3 server.
pub(crate) struct Asking {
    /// It signs the URLs of requests.
    pub(super) signer: Arc<dyn Signer>,
    /// It carries them out.
    pub(super) http: HttpClient,
    /// Whether the tags of parts hold checksums, too.
    pub(super) has_checksums: bool,
}

impl Asking {
    pub(crate) fn new(signer: Arc<dyn Signer>, http: HttpClient, has_checksums: bool) -> Self {
        Self { signer, http, has_checksums }
    }
}
