//! Memory: how much there is, in which pages, and how much of it may be locked.

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// Memory and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory, in bytes.
    pub total_bytes: Option<u64>,
    /// What programs can still have without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// Reserved huge pages that nobody uses, in bytes.
    pub huge_free_bytes: u64,
    /// All reserved huge pages, in bytes.
    pub huge_total_bytes: u64,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// How much this process may lock (`ulimit -l`).
    pub lock_limit: Option<Limit>,
    /// How far it may raise that itself.
    pub lock_limit_max: Option<Limit>,
}

/// A limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// This many bytes.
    Bytes(u64),
    /// None.
    Unlimited,
}

impl Memory {
    pub(crate) fn read(root: &Root) -> Self {
        let table = root.text("proc/meminfo").unwrap_or_default();
        // `MemTotal:  8045856 kB`, and `HugePages_Total:  0` without a unit.
        let field = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let mut words = line.split_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            number.checked_mul(if words.next() == Some("kB") { 1 << 10 } else { 1 })
        };
        let huge_page = field("Hugepagesize").unwrap_or(0);
        let huge_pages = |name: &str| field(name).and_then(|pages| pages.checked_mul(huge_page)).unwrap_or(0);
        let limits = root.text("proc/self/limits").unwrap_or_default();
        let limits = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap_or_default();
        let mut limits = limits.split_whitespace().map(|word| match word {
            "unlimited" => Some(Limit::Unlimited),
            bytes => bytes.parse().ok().map(Limit::Bytes),
        });
        Self {
            total_bytes: field("MemTotal"),
            available_bytes: field("MemAvailable"),
            huge_free_bytes: huge_pages("HugePages_Free"),
            huge_total_bytes: huge_pages("HugePages_Total"),
            transparent_huge_pages: root.text("sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
            lock_limit: limits.next().flatten(),
            lock_limit_max: limits.next().flatten(),
        }
    }
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}
