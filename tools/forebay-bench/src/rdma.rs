//! The RDMA transport alone, on what UCX offers without a card: against `ucx_perftest`, and against our own TCP.
//!
//! Shared memory and UCX's TCP say nothing of a card's speed. They say what the transport adds to UCX, which is the same
//! on a card.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions};
use forebay_rdma::{IoThread, Library, RdmaTransport};
use forebay_tcp::TcpTransport;
use forebay_transport::Transport;
use forebay_types::{ByteSize, MAX_BLOCK_SIZE};
use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::perftest::{self, Wait};
use crate::process::cpu_seconds;
use crate::progress::Progress;
use crate::report::{Report, Table, latency, number, percent, rate, seconds, times};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::server::{CLUSTER, ServerProcess, io_thread_options};
use crate::transport::{Blocks, SIZES, call, calls, calls_alone};

/// What UCX may use, and what that comes to. Its listener needs `tcp` in any case.
const FABRICS: [(&str, &str); 2] = [("shared memory", "sysv,cma,tcp,self"), ("UCX's TCP", "tcp,self")];
/// Calls under way at once where bandwidth is measured.
const AT_ONCE: usize = 8;
/// Files of the connection table.
const OPENS: u32 = 1000;
/// Bytes of each.
const SMALL_FILE: u32 = 64 << 10;
/// What the transport is to reach of ucx_perftest with payloads of 64 KiB and more.
const BANDWIDTH_TARGET: f64 = 0.85;
/// What its round trip may take of ucx_perftest's, with 4 KiB.
const LATENCY_TARGET: f64 = 1.5;

/// A client and its server.
struct Link {
    server: ServerProcess,
    transport: Arc<dyn Transport>,
    io_thread: Option<Arc<IoThread>>,
}

impl Link {
    fn over_ucx(transports: &'static str, pool: &Pool) -> anyhow::Result<Self> {
        let transports: Vec<_> = transports.split(',').collect();
        let server = ServerProcess::start(&transports)?;
        let io_thread = Arc::new(IoThread::start(Library::load(None)?, io_thread_options(&transports, pool))?);
        let transport = Arc::new(ucx_transport(&server, &io_thread));
        Ok(Self { server, transport, io_thread: Some(io_thread) })
    }

    fn over_tcp() -> anyhow::Result<Self> {
        let server = ServerProcess::start(&[])?;
        let transport = Arc::new(tcp_transport(&server));
        Ok(Self { server, transport, io_thread: None })
    }

    /// Reads of `size` bytes, `depth` at once; with the processor time of both ends, the server's as `cpu` and the client's
    /// as `extra`.
    fn reads(&self, runtime: &Runtime, pool: &Pool, size: u32, depth: usize, time: Duration) -> anyhow::Result<Sample> {
        let used = || anyhow::Ok([cpu_seconds(self.server.pid())?, cpu_seconds(std::process::id())?]);
        let before = used()?;
        let sample = match depth {
            1 => calls_alone(runtime, &self.transport, pool, Blocks::ONE, size, time)?,
            _ => runtime.block_on(calls(&self.transport, pool, Blocks::ONE, size, depth, time))?,
        };
        let gib = sample.rate * time.as_secs_f64() / f64::from(1 << 30);
        let [server, client] = used()?;
        Ok(Sample { cpu: (server - before[0]) / gib, extra: (client - before[1]) / gib, ..sample })
    }

    /// One file after the other: each over a connection of its own, or all over one.
    fn opens(&self, runtime: &Runtime, pool: &Pool, count: u32, cached: bool) -> anyhow::Result<Sample> {
        let began = Instant::now();
        for _ in 0..count {
            let own: Arc<dyn Transport> = match (&self.io_thread, cached) {
                (_, true) => Arc::clone(&self.transport),
                (Some(io_thread), false) => Arc::new(ucx_transport(&self.server, io_thread)),
                (None, false) => Arc::new(tcp_transport(&self.server)),
            };
            runtime.block_on(async {
                drop(call(&*own, pool, Blocks::ONE.of_read(0), SMALL_FILE).await?);
                if !cached {
                    own.close().await;
                }
                anyhow::Ok(())
            })?;
        }
        let operations = f64::from(count) / began.elapsed().as_secs_f64();
        Ok(Sample { rate: operations * f64::from(SMALL_FILE), operations, ..Sample::default() })
    }

    fn close(self, runtime: &Runtime) {
        runtime.block_on(async {
            self.transport.close().await;
            if let Some(io_thread) = self.io_thread {
                io_thread.close().await;
            }
        });
    }
}

fn ucx_transport(server: &ServerProcess, io_thread: &Arc<IoThread>) -> RdmaTransport {
    RdmaTransport::new(
        server.address.as_str(),
        Arc::clone(io_thread),
        forebay_rdma::ClientOptions::new(CLUSTER, MAX_BLOCK_SIZE),
    )
}

fn tcp_transport(server: &ServerProcess) -> TcpTransport {
    TcpTransport::new(server.address.as_str(), forebay_tcp::ClientOptions::new(CLUSTER, MAX_BLOCK_SIZE))
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a call fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    if let Some(missing) = Library::load(None).err().map(|error| error.to_string()).or_else(perftest::missing) {
        progress.say(&format!("skipped: the RDMA transport: {missing}"));
        return Ok(());
    }
    progress.say("The RDMA transport alone, without a card");
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64)))?;
    let links = FABRICS.map(|(_, transports)| Link::over_ucx(transports, &pool));
    let (links, tcp) = (links.into_iter().collect::<anyhow::Result<Vec<_>>>()?, Link::over_tcp()?);
    let (time, repeat) = (fixture.settings.time, fixture.settings.repeat);
    let (pool_ref, tcp_ref) = (&pool, &tcp);

    let sizes = fixture.settings.chosen(&SIZES);
    let mut cases = Vec::new();
    for &(size, name) in &sizes {
        for ((fabric, transports), link) in FABRICS.iter().zip(&links) {
            let case = |what: &str| format!("{what}, {fabric}, {name}");
            cases.push(Case::new(case("one call"), move || link.reads(runtime, pool_ref, size, 1, time)));
            let polled = move || perftest::round_trips(transports, size, Wait::Poll, time);
            cases.push(Case::new(case("ucx_perftest polling"), polled));
            let asleep = move || perftest::round_trips(transports, size, Wait::Sleep, time);
            cases.push(Case::new(case("ucx_perftest sleeping"), asleep));
            cases.push(Case::new(case("many calls"), move || link.reads(runtime, pool_ref, size, AT_ONCE, time)));
            let theirs = move || perftest::bandwidth(transports, size, time);
            cases.push(Case::new(case("ucx_perftest bandwidth"), theirs));
        }
        let tcp = move || tcp_ref.reads(runtime, pool_ref, size, AT_ONCE, time);
        cases.push(Case::new(format!("many calls, TCP, {name}"), tcp));
    }
    let outcomes = rounds::measure("rdma", cases, repeat, progress, || ())?;
    let rows: Vec<Row> = sizes.into_iter().zip(outcomes.chunks_exact(5 * FABRICS.len() + 1)).collect();
    targets(&rows, report);
    report.table(against_perftest(&rows));
    report.table(against_tcp(&rows));
    report.samples("rdma", outcomes);

    let count = if fixture.settings.quick { OPENS / 10 } else { OPENS };
    let named = [("shared memory", &links[0]), ("UCX's TCP", &links[1]), ("TCP", &tcp)];
    let cases = named.iter().flat_map(|(name, link)| {
        [false, true].map(|cached| {
            let how = if cached { "one connection" } else { "a connection each" };
            Case::new(format!("opens, {name}, {how}"), move || link.opens(runtime, pool_ref, count, cached))
        })
    });
    let outcomes = rounds::measure("connections", cases.collect(), repeat, progress, || ())?;
    report.table(connections(&named.map(|(name, _)| name), &outcomes, count));
    report.samples("connections", outcomes);
    for link in links.into_iter().chain([tcp]) {
        link.close(runtime);
    }
    Ok(())
}

/// All that was measured with a size: its bytes and its name, and the outcomes.
type Row<'a> = ((u32, &'static str), &'a [Outcome]);

/// The five outcomes of each fabric in a row.
fn of_fabric(row: &[Outcome], fabric: usize) -> &[Outcome] {
    &row[5 * fabric..5 * fabric + 5]
}

fn targets(rows: &[Row], report: &mut Report) {
    for (fabric, (name, _)) in FABRICS.iter().enumerate() {
        for &((size, text), row) in rows {
            let [one, polling, sleeping, many, theirs] = of_fabric(row, fabric) else { continue };
            let what = format!("UCX transport, {name}, {text}");
            if size >= 64 << 10 {
                let reached = many.ratio(theirs, |sample| sample.rate);
                report.ratio_target(&what, "ucx_perftest", BANDWIDTH_TARGET, reached);
            } else if size == 4 << 10 {
                for (how, theirs) in [("polling", polling), ("sleeping", sleeping)] {
                    let of_what = format!("ucx_perftest's round trip, {how}");
                    report.max_target(&what, &of_what, LATENCY_TARGET, one.ratio(theirs, |sample| sample.p50));
                }
            }
        }
    }
}

fn against_perftest(rows: &[Row]) -> Table {
    let header = [
        "over",
        "read",
        "p50/p99 µs",
        "ucx_perftest µs polling",
        "sleeping",
        "8 at once GB/s",
        "ucx_perftest GB/s",
        "ratio",
    ];
    let text = "Requests and replies between two processes, each reply into a registered buffer of its own, one, by a thread that waits \
                itself as a reader's does, and 8 at once; `ucx_perftest` with the same `UCX_TLS` and segment sizes: round trips of `ucp_am_lat` (twice what it prints, \
                and the payload in both directions) with both ends polling and with both asleep in between, as Forebay's \
                are; bandwidth of `ucp_am_bw`, which polls and whose payload lands in memory that it never reads.";
    let mut table = Table::new("UCX transport against ucx_perftest", text.to_owned(), &header);
    for (fabric, (name, _)) in FABRICS.iter().enumerate() {
        for &((_, size), row) in rows {
            let [one, polling, sleeping, many, theirs] = of_fabric(row, fabric) else { continue };
            let trip = |outcome: &Outcome| number(outcome.median(|sample| sample.p50), 1, "");
            let ratio = percent(many.ratio(theirs, |sample| sample.rate));
            let cells = [
                (*name).to_owned(),
                size.to_owned(),
                latency(one),
                trip(polling),
                trip(sleeping),
                rate(many),
                rate(theirs),
                ratio,
            ];
            table.row(cells.into());
        }
    }
    table
}

fn against_tcp(rows: &[Row]) -> Table {
    let header = ["read", "over", "GB/s", "of TCP", "worker CPU s/GiB", "client CPU s/GiB"];
    let text = "The same reads, 8 at once, over UCX and over our own TCP; processor time of each end. The client's includes \
                taking and giving back the buffers.";
    let mut table = Table::new("UCX transport against TCP", text.to_owned(), &header);
    for &((_, size), row) in rows {
        let Some(tcp) = row.last() else { continue };
        let ucx = FABRICS.iter().enumerate().map(|(fabric, (name, _))| (*name, &of_fabric(row, fabric)[3]));
        for (name, outcome) in ucx.chain([("TCP", tcp)]) {
            let ratio = percent(outcome.ratio(tcp, |sample| sample.rate));
            let [worker, client] =
                [outcome.median(|sample| sample.cpu), outcome.median(|sample| sample.extra)].map(seconds);
            table.row(vec![size.to_owned(), name.to_owned(), rate(outcome), ratio, worker, client]);
        }
    }
    table
}

fn connections(names: &[&str], outcomes: &[Outcome], count: u32) -> Table {
    let header = ["over", "a connection each, µs a file", "one connection, µs a file", "set-up µs", "gain"];
    let text = format!(
        "{count} files of 64 KiB, one after the other: each over a connection that is made for it and closed after it, or all \
         over the connection that the client keeps. The difference is the cost of setting one up, hellos included."
    );
    let mut table = Table::new("Connections", text, &header);
    for (name, pair) in names.iter().zip(outcomes.chunks_exact(2)) {
        let [each, one] = pair else { continue };
        let micros = |outcome: &Outcome| 1e6 / outcome.median(|sample| sample.operations);
        let gain = one.ratio(each, |sample| sample.operations);
        let cells = [micros(each), micros(one), micros(each) - micros(one)].map(|micros| number(micros, 0, ""));
        table.row([(*name).to_owned()].into_iter().chain(cells).chain([times(gain, 1)]).collect());
    }
    table
}
