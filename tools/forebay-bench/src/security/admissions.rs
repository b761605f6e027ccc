//! Many connections at once to one worker, as when a job starts on all nodes: how long until each of them has been
//! admitted and has had one answer.
//!
//! They come as those of a cluster do: four of each client, which has an address and a memory of sessions of its own.
//! Of one address a worker lets no more than some hundreds come at once, whoever they are; all of 127.0.0.0/8 are this
//! machine's.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::ensure;
use forebay_memory::Pool;
use forebay_tcp::{ClientOptions, TcpTransport};
use forebay_transport::Transport as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use crate::progress::Progress;
use crate::report::{Report, Table, number, seconds, with_spread};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::settings::Settings;
use crate::transport::call;

use super::cluster::Cluster;
use super::link::Link;

/// Clients that come at once; a tenth of them in a quick run.
const CLIENTS: u32 = 200;
/// Connections of each: as many as a mount opens. TLS remembers twice as many sessions with one worker.
const PER_CLIENT: u32 = 4;
/// How long all of them may take, in seconds.
const TARGET: f64 = 2.0;
/// What each reads.
const SIZE: u32 = 4 << 10;
/// How long a connection may take to be made, and the worker to see that all have left: longer than any does.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Files that this process has open besides the connections, at most.
const OTHER_FILES: u64 = 256;
/// Files that a worker may have opened for something else meanwhile, as a connection to its origin.
const SLACK: usize = 16;

/// Who is asked, and with what.
pub(crate) struct Admissions<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) pool: &'a Pool,
    pub(crate) cluster: &'a Cluster,
    /// The worker that demands nothing.
    pub(crate) plain: &'a Link,
    /// The one that encrypts.
    pub(crate) encrypted: &'a Link,
}

impl Admissions<'_> {
    /// Measures them; nothing where this process may not open so many connections.
    ///
    /// # Errors
    /// When a connection is not admitted, or gets no answer.
    pub(crate) fn measure(
        &self,
        settings: Settings,
        progress: &Progress,
        report: &mut Report,
    ) -> anyhow::Result<Vec<Outcome>> {
        let clients = if settings.quick { CLIENTS / 10 } else { CLIENTS };
        if let Err(limit) = allow_open_files(u64::from(clients * PER_CLIENT) + OTHER_FILES) {
            progress.say(&format!("skipped: admissions: {limit}"));
            return Ok(Vec::new());
        }
        let cases = vec![
            Case::new("connections, plain", || self.come(self.plain, clients)),
            Case::new("connections, full handshakes", || self.come(self.encrypted, clients)),
            Case::new("connections, resumed", || self.come_again(self.encrypted, clients)),
        ];
        let outcomes = rounds::measure("admissions", cases, settings.repeat, progress, || ())?;
        tabulate(clients * PER_CLIENT, &outcomes, report);
        Ok(outcomes)
    }

    /// Connections of clients that the worker has never seen.
    fn come(&self, link: &Link, clients: u32) -> anyhow::Result<Sample> {
        self.wave(link, &self.clients(link, clients)?)
    }

    /// The same when each client has a ticket for each of its connections, which it got when it was there before.
    fn come_again(&self, link: &Link, clients: u32) -> anyhow::Result<Sample> {
        let clients = self.clients(link, clients)?;
        self.wave(link, &clients)?;
        self.wave(link, &clients)
    }

    /// Clients, each with sessions of its own: what is cloned from one of these shares them.
    fn clients(&self, link: &Link, count: u32) -> anyhow::Result<Vec<ClientOptions>> {
        let client = |number| {
            let (bind, options) = (Some(address(number)), self.cluster.client(link.level())?);
            anyhow::Ok(ClientOptions { connections: 1, connect_timeout: PATIENCE, bind, ..options })
        };
        (0..count).map(client).collect()
    }

    /// All connections of `clients` at once, each with one read; gone again when this returns.
    fn wave(&self, link: &Link, clients: &[ClientOptions]) -> anyhow::Result<Sample> {
        let (address, block) = (link.address(), link.blocks().of_read(0));
        let connection = |options: &ClientOptions| TcpTransport::new(address.as_str(), options.clone());
        let connections = clients.iter().flat_map(|options| (0..PER_CLIENT).map(move |_| options)).map(connection);
        let connections: Vec<TcpTransport> = connections.collect();
        let open = open_files(link.pid())?;
        let (before, began) = (link.used()?, Instant::now());
        let answers = connections.iter().map(|connection| call(connection, self.pool, block, SIZE));
        let answers = self.runtime.block_on(futures::future::try_join_all(answers));
        let (took, after) = (began.elapsed().as_secs_f64(), link.used()?);
        self.runtime.block_on(futures::future::join_all(connections.iter().map(|connection| connection.close())));
        // Their buffers are there for the next ones.
        drop(answers?);
        wait_until_gone(link.pid(), open)?;
        Ok(Sample {
            operations: connections.len() as f64 / took,
            cpu: after[0] - before[0],
            reader: after[1] - before[1],
            extra: took,
            ..Sample::default()
        })
    }
}

/// The address of a client.
fn address(client: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + client))
}

/// Files that a process has open.
fn open_files(pid: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Waits until a worker has as few files open as before the connections came.
fn wait_until_gone(pid: u32, before: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let open = open_files(pid)?;
        if open <= before + SLACK {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the worker has {open} files open, and {before} before connections came");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Lets this process have so many files open.
fn allow_open_files(count: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |of: Option<u64>| of.is_none_or(|of| of >= count);
    if is_enough(limit.current) {
        return Ok(());
    }
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(is_enough(limit.maximum), "a process may have {most} files open, not {count}; raise `ulimit -Hn`");
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit })?)
}

fn tabulate(count: u32, outcomes: &[Outcome], report: &mut Report) {
    let [plain, full, resumed] = outcomes else { return };
    let text = format!(
        "{count} connections at once to one worker, {PER_CLIENT} of each client, each with one read of 4 KiB: until \
         all were admitted and had their answer. Handshakes with `encrypt`; those of `auth` are the same. `resumed`: \
         by tickets from a connection before. Clients and worker share the processors; CPU is what each end used in all."
    );
    let header = ["handshakes", "s", "connections/s", "worker CPU s", "client CPU s"];
    let mut table = Table::new("Admissions", text, &header);
    let named = [("none (`security.mode=off`)", plain), ("full", full), ("resumed", resumed)];
    for (name, outcome) in named {
        let took = |sample: &Sample| sample.extra;
        let each_second = number(outcome.median(|sample| sample.operations), 0, "");
        let used = [outcome.median(|sample| sample.cpu), outcome.median(|sample| sample.reader)].map(seconds);
        let took = with_spread(outcome.median(took), 2, outcome.spread(took));
        table.row([name.to_owned(), took, each_second].into_iter().chain(used).collect());
    }
    report.table(table);
    for (name, outcome) in [("full", full), ("resumed", resumed)] {
        let what = format!("{count} connections at once, {name} handshakes");
        report.seconds_target(&what, TARGET, outcome.median(|sample| sample.extra));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_an_address_of_this_machine() {
        let mut all: Vec<IpAddr> = (0..1000).map(address).collect();
        assert!(all.iter().all(IpAddr::is_loopback));
        all.dedup();
        assert_eq!(all.len(), 1000);
    }

    #[test]
    fn a_limit_that_is_high_enough_stays_and_one_that_cannot_be_reached_is_told() {
        let before = getrlimit(Resource::Nofile);
        allow_open_files(8).unwrap();
        let after = getrlimit(Resource::Nofile);
        assert_eq!((after.current, after.maximum), (before.current, before.maximum));
        if before.maximum.is_some() {
            let refused = allow_open_files(u64::MAX).unwrap_err().to_string();
            assert!(refused.contains("ulimit -Hn"), "{refused}");
        }
    }
}
