//! Connections that wait for the next request.

use std::fmt;
use std::time::Duration;

use forebay_locks::Mutex;
use tokio::time::Instant;
use url::{Host, Url};

use super::connection::Connection;

/// How long one waits at most. Servers give idle connections 20 s to some minutes.
const IDLE: Duration = Duration::from_secs(60);

/// What a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) is_tls: bool,
    /// A name or an address; one of IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    /// That of a URL; `None` if it is not one of HTTP.
    pub(super) fn of(url: &Url) -> Option<Self> {
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = match url.host()? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        Some(Self { is_tls, host, port: url.port_or_known_default()? })
    }
}

struct Idle {
    target: Target,
    connection: Connection,
    since: Instant,
}

/// Connections that wait. They are looked at when one is put or taken: no task watches over them.
pub(super) struct Pool {
    /// The one that waits longest first.
    idle: Mutex<Vec<Idle>>,
    most: usize,
}

impl Pool {
    /// Keeps at most so many.
    pub(super) fn new(most: usize) -> Self {
        Self { idle: Mutex::default(), most }
    }

    /// The one that was used last, if it still leads to its server.
    pub(super) fn take(&self, target: &Target) -> Option<Connection> {
        loop {
            let Idle { mut connection, .. } = {
                let mut idle = self.idle.lock();
                forget_old(&mut idle);
                let at = idle.iter().rposition(|idle| idle.target == *target)?;
                idle.remove(at)
            };
            if connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps one that is between two answers.
    pub(super) fn put(&self, target: &Target, connection: Connection) {
        let mut idle = self.idle.lock();
        forget_old(&mut idle);
        idle.push(Idle { target: target.clone(), connection, since: Instant::now() });
        if idle.len() > self.most {
            idle.remove(0);
        }
    }

    /// Closes all that lead there.
    pub(super) fn forget(&self, target: &Target) {
        self.idle.lock().retain(|idle| idle.target != *target);
    }
}

fn forget_old(idle: &mut Vec<Idle>) {
    idle.retain(|idle| idle.since.elapsed() < IDLE);
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} idle)", self.idle.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt as _, DuplexStream};

    fn connection() -> (Connection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64);
        (Connection::new(Box::new(ours), Duration::from_secs(1)), theirs)
    }

    fn target(url: &str) -> Target {
        Target::of(&Url::parse(url).unwrap()).unwrap()
    }

    #[test]
    fn a_target_is_scheme_host_and_port() {
        let plain = target("http://h/a");
        assert_eq!((plain.is_tls, &*plain.host, plain.port), (false, "h", 80));
        assert_eq!((target("https://h").port, target("https://h:444").port), (443, 444));
        assert_eq!(target("http://[::1]:9000/").host, "::1");
        assert_ne!(plain, target("https://h/a"));
        assert!(Target::of(&Url::parse("ftp://h/").unwrap()).is_none());
    }

    #[tokio::test]
    async fn what_is_taken_is_open_quiet_and_of_that_target() {
        let (pool, here, there) = (Pool::new(8), target("http://here"), target("http://there"));
        let (closed, server) = connection();
        pool.put(&here, closed);
        let (noisy, mut noise) = connection();
        pool.put(&here, noisy);
        let (other, _other) = connection();
        pool.put(&there, other);
        drop(server);
        noise.write_all(b"HTTP/1.1 408 Timeout\r\n").await.unwrap();
        assert!(pool.take(&here).is_none());
        assert!(pool.take(&there).is_some() && pool.take(&there).is_none());
        let (forgotten, _open) = connection();
        pool.put(&here, forgotten);
        pool.forget(&here);
        assert!(pool.take(&here).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait_and_none_for_long() {
        let (pool, here) = (Pool::new(2), target("http://here"));
        let (connections, _servers): (Vec<_>, Vec<_>) = (0..3).map(|_| connection()).unzip();
        connections.into_iter().for_each(|connection| pool.put(&here, connection));
        assert_eq!(pool.idle.lock().len(), 2);
        tokio::time::advance(IDLE).await;
        assert!(pool.take(&here).is_none() && pool.idle.lock().is_empty());
    }
}
