//! Which process a draft belongs to, so that no other process touches the drafts of one that lives.

use forebay_metrics::process_started;
use serde::{Deserialize, Serialize};

/// A process: a number alone may be another one's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot; `None` where `/proc` did not tell.
    pub(crate) started: Option<u64>,
}

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Self { pid, started: process_started(pid) }
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        process_started(self.pid).is_some_and(|now| self.started.is_none_or(|then| then == now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_of_its_number() {
        let this = Process::this();
        assert!(this.is_alive());
        assert!(!Process { started: Some(1), ..this }.is_alive());
        assert!(!Process { pid: u32::MAX, started: None }.is_alive());
    }
}
