//! The machine itself: kernel, modules, UCX, memory, and what mounts need.

use super::lines::{Lines, joined, line};
use crate::facts::{Facts, Limit, Module, UcxModule};
use crate::text::{listed, ranges, size};

pub(super) fn system(facts: &Facts) -> Lines {
    let system = &facts.system;
    let count = |count: u32, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let host = joined([
        system.hostname.clone(),
        system.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        system.processors.map(|processors| count(processors, "processor")),
        system.numa_nodes.map(|nodes| count(nodes, "NUMA node")),
    ]);
    let mut lines = vec![line("host", host)];
    if system.governors.len() > 1 {
        let of = system.governors.iter().map(|(governor, processors)| format!("{governor} on {}", ranges(processors)));
        lines.push(line("clocks", listed(of)));
    } else {
        lines.extend(system.frequency_governor.as_ref().map(|governor| line("clocks", governor)));
    }
    let pipe = system.pipe_max_bytes.map_or_else(|| "unknown".to_owned(), size);
    lines.push(line("pipes", format!("of {pipe} at most (fs.pipe-max-size)")));
    let may = [("lock memory", system.may_lock_memory), ("administrate", system.may_administrate)];
    let may = may.into_iter().filter(|(_, may)| *may).map(|(what, _)| what);
    lines.push(line(
        "this process",
        format!("root: {}; may {}", if system.is_root { "yes" } else { "no" }, listed(may)),
    ));
    lines
}

pub(super) fn modules(facts: &Facts) -> Lines {
    let line_of = |module: &Module| {
        let used = match (module.references, module.users.is_empty()) {
            (Some(count), false) => Some(format!("used {count} times, by {}", listed(&module.users))),
            (Some(count), true) => Some(format!("used {count} times")),
            _ => None,
        };
        let size = module.size_bytes.map_or_else(|| "built in".to_owned(), size);
        line(&module.name, joined([Some(size), module.version.clone(), used]))
    };
    let mut lines: Lines = facts.modules.iter().map(line_of).collect();
    // What the vendor's service says of itself.
    let drivers = ["mlx5_core", "mlx4_core", "bnxt_re", "irdma", "efa", "rdma_rxe"];
    let drivers = drivers.iter().filter(|name| facts.module(name).is_some());
    lines.push(line("card drivers", listed(drivers)));
    let at_boot = facts.boot.modules.iter().map(|(module, file)| format!("{module} (/{file})"));
    let openibd = facts.boot.openibd.then(|| "those of openibd".to_owned());
    lines.push(line("at boot", listed(at_boot.chain(openibd))));
    lines
}

pub(super) fn ucx(facts: &Facts) -> Lines {
    let ucx = &facts.ucx;
    let mut lines = vec![line("libucp", ucx.summary())];
    if !ucx.rdma.is_empty() {
        lines.push(line("RDMA", listed(&ucx.rdma)));
    }
    if !ucx.modules.is_empty() {
        let module = |module: &UcxModule| match module.is_loaded {
            true => module.name.clone(),
            false => format!("{} (did not load)", module.name),
        };
        lines.push(line("modules", listed(ucx.modules.iter().map(module))));
    }
    if let Some(library) = &ucx.verbs_library {
        lines.push(line("libibverbs", library));
    }
    lines.extend(ucx.environment.iter().map(|(name, value)| line(name, value)));
    lines
}

pub(super) fn memory(facts: &Facts) -> Lines {
    let memory = &facts.memory;
    let limit = |limit: Option<Limit>| match limit {
        Some(Limit::Unlimited) => "unlimited".to_owned(),
        Some(Limit::Bytes(bytes)) => size(bytes),
        None => "unknown".to_owned(),
    };
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size);
    let limited = memory.limit_bytes.map_or_else(String::new, |limit| format!("; {} for this process", size(limit)));
    let others = facts.processes.iter().map(|process| match process.may_lock_memory {
        true => line("", format!("{}: without limit", process.name())),
        false => line("", format!("{}: {}", process.name(), limit(process.lock_limit))),
    });
    let files = facts.lock_limits.iter().map(|found| match found.is_exempt {
        true => line("", format!("{}: without limit", found.of)),
        false => line("", format!("{}: {}", found.of, limit(found.limit))),
    });
    let lines = vec![
        line("total", format!("{}, {} available{limited}", known(memory.total_bytes), known(memory.available_bytes))),
        line(
            "huge pages",
            format!(
                "{} reserved, {} free; transparent: {}",
                size(memory.huge_total_bytes),
                size(memory.huge_free_bytes),
                memory.transparent_huge_pages.as_deref().unwrap_or("unknown")
            ),
        ),
        line("may be locked", format!("{}, at most {}", limit(memory.lock_limit), limit(memory.lock_limit_max))),
    ];
    lines.into_iter().chain(others).chain(files).collect()
}

pub(super) fn fuse(facts: &Facts) -> Lines {
    let fuse = &facts.fuse;
    let is_on = |is_on: bool| if is_on { "on" } else { "off" };
    let pages = fuse.max_pages.map_or_else(|| "unknown".to_owned(), |pages| pages.to_string());
    let fusermount = fuse.fusermount.as_ref().map_or("none".to_owned(), |program| program.path.display().to_string());
    vec![
        line("fusermount3", fusermount),
        line("kernel", format!("io_uring {}, at most {pages} pages a request", fuse.io_uring.map_or("unknown", is_on))),
        line("mounts", listed(&fuse.mounts)),
    ]
}
