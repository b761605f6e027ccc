//! What workers say of themselves, one number of each.

use std::collections::BTreeMap;

/// A figure of each worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures(pub(super) BTreeMap<String, f64>);

impl Figures {
    /// By how much they have grown in all. None where they are not those of the same workers, or one has begun anew.
    pub(super) fn since(&self, then: &Self) -> Option<f64> {
        let same = self.0.keys().eq(then.0.keys());
        let grown: Vec<f64> = self.0.values().zip(then.0.values()).map(|(now, then)| now - then).collect();
        (same && grown.iter().all(|grown| *grown >= 0.0)).then(|| grown.iter().sum())
    }
}
