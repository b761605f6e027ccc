//! Zero-copy sends in flight: payloads that the kernel sends from where they lie. The shell around [`crate::zero_copy`], and what
//! a connection does before it may end.
//!
//! The kernel puts completions into the socket's queue of errors, and epoll tells of an error. mio takes an error of a socket
//! that takes bytes for the end of its sending side, tokio believes that for good, and a loop that waits until it may send would
//! not wait any more. So from the first such send on, an epoll descriptor of its own watches the sending side, of which tokio learns
//! only that there is news, and sends do not ask tokio. Receiving stays as it was: an error does not make a socket
//! readable. A connection without such sends has none of this, and not one system call more.
//!
//! The queue ends with its socket, so a connection that ends stays until the kernel is done with all zero-copy sends. In good order
//! that is when the peer has acknowledged the last byte. Otherwise it is disconnected, which has the kernel drop its own queue, and
//! send a reset unless both ends were closing already; closing without lingering would, too, but the completions would be lost with
//! it. What may remain then are packets that wait in a device: within moments they are gone, or when the device is reset that is
//! stuck, and if they are not, their memory is never used again.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_memory::Spans;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::channel::Channel;
use crate::socket;
use crate::zero_copy::Sends;
use forebay_types::TcpZeroCopy;

/// How long a device may hold packets of a connection that was reset. The queues of one are empty within milliseconds; one that is
/// stuck or paused is reset by its driver within some seconds.
const RESET_WITHIN: Duration = Duration::from_secs(30);
/// How much longer a server that stops waits for either.
const STOPS_WITHIN: Duration = Duration::from_secs(1);

/// What became of the payloads that were to be sent from where they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroCopyCounts {
    /// Bytes of which no copy was made.
    pub bytes: u64,
    /// Sends of which the kernel made a copy after all.
    pub copied: u64,
    /// Bytes that the kernel did not let go of when their connection ended: their memory is lost until the process ends, and that of
    /// the blocks that they are of.
    pub lost: u64,
}

/// Where all connections of a server count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    bytes: AtomicU64,
    copied: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    pub(crate) fn now(&self) -> ZeroCopyCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ZeroCopyCounts { bytes: get(&self.bytes), copied: get(&self.copied), lost: get(&self.lost) }
    }
}

/// The zero-copy sends of one connection that are in flight. Dropping it resets the connection if the kernel is not done with all
/// of them.
#[derive(Debug)]
pub(crate) struct ZeroCopySends {
    sends: Sends<Spans>,
    /// From the first payload on that was to be sent without a copy.
    watch: Option<Watch>,
    counts: Arc<Counts>,
    /// When the kernel was last done with some, or given the first.
    moved_at: Instant,
}

/// The sending side of a socket, which tokio does not know.
#[derive(Debug)]
struct Watch {
    /// Not an encrypted one.
    channel: Arc<Channel>,
    epoll: AsyncFd<OwnedFd>,
    /// The socket took less than there was, and has not told since that it takes more.
    full: bool,
}

impl ZeroCopySends {
    /// Nothing yet. `stays_here` says that the peer is known to be on this host.
    pub(crate) fn new(choice: TcpZeroCopy, stays_here: bool, counts: Arc<Counts>) -> Self {
        Self { sends: Sends::new(choice, stays_here), watch: None, counts, moved_at: Instant::now() }
    }

    /// Whether `length` bytes of a payload are to be sent without a copy, were they next.
    pub(crate) fn takes(&self, length: usize) -> bool {
        self.sends.takes(length)
    }

    /// How many sends the kernel is not done with. Each holds the payload of a reply.
    pub(crate) fn outstanding(&self) -> usize {
        self.sends.outstanding()
    }

    /// Since when the kernel was done with none of those that it has.
    pub(crate) fn stands_since(&self) -> Option<Instant> {
        (self.outstanding() > 0).then_some(self.moved_at)
    }

    /// Whether tokio may not be asked whether the socket takes bytes.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether the socket is known to take nothing. Of one that is not watched, tokio knows it.
    pub(crate) fn is_full(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.full)
    }

    /// The socket takes nothing now.
    pub(crate) fn filled(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.full = true;
        }
    }

    /// Sends `slices`, without waiting: from where they lie if they are those of `payload`. `more` says that the rest of a message
    /// follows at once.
    pub(crate) fn send(
        &mut self,
        channel: &Arc<Channel>,
        slices: &[IoSlice<'_>],
        more: bool,
        payload: Option<&Spans>,
    ) -> io::Result<usize> {
        if let Some(payload) = payload
            && self.watch(channel)
        {
            match socket::send_unasked(channel.stream(), slices, socket::flags(more) | socket::zero_copy()) {
                Ok(taken) => {
                    if self.outstanding() == 0 {
                        self.moved_at = Instant::now();
                    }
                    self.sends.sent(taken, payload.clone());
                    return self.took(taken, slices);
                }
                Err(Errno::NOBUFS) => {
                    if self.outstanding() == 0 {
                        tracing::debug!(
                            "no memory is left to lock (`ulimit -l`): a connection's payloads are copied when they are sent"
                        );
                    }
                    self.sends.refused();
                }
                Err(error @ (Errno::AGAIN | Errno::INTR)) => return Err(error.into()),
                Err(error) => {
                    // Nothing was sent. If it is the socket's own error, the copy meets it, too.
                    tracing::debug!(%error, "a connection's payloads are copied when they are sent");
                    self.sends.give_up();
                }
            }
        }
        if !self.is_watched() {
            return channel.send(slices, more);
        }
        let taken = socket::send_unasked(channel.stream(), slices, socket::flags(more))?;
        self.took(taken, slices)
    }

    fn took(&mut self, taken: usize, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if taken < slices.iter().map(|slice| slice.len()).sum() {
            self.filled();
        }
        Ok(taken)
    }

    /// Watches the sending side, if that can be had.
    fn watch(&mut self, channel: &Arc<Channel>) -> bool {
        if self.watch.is_some() {
            return true;
        }
        let stream = channel.stream();
        let watch = socket::allow_zero_copy(stream)
            .and_then(|()| socket::watch_sending(stream))
            // SAFETY: an owned descriptor is open for as long as it lives, and stays the same.
            .and_then(|epoll| Ok(unsafe { AsyncFd::register_with_interest(epoll, Interest::READABLE) }?));
        match watch {
            Ok(epoll) => self.watch = Some(Watch { channel: Arc::clone(channel), epoll, full: false }),
            Err(error) => {
                tracing::debug!(%error, "a connection's payloads are copied when they are sent");
                self.sends.give_up();
            }
        }
        self.watch.is_some()
    }

    /// Waits until `stream` may take more than it did, or there are completions, for [`ZeroCopySends::look`].
    pub(crate) async fn ready(&self, stream: &TcpStream) -> io::Result<()> {
        match &self.watch {
            Some(watch) => watch.epoll.readable().await.map(drop),
            None => stream.writable().await,
        }
    }

    /// Takes in what has happened. No system call unless something has.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let mut news = Ok(socket::News::default());
        // For tokio it has nothing more to tell until it tells of something new.
        let _: io::Result<()> = watch.epoll.try_io(Interest::READABLE, |epoll| {
            news = socket::news(epoll.as_fd());
            Err(ErrorKind::WouldBlock.into())
        });
        let news = news?;
        watch.full &= !news.room;
        if news.errors { self.collect() } else { Ok(()) }
    }

    /// Takes in the completions that are here.
    fn collect(&mut self) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        while self.sends.outstanding() > 0
            && let Some(completion) = socket::completion(watch.channel.stream())?
        {
            let released = self.sends.completed(completion);
            self.moved_at = Instant::now();
            match completion.copied {
                true => self.counts.copied.fetch_add(released.sends as u64, Ordering::Relaxed),
                false => self.counts.bytes.fetch_add(released.bytes as u64, Ordering::Relaxed),
            };
        }
        Ok(())
    }

    /// Waits until the kernel is done with everything: in good order for as long as `patience`, if that is not zero; then after a
    /// reset. From `stop` on neither takes long.
    pub(crate) async fn settle(&mut self, patience: Duration, stop: &CancellationToken) {
        if self.outstanding() == 0 {
            return;
        }
        let Some(channel) = self.watch.as_ref().map(|watch| Arc::clone(&watch.channel)) else { return };
        let stops = async || {
            stop.cancelled().await;
            tokio::time::sleep(STOPS_WITHIN).await;
        };
        if !patience.is_zero() {
            // A socket that is not connected any more has no order to keep.
            let _ = socket::finish(channel.stream());
            tokio::select! {
                () = self.returned() => {}
                () = tokio::time::sleep(patience) => {}
                () = stops() => {}
            }
        }
        if self.outstanding() > 0 {
            // If that fails, what is not done with is lost below.
            let _ = socket::reset(channel.stream());
            tokio::select! {
                () = self.returned() => {}
                () = tokio::time::sleep(RESET_WITHIN) => {}
                () = stops() => {}
            }
        }
    }

    /// Waits until the kernel is done with everything, or cannot be asked.
    async fn returned(&mut self) {
        while self.outstanding() > 0 {
            let Some(watch) = &self.watch else { return };
            let told = watch.epoll.readable().await.map(drop);
            if told.and_then(|()| self.look()).is_err() {
                return;
            }
        }
    }
}

impl Drop for ZeroCopySends {
    fn drop(&mut self) {
        let Some(watch) = &self.watch else { return };
        if self.sends.outstanding() == 0 {
            return;
        }
        let peer = watch.channel.stream().peer_addr().ok();
        let _ = socket::reset(watch.channel.stream());
        let _ = self.collect();
        let lost = self.sends.abandon();
        if lost.sends > 0 {
            self.counts.lost.fetch_add(lost.bytes as u64, Ordering::Relaxed);
            tracing::warn!(
                ?peer,
                bytes = lost.bytes,
                "the kernel still sends from memory of a connection that ended; it is not used again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zero_copy::MIN_LENGTH;
    use forebay_memory::{Pool, PoolOptions};
    use forebay_types::ByteSize;
    use smallvec::smallvec;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpSocket};

    const PATIENCE: Duration = Duration::from_secs(20);
    /// What nothing happens in.
    const MOMENT: Duration = Duration::from_millis(100);

    fn pool() -> Pool {
        Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap()
    }

    /// The server's end, which holds a few hundred KiB, and the client's, which holds next to nothing.
    async fn connect() -> (Arc<Channel>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(4096).unwrap();
        let (client, server) = tokio::join!(client.connect(listener.local_addr().unwrap()), listener.accept());
        let server = server.unwrap().0;
        socket2::SockRef::from(&server).set_send_buffer_size(400 << 10).unwrap();
        (Arc::new(Channel::new(server, None)), client.unwrap())
    }

    fn sends(choice: TcpZeroCopy) -> (ZeroCopySends, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (ZeroCopySends::new(choice, false, Arc::clone(&counts)), counts)
    }

    /// Sends a payload of so many bytes, which only the kernel holds then.
    fn send(sends: &mut ZeroCopySends, channel: &Arc<Channel>, pool: &Pool, length: usize) -> io::Result<usize> {
        assert!(sends.takes(length));
        let mut span = pool.try_alloc(length).unwrap();
        span.fill(7);
        let payload: Spans = smallvec![span.freeze()];
        sends.send(channel, &[IoSlice::new(&payload[0])], false, Some(&payload))
    }

    async fn all_returned(sends: &mut ZeroCopySends) {
        tokio::time::timeout(PATIENCE, sends.returned()).await.unwrap();
    }

    /// Sends until the socket takes no more.
    async fn fill(sends: &mut ZeroCopySends, channel: &Arc<Channel>, pool: &Pool) -> usize {
        let mut total = 0;
        while !sends.is_full() {
            total += send(sends, channel, pool, 4 * MIN_LENGTH).unwrap();
        }
        total
    }

    #[tokio::test]
    async fn a_payload_is_held_until_the_kernel_is_done_with_it_which_is_later_than_it_was_sent() {
        let (pool, (channel, mut client)) = (pool(), connect().await);
        let (mut sends, counts) = sends(TcpZeroCopy::On);
        let length = 5 * MIN_LENGTH;
        assert_eq!(send(&mut sends, &channel, &pool, length).unwrap(), length);
        assert!(tokio::time::timeout(MOMENT, sends.returned()).await.is_err());
        assert!(sends.outstanding() == 1 && pool.used() > 0 && !sends.is_full());
        let mut received = vec![0; length];
        client.read_exact(&mut received).await.unwrap();
        all_returned(&mut sends).await;
        assert!(received.iter().all(|byte| *byte == 7));
        assert_eq!(pool.used(), 0);
        assert_eq!(counts.now(), ZeroCopyCounts { bytes: 0, copied: 1, lost: 0 });
    }

    #[tokio::test]
    async fn auto_ends_with_a_probe_that_was_copied_as_it_is_on_this_host() {
        let (pool, (channel, mut client)) = (pool(), connect().await);
        let (mut sends, counts) = sends(TcpZeroCopy::Auto);
        send(&mut sends, &channel, &pool, MIN_LENGTH).unwrap();
        assert!(!sends.takes(1 << 20), "the probe is under way");
        client.read_exact(&mut vec![0; MIN_LENGTH]).await.unwrap();
        all_returned(&mut sends).await;
        assert!(!sends.takes(1 << 20));
        assert_eq!(counts.now().copied, 1);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_its_peer_waits() {
        let (pool, (channel, mut client)) = (pool(), connect().await);
        let (mut sends, _counts) = sends(TcpZeroCopy::On);
        // Epoll has told of an error, which tokio takes for the end of the sending side.
        send(&mut sends, &channel, &pool, MIN_LENGTH).unwrap();
        client.read_exact(&mut vec![0; MIN_LENGTH]).await.unwrap();
        all_returned(&mut sends).await;
        let total = fill(&mut sends, &channel, &pool).await;
        let mut woken = 0;
        while tokio::time::timeout(MOMENT, sends.ready(channel.stream())).await.is_ok() {
            sends.look().unwrap();
            woken += 1;
            assert!(woken < 100, "it spins");
        }
        client.read_exact(&mut vec![0; total]).await.unwrap();
        all_returned(&mut sends).await;
        assert!(!sends.is_full() && pool.used() == 0);
    }

    #[tokio::test]
    async fn a_reset_has_the_kernel_let_go_of_what_a_peer_does_not_take() {
        let (pool, (channel, mut client)) = (pool(), connect().await);
        let (mut sends, counts) = sends(TcpZeroCopy::On);
        fill(&mut sends, &channel, &pool).await;
        assert!(sends.outstanding() > 0);
        tokio::time::timeout(PATIENCE, sends.settle(MOMENT, &CancellationToken::new())).await.unwrap();
        assert_eq!((sends.outstanding(), pool.used(), counts.now().lost), (0, 0, 0));
        let read = client.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_connection_that_is_dropped_lets_go_of_nothing_that_the_kernel_may_send() {
        let (pool, (channel, mut client)) = (pool(), connect().await);
        let (mut sends, counts) = sends(TcpZeroCopy::On);
        fill(&mut sends, &channel, &pool).await;
        let held = pool.used();
        drop(sends);
        let lost = counts.now().lost > 0;
        assert_eq!(pool.used() > 0, lost, "of {held}");
        let read = client.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
