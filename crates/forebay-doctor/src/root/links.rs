//! Symbolic links below a prefix. In a recorded tree `/etc/x` means the tree's, and `..` does not lead out of it: a
//! tree from elsewhere must not lead to files of the machine that it is unpacked on.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Parts of a path, those of the links on the way included.
const MAX_PARTS: usize = 4096;

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    /// The place below the prefix, which no link is on the way to. It need not be there.
    pub(crate) place: PathBuf,
    /// The links that led there, each with its place and what it says.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// Follows the links in `path` below `prefix`, and the one that it ends with only if `is_end_followed`. `None` where they go
/// round in a circle.
pub(crate) fn follow(prefix: &Path, path: &Path, is_end_followed: bool) -> Option<Followed> {
    let mut left = VecDeque::new();
    prepend(&mut left, path);
    let (mut place, mut links) = (PathBuf::new(), Vec::new());
    for _ in 0..MAX_PARTS {
        let Some(part) = left.pop_front() else { return Some(Followed { place, links }) };
        if part == ".." {
            place.pop();
            continue;
        }
        let here = place.join(&part);
        let target = match left.is_empty() && !is_end_followed {
            true => None,
            false => std::fs::read_link(prefix.join(&here)).ok(),
        };
        let Some(target) = target else {
            place = here;
            continue;
        };
        if links.len() == MAX_LINKS {
            return None;
        }
        if target.is_absolute() {
            place = PathBuf::new();
        }
        prepend(&mut left, &target);
        links.push((here, target));
    }
    None
}

fn prepend(left: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_none_leads_out_of_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        std::fs::create_dir_all(at("sys/devices/card/net/ib0")).unwrap();
        std::fs::create_dir_all(at("sys/class/net")).unwrap();
        symlink("../../devices/card/net/ib0", at("sys/class/net/ib0")).unwrap();
        symlink("/etc", at("absolute")).unwrap();
        symlink("../../../../etc", at("sys/up")).unwrap();
        symlink("round", at("round")).unwrap();
        let place = |path: &str, is_end_followed| {
            follow(folder.path(), Path::new(path), is_end_followed).map(|found| found.place.display().to_string())
        };
        assert_eq!(place("sys/class/net/ib0/mtu", true).as_deref(), Some("sys/devices/card/net/ib0/mtu"));
        assert_eq!(place("sys/class/net/ib0", false).as_deref(), Some("sys/class/net/ib0"));
        assert_eq!(place("absolute/passwd", true).as_deref(), Some("etc/passwd"));
        assert_eq!(place("sys/up/passwd", true).as_deref(), Some("etc/passwd"));
        assert_eq!((place("round", true), place("round/x", false)), (None, None));
        assert_eq!(place("../../x", true).as_deref(), Some("x"));
        let links = follow(folder.path(), Path::new("sys/class/net/ib0"), true).unwrap().links;
        assert_eq!(links, [("sys/class/net/ib0".into(), "../../devices/card/net/ib0".into())]);
    }
}
