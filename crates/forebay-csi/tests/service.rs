//! The driver over its sockets, as the kubelet calls it, with a program in the place of `forebay` that mounts nothing.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_csi::generated::csi::identity_client::IdentityClient;
use forebay_csi::generated::csi::node_client::NodeClient;
use forebay_csi::generated::csi::node_service_capability::{self, rpc};
use forebay_csi::generated::csi::volume_capability::access_mode::Mode;
use forebay_csi::generated::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use forebay_csi::generated::csi::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest,
    NodeGetInfoRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use forebay_csi::generated::registration::registration_client::RegistrationClient;
use forebay_csi::generated::registration::{InfoRequest, RegistrationStatus};
use forebay_csi::{InlinePolicy, Probed, ServeError, Settings, probe, serve};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

const DRIVER: &str = "csi.forebay.io";
const SOON: Duration = Duration::from_secs(30);

/// A driver, in this process.
struct Driver {
    directory: tempfile::TempDir,
    end: CancellationToken,
    serving: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Driver {
    /// One whose program is this shell script.
    async fn with(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [text, program] = ["text", "forebay"].map(|name| directory.path().join(name));
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // By another process, or a child of another test may have it open for writing when it is to be run.
        let installed = Command::new("install").args(["-m", "755"]).args([&text, &program]).status();
        assert!(installed.unwrap().success());
        for made in ["kubelet/plugins_registry", "kubelet/plugins/staging", "kubelet/pods/1"] {
            std::fs::create_dir_all(directory.path().join(made)).unwrap();
        }
        let mut driver = Self { directory, end: CancellationToken::new(), serving: None };
        driver.start().await;
        driver
    }

    fn kubelet(&self) -> PathBuf {
        self.directory.path().join("kubelet")
    }

    /// A path below the kubelet's directory, as requests have it.
    fn path(&self, below: &str) -> String {
        self.kubelet().join(below).display().to_string()
    }

    fn socket(&self) -> PathBuf {
        self.kubelet().join("plugins").join(DRIVER).join("csi.sock")
    }

    async fn start(&mut self) {
        let settings = Settings {
            driver: DRIVER.to_owned(),
            version: "1.2.3".to_owned(),
            node: "node1".to_owned(),
            kubelet: self.kubelet(),
            socket: self.socket(),
            registry: Some(self.kubelet().join("plugins_registry")),
            inline: InlinePolicy::new(vec!["s3://team-a".to_owned()], Some("64MiB".to_owned())).unwrap(),
            program: self.directory.path().join("forebay"),
            logs: self.directory.path().join("logs"),
            keepers: None,
        };
        self.end = CancellationToken::new();
        self.serving = Some(tokio::spawn(serve(settings, self.end.clone().cancelled_owned())));
        let deadline = tokio::time::Instant::now() + SOON;
        while probe(&self.socket(), false).await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "the driver does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(&mut self) {
        self.end.cancel();
        let serving = self.serving.take().expect("it serves");
        tokio::time::timeout(SOON, serving).await.expect("it ends").unwrap().unwrap();
    }

    async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("unix://{}", self.socket().display())).unwrap().connect().await.unwrap()
    }

    async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel().await)
    }

    /// A request that is right in all.
    fn stage(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: "volume".to_owned(),
            staging_target_path: self.path("plugins/staging"),
            volume_capability: Some(capability(MountVolume::default())),
            volume_context: map(&[("source", "s3://bucket")]),
            ..Default::default()
        }
    }

    /// The same, of what is staged.
    fn publish(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "volume".to_owned(),
            staging_target_path: self.path("plugins/staging"),
            target_path: self.path("pods/1/mount"),
            volume_capability: Some(capability(MountVolume::default())),
            volume_context: map(&[("source", "s3://bucket")]),
            ..Default::default()
        }
    }

    /// The same, of a volume that is written in its pod.
    fn publish_inline(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            staging_target_path: String::new(),
            volume_context: map(&[("source", "s3://team-a/x"), ("csi.storage.k8s.io/ephemeral", "true")]),
            secrets: map(&[("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]),
            ..self.publish()
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn capability(mount: MountVolume) -> VolumeCapability {
    let access_mode = Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() });
    VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) }
}

#[tokio::test]
async fn a_driver_says_who_it_is_and_what_it_can() {
    let driver = Driver::with("exit 1").await;
    let mut identity = IdentityClient::new(driver.channel().await);
    let told = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((told.name.as_str(), told.vendor_version.as_str()), (DRIVER, "1.2.3"));
    let can = identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    assert!(can.capabilities.is_empty(), "there is no controller");
    let mut node = driver.node().await;
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, "node1");
    let can = node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner().capabilities;
    let can: Vec<i32> = can
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => rpc.r#type,
            None => 0,
        })
        .collect();
    assert!(can.contains(&rpc::Type::StageUnstageVolume.into()) && can.contains(&rpc::Type::VolumeMountGroup.into()));
    let expected = if Path::new("/dev/fuse").exists() { Probed::Ready } else { Probed::NoDevice };
    assert_eq!(probe(&driver.socket(), false).await.unwrap(), expected);
}

/// The kubelet gives the path of the socket as the host that it talks to, escaped. A host like that is none to the
/// `http` crate.
#[tokio::test]
async fn the_kubelet_registers_the_driver_under_the_authority_that_it_sends() {
    let driver = Driver::with("exit 1").await;
    let registry = driver.kubelet().join("plugins_registry");
    let sockets: Vec<PathBuf> = registry.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    let authority = socket.to_str().unwrap().replace('/', "%2F");
    let origin = format!("http://{authority}").parse().unwrap();
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().origin(origin);
    let mut kubelet = RegistrationClient::new(endpoint.connect().await.unwrap());
    let plugin = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((plugin.r#type.as_str(), plugin.name.as_str()), ("CSIPlugin", DRIVER));
    assert_eq!(Path::new(&plugin.endpoint), driver.socket());
    assert_eq!(plugin.supported_versions, ["1.0.0"]);
    for plugin_registered in [true, false] {
        let status = RegistrationStatus { plugin_registered, error: "why".to_owned() };
        kubelet.notify_registration_status(status).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_to_stage_that_is_wrong_is_refused_by_its_code() {
    let driver = Driver::with("exit 0").await;
    let mut node = driver.node().await;
    let right = driver.stage();
    let block =
        VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), ..capability(MountVolume::default()) };
    let wrong = [
        NodeStageVolumeRequest { volume_id: String::new(), ..right.clone() },
        NodeStageVolumeRequest { volume_id: "a".repeat(1000), ..right.clone() },
        NodeStageVolumeRequest { staging_target_path: String::new(), ..right.clone() },
        NodeStageVolumeRequest { staging_target_path: "/etc".to_owned(), ..right.clone() },
        NodeStageVolumeRequest { staging_target_path: driver.path("plugins/../../outside"), ..right.clone() },
        NodeStageVolumeRequest { volume_capability: None, ..right.clone() },
        NodeStageVolumeRequest { volume_capability: Some(block), ..right.clone() },
        NodeStageVolumeRequest { volume_context: HashMap::new(), ..right.clone() },
        NodeStageVolumeRequest { volume_context: map(&[("source", "s3://b"), ("sauce", "x")]), ..right.clone() },
        NodeStageVolumeRequest { volume_context: map(&[("source", "s3://".repeat(5000).as_str())]), ..right.clone() },
        NodeStageVolumeRequest { secrets: map(&[("LD_PRELOAD", "/tmp/evil.so")]), ..right.clone() },
    ];
    for wrong in wrong {
        let refused = node.node_stage_volume(wrong.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong:?}: {refused}");
    }
    let nowhere = NodeStageVolumeRequest { staging_target_path: driver.path("plugins/none"), ..right.clone() };
    assert_eq!(node.node_stage_volume(nowhere).await.unwrap_err().code(), Code::NotFound);
    let huge = NodeStageVolumeRequest { secrets: map(&[("AWS_A", "a".repeat(1 << 20).as_str())]), ..right.clone() };
    assert_eq!(node.node_stage_volume(huge).await.unwrap_err().code(), Code::OutOfRange);
    node.node_stage_volume(right).await.unwrap();
}

#[tokio::test]
async fn a_request_to_publish_that_is_wrong_is_refused_by_its_code() {
    let driver = Driver::with("exit 0").await;
    let mut node = driver.node().await;
    let right = driver.publish();
    let inline = driver.publish_inline();
    for (wrong, code) in [
        (NodePublishVolumeRequest { volume_id: String::new(), ..right.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { target_path: String::new(), ..right.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { target_path: "/etc/cron.d".to_owned(), ..right.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { volume_capability: None, ..right.clone() }, Code::InvalidArgument),
        (NodePublishVolumeRequest { staging_target_path: String::new(), ..right.clone() }, Code::FailedPrecondition),
        // Nothing is staged.
        (right.clone(), Code::FailedPrecondition),
        (NodePublishVolumeRequest { secrets: HashMap::new(), ..inline.clone() }, Code::PermissionDenied),
        (
            NodePublishVolumeRequest {
                volume_context: map(&[("source", "s3://team-b"), ("csi.storage.k8s.io/ephemeral", "true")]),
                ..inline.clone()
            },
            Code::PermissionDenied,
        ),
        (NodePublishVolumeRequest { target_path: driver.path("pods/none/mount"), ..inline.clone() }, Code::NotFound),
    ] {
        let refused = node.node_publish_volume(wrong.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code, "{wrong:?}: {refused}");
        assert!(!refused.message().contains("hunter2"), "{refused}");
    }
    assert!(!driver.kubelet().join("pods/1/mount").exists());
}

#[tokio::test]
async fn what_is_not_there_is_left_as_it_is() {
    // What `forebay umount` says then.
    let driver = Driver::with("exit 3").await;
    let mut node = driver.node().await;
    for below in ["pods/1/mount", "pods/none/mount"] {
        let unpublish = NodeUnpublishVolumeRequest { volume_id: "volume".to_owned(), target_path: driver.path(below) };
        node.node_unpublish_volume(unpublish).await.unwrap();
    }
    std::fs::create_dir(driver.kubelet().join("pods/1/mount")).unwrap();
    let target_path = driver.path("pods/1/mount");
    let unpublish = NodeUnpublishVolumeRequest { volume_id: "volume".to_owned(), target_path: target_path.clone() };
    node.node_unpublish_volume(unpublish.clone()).await.unwrap();
    assert!(!Path::new(&target_path).exists(), "the place of a pod goes with its volume");
    let staging_target_path = driver.path("plugins/staging");
    let unstage = NodeUnstageVolumeRequest { volume_id: "volume".to_owned(), staging_target_path };
    node.node_unstage_volume(unstage.clone()).await.unwrap();

    let no_id = NodeUnpublishVolumeRequest { volume_id: String::new(), ..unpublish.clone() };
    let no_path = NodeUnpublishVolumeRequest { target_path: String::new(), ..unpublish };
    for wrong in [no_id, no_path] {
        assert_eq!(node.node_unpublish_volume(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let no_id = NodeUnstageVolumeRequest { volume_id: String::new(), ..unstage.clone() };
    let no_path = NodeUnstageVolumeRequest { staging_target_path: String::new(), ..unstage };
    for wrong in [no_id, no_path] {
        assert_eq!(node.node_unstage_volume(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

/// A call before has taken the mount away, and given up waiting for a daemon that uploads.
#[tokio::test]
async fn a_volume_that_is_not_mounted_has_left_its_place_when_its_daemon_has_ended_and_not_before() {
    let script =
        "[ \"$1\" = umount ] || exit 1; [ -e \"${0%/*}/ended\" ] && exit 3; echo 'process 7 has not ended' >&2; exit 4";
    let driver = Driver::with(script).await;
    let mut node = driver.node().await;
    std::fs::create_dir(driver.kubelet().join("pods/1/mount")).unwrap();
    let (staging_target_path, target_path) = (driver.path("plugins/staging"), driver.path("pods/1/mount"));
    let unstage = NodeUnstageVolumeRequest { volume_id: "volume".to_owned(), staging_target_path };
    let unpublish = NodeUnpublishVolumeRequest { volume_id: "inline".to_owned(), target_path: target_path.clone() };
    for _ in 0..2 {
        let staged = node.node_unstage_volume(unstage.clone()).await.unwrap_err();
        let published = node.node_unpublish_volume(unpublish.clone()).await.unwrap_err();
        for refused in [staged, published] {
            assert_eq!(refused.code(), Code::Unavailable);
            assert!(refused.message().contains("process 7 has not ended"), "{refused}");
        }
    }
    assert!(Path::new(&target_path).exists());
    std::fs::write(driver.directory.path().join("ended"), "").unwrap();
    node.node_unstage_volume(unstage).await.unwrap();
    node.node_unpublish_volume(unpublish).await.unwrap();
    assert!(!Path::new(&target_path).exists());
}

#[tokio::test]
async fn a_volume_that_is_not_there_has_no_stats_and_none_grows() {
    let driver = Driver::with("exit 1").await;
    let mut node = driver.node().await;
    let asked = |volume_id: &str, volume_path: String| NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path,
        ..Default::default()
    };
    for (wrong, code) in [
        (asked("", driver.path("pods/1")), Code::InvalidArgument),
        (asked("volume", String::new()), Code::InvalidArgument),
        (asked("volume", "some/path".to_owned()), Code::NotFound),
        (asked("volume", "/".to_owned()), Code::NotFound),
        (asked("volume", driver.path("pods/1")), Code::NotFound),
    ] {
        assert_eq!(node.node_get_volume_stats(wrong.clone()).await.unwrap_err().code(), code, "{wrong:?}");
    }
    let expanded = node.node_expand_volume(NodeExpandVolumeRequest::default()).await;
    assert_eq!(expanded.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn what_keeps_the_program_from_mounting_is_what_the_kubelet_hears() {
    let driver = Driver::with("echo 'forebay: s3://bucket: no such bucket' >&2; exit 3").await;
    let refused = driver.node().await.node_stage_volume(driver.stage()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("no such bucket"), "{refused}");
}

#[tokio::test]
async fn an_inline_volume_is_mounted_by_a_program_of_its_own_with_its_own_credentials() {
    let driver = Driver::with("printf '%s ' \"$@\" \"$AWS_SECRET_ACCESS_KEY\" > \"${0%/*}/told\"").await;
    driver.node().await.node_publish_volume(driver.publish_inline()).await.unwrap();
    let told = std::fs::read_to_string(driver.directory.path().join("told")).unwrap();
    let mounted = format!("-oallow_other -oro -omemory=64MiB -- s3://team-a/x {}", driver.path("pods/1/mount"));
    assert!(told.starts_with("mount-helper -olog.file=") && told.contains(&mounted), "{told}");
    assert!(told.ends_with("hunter2 "), "{told}");
    assert!(driver.kubelet().join("pods/1/mount").is_dir());
}

#[tokio::test]
async fn a_call_goes_on_when_the_kubelet_does_not_wait_and_the_next_one_waits_for_it() {
    let script = "d=${0%/*}; touch $d/begun; until [ -e $d/go ]; do sleep 0.01; done; echo mounted >> $d/told";
    let driver = Driver::with(script).await;
    let file = |name: &str| driver.directory.path().join(name);
    let (mut hasty, request) = (driver.node().await, driver.stage());
    let call = tokio::spawn(async move { hasty.node_stage_volume(request).await.map(drop) });
    let deadline = tokio::time::Instant::now() + SOON;
    while !file("begun").exists() {
        assert!(tokio::time::Instant::now() < deadline, "the program is not run");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    std::fs::write(file("go"), "").unwrap();
    driver.node().await.node_stage_volume(driver.stage()).await.unwrap();
    // Both have run to their end: with a program that mounts, the second had nothing to do.
    assert_eq!(std::fs::read_to_string(file("told")).unwrap(), "mounted\nmounted\n");
}

#[tokio::test]
async fn a_driver_that_ends_takes_its_sockets_along_and_one_that_comes_back_serves_again() {
    let mut driver = Driver::with("exit 0").await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&driver.socket()), 0o600);
    driver.stop().await;
    assert!(!driver.socket().exists());
    assert_eq!(driver.kubelet().join("plugins_registry").read_dir().unwrap().count(), 0);
    driver.start().await;
    driver.node().await.node_stage_volume(driver.stage()).await.unwrap();
    driver.stop().await;
}

#[tokio::test]
async fn a_driver_that_cannot_serve_says_why() {
    let driver = Driver::with("exit 0").await;
    let right = Settings {
        driver: DRIVER.to_owned(),
        version: String::new(),
        node: "node1".to_owned(),
        kubelet: driver.kubelet(),
        socket: driver.directory.path().join("other.sock"),
        registry: None,
        inline: InlinePolicy::default(),
        program: PathBuf::from("/bin/false"),
        logs: driver.directory.path().join("logs"),
        keepers: None,
    };
    let never = std::future::pending::<()>;
    let no_name = Settings { driver: "../x".to_owned(), ..right.clone() };
    assert!(matches!(serve(no_name, never()).await, Err(ServeError::Name(_))));
    let no_kubelet = Settings { kubelet: PathBuf::from("/no/such/kubelet"), ..right.clone() };
    assert!(matches!(serve(no_kubelet, never()).await, Err(ServeError::Kubelet { .. })));
    let no_registry = Settings { registry: Some(driver.directory.path().join("none")), ..right.clone() };
    assert!(matches!(serve(no_registry, never()).await, Err(ServeError::Listen { .. })));
    let no_logs = Settings { logs: driver.directory.path().join("forebay"), ..right };
    assert!(matches!(serve(no_logs, never()).await, Err(ServeError::Logs { .. })));
}
