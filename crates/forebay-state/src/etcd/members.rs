//! The members of an etcd, and which of them is asked.
//!
//! Each member has a client of its own, made when it is first asked, so that it is ours to say which one a call goes to:
//! the one that answered last, and after a failure the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{Client, ConnectOptions};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::failure::Failure;
use super::kept::{Kept, Making};
use super::options::EtcdOptions;
use crate::StateError;

/// How many deadlines of calls a client may take to be made: with a user, a token has to come.
const DEADLINES_TO_CONNECT: u32 = 4;

/// What may be done after a failure that leaves open whether a call was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The call again: doing it twice does no harm.
    Always,
    /// Nothing.
    IfNotCarriedOut,
}

pub(super) struct Members {
    name: String,
    members: Vec<Member>,
    /// Index of the member to ask first.
    preferred: AtomicUsize,
    /// Others when the certificate files have changed.
    options: ArcSwap<ConnectOptions>,
    /// Told when they have.
    renewed: watch::Sender<()>,
    has_user: bool,
    deadline: Duration,
}

struct Member {
    url: String,
    client: Mutex<Kept<Client>>,
}

impl Members {
    /// The members that `options` name, to be connected to with `connect`.
    pub(super) fn new(options: &EtcdOptions, connect: ConnectOptions) -> Result<Self, StateError> {
        let urls = options.checked_endpoints()?;
        // Clients start at different members, so that all of them serve some.
        let preferred = AtomicUsize::new(rand::random_range(0..urls.len()));
        Ok(Self {
            name: format!("etcd at {}", urls.join(",")),
            members: urls.into_iter().map(|url| Member { url, client: Mutex::default() }).collect(),
            preferred,
            options: ArcSwap::from_pointee(connect),
            renewed: watch::Sender::new(()),
            has_user: options.user.is_some(),
            deadline: options.deadline,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Calls one member after the other until one answers, within the deadline.
    pub(super) async fn call<T, Answer>(&self, repeat: Repeat, call: impl Fn(Client) -> Answer) -> Result<T, Failure>
    where
        Answer: Future<Output = Result<T, etcd_client::Error>>,
    {
        let start = Instant::now();
        let end = start + self.deadline;
        let mut backoff = Backoff::default();
        let mut last = Failure::TimedOut;
        loop {
            let index = self.preferred();
            // Where the call may be repeated, a member that hangs does not use up the time of the others.
            let can_repeat = repeat == Repeat::Always && self.count() > 1;
            let patience = if can_repeat { end.min(Instant::now() + self.deadline / 3) } else { end };
            let attempt = async {
                let client = self.client(index).await?;
                call(client).await.map_err(Failure::from)
            };
            let failure = match timeout_at(patience, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::TimedOut,
            };
            let may_go_on = match &failure {
                Failure::NotCarriedOut(_) => true,
                Failure::Unknown(_) | Failure::TimedOut => repeat == Repeat::Always,
                _ => return Err(failure),
            };
            self.failed(index, &failure);
            if failure != Failure::TimedOut {
                last = failure.clone();
            }
            if !may_go_on {
                return Err(failure);
            }
            let pause = backoff.failed(rand::random());
            // The first round over all members needs no pause: another one may well be there.
            let pause = if (backoff.failures() as usize) < self.count() { Duration::ZERO } else { pause };
            if Instant::now() + pause >= end {
                return Err(last);
            }
            sleep(pause).await;
        }
    }

    /// The client of the member to ask first, and that member.
    pub(super) async fn first(&self) -> Result<(Client, usize), Failure> {
        let index = self.preferred();
        Ok((self.client(index).await?, index))
    }

    /// Asks others than this one from now on, if there are any, with another token the next time.
    pub(super) fn avoid(&self, index: usize) {
        self.pass_over(index);
        // Its token may be what it did not like; a new client asks for a new one. If another task makes one just now, that
        // will do.
        if self.has_user
            && let Ok(mut client) = self.members[index].client.try_lock()
        {
            client.forget();
        }
    }

    /// The same, as it failed so. One that is slow would only be slower for another token.
    pub(super) fn failed(&self, index: usize, failure: &Failure) {
        match failure {
            Failure::TimedOut => self.pass_over(index),
            _ => self.avoid(index),
        }
    }

    fn pass_over(&self, index: usize) {
        let next = (index + 1) % self.count();
        // If it was changed meanwhile, another task has avoided it already.
        let _ = self.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Connects with these options from now on. What is under way ends over the old connections; what goes on for long is told
    /// by [`Members::renewals`].
    pub(super) async fn renew(&self, options: ConnectOptions) {
        self.options.store(Arc::new(options));
        self.disconnect().await;
        self.renewed.send_replace(());
    }

    /// Changes whenever all connections are to be made anew.
    pub(super) fn renewals(&self) -> watch::Receiver<()> {
        self.renewed.subscribe()
    }

    /// Closes all connections.
    pub(super) async fn disconnect(&self) {
        for member in &self.members {
            member.client.lock().await.forget();
        }
    }

    /// A failure as our users see it. `operation` is a verb and its object: "read `a`".
    pub(super) fn error(&self, operation: &str, failure: Failure) -> StateError {
        let (store, operation) = (self.name.clone(), operation.to_owned());
        match failure {
            Failure::NotCarriedOut(reason) | Failure::Unknown(reason) if is_about_tls(&reason) => {
                let remedy =
                    "check the certificate authority, the certificate and the key configured for etcd".to_owned();
                StateError::Refused { store, operation, reason, remedy }
            }
            Failure::NotCarriedOut(reason) | Failure::Unknown(reason) => StateError::Unavailable { store, reason },
            Failure::TimedOut => StateError::TimedOut { store, operation, deadline: self.deadline },
            Failure::Refused { reason, remedy } => {
                StateError::Refused { store, operation, reason, remedy: remedy.to_owned() }
            }
            Failure::NoSuchLease => StateError::LeaseLost { store, key: operation },
            Failure::NoSuchRevision | Failure::TooLarge => {
                let (reason, remedy) = (failure.to_string(), "check etcd's limits".to_owned());
                StateError::Refused { store, operation, reason, remedy }
            }
        }
    }

    fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    async fn client(&self, index: usize) -> Result<Client, Failure> {
        let member = &self.members[index];
        let make = || {
            let (url, options) = (member.url.clone(), ConnectOptions::clone(&self.options.load()));
            let within = DEADLINES_TO_CONNECT * self.deadline;
            // With a user this asks for a token; the connection itself is made by the first call.
            let making = async move {
                let connecting = Client::connect([url], Some(options));
                timeout(within, connecting).await.map_err(|_| Failure::TimedOut)?.map_err(Failure::from)
            };
            Box::pin(making) as Making<Client>
        };
        member.client.lock().await.get(make).await
    }
}

/// The TLS library tells by text only: "invalid peer certificate: …", "received fatal alert: …".
fn is_about_tls(reason: &str) -> bool {
    reason.contains("peer certificate") || reason.contains("fatal alert")
}

impl std::fmt::Debug for Members {
    /// Without the password.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Members").field("name", &self.name).finish_non_exhaustive()
    }
}
