//! Memory that other processes of the host may look at: a file that nothing but descriptors leads to.
//!
//! The kernel frees the file with its last descriptor and mapping, so nothing is left of it whatever happens to this
//! process. Other processes are given a descriptor that is open for reading. It cannot be used to write, nor to cut the
//! file short, which would kill the readers (SIGBUS). The descriptor that could is closed as soon as the memory is
//! mapped.
//!
//! Huge pages matter more here than in private memory: every process that looks at it has to be given its pages anew, with a fault
//! for no more than some of the small ones at a time.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, ProtFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{Resource, getrlimit};

use crate::pages::{HUGE_PAGE, PageKind};
use crate::region::Region;

/// Whether other processes may look at a pool's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No.
    #[default]
    Private,
    /// If it costs no huge pages: such memory is in huge pages too, or none are wanted.
    IfHuge,
    /// Yes, if need be in small pages.
    Always,
}

/// Memory that this process writes, and what others may see it through.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) region: Region,
    pub(crate) pages: PageKind,
    /// Open for reading.
    pub(crate) descriptor: OwnedFd,
}

/// One way to have such memory.
type Way = fn(usize) -> Result<SharedMemory>;

/// The best of the memory that may be shared; `None` when it is to be private.
pub(crate) fn map(length: usize, huge_pages: bool, sharing: Sharing) -> Option<SharedMemory> {
    let huge: [Way; 3] = [reserved, unattached, merged];
    let huge = if huge_pages && length.is_multiple_of(HUGE_PAGE) { &huge[..] } else { &[] };
    let small: [Way; 1] = [small];
    let shared = match sharing {
        Sharing::Private => return None,
        Sharing::IfHuge if huge_pages => first(length, huge),
        Sharing::IfHuge | Sharing::Always => first(length, huge).or_else(|| first(length, &small)),
    };
    if shared.is_none() {
        tracing::info!(
            bytes = length,
            ?sharing,
            "memory is not shared with other processes: that wants CAP_SYS_ADMIN, `vm.nr_hugepages` or small pages"
        );
    }
    shared
}

fn first(length: usize, ways: &[Way]) -> Option<SharedMemory> {
    ways.iter().find_map(|way| {
        way(length).inspect_err(|error| tracing::debug!(bytes = length, %error, "no such memory to share")).ok()
    })
}

/// In reserved huge pages. They are set aside when the file is mapped, so with too few this fails here.
fn reserved(length: usize) -> Result<SharedMemory> {
    sealed(length, MemfdFlags::HUGETLB, PageKind::Huge)
}

/// In a tmpfs that is attached nowhere. Needs CAP_SYS_ADMIN.
fn unattached(length: usize) -> Result<SharedMemory> {
    if merging().as_deref() == Some("deny") {
        return Err(Errno::OPNOTSUPP);
    }
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, c"size", length.to_string())?;
    // A kernel without huge pages does not know it.
    fsconfig_set_string(&context, c"huge", "always")?;
    fsconfig_set_string(&context, c"mode", c"0700")?;
    // Since Linux 6.4.
    if let Err(error) = fsconfig_set_flag(&context, c"noswap") {
        tracing::debug!(%error, "shared memory may be swapped out");
    }
    fsconfig_create(&context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // Such a file takes no seals, so its mode has to keep a reader from opening it again to write; EXCL, from giving it a name.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&root, c".", flags, Mode::RUSR)?;
    let region = writable(&file, length)?;
    Ok(SharedMemory { region, pages: PageKind::Transparent, descriptor: readable(&file)? })
}

/// In huge pages where the machine is set to use them for all such files.
fn merged(length: usize) -> Result<SharedMemory> {
    if !matches!(merging().as_deref(), Some("always" | "within_size" | "advise" | "force")) {
        return Err(Errno::OPNOTSUPP);
    }
    let shared = sealed(length, MemfdFlags::empty(), PageKind::Transparent)?;
    // SAFETY: the range is the mapping just made; LinuxHugepage changes no contents.
    unsafe { rustix::mm::madvise(shared.region.base().as_ptr().cast(), length, Advice::LinuxHugepage)? };
    Ok(shared)
}

fn small(length: usize) -> Result<SharedMemory> {
    sealed(length, MemfdFlags::empty(), PageKind::Small)
}

/// A file of `length` bytes that has no name, and that no other process can write or cut short, whatever descriptor it has.
fn sealed(length: usize, flags: MemfdFlags, pages: PageKind) -> Result<SharedMemory> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| rustix::fs::memfd_create(c"forebay", flags);
    // NOEXEC_SEAL: since Linux 6.3, and there some machines have no others.
    let file = create(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| create(flags))?;
    let region = writable(&file, length)?;
    // What is mapped by now stays writable.
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(SharedMemory { region, pages, descriptor: readable(&file)? })
}

/// Gives `file` its length and maps it.
fn writable(file: &OwnedFd, length: usize) -> Result<Region> {
    // Beyond the limit the kernel does not only refuse: it sends a signal that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < length as u64) {
        return Err(Errno::FBIG);
    }
    rustix::fs::ftruncate(file, length as u64)?;
    Region::shared(file, length, ProtFlags::READ | ProtFlags::WRITE)
}

/// `file` once more, open for reading only.
fn readable(file: impl AsFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// What the machine is set to do about huge pages in files of memory.
fn merging() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").ok()?;
    let (_, chosen) = text.split_once('[')?;
    Some(chosen.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    const LENGTH: usize = 4 << 20;

    /// What each of the ways gives here.
    fn ways() -> Vec<(&'static str, SharedMemory)> {
        let ways: [(&str, Way); 4] =
            [("reserved", reserved), ("unattached", unattached), ("merged", merged), ("small", small)];
        let try_one = |(name, way): (&'static str, Way)| match way(LENGTH) {
            Ok(memory) => Some((name, memory)),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "skipped: no {name} memory here: {error}");
                None
            }
        };
        ways.into_iter().filter_map(try_one).collect()
    }

    fn can_write(descriptor: impl AsFd) -> bool {
        Region::shared(&descriptor, LENGTH, ProtFlags::READ | ProtFlags::WRITE).is_ok()
            || rustix::io::write(&descriptor, b"x").is_ok()
    }

    fn can_resize(descriptor: impl AsFd) -> bool {
        [LENGTH / 2, LENGTH * 2].iter().any(|length| rustix::fs::ftruncate(&descriptor, *length as u64).is_ok())
    }

    #[test]
    fn what_others_are_given_shows_the_memory_and_lets_nobody_write_or_resize_it() {
        let ways = ways();
        assert!(ways.iter().any(|(name, _)| *name == "small"), "small pages are to be had everywhere");
        for (name, SharedMemory { region, descriptor, .. }) in ways {
            let seen = Region::shared(&descriptor, LENGTH, ProtFlags::READ).unwrap();
            // SAFETY: both lie in a mapping of their own, which outlives them; no other code has either.
            let byte = unsafe {
                region.base().add(LENGTH - 1).write_volatile(7);
                seen.base().add(LENGTH - 1).read_volatile()
            };
            assert_eq!(byte, 7, "{name}");
            assert!(!can_write(&descriptor) && !can_resize(&descriptor), "{name}");
            if name != "unattached" {
                // Sealed: not even a privileged process that opens it again can write to it or resize it.
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                assert!(again.is_err() || again.is_ok_and(|again| !can_write(&again) && !can_resize(&again)), "{name}");
            }
        }
    }

    #[test]
    fn without_huge_pages_and_privileges_memory_is_shared_only_if_it_must_be() {
        let unprivileged = || {
            let mut sets = capabilities(None).unwrap();
            // Of this thread alone.
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            if let Ok(memory) = reserved(LENGTH).or_else(|_| merged(LENGTH)) {
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped: there are huge pages to share without privileges: {:?}",
                    memory.pages
                );
                return;
            }
            assert!(unattached(LENGTH).is_err());
            assert!(map(LENGTH, true, Sharing::IfHuge).is_none());
            assert!(map(LENGTH, true, Sharing::Always).is_some_and(|memory| memory.pages == PageKind::Small));
        };
        std::thread::spawn(unprivileged).join().unwrap();
    }

    #[test]
    fn small_pages_are_shared_where_none_but_small_ones_are_wanted() {
        assert!(map(LENGTH, false, Sharing::IfHuge).is_some_and(|memory| memory.pages == PageKind::Small));
        assert!(map(LENGTH, false, Sharing::Private).is_none());
    }
}
