//! Mounts of this machine: do they answer, and what did their readers wait for.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, MountProbe};
use crate::text::listed;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    facts.mounts.iter().flat_map(of_mount).collect()
}

fn of_mount(mount: &MountProbe) -> Vec<Check> {
    let check = |section, name, verdict, what: String| Check::new(section, name, verdict, what).about(&mount.path);
    if let Some(error) = &mount.error {
        return vec![check(Section::Fuse, "mount", Verdict::Warn, error.clone()).remedy(format!(
            "forebay umount {path}, or fusermount3 -uz {path} where nobody serves it any more; then mount it again; the mount's \
             log says what ended it",
            path = mount.path
        ))];
    }
    let process = mount.process.map_or_else(|| "its process".to_owned(), |pid| format!("process {pid}"));
    let io = mount.io.as_ref().map(|io| format!(", {io}")).unwrap_or_default();
    let mut checks = vec![check(Section::Fuse, "mount", Verdict::Ok, format!("{process} answers{io}"))];
    let MountProbe { buffer_waits: waits, buffer_failures: failures, .. } = mount;
    checks.push(if *waits + *failures == 0 {
        check(Section::Memory, "buffer-waits", Verdict::Ok, "no reader has waited for a buffer".to_owned())
    } else {
        let what = format!("readers waited for a buffer {waits} times, {failures} times in vain");
        check(Section::Memory, "buffer-waits", Verdict::Warn, what).remedy(
            "raise network.rdma.data.buffer_pool.max_size (client.memory.size without RDMA); for waits at the first reads \
             only, network.rdma.data.buffer_pool.initial_size; or lower client.prefetch.max_part_number",
        )
    });
    if !mount.disks_out.is_empty() {
        let what = format!("{} hangs: what is cached there is read from elsewhere", listed(&mount.disks_out));
        checks.push(check(Section::System, "disk", Verdict::Warn, what).remedy(
            "dmesg tells what the kernel waits for; the disk is used again when it answers; to do without it, take it out of \
             worker.disks and restart",
        ));
    }
    if !mount.unreachable.is_empty() {
        let what = format!(
            "reads from {} fail: no path over RDMA is up, and network.rdma.data.fallback = \"never\" allows no TCP",
            listed(&mount.unreachable)
        );
        checks.push(check(Section::Rdma, "mount-paths", Verdict::Fail, what).remedy(
            "see that the worker runs and its log says `RDMA server listening`; forebay doctor --peer HOST tests the way there; \
             RDMA is tried again each second. network.rdma.data.fallback = \"auto\" reads over TCP until it is back",
        ));
    }
    if !mount.rdma_down.is_empty() {
        let what = format!("a path over RDMA to {} is down, and other cards or TCP are used", listed(&mount.rdma_down));
        checks.push(check(Section::Rdma, "mount-paths", Verdict::Warn, what).remedy(
            "forebay doctor --peer HOST tests the way there; RDMA is tried again after network.rdma.data.retry_duration",
        ));
    } else if mount.unreachable.is_empty() && mount.fell_back > 0 {
        let what = format!("it fell back to TCP {} times since it was mounted, and RDMA is up", mount.fell_back);
        checks.push(check(Section::Rdma, "mount-paths", Verdict::Info, what));
    }
    checks
}
