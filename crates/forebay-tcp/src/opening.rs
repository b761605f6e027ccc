//! Opening a connection to a name that may have several addresses.
//!
//! They are tried one after the other. One that drops what is sent to it must not have all of the time, or none after it would be tried:
//! each has an equal share of what is left, as far as that is long enough for a host that is far away.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::Instant;

use crate::socket;

/// The least time that an address gets: a host that is there answers within it, wherever it is.
const SHARE: Duration = Duration::from_millis(250);

/// A connection to the first of the host's addresses that answers, or to the Unix socket that `peer` names. The caller waits no longer
/// than `within`.
pub(crate) async fn open(peer: &str, bind: Option<IpAddr>, within: Duration) -> io::Result<TcpStream> {
    if let Some(path) = forebay_private::socket_of(peer) {
        return socket::connect_unix(path).await;
    }
    let until = Instant::now() + within;
    let mut addresses: Vec<_> = lookup_host(peer).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(ErrorKind::NotFound, "its name has no address"));
    }
    addresses.retain(|address| bind.is_none_or(|bind| bind.is_ipv4() == address.is_ipv4()));
    if addresses.is_empty() {
        return Err(io::Error::new(ErrorKind::AddrNotAvailable, "it has no address of the family that we bind to"));
    }
    first(&addresses, until, |address| connect(address, bind)).await
}

async fn connect(address: SocketAddr, bind: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(bind) = bind {
        socket.bind((bind, 0).into())?;
    }
    socket.connect(address).await
}

/// What `connect` gives for the first of the addresses for which it succeeds, or the last error. The last of them is waited for as long
/// as the caller waits.
async fn first<T, F>(addresses: &[SocketAddr], until: Instant, connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut outcome = Err(io::Error::from(ErrorKind::NotFound));
    for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let attempt = connect(*address);
        outcome = if left == 1 {
            attempt.await
        } else {
            let time = until.saturating_duration_since(Instant::now());
            let share = (time / u32::try_from(left).unwrap_or(u32::MAX)).max(SHARE.min(time / 2));
            let silent = || io::Error::new(ErrorKind::TimedOut, format!("{address} did not answer within {share:?}"));
            tokio::time::timeout(share, attempt).await.unwrap_or_else(|_| Err(silent()))
        };
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(3);

    fn addresses(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|host| ([192, 0, 2, host], 1).into()).collect()
    }

    /// Which one is connected to where those before `answers` drop what is sent to them, and after how long.
    async fn connected(count: u8, answers: u8) -> Option<(SocketAddr, Duration)> {
        let (addresses, began) = (addresses(count), Instant::now());
        let connect = |address: SocketAddr| async move {
            match address.ip() {
                IpAddr::V4(ip) if ip.octets()[3] < answers => std::future::pending().await,
                _ => Ok(address),
            }
        };
        let first = tokio::time::timeout(WITHIN, first(&addresses, began + WITHIN, connect)).await;
        first.ok()?.ok().map(|address| (address, began.elapsed()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_drops_what_is_sent_to_it_keeps_no_other_from_being_tried() {
        let all = addresses(3);
        assert_eq!(connected(3, 1).await, Some((all[0], Duration::ZERO)));
        let (second, waited) = connected(2, 2).await.unwrap();
        assert!(second == all[1] && waited < WITHIN * 2 / 3, "{waited:?}");
        let (third, waited) = connected(3, 3).await.unwrap();
        assert!(third == all[2] && waited < WITHIN * 5 / 6, "{waited:?}");
        assert_eq!(connected(3, 4).await, None, "the last one has what is left");
        // A host that is far away answers, however many addresses its name has.
        assert!(connected(200, 2).await.is_some_and(|(_, waited)| waited >= SHARE));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_costs_no_time_and_the_last_error_is_told() {
        let began = Instant::now();
        let refused = |address: SocketAddr| async move { Err::<(), _>(io::Error::other(address.to_string())) };
        let error = first(&addresses(2), began + WITHIN, refused).await.unwrap_err();
        assert_eq!((error.to_string(), began.elapsed()), ("192.0.2.2:1".to_owned(), Duration::ZERO));
    }
}
