//! Binds: what is staged, seen in a pod. No daemon is asked, so one that hangs holds up nobody here.

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::directory::{KubeletDirectory, path_of};
use crate::error::Refusal;
use crate::fields::Place;

/// What each mount of ours is; a bind that is made read-only says it again.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Shows what is mounted at `staging` at `target`, which is made.
///
/// # Errors
/// When the kernel refuses. Then nothing is mounted there.
pub(crate) fn bind(
    kubelet: &KubeletDirectory,
    staging: &Place,
    target: &Place,
    read_only: bool,
) -> Result<(), Refusal> {
    let (from, to) = (kubelet.open(staging)?, kubelet.make(target)?);
    rustix::mount::mount_bind(path_of(&from), path_of(&to))
        .map_err(|errno| refused("bind at", kubelet, target, errno))?;
    // It would keep the bind from being unmounted.
    drop((from, to));
    if !read_only {
        return Ok(());
    }
    restrict(kubelet, target).inspect_err(|_| {
        // The container has not begun: nobody has seen it writable, and nobody shall.
        let _ = unmount(kubelet, target);
    })
}

/// Makes the bind at `target` one that nobody writes to.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn restrict(kubelet: &KubeletDirectory, target: &Place) -> Result<(), Refusal> {
    let bound = kubelet.open(target)?;
    rustix::mount::mount_remount(path_of(&bound), FLAGS | MountFlags::BIND | MountFlags::RDONLY, "")
        .map_err(|errno| refused("make read-only", kubelet, target, errno))
}

/// Takes away what is bound at `target`.
///
/// # Errors
/// When it is in use, or the kernel refuses.
pub(crate) fn unmount(kubelet: &KubeletDirectory, target: &Place) -> Result<(), Refusal> {
    let (parent, name) = kubelet.parent(target)?;
    match rustix::mount::unmount(path_of(&parent).join(name), UnmountFlags::NOFOLLOW) {
        // It has gone meanwhile.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => {
            let path = kubelet.absolute(target);
            Err(Refusal::precondition(format!("{} is in use: `fuser -vm` lists by whom", path.display())))
        }
        Err(errno) => Err(refused("unmount", kubelet, target, errno)),
    }
}

fn refused(action: &str, kubelet: &KubeletDirectory, place: &Place, errno: Errno) -> Refusal {
    Refusal::internal(format!("cannot {action} {}: {errno}", kubelet.absolute(place).display()))
}
