//! Directories below the kubelet's, reached from a descriptor of it without following a link.
//!
//! Pods write below the kubelet's directory (their volumes, their logs), and the driver is root. So the kernel is asked
//! to follow no link and not to leave the directory (`openat2`), and what is mounted on is what was opened.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::Refusal;
use crate::fields::Place;

/// A directory that is named and not opened for reading.
const NAMED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// As the kubelet makes its own.
const MODE: Mode = Mode::from_raw_mode(0o750);

/// The kubelet's directory.
#[derive(Clone, Debug)]
pub(crate) struct KubeletDirectory {
    /// As the kubelet writes it.
    named: PathBuf,
    /// As the kernel's table of mounts has it: the way to the directory itself may have links.
    path: PathBuf,
}

impl KubeletDirectory {
    /// # Errors
    /// When it is not there.
    pub(crate) fn new(named: &Path) -> io::Result<Self> {
        Ok(Self { named: named.to_owned(), path: named.canonicalize()? })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The place that `field` of a request names.
    ///
    /// # Errors
    /// When it is not below this directory.
    pub(crate) fn place(&self, path: &str, field: &str) -> Result<Place, Refusal> {
        Place::of(&self.named, path, field)
    }

    /// The place of a path that the kernel's table has.
    ///
    /// # Errors
    /// When it is not below this directory, or no text.
    pub(crate) fn place_at(&self, path: &Path) -> Result<Place, Refusal> {
        let text = path.to_str().ok_or_else(|| Refusal::internal(format!("{} is no text", path.display())))?;
        Place::of(&self.path, text, "a mount")
    }

    /// A place's path, as the kernel's table has it.
    pub(crate) fn absolute(&self, place: &Place) -> PathBuf {
        self.path.join(place.below())
    }

    /// The directory at a place: of what is mounted there, its root. No daemon is asked.
    ///
    /// # Errors
    /// When there is none, or a link is on the way.
    pub(crate) fn open(&self, place: &Place) -> Result<OwnedFd, Refusal> {
        self.open_below(place.below()).map_err(|errno| self.refused("open", place, errno))
    }

    /// The same, made if it is not there. What holds it must be.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn make(&self, place: &Place) -> Result<OwnedFd, Refusal> {
        let (parent, name) = self.parent(place)?;
        match rustix::fs::mkdirat(&parent, name, MODE) {
            Ok(()) | Err(Errno::EXIST) => self.open(place),
            Err(errno) => Err(self.refused("make", place, errno)),
        }
    }

    /// Removes the directory at a place, if it is there. It must be empty.
    ///
    /// # Errors
    /// When it is not, or a link is on the way.
    pub(crate) fn remove(&self, place: &Place) -> Result<(), Refusal> {
        let (holder, name) = split(place);
        let removed = self.open_below(holder).and_then(|parent| rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.refused("remove", place, errno)),
        }
    }

    /// The directory that holds a place, and its name there.
    ///
    /// # Errors
    /// When it is not there.
    pub(crate) fn parent<'a>(&self, place: &'a Place) -> Result<(OwnedFd, &'a OsStr), Refusal> {
        let (holder, name) = split(place);
        let parent = self.open_below(holder).map_err(|errno| self.refused("reach", place, errno))?;
        Ok((parent, name))
    }

    fn open_below(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let root = rustix::fs::open(&self.path, NAMED, Mode::empty())?;
        if below.as_os_str().is_empty() {
            return Ok(root);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(root, below, NAMED, Mode::empty(), resolve)
    }

    fn refused(&self, action: &str, place: &Place, errno: Errno) -> Refusal {
        let path = self.absolute(place);
        let what = format!("cannot {action} {}: {errno}", path.display());
        match errno {
            Errno::LOOP | Errno::XDEV => Refusal::invalid(format!("{} has a link on its way", path.display())),
            Errno::NOENT => Refusal::not_found(what),
            Errno::NOTDIR => Refusal::invalid(what),
            _ => Refusal::internal(what),
        }
    }
}

/// What holds a place, and its name there. A place has at least one part.
fn split(place: &Place) -> (&Path, &OsStr) {
    let below = place.below();
    (below.parent().unwrap_or(Path::new("")), below.file_name().unwrap_or_default())
}

/// The path by which system calls without a descriptor reach what this is one of.
pub(crate) fn path_of(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use tonic::Code;

    fn kubelet() -> (tempfile::TempDir, KubeletDirectory) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("pods/1")).unwrap();
        let kubelet = KubeletDirectory::new(directory.path()).unwrap();
        (directory, kubelet)
    }

    fn place(kubelet: &KubeletDirectory, below: &str) -> Place {
        kubelet.place(kubelet.named.join(below).to_str().unwrap(), "target_path").unwrap()
    }

    #[test]
    fn a_directory_is_made_and_removed_as_often_as_it_is_asked_for() {
        let (directory, kubelet) = kubelet();
        let target = place(&kubelet, "pods/1/mount");
        for _ in 0..2 {
            kubelet.make(&target).unwrap();
            assert!(directory.path().join("pods/1/mount").is_dir());
        }
        for _ in 0..2 {
            kubelet.remove(&target).unwrap();
            assert!(!directory.path().join("pods/1/mount").exists());
        }
        kubelet.remove(&place(&kubelet, "pods/none/mount")).unwrap();
        assert_eq!(kubelet.make(&place(&kubelet, "pods/none/mount")).unwrap_err().code(), Code::NotFound);
        kubelet.make(&place(&kubelet, "top")).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_empty_stays() {
        let (directory, kubelet) = kubelet();
        std::fs::write(directory.path().join("pods/1/file"), "").unwrap();
        assert_eq!(kubelet.remove(&place(&kubelet, "pods/1")).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_link_on_the_way_is_not_followed_wherever_it_leads() {
        let (directory, kubelet) = kubelet();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), directory.path().join("pods/outside")).unwrap();
        symlink("1", directory.path().join("pods/inside")).unwrap();
        for way in ["pods/outside", "pods/outside/mount", "pods/inside", "pods/inside/mount"] {
            let target = place(&kubelet, way);
            assert!(kubelet.open(&target).is_err() && kubelet.make(&target).is_err(), "{way}");
            assert!(kubelet.remove(&target).is_err(), "{way}");
        }
        assert!(outside.path().read_dir().unwrap().next().is_none());
        assert_eq!(kubelet.open(&place(&kubelet, "pods/outside/mount")).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn the_way_to_the_directory_itself_may_be_a_link() {
        let (directory, _) = kubelet();
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("kubelet");
        symlink(directory.path(), &link).unwrap();
        let kubelet = KubeletDirectory::new(&link).unwrap();
        let target = kubelet.place(link.join("pods/1").to_str().unwrap(), "target_path").unwrap();
        kubelet.open(&target).unwrap();
        let path = kubelet.absolute(&target);
        assert_eq!(path, directory.path().canonicalize().unwrap().join("pods/1"));
        assert_eq!(kubelet.place_at(&path).unwrap(), target);
    }
}
