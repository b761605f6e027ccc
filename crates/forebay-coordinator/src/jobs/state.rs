//! The states of a job, and which may follow which.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JobState {
    /// Taken, and not started: others run.
    Waiting,
    /// Under way, or about to be resumed by the next leader.
    Running,
    /// Done: everything that was asked for, or everything but what the report names as evicted meanwhile.
    Succeeded,
    /// Ended, and something could not be done; the report says what.
    Failed,
    /// Ended because someone asked for it.
    Stopped,
}

impl JobState {
    /// Its name, as it is shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Stopped => "STOPPED",
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// Whether `next` may follow. A job that runs stays so when its coordinator dies: the next one resumes it.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Waiting => matches!(next, Self::Running | Self::Failed | Self::Stopped),
            Self::Running => next.is_final(),
            Self::Succeeded | Self::Failed | Self::Stopped => false,
        }
    }
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// It walks the whole listing, so that totals are exact before work starts.
    #[default]
    Count,
    /// It loads or frees.
    Work,
    /// It asks the workers to check what they hold; the number counts such passes from 0.
    Audit(u32),
    /// Mounts keep what was loaded.
    Clients,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_stays_as_it_is() {
        use JobState::*;
        let all = [Waiting, Running, Succeeded, Failed, Stopped];
        let legal: Vec<_> =
            all.iter().flat_map(|from| all.iter().filter(|to| from.may_become(**to)).map(|to| (*from, *to))).collect();
        let expected = [
            (Waiting, Running),
            (Waiting, Failed),
            (Waiting, Stopped),
            (Running, Succeeded),
            (Running, Failed),
            (Running, Stopped),
        ];
        assert_eq!(legal, expected);
        assert_eq!(serde_json::to_string(&Succeeded).unwrap(), format!("\"{}\"", Succeeded.as_str()));
    }
}
