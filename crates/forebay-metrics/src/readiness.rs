//! Whether a process does what it is there for, and if not, why not.
//!
//! Each thing that it waits for has a name and, while it is missing, a reason. A process is ready when none is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_locks::Mutex;

/// What is missing. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    missing: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Readiness {
    /// Ready, until something is missing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `what` is missing, for this reason.
    pub fn missing(&self, what: impl Into<String>, reason: impl Into<String>) {
        self.missing.lock().insert(what.into(), reason.into());
    }

    /// `what` is there.
    pub fn there(&self, what: &str) {
        self.missing.lock().remove(what);
    }

    /// What is missing, and why.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<String, String> {
        self.missing.lock().clone()
    }
}
