//! A relay in front of a worker that has answers come later, as if worker, card or network had become slow: each byte comes as much
//! later, and nothing is slower otherwise.
//!
//! It copies every byte twice more, on the processors that are measured. So only mounts whose worker is to be late read through one.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Bytes that are taken at once.
const CHUNK: usize = 64 << 10;
/// Chunks that a connection has held back at most: then the worker waits.
const MAX_HELD: usize = 1024;

/// What is not to go on before then.
type Held = (Instant, Vec<u8>);

/// A relay. Its connections end with it.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    /// How much later an answer comes, in µs.
    delay: AtomicU64,
    has_ended: AtomicBool,
}

impl Relay {
    /// One at a free port of this machine, that has what comes from `target` pass at once.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a relay cannot listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { target, delay: AtomicU64::new(0), has_ended: AtomicBool::new(false) });
        let accepts = Arc::clone(&shared);
        let accepting = std::thread::Builder::new().name("relay".to_owned()).spawn(move || accept(&listener, &accepts));
        Ok(Self { address, shared, accepting: Some(accepting.context("cannot start a thread")?) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers come so much later from now on. What is held back already comes when it was to come.
    pub(crate) fn hold(&self, delay: Duration) {
        self.shared.delay.store(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        // It wakes the thread.
        let is_woken = TcpStream::connect(self.address).is_ok();
        if let Some(accepting) = self.accepting.take().filter(|_| is_woken) {
            let _ = accepting.join();
        }
    }
}

/// Until the relay has ended, and with it all connections.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections = Vec::new();
    for near in listener.incoming() {
        if shared.has_ended.load(Ordering::Relaxed) {
            break;
        }
        // Of a worker that does not listen, closing says so.
        match near.and_then(|near| Connection::open(near, shared)) {
            Ok(connection) => connections.push(connection),
            Err(error) => eprintln!("a relay to {} cannot connect: {error}", shared.target),
        }
    }
}

/// The two ends of a connection, and the threads between them.
struct Connection {
    ends: [TcpStream; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Connection {
    fn open(near: TcpStream, shared: &Arc<Shared>) -> io::Result<Self> {
        let far = TcpStream::connect(shared.target)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (held, due) = sync_channel(MAX_HELD);
        let (mut asks, mut asked) = (near.try_clone()?, far.try_clone()?);
        let (answers, answered, shared) = (far.try_clone()?, near.try_clone()?, Arc::clone(shared));
        let mut connection = Self { ends: [near, far], threads: Vec::new() };
        connection.spawn(move || {
            // Whatever ends one direction ends it at its other end, too.
            let _ = io::copy(&mut asks, &mut asked);
            let _ = asked.shutdown(Shutdown::Write);
        })?;
        connection.spawn(move || {
            let _ = take(&answers, &shared, &held);
        })?;
        connection.spawn(move || {
            let _ = give(due, &answered);
            let _ = answered.shutdown(Shutdown::Write);
        })?;
        Ok(connection)
    }

    fn spawn(&mut self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name("relay".to_owned()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for end in &self.ends {
            // It may have ended before.
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes what a worker sends, until it has ended or nobody wants it.
fn take(mut from: &TcpStream, shared: &Shared, held: &SyncSender<Held>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer)?;
        let due = Instant::now() + Duration::from_micros(shared.delay.load(Ordering::Relaxed));
        if count == 0 || held.send((due, buffer[..count].to_vec())).is_err() {
            return Ok(());
        }
    }
}

/// Passes it on when it is due.
fn give(held: Receiver<Held>, mut to: &TcpStream) -> io::Result<()> {
    for (due, bytes) in held {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_later_and_whole_and_connections_end_with_the_relay() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = server.local_addr().unwrap();
        let echo = std::thread::spawn(move || {
            let (mut from, _) = server.accept().unwrap();
            let mut to = from.try_clone().unwrap();
            io::copy(&mut from, &mut to)
        });
        let relay = Relay::start(target).unwrap();
        let mut client = TcpStream::connect(relay.address()).unwrap();
        let mut round = |bytes: &[u8]| {
            let began = Instant::now();
            client.write_all(bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, bytes);
            began.elapsed()
        };
        round(b"at once");
        let delay = Duration::from_millis(300);
        relay.hold(delay);
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        let took = round(&bytes);
        assert!(took >= delay, "{took:?}");
        relay.hold(Duration::ZERO);
        round(b"at once again");
        drop(relay);
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        // It has ended, in one way or the other.
        let _ = echo.join().unwrap();
    }
}
