//! Processes that fork. Before Linux 5.12, the pages of registered memory become shared with the child when a process forks, and what
//! the parent writes next goes to a copy, while the card keeps the old page: what it reads and writes is not the parent's any more.
//! libibverbs can keep such pages out of children (ibv_fork_init(3)), at the price of a system call for each registration. Newer kernels
//! copy them for the child at once.

use std::sync::OnceLock;

use forebay_verbs_sys as sys;

/// The first kernel whose forks leave registered pages where they are.
const SAFE_SINCE: (u32, u32) = (5, 12);

/// Has forks do no harm to what is registered from here on. Once for the process, before anything is.
pub(crate) fn prepare(verbs: &sys::Ibverbs) {
    static PREPARED: OnceLock<()> = OnceLock::new();
    PREPARED.get_or_init(|| {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if !is_needed(&release) {
            return;
        }
        // SAFETY: it takes nothing.
        let result = unsafe { (verbs.ibv_fork_init)() };
        if result != 0 {
            let reason = std::io::Error::from_raw_os_error(result.abs()).to_string();
            tracing::warn!(
                release,
                reason,
                "registered memory is not kept from children of this process; with Linux 5.12 or newer that is not needed"
            );
        }
    });
}

/// Whether the kernel of this `release`, as `uname -r` prints it, needs it. One that cannot be read does.
fn is_needed(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < SAFE_SINCE,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_5_12_need_it() {
        for (release, expected) in [
            ("4.18.0-553.el8_10.x86_64", true),
            ("5.4.0-190-generic", true),
            ("5.11.22", true),
            ("5.12.0", false),
            ("5.15.0-1068-aws", false),
            ("6.1.0-44-amd64", false),
            ("10.0", false),
            ("unknown", true),
            ("", true),
        ] {
            assert_eq!(is_needed(release), expected, "{release}");
        }
    }
}
