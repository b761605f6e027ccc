//! What a worker shows, and what it refuses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::opening::{ID, SECRET, open, options};
use super::*;
use forebay_cluster::records::mounts::AclRecord;
use forebay_config::{Config, Sources};
use forebay_memory::{Pool, PoolOptions};
use forebay_origin::ChosenBy;
use forebay_store::{Store, StoreOptions};
use forebay_transport::{Caller, Op, Request, Service as _};
use forebay_types::{ByteSize, Role};

fn record(options: &[(&str, &str)]) -> MountRecord {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    MountRecord { path: "/s3".into(), origin: "s3://bucket".into(), options, acl: None }
}

fn loaded(settings: &[&str]) -> Loaded {
    Config::load(&Sources::new().flags(settings.iter().copied())).unwrap()
}

/// Why a worker with these settings does not open a mount.
fn refused(settings: &[&str], mount: &MountRecord) -> String {
    match open(&loaded(settings), mount) {
        Ok(_) => panic!("{mount:?} is opened with {settings:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn a_mounts_options_are_its_origins() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let allowing = loaded(&[&format!("cluster.mounts.directories={}", file.path().parent().unwrap().display())]);
    std::fs::write(file.path(), "hush\n").unwrap();
    let reference = format!("file:{}", file.path().display());
    let mount = record(&[("s3.region", "eu"), (ID, &reference), (SECRET, &reference), ("s3.path_style", "true")]);
    let made = options(&allowing, &mount).unwrap().s3;
    assert!(refused(&[], &mount).contains("cluster.mounts.directories"));
    assert_eq!((made.region.as_deref(), made.path_style), (Some("eu"), Some(true)));
    assert_eq!(made.keys.unwrap().secret_access_key, "hush");
    assert!(options(&allowing, &record(&[(ID, "role"), (SECRET, "role")])).unwrap().s3.keys.is_none());
}

#[test]
fn an_option_that_is_none_or_half_a_key_is_refused_by_name() {
    let refused =
        |mount: &[(&str, &str)]| refused(&["cluster.mounts.environment=FOREBAY_TEST_NO_SUCH"], &record(mount));
    assert!(refused(&[("s3.regoin", "eu")]).contains("s3.regoin"));
    assert!(refused(&[("s3.anonymous", "yes")]).contains("neither"));
    assert!(refused(&[(ID, "env:FOREBAY_TEST_NO_SUCH")]).contains("FOREBAY_TEST_NO_SUCH"));
    let loaded = loaded(&[]);
    assert!(check(&loaded, &record(&[("gcs.token", "role")])).unwrap_err().contains("gcs.token"));
    assert!(check(&loaded, &record(&[(ID, "env:THERE_ONLY"), (SECRET, "env:THERE_ONLY")])).is_ok());
    assert!(check(&loaded, &record(&[(ID, "env:THERE_ONLY")])).unwrap_err().contains(SECRET));
}

#[test]
fn a_variable_of_the_environment_is_a_mounts_only_if_it_is_listed() {
    // Every process has it, and no list.
    let mount = record(&[(ID, "env:PATH"), (SECRET, "env:PATH")]);
    for settings in [&[] as &[&str], &["cluster.mounts.environment=PATH_,OTHER"]] {
        let why = refused(settings, &mount);
        assert!(why.contains("the mount /s3") && why.contains("cluster.mounts.environment"), "{why}");
        assert!(!why.contains(&std::env::var("PATH").unwrap()), "{why}");
    }
    let keys = options(&loaded(&["cluster.mounts.environment=OTHER,PATH"]), &mount).unwrap().s3.keys;
    assert_eq!(keys.unwrap().secret_access_key, std::env::var("PATH").unwrap());
    // Whether a variable is there is not told.
    let absent = record(&[(ID, "env:FOREBAY_TEST_NO_SUCH"), (SECRET, "env:FOREBAY_TEST_NO_SUCH")]);
    assert_eq!(refused(&[], &absent).replace("FOREBAY_TEST_NO_SUCH", "PATH"), refused(&[], &mount));
}

#[test]
fn a_server_is_a_mounts_only_if_it_is_listed() {
    let at = |origin: &str, options: &[(&str, &str)]| MountRecord { origin: origin.into(), ..record(options) };
    let anonymous = ("s3.anonymous", "true");
    let listed = ["cluster.mounts.endpoints=https://minio:9000,http://10.0.0.1,http://127.0.0.1:9000"];
    for mount in [
        at("s3://bucket", &[("s3.endpoint", "https://evil"), anonymous]),
        at("s3://bucket", &[("s3.endpoint", "https://minio:9001"), anonymous]),
        at("s3://bucket", &[("s3.endpoint", "http://minio:9000"), anonymous, ("allow_http", "true")]),
        at("s3://bucket", &[("s3.endpoint", "http://169.254.169.254"), anonymous, ("allow_http", "true")]),
        at("S3://bucket", &[("s3.endpoint", "https://evil"), anonymous]),
        at("https://evil/data", &[]),
        at("HTTP://127.0.0.1:9001/", &[]),
    ] {
        let why = refused(&listed, &mount);
        assert!(why.contains("the mount /s3") && why.contains("`cluster.mounts.endpoints` on this worker"), "{why}");
        // The workers may list it.
        assert_eq!(check(&loaded(&[]), &mount), Ok(()), "{mount:?}");
    }
    for (mount, may_be_local) in [
        (at("s3://bucket", &[("s3.endpoint", "https://minio:9000/x"), anonymous]), false),
        (at("http://127.0.0.1:9000/data", &[]), true),
        (at("http://10.0.0.1/data", &[("allow_http", "true")]), true),
    ] {
        let chosen_by = options(&loaded(&listed), &mount).unwrap().chosen_by;
        assert_eq!(chosen_by, ChosenBy::RecordWithServer { may_be_local });
        assert!(open(&loaded(&listed), &mount).is_ok(), "{mount:?}");
    }
}

#[test]
fn a_server_that_a_mount_names_gets_no_credentials_of_this_machine() {
    let settings = ["cluster.mounts.endpoints=https://minio", "origin.s3.profile=training", "origin.s3.anonymous=true"];
    let at_minio = |more: &[(&str, &str)]| record(&[&[("s3.endpoint", "https://minio")], more].concat());
    for more in [&[] as &[(&str, &str)], &[(ID, "role"), (SECRET, "role")]] {
        let why = refused(&settings, &at_minio(more));
        assert!(why.contains("no credentials for `https://minio`") && why.contains("s3.anonymous=true"), "{why}");
        assert!(check(&loaded(&[]), &at_minio(more)).unwrap_err().contains("no credentials"));
    }
    assert!(refused(&settings, &at_minio(&[("s3.profile", "other")])).contains("a profile is for"));
    let s3 = options(&loaded(&settings), &at_minio(&[("s3.anonymous", "true")])).unwrap().s3;
    assert_eq!((s3.profile, s3.anonymous), (None, true));
}

#[test]
fn a_mount_without_a_server_has_names_and_changes_nothing_about_the_workers_server() {
    let known = options(&loaded(&["origin.s3.endpoint=https://ours"]), &record(&[])).unwrap();
    assert_eq!((known.chosen_by, known.s3.endpoint.as_deref()), (ChosenBy::Record, Some("https://ours")));
    let strange: [(&str, &[(&str, &str)]); 6] = [
        ("s3://bucket", &[("s3.region", "x.evil.com/#")]),
        ("s3://bucket:9000", &[]),
        ("s3://b%2F..%2Fc", &[]),
        ("s3://bucket", &[("allow_http", "true")]),
        ("gs://bucket", &[("s3.endpoint", "https://evil")]),
        ("abfss://c\\@account.dfs.core.windows.net", &[]),
    ];
    for (origin, options) in strange {
        let mount = MountRecord { origin: origin.into(), ..record(options) };
        let why = check(&loaded(&[]), &mount).unwrap_err();
        assert!(why.contains("the mount /s3"), "{why}");
        let _ = refused(&["cluster.mounts.endpoints=https://evil"], &mount);
    }
}

#[test]
fn a_directory_is_a_mounts_only_below_those_that_are_listed_however_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink("/etc", data.join("link")).unwrap();
    let (allow, data) = (format!("cluster.mounts.directories={}", data.display()), data.display());
    let at = |origin: String| MountRecord { origin, ..record(&[]) };
    assert!(open(&loaded(&[&allow]), &at(format!("file://{data}"))).is_ok());
    assert!(open(&loaded(&[&allow]), &at(format!("FILE://{data}"))).is_ok());
    for origin in [
        "file:///etc".to_owned(),
        "FILE:///etc".to_owned(),
        "file:///".to_owned(),
        "file://localhost/etc".to_owned(),
        format!("file://{data}/.."),
        format!("file://{data}/%2e%2e"),
        format!("file://{data}/link"),
        format!("file://{data}/absent"),
    ] {
        let why = refused(&[&allow], &at(origin.clone()));
        assert!(why.contains("cluster.mounts.directories"), "{origin}: {why}");
    }
    for path in
        ["/etc/hostname", "/etc/absent", &format!("{data}/../../etc/hostname"), &format!("{data}/link/hostname")]
    {
        let reference = format!("file:{path}");
        let why = refused(&[&allow], &record(&[(ID, &reference), (SECRET, &reference)]));
        assert!(why.contains("is not there, or in none of"), "{path}: {why}");
    }
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

/// A worker that shows nothing yet, and may show `directory`.
async fn shown(directory: &std::path::Path) -> Shown {
    let loaded = loaded(&[&format!("cluster.mounts.directories={}", directory.display())]);
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
    let store = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let worker = assembly::worker(&loaded.config, store, Vec::new(), true).unwrap();
    Shown::new(loaded, worker, Vec::new())
}

fn mount_of(directory: &std::path::Path) -> MountRecord {
    let origin = format!("file://{}", directory.display());
    MountRecord { path: "/data".into(), origin, options: BTreeMap::new(), acl: None }
}

#[tokio::test]
async fn a_list_that_changes_counts_at_once_and_leaves_the_origin_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut shown = shown(directory.path()).await;
    let worker = Arc::clone(&shown.worker);
    let stat = async |caller: &Caller| {
        let asked = Request::on_path(Op::Stat, b"/data".to_vec().into(), Duration::from_secs(30)).by(caller.clone());
        worker.handle(asked, false).await.map(|_| ()).map_err(|failure| failure.kind())
    };
    let (open, ours) = (mount_of(directory.path()), Caller::proved(Role::Reader, "team-a", "spiffe://d/forebay/c/r/a"));
    let listed = |name: &str| {
        let acl = AclRecord { read: vec![name.to_owned()], write: Vec::new() };
        MountRecord { acl: Some(acl), ..open.clone() }
    };
    let denied = Err(FailureKind::PermissionDenied);
    let mut origins = Vec::new();
    for (record, of_nobody, of_ours) in [
        (open.clone(), Ok(()), Ok(())),
        (listed("team-a"), denied, Ok(())),
        (listed("team-b"), denied, denied),
        (open.clone(), Ok(()), Ok(())),
    ] {
        shown.show(&BTreeMap::from([("data".to_owned(), record.clone())])).await;
        assert_eq!((stat(&Caller::Unproved).await, stat(&ours).await), (of_nobody, of_ours), "{record:?}");
        assert_eq!(stat(&Caller::Local).await, Ok(()));
        origins.extend(shown.opened.values().map(|(_, origin)| Arc::clone(origin)));
    }
    assert!(origins.len() == 4 && origins.iter().all(|origin| Arc::ptr_eq(origin, &origins[0])));
    worker.close().await;
}

/// A file's version names its origin by the URL alone: bytes of the record's server would be read at the other mount.
#[tokio::test]
async fn no_record_plants_bytes_of_another_server_at_a_mount_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let mut shown = shown(directory.path()).await;
    let worker = Arc::clone(&shown.worker);
    shown.loaded = loaded(&["cluster.mounts.endpoints=https://theirs", "origin.s3.anonymous=true"]);
    let ours = assembly::open_origin(&shown.loaded, "s3://bucket/data").unwrap();
    shown.configured = vec![(FsPath::new("/ours").unwrap(), ours)];
    let elsewhere = [("s3.endpoint", "https://theirs"), ("s3.anonymous", "true")];
    type Record<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
    let records: [Record<'_>; 5] = [
        ("/planted", "s3://bucket/data", &elsewhere),
        ("/in-other-words", "S3://bucket/x/../data/", &elsewhere),
        ("/of-another-region", "s3://bucket/data", &[("s3.region", "cn-north-1")]),
        ("/the-same", "s3://bucket/data/", &[]),
        ("/another", "s3://bucket/data/below", &elsewhere),
    ];
    let record = |(path, origin, options): (&str, &str, &[(&str, &str)])| {
        (path.to_owned(), MountRecord { path: path.to_owned(), origin: origin.to_owned(), ..record(options) })
    };
    shown.show(&BTreeMap::from(records.map(record))).await;
    let paths: Vec<_> = shown.opened.keys().map(ToString::to_string).collect();
    assert_eq!((paths.as_slice(), shown.misses_any), (&["/another".to_owned(), "/the-same".to_owned()][..], false));
    worker.close().await;
}

/// Whether [`open_or_hang`] hangs.
static HANGS: AtomicBool = AtomicBool::new(true);
/// Longer than anything takes that does not hang.
const LONG: Duration = Duration::from_secs(60);

/// As where `/hangs` is of a network file system whose server is away.
fn open_or_hang(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<Arc<dyn Origin>> {
    let began = Instant::now();
    while record.path == "/hangs" && HANGS.load(Ordering::Relaxed) && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(10));
    }
    open(loaded, record)
}

#[tokio::test]
async fn a_mount_that_hangs_keeps_no_other_from_being_shown_and_is_shown_when_it_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut shown = shown(directory.path()).await;
    let worker = Arc::clone(&shown.worker);
    shown.opener = open_or_hang;
    let data = mount_of(directory.path());
    let hangs = MountRecord { path: "/hangs".into(), ..data.clone() };
    let records = BTreeMap::from([("data".to_owned(), data), ("hangs".to_owned(), hangs)]);
    let told = async || {
        let asked = Request::on_path(Op::Stats, Bytes::new(), LONG).by(Caller::Local);
        let stats = worker.handle(asked, false).await.unwrap().body;
        let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
        let opened = |path: &str| {
            let origins = stats["origins"].as_array().unwrap();
            origins.iter().find(|origin| origin["path"] == path).and_then(|origin| origin["opened"].as_bool())
        };
        ["/data", "/hangs"].map(opened)
    };
    for _ in 0..2 {
        shown.show(&records).await;
        assert_eq!(told().await, [Some(true), Some(false)]);
        let paths: Vec<_> = shown.opened.keys().map(ToString::to_string).collect();
        assert_eq!((paths.as_slice(), shown.opening.len()), (&["/data".to_owned()][..], 1));
        assert!(shown.misses_any, "it is tried again");
    }
    HANGS.store(false, Ordering::Relaxed);
    let began = Instant::now();
    while shown.misses_any {
        assert!(began.elapsed() < LONG, "it is not shown");
        tokio::time::sleep(Duration::from_millis(10)).await;
        shown.show(&records).await;
    }
    assert_eq!((shown.opened.len(), shown.opening.len()), (2, 0));
    assert_eq!(told().await, [Some(true), Some(true)]);
    worker.close().await;
}

#[tokio::test]
async fn what_is_told_is_shown_before_the_worker_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let shown = shown(directory.path()).await;
    let worker = Arc::clone(&shown.worker);
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
    let mount = mount_of(directory.path());
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
