//! The node service: what each call of the kubelet does.
//!
//! A call is checked, takes the turn of its volume, looks at the kernel's table, and does the step that is left. It
//! runs to its end also when the kubelet has given up waiting: a mount that is half there would be nobody's.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::StatVfs;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::answers::{Answer, Answers};
use crate::binding;
use crate::daemon::{Daemons, Kind};
use crate::decision::{self, Leaving, Mounting, Publishing, Wanted};
use crate::directory::KubeletDirectory;
use crate::error::Refusal;
use crate::fields::{Access, Place, VolumeId};
use crate::generated::csi::node_server::Node;
use crate::generated::csi::node_service_capability::rpc::Type as Capability;
use crate::generated::csi::node_service_capability::{self, Rpc};
use crate::generated::csi::volume_usage::Unit;
use crate::generated::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, VolumeCondition, VolumeUsage,
};
use crate::inline::InlinePolicy;
use crate::mount_table::MountTable;
use crate::pending::Pending;
use crate::succession::Renewals;
use crate::volume::{self, Volume};

/// What the driver has of what a node service may have.
const CAPABILITIES: [Capability; 5] = [
    Capability::StageUnstageVolume,
    Capability::GetVolumeStats,
    Capability::VolumeCondition,
    Capability::SingleNodeMultiWriter,
    // The group goes to the mount, and the kubelet changes no file.
    Capability::VolumeMountGroup,
];
/// Mounts that may lie over each other at one place, as after calls that crossed. More is a loop.
const MAX_LAYERS: usize = 8;

/// What is left for a volume to leave a place, of the kubelet's directory.
type NextStep = fn(&MountTable, &Path, &Path) -> Result<Leaving, Refusal>;

/// The node service.
#[derive(Clone, Debug)]
pub(crate) struct NodeService {
    volumes: Arc<Volumes>,
    calls: TaskTracker,
}

/// What a call needs.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) node: String,
    pub(crate) kubelet: KubeletDirectory,
    pub(crate) daemons: Daemons,
    pub(crate) inline: InlinePolicy,
    pub(crate) answers: Answers,
    pub(crate) pending: Pending,
    pub(crate) renewals: Renewals,
}

impl NodeService {
    /// Of these volumes. Its calls are of `calls`.
    pub(crate) fn new(volumes: Volumes, calls: TaskTracker) -> Self {
        Self { volumes: Arc::new(volumes), calls }
    }

    /// Runs a call to its end, whoever waits for it.
    async fn call<R, A, F>(
        &self,
        request: Request<R>,
        work: impl FnOnce(Arc<Volumes>, R) -> F,
    ) -> Result<Response<A>, Status>
    where
        A: Send + 'static,
        F: Future<Output = Result<A, Refusal>> + Send + 'static,
    {
        let running = self.calls.spawn(work(Arc::clone(&self.volumes), request.into_inner()));
        let ended = running.await.map_err(|error| Status::internal(format!("the call ended early: {error}")))?;
        Ok(Response::new(ended?))
    }
}

impl Volumes {
    async fn stage(self: Arc<Self>, request: NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Refusal> {
        let id = VolumeId::of(&request.volume_id)?;
        let staging = self.kubelet.place(&request.staging_target_path, "staging_target_path")?;
        let access = Access::of(request.volume_capability.as_ref())?;
        let volume = Volume::persistent(&request.volume_context, &request.secrets, &access)?;
        let _turn = self.pending.turn(&id).await?;
        // The kubelet has made it. No link leads there, or what the program mounts on would be elsewhere.
        self.kubelet.open(&staging)?;
        self.mount(&id, &volume, Kind::Staged, &staging).await?;
        Ok(NodeStageVolumeResponse {})
    }

    async fn unstage(self: Arc<Self>, request: NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse, Refusal> {
        let id = VolumeId::of(&request.volume_id)?;
        let staging = self.kubelet.place(&request.staging_target_path, "staging_target_path")?;
        let _turn = self.pending.turn(&id).await?;
        self.leave(&id, Kind::Staged, &staging, decision::unstaging).await?;
        Ok(NodeUnstageVolumeResponse {})
    }

    async fn publish(self: Arc<Self>, request: NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = VolumeId::of(&request.volume_id)?;
        let target = self.kubelet.place(&request.target_path, "target_path")?;
        let access = Access::of(request.volume_capability.as_ref())?;
        if volume::is_ephemeral(&request.volume_context) {
            let (context, secrets) = (&request.volume_context, &request.secrets);
            let volume = Volume::inline(context, secrets, &access, request.readonly, &self.inline)?;
            let _turn = self.pending.turn(&id).await?;
            self.publish_inline(&id, &volume, &target).await?;
        } else if request.staging_target_path.is_empty() {
            return Err(Refusal::precondition(
                "staging_target_path is missing: NodeStageVolume comes first. Of an inline volume the kubelet says \
                 what it is if the CSIDriver has podInfoOnMount: true",
            ));
        } else {
            let staging = self.kubelet.place(&request.staging_target_path, "staging_target_path")?;
            // Its secret was for staging it. One that is for publishing is the same one as it is by now: the kubelet comes with it again and
            // again (`requiresRepublish`).
            let volume = Volume::persistent(&request.volume_context, &request.secrets, &access)?;
            let _turn = self.pending.turn(&id).await?;
            self.publish_staged(&volume, &access, [&staging, &target], request.readonly).await?;
            self.renewals.renew(&self.kubelet.absolute(&staging), &volume.environment).await;
        }
        info!(volume = id.as_str(), target = %self.kubelet.absolute(&target).display(), "published");
        Ok(NodePublishVolumeResponse {})
    }

    async fn publish_inline(&self, id: &VolumeId, volume: &Volume, target: &Place) -> Result<(), Refusal> {
        let table = MountTable::of_this_process()?;
        // A mount that is there may be dead, and is not looked into.
        if table.at(&self.kubelet.absolute(target)).is_none() {
            self.kubelet.make(target)?;
        }
        self.mount(id, volume, Kind::Inline, target).await?;
        self.renewals.renew(&self.kubelet.absolute(target), &volume.environment).await;
        Ok(())
    }

    async fn publish_staged(
        &self,
        volume: &Volume,
        access: &Access,
        [staging, target]: [&Place; 2],
        read_only: bool,
    ) -> Result<(), Refusal> {
        let read_only = read_only || access.read_only;
        let places = [staging, target].map(|place| self.kubelet.absolute(place));
        let wanted = Wanted {
            staging: &places[0],
            target: &places[1],
            kubelet: self.kubelet.path(),
            read_only,
            single_writer: access.single_writer,
        };
        let step = decision::publishing(&MountTable::of_this_process()?, wanted)?;
        if step == Publishing::Done {
            return Ok(());
        }
        self.check_group(volume, wanted).await?;
        match step {
            Publishing::Bind => binding::bind(&self.kubelet, staging, target, read_only),
            Publishing::Restrict => binding::restrict(&self.kubelet, target),
            Publishing::Done => Ok(()),
        }
    }

    /// Checks that the mount is one for the group of this pod: it has one group, for all pods of the node.
    async fn check_group(&self, volume: &Volume, wanted: Wanted<'_>) -> Result<(), Refusal> {
        // The kernel remembers attributes for a while, also of a daemon that has died; sizes it asks for.
        let look = |path: &Path| rustix::fs::statvfs(path).and_then(|_| rustix::fs::stat(path));
        let root = match self.answers.ask(wanted.staging, look).await? {
            Answer::Given(root) => root,
            Answer::Dead => {
                return Err(Refusal::precondition(
                    "the volume's daemon has died on this node: end the pods here that have the volume, and it is \
                     mounted anew",
                ));
            }
            Answer::Silent => return Err(silent()),
        };
        let Some(group) = volume.group.filter(|group| *group != root.st_gid) else { return Ok(()) };
        let others_read = root.st_mode & 0o005 == 0o005;
        if (wanted.read_only || volume.read_only) && others_read {
            return Ok(());
        }
        Err(Refusal::precondition(format!(
            "the volume is mounted on this node for the group {}, and the pod's fsGroup is {group}: give all pods of \
             it the same fsGroup, or set posix.gid in its options",
            root.st_gid
        )))
    }

    async fn unpublish(
        self: Arc<Self>,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = VolumeId::of(&request.volume_id)?;
        let target = self.kubelet.place(&request.target_path, "target_path")?;
        let _turn = self.pending.turn(&id).await?;
        self.leave(&id, Kind::Inline, &target, decision::unpublishing).await?;
        self.kubelet.remove(&target)?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Has a volume mounted at a place by a daemon that answers.
    async fn mount(&self, id: &VolumeId, volume: &Volume, kind: Kind, place: &Place) -> Result<(), Refusal> {
        let path = self.kubelet.absolute(place);
        let step = decision::mounting(&MountTable::of_this_process()?, &path, volume)?;
        if step == Mounting::Look {
            match self.answers.ask(&path, |path| rustix::fs::statvfs(path)).await? {
                Answer::Given(_) => return Ok(()),
                Answer::Silent => return Err(silent()),
                // The program takes it away first.
                Answer::Dead => {}
            }
        }
        self.daemons.mount(volume, id, kind, &path).await
    }

    /// Takes away what is mounted at a place, as `next` says, until nothing is; of a daemon that would be there, also its log.
    async fn leave(&self, id: &VolumeId, kind: Kind, place: &Place, next: NextStep) -> Result<(), Refusal> {
        let path = self.kubelet.absolute(place);
        for layer in 0..MAX_LAYERS {
            let step = next(&MountTable::of_this_process()?, &path, self.kubelet.path())?;
            match step {
                // A call before this one may have taken the mount away, and have given up waiting for its daemon, which uploads what was
                // written. Behind a link there is none.
                Leaving::Done if layer == 0 && self.kubelet.open(place).is_ok() => {
                    return self.daemons.unmount(id, kind, &path).await;
                }
                Leaving::Done => {
                    self.daemons.forget(id, kind);
                    return Ok(());
                }
                Leaving::Clear(parts) => {
                    for part in parts {
                        warn!(volume = id.as_str(), part = %part.display(), "the kubelet has left a part of a volume");
                        binding::unmount(&self.kubelet, &self.kubelet.place_at(&part)?)?;
                    }
                }
                Leaving::Unbind => binding::unmount(&self.kubelet, place)?,
                Leaving::End => self.daemons.unmount(id, kind, &path).await?,
            }
        }
        Err(Refusal::internal(format!("{} is mounted again and again", path.display())))
    }

    async fn stats(self: Arc<Self>, request: NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        VolumeId::of(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Refusal::invalid("volume_path is missing"));
        }
        let not_there = || Refusal::not_found("no volume of this driver is mounted at volume_path");
        // Whatever names no place names no volume.
        let place = self.kubelet.place(&request.volume_path, "volume_path").map_err(|_| not_there())?;
        let path = self.kubelet.absolute(&place);
        if !MountTable::of_this_process()?.at(&path).is_some_and(|entry| entry.is_ours()) {
            return Err(not_there());
        }
        let abnormal = |message: &str| NodeGetVolumeStatsResponse {
            usage: Vec::new(),
            volume_condition: Some(VolumeCondition { abnormal: true, message: message.to_owned() }),
        };
        Ok(match self.answers.ask(&path, |path| rustix::fs::statvfs(path)).await? {
            Answer::Given(told) => NodeGetVolumeStatsResponse {
                usage: usage(&told),
                volume_condition: Some(VolumeCondition { abnormal: false, message: "its daemon answers".to_owned() }),
            },
            Answer::Dead => abnormal("its daemon has died"),
            Answer::Silent => abnormal("its daemon does not answer"),
        })
    }
}

fn silent() -> Refusal {
    Refusal::unavailable("the volume's daemon does not answer: its log says why, and another try may work")
}

/// What `df` and `df -i` show.
fn usage(told: &StatVfs) -> Vec<VolumeUsage> {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let usage = |unit: Unit, size: u64, [total, free, available]: [u64; 3]| VolumeUsage {
        unit: unit.into(),
        total: count(total.saturating_mul(size)),
        used: count(total.saturating_sub(free).saturating_mul(size)),
        available: count(available.saturating_mul(size)),
    };
    vec![
        usage(Unit::Bytes, told.f_frsize, [told.f_blocks, told.f_bfree, told.f_bavail]),
        usage(Unit::Inodes, 1, [told.f_files, told.f_ffree, told.f_favail]),
    ]
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.call(request, Volumes::stage).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.call(request, Volumes::unstage).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.call(request, Volumes::publish).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.call(request, Volumes::unpublish).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.call(request, Volumes::stats).await
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(Refusal::unimplemented("a bucket has no size to be expanded").into())
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |capability: Capability| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: capability.into() })),
        };
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.volumes.node.clone();
        Ok(Response::new(NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology: None }))
    }
}
