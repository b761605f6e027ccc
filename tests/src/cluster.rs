//! A cluster: a real etcd, a bucket, and what the processes of one cluster have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd_client::GetOptions;
use forebay_testkit::{Etcd, EtcdSetup};
use serde_json::Value;

use crate::{Bucket, Coordinator, Mount, Setup, Tree, Worker, eventually, skipped};

const RESTART_WITHIN: Duration = Duration::from_secs(60);
/// Small blocks, so that each worker owns many of every file.
pub const BLOCK: u64 = 256 << 10;
/// The variables of a worker's environment that hold the keys of the bucket. No SDK looks for them.
const KEYS: [(&str, &str); 2] = [("ORIGIN_KEY", "AWS_ACCESS_KEY_ID"), ("ORIGIN_SECRET", "AWS_SECRET_ACCESS_KEY")];
/// What all processes of a cluster are told: they notice within some seconds what is gone, as its connections and its lease
/// end, and not what had no processor for a moment; and they wait for a peer that has what they miss, and send no read twice,
/// so that what the origin is asked is the same on any machine.
const SETTINGS: [&str; 10] = [
    "block.size=256KiB",
    "cluster.lease_ttl=10s",
    "cluster.etcd.timeout=2s",
    "network.tcp.keepalive=500ms",
    "network.tcp.dead_after=20s",
    "worker.peer_timeout=20s",
    "client.hedge.enabled=false",
    "client.retry.max_backoff=1s",
    "worker.memory.prewarm=false",
    "worker.warmup=1h",
];

/// An etcd and a bucket, for workers, mounts and coordinators of one cluster.
pub struct Cluster {
    /// The etcd that the state is in.
    pub etcd: Etcd,
    /// The origin.
    pub bucket: Bucket,
}

impl Cluster {
    /// An etcd with this many members; `None` where it is not installed, which is said.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(members: usize) -> Option<Self> {
        let etcd = Etcd::start(&EtcdSetup { members, ..EtcdSetup::default() }).expect("etcd");
        if etcd.is_none() {
            skipped("etcd is not installed (apt-get install etcd-server)");
        }
        Some(Self { etcd: etcd?, bucket: Bucket::new() })
    }

    /// How any process of the cluster is started.
    ///
    /// # Panics
    /// When the bucket has no keys.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let known = self.bucket.environment();
        let value = |name: &str| known.iter().find(|(known, _)| *known == name).expect("a key").1.clone();
        let setup =
            KEYS.into_iter().fold(Setup::default(), |setup, (ours, theirs)| setup.variable(ours, &value(theirs)));
        let setup = setup.argument("--etcd", &self.etcd.endpoints().join(",")).options(&SETTINGS);
        // What mounts of the cluster may ask for.
        let [key, secret] = KEYS.map(|(ours, _)| ours);
        setup
            .option(&format!("cluster.mounts.endpoints={}", self.bucket.proxy().url()))
            .option(&format!("cluster.mounts.environment={key},{secret}"))
    }

    /// Starts a worker with 128 MiB of memory for blocks.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn worker(&self, name: &str) -> Worker {
        self.setup().memory("128MiB").member(name)
    }

    /// Mounts what the workers serve, and keeps next to nothing itself, nor does the kernel.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn mount(&self) -> Mount {
        self.setup().option("client.memory.size=8MiB").served_by_the_mount().mount_cluster()
    }

    /// Starts a coordinator.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn coordinator(&self) -> Coordinator {
        self.setup().coordinator()
    }

    /// The options of a mount that shows the bucket, with references in place of its keys.
    #[must_use]
    pub fn mount_options(&self) -> Vec<String> {
        let options = [
            format!("s3.endpoint={}", self.bucket.proxy().url()),
            "s3.region=us-east-1".to_owned(),
            "allow_http=true".to_owned(),
            format!("s3.access_key_id=env:{}", KEYS[0].0),
            format!("s3.secret_access_key=env:{}", KEYS[1].0),
        ];
        options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect()
    }

    /// The secret key of the bucket.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn secret(&self) -> String {
        let environment = self.bucket.environment();
        environment.into_iter().find(|(name, _)| *name == KEYS[1].1).expect("a secret key").1
    }

    /// Puts `tree` into the bucket and shows it at `/s3` on these workers.
    ///
    /// # Panics
    /// When it does not show in time.
    #[must_use]
    #[track_caller]
    pub fn run(self, tree: &Tree, workers: Vec<(&'static str, Worker)>) -> Running {
        tree.put_into(&self.bucket, "");
        let coordinator = self.coordinator();
        let (names, workers): (Vec<&str>, Vec<Worker>) = workers.into_iter().unzip();
        coordinator.wait_for_active(&names);
        coordinator.add_mount(&self, "/s3");
        workers.iter().for_each(|worker| worker.wait_for("/s3"));
        Running { mount: self.mount(), workers, coordinator, cluster: self }
    }

    /// Starts an etcd member that was killed.
    ///
    /// # Panics
    /// When it does not serve in time.
    #[track_caller]
    pub fn restart_etcd(&mut self, member: usize) {
        // A connection of another process may have its port for a moment.
        eventually("etcd serves again", RESTART_WITHIN, || self.etcd.restart(member).is_ok());
    }

    /// Writes a record of a mount past all coordinators, as anyone can who reaches etcd.
    ///
    /// # Panics
    /// When etcd does not take it.
    pub fn smuggle_mount(&self, path: &str, origin: &str, options: &[(&str, &str)]) {
        let options: BTreeMap<_, _> = options.iter().copied().collect();
        let record = serde_json::json!({ "path": path, "origin": origin, "options": options });
        let key = format!("/forebay/forebay/mounts/{}", path.trim_start_matches('/'));
        runtime().block_on(async {
            let mut client = self.etcd.client(None).await.expect("a client of etcd");
            client.put(key, record.to_string(), None).await.expect("etcd takes the record");
        });
    }

    /// Everything that etcd holds, as text.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, String> {
        let answer = runtime().block_on(async {
            let mut client = self.etcd.client(None).await.expect("a client of etcd");
            client.get("/", Some(GetOptions::new().with_prefix())).await.expect("etcd answers")
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        answer.kvs().iter().map(|entry| (text(entry.key()), text(entry.value()))).collect()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl Coordinator {
    /// Shows the bucket of the cluster at `path`.
    ///
    /// # Panics
    /// When that is refused.
    #[track_caller]
    pub fn add_mount(&self, cluster: &Cluster, path: &str) {
        let mut command = ["mounts", "add", path, &cluster.bucket.url()].map(str::to_owned).to_vec();
        command.extend(cluster.mount_options());
        let _ = self.ask(&command).succeeded();
    }
}

/// A cluster at work: the bucket shows at `/s3`.
pub struct Running {
    /// A mount that caches next to nothing.
    pub mount: Mount,
    /// The workers.
    pub workers: Vec<Worker>,
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The rest.
    pub cluster: Cluster,
}

impl Running {
    /// Where the blocks of a file are, as the mount sees it: what `forebay fs location --json` says.
    ///
    /// # Panics
    /// When it says nothing.
    #[must_use]
    #[track_caller]
    pub fn location(&self, file: &str) -> Vec<Value> {
        let located = self.mount.ask_of(file, &["fs", "location", "--json"]).succeeded().text();
        located.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The workers that own each block of a file.
    ///
    /// # Panics
    /// As [`Running::location`].
    #[must_use]
    #[track_caller]
    pub fn owners(&self, file: &str) -> BTreeMap<u64, BTreeSet<String>> {
        let mut owners: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for row in self.location(file).iter().filter(|row| row["owner"] == true) {
            let worker = row["worker"].as_str().expect("a worker").to_owned();
            owners.entry(row["block"].as_u64().expect("a block")).or_default().insert(worker);
        }
        owners
    }
}
