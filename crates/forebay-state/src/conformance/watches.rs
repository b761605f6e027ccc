//! What watchers see.

use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, Known, Users, by_key, commit, lasting_ttl, next, patience};
use crate::{Entry, StateError, Transaction, Update};

pub(super) async fn a_watch_begins_with_what_is_there_and_goes_on_with_changes(users: Users, _: &dyn Fixture) {
    let before = commit(&*users.one, Transaction::new().put("jobs/1", "a").put("other", "x")).await;
    let mut watch = users.two.watch("jobs/");
    let Update::Snapshot(snapshot) = next(&mut watch).await else { panic!("no snapshot") };
    assert_eq!(snapshot.entries, users.one.list("jobs/").await.unwrap().entries);
    assert!(snapshot.revision >= before);

    commit(&*users.one, Transaction::new().put("other", "y").put("job", "z")).await;
    let revision = commit(&*users.one, Transaction::new().put("jobs/2", "b").delete("jobs/1").put("other", "w")).await;
    let put = Entry { key: "jobs/2".to_owned(), value: "b".into(), revision };
    let expected = Update::Changed { puts: vec![put], deletes: vec!["jobs/1".to_owned()], revision };
    assert_eq!(next(&mut watch).await, expected, "both in one update, and nothing from elsewhere");

    commit(&*users.one, Transaction::new().put("jobs/3", "c")).await;
    let mut late = users.one.watch("jobs/");
    let Update::Snapshot(snapshot) = next(&mut late).await else { panic!("no snapshot") };
    assert_eq!(snapshot.entries.len(), 2);
    let Update::Changed { puts, .. } = next(&mut watch).await else { panic!("no change") };
    assert_eq!(puts.len(), 1);

    let revision = commit(&*users.two, Transaction::new().delete_prefix("")).await;
    let deletes = vec!["jobs/2".to_owned(), "jobs/3".to_owned()];
    let expected = Update::Changed { puts: Vec::new(), deletes, revision };
    assert_eq!(next(&mut watch).await, expected);
    assert_eq!(next(&mut late).await, expected);

    drop(late);
    let mut everything = users.one.watch("");
    assert!(matches!(next(&mut everything).await, Update::Snapshot(snapshot) if snapshot.entries.is_empty()));
}

pub(super) async fn watches_miss_nothing_and_repeat_nothing_among_many_writers(users: Users, _: &dyn Fixture) {
    const WRITERS: usize = 4;
    const TURNS: usize = 100;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(if writer % 2 == 0 { &users.one } else { &users.two });
            tokio::spawn(async move {
                for turn in 0..TURNS {
                    let (own, shared) = (format!("w/{writer}/{}", turn % 7), format!("w/shared/{}", turn % 5));
                    let value = format!("{writer}-{turn}");
                    let transaction = Transaction::new().put(shared, value.clone());
                    let transaction = if turn % 3 == 2 { transaction.delete(own) } else { transaction.put(own, value) };
                    commit(&*store, transaction.put(format!("elsewhere/{writer}"), "x")).await;
                }
            })
        })
        .collect();
    let watchers: Vec<_> = (0..6)
        .map(|number| {
            let store = Arc::clone(if number % 2 == 0 { &users.one } else { &users.two });
            tokio::spawn(async move {
                // They start at different times among the writes.
                tokio::time::sleep(Duration::from_millis(17 * number)).await;
                let mut watch = store.watch("w/");
                let mut known = Known::default();
                known.follow_until(&mut watch, |known| known.entries.contains_key("w/end")).await;
                assert_eq!(known.snapshots, 1, "a watcher that keeps up needs no second snapshot");
                known
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    commit(&*users.one, Transaction::new().put("w/end", "")).await;
    let expected = by_key(&users.one.list("w/").await.unwrap());
    for watcher in watchers {
        assert_eq!(watcher.await.unwrap().entries, expected);
    }
}

pub(super) async fn a_slow_watcher_arrives_at_the_same_state(users: Users, _: &dyn Fixture) {
    let mut watch = users.one.watch("");
    let mut known = Known::default();
    known.apply(next(&mut watch).await);
    // No update is taken while more is written than any queue or history holds.
    for turn in 0..30 {
        let put = (0..50)
            .fold(Transaction::new(), |put, key| put.put(format!("k/{}", (turn * 7 + key) % 90), vec![0; 20_000]));
        commit(&*users.two, put).await;
    }
    commit(&*users.two, Transaction::new().put("end", "")).await;
    known.follow_until(&mut watch, |known| known.entries.contains_key("end")).await;
    assert_eq!(known.entries, by_key(&users.two.list("").await.unwrap()));
}

pub(super) async fn a_closed_store_ends_its_watches_and_fails_its_operations(users: Users, fixture: &dyn Fixture) {
    let Users { one, two } = users;
    let mut watch = two.watch("");
    next(&mut watch).await;
    let lease = two.lease(lasting_ttl(fixture)).await.unwrap();
    commit(&*two, Transaction::new().put_leased("leased", "x", lease.id())).await;
    tokio::time::timeout(patience(), two.close()).await.expect("closing takes too long");
    let end = async { while watch.next().await.is_some() {} };
    tokio::time::timeout(patience(), end).await.expect("the watch goes on");
    tokio::time::timeout(patience(), lease.lost()).await.expect("the lease is still held");
    let failures = [
        two.get("a").await.unwrap_err(),
        two.list("").await.unwrap_err(),
        two.commit(Transaction::new().put("a", "b")).await.unwrap_err(),
        two.lease(lasting_ttl(fixture)).await.unwrap_err(),
    ];
    for failure in failures {
        assert!(matches!(failure, StateError::Closed { .. }), "{failure}");
    }
    assert_eq!(two.watch("").next().await, None);
    if !Arc::ptr_eq(&one, &two) {
        assert_eq!(one.get("leased").await.unwrap(), None, "closing revokes leases");
    }
}
