//! Leases, and the keys that live as long as they do.

use tokio::time::timeout;

use super::{Fixture, Known, Users, commit, keys, lasting_ttl, next, patience};
use crate::{StateError, Transaction};

pub(super) async fn keys_live_as_long_as_their_lease(users: Users, fixture: &dyn Fixture) {
    let Users { one, two } = users;
    let mut watch = two.watch("");
    let mut known = Known::default();
    known.apply(next(&mut watch).await);
    let (lease, other) =
        (one.lease(lasting_ttl(fixture)).await.unwrap(), one.lease(lasting_ttl(fixture)).await.unwrap());
    assert!(lease.ttl() >= lasting_ttl(fixture));
    assert_ne!(lease.id(), other.id());
    let transaction = Transaction::new()
        .put_leased("workers/a", "1", lease.id())
        .put_leased("workers/b", "2", lease.id())
        .put_leased("workers/c", "3", other.id())
        .put("workers/d", "4");
    commit(&*one, transaction).await;
    known.follow_until(&mut watch, |known| known.entries.len() == 4).await;
    // A lease may be used by any user of the store.
    commit(&*two, Transaction::new().put_leased("workers/e", "5", lease.id())).await;

    timeout(patience(), lease.revoke()).await.expect("revoking takes too long");
    assert_eq!(keys(&two.list("").await.unwrap()), ["workers/c", "workers/d"], "revoked means deleted");
    known.follow_until(&mut watch, |known| known.entries.len() == 2).await;
    assert!(!other.is_lost());
    drop(other);
    known.follow_until(&mut watch, |known| known.entries.keys().eq(["workers/d"])).await;
}

pub(super) async fn a_put_without_the_lease_keeps_the_key(users: Users, fixture: &dyn Fixture) {
    let store = &*users.one;
    let (first, second) =
        (store.lease(lasting_ttl(fixture)).await.unwrap(), store.lease(lasting_ttl(fixture)).await.unwrap());
    let put = Transaction::new().put_leased("kept", "1", first.id()).put_leased("moved", "1", first.id());
    commit(store, put.put_leased("again", "1", first.id())).await;
    commit(store, Transaction::new().put("kept", "2").put_leased("moved", "2", second.id()).delete("again")).await;
    commit(store, Transaction::new().put("again", "3")).await;
    first.revoke().await;
    assert_eq!(keys(&store.list("").await.unwrap()), ["again", "kept", "moved"]);
    second.revoke().await;
    assert_eq!(keys(&store.list("").await.unwrap()), ["again", "kept"]);
}

pub(super) async fn a_lease_is_renewed_past_its_ttl(users: Users, fixture: &dyn Fixture) {
    // Not the shortest: on a busy machine a holder may not run for a second, and loses its lease by right.
    let lease = users.one.lease(4 * fixture.shortest_ttl()).await.unwrap();
    commit(&*users.one, Transaction::new().put_leased("here", "x", lease.id())).await;
    let gone = timeout(lease.ttl().mul_f64(2.2), lease.lost()).await;
    assert!(gone.is_err(), "the lease was lost though its holder lives");
    assert!(users.two.get("here").await.unwrap().is_some());
}

pub(super) async fn a_lease_that_ended_takes_no_more_keys(users: Users, fixture: &dyn Fixture) {
    let lease = users.one.lease(lasting_ttl(fixture)).await.unwrap();
    let id = lease.id();
    lease.revoke().await;
    let transaction = Transaction::new().put("free", "x").put_leased("leased", "x", id);
    let failure = users.one.commit(transaction).await.unwrap_err();
    assert!(matches!(failure, StateError::LeaseLost { .. }), "{failure}");
    assert!(users.two.list("").await.unwrap().entries.is_empty(), "nothing of it was done");
}

pub(super) async fn the_holder_learns_that_its_lease_expired(users: Users, fixture: &dyn Fixture) {
    let lease = users.one.lease(lasting_ttl(fixture)).await.unwrap();
    commit(&*users.one, Transaction::new().put_leased("here", "x", lease.id())).await;
    if fixture.expire(lease.id()).await {
        timeout(patience(), lease.lost()).await.expect("nobody told the holder");
        assert_eq!(users.two.get("here").await.unwrap(), None);
    }
}
