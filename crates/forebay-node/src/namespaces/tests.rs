//! What a worker shows, and what it refuses.

use super::*;
use forebay_config::{Config, Sources};
use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{Op, Request, Service as _};
use forebay_types::ByteSize;

fn record(options: &[(&str, &str)]) -> MountRecord {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    MountRecord { path: "/s3".into(), origin: "s3://bucket".into(), options }
}

#[test]
fn a_mounts_options_are_its_origins() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let directory = file.path().parent().unwrap().display();
    let allowing = Sources::new().flags([format!("cluster.mounts.directories={directory}")]);
    let (strict, loaded) = (Config::load(&Sources::new()).unwrap(), Config::load(&allowing).unwrap());
    std::fs::write(file.path(), "hush\n").unwrap();
    let reference = format!("file:{}", file.path().display());
    let mount = record(&[("s3.region", "eu"), (ID, &reference), (SECRET, &reference), ("s3.path_style", "true")]);
    let made = options(&loaded, &mount).unwrap().s3;
    let refused = format!("{:#}", options(&strict, &mount).unwrap_err());
    assert!(refused.contains("cluster.mounts.directories"), "{refused}");
    let root = MountRecord { origin: "file:///".into(), ..record(&[]) };
    assert!(open(&loaded, &root).is_err());
    assert_eq!((made.region.as_deref(), made.path_style), (Some("eu"), Some(true)));
    assert_eq!(made.keys.unwrap().secret_access_key, "hush");
    assert!(options(&loaded, &record(&[(ID, "role"), (SECRET, "role")])).unwrap().s3.keys.is_none());
}

#[test]
fn an_option_that_is_none_or_half_a_key_is_refused_by_name() {
    let loaded = Config::load(&Sources::new()).unwrap();
    let refused = |mount: &[(&str, &str)]| format!("{:#}", options(&loaded, &record(mount)).unwrap_err());
    assert!(refused(&[("s3.regoin", "eu")]).contains("s3.regoin"));
    assert!(refused(&[("s3.anonymous", "yes")]).contains("neither"));
    assert!(refused(&[(ID, "env:FOREBAY_TEST_NO_SUCH")]).contains("FOREBAY_TEST_NO_SUCH"));
    assert!(check(&loaded, &record(&[("gcs.token", "role")])).unwrap_err().contains("gcs.token"));
    assert!(check(&loaded, &record(&[(ID, "env:THERE_ONLY"), (SECRET, "env:THERE_ONLY")])).is_ok());
}

#[test]
fn a_hot_file_gets_replicas_and_keeps_what_people_said() {
    let policy = |path: &str, change: fn(&mut PolicyRecord)| {
        let mut record = PolicyRecord { path: path.into(), ..PolicyRecord::default() };
        change(&mut record);
        (path.to_owned(), record)
    };
    let made = BTreeMap::from([
        policy("/s3", |policy| policy.replicas = Some(4)),
        policy("/s3/a", |policy| policy.pin = Some(true)),
    ]);
    let hot = BTreeMap::from([
        policy("/s3/a", |policy| policy.replicas = Some(3)),
        policy("/other", |policy| policy.replicas = Some(3)),
    ]);
    let table = table(&made, Some(&hot));
    let of = |path: &str| table.of(&FsPath::new(path).unwrap());
    assert_eq!((of("/s3/a").replicas, of("/s3/a").pin), (Some(4), Some(true)));
    assert_eq!(of("/other").replicas, Some(3));
}

#[tokio::test]
async fn what_is_told_is_shown_before_the_worker_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let allow = format!("cluster.mounts.directories={}", directory.path().display());
    let loaded = Config::load(&Sources::new().flags([allow])).unwrap();
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
    let store = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let worker = assembly::worker(&loaded.config, store, Vec::new(), true).unwrap();
    let shown = Shown {
        loaded,
        worker: Arc::clone(&worker),
        configured: Vec::new(),
        opened: BTreeMap::new(),
        misses_any: false,
    };
    let (mounts, policies, hot) = (watch::channel(None).0, watch::channel(None).0, watch::channel(None).0);
    let (show, mut shows) = watch::channel(false);
    let stop = CancellationToken::new();
    let tables = (mounts.subscribe(), policies.subscribe(), hot.subscribe());
    let following = tokio::spawn(follow(shown, tables, show, stop.clone()));

    // Half of what there is to know is not enough, whichever half.
    policies.send_replace(Some(Arc::default()));
    hot.send_replace(Some(Arc::default()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!*shows.borrow(), "it says so without mounts");
    let origin = format!("file://{}", directory.path().display());
    let mount = MountRecord { path: "/data".into(), origin, options: BTreeMap::new() };
    mounts.send_replace(Some(Arc::new(BTreeMap::from([("data".to_owned(), mount)]))));
    let said = tokio::time::timeout(Duration::from_secs(30), shows.wait_for(|shows| *shows)).await;
    assert!(*said.expect("it is said").unwrap());
    let asked = Request::on_path(Op::Stat, b"/data".to_vec().into(), Duration::from_secs(30));
    let found = worker.handle(asked, false).await;
    assert!(found.is_ok(), "{found:?}");
    stop.cancel();
    following.await.unwrap();
    worker.close().await;
}
