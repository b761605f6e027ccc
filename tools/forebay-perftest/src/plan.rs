//! What a run consists of: tests, sizes, threads, and the place of each operation in the server's memory. Pure.

use std::time::Duration;

use forebay_memory::{FRAME_SIZE, MIN_EXTENT};
use forebay_types::ByteSize;

use crate::error::Error;
use crate::options::{Case, ClientOptions, Kind};

/// Bytes of payload that are measured by default.
pub const PAYLOADS: [u64; 3] = [4096, 65536, 1 << 20];
/// The smallest and the largest payload of the tables, as powers of two: 2 bytes to 8 MiB.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;
/// Operations of a latency test, unless its time is over before, or the number is given.
pub const LATENCY_ITERATIONS: usize = 5000;
/// Operations of a latency test at most: each one's time is kept.
pub const MAX_ITERATIONS: u32 = 1_000_000;
/// The largest payload.
pub const MAX_PAYLOAD: u64 = 8 << 20;
/// How long a latency test may take whose number of operations is given.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Threads at most.
pub const MAX_JOBS: u32 = 128;
/// Operations under way in a thread at most.
pub const MAX_DEPTH: u32 = 1024;
/// Operations under way in all threads at most: what the cache's server takes from one connection.
pub const MAX_OPERATIONS: u32 = 4096;
/// Memory for buffers at most.
const MAX_BUFFERS: u64 = 4 << 30;
/// Clients that a server serves at once.
pub const MAX_CLIENTS: usize = 4;
/// Frames of a server to read from.
pub const BLOCKS: usize = 4;
/// Frames that each client has to write to: enough for the largest payload.
pub const AREA_FRAMES: usize = 2;
/// How long one operation may take. One of 8 MiB over emulated cards takes a second; a side that is silent for so long hangs.
pub const OPERATION_DEADLINE: Duration = Duration::from_secs(60);
/// How long connecting may take, an answer included.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
/// Windows that a row of a bandwidth table is cut into, of which the best is its peak.
pub const WINDOWS_A_ROW: u32 = 10;

/// The sizes of payload.
#[must_use]
pub fn payloads(options: &ClientOptions) -> Vec<u64> {
    match (&options.sizes[..], options.all_sizes) {
        ([], true) => ALL_SIZES.map(|power| 1 << power).collect(),
        ([], false) => PAYLOADS.to_vec(),
        (said, _) => said.to_vec(),
    }
}

/// How many operations a latency test has, and how long it may take, when `within` is its time.
#[must_use]
pub fn iterations(options: &ClientOptions, within: Duration) -> (usize, Duration) {
    options.iterations.map_or((LATENCY_ITERATIONS, within), |iterations| (iterations as usize, PATIENCE))
}

/// Which kinds of operation the case verifies, measures the latency of, and the bandwidth of.
#[must_use]
pub fn kinds(case: Case, by_verbs: bool) -> [&'static [Kind]; 3] {
    const OF_ALL: &[Kind] = &[Kind::Write, Kind::Read, Kind::Cache];
    const OF_VERBS: &[Kind] = &[Kind::Write, Kind::Read, Kind::Seal, Kind::Cache];
    let all = if by_verbs { OF_VERBS } else { OF_ALL };
    match case {
        Case::Basic => [all, &[], &[]],
        Case::Latency => [&[], all, &[]],
        Case::Stress => [&[], &[], all],
        Case::StressWrite => [&[], &[], &[Kind::Write]],
        Case::StressRead if by_verbs => [&[], &[], &[Kind::Read, Kind::Seal]],
        Case::StressRead => [&[], &[], &[Kind::Read]],
        Case::StressCache => [&[], &[], &[Kind::Cache]],
        Case::All => [all, all, all],
    }
}

/// Those of `kinds` that can be: without `memory` to read and write, only what asks the cache.
#[must_use]
pub fn possible(kinds: &[Kind], memory: bool) -> Vec<Kind> {
    kinds.iter().copied().filter(|kind| memory || *kind == Kind::Cache).collect()
}

/// How many threads for a payload of `bytes`, when the user does not say: one a core, up to 8 for small ones, of which
/// a thread sends some millions a second at most, and up to 4 for large ones, which the card is busy with.
#[must_use]
pub fn auto_jobs(bytes: u64, cores: usize) -> u32 {
    let most = if bytes <= 262_144 { 8 } else { 4 };
    cores.clamp(1, most) as u32
}

/// How many operations each thread has under way for a payload of `bytes`, when the user does not say: enough to hide a
/// round trip, few enough for the buffers to stay in a processor's cache.
#[must_use]
pub fn auto_depth(bytes: u64) -> u32 {
    match bytes {
        0..=16_384 => 32,
        16_385..=262_144 => 16,
        262_145..=1_048_576 => 8,
        _ => 4,
    }
}

/// How a test spreads its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Threads.
    pub jobs: u32,
    /// Operations that each has under way.
    pub depth: u32,
}

/// The spread for a payload of `bytes` on a machine with so many cores.
#[must_use]
pub fn spread(options: &ClientOptions, bytes: u64, cores: usize) -> Spread {
    let jobs = options.jobs.unwrap_or_else(|| auto_jobs(bytes, cores));
    // What was chosen for one of them yields to what was said of the other.
    let depth = options.depth.unwrap_or_else(|| auto_depth(bytes).min(MAX_OPERATIONS / jobs.max(1)));
    Spread { jobs, depth: depth.max(1) }
}

/// The memory for the buffers of the largest test.
///
/// # Errors
/// [`Error::Usage`] when it is more than reasonable, or there are more operations than a server takes.
pub fn buffers(options: &ClientOptions, cores: usize) -> Result<ByteSize, Error> {
    let mut most = 0;
    for bytes in payloads(options) {
        let Spread { jobs, depth } = spread(options, bytes, cores);
        if u64::from(jobs) * u64::from(depth) > u64::from(MAX_OPERATIONS) {
            let what = format!("--numjobs {jobs} times --iodepth {depth} is over {MAX_OPERATIONS}");
            return Err(Error::Usage(format!("{what}; lower one of them, or leave it at -1")));
        }
        let frames = u64::from(jobs) * u64::from(depth) * bytes.next_multiple_of(MIN_EXTENT as u64);
        most = most.max(frames);
    }
    if most > MAX_BUFFERS {
        let (size, limit) = (ByteSize::bytes(most), ByteSize::bytes(MAX_BUFFERS));
        let what = format!("--numjobs and --iodepth need {size} of buffers, over {limit}");
        return Err(Error::Usage(format!("{what}; lower one of them, or leave it at -1")));
    }
    // A latency test and the verification have a buffer or two of the largest size, and their frames may be cut otherwise.
    Ok(ByteSize::bytes(most.next_multiple_of(FRAME_SIZE as u64) + 4 * FRAME_SIZE as u64))
}

/// How long a row of a table of `rows` may take.
#[must_use]
pub fn row_time(duration: Duration, rows: usize) -> Duration {
    duration / u32::try_from(rows.max(1)).unwrap_or(u32::MAX)
}

/// A range of bytes in frames of the server's memory. It lies in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which frame.
    pub frame: u32,
    /// Where in it, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

/// The place of the operation `number` of `length` bytes, at most [`FRAME_SIZE`]: operations go through all frames in order, and
/// then again.
#[must_use]
pub fn place(number: u64, length: usize, frames: u32) -> Place {
    let length = length.clamp(1, FRAME_SIZE);
    let in_frame = (FRAME_SIZE / length) as u64;
    let index = number % (in_frame * u64::from(frames.max(1)));
    Place {
        frame: (index / in_frame) as u32,
        offset: ((index % in_frame) * length as u64) as u32,
        length: length as u32,
    }
}

/// The lengths of the parts that a payload is moved in: a part is a block of the cache at most.
pub(crate) fn parts(bytes: u64) -> impl Iterator<Item = usize> {
    let frame = FRAME_SIZE as u64;
    (0..bytes.div_ceil(frame)).map(move |part| (bytes - part * frame).min(frame) as usize)
}

#[cfg(test)]
mod tests {
    use forebay_transport::driving::DriveOptions;
    use proptest::prelude::*;

    use super::*;
    use crate::options::{CardNames, TransportChoice, UcxOptions};

    fn options(jobs: Option<u32>, depth: Option<u32>) -> ClientOptions {
        ClientOptions {
            server: "127.0.0.1:1".parse().unwrap(),
            bind: None,
            transport: TransportChoice::Tcp,
            ucx: UcxOptions::default(),
            verbs: None,
            case: Case::All,
            all_sizes: true,
            sizes: Vec::new(),
            duration: Duration::from_secs(10),
            iterations: None,
            cpus: Vec::new(),
            cards: CardNames::default(),
            jobs,
            depth,
            drive: DriveOptions::default(),
        }
    }

    #[test]
    fn threads_follow_the_cores_and_operations_under_way_the_payload() {
        assert_eq!([1, 2, 8, 96].map(|cores| auto_jobs(4096, cores)), [1, 2, 8, 8]);
        assert_eq!([1, 2, 8, 96].map(|cores| auto_jobs(1 << 20, cores)), [1, 2, 4, 4]);
        assert_eq!([2, 4096, 65536, 1 << 20, 8 << 20].map(auto_depth), [32, 32, 16, 8, 4]);
        let said = spread(&options(Some(3), Some(7)), 4096, 64);
        assert_eq!(said, Spread { jobs: 3, depth: 7 });
        assert_eq!(spread(&options(None, None), 1 << 20, 64), Spread { jobs: 4, depth: 8 });
        assert_eq!(spread(&options(Some(1000), None), 4096, 64).depth, 4);
    }

    #[test]
    fn the_tables_go_from_2_bytes_to_8_mib() {
        let mut options = options(None, None);
        let sizes = payloads(&options);
        assert_eq!((sizes[0], sizes[22], sizes.len()), (2, MAX_PAYLOAD, 23));
        options.all_sizes = false;
        assert_eq!(payloads(&options), PAYLOADS);
        options.sizes = vec![1000];
        assert_eq!(payloads(&options), [1000]);
        assert_eq!(parts(8 << 20).collect::<Vec<_>>(), [FRAME_SIZE, FRAME_SIZE]);
        assert_eq!(parts(5 << 20).collect::<Vec<_>>(), [FRAME_SIZE, 1 << 20]);
        assert_eq!(parts(2).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn each_case_has_its_kinds() {
        assert_eq!(kinds(Case::StressRead, false)[2], [Kind::Read]);
        assert_eq!(kinds(Case::StressRead, true)[2], [Kind::Read, Kind::Seal]);
        assert_eq!(kinds(Case::StressCache, true)[2], [Kind::Cache]);
        assert_eq!(kinds(Case::StressWrite, false)[2], [Kind::Write]);
        assert!(kinds(Case::Basic, true)[1..].iter().all(|kinds| kinds.is_empty()));
        assert!(kinds(Case::All, false).iter().all(|kinds| kinds.len() == 3 && !kinds.contains(&Kind::Seal)));
        assert!(kinds(Case::All, true).iter().all(|kinds| kinds.len() == 4));
        assert_eq!(possible(kinds(Case::All, true)[0], false), [Kind::Cache]);
        assert_eq!(possible(kinds(Case::StressRead, true)[2], true), [Kind::Read, Kind::Seal]);
    }

    #[test]
    fn a_number_of_operations_that_is_given_counts_for_more_than_the_time() {
        let mut options = options(None, None);
        let second = Duration::from_secs(1);
        assert_eq!(iterations(&options, second), (LATENCY_ITERATIONS, second));
        options.iterations = Some(100_000);
        let (count, within) = iterations(&options, second);
        assert!(count == 100_000 && within > second);
    }

    #[test]
    fn more_than_a_server_takes_is_refused_by_the_flags_names() {
        for (jobs, depth) in [(128, 1024), (64, 64)] {
            let error = buffers(&options(Some(jobs), Some(depth)), 2).unwrap_err().to_string();
            assert!(error.contains("--numjobs") && error.contains("--iodepth") && error.contains("; "), "{error}");
        }
        let size = buffers(&options(Some(1), Some(2)), 2).unwrap();
        assert_eq!(size, ByteSize::mib(16 + 16));
    }

    proptest! {
        #[test]
        fn every_place_lies_in_a_frame(number: u64, length in 1_usize..=FRAME_SIZE, frames in 1_u32..64) {
            let place = place(number, length, frames);
            prop_assert!(place.frame < frames);
            prop_assert!(place.offset as usize + place.length as usize <= FRAME_SIZE);
            prop_assert_eq!(place.length as usize, length);
        }
    }
}
