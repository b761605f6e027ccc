//! The control groups of this process and those above them: where their files are, in both versions (cgroups(7)).

use std::path::{Component, Path, PathBuf};

use crate::root::Root;

/// Where both versions are.
const MOUNTED: &str = "sys/fs/cgroup";

/// A version of control groups: each calls its files by other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A tree for each controller.
    One,
    /// One tree for all.
    Two,
}

/// The folders of the groups by which `controller` holds this process, the nearest first.
pub(crate) fn folders(root: &Root, controller: &str) -> Vec<(Version, PathBuf)> {
    let groups = root.text("proc/self/cgroup").unwrap_or_default();
    // `0::/system.slice/forebay.service` of version 2, `4:memory:/docker/0123` of version 1.
    let of_line = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (version, mounted) = match controllers {
            "" => (Version::Two, PathBuf::from(MOUNTED)),
            _ if controllers.split(',').any(|own| own == controller) => {
                (Version::One, Path::new(MOUNTED).join(controller))
            }
            _ => return None,
        };
        Some(on_the_way(group).into_iter().map(move |group| (version, mounted.join(group))))
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

/// `group` and those above it. In a container that sees only its own, what is mounted is that, whatever the path of it says.
fn on_the_way(group: &str) -> Vec<PathBuf> {
    const DEEPEST: usize = 64;
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let path = Path::new(group);
    let above = path.components().all(is_plain).then(|| path.ancestors().take(DEEPEST));
    // One beyond what we see, `/../other`, has only what is mounted.
    let above = above.into_iter().flatten().map(|group| group.strip_prefix("/").unwrap_or(group).to_owned());
    above.chain([PathBuf::new()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_where_their_version_has_them() {
        let of = |groups: &str, controller: &str| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
            std::fs::write(folder.path().join("proc/self/cgroup"), groups).unwrap();
            let found = folders(&Root::new(folder.path()), controller);
            found.into_iter().map(|(version, folder)| (version, folder.display().to_string())).collect::<Vec<_>>()
        };
        let [one, two] = [Version::One, Version::Two];
        let kubepods = "0::/kubepods.slice/pod7\n";
        let expected = ["sys/fs/cgroup/kubepods.slice/pod7", "sys/fs/cgroup/kubepods.slice", "sys/fs/cgroup/"];
        assert_eq!(of(kubepods, "cpu")[..3], expected.map(|folder| (two, folder.to_owned())));
        let docker = "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n";
        let found = of(docker, "cpu");
        assert_eq!(found[0], (one, "sys/fs/cgroup/cpu/docker/1".to_owned()));
        assert!(found.iter().all(|(_, folder)| !folder.contains("memory")), "{found:?}");
        assert_eq!(of("0::/../other\n", "memory"), [(two, "sys/fs/cgroup/".to_owned())]);
        assert!(of("4:memory:/a\n", "hugetlb").is_empty());
    }
}
