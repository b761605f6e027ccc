//! The workers behind a mount of ours, and what they count.
//!
//! They are asked over TCP, as `forebay stats` asks them: the coordinator's own numbers are some seconds old.

use std::time::Duration;

use forebay_client::Client;
use forebay_config::Loaded;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::commands::fs::target::Targets;
use forebay_node::state::RunState;

/// How long all workers together may take to say what they count.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Links to the workers of a mount, which end with it.
pub(super) struct Workers {
    pub(super) client: Client,
    targets: Option<Targets>,
    pub(super) runtime: Handle,
}

impl Workers {
    pub(super) fn of(state: &RunState, loaded: Loaded, runtime: &Handle) -> Option<Self> {
        let mut targets = Targets::of(loaded);
        let client = runtime.block_on(targets.client_of_mount(state)).ok()?;
        Some(Self { client, targets: Some(targets), runtime: runtime.clone() })
    }

    /// What each of them counts; `None` where one does not say: what is missing would be taken for nothing.
    pub(super) fn counters(&self) -> Option<Vec<Value>> {
        let asked = async { tokio::time::timeout(ANSWER_WITHIN, self.client.worker_stats()).await };
        let answers = self.runtime.block_on(asked).ok()?;
        let counters = answers.into_iter().map(|(_, answer)| serde_json::from_str(&answer.ok()?).ok());
        counters.collect::<Option<Vec<_>>>().filter(|counters| !counters.is_empty())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(targets) = self.targets.take() {
            self.runtime.block_on(targets.close());
        }
    }
}
