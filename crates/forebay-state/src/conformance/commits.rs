//! Reads, transactions and limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Fixture, Users, commit, keys};
use crate::{
    Committed, Condition, MAX_KEY_LENGTH, MAX_TRANSACTION_OPERATIONS, MAX_VALUE_SIZE, Revision, StateError, StateStore,
    Transaction,
};

pub(super) async fn what_is_committed_is_read_by_all(users: Users, _: &dyn Fixture) {
    let Users { one, two } = users;
    assert_eq!(one.get("a").await.unwrap(), None);
    let binary: Bytes = (0..=255).cycle().take(70_000).collect();
    let values = BTreeMap::from([
        ("a", Bytes::from_static(b"1")),
        ("a/b", Bytes::new()),
        ("b", binary),
        ("grüße/%2F", Bytes::from_static(b"\0\xff")),
        ("z", vec![7; MAX_VALUE_SIZE].into()),
    ]);
    let mut last = one.list("").await.unwrap().revision;
    for (key, value) in values.iter().rev() {
        let revision = commit(&*one, Transaction::new().put(*key, value.clone())).await;
        assert!(revision > last);
        last = revision;
        let entry = two.get(key).await.unwrap().unwrap();
        assert_eq!((entry.key.as_str(), &entry.value, entry.revision), (*key, value, revision));
    }
    let listed = two.list("").await.unwrap();
    assert_eq!(keys(&listed), values.keys().copied().collect::<Vec<_>>());
    assert!(listed.entries.iter().all(|entry| entry.value == values[entry.key.as_str()]));
    assert!(listed.revision >= last);

    let replaced = commit(&*two, Transaction::new().put("a", "2")).await;
    let deleted = commit(&*two, Transaction::new().delete("b")).await;
    assert!(last < replaced && replaced < deleted);
    let entry = one.get("a").await.unwrap().unwrap();
    assert_eq!((&*entry.value, entry.revision), (&b"2"[..], replaced));
    assert_eq!(one.get("b").await.unwrap(), None);
    assert!(commit(&*one, Transaction::new().delete("b")).await >= deleted);
}

pub(super) async fn a_prefix_is_any_beginning_of_a_key(users: Users, _: &dyn Fixture) {
    let all = ["job", "jobs", "jobs/1", "jobs/10", "jobs/2/x", "jobs0", "jobs~", "k"];
    let put = all.iter().fold(Transaction::new(), |transaction, key| transaction.put(*key, *key));
    commit(&*users.one, put).await;
    for prefix in ["", "j", "jobs", "jobs/", "jobs/1", "jobs/2/", "k", "l", &"x".repeat(600)] {
        let listed = users.two.list(prefix).await.unwrap();
        let expected: Vec<&str> = all.into_iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(keys(&listed), expected, "under `{prefix}`");
    }
}

pub(super) async fn conditions_decide_over_all_writes(users: Users, _: &dyn Fixture) {
    let store = &*users.one;
    let first = commit(store, Transaction::new().if_absent("a").put("a", "1")).await;
    let second = commit(store, Transaction::new().if_present("a").if_unchanged("a", first).put("a", "2")).await;
    commit(store, Transaction::new().put("gone", "x")).await;
    let gone = commit(store, Transaction::new().delete("gone")).await;
    let holding = [
        Condition::Present("a".to_owned()),
        Condition::Absent("b".to_owned()),
        Condition::Absent("gone".to_owned()),
        Condition::Unchanged("a".to_owned(), second),
    ];
    let failing = [
        Condition::Absent("a".to_owned()),
        Condition::Present("b".to_owned()),
        Condition::Unchanged("a".to_owned(), first),
        Condition::Unchanged("a".to_owned(), Revision(second.0 + 1)),
        Condition::Unchanged("b".to_owned(), Revision(0)),
        Condition::Unchanged("gone".to_owned(), gone),
    ];
    let with = |conditions: &[Condition]| {
        conditions.iter().cloned().fold(Transaction::new(), |transaction, condition| transaction.when(condition))
    };
    for condition in &failing {
        let mut conditions = holding.to_vec();
        conditions.insert(2, condition.clone());
        let transaction = with(&conditions).put("a", "wrong").put("c", "wrong").delete_prefix("d");
        assert_eq!(users.two.commit(transaction).await.unwrap(), Committed::Conflict, "{condition:?}");
        assert_eq!(store.commit(with(std::slice::from_ref(condition))).await.unwrap(), Committed::Conflict);
    }
    assert!(commit(store, with(&holding)).await >= gone);
    let listed = store.list("").await.unwrap();
    assert_eq!(keys(&listed), ["a"], "a conflict changes nothing, and conditions alone do not");
    assert_eq!((&*listed.entries[0].value, listed.entries[0].revision), (&b"2"[..], second));
    let done = commit(store, with(&holding).put("c", "3").delete("a")).await;
    let listed = users.two.list("").await.unwrap();
    assert_eq!((keys(&listed), listed.entries[0].revision), (vec!["c"], done));
    assert!(listed.revision >= done);
}

pub(super) async fn increments_of_many_writers_are_all_counted(users: Users, _: &dyn Fixture) {
    commit(&*users.one, Transaction::new().put("count", "0")).await;
    let writers = (0..8).map(|number| {
        let store = Arc::clone(if number % 2 == 0 { &users.one } else { &users.two });
        tokio::spawn(async move {
            for _ in 0..5 {
                while !increment(&*store).await {}
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(users.two.get("count").await.unwrap().unwrap().value, "40");
}

async fn increment(store: &dyn StateStore) -> bool {
    let entry = store.get("count").await.unwrap().unwrap();
    let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
    let transaction = Transaction::new().if_unchanged("count", entry.revision).put("count", (count + 1).to_string());
    store.commit(transaction).await.unwrap() != Committed::Conflict
}

pub(super) async fn a_list_is_of_one_revision_however_long(users: Users, _: &dyn Fixture) {
    const KEYS: usize = 5000;
    let name = |number: usize| format!("many/{number:05}");
    for start in (0..KEYS).step_by(MAX_TRANSACTION_OPERATIONS) {
        let put = (start..start + MAX_TRANSACTION_OPERATIONS)
            .fold(Transaction::new(), |transaction, number| transaction.put(name(number), vec![b'x'; 300]));
        commit(&*users.one, put).await;
    }
    // Values so large that a page of them would not fit into one message.
    for number in 0..8 {
        commit(&*users.one, Transaction::new().put(format!("many/large-{number}"), vec![b'y'; MAX_VALUE_SIZE])).await;
    }
    let writer = {
        let store = Arc::clone(&users.two);
        tokio::spawn(async move {
            for turn in 0..100 {
                let value = format!("turn {turn}");
                commit(&*store, Transaction::new().put(name(0), value.clone()).put(name(KEYS - 1), value)).await;
            }
        })
    };
    for turn in 0.. {
        let is_last = writer.is_finished();
        let listed = users.one.list("many/").await.unwrap();
        assert_eq!(listed.entries.len(), KEYS + 8);
        assert!(listed.entries.iter().take(KEYS).map(|entry| &entry.key).eq(&(0..KEYS).map(name).collect::<Vec<_>>()));
        let (first, last) = (&listed.entries[0], &listed.entries[KEYS - 1]);
        assert_eq!(first.value, last.value, "list {turn} is of two revisions");
        assert!(first.revision <= listed.revision);
        assert!(listed.entries[KEYS..].iter().all(|entry| entry.value.len() == MAX_VALUE_SIZE));
        if is_last {
            break;
        }
        // A store in memory answers without giving others a turn.
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

pub(super) async fn a_prefix_is_deleted_exactly(users: Users, _: &dyn Fixture) {
    let all = ["a", "jobs", "jobs/1", "jobs/2", "jobs/2/x", "jobs0", "k"];
    let put = all.iter().fold(Transaction::new(), |transaction, key| transaction.put(*key, "x"));
    commit(&*users.one, put).await;
    commit(&*users.one, Transaction::new().delete_prefix("jobs/").put("k", "y").delete("a").put("new", "z")).await;
    assert_eq!(keys(&users.two.list("").await.unwrap()), ["jobs", "jobs0", "k", "new"]);
    let revision = commit(&*users.one, Transaction::new().delete_prefix("")).await;
    let listed = users.two.list("").await.unwrap();
    assert!(listed.entries.is_empty() && listed.revision >= revision);
}

pub(super) async fn limits_are_enforced_and_explained(users: Users, _: &dyn Fixture) {
    let store = &*users.one;
    let refused = async |transaction: Transaction| store.commit(transaction).await.unwrap_err();
    let long = "x".repeat(MAX_KEY_LENGTH + 1);
    for key in ["", "/a", "a/", "a//b", "a\nb", &long] {
        assert!(matches!(refused(Transaction::new().put(key, "x")).await, StateError::InvalidKey { .. }), "{key}");
        assert!(matches!(refused(Transaction::new().if_absent(key)).await, StateError::InvalidKey { .. }), "{key}");
        assert!(matches!(refused(Transaction::new().delete(key)).await, StateError::InvalidKey { .. }), "{key}");
        assert!(matches!(store.get(key).await.unwrap_err(), StateError::InvalidKey { .. }), "{key}");
    }
    let error = refused(Transaction::new().put("large", vec![0; MAX_VALUE_SIZE + 1])).await;
    assert!(matches!(&error, StateError::ValueTooLarge { size, .. } if *size == MAX_VALUE_SIZE + 1));
    assert!(error.to_string().contains("`large`"), "{error}");

    let many = |count| (0..count).fold(Transaction::new(), |put, number| put.put(format!("many/{number}"), "x"));
    let conditions = |count| (0..count).fold(Transaction::new(), |all, number| all.if_absent(format!("no/{number}")));
    let invalid = [
        many(MAX_TRANSACTION_OPERATIONS + 1),
        conditions(MAX_TRANSACTION_OPERATIONS + 1),
        Transaction::new().put("a", vec![0; MAX_VALUE_SIZE]).put("b", vec![0; MAX_VALUE_SIZE]),
        Transaction::new().put("a", "1").put("a", "2"),
        Transaction::new().put("a", "1").delete("a"),
        Transaction::new().delete_prefix("a/").put("a/b", "1"),
        Transaction::new().delete_prefix("a/").delete_prefix("a/b"),
    ];
    for transaction in invalid {
        assert!(matches!(refused(transaction).await, StateError::InvalidTransaction { .. }));
    }
    assert_eq!(store.list("").await.unwrap().entries, []);
    let mut largest = many(MAX_TRANSACTION_OPERATIONS);
    largest.conditions = conditions(MAX_TRANSACTION_OPERATIONS).conditions;
    commit(store, largest).await;
    commit(store, Transaction::new().put("x".repeat(MAX_KEY_LENGTH), vec![1; MAX_VALUE_SIZE])).await;
}
