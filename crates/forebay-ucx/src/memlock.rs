//! How much memory this process may lock, which is what registering with a network card does.

use forebay_types::ByteSize;
use rustix::process::{Resource, getrlimit};

use crate::error::Error;

/// The bit of the capability to lock memory beyond the limit, `CAP_IPC_LOCK`, in `/proc/self/status`.
const IPC_LOCK: u64 = 1 << 14;

/// `/proc/self/uid_map` in the first user namespace.
const FIRST_NAMESPACE: [&str; 3] = ["0", "0", "4294967295"];

/// What bounds locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimit {
    /// `ulimit -l` in bytes; `None` when there is no limit, or the process need not respect it.
    pub limit: Option<u64>,
    /// Bytes that network cards have locked of this process already.
    pub pinned: u64,
}

impl LockLimit {
    /// This process's.
    #[must_use]
    pub fn now() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::of(getrlimit(Resource::Memlock).current, &text("/proc/self/status"), &text("/proc/self/uid_map"))
    }

    fn of(limit: Option<u64>, status: &str, uid_map: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
        let pinned = field("VmPin:").and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        // The kernel asks for the capability in the first user namespace: that of a rootless container does not count.
        let in_first_namespace = uid_map.split_whitespace().eq(FIRST_NAMESPACE);
        let limit = limit.filter(|_| capabilities & IPC_LOCK == 0 || !in_first_namespace);
        Self { limit, pinned: pinned.unwrap_or(0) << 10 }
    }

    /// Whether `size` more bytes can be registered with a card that locks them.
    ///
    /// # Errors
    /// [`Error::LockedMemory`], which names the limit and the remedy.
    pub fn check(&self, size: ByteSize) -> Result<(), Error> {
        match self.limit {
            Some(limit) if self.pinned.saturating_add(size.as_u64()) > limit => {
                Err(Error::LockedMemory { size, limit: ByteSize::bytes(limit) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_already_counts_against_the_limit_and_the_remedy_is_named() {
        let half = LockLimit { limit: Some(64 << 20), pinned: 32 << 20 };
        assert_eq!(half.check(ByteSize::mib(32)), Ok(()));
        let text = half.check(ByteSize::mib(33)).unwrap_err().to_string();
        assert!(text.contains("33MiB") && text.contains("64MiB"), "{text}");
        assert!(text.contains("ulimit -l unlimited") && text.contains("LimitMEMLOCK=infinity"), "{text}");
        assert_eq!(LockLimit { limit: None, pinned: 1 << 40 }.check(ByteSize::gib(100)), Ok(()));
    }

    #[test]
    fn a_process_that_may_lock_anything_has_no_limit() {
        let status = |capabilities: &str| format!("VmLck:\t 8 kB\nVmPin:\t 2048 kB\nCapEff:\t{capabilities}\n");
        let first = "         0          0 4294967295\n";
        let plain = LockLimit::of(Some(8 << 20), &status("0000000000000000"), first);
        assert_eq!(plain, LockLimit { limit: Some(8 << 20), pinned: 2 << 20 });
        assert_eq!(LockLimit::of(Some(8 << 20), &status("000001ffffffffff"), first).limit, None);
        assert_eq!(LockLimit::of(Some(8 << 20), &status("0000000000004000"), first).limit, None);
        assert_eq!(LockLimit::of(None, "", "").limit, None);
        let of_a_container = LockLimit::of(Some(8 << 20), &status("000001ffffffffff"), "0 1000 1\n1 100000 65536\n");
        assert_eq!(of_a_container.limit, Some(8 << 20));
    }
}
