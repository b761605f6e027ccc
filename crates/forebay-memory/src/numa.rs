//! On which nodes of a machine with several a pool's memory lies.
//!
//! By default, the kernel puts a page on the node of the thread that touches it first. For a pool, that is one thread
//! at start, or the thread that filled a block, while readers run on all nodes: at worst all pages lie on one node,
//! behind one memory controller. So the frames are dealt out over the nodes that the process runs on: each lies on one
//! node, so that a transport can take the network card that is next to it. A process that is bound to the processors of
//! one node keeps its memory there. What the operator said (`numactl`) stands, and on a machine with one node nothing
//! happens at all.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;

use crate::frames::FRAME_SIZE;

/// To the kernel each piece that is dealt out is a mapping of its own, of which a process may have 65,530: large pools
/// are dealt out by several frames at a time.
const MAX_PIECES: usize = 256;

/// What the kernel is told of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Nothing.
    Unsaid,
    /// On this node, for as long as it has memory.
    On(u32),
    /// In turns on these.
    Over(BTreeSet<u32>),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsaid => f.write_str("as the kernel likes"),
            Self::On(node) => write!(f, "on node {node}"),
            Self::Over(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(u32::to_string).collect();
                write!(f, "in turns on nodes {}", nodes.join(", "))
            }
        }
    }
}

impl Placement {
    /// The node that the byte at `offset` of a mapping of `length` bytes is to lie on, if it was said.
    pub(crate) fn node_of(&self, offset: usize, length: usize) -> Option<u32> {
        match self {
            Self::Unsaid => None,
            Self::On(node) => Some(*node),
            Self::Over(nodes) => nodes.iter().nth(offset / piece(length) % nodes.len().max(1)).copied(),
        }
    }
}

/// How many bytes of a mapping are dealt to a node at a time: whole frames.
fn piece(length: usize) -> usize {
    length.div_ceil(MAX_PIECES).max(1).next_multiple_of(FRAME_SIZE)
}

/// What decides it.
#[derive(Clone, Debug, Default)]
struct Nodes {
    /// Those with memory.
    with_memory: BTreeSet<u32>,
    /// Those whose memory the process may use.
    allowed: BTreeSet<u32>,
    /// Those with processors that it may run on.
    near: BTreeSet<u32>,
    /// Whether it was started with a policy of its own.
    has_policy: bool,
}

impl Nodes {
    fn placement(&self) -> Placement {
        let usable: BTreeSet<u32> = self.with_memory.intersection(&self.allowed).copied().collect();
        if usable.len() < 2 || self.has_policy {
            return Placement::Unsaid;
        }
        let near: BTreeSet<u32> = usable.intersection(&self.near).copied().collect();
        match (near.len(), near.first()) {
            // Its processors have no memory of their own: all is as far away.
            (0, _) => Placement::Over(usable),
            (1, Some(node)) => Placement::On(*node),
            // Memory without processors is slower: an expander.
            _ => Placement::Over(near),
        }
    }

    /// As this machine has them; `None` where the kernel does not say.
    fn here() -> Option<Self> {
        let nodes = Path::new("/sys/devices/system/node");
        let text = |path: &Path| std::fs::read_to_string(path).ok();
        let with_memory = listed(&text(&nodes.join("has_memory"))?)?;
        if with_memory.len() < 2 {
            return None;
        }
        let status = text(Path::new("/proc/self/status"))?;
        let field = |name| listed(status.lines().find_map(|line| line.strip_prefix(name))?);
        let (allowed, processors) = (field("Mems_allowed_list:")?, field("Cpus_allowed_list:")?);
        let is_near = |node: &u32| {
            let of_node = text(&nodes.join(format!("node{node}/cpulist"))).and_then(|list| listed(&list));
            of_node.is_some_and(|of_node| !of_node.is_disjoint(&processors))
        };
        let near = with_memory.iter().copied().filter(is_near).collect();
        Some(Self { with_memory, allowed, near, has_policy: has_policy() })
    }
}

/// Where memory of this process is best, on this machine.
pub(crate) fn placement() -> Placement {
    Nodes::here().map_or(Placement::Unsaid, |nodes| nodes.placement())
}

/// The numbers of a list as the kernel writes it: `0-2,5`.
fn listed(text: &str) -> Option<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// Of linux/mempolicy.h.
const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_PREFERRED: libc::c_int = 1;

fn has_policy() -> bool {
    let mut policy: libc::c_int = MPOL_DEFAULT;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel writes one int to `policy`, and no mask when it is given none.
    let asked = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, nothing, 0usize, nothing, 0usize) };
    asked == 0 && policy != MPOL_DEFAULT
}

/// Tells the kernel where to put those pages of a mapping that were not touched yet.
///
/// # Errors
/// The kernel's answer. Some containers may not say it.
pub(crate) fn place(base: NonNull<u8>, length: usize, placement: &Placement) -> std::io::Result<()> {
    let at_once = if matches!(placement, Placement::Over(_)) { piece(length) } else { length.max(1) };
    for start in (0..length).step_by(at_once) {
        let Some(node) = placement.node_of(start, length) else { return Ok(()) };
        // SAFETY: `start` lies in the mapping.
        let base = unsafe { base.add(start) };
        prefer(base, at_once.min(length - start), node)?;
    }
    Ok(())
}

fn prefer(base: NonNull<u8>, length: usize, node: u32) -> std::io::Result<()> {
    let mask = mask_of(&BTreeSet::from([node]));
    // The kernel takes one bit less than it is told of.
    let bits = mask.len() * BITS + 1;
    // SAFETY: the range is a mapping that belongs to the caller, whose contents do not change; `mask` has as many bits
    // as said but one, which is not looked at.
    let placed = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), length, MPOL_PREFERRED, mask.as_ptr(), bits, 0 as libc::c_uint)
    };
    if placed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

const BITS: usize = libc::c_ulong::BITS as usize;

/// A bit for each node, in words of the kernel's.
fn mask_of(nodes: &BTreeSet<u32>) -> Vec<libc::c_ulong> {
    let words = nodes.last().map_or(0, |last| *last as usize / BITS + 1);
    let mut mask = vec![0; words];
    for node in nodes {
        mask[*node as usize / BITS] |= 1 << (*node as usize % BITS);
    }
    mask
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// With memory, allowed, near, a policy of its own; what comes of it.
    type Row<'a> = (&'a [u32], &'a [u32], &'a [u32], bool, Placement);

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn memory_lies_where_those_who_read_it_run() {
        let over = |nodes: &[u32]| Placement::Over(set(nodes));
        let rows: [Row<'_>; 10] = [
            (&[0], &[0], &[0], false, Placement::Unsaid),
            (&[], &[], &[], false, Placement::Unsaid),
            (&[0, 1], &[0, 1], &[0, 1], false, over(&[0, 1])),
            (&[0, 1], &[0, 1], &[0, 1], true, Placement::Unsaid),
            (&[0, 1], &[1], &[0, 1], false, Placement::Unsaid),
            (&[0, 1], &[0, 1], &[1], false, Placement::On(1)),
            // An expander has memory and no processors.
            (&[0, 1, 2], &[0, 1, 2], &[0, 1], false, over(&[0, 1])),
            (&[0, 2], &[0, 2], &[0], false, Placement::On(0)),
            // Processors whose node has no memory.
            (&[0, 1], &[0, 1], &[], false, over(&[0, 1])),
            (&[0, 1, 2, 3], &[2, 3], &[0, 2, 3], false, over(&[2, 3])),
        ];
        for (with_memory, allowed, near, has_policy, expected) in rows {
            let nodes = Nodes { with_memory: set(with_memory), allowed: set(allowed), near: set(near), has_policy };
            assert_eq!(nodes.placement(), expected, "{nodes:?}");
        }
    }

    #[test]
    fn whole_frames_are_dealt_out_in_turns() {
        let (over, frame) = (Placement::Over(set(&[1, 3])), FRAME_SIZE);
        let nodes = |length: usize| (0..4).map(|at| over.node_of(at * frame, length).unwrap()).collect::<Vec<_>>();
        assert_eq!(nodes(4 * frame), [1, 3, 1, 3]);
        assert_eq!(over.node_of(frame - 1, 4 * frame), Some(1), "all of a frame");
        assert_eq!(nodes(512 * frame), [1, 1, 3, 3], "a large pool by several");
        assert_eq!(piece((1 << 40) + 1).div_ceil(frame), 1025, "a terabyte in 256 pieces");
        assert_eq!((Placement::On(2).node_of(7, 9), Placement::Unsaid.node_of(7, 9)), (Some(2), None));
    }

    #[test]
    fn the_kernels_lists_and_masks_are_understood() {
        assert_eq!(listed("0-2,5\n"), Some(set(&[0, 1, 2, 5])));
        assert_eq!(listed("\t3\n"), Some(set(&[3])));
        assert_eq!((listed("\n"), listed("0-x")), (Some(set(&[])), None));
        assert_eq!(mask_of(&set(&[0, 2])), [5]);
        assert_eq!(mask_of(&set(&[1, 64])), [2, 1]);
    }

    #[test]
    fn the_kernel_takes_what_it_is_told() {
        let length = 4 << 20;
        let mapping = crate::mapping::Mapping::new(length, false, crate::Sharing::Private).unwrap();
        for placement in [Placement::On(0), Placement::Over(set(&[0])), Placement::Unsaid] {
            match place(mapping.base(), length, &placement) {
                // Without the privilege a container's filter refuses it; a kernel without NUMA does not know it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                    let _ = writeln!(std::io::stderr(), "skipped: the kernel does not take memory policies: {error}");
                    return;
                }
                taken => taken.unwrap(),
            }
        }
    }
}
