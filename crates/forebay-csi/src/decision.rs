//! What a call still has to do, after what is mounted.
//!
//! Each of these takes the kernel's table and what is wanted, and says the next step, or why there is none. Asked again
//! after the step, it says that nothing is left: that is what makes every call one that may come twice, or stop in the
//! middle.

use std::path::{Path, PathBuf};

use crate::error::Refusal;
use crate::fields::shown;
use crate::mount_table::{Entry, MountTable};
use crate::volume::Volume;

/// Where the kubelet has parts of a pod's volumes (`subPath`), in the pod's directory. It takes them away before it has the volume
/// unpublished, and one may be left all the same, as by a kubelet that was killed.
const SUBPATHS: &str = "volume-subpaths";

/// What is left for a volume to be mounted where it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounting {
    /// Mount it.
    Mount,
    /// It is mounted: only whether its daemon answers is not known.
    Look,
}

/// What is left for a staged volume to be in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishing {
    /// Bind it.
    Bind,
    /// It is bound, and must not be written: a call ended in between.
    Restrict,
    /// Nothing.
    Done,
}

/// What is left for a volume to leave a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Take away these parts of it first, one after the other.
    Clear(Vec<PathBuf>),
    /// Take the bind away. The mount serves others.
    Unbind,
    /// Unmount it, and wait for its daemon to end.
    End,
    /// Nothing is mounted there.
    Done,
}

/// How a staged volume is wanted in a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Where it is staged.
    pub(crate) staging: &'a Path,
    /// Where the pod sees it.
    pub(crate) target: &'a Path,
    /// The kubelet's directory.
    pub(crate) kubelet: &'a Path,
    /// The pod does not write.
    pub(crate) read_only: bool,
    /// No other pod has it.
    pub(crate) single_writer: bool,
}

/// What is left for `volume` to be mounted at `place`, by a daemon of its own.
///
/// # Errors
/// When something else is mounted there.
pub(crate) fn mounting(table: &MountTable, place: &Path, volume: &Volume) -> Result<Mounting, Refusal> {
    let Some(entry) = table.at(place) else { return Ok(Mounting::Mount) };
    if !entry.is_ours() {
        return Err(not_ours(entry));
    }
    if !volume.is_shown_as(&entry.source) {
        let (is, wanted) = (shown(&entry.source), shown(volume.source()));
        return Err(Refusal::exists(format!("the volume is mounted on this node, of {is} and not of {wanted}")));
    }
    if entry.read_only != volume.read_only {
        let how = if entry.read_only { "read-only" } else { "writable" };
        return Err(Refusal::exists(format!("the volume is mounted on this node already, {how}")));
    }
    Ok(Mounting::Look)
}

/// What is left for a staged volume to be in a pod.
///
/// # Errors
/// When it is not staged, another pod has it alone, or something else is mounted there.
pub(crate) fn publishing(table: &MountTable, wanted: Wanted<'_>) -> Result<Publishing, Refusal> {
    let Some(staged) = table.at(wanted.staging).filter(|entry| entry.is_ours()) else {
        return Err(Refusal::precondition("the volume is not staged on this node: NodeStageVolume comes first"));
    };
    let own = pod_of(wanted.target, wanted.kubelet);
    let has_it = |other: &Path| other != wanted.staging && !other.starts_with(&own);
    if wanted.single_writer && table.others_of(staged, wanted.kubelet).any(has_it) {
        return Err(Refusal::precondition("the volume is ReadWriteOncePod, and another pod of this node has it"));
    }
    let Some(bound) = table.at(wanted.target) else { return Ok(Publishing::Bind) };
    if bound.device != staged.device {
        return Err(if bound.is_ours() {
            Refusal::exists("another volume is published at this place")
        } else {
            not_ours(bound)
        });
    }
    match (wanted.read_only || staged.read_only, bound.read_only) {
        (true, false) => Ok(Publishing::Restrict),
        (false, true) => Err(Refusal::exists("the volume is published at this place already, read-only")),
        _ => Ok(Publishing::Done),
    }
}

/// What is left for a volume to leave `target`, where a pod sees it.
///
/// # Errors
/// When something else is mounted there.
pub(crate) fn unpublishing(table: &MountTable, target: &Path, kubelet: &Path) -> Result<Leaving, Refusal> {
    let Some(entry) = table.at(target) else { return Ok(Leaving::Done) };
    if !entry.is_ours() {
        return Err(not_ours(entry));
    }
    let subpaths = pod_of(target, kubelet).join(SUBPATHS);
    let others = || table.others_of(entry, kubelet);
    if others().any(|other| !other.starts_with(&subpaths)) {
        return Ok(Leaving::Unbind);
    }
    // The volume is this pod's alone. With a part of it, its daemon would stay, for a pod that is gone. The table has the topmost last.
    let mut parts: Vec<PathBuf> = others().map(Path::to_owned).collect();
    parts.reverse();
    Ok(if parts.is_empty() { Leaving::End } else { Leaving::Clear(parts) })
}

/// What is left for a volume to leave `staging`.
///
/// # Errors
/// When pods still have it, or something else is mounted there.
pub(crate) fn unstaging(table: &MountTable, staging: &Path, kubelet: &Path) -> Result<Leaving, Refusal> {
    let Some(entry) = table.at(staging) else { return Ok(Leaving::Done) };
    if !entry.is_ours() {
        return Err(not_ours(entry));
    }
    match table.others_of(entry, kubelet).next() {
        None => Ok(Leaving::End),
        Some(other) => Err(Refusal::precondition(format!("the volume is still published at {}", other.display()))),
    }
}

/// The directory of the pod that a place is of. Besides its volumes, the kubelet has parts of them there (`subPath`).
fn pod_of(place: &Path, kubelet: &Path) -> PathBuf {
    // As `pods/UID`.
    const PARTS: usize = 2;
    let below = place.strip_prefix(kubelet).unwrap_or(place);
    kubelet.join(below.components().take(PARTS).collect::<PathBuf>())
}

fn not_ours(entry: &Entry) -> Refusal {
    let (place, fs_type) = (entry.mountpoint.display(), &entry.fs_type);
    Refusal::precondition(format!("{place} is a mount of {fs_type}, not of forebay: unmount it"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::fields::Access;
    use crate::mount_table::tests::table;
    use proptest::prelude::*;
    use tonic::Code;

    const KUBELET: &str = "/k";
    const STAGING: &str = "/k/staging";
    const STAGED: &str = "0:50 /k/staging rw fuse.forebay s3://b";
    const OTHERS: &str = "0:60 /k/staging rw tmpfs tmpfs";

    fn volume(source: &str, read_only: bool) -> Volume {
        let access = Access { read_only, single_writer: false, group: None, flags: Vec::new() };
        Volume::persistent(&HashMap::from([("source".into(), source.into())]), &HashMap::new(), &access).unwrap()
    }

    fn wanted(target: &str, read_only: bool) -> Wanted<'_> {
        let [staging, kubelet] = [STAGING, KUBELET].map(Path::new);
        Wanted { staging, target: Path::new(target), kubelet, read_only, single_writer: false }
    }

    #[test]
    fn a_volume_is_mounted_once_and_only_as_it_is() {
        let step = |lines: &[&str], source: &str, read_only: bool| {
            mounting(&table(lines), Path::new(STAGING), &volume(source, read_only)).map_err(|refusal| refusal.code())
        };
        assert_eq!(step(&[], "s3://b", false), Ok(Mounting::Mount));
        assert_eq!(step(&[STAGED], "s3://b", false), Ok(Mounting::Look));
        assert_eq!(step(&[STAGED], "s3://b", true), Err(Code::AlreadyExists));
        assert_eq!(step(&[STAGED], "s3://c", false), Err(Code::AlreadyExists));
        assert_eq!(step(&[STAGED], "forebay", false), Err(Code::AlreadyExists));
        assert_eq!(step(&[OTHERS], "s3://b", false), Err(Code::FailedPrecondition));
    }

    #[test]
    fn a_pod_gets_a_bind_of_what_is_staged() {
        let step = |lines: &[&str], read_only| {
            publishing(&table(lines), wanted("/k/pods/1", read_only)).map_err(|refusal| refusal.code())
        };
        let [rw, ro, other] = [
            "0:50 /k/pods/1 rw fuse.forebay s3://b",
            "0:50 /k/pods/1 ro fuse.forebay s3://b",
            "0:51 /k/pods/1 rw fuse.forebay s3://b",
        ];
        assert_eq!(step(&[], true), Err(Code::FailedPrecondition));
        assert_eq!(step(&[OTHERS], true), Err(Code::FailedPrecondition));
        assert_eq!(step(&[STAGED], true), Ok(Publishing::Bind));
        assert_eq!(step(&[STAGED, rw], true), Ok(Publishing::Restrict));
        assert_eq!(
            (step(&[STAGED, rw], false), step(&[STAGED, ro], true)),
            (Ok(Publishing::Done), Ok(Publishing::Done))
        );
        assert_eq!(step(&[STAGED, ro], false), Err(Code::AlreadyExists));
        assert_eq!(step(&[STAGED, other], false), Err(Code::AlreadyExists));
        // What nobody writes is so in each pod.
        let read_only = "0:50 /k/staging ro fuse.forebay s3://b";
        assert_eq!(step(&[read_only, ro], false), Ok(Publishing::Done));
    }

    #[test]
    fn a_volume_of_one_pod_is_no_second_ones() {
        let lines = ["mount", "subpaths/0"].map(|name| format!("0:50 /k/pods/1/{name} rw fuse.forebay s3://b"));
        let table = table(&[STAGED, &lines[0], &lines[1]]);
        let step = |target| publishing(&table, Wanted { single_writer: true, ..wanted(target, false) });
        assert_eq!(step("/k/pods/1/mount"), Ok(Publishing::Done));
        assert_eq!(step("/k/pods/2/mount").unwrap_err().code(), Code::FailedPrecondition);
    }

    #[test]
    fn what_was_bound_is_unbound_and_what_was_mounted_ends() {
        let bound = "0:50 /k/pods/1 rw fuse.forebay s3://b";
        let step = |lines: &[&str], target| {
            let [target, kubelet] = [target, KUBELET].map(Path::new);
            unpublishing(&table(lines), target, kubelet).map_err(|refusal| refusal.code())
        };
        assert_eq!(step(&[STAGED, bound], "/k/pods/1"), Ok(Leaving::Unbind));
        assert_eq!(step(&[bound], "/k/pods/1"), Ok(Leaving::End), "a volume of its pod alone");
        assert_eq!(step(&[STAGED], "/k/pods/1"), Ok(Leaving::Done));
        assert_eq!(step(&[OTHERS], STAGING), Err(Code::FailedPrecondition));
    }

    #[test]
    fn a_volume_of_its_pod_alone_ends_also_where_the_kubelet_has_left_parts_of_it() {
        let target = "/k/pods/1/volumes/mount";
        let part = |pod: u8, number: u8| format!("/k/pods/{pod}/volume-subpaths/data/main/{number}");
        let line = |place: &str| format!("0:50 {place} rw fuse.forebay s3://b");
        let step = |places: &[&str]| {
            let lines: Vec<String> = places.iter().map(|place| line(place)).collect();
            let table = table(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            unpublishing(&table, Path::new(target), Path::new(KUBELET)).unwrap()
        };
        let [first, second, other] = [part(1, 0), part(1, 1), part(2, 0)];
        let parts = [&second, &first].map(PathBuf::from).to_vec();
        assert_eq!(step(&[target, &first, &second]), Leaving::Clear(parts));
        assert_eq!(step(&[target]), Leaving::End);
        // The mount is not this pod's alone.
        for shared in [other.as_str(), STAGING, "/k/pods/1/elsewhere"] {
            assert_eq!(step(&[target, &first, shared]), Leaving::Unbind, "{shared}");
        }
    }

    #[test]
    fn a_volume_that_pods_have_stays_staged() {
        let step = |lines: &[&str]| {
            let [staging, kubelet] = [STAGING, KUBELET].map(Path::new);
            unstaging(&table(lines), staging, kubelet).map_err(|refusal| refusal.code())
        };
        assert_eq!(step(&[STAGED, "0:50 /k/pods/1 rw fuse.forebay s3://b"]), Err(Code::FailedPrecondition));
        assert_eq!((step(&[STAGED]), step(&[])), (Ok(Leaving::End), Ok(Leaving::Done)));
        assert_eq!(step(&[OTHERS]), Err(Code::FailedPrecondition));
    }

    /// The kernel's table, and what becomes of it by each step.
    #[derive(Clone, Debug, Default)]
    struct Node {
        /// Whether it is staged, and each pod's bind with whether it is read-only.
        staged: bool,
        pods: [Option<bool>; 3],
    }

    impl Node {
        fn table(&self) -> MountTable {
            let mut lines: Vec<String> = self.staged.then(|| STAGED.to_owned()).into_iter().collect();
            for (pod, bound) in self.pods.iter().enumerate() {
                let options = |read_only: &bool| if *read_only { "ro" } else { "rw" };
                lines.extend(
                    bound.iter().map(|bound| format!("0:50 {} {} fuse.forebay s3://b", target(pod), options(bound))),
                );
            }
            table(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        }
    }

    fn target(pod: usize) -> String {
        format!("/k/pods/{pod}")
    }

    proptest! {
        /// Calls of any kind in any order, of which each may be the last before a crash: no pod loses its bind by
        /// another one's call, and what succeeded once succeeds again with nothing to do.
        #[test]
        fn calls_in_any_order_touch_only_what_they_are_about(
            calls in proptest::collection::vec((0..4u8, 0..3usize, any::<bool>()), 0..30)
        ) {
            let mut node = Node::default();
            for (call, pod, read_only) in calls {
                let before = node.clone();
                let (place, kubelet) = (target(pod), Path::new(KUBELET));
                match call {
                    0 => if let Ok(step) = mounting(&node.table(), Path::new(STAGING), &volume("s3://b", false)) {
                        prop_assert_eq!(step == Mounting::Mount, !node.staged);
                        node.staged = true;
                    },
                    1 => if let Ok(step) = publishing(&node.table(), wanted(&place, read_only)) {
                        prop_assert!(node.staged);
                        node.pods[pod] = Some(read_only);
                        prop_assert_eq!(step == Publishing::Bind, before.pods[pod].is_none());
                        prop_assert_eq!(publishing(&node.table(), wanted(&place, read_only)), Ok(Publishing::Done));
                    },
                    2 => if let Ok(step) = unpublishing(&node.table(), Path::new(&place), kubelet) {
                        prop_assert_eq!(step == Leaving::Done, node.pods[pod].is_none());
                        // The mount is never ended with one of its pods.
                        prop_assert_ne!(step, Leaving::End);
                        node.pods[pod] = None;
                    },
                    _ => if let Ok(step) = unstaging(&node.table(), Path::new(STAGING), kubelet) {
                        prop_assert!(node.pods.iter().all(Option::is_none));
                        prop_assert_eq!(step == Leaving::End, node.staged);
                        node.staged = false;
                    },
                }
                for other in (0..3).filter(|other| *other != pod) {
                    prop_assert_eq!(node.pods[other], before.pods[other]);
                }
            }
        }
    }
}
