//! etcd, coordinators, and the mounts of this machine.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_cluster::Reach;
use forebay_cluster::records::NOBODYS;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{CoordinatorProbe, EtcdProbe, Fuse, MountProbe, WindowProbe, micros};
use serde_json::{Value, json};

use crate::coordinator_args::Coordinator;
use crate::exit::UserError;
use forebay_node::cluster::Cluster;
use forebay_node::report::{Report, Window, WorkerPaths};
use forebay_node::{binding, control, state, window};

/// How long etcd's own pages may take; what is asked there is good to know only.
const PAGE_WITHIN: Duration = Duration::from_secs(3);

/// Asks every member of etcd that the configuration names, by itself.
pub(super) async fn etcd(config: &Config) -> Vec<EtcdProbe> {
    futures::future::join_all(config.cluster_etcd_endpoints.iter().map(|endpoint| member(config, endpoint))).await
}

async fn member(config: &Config, endpoint: &str) -> EtcdProbe {
    let one = Config { cluster_etcd_endpoints: vec![endpoint.to_owned()], ..config.clone() };
    let (answer, pages) = futures::join!(read(&one), pages(endpoint));
    let (version, leader) = pages;
    let probe = EtcdProbe { endpoint: endpoint.to_owned(), version, leader, ..EtcdProbe::default() };
    match answer {
        Ok(took) => EtcdProbe { took_us: micros(took), ..probe },
        Err(error) => {
            let UserError { what, next, .. } = UserError::from(&error);
            EtcdProbe { error: Some(what), remedy: next, ..probe }
        }
    }
}

/// Reads as every process of the cluster does, with its user and certificates, what all members must agree on: how long that
/// took. It takes a leader.
async fn read(config: &Config) -> anyhow::Result<Duration> {
    let Some(cluster) = Cluster::open(config, Reach::Requests).await? else { return Ok(Duration::ZERO) };
    let read = async {
        // The first one connects.
        cluster.store().get(NOBODYS).await?;
        let begun = Instant::now();
        cluster.store().get(NOBODYS).await?;
        Ok(begun.elapsed())
    };
    let took = read.await;
    cluster.close().await;
    took
}

/// The version that a member runs, and the leader that it knows: from the pages that it has for people, which may be switched
/// off, or want a certificate.
async fn pages(endpoint: &str) -> (Option<String>, Option<String>) {
    let endpoint = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
    let endpoint = endpoint.trim_end_matches('/');
    let Ok(client) = reqwest::Client::builder().no_proxy().timeout(PAGE_WITHIN).build() else { return (None, None) };
    let version = async {
        let answer = client.get(format!("{endpoint}/version")).send().await.ok()?;
        let version: Value = answer.json().await.ok()?;
        Some(version.get("etcdserver")?.as_str()?.to_owned())
    };
    let leader = async {
        let answer = client.post(format!("{endpoint}/v3/maintenance/status")).json(&json!({})).send().await.ok()?;
        let status: Value = answer.json().await.ok()?;
        // Numbers of 64 bits are texts there; etcdctl shows them in hexadecimal.
        let number = |value: &Value| value.as_str()?.parse::<u64>().ok();
        let (leader, own) = (number(status.get("leader")?)?, number(status.get("header")?.get("member_id")?));
        let is_it = if Some(leader) == own { " (this member)" } else { "" };
        (leader != 0).then(|| format!("{leader:x}{is_it}"))
    };
    futures::join!(version, leader)
}

/// The coordinators to ask: the one that is named on the command line, or in the configuration.
pub(super) fn coordinator_addresses(config: &Config, named: Option<&str>) -> Vec<String> {
    if let Some(named) = named {
        return vec![named.to_owned()];
    }
    let configured = config.coordinator_hostname.as_ref();
    configured.map(|host| binding::host_and_port(host.as_str(), config.coordinator_port)).into_iter().collect()
}

/// Asks coordinators.
pub(super) async fn coordinators(config: &Config, addresses: &[String]) -> Vec<CoordinatorProbe> {
    // An interface that is not there is told of by another check.
    let source = binding::group_source(config).ok().flatten();
    futures::future::join_all(addresses.iter().map(|address| coordinator(config, address, source))).await
}

async fn coordinator(config: &Config, address: &str, source: Option<IpAddr>) -> CoordinatorProbe {
    let begun = Instant::now();
    let answer = async { Ok::<_, anyhow::Error>(Coordinator::from_source(address, source, config)?.cluster().await?) };
    let answer = answer.await;
    let probe = CoordinatorProbe {
        address: address.to_owned(),
        took_us: micros(begun.elapsed()),
        ..CoordinatorProbe::default()
    };
    match answer {
        Ok(status) => CoordinatorProbe {
            version: Some(status.version),
            leader: status.leader.map(|leader| leader.name),
            without_state: (!status.state_store.reachable)
                .then(|| status.state_store.reason.unwrap_or_else(|| status.state_store.description.clone())),
            warnings: status.warnings,
            ..probe
        },
        Err(error) => {
            let UserError { what, next, .. } = UserError::from(&error);
            CoordinatorProbe { error: Some(what), remedy: next, ..probe }
        }
    }
}

/// Asks the process of every mount that this user knows of, and not the mounts themselves.
pub(super) async fn mounts() -> Vec<MountProbe> {
    let mounted = Fuse::mounts(&Root::default());
    // What a process left behind that was killed is no mount once it was taken away.
    let known = state::known().into_iter().filter(|state| state.is_alive() || mounted.contains(&state.mountpoint));
    futures::future::join_all(known.map(mount)).await
}

async fn mount(state: state::RunState) -> MountProbe {
    let probe = MountProbe { path: state.mountpoint.clone(), process: Some(state.pid), ..MountProbe::default() };
    if !state.is_alive() {
        return MountProbe { error: Some(format!("process {} that served it is gone", state.pid)), ..probe };
    }
    let Some(socket) = &state.control else { return probe };
    match report(socket).await {
        Ok(report) => {
            let buffers = report.buffers.unwrap_or_default();
            let rdma = report.rdma.unwrap_or_default();
            let read = |worker: &&WorkerPaths| worker.data.iter().any(|path| path.up);
            let is_down = |worker: &&WorkerPaths| worker.data.iter().any(|path| path.rdma && !path.up);
            let down = rdma.workers.iter().filter(is_down).filter(read);
            let disks = report.store.unwrap_or_default().disks;
            let disks_out = disks.iter().filter(|disk| disk.out).map(|disk| disk.dir.display().to_string());
            let unreachable = rdma.workers.iter().filter(|worker| !worker.data.is_empty() && !read(worker));
            MountProbe {
                buffer_waits: buffers.waits,
                buffer_failures: buffers.failures,
                fell_back: rdma.paths.map_or(0, |paths| paths.fell_back),
                rdma_down: down.map(|worker| worker.worker.clone()).collect(),
                unreachable: unreachable.map(with_cause).collect(),
                io: report.fuse.and_then(|fuse| fuse.io).map(|io| io.to_string()),
                windows: windows(&report.window.unwrap_or_default()).await,
                disks_out: disks_out.collect(),
                ..probe
            }
        }
        Err(error) => MountProbe { error: Some(format!("{error:#}")), ..probe },
    }
}

/// A worker that is not read, and why.
fn with_cause(worker: &WorkerPaths) -> String {
    let cause = worker.data.iter().find_map(|path| path.cause.as_deref());
    cause.map_or_else(|| worker.worker.clone(), |cause| format!("{} ({cause})", worker.worker))
}

/// The workers of this machine among those that a mount reads from.
async fn windows(window: &Window) -> Vec<WindowProbe> {
    let mut here = Vec::new();
    for worker in &window.workers {
        let probe = WindowProbe { worker: worker.worker.clone(), why: None };
        if worker.state == "open" {
            here.push(probe);
        } else if let Some(why) = &worker.why
            && window::is_here(&worker.worker).await
        {
            here.push(WindowProbe { why: Some(why.clone()), ..probe });
        }
    }
    here
}

async fn report(socket: &Path) -> anyhow::Result<Report> {
    Ok(Report::of(&control::ask(socket).await?)?)
}
