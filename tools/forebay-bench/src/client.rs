//! The client library without FUSE, and what checking every sector costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use forebay_testkit::DataSet;
use forebay_types::{SECTOR_SIZE, crc32c};
use tokio::runtime::Runtime;

use crate::fio::{Access, count};
use crate::fixture::Fixture;
use crate::latencies::Latencies;
use crate::library::{Checks, Library, Plain};
use crate::mount::start_worker;
use crate::progress::Progress;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};

/// Measurements of a row.
const CASES: usize = 5;
/// Readers at once.
const THREADS: [u32; 2] = [1, 4];

/// Measures it.
///
/// # Errors
/// When a part does not start or a read fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress.say("The client library, without FUSE");
    let worker = start_worker(fixture, &[])?;
    let parts = Parts {
        plain: Plain::new(fixture.settings.size)?,
        local: runtime.block_on(Library::local(fixture, Checks::Default))?,
        verified: runtime.block_on(Library::local(fixture, Checks::EachRead))?,
        trusted: runtime.block_on(Library::local(fixture, Checks::None))?,
        tcp: runtime.block_on(Library::tcp(&worker.address().to_string()))?,
    };
    let rows: Vec<_> = Access::ALL.iter().flat_map(|access| THREADS.map(|threads| (*access, threads))).collect();
    // Reads here vary less than those through a kernel.
    let time = fixture.settings.time / 2;
    let mut cases: Vec<Case<'_>> = rows.iter().flat_map(|row| parts.cases(*row, time)).collect();
    cases.push(Case::new("CRC32C of a sector", move || Ok(checksums(time))));
    let outcomes = rounds::measure("client", cases, fixture.settings.repeat, progress, || ())?;
    for library in [parts.local, parts.verified, parts.trusted, parts.tcp] {
        library.close(runtime);
    }
    worker.stop()?;
    report.table(library_table(&rows, &outcomes));
    report.table(integrity_table(&rows, &outcomes));
    report.samples("client", outcomes);
    Ok(())
}

/// What is read from.
struct Parts {
    plain: Plain,
    local: Library,
    verified: Library,
    trusted: Library,
    tcp: Library,
}

impl Parts {
    /// The measurements of one row, in the order that the tables take them in.
    fn cases(&self, (access, threads): (Access, u32), time: Duration) -> [Case<'_>; CASES] {
        let name = |what: &str| format!("{what}, {}, {}", access.name(), count(threads, "thread"));
        [
            Case::new(name("memory copy"), move || self.plain.read(access, threads, time)),
            Case::new(name("local"), move || self.local.read(access, threads, time)),
            Case::new(name("local, each read checked"), move || self.verified.read(access, threads, time)),
            Case::new(name("local, unverified"), move || self.trusted.read(access, threads, time)),
            Case::new(name("tcp"), move || self.tcp.read(access, threads, time)),
        ]
    }
}

fn library_table(rows: &[(Access, u32)], outcomes: &[Outcome]) -> Table {
    let header = [
        "read",
        "memory copy GB/s",
        "local GB/s",
        "ratio",
        "local k/s",
        "local p50/p99 µs",
        "TCP GB/s",
        "TCP k/s",
        "TCP p50/p99 µs",
    ];
    let text = "`Client` and `OpenFile` in the measuring process, each read copied into the reader's buffer: from a worker \
                in the same process (`local`, each sector's CRC32C checked) and from one in another process over TCP; \
                against a plain copy from memory of the same size.";
    let mut table = Table::new("Client library, warm", text.to_owned(), &header);
    for ((access, threads), of) in rows.iter().zip(outcomes.chunks_exact(CASES)) {
        let [copy, local, .., tcp] = of else { continue };
        table.row(vec![
            format!("{}, {}", access.name(), count(*threads, "thread")),
            rate(copy),
            rate(local),
            percent(local.ratio(copy, |sample| sample.rate)),
            kilo(local),
            latency(local),
            rate(tcp),
            kilo(tcp),
            latency(tcp),
        ]);
    }
    table
}

fn integrity_table(rows: &[(Access, u32)], outcomes: &[Outcome]) -> Table {
    let header = [
        "read",
        "default GB/s",
        "each read checked GB/s",
        "unchecked GB/s",
        "default k/s",
        "each read checked k/s",
        "unchecked k/s",
        "default / unchecked",
        "each read checked / unchecked",
    ];
    let checksums = outcomes.last().map_or_else(String::new, rate);
    let text = format!(
        "Reads from a worker in the same process: by default, with a check of each read (`worker.memory.verify_interval=0`), and with \
         none (`worker.memory.verify_reads=false`). A 4 KiB read checks the whole sector of 32 KiB that it lies in; by default \
         a sector is not checked again for 10 s. CRC32C alone, of one sector in the processor's cache: {checksums} (GB/s)."
    );
    let mut table = Table::new("Integrity of reads from memory", text, &header);
    for ((access, threads), of) in rows.iter().zip(outcomes.chunks_exact(CASES)) {
        let [_, sometimes, checked, unchecked, _] = of else { continue };
        table.row(vec![
            format!("{}, {}", access.name(), count(*threads, "thread")),
            rate(sometimes),
            rate(checked),
            rate(unchecked),
            kilo(sometimes),
            kilo(checked),
            kilo(unchecked),
            percent(sometimes.ratio(unchecked, |sample| sample.rate)),
            percent(checked.ratio(unchecked, |sample| sample.rate)),
        ]);
    }
    table
}

/// CRC32C of the same sector again and again.
fn checksums(time: Duration) -> Sample {
    // Looking at the clock for each would take a part of the time.
    const AT_ONCE: u32 = 32;
    let sector = DataSet::new(3).expected(0..u64::from(SECTOR_SIZE));
    let mut latencies = Latencies::default();
    let started = Instant::now();
    while latencies.is_empty() || started.elapsed() < time {
        let began = Instant::now();
        for _ in 0..AT_ONCE {
            black_box(crc32c(black_box(&sector)));
        }
        latencies.add(began.elapsed());
    }
    latencies.sample(AT_ONCE * SECTOR_SIZE, started.elapsed())
}
