//! `ucx_perftest` between two processes: what UCX gives to a program that does nothing but send.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::rounds::Sample;

/// As Forebay sets them: with UCX's own, large messages over TCP are three times slower.
const SETTINGS: [(&str, &str); 2] = [("UCX_TCP_TX_SEG_SIZE", "256K"), ("UCX_TCP_RX_SEG_SIZE", "512K")];
/// Iterations that are run to find out how many fill the time, for each second of it; there are some in any case.
const PROBE: f64 = 100.0;
const MIN_PROBE: u64 = 20;
/// Iterations before those that count: as many, at most so many.
const MAX_WARM_UP: u64 = 100;
/// How long it is tried.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long clients are tried with one server.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Why it cannot be run here.
pub(crate) fn missing() -> Option<String> {
    let help = Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    help.err().map(|error| format!("ucx_perftest: {error}; `make setup` installs it"))
}

/// How both ends wait for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Asking UCX again and again: a core each.
    Poll,
    /// Asleep until there is something, as Forebay does.
    Sleep,
}

/// Round trips of active messages of `size` bytes, over UCX's `transports`.
///
/// # Errors
/// When ucx_perftest is missing or fails.
pub(crate) fn round_trips(transports: &str, size: u32, wait: Wait, time: Duration) -> anyhow::Result<Sample> {
    let mode = if wait == Wait::Poll { "poll" } else { "sleep" };
    let arguments = ["-t", "ucp_am_lat", "-E", mode];
    let line = timed(transports, &arguments, size, time)?;
    // It counts each direction.
    Ok(Sample { operations: line.rate / 2.0, p50: line.average * 2.0, ..Sample::default() })
}

/// Active messages of `size` bytes in one direction, as many at once as it takes.
///
/// # Errors
/// As for [`round_trips`].
pub(crate) fn bandwidth(transports: &str, size: u32, time: Duration) -> anyhow::Result<Sample> {
    let line = timed(transports, &["-t", "ucp_am_bw"], size, time)?;
    Ok(Sample { rate: line.rate * f64::from(size), operations: line.rate, ..Sample::default() })
}

/// What it prints of a run.
struct Line {
    /// Microseconds of one message.
    average: f64,
    /// Messages a second.
    rate: f64,
}

/// A run that takes about `time`.
fn timed(transports: &str, arguments: &[&str], size: u32, time: Duration) -> anyhow::Result<Line> {
    let few = MIN_PROBE.max((PROBE * time.as_secs_f64()) as u64);
    let probe = run(transports, arguments, size, few)?;
    let iterations = (probe.rate * time.as_secs_f64()) as u64;
    if iterations <= few {
        // Those took as long already.
        return Ok(probe);
    }
    run(transports, arguments, size, iterations.min(10_000_000))
}

fn run(transports: &str, arguments: &[&str], size: u32, iterations: u64) -> anyhow::Result<Line> {
    let started = Instant::now();
    let mut said = String::new();
    // Its server ends with the first client, also with one that it did not understand, and its port is free only most probably.
    while started.elapsed() < DEADLINE {
        match attempt(transports, arguments, size, iterations)? {
            Ok(line) => return Ok(line),
            Err(output) => said = output,
        }
    }
    bail!("ucx_perftest failed: {said}")
}

/// One server, and clients until one has measured something; what the last one said if it ends without.
fn attempt(transports: &str, arguments: &[&str], size: u32, iterations: u64) -> anyhow::Result<Result<Line, String>> {
    // It cannot be given a socket.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let perftest = || {
        let mut command = Command::new("ucx_perftest");
        command.envs(SETTINGS).env("UCX_TLS", transports).args(["-p", &port]).stdin(Stdio::null());
        command
    };
    let server = perftest().stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = Server(server.context("cannot run ucx_perftest; `make setup` installs it")?);
    let (size, warm_up) = (size.to_string(), iterations.min(MAX_WARM_UP).to_string());
    let iterations = iterations.to_string();
    let started = Instant::now();
    loop {
        let output = perftest()
            .arg("127.0.0.1")
            .args(arguments)
            .args(["-s", &size, "-n", &iterations, "-w", &warm_up, "-f", "-v"])
            .output()?;
        // The header, and one line: iterations, percentile, average and overall latency, bandwidth and message rate.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().last().unwrap_or_default();
        let cells: Vec<f64> = last.split(',').flat_map(|cell| cell.trim().parse()).collect();
        if let [_, _, _, average, _, _, _, rate] = cells[..] {
            return Ok(Ok(Line { average, rate }));
        }
        // Refused, before the server listens.
        if server.0.try_wait()?.is_some() || started.elapsed() > ATTEMPT {
            return Ok(Err(format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends when dropped, if it has not ended with its client.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
