//! `iperf3` over loopback: what the kernel's TCP gives to a program that only sends and throws away.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::rounds::Sample;

/// iperf3 takes no larger pieces.
const LARGEST_PIECE: u32 = 1 << 20;
/// What is sent where there is no second to send for.
const LITTLE: u64 = 64 << 20;
/// How long the server may take until it answers.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// A running `iperf3 -s`; it ends when dropped.
pub(crate) struct Iperf {
    child: Child,
    port: u16,
}

impl Iperf {
    /// Starts a server on a free port of the loopback interface.
    ///
    /// # Errors
    /// When iperf3 is missing or does not start.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // It cannot be given a socket, so the port is free only most probably.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("iperf3")
            .args(["--server", "--bind", "127.0.0.1", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run iperf3; `make setup` installs it")?;
        let mut server = Self { child, port };
        let deadline = Instant::now() + START_DEADLINE;
        while !is_listening(port)? {
            let ended = server.child.try_wait()?;
            ensure!(ended.is_none() && Instant::now() < deadline, "iperf3 does not listen on port {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Sends over `streams` connections in pieces of `piece` bytes. It counts time in seconds: for less than one, a set
    /// number of bytes is sent.
    ///
    /// # Errors
    /// When iperf3 fails.
    pub(crate) fn run(&self, streams: u32, piece: u32, time: Duration) -> anyhow::Result<Sample> {
        let until = match time.as_secs_f64().round() {
            0.0 => ["--bytes".to_owned(), LITTLE.to_string()],
            seconds => ["--time".to_owned(), seconds.to_string()],
        };
        let output = Command::new("iperf3")
            .args(["--client", "127.0.0.1", "--json", "--port", &self.port.to_string()])
            .args(["--parallel", &streams.to_string(), "--length", &piece.min(LARGEST_PIECE).to_string()])
            .args(until)
            .output()?;
        let json: Value = serde_json::from_slice(&output.stdout).context("iperf3's result")?;
        let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
        let rate = bits.with_context(|| format!("iperf3 failed: {}", json["error"]))? / 8.0;
        Ok(Sample { rate, operations: rate / f64::from(piece), ..Sample::default() })
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process listens there, without connecting: iperf3 would take that for a client.
fn is_listening(port: u16) -> anyhow::Result<bool> {
    const LISTEN: &str = "0A";
    let local = format!("0100007F:{port:04X}");
    let sockets = std::fs::read_to_string("/proc/net/tcp").context("cannot read /proc/net/tcp")?;
    Ok(sockets.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(1) == Some(local.as_str()) && fields.nth(1) == Some(LISTEN)
    }))
}
