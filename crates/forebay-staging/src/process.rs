//! Which process a draft belongs to, so that nobody touches those of one that lives.

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
        Self { pid, started: started(pid) }
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|now| self.started.is_none_or(|then| then == now))
    }
}

/// When a process started; `None` when there is none of that number, or only what its parent has not buried yet.
fn started(pid: u32) -> Option<u64> {
    started_field(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `/proc/PID/stat`. The second is the name, in parentheses, and may hold spaces and parentheses.
fn started_field(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
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
        let fields: Vec<String> = (4..=25).map(|field| field.to_string()).collect();
        assert_eq!(started_field(&format!("7 (a) b (c)) S {}", fields.join(" "))), Some(22));
        assert_eq!(started_field(&format!("7 (a) Z {}", fields.join(" "))), None);
    }
}
