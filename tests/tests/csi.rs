//! `forebay csi` in namespaces of its own, called as the kubelet calls it: real mounts, kills, and what a pod sees.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use forebay_csi::generated::csi::node_client::NodeClient;
use forebay_csi::generated::csi::volume_capability::access_mode::Mode;
use forebay_csi::generated::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use forebay_csi::generated::csi::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use forebay_e2e::{Bucket, Container, Finished, can_survive, eventually, forebay_as, is_root, skipped, wrapped};
use forebay_testkit::DataSet;
use forebay_types::Role;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const GROUP: u32 = 2000;
/// Lists the daemons in a container. What lists them has not the word that it looks for in its own command line.
const DAEMONS: &str = "grep -als '[-]-background-child' /proc/[0-9]*/cmdline";
/// The same of keepers.
const KEEPERS: &str = "grep -alz '^keepe[r]$' /proc/[0-9]*/cmdline";
/// The driver's place in the kubelet's directory.
const DRIVER: &str = "plugins/csi.forebay.io";

/// A node: a kubelet's directory and a driver, in a container that sees the mounts.
struct Node {
    runtime: Runtime,
    bucket: Bucket,
    directory: TempDir,
    /// Before the directory goes, all that runs and is mounted has to.
    container: Option<Container>,
    driver: Option<Child>,
    /// What starts keepers, in a pod of its own.
    keepers: Option<Child>,
}

impl Node {
    /// `None`, said, where there can be none.
    fn new() -> Option<Self> {
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

    fn container(&self) -> &Container {
        self.container.as_ref().expect("the container")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join("kubelet").join(below)
    }

    fn text(&self, below: &str) -> String {
        self.path(below).display().to_string()
    }

    /// Starts the driver. Of the bucket it knows the server, and no credentials.
    fn start(&mut self) {
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
    fn start_keepers(&mut self) {
        self.kill();
        self.start_host();
        self.start();
    }

    /// Starts what starts keepers, and nothing else.
    fn start_host(&mut self) {
        let mut command = forebay_as(Role::Worker, "keeper", &[]);
        command.arg("keeper").arg("--host").arg(self.private("keepers.sock"));
        command.arg("--launcher").arg(self.private("launcher.sock"));
        let mut confined = Command::new("setpriv");
        confined.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
        self.keepers = Some(self.container().start(&wrapped(confined, &command)));
        eventually("keepers can be had", SOON, || UnixStream::connect(self.private("keepers.sock")).is_ok());
    }

    /// Kills keepers, and what starts them, as a pod ends.
    fn kill_keepers(&mut self) {
        let mut host = self.keepers.take().expect("who starts keepers");
        let _ = self.shell(&format!("kill -9 $({KEEPERS} | cut -d/ -f3)")).succeeded();
        host.wait().unwrap();
    }

    fn keepers(&self) -> usize {
        self.shell(&format!("{KEEPERS} | wc -l")).succeeded().text().trim().parse().unwrap()
    }

    /// Logs of daemons.
    fn logs(&self) -> usize {
        std::fs::read_dir(self.path(DRIVER).join("logs")).unwrap().count()
    }

    fn private(&self, socket: &str) -> PathBuf {
        self.directory.path().join("run/private").join(socket)
    }

    /// `kill -9` of the driver, and of nothing else.
    fn kill(&mut self) {
        let pid = self.directory.path().join("pid").display().to_string();
        let _ = self.shell(&format!("kill -9 $(cat {pid})")).succeeded();
        let mut driver = self.driver.take().expect("the driver");
        driver.wait().unwrap();
    }

    /// The same of the daemons.
    fn kill_daemons(&self) {
        let _ = self.shell(&format!("kill -9 $({DAEMONS} | cut -d/ -f3)")).succeeded();
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
    fn shell(&self, script: &str) -> Finished {
        self.container().run(Command::new("sh").args(["-c", script]))
    }

    /// How many daemons there are.
    fn daemons(&self) -> usize {
        let found = self.shell(&format!("{DAEMONS} | wc -l")).succeeded();
        found.text().trim().parse().unwrap()
    }

    /// Whether anything of ours is mounted.
    fn is_mounted(&self) -> bool {
        self.shell("grep -q fuse.forebay /proc/self/mountinfo").code == Some(0)
    }

    fn secrets(&self, with_server: bool) -> HashMap<String, String> {
        let variables = self.bucket.environment().into_iter();
        let wanted = variables.filter(|(name, _)| with_server || *name != "AWS_ENDPOINT_URL");
        wanted.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn context(&self) -> HashMap<String, String> {
        let written = self.directory.path().join("written");
        let options = format!("memory=128MiB,write.staging_dir={}", written.display());
        HashMap::from([("source".to_owned(), self.bucket.url()), ("options".to_owned(), options)])
    }

    fn stage(&self) -> Result<(), Status> {
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

    fn publish(&self, pod: usize, readonly: bool) -> Result<(), Status> {
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

    fn publish_inline(&self, pod: usize, secrets: HashMap<String, String>) -> Result<(), Status> {
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

    fn unpublish(&self, volume: &str, pod: usize) -> Result<(), Status> {
        let target_path = self.text(&target(pod));
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        self.runtime.block_on(self.client().node_unpublish_volume(request)).map(drop)
    }

    fn unstage(&self) -> Result<(), Status> {
        let staging_target_path = self.text("plugins/staging");
        let request = NodeUnstageVolumeRequest { volume_id: "volume".to_owned(), staging_target_path };
        self.runtime.block_on(self.client().node_unstage_volume(request)).map(drop)
    }

    fn stats(&self, pod: usize) -> Result<NodeGetVolumeStatsResponse, Status> {
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

fn target(pod: usize) -> String {
    format!("pods/{pod}/mount")
}

fn capability() -> VolumeCapability {
    let mount = MountVolume { volume_mount_group: GROUP.to_string(), ..MountVolume::default() };
    let access_mode = Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() });
    VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) }
}

#[track_caller]
fn refused(ended: Result<(), Status>, code: Code) {
    let status = ended.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
}

#[test]
fn a_volume_is_mounted_once_for_all_pods_and_outlives_the_driver() {
    let Some(mut node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    let (data, size) = (DataSet::new(7), 9 * MIB + 777);
    node.bucket.put("big", data, size);

    refused(node.publish(1, false), Code::FailedPrecondition);
    for _ in 0..2 {
        node.stage().unwrap();
        node.publish(1, false).unwrap();
        node.publish(2, true).unwrap();
    }
    assert_eq!(node.daemons(), 1, "one for the node");
    let [one, two, three] = [1, 2, 3].map(|pod| node.text(&target(pod)));
    for pod in [&one, &two] {
        assert_eq!(node.shell(&format!("cat {pod}/hello")).succeeded().text(), "from the bucket");
        assert_eq!(node.shell(&format!("stat -c %g {pod}/hello")).succeeded().text().trim(), GROUP.to_string());
    }
    let _ = node.shell(&format!("echo written > {one}/new && cat {two}/new")).succeeded();
    let written = node.shell(&format!("echo written > {two}/other"));
    assert!(written.code != Some(0) && written.stderr.contains("Read-only file system"), "{written:?}");
    refused(node.publish(2, false), Code::AlreadyExists);
    let stats = node.stats(1).unwrap();
    assert!(!stats.volume_condition.unwrap().abnormal && stats.usage.len() == 2);

    // No command line and no log has what is secret.
    let secret = node.bucket.server().secret_key().to_owned();
    let logs = node.path(DRIVER).join("logs");
    let found = node.shell(&format!("cat /proc/[0-9]*/cmdline; cat {}/*; true", logs.display())).succeeded();
    assert!(found.text().contains("--background-child") && !found.text().contains(&secret));

    // A pod that has a file open goes on, whatever becomes of the driver.
    let (go, read) = (node.directory.path().join("go"), node.directory.path().join("read"));
    let script = format!(
        "exec 3< {one}/big > {}; dd bs=1000 count=1 <&3 2> /dev/null; \
         until [ -e {} ]; do sleep 0.01; done; exec cat <&3",
        read.display(),
        go.display()
    );
    let mut reader = node.container().start(Command::new("sh").args(["-c", &script]));
    eventually("the pod reads", SOON, || read.metadata().is_ok_and(|read| read.len() == 1000));
    node.kill();
    assert_eq!(node.shell(&format!("cat {one}/hello")).succeeded().text(), "from the bucket");
    node.start();
    std::fs::write(&go, "").unwrap();
    assert!(reader.wait().unwrap().success());
    let bytes = std::fs::read(&read).unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));

    // The next driver has what the one before left.
    node.stage().unwrap();
    node.publish(3, true).unwrap();
    assert_eq!(node.shell(&format!("cat {three}/new")).succeeded().text(), "written\n");
    assert_eq!(node.daemons(), 1);
    refused(node.unstage(), Code::FailedPrecondition);
    for _ in 0..2 {
        (1..=3).for_each(|pod| node.unpublish("volume", pod).unwrap());
    }
    for _ in 0..2 {
        node.unstage().unwrap();
    }
    assert!(!node.is_mounted() && node.daemons() == 0);
    assert!(!node.path(&target(1)).exists(), "the place of a pod goes with its volume");
    assert_eq!(node.bucket.object("new"), b"written\n");
}

#[test]
fn a_daemon_that_dies_is_told_of_and_what_it_left_is_taken_away() {
    let Some(node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    node.stage().unwrap();
    node.publish(1, false).unwrap();
    node.kill_daemons();
    eventually("the mount is dead", SOON, || node.stats(1).is_ok_and(|stats| stats.volume_condition.unwrap().abnormal));
    refused(node.publish(2, false), Code::FailedPrecondition);
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted());
    node.stage().unwrap();
    node.publish(1, false).unwrap();
    let hello = node.text(&target(1));
    assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
    // Dead, and asked for again without having been taken away.
    node.unpublish("volume", 1).unwrap();
    node.kill_daemons();
    eventually("it has ended", SOON, || node.daemons() == 0);
    node.stage().unwrap();
    node.publish(1, true).unwrap();
    assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
}

#[test]
fn what_a_pod_has_open_goes_on_when_daemon_and_driver_are_killed_and_started_again() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    let (data, size) = (DataSet::new(8), 9 * MIB + 777);
    node.bucket.put("big", data, size);
    node.start_keepers();
    node.stage().unwrap();
    node.publish(1, true).unwrap();

    // Around the page cache, so that each round asks the daemon.
    let at = |name: &str| node.directory.path().join(name);
    let (big, round, read) = (format!("{}/big", node.text(&target(1))), at("round"), at("read"));
    let script = format!(
        "exec 3< {big} > {}; for round in 1 2 3; do until [ -e {1}.$round ]; do sleep 0.01; done; \
         dd bs=1M count=3 iflag=direct,fullblock <&3 || exit 1; done; exec cat <&3",
        read.display(),
        round.display()
    );
    let go = |number: u64| std::fs::write(round.with_extension(number.to_string()), "").unwrap();
    let has = |count: u64| read.metadata().is_ok_and(|read| read.len() >= count * 3 * MIB);
    let mut reader = node.container().start(Command::new("sh").args(["-c", &script]));
    go(1);
    eventually("the pod reads", SOON, || has(1));
    node.kill_daemons();
    go(2);
    eventually("a daemon that the driver has started answers", SOON, || has(2));
    // As a container ends.
    node.kill();
    node.kill_daemons();
    go(3);
    eventually("no daemon is left", SOON, || node.daemons() == 0);
    assert!(!has(3), "nobody can have answered");
    node.start();
    eventually("a daemon that the next driver has started answers", SOON, || has(3));
    assert!(reader.wait().unwrap().success());
    let bytes = std::fs::read(&read).unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));

    assert!(!node.stats(1).unwrap().volume_condition.unwrap().abnormal);
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
    eventually("who starts keepers is left alone", SOON, || node.keepers() == 1);
}

#[test]
fn daemons_whose_keepers_have_ended_ask_the_next_pod_for_others() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    node.start_keepers();
    node.stage().unwrap();
    node.publish(1, true).unwrap();
    assert_eq!(node.keepers(), 2, "one, and who starts it");
    node.kill_keepers();
    let hello = format!("{}/hello", node.text(&target(1)));
    assert_eq!(node.shell(&format!("cat {hello}")).succeeded().text(), "from the bucket");
    assert_eq!(node.keepers(), 0, "a daemon starts none that would end with its own container");
    node.start_host();
    eventually("a keeper has the mount again", SOON, || node.keepers() == 2);
    // It has what the one before had: whoever waits for the next daemon gets an answer.
    node.kill_daemons();
    assert_eq!(node.shell(&format!("cat {hello}")).succeeded().text(), "from the bucket");
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn where_keepers_are_to_be_and_are_not_nothing_is_mounted() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    node.start_keepers();
    node.kill_keepers();
    // Its socket is there.
    refused(node.stage(), Code::Unavailable);
    std::fs::remove_file(node.private("keepers.sock")).unwrap();
    refused(node.stage(), Code::Unavailable);
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn a_pod_mounts_with_its_own_credentials_what_an_admin_lets_it() {
    let Some(node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    refused(node.publish_inline(1, HashMap::new()), Code::PermissionDenied);
    refused(node.publish_inline(1, node.secrets(true)), Code::PermissionDenied);
    for _ in 0..2 {
        node.publish_inline(1, node.secrets(false)).unwrap();
        node.publish_inline(2, node.secrets(false)).unwrap();
    }
    assert_eq!(node.daemons(), 2, "one for each");
    for pod in [1, 2] {
        let hello = node.text(&target(pod));
        assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
    }
    for _ in 0..2 {
        node.unpublish("csi-1", 1).unwrap();
    }
    assert_eq!(node.daemons(), 1);
    node.unpublish("csi-2", 2).unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
    assert_eq!(node.logs(), 0);
}

#[test]
fn a_link_in_the_kubelets_directory_leads_nowhere() {
    let Some(node) = Node::new() else { return };
    let outside = node.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::remove_dir(node.path("pods/1")).unwrap();
    std::os::unix::fs::symlink(&outside, node.path("pods/1")).unwrap();
    node.stage().unwrap();
    refused(node.publish(1, false), Code::InvalidArgument);
    refused(node.publish_inline(1, node.secrets(false)), Code::InvalidArgument);
    assert!(Path::new(&outside).read_dir().unwrap().next().is_none());
    node.unstage().unwrap();
}
