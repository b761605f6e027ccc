//! Elections over a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::timeout;

use super::{Fixture, Users, commit, lasting_ttl, patience};
use crate::{Committed, Election, LeaderUpdate, LeaderWatch, StateStore, Transaction};

pub(super) async fn one_leads_at_a_time_and_each_in_the_end(users: Users, fixture: &dyn Fixture) {
    const CANDIDATES: usize = 5;
    commit(&*users.one, Transaction::new().put("turns", "")).await;
    let leading = Arc::new(AtomicUsize::new(0));
    let candidates: Vec<_> = (0..CANDIDATES)
        .map(|number| {
            let store = Arc::clone(if number % 2 == 0 { &users.one } else { &users.two });
            let (leading, ttl) = (Arc::clone(&leading), lasting_ttl(fixture));
            tokio::spawn(async move {
                let election = Election::new(Arc::clone(&store), "leader", ttl);
                let leadership = election.campaign(number.to_string()).await.unwrap();
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                for _ in 0..3 {
                    let turns = store.get("turns").await.unwrap().unwrap().value;
                    let turns = format!("{}{number}", str::from_utf8(&turns).unwrap());
                    commit(&*store, Transaction::new().when(leadership.fence()).put("turns", turns)).await;
                }
                leading.fetch_sub(1, Ordering::SeqCst);
                leadership.resign().await;
            })
        })
        .collect();
    for candidate in candidates {
        timeout(patience(), candidate).await.expect("a candidate never led").unwrap();
    }
    let turns = users.two.get("turns").await.unwrap().unwrap().value;
    assert_eq!(turns.len(), 3 * CANDIDATES);
    assert!(turns.chunks(3).all(|of_one| of_one.iter().all(|turn| *turn == of_one[0])), "{turns:?}");
}

pub(super) async fn a_deposed_leader_commits_nothing_more(users: Users, fixture: &dyn Fixture) {
    let Users { one, two } = users;
    let election = |store: &Arc<dyn StateStore>| Election::new(Arc::clone(store), "leader", lasting_ttl(fixture));
    let mut news = election(&two).watch();
    assert_eq!(next(&mut news).await, LeaderUpdate::Vacant);
    // A key that only begins like the election's makes no leader.
    commit(&*two, Transaction::new().put("leadership", "x")).await;
    let old = election(&one).campaign("old").await.unwrap();
    assert!(matches!(led_by(&mut news, "old").await, LeaderUpdate::Leads(entry) if entry.key == "leader"));
    commit(&*one, Transaction::new().when(old.fence()).put("state", "old")).await;

    // The old leader does not know that its key is gone, as when it was stopped for longer than its lease.
    commit(&*two, Transaction::new().delete("leader")).await;
    let new = timeout(patience(), election(&two).campaign("new")).await.expect("nobody succeeds").unwrap();
    led_by(&mut news, "new").await;
    let late = Transaction::new().when(old.fence()).put("state", "late");
    assert_eq!(one.commit(late).await.unwrap(), Committed::Conflict);
    commit(&*two, Transaction::new().when(new.fence()).put("state", "new")).await;
    // Its end does not end the new one.
    old.resign().await;
    assert_eq!(one.get("leader").await.unwrap().unwrap().value, "new");
    assert!(!new.is_lost());

    two.close().await;
    timeout(patience(), new.lost()).await.expect("a closed store's leader leads on");
    let failure = election(&two).campaign("late").await.unwrap_err();
    assert!(matches!(failure, crate::StateError::Closed { .. }), "{failure}");
}

pub(super) async fn a_leader_whose_lease_expired_is_replaced(users: Users, fixture: &dyn Fixture) {
    let election = |store: &Arc<dyn StateStore>| Election::new(Arc::clone(store), "leader", lasting_ttl(fixture));
    let first = election(&users.one).campaign("first").await.unwrap();
    let second = election(&users.two);
    let waiting = tokio::spawn(async move { second.campaign("second").await.unwrap() });
    if !fixture.expire(first.lease()).await {
        drop(first);
    } else {
        timeout(patience(), first.lost()).await.expect("nobody told the leader");
    }
    let second = timeout(patience(), waiting).await.expect("nobody succeeds").unwrap();
    let fenced = Transaction::new().when(second.fence()).put("state", "second");
    commit(&*users.two, fenced).await;
}

async fn next(news: &mut LeaderWatch) -> LeaderUpdate {
    timeout(patience(), news.next()).await.expect("no news of the leader").expect("the watch ended")
}

async fn led_by(news: &mut LeaderWatch, value: &str) -> LeaderUpdate {
    loop {
        let update = next(news).await;
        if matches!(&update, LeaderUpdate::Leads(entry) if entry.value == value) {
            return update;
        }
    }
}
