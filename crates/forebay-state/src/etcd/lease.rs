//! Leases: taken, renewed until their holder ends them, and given up in time when etcd cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use forebay_types::Tenure;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::backoff::Backoff;
use super::failure::Failure;
use super::keyspace::{Keyspace, to_i64};
use super::members::Repeat;
use crate::{Lease, LeaseId, LeaseOwner, StateError};

/// How often a lease is renewed within its ttl: two renewals may fail and the third still saves it.
const RENEWALS_PER_TTL: u32 = 3;

/// Takes a lease and leaves a task that looks after it.
pub(super) async fn take(
    keyspace: &Arc<Keyspace>,
    ttl: Duration,
    tasks: &TaskTracker,
    closing: &CancellationToken,
) -> Result<Lease, StateError> {
    // etcd counts in seconds.
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let before = Instant::now();
    // If an answer is lost, the lease that it named expires unused.
    let grant = |mut client: Client| async move { client.lease_grant(to_i64(seconds.max(1)), None).await };
    let granted = keyspace.members.call(Repeat::Always, grant).await;
    let granted = granted.map_err(|failure| keyspace.members.error("take a lease", failure))?;
    let id = LeaseId(granted.id().unsigned_abs());
    let ttl = Duration::from_secs(granted.ttl().unsigned_abs());
    let (lease, owner) = Lease::new(id, ttl);
    let tenure = Arc::clone(owner.tenure());
    let mut keeper = Keeper { keyspace: Arc::clone(keyspace), id, ttl, expires: before, tenure };
    keeper.renewed(before, ttl);
    tasks.spawn(keeper.keep(owner, closing.clone()));
    Ok(lease)
}

struct Keeper {
    keyspace: Arc<Keyspace>,
    id: LeaseId,
    ttl: Duration,
    /// By our clock, counted from before etcd was asked: never later than etcd's own.
    expires: Instant,
    /// The same, for code that relies on the lease's keys.
    tenure: Arc<Tenure>,
}

impl Keeper {
    async fn keep(mut self, mut owner: LeaseOwner, closing: CancellationToken) {
        let done = tokio::select! {
            done = owner.ended() => done,
            () = closing.cancelled() => None,
            () = self.renew_while_possible() => {
                owner.lose();
                return;
            }
        };
        owner.lose();
        self.revoke().await;
        // The holder waits for this.
        drop(done);
    }

    /// Returns when the lease is lost.
    async fn renew_while_possible(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let due = self.expires - self.ttl + self.ttl / RENEWALS_PER_TTL;
            sleep_until(due.max(Instant::now())).await;
            let asked = Instant::now();
            let renewed = tokio::select! {
                renewed = self.renew() => renewed,
                () = sleep_until(self.expires) => {
                    warn!(store = self.keyspace.members.name(), lease = %self.id, "a lease could not be renewed in time");
                    return;
                }
            };
            match renewed {
                Ok(ttl) => {
                    self.renewed(asked, ttl);
                    backoff.succeeded();
                }
                Err(Failure::NoSuchLease) => return,
                // Not beyond its end: then it is lost, and its holder is to know.
                Err(_) => {
                    let again = Instant::now() + backoff.failed(rand::random());
                    sleep_until(again.min(self.expires)).await;
                }
            }
        }
    }

    fn renewed(&mut self, asked: Instant, ttl: Duration) {
        self.expires = asked + ttl;
        self.tenure.hold_until(self.expires.into_std());
    }

    /// One renewal on a stream of its own: a stream kept open would have to be watched for silence all the same.
    async fn renew(&self) -> Result<Duration, Failure> {
        let id = to_i64(self.id.0);
        let renew = |mut client: Client| async move { client.lease_keep_alive(id).await.map(drop) };
        self.keyspace.members.call(Repeat::Always, renew).await.map(|()| self.ttl)
    }

    async fn revoke(&self) {
        let id = to_i64(self.id.0);
        let revoke = |mut client: Client| async move { client.lease_revoke(id).await };
        // If etcd cannot be reached the lease expires by itself.
        let _ = timeout(self.ttl, self.keyspace.members.call(Repeat::Always, revoke)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::members::Members;
    use super::super::options::EtcdOptions;
    use super::super::tls::TlsFiles;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_lost_when_its_time_is_over_and_not_at_the_next_try() {
        // Nobody listens there: each try fails at once, and the pauses grow beyond what is left.
        let endpoints = EtcdOptions::new(["http://127.0.0.1:1"], "c");
        let options = EtcdOptions { deadline: Duration::from_millis(1), ..endpoints };
        let members = Members::new(&options, options.connect_options(&TlsFiles::default())).unwrap();
        let keyspace = Arc::new(Keyspace { members, root: "/forebay/c/".to_owned() });
        let ttl = Duration::from_secs(4);
        for _ in 0..8 {
            let (expires, tenure) = (Instant::now() + ttl, Arc::new(Tenure::unlimited()));
            let mut keeper = Keeper { keyspace: Arc::clone(&keyspace), id: LeaseId(1), ttl, expires, tenure };
            keeper.renew_while_possible().await;
            let late = Instant::now().saturating_duration_since(expires);
            assert!(Instant::now() >= expires && late < Duration::from_millis(20), "{late:?}");
        }
    }
}
