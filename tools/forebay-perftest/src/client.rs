//! A run of the client, from beginning to end.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chrono::Local;
use forebay_locks::Mutex;
use forebay_rdma::verbs::VerbsThread;
use forebay_rdma::{IoThread, Library, RdmaTransport};
use forebay_tcp::TcpTransport;
use forebay_transport::Transport;
use forebay_types::MAX_BLOCK_SIZE;
use forebay_ucx::{Registration, Resource};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::error::Error;
use crate::link::Connector;
use crate::load_threads::{LoadThreads, Watched};
use crate::options::{ClientOptions, Kind, TransportChoice};
use crate::plan::{self, CONNECT_DEADLINE, OPERATION_DEADLINE, WINDOWS_A_ROW};
use crate::report::{BandwidthResult, LatencyResult, Report, ServerReport, UcxReport, Verified};
use crate::statistics::{Bandwidth, Counted, Latency, rate};
use crate::ucx::{context, io_thread};
use crate::verbs::{Side, verbs_thread};
use crate::wire::{BENCH_CLUSTER, Offer};
use crate::{memory, text, usage};

/// How long the I/O thread may take to end.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Runs the tests and tells `out` of them, line by line. Blocks for as long as they take; the cache's tasks run on `runtime`.
/// When `stop` is cancelled, it ends soon.
///
/// # Errors
/// [`Error`]: what failed and what to do. A payload that came back wrong is [`Error::Mismatch`].
pub fn run(
    options: &ClientOptions,
    runtime: &Handle,
    stop: &CancellationToken,
    out: &mut dyn Write,
) -> Result<Report, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let buffers = plan::buffers(options, cores)?;
    let started = Local::now();
    say(out, &text::banner("FOREBAY RDMA BENCHMARK"))?;
    say(out, &format!("[INFO] Test started at: {}", started.format("%Y-%m-%d %H:%M:%S")))?;
    say(out, &format!("[INFO] Connecting to {}...", options.server))?;
    let ucx = match (options.transport, &options.verbs) {
        (TransportChoice::Ucx, None) => Some(Library::load(options.ucx.library.as_deref())?),
        (TransportChoice::Tcp, _) | (_, Some(_)) => None,
    };
    let version = ucx.map(|library| library.version().to_string());
    let (control, offer) = Control::open(options.server, options.bind, version)?;
    let pool = memory::pool(buffers)?;
    let io_thread = ucx.map(|library| io_thread(library, &options.ucx, &pool)).transpose()?.map(Arc::new);
    let one_sided = ucx
        .map(|library| {
            let context = context(library, &options.ucx)?;
            let registration = Registration::whole(&context, &pool)?;
            Ok::<_, Error>((context, registration))
        })
        .transpose()?;
    let (verbs, verbs_memory) = match (&options.verbs, offer.verbs) {
        (None, _) => (None, None),
        (Some(card), Some(server)) => (
            Some((verbs_thread(card, &pool)?, card.address, server.cache)),
            match server.memory {
                Some(memory) => Side::new(card, &pool)?.map(|side| (side, card.address, memory)),
                None => None,
            },
        ),
        (Some(_), None) => {
            let reason = "it serves nothing by verbs; restart it with `--provider verbs`".to_owned();
            return Err(Error::Refused { address: options.server, reason });
        }
    };
    let by_verbs = verbs.as_ref().map(|(thread, ..)| Arc::clone(thread));
    let connector = Arc::new(Connector {
        server: options.server,
        bind: options.bind,
        cache: cache(options, &offer, io_thread.clone(), verbs),
        offer,
        pool,
        verbs: verbs_memory,
        ucx: one_sided,
        runtime: runtime.clone(),
        stop: stop.clone(),
        lanes: Mutex::default(),
        cpus: options.cpus.clone(),
    });
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        started: started.to_rfc3339(),
        transport: options.transport,
        server: ServerReport {
            address: options.server.to_string(),
            version: connector.offer.version.chars().filter(|c| !c.is_control()).take(40).collect(),
            delay_us: connector.offer.delay.as_micros() as u64,
        },
        ucx: ucx.map(|library| UcxReport {
            version: library.version().to_string(),
            library: library.path().display().to_string(),
            lanes: Vec::new(),
            rdma: false,
        }),
        verbs: options.verbs.as_ref().map(|card| card.device.clone()),
        case: options.case,
        duration_seconds: options.duration.as_secs_f64(),
        verified: Vec::new(),
        latency: Vec::new(),
        bandwidth: Vec::new(),
    };
    let cache = Arc::clone(&connector.cache);
    let mut session = Session { options, cores, connector, control, out, report };
    let outcome = session.tests();
    let report = session.report;
    // The link's tasks run on the runtime and the I/O thread, so these are told to end, and waited for, in their order.
    runtime.block_on(async {
        let close = async {
            cache.close().await;
            if let Some(io_thread) = &io_thread {
                io_thread.close().await;
            }
            if let Some(thread) = &by_verbs {
                thread.close().await;
            }
        };
        if tokio::time::timeout(CLOSE_WITHIN, close).await.is_err() {
            tracing::debug!("the cache's link did not end in time");
        }
    });
    outcome.map(|()| report)
}

/// The way of the cache. Patient: an emulated card answers late, and whether it answers is not what is measured.
fn cache(
    options: &ClientOptions,
    offer: &Offer,
    io_thread: Option<Arc<IoThread>>,
    verbs: Option<(Arc<VerbsThread>, IpAddr, SocketAddr)>,
) -> Arc<dyn Transport> {
    let address = SocketAddr::new(options.server.ip(), offer.cache_port).to_string();
    let (keepalive, dead_after) = (OPERATION_DEADLINE / 6, OPERATION_DEADLINE / 2);
    let max_outstanding = 2 * plan::MAX_OPERATIONS as usize;
    let over_rdma = |bind| forebay_rdma::ClientOptions {
        connect_timeout: CONNECT_DEADLINE,
        keepalive,
        dead_after,
        max_outstanding,
        bind,
        drive: options.drive,
        ..forebay_rdma::ClientOptions::new(BENCH_CLUSTER, MAX_BLOCK_SIZE)
    };
    if let Some((thread, from, server)) = verbs {
        return Arc::new(RdmaTransport::over_verbs(server.to_string(), thread, over_rdma(Some(from))));
    }
    match io_thread {
        Some(io_thread) => Arc::new(RdmaTransport::new(address, io_thread, over_rdma(options.bind))),
        None => Arc::new(TcpTransport::new(
            address,
            forebay_tcp::ClientOptions {
                connect_timeout: CONNECT_DEADLINE,
                keepalive,
                dead_after,
                max_outstanding,
                bind: options.bind,
                drive: options.drive,
                ..forebay_tcp::ClientOptions::new(BENCH_CLUSTER, MAX_BLOCK_SIZE)
            },
        )),
    }
}

/// Prints one line at once.
fn say(out: &mut dyn Write, line: &str) -> Result<(), Error> {
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The tests of a run.
struct Session<'a> {
    options: &'a ClientOptions,
    cores: usize,
    connector: Arc<Connector>,
    control: Control,
    out: &'a mut dyn Write,
    report: Report,
}

impl Session<'_> {
    fn tests(&mut self) -> Result<(), Error> {
        let kinds = plan::kinds(self.options.case, self.options.verbs.is_some());
        let kinds = kinds.map(|kinds| plan::possible(kinds, self.has_memory()));
        let [verified, latency, bandwidth] = [&kinds[0][..], &kinds[1][..], &kinds[2][..]];
        self.say_how()?;
        if !self.has_memory() {
            self.say(text::NO_WINDOWS)?;
        }
        if !verified.is_empty() {
            self.say("")?;
            self.say(&text::section("BASIC TESTS", "Every Byte Compared", false))?;
            self.verify(verified)?;
        }
        if !latency.is_empty() {
            self.say("")?;
            self.say(&text::section("LATENCY TESTS", "Sequential", self.has_rdma()))?;
            if self.options.all_sizes { self.latency_tables(latency)? } else { self.latency(latency)? }
        }
        if !bandwidth.is_empty() {
            self.say("")?;
            self.say(&text::section("BANDWIDTH STRESS TESTS", "Multi-Threaded Concurrent", self.has_rdma()))?;
            if self.options.all_sizes { self.bandwidth_tables(bandwidth)? } else { self.bandwidth(bandwidth)? }
        }
        self.say("")?;
        self.say(&text::banner("ALL TESTS COMPLETED"))
    }

    /// What is going to be measured, over what. Connects once to know the latter.
    fn say_how(&mut self) -> Result<(), Error> {
        match (self.options.transport, &self.options.verbs) {
            (_, Some(card)) => {
                self.say(&text::verbs(&card.device))?;
                let is_of = |name: &str| name.split(':').next() == Some(card.device.as_str());
                let known = self.options.cards.devices.iter().find(|(name, _)| is_of(name));
                if let Some((_, description)) = known {
                    self.say(&text::card(description))?;
                }
            }
            (TransportChoice::Tcp, None) => {
                self.say(
                    "[INFO] TCP: READ and WRITE by blocking sockets, one for each thread, CACHE by its own transport",
                )?;
                let local = self.control.local_ip();
                let card = self.options.cards.addresses.iter().find(|(address, _)| Some(*address) == local);
                if let Some((_, description)) = card {
                    self.say(&text::card(description))?;
                }
            }
            (TransportChoice::Ucx, None) => {
                drop(LoadThreads::start(&self.connector, Kind::Read, 1)?);
                let lanes = self.connector.lanes.lock().clone();
                if let Some(ucx) = &mut self.report.ucx {
                    ucx.lanes = lanes.iter().map(ToString::to_string).collect();
                    ucx.rdma = lanes.iter().any(Resource::is_rdma);
                    let (line, rdma) = (text::lanes(&ucx.version, &lanes), ucx.rdma);
                    self.say(&line)?;
                    let mut known: Vec<_> = self.options.cards.devices.iter().collect();
                    known.retain(|(device, _)| lanes.iter().any(|lane| *lane.device == **device));
                    for (_, description) in known {
                        self.say(&text::card(description))?;
                    }
                    if rdma {
                        self.say(text::QUEUE_PAIRS)?;
                    }
                }
            }
        }
        let server = &self.report.server;
        let line = format!("[INFO] Server: Forebay {}, Delay {} us", server.version, server.delay_us);
        self.say(&line)?;
        let (_, sessions) = self.control.usage()?;
        if sessions > 1 {
            self.say(&format!("[WARN] {sessions} clients use this server: they share links and processors"))?;
        }
        self.say("")?;
        self.say(&format!("[INFO] Test Case: {}", self.options.case))?;
        self.say(&format!("[INFO] Duration: {} seconds", self.options.duration.as_secs()))?;
        if let Some(iterations) = self.options.iterations {
            self.say(&format!("[INFO] Iterations of a latency test: {iterations}"))?;
        }
        Ok(())
    }

    /// Whether READ and WRITE have memory to go to.
    fn has_memory(&self) -> bool {
        self.options.verbs.is_none() || self.connector.verbs.is_some()
    }

    fn has_rdma(&self) -> bool {
        self.report.verbs.is_some() || self.report.ucx.as_ref().is_some_and(|ucx| ucx.rdma)
    }

    fn verify(&mut self, kinds: &[Kind]) -> Result<(), Error> {
        for kind in kinds {
            let mut threads = LoadThreads::start(&self.connector, *kind, 1)?;
            for bytes in plan::payloads(self.options) {
                let transfers = threads.verify(bytes)?;
                self.say(&text::verified(*kind, bytes, transfers))?;
                self.report.verified.push(Verified { kind: *kind, bytes, transfers });
                self.check()?;
            }
        }
        Ok(())
    }

    fn latency(&mut self, kinds: &[Kind]) -> Result<(), Error> {
        let mut kinds_and_threads = Vec::new();
        for kind in kinds {
            kinds_and_threads.push((*kind, LoadThreads::start(&self.connector, *kind, 1)?));
        }
        for (index, bytes) in plan::payloads(self.options).into_iter().enumerate() {
            if index > 0 {
                self.say("")?;
            }
            for (kind, threads) in &mut kinds_and_threads {
                let test = plan::iterations(self.options, self.options.duration);
                let latency = self.latency_of(threads, *kind, bytes, test)?;
                self.say(&text::latency(*kind, bytes, &latency, test))?;
            }
        }
        Ok(())
    }

    fn latency_tables(&mut self, kinds: &[Kind]) -> Result<(), Error> {
        let sizes = plan::payloads(self.options);
        let test = plan::iterations(self.options, plan::row_time(self.options.duration, sizes.len()));
        for kind in kinds {
            let mut threads = LoadThreads::start(&self.connector, *kind, 1)?;
            self.say(&format!("\n{kind} latency"))?;
            self.say(text::LATENCY_HEADINGS)?;
            for bytes in &sizes {
                let latency = self.latency_of(&mut threads, *kind, *bytes, test)?;
                self.say(&text::latency_row(*bytes, &latency))?;
            }
        }
        Ok(())
    }

    fn latency_of(
        &mut self,
        threads: &mut LoadThreads,
        kind: Kind,
        bytes: u64,
        test: (usize, Duration),
    ) -> Result<Latency, Error> {
        let latency = Latency::of(threads.latency(bytes, test)?);
        self.report.latency.push(LatencyResult { kind, bytes, latency });
        self.check()?;
        Ok(latency)
    }

    fn bandwidth(&mut self, kinds: &[Kind]) -> Result<(), Error> {
        let duration = self.options.duration;
        for (index, kind) in kinds.iter().enumerate() {
            let mut threads = self.load_threads(*kind)?;
            for (payload, bytes) in plan::payloads(self.options).into_iter().enumerate() {
                if index + payload > 0 {
                    self.say("")?;
                }
                let spread = plan::spread(self.options, bytes, self.cores);
                self.say(&text::bandwidth_begins(*kind, bytes, duration, spread))?;
                // A line a second.
                let windows = duration.as_secs().max(1) as u32;
                let result = self.bandwidth_of(&mut threads, *kind, bytes, duration, windows, true)?;
                self.say(&text::bandwidth(&result))?;
            }
        }
        Ok(())
    }

    fn bandwidth_tables(&mut self, kinds: &[Kind]) -> Result<(), Error> {
        let sizes = plan::payloads(self.options);
        let within = plan::row_time(self.options.duration, sizes.len());
        for kind in kinds {
            let mut threads = self.load_threads(*kind)?;
            self.say(&format!("\n{kind} bandwidth"))?;
            self.say(text::BANDWIDTH_HEADINGS)?;
            for bytes in &sizes {
                let result = self.bandwidth_of(&mut threads, *kind, *bytes, within, WINDOWS_A_ROW, false)?;
                self.say(&text::bandwidth_row(*bytes, &result))?;
            }
        }
        Ok(())
    }

    fn load_threads(&self, kind: Kind) -> Result<LoadThreads, Error> {
        // The number of threads does not depend on the payload.
        LoadThreads::start(&self.connector, kind, plan::spread(self.options, 1, self.cores).jobs)
    }

    fn bandwidth_of(
        &mut self,
        threads: &mut LoadThreads,
        kind: Kind,
        bytes: u64,
        duration: Duration,
        windows: u32,
        live: bool,
    ) -> Result<Bandwidth, Error> {
        let spread = plan::spread(self.options, bytes, self.cores);
        let (server_before, _) = self.control.usage()?;
        let (control, out, stop) = (&self.control, &mut *self.out, &self.connector.stop);
        let mut told = |operations, length| {
            if live {
                say(out, &text::live(rate(operations, length), bytes))?;
            }
            check(control, stop)
        };
        let mut client_before = Duration::ZERO;
        let test = Watched { bytes, depth: spread.depth, duration, windows, told: &mut told };
        let moved = threads.bandwidth(test, || client_before = usage::cpu())?;
        let client_cpu = usage::cpu().saturating_sub(client_before);
        let (server_after, _) = self.control.usage()?;
        let bandwidth = Bandwidth::of(&Counted {
            bytes,
            operations: moved.operations,
            elapsed: moved.elapsed,
            windows: moved.windows,
            client_cpu,
            server_cpu: server_after.saturating_sub(server_before),
        });
        self.report.bandwidth.push(BandwidthResult { kind, bytes, jobs: spread.jobs, depth: spread.depth, bandwidth });
        Ok(bandwidth)
    }

    fn check(&self) -> Result<(), Error> {
        check(&self.control, &self.connector.stop)
    }

    fn say(&mut self, line: &str) -> Result<(), Error> {
        say(self.out, line)
    }
}

/// Whether there is a reason to go on.
fn check(control: &Control, stop: &CancellationToken) -> Result<(), Error> {
    if stop.is_cancelled() {
        return Err(Error::Stopped);
    }
    control.check()
}
