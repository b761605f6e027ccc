//! What ports had counted when they were first looked at. A counter tells of faults since the driver was loaded, which may be a
//! year; what grows between two looks goes wrong now.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The counters of faults at an earlier time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstLook {
    /// How long before the second look that was, in milliseconds.
    pub ms_before: u64,
    /// What each port had counted, by its name.
    pub faults: BTreeMap<String, BTreeMap<String, u64>>,
}

impl FirstLook {
    /// The same, so long before the second.
    #[must_use]
    pub fn before(self, elapsed: Duration) -> Self {
        Self { ms_before: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), ..self }
    }

    /// Whether any port has counted a fault, so that a second look tells something.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.faults.values().any(|faults| !faults.is_empty())
    }

    /// By how much the counters in `now` of the port called `name` have grown. One that is smaller was set back.
    pub(crate) fn growth(&self, name: &str, now: &BTreeMap<String, u64>) -> Option<BTreeMap<String, u64>> {
        let before = self.faults.get(name)?;
        let grown = now.iter().map(|(counter, count)| {
            let before = before.get(counter).copied().unwrap_or(0);
            (counter.clone(), if *count >= before { count - before } else { *count })
        });
        Some(grown.filter(|(_, count)| *count > 0).collect())
    }
}
