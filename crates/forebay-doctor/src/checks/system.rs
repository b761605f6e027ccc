//! The kernel and tools.

use crate::checks::{Check, Section, Verdict};
use crate::facts::Facts;

/// The oldest kernel that RDMA is recommended with.
const KERNEL: (u32, u32) = (5, 0);

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    let kernel = match facts.system.kernel_version() {
        Some((major, minor)) if (major, minor) < KERNEL => Check::new(
            Section::System,
            "kernel",
            Verdict::Warn,
            format!("Linux {major}.{minor} is old for RDMA and FUSE"),
        )
        .remedy(format!("run Linux {}.{} or newer", KERNEL.0, KERNEL.1)),
        Some((major, minor)) => Check::new(Section::System, "kernel", Verdict::Ok, format!("Linux {major}.{minor}")),
        None => Check::new(Section::System, "kernel", Verdict::Info, "the kernel's version is unknown"),
    };
    let fio = match &facts.system.fio {
        Some(path) => {
            Check::new(Section::System, "fio", Verdict::Ok, format!("{}: benchmarks can run", path.display()))
        }
        None => Check::new(Section::System, "fio", Verdict::Info, "fio is not installed; only benchmarks need it")
            .remedy("apt-get install fio, or dnf install fio"),
    };
    vec![kernel, fio]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_warned_of_and_fio_is_a_matter_of_taste() {
        let mut facts = Facts::default();
        let verdicts = |facts: &Facts| check(facts).iter().map(|check| check.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&facts), [Verdict::Info, Verdict::Info]);
        facts.system.kernel = Some("4.18.0-553.el8".into());
        facts.system.fio = Some("/usr/bin/fio".into());
        assert_eq!(verdicts(&facts), [Verdict::Warn, Verdict::Ok]);
        facts.system.kernel = Some("6.1.0".into());
        assert_eq!(verdicts(&facts), [Verdict::Ok, Verdict::Ok]);
    }
}
