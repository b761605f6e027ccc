//! Materialised files: can there be any, and will they be as fast as they are meant to be.

use forebay_config::Config;
use forebay_types::ByteSize;

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, LocalDirectory};
use crate::text::size;

/// Since when the kernel passes reads of a FUSE file through to another file.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// How a mount gets the capability.
const RIGHTS: &str =
    "mount as root; docker run --cap-add SYS_ADMIN; AmbientCapabilities=CAP_SYS_ADMIN in the systemd unit";
/// File systems whose files come over a network, or through a process.
const FAR: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "glusterfs"];

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let Some(size) = config.client_local_size else { return unset(facts, config) };
    if size.as_u64() == 0 {
        return Vec::new();
    }
    let mut checks = vec![possible(facts)];
    match &facts.local.directory {
        Some(directory) => checks.push(check_directory(directory, size)),
        None if config.client_local_dir.is_none() => {
            checks.extend(memory(facts, config, size));
            checks.push(huge_pages(facts));
        }
        None => {}
    }
    checks
}

fn row(section: Section, name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(section, name, verdict, what)
}

/// Nobody has set how much room they have: mounts take some by themselves, where the kernel and the rights allow. Where not, nothing is
/// wrong, but one setting would gain a lot.
fn unset(facts: &Facts, config: &Config) -> Vec<Check> {
    const GAIN: &str = "files that are read twice are served by the mount, at 1 to 3 GB/s through the page cache: the kernel itself \
                        would read them at 10 GB/s and more, without the mount";
    let row = |verdict, what: String| row(Section::Fuse, "local", verdict, what);
    if config.client_local_dir.is_some() {
        let what = "client.local.dir is set, and client.local.size is not: no files are materialised".to_owned();
        return vec![row(Verdict::Warn, what).remedy("set client.local.size to the room that they may take there")];
    }
    if facts.system.kernel_version().is_none_or(|version| version < PASSTHROUGH) {
        return vec![row(Verdict::Info, format!("{GAIN}, from Linux 6.9 on")).remedy("boot Linux 6.9 or later")];
    }
    if !facts.system.may_administrate {
        return vec![row(Verdict::Info, format!("{GAIN}, for a mount with CAP_SYS_ADMIN")).remedy(RIGHTS)];
    }
    vec![row(Verdict::Ok, "files that are read twice are served by the kernel itself".to_owned())]
}

fn possible(facts: &Facts) -> Check {
    let row = |verdict, what: &str| row(Section::Fuse, "local", verdict, what);
    if facts.system.kernel_version().is_none_or(|version| version < PASSTHROUGH) {
        let what = "client.local.size is set, and this kernel cannot pass reads through: files are served by the mount, at 1 \
                    to 3 GB/s through the page cache";
        return row(Verdict::Warn, what).remedy("boot Linux 6.9 or later, or unset client.local.size");
    }
    if !facts.system.may_administrate {
        let what = "client.local.size is set, and only processes with CAP_SYS_ADMIN pass reads through: files are served by \
                    the mount, at 1 to 3 GB/s through the page cache";
        return row(Verdict::Warn, what).remedy(RIGHTS);
    }
    row(Verdict::Ok, "files can be materialised")
}

fn check_directory(directory: &LocalDirectory, wanted: ByteSize) -> Check {
    let path = directory.path.display().to_string();
    let row = |verdict, what: String| row(Section::Fuse, "local-backend", verdict, what).about(&path);
    let file_system = directory.file_system.as_deref().unwrap_or("an unknown file system");
    if directory.is_silent {
        let what = format!("client.local.dir is on {file_system}, which does not answer");
        return row(Verdict::Fail, what)
            .remedy("see to what serves it, or set client.local.dir to a directory on a local disk");
    }
    if file_system == "overlay" {
        let what = "client.local.dir is on an overlay, which the kernel does not pass reads through to".to_owned();
        return row(Verdict::Fail, what)
            .remedy("mount a disk or a volume there: docker run --volume /mnt/nvme0:/mnt/nvme0");
    }
    if FAR.contains(&file_system) || file_system.starts_with("fuse") {
        let what = format!("client.local.dir is on {file_system}: its files are as far away as those of a worker");
        return row(Verdict::Warn, what).remedy("set client.local.dir to a directory on a local disk, or unset it");
    }
    if let Some(mode) = directory.mode.filter(|mode| mode & 0o022 != 0 && mode & 0o1000 == 0) {
        let what = format!("others may write to client.local.dir (mode {mode:o}), and could take away what is in it");
        return row(Verdict::Warn, what).remedy(format!("chmod 0700 {path}"));
    }
    if file_system == "tmpfs" && !matches!(directory.huge.as_deref(), Some("always" | "within_size")) {
        let what = "client.local.dir is a tmpfs in small pages: 8 to 17 GB/s where huge ones give 26".to_owned();
        return row(Verdict::Warn, what).remedy(format!(
            "mount -o remount,huge=within_size {path}, or unset client.local.dir: forebay makes its own"
        ));
    }
    match directory.free_bytes {
        Some(free) if free < wanted.as_u64() => {
            let what = format!("client.local.size is {wanted}, and {} are free there", size(free));
            row(Verdict::Info, format!("{what}; what Forebay has there already counts as used"))
        }
        _ => row(Verdict::Ok, format!("{wanted} on {file_system}")),
    }
}

/// Its pages count as this process's, in whatever group it runs.
fn memory(facts: &Facts, config: &Config, local: ByteSize) -> Option<Check> {
    /// What is left for everything else, in percent.
    const MAX_PERCENT: u64 = 80;
    let usable = facts.memory.usable_bytes()?;
    let worker = if config.mounts.is_empty() { 0 } else { config.worker_memory_size.as_u64() };
    let wanted = local.as_u64().saturating_add(worker);
    let with =
        if worker > 0 { format!(" and worker.memory.size {}", config.worker_memory_size) } else { String::new() };
    let what = format!("client.local.size is {local}{with}, of {} that there are", size(usable));
    Some(if wanted > usable {
        row(Section::Memory, "local-memory", Verdict::Fail, what)
            .remedy("lower client.local.size, set client.local.dir, or raise the limit of the container or the service")
    } else if wanted > usable / 100 * MAX_PERCENT {
        row(Section::Memory, "local-memory", Verdict::Warn, what)
            .remedy("lower client.local.size, or set client.local.dir to a directory on a local disk")
    } else {
        row(Section::Memory, "local-memory", Verdict::Ok, what)
    })
}

fn huge_pages(facts: &Facts) -> Check {
    match facts.local.shared_huge_pages.as_deref() {
        Some("deny") => {
            let what =
                "the kernel gives no tmpfs huge pages: materialised files are read at 8 to 17 GB/s instead of 26";
            row(Section::Memory, "local-huge-pages", Verdict::Warn, what).remedy(
                "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled; our own tmpfs has them all the same",
            )
        }
        Some(_) => row(Section::Memory, "local-huge-pages", Verdict::Ok, "materialised files lie in huge pages"),
        None => {
            row(Section::Memory, "local-huge-pages", Verdict::Info, "this kernel has no huge pages for files in memory")
        }
    }
}
