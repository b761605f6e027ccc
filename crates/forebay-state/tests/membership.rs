//! Workers that come, leave and go, seen by others through a state store in files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_cluster::grants::Role;
use forebay_cluster::records::members::{Addresses, DRAINS, DrainProgress, JOINS, WorkerRecord, WorkerState};
use forebay_cluster::{JoinHistory, Membership as _, Reach, Topology};
use forebay_locks::Mutex;
use forebay_state::membership::{Members, MembersOptions, Registered, RegisteredOptions, Table};
use forebay_state::{
    Committed, Entry, FileOptions, FileStore, Lease, Snapshot, StateError, StateStore, Transaction, Watch,
    encode_segment,
};

/// A worker is new from its start on: its name, that it joined and its record must be on the disk before that is over.
const OPTIONS: RegisteredOptions = RegisteredOptions { ttl: Duration::from_secs(5), warmup: Duration::from_secs(10) };
const WITHIN: Duration = Duration::from_secs(60);

struct Scene {
    store: Arc<dyn StateStore>,
    members: Members,
    _directory: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = FileStore::open(directory.path().join("state"), FileOptions::default()).await.unwrap();
        let store: Arc<dyn StateStore> = Arc::new(store);
        let options = MembersOptions {
            group: "g 1".into(),
            grace: Duration::from_secs(1),
            until_told: Topology::default(),
            reach: Reach::default(),
        };
        let members = Members::watch(&store, options);
        assert!(members.told(WITHIN).await);
        Self { store, members, _directory: directory }
    }

    fn worker(&self, name: &str, rpc: &str) -> Registered {
        worker_in(Arc::clone(&self.store), name, rpc)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Topology, &[WorkerRecord]) -> bool) {
        let found = tokio::time::timeout(WITHIN, async {
            while !holds(&self.members.topology(), &self.members.knowledge().records) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        if found.await.is_err() {
            panic!("not seen: {what}; {:?}", self.members.knowledge());
        }
    }

    async fn close(self) {
        self.members.close().await;
        self.store.close().await;
    }
}

fn worker_in(store: Arc<dyn StateStore>, name: &str, rpc: &str) -> Registered {
    let addresses = Addresses { rpc: rpc.into(), ..Addresses::default() };
    let record =
        WorkerRecord { name: name.into(), group: "g 1".into(), addresses, weight: 1.0, ..WorkerRecord::default() };
    Registered::start(store, record, OPTIONS, |_| (), async {})
}

/// A store of which one commit is not carried out before its caller has given it up.
struct Late {
    store: Arc<dyn StateStore>,
    /// The next one is that.
    is_next: AtomicBool,
    commit: Mutex<Option<Transaction>>,
}

#[async_trait::async_trait]
impl StateStore for Late {
    async fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.store.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        self.store.list(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        if self.is_next.swap(false, Ordering::Relaxed) {
            *self.commit.lock() = Some(transaction);
            return Err(StateError::Unavailable { store: self.describe(), reason: "it hangs".into() });
        }
        self.store.commit(transaction).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError> {
        self.store.lease(ttl).await
    }

    fn watch(&self, prefix: &str) -> Watch {
        self.store.watch(prefix)
    }

    fn describe(&self) -> String {
        self.store.describe()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

fn owners(topology: &Topology) -> Vec<&str> {
    topology.ring.members().iter().map(|member| &*member.name).collect()
}

#[tokio::test]
async fn a_worker_is_seen_while_it_lives_and_new_for_a_while() {
    let scene = Scene::new().await;
    let (one, two) = (scene.worker("w1", "a:1"), scene.worker("w2", "b:1"));
    scene.until("both", |topology, _| owners(topology) == ["w1", "w2"] && topology.warming.len() == 2).await;
    for entry in scene.store.list("").await.unwrap().entries {
        assert!(Role::Worker.may_write(&entry.key), "{} is not granted to workers", entry.key);
    }
    scene.until("both are warm", |topology, _| owners(topology) == ["w1", "w2"] && topology.warming.is_empty()).await;
    two.close().await;
    scene.until("the other", |topology, _| owners(topology) == ["w1"]).await;
    one.close().await;
    scene.until("nobody", |_, records| records.is_empty()).await;
    assert_eq!(owners(&scene.members.topology()), ["w1"], "the last known worker is better than none");
    scene.close().await;
}

#[tokio::test]
async fn a_worker_that_is_asked_to_leave_hands_over_and_may_stay_after_all() {
    let scene = Scene::new().await;
    let (one, two) = (scene.worker("w/1", "a:1"), scene.worker("w/1 too", "b:1"));
    scene.until("both", |topology, _| owners(topology).len() == 2).await;
    let drain = format!("{DRAINS}{}", encode_segment("w/1"));
    scene.store.commit(Transaction::new().put(&*drain, "{}")).await.unwrap();
    let mut leave = one.leave();
    tokio::time::timeout(WITHIN, leave.wait_for(|leave| *leave)).await.unwrap().unwrap();
    scene.until("one leaves", |topology, _| owners(topology) == ["w/1 too"] && topology.leaving.len() == 1).await;
    assert!(!*two.leave().borrow(), "a name that begins like another's is another");
    let progress = DrainProgress { bytes_total: 9, bytes_done: 9, bytes_moved: 9, failed: 0 };
    one.drained(progress, true);
    let drained = |record: &WorkerRecord| record.state == WorkerState::Drained && record.drain == Some(progress);
    scene.until("it is done", |_, records| records.iter().any(drained)).await;
    scene.store.commit(Transaction::new().delete(&*drain)).await.unwrap();
    scene.until("it stays", |topology, _| owners(topology).len() == 2 && topology.leaving.is_empty()).await;
    one.close().await;
    two.close().await;
    scene.close().await;
}

#[tokio::test]
async fn what_a_worker_said_before_does_not_come_after_what_it_said_since() {
    let scene = Scene::new().await;
    let late = Late { store: Arc::clone(&scene.store), is_next: AtomicBool::new(false), commit: Mutex::default() };
    let late = Arc::new(late);
    let worker = worker_in(Arc::clone(&late) as _, "w", "a:1");
    tokio::time::timeout(WITHIN, worker.standing().wait_for(Option::is_some)).await.unwrap().unwrap();
    late.is_next.store(true, Ordering::Relaxed);
    let drain = format!("{DRAINS}{}", encode_segment("w"));
    scene.store.commit(Transaction::new().put(&*drain, "{}")).await.unwrap();
    let says = |state: WorkerState| {
        move |_: &Topology, records: &[WorkerRecord]| records.iter().any(|record| record.state == state)
    };
    scene.until("it leaves", says(WorkerState::Draining)).await;
    scene.store.commit(Transaction::new().delete(&*drain)).await.unwrap();
    scene.until("it stays", says(WorkerState::Active)).await;
    let commit = late.commit.lock().take().expect("one was not carried out");
    assert_eq!(scene.store.commit(commit).await.unwrap(), Committed::Conflict);
    worker.close().await;
    scene.close().await;
}

#[tokio::test]
async fn two_workers_of_one_name_are_one_and_a_restarted_one_takes_its_name_back() {
    let scene = Scene::new().await;
    let one = scene.worker("w", "a:1");
    scene.until("one", |topology, _| owners(topology) == ["w"]).await;
    let other = scene.worker("w", "b:1");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(other.standing().borrow().is_none());
    assert_eq!(&*scene.members.topology().ring.members()[0].address, "a:1");
    // It was killed, its lease lives on, and it starts again at the same address.
    let again = scene.worker("w", "a:1");
    tokio::time::timeout(WITHIN, again.standing().wait_for(Option::is_some)).await.unwrap().unwrap();
    other.close().await;
    one.close().await;
    again.close().await;
    scene.close().await;
}

#[tokio::test]
async fn a_worker_that_flaps_owns_nothing_for_a_while() {
    let scene = Scene::new().await;
    for _ in 0..3 {
        let worker = scene.worker("w", "a:1");
        tokio::time::timeout(WITHIN, worker.standing().wait_for(Option::is_some)).await.unwrap().unwrap();
        worker.close().await;
    }
    let worker = scene.worker("w", "a:1");
    scene.until("damped", |_, records| records.iter().any(|record| record.state == WorkerState::Damped)).await;
    let mut standing = worker.standing();
    let standing = *tokio::time::timeout(WITHIN, standing.wait_for(Option::is_some)).await.unwrap().unwrap();
    assert_eq!(standing.map(|standing| standing.state), Some(WorkerState::Damped));
    worker.close().await;
    scene.close().await;
}

#[tokio::test]
async fn when_those_joined_that_are_long_gone_is_forgotten_as_a_new_one_joins() {
    let scene = Scene::new().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let key = |name: &str| format!("{JOINS}{}", encode_segment(name));
    let joined = |ago: u64| serde_json::to_vec(&JoinHistory { joins: vec![now - ago] }).unwrap();
    let known = Transaction::new().put(key("gone"), joined(2 * 24 * 3600)).put(key("lately"), joined(3600));
    // As a release to come may write it.
    scene.store.commit(known.put(key("new"), "{}")).await.unwrap();
    let worker = scene.worker("w", "a:1");
    tokio::time::timeout(WITHIN, worker.standing().wait_for(Option::is_some)).await.unwrap().unwrap();
    let mut left: Vec<_> = scene.store.list(JOINS).await.unwrap().entries.into_iter().map(|entry| entry.key).collect();
    left.sort_unstable();
    assert_eq!(left, [key("lately"), key("new"), key("w")]);
    worker.close().await;
    scene.close().await;
}

#[tokio::test]
async fn a_worker_whose_record_cannot_be_read_any_more_is_left_out_at_once() {
    let scene = Scene::new().await;
    let put = async |name: &str, value: Vec<u8>| {
        let key = WorkerRecord::key(&encode_segment("g 1"), &encode_segment(name));
        scene.store.commit(Transaction::new().put(key, value)).await.unwrap();
    };
    for name in ["w/1", "w/2"] {
        let record = WorkerRecord { name: name.into(), group: "g 1".into(), weight: 1.0, ..WorkerRecord::default() };
        put(name, record.encode()).await;
    }
    scene.until("both", |topology, _| owners(topology) == ["w/1", "w/2"]).await;
    // As a release to come may write it.
    put("w/1", b"{\"name\":\"w/1\",\"state\":\"resting\"}".to_vec()).await;
    scene.until("the other", |topology, records| owners(topology) == ["w/2"] && records.len() == 1).await;
    scene.close().await;
}

#[tokio::test]
async fn records_of_any_kind_are_kept_current_and_bad_ones_left_out() {
    let scene = Scene::new().await;
    let decode = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string());
    scene.store.commit(Transaction::new().put("mounts/a", "1")).await.unwrap();
    let table = Table::watch(&scene.store, "mounts/", decode);
    let mut records = table.records();
    let mut seen = async |expected: &[(&str, &str)]| {
        let is = |found: &Option<Arc<std::collections::BTreeMap<String, String>>>| {
            let found = found.as_ref().map(|found| found.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            found.is_some_and(|found| found.eq(expected.iter().copied()))
        };
        tokio::time::timeout(WITHIN, records.wait_for(is)).await.unwrap().map(|_| ()).unwrap();
    };
    seen(&[("a", "1")]).await;
    scene.store.commit(Transaction::new().put("mounts/b", "2").put("mounts/c", vec![0xff])).await.unwrap();
    seen(&[("a", "1"), ("b", "2")]).await;
    scene.store.commit(Transaction::new().put("mounts/a", vec![0xff]).delete("mounts/b")).await.unwrap();
    seen(&[]).await;
    table.close().await;
    scene.close().await;
}
