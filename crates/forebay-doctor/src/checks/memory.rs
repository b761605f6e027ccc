//! Memory: may what the configuration registers be locked, and is it in huge pages.

use forebay_config::Config;
use forebay_types::ByteSize;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Facts, Limit};
use crate::text::size;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = vec![lock_limit(facts, config)];
    checks.extend(huge_pages(facts, config));
    checks.extend(capacity(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Memory, name, verdict, what)
}

/// Registered memory counts once for each card that it is registered with.
fn lock_limit(facts: &Facts, config: &Config) -> Check {
    const REMEDY: &str = "ulimit -l unlimited; LimitMEMLOCK=infinity in the systemd unit; `* - memlock unlimited` in \
                          /etc/security/limits.conf; docker run --ulimit memlock=-1";
    let pool = (config.network_rdma_data_buffer_pool_initial_size, config.network_rdma_data_buffer_pool_max_size);
    let worker = config.worker_memory_size;
    let cards = cards::count(facts, config);
    let needed = |registered: ByteSize| registered.as_u64().saturating_mul(cards);
    let limit = match facts.memory.lock_limit {
        _ if facts.system.may_lock_memory => return row("memlock", Verdict::Ok, "no limit applies (CAP_IPC_LOCK)"),
        Some(Limit::Unlimited) => return row("memlock", Verdict::Ok, "unlimited"),
        None => return row("memlock", Verdict::Info, "the limit is unknown"),
        Some(Limit::Bytes(limit)) => limit,
    };
    let each = if cards > 1 { format!(", with each of {cards} cards") } else { String::new() };
    let registers = format!("a client registers {} and up to {}, a worker {worker}{each}", pool.0, pool.1);
    let what = format!("{} may be locked; with RDMA {registers}", size(limit));
    if !cards::wanted(config) && facts.rdma.devices.is_empty() {
        return row("memlock", Verdict::Info, what);
    }
    if limit < needed(pool.0.min(worker)) {
        return row("memlock", cards::broken(config), what).remedy(REMEDY);
    }
    if limit < needed(pool.1.max(worker)) {
        return row("memlock", Verdict::Warn, what).remedy(REMEDY);
    }
    row("memlock", Verdict::Ok, what)
}

/// Registering memory in small pages takes hundreds of times as long, and so does touching it first.
fn huge_pages(facts: &Facts, config: &Config) -> Option<Check> {
    if !config.worker_memory_huge_pages {
        return None;
    }
    let (memory, wanted) = (&facts.memory, config.worker_memory_size);
    if memory.huge_free_bytes >= wanted.as_u64() {
        return Some(row(
            "huge-pages",
            Verdict::Ok,
            format!("{} of huge pages are free", size(memory.huge_free_bytes)),
        ));
    }
    let transparent = memory.transparent_huge_pages.as_deref();
    Some(match transparent {
        Some("always" | "madvise") => {
            let choice = transparent.unwrap_or_default();
            row("huge-pages", Verdict::Ok, format!("transparent huge pages: {choice}"))
        }
        choice => row(
            "huge-pages",
            Verdict::Warn,
            format!(
                "{} of huge pages are free, for {wanted}, and transparent ones are {}: starting and reading are slower",
                size(memory.huge_free_bytes),
                choice.unwrap_or("unknown")
            ),
        )
        .remedy("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or sysctl -w vm.nr_hugepages=N"),
    })
}

fn capacity(facts: &Facts, config: &Config) -> Option<Check> {
    let memory = &facts.memory;
    let usable = memory.usable_bytes()?;
    let wanted = config.worker_memory_size;
    // A machine that runs no worker does not need that memory.
    let is_worker = !config.mounts.is_empty();
    let (what, remedy) = match memory.limit_bytes {
        Some(_) => {
            ("its limit here is", "lower worker.memory.size, or raise the limit of the container or the service")
        }
        None => ("the machine has", "lower worker.memory.size"),
    };
    (wanted.as_u64() > usable).then(|| {
        let verdict = if is_worker { Verdict::Fail } else { Verdict::Info };
        row("capacity", verdict, format!("worker.memory.size is {wanted}, and {what} {}", size(usable))).remedy(remedy)
    })
}
