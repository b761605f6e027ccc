//! The worker of another host: does it let us in, and can each of its network cards be connected to as a mount does.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{PeerListener, PeerWorker, Rdma, micros};
use forebay_memory::{Pool, PoolOptions};
use forebay_rdma::{ClientSecurity, Driven, Provider};
use forebay_tcp::TcpTransport;
use forebay_transport::message::{PathAddress, PathsReply, VERBS_VERSION};
use forebay_transport::{Op, Request, Transport};
use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;

use forebay_node::block_size::block_size;
use forebay_node::rdma as configured;
use forebay_node::rdma::cards::{Card, Machine};
use forebay_node::security::Security;

/// How long a question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long an I/O thread may take to end.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// Questions of which the shortest counts.
const PINGS: u32 = 5;
/// Least memory that an I/O thread has; nothing of it is used.
const POOL: ByteSize = ByteSize::mib(8);

/// Asks the worker at `address`, from `from` if that is said.
pub(super) async fn ask(config: &Config, rdma: &Rdma, address: SocketAddr, from: Option<IpAddr>) -> PeerWorker {
    let security = match Security::of_client(config, false) {
        Ok(security) => security,
        Err(error) => return PeerWorker { error: Some(words(&error)), ..PeerWorker::default() },
    };
    let options = forebay_tcp::ClientOptions {
        connections: 1,
        bind: from,
        security: security.as_deref().and_then(Security::client),
        ..forebay_tcp::ClientOptions::new(config.cluster_name.as_str(), block_size(config))
    };
    let proves = options.security.is_some();
    let link: Arc<dyn Transport> = Arc::new(TcpTransport::new(address.to_string(), options));
    let worker = async {
        // The first one connects, and is let in or refused.
        ping(&*link).await?;
        let ping_us = shortest(&*link).await?;
        let reply = link.call(Request::on_path(Op::Paths, Bytes::new(), ANSWER_WITHIN), None).await?;
        Ok::<_, anyhow::Error>((ping_us, PathsReply::decode(&reply.body)?))
    };
    let answer = match worker.await {
        Ok((ping_us, offered)) => {
            // This machine's cards are tried even if the configuration does not ask for them: the question is whether
            // they would work.
            let tries = configured::is_wanted_for_data(config) || !rdma.devices.is_empty();
            let security = proves.then(|| ClientSecurity::over(Arc::clone(&link)));
            let listeners = connect_all(config, address, &offered, tries, security.as_ref()).await;
            let verbs = offered.verbs.as_ref().map(|verbs| verbs.version);
            PeerWorker { ping_us: Some(ping_us), ucx: offered.ucx, verbs, listeners, error: None }
        }
        Err(error) => PeerWorker { error: Some(words(&error)), ..PeerWorker::default() },
    };
    link.close().await;
    if let Some(security) = security {
        security.close().await;
    }
    answer
}

/// The error and its causes; those of links say in their own words what their cause does.
fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    text
}

async fn ping(link: &dyn Transport) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    link.call(Request::on_path(Op::Ping, Bytes::new(), ANSWER_WITHIN), None).await?;
    Ok(begun.elapsed())
}

async fn shortest(link: &dyn Transport) -> anyhow::Result<u64> {
    let mut shortest = ANSWER_WITHIN;
    for _ in 0..PINGS {
        shortest = shortest.min(ping(link).await?);
    }
    Ok(micros(shortest))
}

/// Connects to every listener for data, card by card and by the library that a mount would take, if it is to be tried. A mount whose
/// verbs do not connect does not go by UCX, so that is not tried then, either.
async fn connect_all(
    config: &Config,
    worker: SocketAddr,
    offered: &PathsReply,
    tries: bool,
    security: Option<&ClientSecurity>,
) -> Vec<PeerListener> {
    let known = offered.verbs.as_ref().filter(|verbs| verbs.version == VERBS_VERSION);
    let by_verbs = known.map_or_else(Vec::new, |verbs| verbs.data.clone());
    let takes = |provider| tries && configured::takes(config, provider);
    let (may_take_verbs, may_take_ucx) =
        (takes(Provider::Verbs) && !by_verbs.is_empty(), takes(Provider::Ucx) && !offered.data.is_empty());
    let tries_verbs = may_take_verbs && (!may_take_ucx || starts(config, Provider::Verbs).await);
    let tries_ucx = may_take_ucx && !tries_verbs;
    let mut listeners = connect_by(Provider::Verbs, config, worker, &by_verbs, tries_verbs, security).await;
    listeners.extend(connect_by(Provider::Ucx, config, worker, &offered.data, tries_ucx, security).await);
    listeners
}

/// Whether an I/O thread by `provider` starts on each of this machine's cards, without which a mount does not take it.
async fn starts(config: &Config, provider: Provider) -> bool {
    let config = config.clone();
    let started = tokio::task::spawn_blocking(move || -> anyhow::Result<Vec<Arc<dyn Driven>>> {
        let cards = Machine::look(&Root::default())?.data_cards_by(&config, provider)?;
        cards.into_iter().map(|card| io_thread(&config, card)).collect()
    });
    match started.await {
        Ok(Ok(io_threads)) => {
            let close = futures::future::join_all(io_threads.iter().map(|io_thread| io_thread.close()));
            // What does not end in time ends with the process.
            let _ = tokio::time::timeout(CLOSE_WITHIN, close).await;
            true
        }
        Ok(Err(error)) => {
            tracing::debug!(%provider, %error, "no I/O threads");
            false
        }
        Err(_) => false,
    }
}

/// An I/O thread on `card`, with nothing registered.
fn io_thread(config: &Config, card: Card) -> anyhow::Result<Arc<dyn Driven>> {
    let pool = Pool::new(PoolOptions::fixed(POOL))?;
    let name = format!("{} doctor", card.name);
    card.io_thread(config, name, &pool, ByteSize::default(), None, &CancellationToken::new())
}

async fn connect_by(
    provider: Provider,
    config: &Config,
    worker: SocketAddr,
    offered: &[PathAddress],
    tries: bool,
    security: Option<&ClientSecurity>,
) -> Vec<PeerListener> {
    let mut listeners = Vec::new();
    let cards = match tries && !offered.is_empty() {
        true => Some(Machine::look(&Root::default()).and_then(|machine| machine.data_cards_by(config, provider))),
        false => None,
    };
    let rails: Vec<_> = cards.iter().flatten().flatten().map(Card::rail).collect();
    let theirs: Vec<_> = offered.iter().map(|address| address.host.parse().ok()).collect();
    let pairs = configured::rails::pair(&rails, &theirs);
    for (index, there) in offered.iter().enumerate() {
        let host = if there.host.is_empty() { worker.ip().to_string() } else { there.host.clone() };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let listener = PeerListener {
            card: there.card.clone(),
            is_verbs: provider == Provider::Verbs,
            address: format!("{host}:{}", there.port),
            ..PeerListener::default()
        };
        listeners.push(match &cards {
            None => listener,
            Some(Err(error)) => PeerListener { error: Some(words(error)), ..listener },
            Some(Ok(cards)) => {
                let card = pairs.iter().find(|(_, listener)| *listener == index).and_then(|(card, _)| cards.get(*card));
                connect(config, card, there, listener, security).await
            }
        });
    }
    listeners
}

async fn connect(
    config: &Config,
    card: Option<&Card>,
    there: &PathAddress,
    listener: PeerListener,
    security: Option<&ClientSecurity>,
) -> PeerListener {
    // None of ours is paired with it, so no mount would connect to it.
    let Some(card) = card else { return listener };
    let listener = PeerListener { from: card.name.clone(), ..listener };
    match connected(config, card.clone(), listener.address.clone(), security.cloned()).await {
        Ok((connect, ping_us)) => {
            PeerListener { connect_us: Some(micros(connect)), ping_us: Some(ping_us), ..listener }
        }
        Err(error) => {
            tracing::debug!(card = there.card, %error, "no connection over RDMA");
            PeerListener { error: Some(words(&error)), ..listener }
        }
    }
}

/// Connects from `card` to `address`: how long that took, and the shortest of a few questions in microseconds.
async fn connected(
    config: &Config,
    card: Card,
    address: String,
    security: Option<ClientSecurity>,
) -> anyhow::Result<(Duration, u64)> {
    let options = forebay_rdma::ClientOptions {
        require_rdma: config.network_rdma_data_transports.is_empty(),
        connect_timeout: config.network_rdma_data_connect_timeout,
        bind: card.address,
        security,
        ..forebay_rdma::ClientOptions::new(config.cluster_name.as_str(), block_size(config))
    };
    let io_thread = tokio::task::spawn_blocking({
        let config = config.clone();
        move || io_thread(&config, card)
    });
    let io_thread = io_thread.await.context("starting RDMA panicked")??;
    let link = Arc::clone(&io_thread).link(address, options);
    let asked = async { Ok::<_, anyhow::Error>((ping(&*link).await?, shortest(&*link).await?)) }.await;
    let close = async {
        link.close().await;
        io_thread.close().await;
    };
    // What does not end in time ends with the process.
    let _ = tokio::time::timeout(CLOSE_WITHIN, close).await;
    asked
}
