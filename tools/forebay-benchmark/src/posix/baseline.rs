//! What others have published of warm reads through FUSE, beside what was measured here.
//!
//! Their machines are not ours, so figures are compared as *fractions of the hardware*: of the network card of one node, times the
//! nodes on the side that has fewer, and of the cache's disks. A fraction says how much of what was bought reaches the reader.
//!
//! Compared is only what was read in the same way: the same files, pattern, order, depth, size of blocks, jobs, clients and workers (as
//! far as both sides say how many). What one client does of its card is nothing beside what ten do of theirs, and reads of
//! 256 KiB are other reads than those of 1 MiB.
//!
//! Where a source contradicts itself the figure is the one that fits its hardware, and said so below. The speed of AWS's
//! machines is AWS's own figure, where the source does not name it.

use crate::record::{Access, CacheState, Case, Layout, Machine, Measured, Pattern, Record, Step};
use crate::spread::Spread;

use super::knee::points;
use super::scaling::peak;

/// A published figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Whose.
    pub system: &'static str,
    /// On what.
    pub hardware: &'static str,
    /// Workers and clients; 0 workers where that is not said.
    pub workers: u32,
    #[allow(missing_docs)]
    pub clients: u32,
    /// The files.
    pub layout: Layout,
    /// Which job reads which file.
    pub pattern: Pattern,
    /// In which order.
    pub access: Access,
    /// Bytes in a read.
    pub block_bytes: u64,
    /// Jobs on each client. `None` where the peak of a sweep is given.
    pub jobs: Option<u32>,
    /// Of all clients.
    pub bytes_per_second: f64,
    /// The network card of one node, bits per second.
    pub network_bits_per_second: Option<f64>,
    /// The disks of one worker's cache.
    pub disk_bytes_per_second: Option<f64>,
}

/// A published figure, what was measured of the same kind, and both as fractions.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// What was published.
    pub published: Published,
    /// Its fractions.
    pub published_fractions: Fractions,
    /// What was measured in the same way. `None` where nothing was.
    pub measured: Option<Measurement>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Jobs on each client.
    pub jobs: u32,
    /// Bytes in a read.
    pub block_bytes: u64,
    /// Of all clients.
    pub bytes_per_second: f64,
    /// The same, as far as rounds differ.
    pub spread: Spread,
    /// Its fractions of our hardware.
    pub fractions: Fractions,
}

/// Parts of what the hardware can do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fractions {
    /// Of the network.
    pub network: Option<f64>,
    /// Of the disks.
    pub disk: Option<f64>,
}

impl Fractions {
    fn of(bytes_per_second: f64, workers: u32, clients: u32, network_bits: Option<f64>, disk: Option<f64>) -> Self {
        let clients = f64::from(clients.max(1));
        let workers = if workers == 0 { clients } else { f64::from(workers) };
        Self {
            network: network_bits.map(|bits| bytes_per_second * 8.0 / bits / clients.min(workers)),
            disk: disk.map(|disk| bytes_per_second / disk / workers),
        }
    }
}

impl Published {
    /// As parts of their hardware.
    #[must_use]
    pub fn fractions(&self) -> Fractions {
        let (network, disk) = (self.network_bits_per_second, self.disk_bytes_per_second);
        Fractions::of(self.bytes_per_second, self.workers, self.clients, network, disk)
    }

    /// Operations per second.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        self.bytes_per_second / self.block_bytes as f64
    }
}

const MIB: f64 = 1024.0 * 1024.0;

/// The FUSE client and the worker on machines of their own, both with a card of 100 Gb/s (AWS's figure), one file of 100 GiB.
const NVME: Published = Published {
    system: "Alluxio, POSIX benchmark, 8 × NVMe",
    hardware: "i3en.metal worker, c5n.metal client, 100 Gb/s",
    workers: 1,
    clients: 1,
    layout: Layout::Single,
    pattern: Pattern::Shared,
    access: Access::Sequential,
    block_bytes: 1 << 20,
    jobs: None,
    bytes_per_second: 0.0,
    network_bits_per_second: Some(100e9),
    // What AWS gives for the eight together.
    disk_bytes_per_second: Some(16e9),
};

/// Files in memory, so there is no disk to be compared with.
const MEMORY: Published = Published {
    system: "Alluxio, POSIX benchmark, DRAM",
    hardware: "r6in.32xlarge, 200 Gb/s",
    layout: Layout::Multiple,
    block_bytes: 256 << 10,
    network_bits_per_second: Some(200e9),
    disk_bytes_per_second: None,
    ..NVME
};

/// FUSE and worker on the same machines, each with two NVMe that read 12 GB/s together. What a client reads from its own machine does
/// not cross the network, so there is no card to be compared with.
const IPOIB: Published = Published {
    system: "Alluxio, IPoIB, 2 × NVMe",
    hardware: "ConnectX-7, 2 × 200 Gb/s bonded",
    layout: Layout::Multiple,
    jobs: Some(32),
    network_bits_per_second: None,
    disk_bytes_per_second: Some(12e9),
    ..NVME
};

/// Cache nodes and clients apart.
const JUICEFS: Published = Published {
    system: "JuiceFS",
    hardware: "2 × 400 Gb/s InfiniBand, 128 cores",
    workers: 0,
    layout: Layout::Multiple,
    jobs: Some(128),
    network_bits_per_second: Some(800e9),
    disk_bytes_per_second: None,
    ..NVME
};

const fn nvme(access: Access, block_bytes: u64, jobs: u32, bytes_per_second: f64) -> Published {
    Published { access, block_bytes, jobs: Some(jobs), bytes_per_second, ..NVME }
}

/// The source has both GiB/s and Gb/s, which do not agree (14.0 GiB/s would be 120 Gb/s, not 111.8). Taken are the latter: they are the
/// 55 to 65 % of the card that it speaks of, too.
const fn memory(pattern: Pattern, nodes: u32, gigabits: f64) -> Published {
    Published { pattern, workers: nodes, clients: nodes, bytes_per_second: gigabits * 1e9 / 8.0, ..MEMORY }
}

/// All of them.
pub const PUBLISHED: [Published; 24] = [
    nvme(Access::Sequential, 1 << 20, 1, 2101.0 * MIB),
    nvme(Access::Sequential, 1 << 20, 32, 9519.0 * MIB),
    nvme(Access::Sequential, 1 << 20, 128, 8089.0 * MIB),
    nvme(Access::Random, 1 << 20, 1, 202.0 * MIB),
    nvme(Access::Random, 1 << 20, 32, 6684.0 * MIB),
    nvme(Access::Random, 1 << 20, 128, 8276.0 * MIB),
    nvme(Access::Sequential, 4096, 1, 55_900.0 * 4096.0),
    nvme(Access::Sequential, 4096, 32, 253_000.0 * 4096.0),
    nvme(Access::Sequential, 4096, 128, 192_000.0 * 4096.0),
    nvme(Access::Random, 4096, 1, 2_300.0 * 4096.0),
    nvme(Access::Random, 4096, 32, 70_100.0 * 4096.0),
    nvme(Access::Random, 4096, 128, 162_000.0 * 4096.0),
    memory(Pattern::Shared, 1, 111.8),
    memory(Pattern::Shared, 3, 300.4),
    memory(Pattern::Shared, 10, 717.3),
    memory(Pattern::Distinct, 1, 115.3),
    memory(Pattern::Distinct, 3, 331.6),
    memory(Pattern::Distinct, 10, 1050.0),
    Published {
        system: "Alluxio, IPoIB, 1 × NVMe",
        disk_bytes_per_second: Some(6e9),
        bytes_per_second: 6.3e9,
        ..IPOIB
    },
    Published { bytes_per_second: 12.5e9, ..IPOIB },
    Published { workers: 3, clients: 3, bytes_per_second: 36.6e9, ..IPOIB },
    Published { system: "JuiceFS, RDMA", bytes_per_second: 60e9, ..JUICEFS },
    Published { system: "JuiceFS, TCP", bytes_per_second: 25e9, ..JUICEFS },
    Published { system: "JuiceFS, RDMA", workers: 3, clients: 6, bytes_per_second: 288e9, ..JUICEFS },
];

/// Every published figure beside what the record has of the same kind, warm, of its first target. Peaks are held against peaks.
#[must_use]
pub fn beside(record: &Record) -> Vec<Beside> {
    let Measured::Posix { targets, steps } = &record.measured else { return Vec::new() };
    let target = targets.first().map(|target| target.name.as_str()).unwrap_or_default();
    let own: Vec<Step> = steps
        .iter()
        .filter(|step| step.case.target == target && step.case.state == CacheState::Warm)
        .cloned()
        .collect();
    let compare = |published: &Published| Beside {
        published: *published,
        published_fractions: published.fractions(),
        measured: measured(published, &own, &record.machine),
    };
    PUBLISHED.iter().map(compare).collect()
}

/// Operations that a job has under way in what was published.
fn published_depth(pattern: Pattern) -> u32 {
    match pattern {
        Pattern::Shared => 1,
        Pattern::Distinct => 32,
    }
}

fn measured(published: &Published, steps: &[Step], machine: &Machine) -> Option<Measurement> {
    let alike = |case: &Case| {
        case.layout == published.layout
            && case.pattern == published.pattern
            && case.access == published.access
            && case.depth == published_depth(case.pattern)
            && case.block_bytes == published.block_bytes
            && case.clients == published.clients
            && (case.workers == published.workers || case.workers == 0 || published.workers == 0)
    };
    let case = steps.iter().map(|step| &step.case).find(|case| alike(case))?;
    let sweep = points(steps, case);
    let point = match published.jobs {
        Some(jobs) => sweep.iter().find(|point| point.jobs == jobs)?,
        None => peak(&sweep)?,
    };
    let network = machine.network.as_ref().map(|link| link.bits_per_second);
    let bytes = point.bytes_per_second;
    Some(Measurement {
        jobs: point.jobs,
        block_bytes: case.block_bytes,
        bytes_per_second: bytes,
        spread: point.spreads.bytes,
        fractions: Fractions::of(bytes, case.workers, case.clients, network, machine.disk_bytes_per_second),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::testing::{case, record, sweep};
    use crate::posix::words::percent;

    fn fractions(system: &str) -> Vec<(Option<String>, Option<String>)> {
        let own = PUBLISHED.iter().filter(|published| published.system == system).map(Published::fractions);
        own.map(|fractions| (fractions.network.map(percent), fractions.disk.map(percent))).collect()
    }

    #[test]
    fn published_figures_are_the_published_fractions_of_their_hardware() {
        let network =
            |system: &str| fractions(system).into_iter().map(|(network, _)| network.unwrap()).collect::<Vec<_>>();
        // "55 to 65 % of the card" for one client; at ten nodes the shared pattern falls behind.
        assert_eq!(network("Alluxio, POSIX benchmark, DRAM"), ["56 %", "50 %", "36 %", "58 %", "55 %", "52 %"]);
        // "96 % utilization" of three cache nodes, 60 and 25 GB/s of two cards of 400 Gb/s.
        assert_eq!(network("JuiceFS, RDMA"), ["60 %", "96 %"]);
        assert_eq!(network("JuiceFS, TCP"), ["25 %"]);
        // "approaches the raw disk bandwidth".
        let disks: Vec<_> = fractions("Alluxio, IPoIB, 2 × NVMe").into_iter().map(|(_, disk)| disk.unwrap()).collect();
        assert_eq!(disks, ["104 %", "102 %"]);
        assert_eq!(fractions("Alluxio, POSIX benchmark, 8 × NVMe")[1].0.as_deref(), Some("80 %"));
    }

    #[test]
    fn operations_are_what_was_published() {
        let random =
            PUBLISHED.iter().filter(|published| published.block_bytes == 4096 && published.access == Access::Random);
        let rounded: Vec<_> = random.map(|published| published.operations_per_second().round()).collect();
        assert_eq!(rounded, [2300.0, 70_100.0, 162_000.0]);
    }

    #[test]
    fn what_was_measured_stands_beside_what_is_like_it() {
        let single = Case { layout: Layout::Single, block_bytes: 1 << 20, ..case(0) };
        let steps = [
            sweep(&single, &[(1, 2.0, 100.0), (32, 6.25, 100.0)]),
            sweep(&case(0), &[(1, 2.0, 100.0), (32, 5.0, 100.0), (64, 7.0, 100.0)]),
            sweep(&Case { state: CacheState::Cold, ..case(0) }, &[(1, 99.0, 100.0)]),
            sweep(&Case { target: "other".into(), ..case(0) }, &[(1, 99.0, 100.0)]),
        ];
        let beside = super::beside(&record(&["forebay", "other"], steps.concat()));
        assert_eq!(beside.len(), PUBLISHED.len());
        let measured = |index: usize| {
            beside[index].measured.map(|measured| (measured.jobs, measured.fractions.network.map(percent)))
        };
        assert_eq!(measured(1), Some((32, Some("50 %".into()))));
        assert_eq!(measured(2), None, "128 jobs were not measured");
        assert_eq!(measured(6), None, "blocks of 4 KiB were not measured");
        // A peak beside a peak, whatever jobs it has.
        assert_eq!(measured(12), Some((64, Some("56 %".into()))));
        assert_eq!((measured(13), measured(14)), (None, None), "one client is not three or ten");
        assert_eq!(measured(19), None, "256 KiB is not 1 MiB");
        let large = sweep(&Case { block_bytes: 1 << 20, ..case(0) }, &[(32, 5.0, 100.0)]);
        let beside = super::beside(&record(&["forebay"], large));
        assert_eq!(beside[19].measured.unwrap().fractions.disk.map(percent), Some("50 %".into()));
        let deep = sweep(&Case { depth: 8, block_bytes: 1 << 20, ..case(0) }, &[(32, 5.0, 100.0)]);
        let beside = super::beside(&record(&["forebay"], deep));
        assert_eq!(beside[19].measured, None, "eight operations under way are not one");
    }
}
