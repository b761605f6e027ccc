//! The algorithms.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

/// Those of aws-lc, whatever a process of many libraries may have for its default.
pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}
