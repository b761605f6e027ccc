//! The store in a real etcd: the conformance suite, and what happens when members die, hang, forget and ask for passwords.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_state::conformance::{self, Fixture, Known, Users, by_key, commit, next, patience};
use forebay_state::{
    Committed, Election, EtcdOptions, EtcdStore, EtcdUser, LeaseId, StateError, StateStore, Transaction, Update,
};
use forebay_testkit::{Authority, Etcd, EtcdSetup, Issued};
use tokio::time::timeout;

fn start(setup: &EtcdSetup) -> Option<Etcd> {
    Etcd::start(setup).unwrap()
}

fn options(etcd: &Etcd) -> EtcdOptions {
    EtcdOptions::new(etcd.endpoints(), "test")
}

fn store(options: EtcdOptions) -> EtcdStore {
    EtcdStore::new(options).unwrap()
}

struct OneMember {
    etcd: Etcd,
    clusters: AtomicU32,
}

#[async_trait::async_trait]
impl Fixture for OneMember {
    async fn users(&self) -> Users {
        let cluster = format!("cluster-{}", self.clusters.fetch_add(1, Ordering::Relaxed));
        // Others use the same etcd: some commits wait for many.
        let options =
            EtcdOptions { deadline: Duration::from_secs(20), ..EtcdOptions::new(self.etcd.endpoints(), cluster) };
        Users { one: Arc::new(store(options.clone())), two: Arc::new(store(options)) }
    }

    fn shortest_ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn expire(&self, lease: LeaseId) -> bool {
        let mut client = self.etcd.client(None).await.unwrap();
        client.lease_revoke(lease.0.cast_signed()).await.unwrap();
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_the_contract() {
    let Some(etcd) = start(&EtcdSetup::default()) else { return };
    conformance::check(Arc::new(OneMember { etcd, clusters: 0.into() })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_killed_and_comes_back_loses_nobodys_watch_and_a_long_lease() {
    let Some(mut etcd) = start(&EtcdSetup::default()) else { return };
    // Long enough for a busy machine to answer and to renew in; no longer, as the loss of each is waited for.
    let brief = Duration::from_secs(4);
    let store = Arc::new(store(EtcdOptions { deadline: brief, ..options(&etcd) }));
    let election = Election::new(Arc::clone(&store) as Arc<dyn StateStore>, "leader", brief);
    let deposed = election.campaign("first term").await.unwrap();
    let (long, short) = (store.lease(Duration::from_secs(90)).await.unwrap(), store.lease(brief).await.unwrap());
    let put = Transaction::new().put_leased("long", "x", long.id()).put_leased("short", "x", short.id());
    commit(&*store, put.put("a", "1")).await;
    let mut watch = store.watch("");
    let mut known = Known::default();
    known.follow_until(&mut watch, |known| known.entries.len() == 4).await;

    etcd.kill(0).unwrap();
    let Update::Lost { reason } = next(&mut watch).await else { panic!("the loss was not told") };
    assert!(reason.contains("cannot be reached") && reason.contains("127.0.0.1"), "{reason}");
    known.apply(Update::Lost { reason });
    let failure = store.get("a").await.unwrap_err();
    assert!(failure.is_unavailable(), "{failure}");
    let failure = store.commit(Transaction::new().put("b", "x")).await.unwrap_err();
    assert!(failure.is_unavailable(), "{failure}");
    timeout(patience(), short.lost()).await.expect("a lease that cannot be renewed is lost");
    timeout(patience(), deposed.lost()).await.expect("a leader without a store leads on");
    assert!(!long.is_lost());

    etcd.restart(0).unwrap();
    // Known::apply checks that the loss was told once, and that nothing comes twice.
    known.follow_until(&mut watch, |known| !known.is_lost && !known.entries.contains_key("short")).await;
    let leader = timeout(patience(), election.campaign("second term")).await.expect("nobody leads any more").unwrap();
    let late = Transaction::new().when(deposed.fence()).put("a", "late");
    assert_eq!(store.commit(late).await.unwrap(), Committed::Conflict);
    commit(&*store, Transaction::new().when(leader.fence()).put("a", "2")).await;
    known.follow_until(&mut watch, |known| known.entries["a"].0 == "2").await;
    assert_eq!(known.snapshots, 1, "the watch went on where it was");
    assert!(known.entries.contains_key("long"));
    long.revoke().await;
    known.follow_until(&mut watch, |known| !known.entries.contains_key("long")).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compacted_while_away_comes_as_a_snapshot() {
    let Some(mut etcd) = start(&EtcdSetup::default()) else { return };
    let away = store(EtcdOptions { deadline: Duration::from_secs(3), ..options(&etcd) });
    commit(&away, Transaction::new().put("a", "1").put("b", "1")).await;
    let mut watch = away.watch("");
    let mut known = Known::default();
    known.follow_until(&mut watch, |known| known.entries.len() == 2).await;
    let proxied = etcd.endpoints();
    etcd.kill(0).unwrap();
    known.follow_until(&mut watch, |known| known.is_lost).await;
    // The watch comes back when it has missed something that etcd does not remember.
    etcd.restart_apart(0).unwrap();
    assert_ne!(etcd.endpoints(), proxied);
    let other = store(options(&etcd));
    commit(&other, Transaction::new().delete("a").put("c", "1")).await;
    commit(&other, Transaction::new().put("b", "2")).await;
    etcd.compact().await.unwrap();
    other.close().await;
    etcd.restart(0).unwrap();
    let store = store(options(&etcd));
    known.follow_until(&mut watch, |known| !known.is_lost).await;
    assert_eq!(known.snapshots, 2);
    assert_eq!(known.entries, by_key(&store.list("").await.unwrap()));
    commit(&store, Transaction::new().put("d", "1")).await;
    known.follow_until(&mut watch, |known| known.entries.contains_key("d")).await;
    store.close().await;
    away.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_one_of_three_members_may_die_or_hang() {
    let Some(mut etcd) = start(&EtcdSetup { members: 3, ..EtcdSetup::default() }) else { return };
    let store = Arc::new(store(options(&etcd)));
    // So long that it outlives elections on a busy machine.
    let lease = store.lease(Duration::from_secs(20)).await.unwrap();
    commit(&*store, Transaction::new().put_leased("leased", "x", lease.id())).await;
    let mut watch = store.watch("");
    let mut known = Known::default();
    known.follow_until(&mut watch, |known| known.entries.len() == 1).await;
    for member in 0..3 {
        etcd.kill(member).unwrap();
        let key = format!("after-{member}");
        put_whatever_happens(&*store, &key).await;
        known.follow_until(&mut watch, |known| known.entries.contains_key(&key)).await;
        assert!(!known.is_lost, "two of three are enough");
        etcd.restart(member).unwrap();
    }
    // A member that hangs keeps its connections: only the deadline tells.
    etcd.pause(1).unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        assert!(store.get("after-1").await.unwrap().is_some());
    }
    put_whatever_happens(&*store, "after-pause").await;
    assert!(start.elapsed() < patience() / 2, "{:?}", start.elapsed());
    etcd.resume(1).unwrap();
    known.follow_until(&mut watch, |known| known.entries.contains_key("after-pause")).await;
    assert!(!lease.is_lost() && store.get("leased").await.unwrap().is_some());
    store.close().await;
}

/// Repeats a commit whose answer was lost, which is harmless for this one.
async fn put_whatever_happens(store: &dyn StateStore, key: &str) {
    let put = async {
        while let Err(error) = store.commit(Transaction::new().put(key, "x")).await {
            assert!(error.is_unavailable(), "{error}");
        }
    };
    timeout(patience(), put).await.expect("no commit succeeds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_certificates_on_both_sides() {
    let Some(etcd) = start(&EtcdSetup { tls: true, ..EtcdSetup::default() }) else { return };
    let ca_file = etcd.ca_file().map(ToOwned::to_owned);
    let identity = etcd.identity_files().map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
    let with_tls = EtcdOptions { ca_file: ca_file.clone(), identity, ..options(&etcd) };
    let store = store(with_tls.clone());
    let mut watch = store.watch("");
    next(&mut watch).await;
    let lease = store.lease(Duration::from_secs(20)).await.unwrap();
    commit(&store, Transaction::new().put_leased("a", "1", lease.id())).await;
    assert!(matches!(next(&mut watch).await, Update::Changed { puts, .. } if puts.len() == 1));
    store.close().await;

    // If etcd refuses the client, the client sees the connection closed, with or without the reason. If the client
    // refuses etcd, its failure says why.
    let strangers = [
        (EtcdOptions { identity: None, ..with_tls.clone() }, "etcd at https://"),
        (EtcdOptions { ca_file: None, ..with_tls.clone() }, "check the certificate"),
        (EtcdOptions { ca_file: None, identity: None, ..with_tls.clone() }, "check the certificate"),
    ];
    for (stranger, expected) in strangers {
        // A connection has half of it: none is to be too late to be refused.
        let deadline = Duration::from_secs(4);
        let store = EtcdStore::new(EtcdOptions { deadline, ..stranger }).unwrap();
        let failure = store.get("a").await.unwrap_err();
        assert!(failure.to_string().contains(expected), "{failure}");
        store.close().await;
    }
    let absent = EtcdOptions { ca_file: Some("/nowhere/ca.pem".into()), ..with_tls };
    let failure = EtcdStore::new(absent).unwrap_err();
    assert!(matches!(&failure, StateError::Options { setting, .. } if setting == "/nowhere/ca.pem"), "{failure}");
}

/// The certificate files of a client, which a test replaces.
struct Files(tempfile::TempDir);

impl Files {
    fn new(ca: &str, issued: &Issued) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("ca.pem", ca);
        files.replace(issued);
        files
    }

    fn options(&self, etcd: &Etcd) -> EtcdOptions {
        let at = |name: &str| self.0.path().join(name);
        let identity = Some((at("certificate.pem"), at("key.pem")));
        let reread_every = Duration::from_millis(50);
        EtcdOptions { ca_file: Some(at("ca.pem")), identity, reread_every, ..options(etcd) }
    }

    fn replace(&self, issued: &Issued) {
        self.write("certificate.pem", &issued.certificate);
        self.write("key.pem", &issued.key);
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(patience(), waiting).await.unwrap_or_else(|_| panic!("it does not happen: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_etcd_does_not_know_are_replaced_without_a_new_store() {
    let Some(etcd) = start(&EtcdSetup { tls: true, ..EtcdSetup::default() }) else { return };
    let authority = etcd.authority().unwrap();
    let files = Files::new(authority.pem(), &Authority::new().unwrap().issue().unwrap());
    let store = store(EtcdOptions { deadline: Duration::from_secs(1), ..files.options(&etcd) });
    assert!(store.get("a").await.is_err(), "a stranger's certificate is taken");
    files.replace(&authority.issue().unwrap());
    until("the new pair is used", || store.certificates().renewals() > 0).await;
    put_whatever_happens(&store, "a").await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_under_watches_and_leases_that_notice_nothing() {
    let Some(etcd) = start(&EtcdSetup { tls: true, ..EtcdSetup::default() }) else { return };
    let authority = etcd.authority().unwrap();
    let files = Files::new(authority.pem(), &authority.issue().unwrap());
    let began = Instant::now();
    let store = store(files.options(&etcd));
    let lease = store.lease(Duration::from_secs(6)).await.unwrap();
    commit(&store, Transaction::new().put_leased("leased", "x", lease.id())).await;
    let mut watch = store.watch("");
    let mut known = Known::default();
    known.follow_until(&mut watch, |known| known.entries.contains_key("leased")).await;
    for round in 1..=3 {
        files.replace(&authority.issue().unwrap());
        until("the new pair is used", || store.certificates().renewals() >= round).await;
        let key = format!("after-{round}");
        put_whatever_happens(&store, &key).await;
        known.follow_until(&mut watch, |known| known.entries.contains_key(&key)).await;
    }
    let replaced = Instant::now();

    // A certificate without its key: the last pair stays in use, and that is told.
    let next = authority.issue().unwrap();
    files.write("certificate.pem", &next.certificate);
    until("the mixed pair is refused", || store.certificates().refused_for().is_some()).await;
    let before = store.certificates().renewals();
    put_whatever_happens(&store, "while-refused").await;
    known.follow_until(&mut watch, |known| known.entries.contains_key("while-refused")).await;
    files.write("key.pem", &next.key);
    until("the whole pair is used", || store.certificates().renewals() > before).await;
    until("nothing is refused", || store.certificates().refused_for().is_none()).await;

    // Known::apply checks that nothing was told twice.
    assert!(known.snapshots == 1 && !known.is_lost, "the watch went on where it was");
    until("the lease was renewed since", || lease.is_lost() || lease.tenure().covers(began, replaced + lease.ttl()))
        .await;
    assert!(!lease.is_lost());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_passwords_and_tokens_that_etcd_forgot() {
    let Some(mut etcd) = start(&EtcdSetup::default()) else { return };
    etcd.enable_users("forebay", "secret", "/forebay/").await.unwrap();
    let user = |name: &str, password: &str| Some(EtcdUser { name: name.to_owned(), password: password.to_owned() });
    let with_user = EtcdOptions { user: user("forebay", "secret"), ..options(&etcd) };
    assert!(!format!("{with_user:?}").contains("secret"));
    let store = store(with_user.clone());
    let mut watch = store.watch("");
    let mut known = Known::default();
    known.apply(next(&mut watch).await);
    let lease = store.lease(Duration::from_secs(20)).await.unwrap();
    commit(&store, Transaction::new().put_leased("a", "1", lease.id())).await;
    known.follow_until(&mut watch, |known| known.entries.len() == 1).await;

    for stranger in [None, user("forebay", "wrong"), user("nobody", "secret")] {
        let store = EtcdStore::new(EtcdOptions { user: stranger, ..with_user.clone() }).unwrap();
        let failure = store.get("a").await.unwrap_err();
        assert!(matches!(&failure, StateError::Refused { .. }), "{failure:?}");
        assert!(
            failure.to_string().contains("check the etcd user") && !failure.to_string().contains("secret"),
            "{failure}"
        );
        store.close().await;
    }

    // etcd keeps tokens in memory: after a restart ours is worth nothing, and a new one is asked for.
    etcd.restart(0).unwrap();
    commit_when_back(&store, "b").await;
    known.follow_until(&mut watch, |known| known.entries.contains_key("b")).await;
    assert!(!lease.is_lost());
    store.close().await;
}

async fn commit_when_back(store: &dyn StateStore, key: &str) {
    put_whatever_happens(store, key).await;
    assert!(store.get(key).await.unwrap().is_some());
}

#[test]
fn options_that_cannot_work_are_refused_with_a_reason() {
    let etcd = |endpoints: &[&str], cluster: &str| EtcdOptions::new(endpoints.iter().copied(), cluster);
    let with_ca = EtcdOptions { ca_file: Some("ca.pem".into()), ..etcd(&["http://a:2379"], "c") };
    let user = Some(EtcdUser { name: "forebay".into(), password: "secret".into() });
    let in_clear = EtcdOptions { user, ..etcd(&["http://a:2379"], "c") };
    let bad =
        [etcd(&[], "c"), etcd(&["ftp://a"], "c"), etcd(&["a:2379"], ""), etcd(&["a:2379"], "a/b"), with_ca, in_clear];
    for options in bad {
        let failure = EtcdStore::new(options).unwrap_err();
        assert!(matches!(failure, StateError::Options { .. }), "{failure}");
    }
}
