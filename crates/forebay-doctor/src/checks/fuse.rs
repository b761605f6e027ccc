//! What a mount needs, and what would make it faster.

use forebay_config::Config;
use forebay_types::FuseIo;

use crate::checks::device_nodes::{BY_RULES, Remedies};
use crate::checks::{Check, Section, Verdict};
use crate::facts::Facts;
use crate::root::Access;
use crate::text::size;

/// The most pages of one request where the kernel has no setting for it.
const DEFAULT_MAX_PAGES: u64 = 256;
const PAGE: u64 = 4096;
/// Since when the kernel passes reads of a FUSE file through to another file.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// Since when it carries requests over io_uring.
const IO_URING: (u32, u32) = (6, 14);

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = vec![device(facts)];
    checks.extend(fusermount(facts));
    checks.extend(allow_other(facts, config));
    checks.extend(max_read(facts, config));
    checks.push(io_uring(facts, config));
    checks.push(passthrough(facts));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Fuse, name, verdict, what)
}

/// A worker needs no FUSE, so that there is none is worth a warning and no failure.
fn device(facts: &Facts) -> Check {
    const CONTAINER: &str = "in a container: docker run --device=/dev/fuse --cap-add=SYS_ADMIN; in Kubernetes a privileged \
                             container, or the CSI driver in its place; in a unit DeviceAllow=/dev/fuse rw";
    const REMEDIES: Remedies<'static> = Remedies { mode: "chmod 666 /dev/fuse", rules: CONTAINER, module: "fuse" };
    match &facts.fuse.device {
        Access::Granted if facts.fuse.is_in_kernel => row("device", Verdict::Ok, "/dev/fuse can be opened"),
        Access::Granted => {
            row("device", Verdict::Info, "/dev/fuse can be opened; the kernel loads fuse when it is needed")
        }
        Access::Missing => row("device", Verdict::Warn, "no /dev/fuse: nothing can be mounted here")
            .remedy(format!("modprobe fuse; {CONTAINER}")),
        // The helper opens it as root, which rules for devices hold back, too.
        Access::Refused(reason) if !facts.system.is_root && helper_may(facts) && reason != BY_RULES => {
            row("device", Verdict::Info, format!("/dev/fuse: {reason}; fusermount3 opens it, once for all threads"))
                .remedy("chmod 666 /dev/fuse gives each thread a descriptor of its own")
        }
        Access::Refused(reason) => {
            row("device", Verdict::Warn, format!("/dev/fuse: {reason}: nothing can be mounted here"))
                .remedy(REMEDIES.of(reason))
        }
    }
}

fn helper_may(facts: &Facts) -> bool {
    facts.fuse.fusermount.as_ref().is_some_and(|program| program.is_setuid_root)
}

fn fusermount(facts: &Facts) -> Option<Check> {
    const INSTALL: &str = "apt-get install fuse3, or dnf install fuse3; or mount as root";
    let needs = !facts.system.is_root;
    Some(match &facts.fuse.fusermount {
        None if needs => row("fusermount3", Verdict::Warn, "not installed: only root can mount").remedy(INSTALL),
        None => return None,
        Some(program) if needs && !program.is_setuid_root => row(
            "fusermount3",
            Verdict::Warn,
            format!("{} is not setuid root: only root can mount", program.path.display()),
        )
        .remedy(format!("chmod u+s {}", program.path.display())),
        Some(program) => row("fusermount3", Verdict::Ok, program.path.display().to_string()),
    })
}

fn allow_other(facts: &Facts, config: &Config) -> Option<Check> {
    if facts.system.is_root {
        return None;
    }
    let what = "user_allow_other is not set in /etc/fuse.conf: only root can let others see a mount";
    let remedy = "echo user_allow_other >> /etc/fuse.conf";
    Some(match (facts.fuse.user_allow_other, config.fuse_allow_other) {
        (true, _) => row("allow-other", Verdict::Ok, "user_allow_other is set"),
        (false, Some(true)) => {
            row("allow-other", Verdict::Fail, format!("fuse.allow_other is on, and {what}")).remedy(remedy)
        }
        (false, _) => row("allow-other", Verdict::Info, what).remedy(remedy),
    })
}

fn max_read(facts: &Facts, config: &Config) -> Option<Check> {
    let largest = facts.fuse.max_pages.unwrap_or(DEFAULT_MAX_PAGES).saturating_mul(PAGE);
    let wanted = config.fuse_max_read;
    let pages = wanted.as_u64() / PAGE;
    Some(if largest >= wanted.as_u64() {
        row("max-pages", Verdict::Ok, format!("requests of {} are possible", size(largest)))
    } else {
        row(
            "max-pages",
            Verdict::Warn,
            format!("fuse.max_read is {wanted}, and the kernel sends at most {}", size(largest)),
        )
        .remedy(format!("sysctl -w fs.fuse.max_pages_limit={pages}"))
    })
}

/// Mounts take requests over `/dev/fuse` where they cannot take them over io_uring, unless they are told to do nothing else. What a
/// container's system call filter forbids is seen only when a mount is made, which then says so.
fn io_uring(facts: &Facts, config: &Config) -> Check {
    let system = &facts.system;
    let forbidden = system.io_uring_disabled.filter(|forbidden| match forbidden {
        0 => false,
        1 => !system.may_administrate,
        _ => true,
    });
    let is_new = system.kernel_version().is_some_and(|version| version >= IO_URING);
    let (what, remedy) = match (facts.fuse.io_uring, forbidden) {
        (Some(true), None) => return row("io-uring", Verdict::Info, "the kernel offers FUSE over io_uring"),
        (Some(true), Some(forbidden)) => (
            format!("kernel.io_uring_disabled is {forbidden}: FUSE over io_uring is offered, and forbidden"),
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        (Some(false), _) => (
            "FUSE over io_uring is off in this kernel".to_owned(),
            "echo Y > /sys/module/fuse/parameters/enable_uring, before mounting",
        ),
        (None, _) if is_new => (
            "this kernel was built without FUSE over io_uring, or has not loaded fuse yet".to_owned(),
            "modprobe fuse; a kernel with CONFIG_FUSE_IO_URING; or fuse.io = \"auto\"",
        ),
        (None, _) => (
            "this kernel has no FUSE over io_uring, which came with Linux 6.14".to_owned(),
            "a kernel of 6.14 or later; or fuse.io = \"auto\"",
        ),
    };
    match config.fuse_io {
        FuseIo::Uring => {
            row("io-uring", Verdict::Fail, format!("fuse.io is uring, and {what}: nothing can be mounted"))
                .remedy(remedy)
        }
        FuseIo::Auto | FuseIo::Device => row("io-uring", Verdict::Info, what).remedy(remedy),
    }
}

fn passthrough(facts: &Facts) -> Check {
    let is_new = facts.system.kernel_version().is_some_and(|version| version >= PASSTHROUGH);
    let what = match (is_new, facts.system.may_administrate) {
        (true, true) => "the kernel can pass reads through to another file",
        (true, false) => "the kernel can pass reads through to another file, for processes with CAP_SYS_ADMIN",
        (false, _) => "this kernel cannot pass reads through to another file, which came with Linux 6.9",
    };
    row("passthrough", Verdict::Info, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(change: impl FnOnce(&mut Facts), io: FuseIo) -> Check {
        let mut facts = Facts::default();
        facts.system.kernel = Some("6.18.1".into());
        facts.fuse.io_uring = Some(true);
        change(&mut facts);
        io_uring(&facts, &Config { fuse_io: io, ..Config::default() })
    }

    #[test]
    fn what_keeps_io_uring_away_is_told_and_fails_only_where_nothing_else_will_do() {
        type Change = fn(&mut Facts);
        let cases: [(&str, Change); 5] = [
            ("io_uring_disabled is 2", |facts| facts.system.io_uring_disabled = Some(2)),
            ("io_uring_disabled is 1", |facts| facts.system.io_uring_disabled = Some(1)),
            ("is off", |facts| facts.fuse.io_uring = Some(false)),
            ("built without", |facts| facts.fuse.io_uring = None),
            ("came with Linux 6.14", |facts| {
                facts.fuse.io_uring = None;
                facts.system.kernel = Some("6.1.0-25-amd64".into());
            }),
        ];
        for (what, change) in cases {
            for (io, verdict) in
                [(FuseIo::Auto, Verdict::Info), (FuseIo::Device, Verdict::Info), (FuseIo::Uring, Verdict::Fail)]
            {
                let check = seen(change, io);
                assert_eq!(check.verdict, verdict, "{check:?}");
                assert!(check.what.contains(what) && check.remedy.is_some(), "{check:?}");
            }
        }
    }

    #[test]
    fn io_uring_that_is_offered_and_allowed_is_well() {
        let allowed = |facts: &mut Facts| {
            facts.system.io_uring_disabled = Some(1);
            facts.system.may_administrate = true;
        };
        for io in [FuseIo::Auto, FuseIo::Uring] {
            assert_eq!(seen(|_| (), io).verdict, Verdict::Info);
            assert_eq!(seen(allowed, io).remedy, None);
        }
    }
}
