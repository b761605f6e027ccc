//! Memory: may what the configuration registers be locked, and is it in huge pages.

use forebay_config::Config;
use forebay_types::ByteSize;

use crate::checks::{Check, Section, Verdict, cards, provider};
use crate::demand;
use crate::facts::{Facts, Limit};
use crate::text::size;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = vec![lock_limit(facts, config)];
    checks.extend(lock_limits_of_others(facts, config));
    checks.extend(huge_pages(facts, config));
    checks.extend(capacity(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Memory, name, verdict, what)
}

/// What this process may lock. A worker that systemd starts, or another user, has a limit of its own.
fn lock_limit(facts: &Facts, config: &Config) -> Check {
    if facts.system.may_lock_memory {
        let others = "a service or another user has a limit of its own";
        return row("memlock", Verdict::Ok, format!("no limit applies to this process (CAP_IPC_LOCK); {others}"));
    }
    judge(facts, config, "memlock", facts.memory.lock_limit, "here")
}

/// What others than this process may lock that register memory: processes that run, units that start them, and the user
/// who called sudo.
fn lock_limits_of_others(facts: &Facts, config: &Config) -> Vec<Check> {
    let processes = facts.processes.iter().filter(|process| !process.is_coordinator()).map(|process| {
        let by = process.user.map_or_else(String::new, |user| format!("it runs as user {user}"));
        (process.name(), process.may_lock_memory, process.lock_limit, by)
    });
    let files = facts.lock_limits.iter().map(|found| {
        let user = found.user.as_deref().unwrap_or("root");
        let file = found.file.as_deref().map(|file| format!(", /{file}")).unwrap_or_default();
        (found.of.clone(), found.is_exempt, found.limit, format!("user {user}{file}"))
    });
    let check = |(of, is_exempt, limit, by): (String, bool, Option<Limit>, String)| {
        let check = match (is_exempt, limit) {
            (true, _) => row("service-memlock", Verdict::Ok, format!("no limit applies (CAP_IPC_LOCK; {by})")),
            (false, None) => {
                let what = format!("no file says a limit, so systemd's own counts, mostly of 8 MiB ({by})");
                let is_unit = of.ends_with(".service");
                match is_unit {
                    true => judge(facts, config, "service-memlock", Some(DEFAULT_OF_SYSTEMD), &what),
                    false => row(
                        "service-memlock",
                        Verdict::Info,
                        format!("no file says a limit ({by}); ulimit -l tells, as that user"),
                    ),
                }
            }
            (false, limit) => judge(facts, config, "service-memlock", limit, &by),
        };
        check.about(of)
    };
    processes.chain(files).map(check).collect()
}

/// What systemd gives to a unit that says nothing, on kernels from 5.16 on; it was less before.
const DEFAULT_OF_SYSTEMD: Limit = Limit::Bytes(8 << 20);

/// Registered memory counts once for each card that it is registered with.
fn judge(facts: &Facts, config: &Config, name: &'static str, limit: Option<Limit>, by: &str) -> Check {
    const REMEDY: &str = "ulimit -l unlimited; LimitMEMLOCK=infinity in the systemd unit; `* - memlock unlimited` in \
                          /etc/security/limits.conf; docker run --ulimit memlock=-1";
    let pool = (config.network_rdma_data_buffer_pool_initial_size, config.network_rdma_data_buffer_pool_max_size);
    let worker = config.worker_memory_size;
    let cards = cards::count(facts, config);
    let needed = |registered: ByteSize| registered.as_u64().saturating_mul(cards);
    // Each library registers it; with room for one of them, RDMA goes by that one.
    let by_both = provider::has_verbs(facts, config) && provider::takes_ucx(config) && facts.ucx.version.is_some();
    let times = if by_both { 2 } else { 1 };
    let limit = match limit {
        Some(Limit::Unlimited) => return row(name, Verdict::Ok, format!("unlimited ({by})")),
        None => return row(name, Verdict::Info, format!("the limit is unknown ({by})")),
        Some(Limit::Bytes(limit)) => limit,
    };
    let each = if cards > 1 { format!(", with each of {cards} cards") } else { String::new() };
    let twice = if by_both { ", twice: by verbs and by UCX" } else { "" };
    let registers = format!("a client registers {} and up to {}, a worker {worker}{each}{twice}", pool.0, pool.1);
    let what = format!("{} may be locked ({by}); with RDMA {registers}", size(limit));
    if !cards::wanted(config) && facts.rdma.devices.is_empty() {
        return row(name, Verdict::Info, what);
    }
    if limit < needed(pool.0.min(worker)) {
        return row(name, cards::broken(config), what).remedy(REMEDY);
    }
    if limit < needed(pool.1.max(worker)).saturating_mul(times) {
        return row(name, Verdict::Warn, what).remedy(REMEDY);
    }
    row(name, Verdict::Ok, what)
}

/// Registering memory in small pages takes hundreds of times as long, and so does touching it first.
fn huge_pages(facts: &Facts, config: &Config) -> Option<Check> {
    if !config.worker_memory_huge_pages {
        return None;
    }
    let (memory, wanted) = (&facts.memory, config.worker_memory_size);
    let free = memory.usable_huge_bytes();
    if free >= wanted.as_u64() {
        return Some(row("huge-pages", Verdict::Ok, format!("{} of huge pages are free", size(free))));
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
                size(free),
                choice.unwrap_or("unknown")
            ),
        )
        .remedy("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or sysctl -w vm.nr_hugepages=N"),
    })
}

/// A process that takes more is killed by the kernel: it does not start.
fn capacity(facts: &Facts, config: &Config) -> Option<Check> {
    let worker = demand::of_worker(config, false);
    // A machine that runs no worker does not need that memory.
    let verdict = if config.mounts.is_empty() { Verdict::Info } else { Verdict::Fail };
    demand::shortage(&facts.memory, &[worker])
        .map(|shortage| row("capacity", verdict, shortage.what).remedy(shortage.remedy))
}
