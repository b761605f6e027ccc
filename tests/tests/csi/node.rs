//! A node: a kubelet's directory, a driver that is called as the kubelet calls it, and the daemons and keepers that it starts.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use forebay_csi::generated::csi::node_client::NodeClient;
use forebay_csi::generated::csi::volume_capability::access_mode::Mode;
use forebay_csi::generated::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use forebay_csi::generated::csi::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use forebay_e2e::{Bucket, Container, Finished, eventually, forebay_as, is_root, skipped, wrapped};
use forebay_types::Role;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const GROUP: u32 = 2000;
/// Lists the daemons in a container. What lists them has not the word that it looks for in its own command line.
const DAEMONS: &str = "grep -als '[-]-background-child' /proc/[0-9]*/cmdline";
/// The same of keepers.
const KEEPERS: &str = "grep -alz '^keepe[r]$' /proc/[0-9]*/cmdline";
/// The driver's place in the kubelet's directory.
pub(crate) const DRIVER: &str = "plugins/csi.forebay.io";

/// A node: a kubelet's directory and a driver, in a container that sees the mounts.
pub(crate) struct Node {
    runtime: Runtime,
    pub(crate) bucket: Bucket,
    pub(crate) directory: TempDir,
    /// Before the directory goes, all that runs and is mounted has to.
    container: Option<Container>,
    driver: Option<Child>,
    /// What starts keepers, in a pod of its own.
    keepers: Option<Child>,
}

impl Node {
    /// `None`, said, where there can be none.
    pub(crate) fn new() -> Option<Self> {
        if !is_root() {
            skipped("only root mounts for others");
            return None;
        }
        let container = match Container::privileged("true") {
            Ok(container) => container,
            Err(why) => {
                skipped(&format!("no namespaces here: {}", why.trim()));
                return None;
            }
        };
        let directory = tempfile::tempdir().unwrap();
        for made in ["kubelet/plugins_registry", "kubelet/plugins/staging", "run", "written"] {
            std::fs::create_dir_all(directory.path().join(made)).unwrap();
        }
        for pod in 1..=3 {
            std::fs::create_dir_all(directory.path().join(format!("kubelet/pods/{pod}"))).unwrap();
        }
        let runtime = Runtime::new().unwrap();
        let container = Some(container);
        let mut node = Self { runtime, bucket: Bucket::new(), directory, container, driver: None, keepers: None };
        node.start();
        Some(node)
    }

    pub(crate) fn container(&self) -> &Container {
        self.container.as_ref().expect("the container")
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join("kubelet").join(below)
    }

    pub(crate) fn text(&self, below: &str) -> String {
        self.path(below).display().to_string()
    }

    /// Starts the driver. Of the bucket it knows the server, and no credentials.
    pub(crate) fn start(&mut self) {
        let environment = [
            ("FOREBAY_RUN_DIR", self.directory.path().join("run").display().to_string()),
            ("FOREBAY_ORIGIN_S3_ENDPOINT", self.bucket.proxy().url()),
        ];
        // The shell gives way to the driver, which has its number.
        let mut command = forebay_as(Role::Worker, "csi", &environment);
        let program = command.get_program().to_owned();
        command.args(["csi", "--node-name", "node1", "--inline", "s3://data", "--inline-memory", "128MiB"]);
        command.arg("--kubelet-dir").arg(self.directory.path().join("kubelet"));
        if self.keepers.is_some() {
            command.arg("--keepers").arg(self.private("keepers.sock"));
        }
        let mut shell = Command::new("sh");
        let pid = self.directory.path().join("pid");
        shell.args(["-c", "echo $$ > \"$0\"; exec \"$@\""]).arg(pid).arg(program).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        self.driver = Some(self.container().start(&shell));
        eventually("the driver answers", SOON, || self.connect().is_ok());
    }

    /// Starts keepers for the daemons, without any capability. From now on the driver relies on them.
    pub(crate) fn start_keepers(&mut self) {
        self.kill();
        self.start_host();
        self.start();
    }

    /// Starts what starts keepers, and nothing else.
    pub(crate) fn start_host(&mut self) {
        let mut command = forebay_as(Role::Worker, "keeper", &[]);
        command.arg("keeper").arg("--host").arg(self.private("keepers.sock"));
        command.arg("--launcher").arg(self.private("launcher.sock"));
        let mut confined = Command::new("setpriv");
        confined.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
        self.keepers = Some(self.container().start(&wrapped(confined, &command)));
        eventually("keepers can be had", SOON, || UnixStream::connect(self.private("keepers.sock")).is_ok());
    }

    /// Kills keepers, and what starts them, as a pod ends.
    pub(crate) fn kill_keepers(&mut self) {
        let mut host = self.keepers.take().expect("who starts keepers");
        self.kill_all(KEEPERS);
        host.wait().unwrap();
    }

    pub(crate) fn keepers(&self) -> usize {
        self.shell(&format!("{KEEPERS} | wc -l")).succeeded().text().trim().parse().unwrap()
    }

    /// Logs of daemons.
    pub(crate) fn logs(&self) -> usize {
        std::fs::read_dir(self.path(DRIVER).join("logs")).unwrap().count()
    }

    pub(crate) fn private(&self, socket: &str) -> PathBuf {
        self.directory.path().join("run/private").join(socket)
    }

    /// `kill -9` of the driver, and of nothing else.
    pub(crate) fn kill(&mut self) {
        let pid = self.directory.path().join("pid").display().to_string();
        let _ = self.shell(&format!("kill -9 $(cat {pid})")).succeeded();
        let mut driver = self.driver.take().expect("the driver");
        driver.wait().unwrap();
    }

    /// Starts the next driver beside the one that runs, and ends that one then, as a DaemonSet with `maxSurge` does.
    pub(crate) fn replace(&mut self) {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).unwrap();
        let mut before = self.driver.take().expect("the driver");
        let launcher = self.private("launcher.sock");
        let listens = || launcher.metadata().map(|socket| socket.ino()).ok();
        let was = listens();
        self.start();
        eventually("the next driver listens", SOON, || listens().is_some_and(|is| Some(is) != was));
        let _ = self.shell(&format!("kill -TERM {}", pid.trim())).succeeded();
        assert!(before.wait().unwrap().success());
    }

    /// The numbers of the daemons.
    pub(crate) fn daemon_pids(&self) -> BTreeSet<u32> {
        let listed = self.shell(&format!("{DAEMONS} | cut -d/ -f3"));
        listed.text().lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// The same of the daemons.
    pub(crate) fn kill_daemons(&self) {
        self.kill_all(DAEMONS);
    }

    /// Kills all that are listed so, and waits for their end: until a processor has seen the signal, they are listed.
    fn kill_all(&self, listed: &str) {
        let kill = format!("pids=$({listed} | cut -d/ -f3); kill -9 $pids");
        let end = "for pid in $pids; do while grep -qsa . /proc/$pid/cmdline; do sleep 0.01; done; done";
        let _ = self.shell(&format!("{kill} && {end}")).succeeded();
    }

    fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        let socket = self.path(DRIVER).join("csi.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        self.runtime.block_on(endpoint.connect())
    }

    fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.connect().unwrap())
    }

    /// Runs these commands in the container, as a pod would see it.
    pub(crate) fn shell(&self, script: &str) -> Finished {
        self.container().run(Command::new("sh").args(["-c", script]))
    }

    /// How many daemons there are.
    pub(crate) fn daemons(&self) -> usize {
        let found = self.shell(&format!("{DAEMONS} | wc -l")).succeeded();
        found.text().trim().parse().unwrap()
    }

    /// Whether anything of ours is mounted.
    pub(crate) fn is_mounted(&self) -> bool {
        self.shell("grep -q fuse.forebay /proc/self/mountinfo").code == Some(0)
    }

    pub(crate) fn secrets(&self, with_server: bool) -> HashMap<String, String> {
        let variables = self.bucket.environment().into_iter();
        let wanted = variables.filter(|(name, _)| with_server || *name != "AWS_ENDPOINT_URL");
        wanted.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn context(&self) -> HashMap<String, String> {
        let written = self.directory.path().join("written");
        let options = format!("memory=128MiB,write.staging_dir={}", written.display());
        HashMap::from([("source".to_owned(), self.bucket.url()), ("options".to_owned(), options)])
    }

    pub(crate) fn stage(&self) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: "volume".to_owned(),
            staging_target_path: self.text("plugins/staging"),
            volume_capability: Some(capability()),
            volume_context: self.context(),
            secrets: self.secrets(true),
            ..Default::default()
        };
        self.runtime.block_on(self.client().node_stage_volume(request)).map(drop)
    }

    pub(crate) fn publish(&self, pod: usize, readonly: bool) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: "volume".to_owned(),
            staging_target_path: self.text("plugins/staging"),
            target_path: self.text(&target(pod)),
            volume_capability: Some(capability()),
            volume_context: self.context(),
            readonly,
            ..Default::default()
        };
        self.runtime.block_on(self.client().node_publish_volume(request)).map(drop)
    }

    pub(crate) fn publish_inline(&self, pod: usize, secrets: HashMap<String, String>) -> Result<(), Status> {
        let context = [
            ("source", self.bucket.url()),
            ("options", "ro".to_owned()),
            ("csi.storage.k8s.io/ephemeral", "true".to_owned()),
        ];
        let request = NodePublishVolumeRequest {
            volume_id: format!("csi-{pod}"),
            target_path: self.text(&target(pod)),
            volume_capability: Some(capability()),
            volume_context: context.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            secrets,
            ..Default::default()
        };
        self.runtime.block_on(self.client().node_publish_volume(request)).map(drop)
    }

    pub(crate) fn unpublish(&self, volume: &str, pod: usize) -> Result<(), Status> {
        let target_path = self.text(&target(pod));
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        self.runtime.block_on(self.client().node_unpublish_volume(request)).map(drop)
    }

    pub(crate) fn unstage(&self) -> Result<(), Status> {
        let staging_target_path = self.text("plugins/staging");
        let request = NodeUnstageVolumeRequest { volume_id: "volume".to_owned(), staging_target_path };
        self.runtime.block_on(self.client().node_unstage_volume(request)).map(drop)
    }

    pub(crate) fn stats(&self, pod: usize) -> Result<NodeGetVolumeStatsResponse, Status> {
        let volume_path = self.text(&target(pod));
        let request = NodeGetVolumeStatsRequest { volume_id: "volume".to_owned(), volume_path, ..Default::default() };
        self.runtime.block_on(self.client().node_get_volume_stats(request)).map(tonic::Response::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.path(DRIVER).join("logs");
            for log in std::fs::read_dir(logs).into_iter().flatten().flatten() {
                let text = std::fs::read_to_string(log.path()).unwrap_or_default();
                eprintln!("--- {}\n{text}", log.path().display());
            }
        }
        self.container = None;
        for process in [&mut self.driver, &mut self.keepers].into_iter().flatten() {
            let _ = process.wait();
        }
    }
}

pub(crate) fn target(pod: usize) -> String {
    format!("pods/{pod}/mount")
}

fn capability() -> VolumeCapability {
    let mount = MountVolume { volume_mount_group: GROUP.to_string(), ..MountVolume::default() };
    let access_mode = Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() });
    VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) }
}

#[track_caller]
pub(crate) fn refused(ended: Result<(), Status>, code: Code) {
    let status = ended.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
}
