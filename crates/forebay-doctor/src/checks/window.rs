//! The window onto a worker's memory: can a worker have one here, and do this machine's mounts look through it.

use forebay_config::{Config, SharedMemory};

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, MountProbe};
use crate::text::{listed, size};

/// What it is like without.
const WITHOUT: &str = "mounts on this host get copies over a socket, at a quarter to half of the speed of memory";

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mounts = facts.mounts.iter().filter_map(of_mount);
    std::iter::once(of_worker(facts, config)).chain(mounts).collect()
}

/// What a worker with this configuration would come to.
fn of_worker(facts: &Facts, config: &Config) -> Check {
    let row = |verdict, what: String| Check::new(Section::Memory, "shared-memory", verdict, what);
    let mode = config.network_shared_memory;
    if mode == SharedMemory::Off {
        let what = format!("network.shared_memory is off: {WITHOUT}");
        return row(Verdict::Info, what).remedy(
            "unset network.shared_memory, unless what one mount may read must be hidden from others of its user",
        );
    }
    let shown = "a worker shows its memory to mounts on this host that run as its user";
    if !config.worker_memory_huge_pages {
        return row(Verdict::Ok, format!("{shown}, in small pages as worker.memory.huge_pages wants it"));
    }
    if let Some(pages) = huge_pages(facts, config) {
        return row(Verdict::Ok, format!("{shown}, in {pages}"));
    }
    if mode == SharedMemory::On {
        let what = format!("{shown}, in small pages: each process finds them anew when it first reads them");
        return row(Verdict::Info, what).remedy(REMEDY);
    }
    // A machine that runs no worker does not need it.
    let verdict = if config.mounts.is_empty() { Verdict::Info } else { Verdict::Warn };
    let what = format!("a worker here could be shared in small pages only, and shares nothing: {WITHOUT}");
    row(verdict, what).remedy(format!("network.shared_memory = \"on\", in spite of them; or {REMEDY}"))
}

const REMEDY: &str = "run the worker as root or with CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN); sysctl -w vm.nr_hugepages=N, of \
                      which worker.memory.size takes its part; echo advise > \
                      /sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The huge pages that memory can be shared in.
fn huge_pages(facts: &Facts, config: &Config) -> Option<String> {
    let free = facts.memory.usable_huge_bytes();
    if free >= config.worker_memory_size.as_u64() {
        return Some(format!("reserved huge pages, of which {} are free", size(free)));
    }
    // Without that file the kernel knows no huge pages of shared memory.
    match facts.local.shared_huge_pages.as_deref()? {
        "deny" => None,
        "never" if !facts.system.may_administrate => None,
        _ => Some("huge pages".to_owned()),
    }
}

/// What came of it with the workers that a mount reads from.
fn of_mount(mount: &MountProbe) -> Option<Check> {
    let row = |verdict, what: String| Check::new(Section::Network, "mount-window", verdict, what).about(&mount.path);
    let shut: Vec<_> = mount.windows.iter().filter_map(|window| Some((&window.worker, window.why.as_ref()?))).collect();
    if let Some((worker, why)) = shut.first() {
        let others = if shut.len() > 1 { format!(" (and that of {} others)", shut.len() - 1) } else { String::new() };
        let what = format!("the memory of {worker}{others} is not seen, reads are copied: {why}");
        return Some(row(Verdict::Info, what).remedy(
            "run worker and mount as one user, of the same release, in one network namespace, where both see one \
             network.shared_memory_dir, with network.shared_memory at `auto` or `on`; the worker's log says what it \
             shares",
        ));
    }
    let open: Vec<String> = mount.windows.iter().map(|window| window.worker.clone()).collect();
    (!open.is_empty())
        .then(|| row(Verdict::Ok, format!("it reads where the bytes lie in the memory of {}", listed(&open))))
}
