//! The limits of control groups, which containers, pods and units have: what the configuration asks for has to fit into them.

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict};
use crate::facts::Facts;
use crate::text::size;

/// What a worker takes beside its cache and what it writes: the program, connections, names (docs/guides/sizing.md).
const BESIDE: u64 = 1 << 30;
/// One in so many of a limit's periods may end in waiting before readers feel it: it is the slowest read of a hundred then.
const SELDOM: u64 = 100;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let checks = [memory(facts, config), huge_pages(facts, config), processors(facts)];
    checks.into_iter().flatten().collect()
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Container, name, verdict, what)
}

/// What a machine that runs no worker would think of a worker's troubles.
fn of_worker(config: &Config, verdict: Verdict) -> Verdict {
    if config.mounts.is_empty() { Verdict::Info } else { verdict }
}

/// Whether there is room beside the cache. A cache that does not fit at all is `memory capacity`'s.
fn memory(facts: &Facts, config: &Config) -> Option<Check> {
    let memory = &facts.memory;
    let limit = memory.limit_bytes?;
    let (cache, writes) = (config.worker_memory_size, config.worker_write_memory);
    // No such limit counts reserved huge pages.
    let is_beside = config.worker_memory_huge_pages && memory.usable_huge_bytes() >= cache.as_u64();
    let counted = if is_beside { 0 } else { cache.as_u64() };
    let needed = counted.saturating_add(writes.as_u64()).saturating_add(BESIDE);
    let left = memory.left_bytes.map_or_else(String::new, |left| format!(", {} of it left", size(left)));
    let what = format!("{}{left}; a worker of worker.memory.size {cache} wants {}", size(limit), size(needed));
    if needed <= limit {
        return Some(row("memory-limit", Verdict::Ok, what));
    }
    let remedy = "raise resources.limits.memory, docker run --memory or MemoryMax=, or lower worker.memory.size: a worker takes \
                  a GiB more than worker.memory.size and worker.write.memory, and is killed where it gets less";
    Some(row("memory-limit", of_worker(config, Verdict::Warn), what).remedy(remedy))
}

/// A pod that asks for no huge pages gets none, however many its node has reserved.
fn huge_pages(facts: &Facts, config: &Config) -> Option<Check> {
    let memory = &facts.memory;
    let (used, reserved) = (memory.huge_limit_bytes, memory.huge_reserve_limit_bytes);
    let limit = used.into_iter().chain(reserved).min()?;
    if !config.worker_memory_huge_pages || memory.huge_total_bytes == 0 {
        return None;
    }
    let wanted = config.worker_memory_size.as_u64();
    let what = format!(
        "{} of huge pages may be used of {} that are reserved here; worker.memory.size is {}",
        size(limit),
        size(memory.huge_total_bytes),
        config.worker_memory_size
    );
    if limit >= wanted {
        return Some(row("huge-page-limit", Verdict::Ok, what));
    }
    let remedy = "in Kubernetes resources.limits.hugepages-2Mi (worker.hugePages.amount of the chart), or \
                  worker.memory.huge_pages = false";
    // The kernel promises the pages unless reserving is limited, too, and ends the process that touches what it cannot have.
    let is_promised = reserved.is_none_or(|reserved| reserved >= wanted) && memory.huge_free_bytes >= wanted;
    Some(if is_promised {
        let what = format!("{what}: it would be killed by SIGBUS, as the limit counts no reservations");
        row("huge-page-limit", of_worker(config, Verdict::Fail), what).remedy(remedy)
    } else {
        row("huge-page-limit", Verdict::Info, format!("{what}: it does without reserved ones")).remedy(remedy)
    })
}

/// A group that has used up its time waits for the next period, with all readers that wait for it.
fn processors(facts: &Facts) -> Option<Check> {
    let limit = facts.container.processors?;
    let of = facts.system.processors.map_or_else(String::new, |processors| format!(" of {processors}"));
    let (whole, rest) = (limit.thousandths / 1000, limit.thousandths % 1000);
    let time =
        if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() };
    let (throttled, periods) = (limit.throttled, limit.periods);
    let what = format!("the time of {time}{of} processors; used up in {throttled} of {periods} periods");
    Some(if throttled > periods / SELDOM {
        row("processor-limit", Verdict::Warn, format!("{what}, and waited each time")).remedy(
            "raise resources.limits.cpu or leave it out (requests suffice); docker run --cpus; CPUQuota= of the unit",
        )
    } else {
        row("processor-limit", Verdict::Ok, what)
    })
}
