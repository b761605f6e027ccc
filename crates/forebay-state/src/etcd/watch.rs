//! A watch: a list, then etcd's events from the revision after it, resumed wherever they break off.
//!
//! What was compacted while we were away, and a history that is not the one we knew (etcd restored from a backup), are
//! answered with a new snapshot. When the certificates are replaced, a watch goes on over a new connection from where it
//! is.

use etcd_client::{Client, EventType, GetOptions, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::backoff::Backoff;
use super::failure::Failure;
use super::keyspace::{Keyspace, range, to_i64};
use super::members::Repeat;
use crate::coalesce::Changes;
use crate::{Entry, Revision, Update, WatchSender};

/// The largest batch of events that is taken; what is larger is listed, page by page.
const MAX_BATCH: usize = 64 << 20;

/// Watches until the watch is dropped.
pub(super) async fn serve(keyspace: &Keyspace, prefix: &str, sender: &WatchSender) {
    let (renewed, backoff) = (keyspace.members.renewals(), Backoff::default());
    let mut watching = Watching { keyspace, prefix, sender, renewed, known: None, is_lost: false, backoff };
    loop {
        match watching.session().await {
            End::NobodyWatches => return,
            End::Renewed => {}
            End::HistoryIsGone => watching.known = None,
            End::Failed(error) => {
                // A member that ended a stream is no loss as long as another one takes over.
                let is_lost = !matches!(error, Cause::Stream(_))
                    || watching.backoff.failures() as usize > keyspace.members.count();
                let (Cause::Stream(reason) | Cause::Store(reason)) = error;
                if is_lost
                    && !std::mem::replace(&mut watching.is_lost, true)
                    && !sender.send(Update::Lost { reason }).await
                {
                    return;
                }
                sleep(watching.backoff.failed(rand::random())).await;
            }
        }
    }
}

/// Why a session ended.
enum End {
    NobodyWatches,
    /// Another connection is to be used.
    Renewed,
    /// What is known cannot be continued.
    HistoryIsGone,
    Failed(Cause),
}

enum Cause {
    /// The stream of one member.
    Stream(String),
    /// No member could be reached.
    Store(String),
}

struct Watching<'a> {
    keyspace: &'a Keyspace,
    prefix: &'a str,
    sender: &'a WatchSender,
    renewed: watch::Receiver<()>,
    /// Everything up to it was sent.
    known: Option<Revision>,
    /// Whether the last update said that the store is lost.
    is_lost: bool,
    backoff: Backoff,
}

impl Watching<'_> {
    /// From a list, or from where the session before ended, until something breaks.
    async fn session(&mut self) -> End {
        match self.run().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn run(&mut self) -> Result<std::convert::Infallible, End> {
        let known = match self.known {
            Some(known) => self.check_history(known).await?,
            None => self.list().await?,
        };
        let (mut stream, member) = self.open(known).await?;
        let end = self.follow(&mut stream).await;
        if let Err(End::Failed(_)) = &end {
            self.keyspace.members.avoid(member);
        }
        end
    }

    async fn list(&mut self) -> Result<Revision, End> {
        let snapshot =
            self.keyspace.list(self.prefix).await.map_err(|error| End::Failed(Cause::Store(error.to_string())))?;
        let known = snapshot.revision;
        self.send(Update::Snapshot(snapshot)).await?;
        self.known = Some(known);
        Ok(known)
    }

    /// Asks the members together, not one of them that may lag, whether they still have what we know.
    async fn check_history(&self, known: Revision) -> Result<Revision, End> {
        let start = range(&self.keyspace.full(self.prefix)).0;
        let get = |mut client: Client| {
            let options = GetOptions::new().with_count_only().with_revision(to_i64(known.0));
            let start = start.clone();
            async move { client.get(start, Some(options)).await }
        };
        match self.keyspace.members.call(Repeat::Always, get).await {
            Ok(_) => Ok(known),
            Err(Failure::NoSuchRevision) => Err(End::HistoryIsGone),
            Err(failure) => Err(End::Failed(Cause::Store(self.keyspace.members.error("watch", failure).to_string()))),
        }
    }

    async fn open(&mut self, known: Revision) -> Result<(WatchStream, usize), End> {
        let members = &self.keyspace.members;
        // What is renewed from here on may be so after the client was made.
        self.renewed.mark_unchanged();
        let (client, member) = members.first().await.map_err(failed)?;
        let (start, end) = range(&self.keyspace.full(self.prefix));
        // Notes of progress keep what is known from falling behind what etcd has compacted.
        let options =
            WatchOptions::new().with_range(end).with_start_revision(to_i64(known.0 + 1)).with_progress_notify();
        let opening = async {
            let mut client = client.watch_client().max_decoding_message_size(MAX_BATCH);
            let mut stream = client.watch(start, Some(options)).await?;
            let first = stream.message().await?;
            Ok((stream, first))
        };
        let opened = timeout(members.deadline(), opening).await.unwrap_or(Err(Failure::TimedOut));
        let (stream, first) = match opened {
            Ok((stream, Some(first))) => (stream, first),
            Ok((_, None)) => {
                members.avoid(member);
                return Err(failed(Failure::Unknown("a member ended a watch".to_owned())));
            }
            Err(failure) => {
                members.failed(member, &failure);
                return Err(failed(failure));
            }
        };
        if first.canceled() {
            members.avoid(member);
            return Err(cancelled(&first));
        }
        if self.is_lost {
            self.send(Update::Changed { puts: Vec::new(), deletes: Vec::new(), revision: known }).await?;
        }
        self.backoff.succeeded();
        self.take(&first).await?;
        Ok((stream, member))
    }

    async fn follow(&mut self, stream: &mut WatchStream) -> Result<std::convert::Infallible, End> {
        loop {
            // The sender is in the members, which outlive this.
            let message = tokio::select! {
                message = stream.message() => message,
                _ = self.renewed.changed() => return Err(End::Renewed),
            };
            match message.map_err(Failure::from) {
                Ok(Some(response)) => self.take(&response).await?,
                Ok(None) => return Err(End::Failed(Cause::Stream("a member ended a watch".to_owned()))),
                // A larger batch would come again and again.
                Err(Failure::TooLarge) => return Err(End::HistoryIsGone),
                Err(failure) => return Err(failed(failure)),
            }
        }
    }

    async fn take(&mut self, response: &WatchResponse) -> Result<(), End> {
        if response.canceled() {
            return Err(cancelled(response));
        }
        let mut changes = Changes::default();
        // The header may be ahead of the events while a watch catches up.
        let mut revision = 0;
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            revision = pair.mod_revision().unsigned_abs();
            let key = self.keyspace.relative(pair.key());
            match event.event_type() {
                EventType::Put => {
                    let value = pair.value().to_vec().into();
                    changes.put(Entry { key, value, revision: Revision(revision) });
                }
                EventType::Delete => changes.delete(key),
            }
        }
        if !changes.is_empty() {
            self.send(changes.into_update(Revision(revision))).await?;
            self.known = Some(Revision(revision));
        } else if !response.created() {
            let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision).unsigned_abs();
            self.known = self.known.max(Some(Revision(revision)));
        }
        Ok(())
    }

    async fn send(&mut self, update: Update) -> Result<(), End> {
        if self.sender.send(update).await {
            self.is_lost = false;
            return Ok(());
        }
        Err(End::NobodyWatches)
    }
}

fn cancelled(response: &WatchResponse) -> End {
    if response.compact_revision() > 0 {
        return End::HistoryIsGone;
    }
    End::Failed(Cause::Stream(format!("a member ended a watch: {}", response.cancel_reason())))
}

fn failed(failure: Failure) -> End {
    End::Failed(Cause::Stream(failure.to_string()))
}
