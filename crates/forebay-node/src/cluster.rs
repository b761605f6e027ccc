//! The cluster that a process belongs to: where its state is kept, and its members.
//!
//! With `cluster.etcd.endpoints` the state is in etcd, and workers and mounts find each other there. Without it workers are
//! those of `cluster.workers`; a coordinator keeps the state of its jobs in files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_cluster::{Freshness, Member, Membership, Reach, StaticMembership, Topology};
use forebay_config::{Config, ListedWorker};
use forebay_state::membership::{Members, MembersOptions};
use forebay_state::{EtcdCertificates, EtcdOptions, EtcdStore, EtcdUser, FileOptions, FileStore, StateStore};
use serde_json::{Value, json};

use crate::error::{Exit, Fault};
use crate::state;

/// How long a process that starts waits to be told the members, before it goes on with those that the configuration names.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// The state of a cluster, and the members of one of its groups.
pub struct Cluster {
    store: Arc<dyn StateStore>,
    members: Arc<Members>,
    /// Of the connections to etcd, if the state is there.
    certificates: Option<Arc<EtcdCertificates>>,
}

impl Cluster {
    /// The cluster that the configuration names, whose workers are reached at these addresses of theirs; `None` when its workers
    /// are a fixed list.
    ///
    /// # Errors
    /// When its settings make no sense. A state that cannot be reached is none: it may come.
    pub async fn open(config: &Config, reach: Reach) -> anyhow::Result<Option<Self>> {
        if config.cluster_etcd_endpoints.is_empty() {
            return Ok(None);
        }
        let etcd = etcd(config)?;
        let certificates = Some(Arc::clone(etcd.certificates()));
        Ok(Some(Self { certificates, ..Self::over(config, Arc::new(etcd), reach) }))
    }

    /// A cluster whose state is kept by this process, in files.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub async fn in_files(config: &Config, directory: PathBuf) -> anyhow::Result<Self> {
        let options = FileOptions { deadline: config.cluster_etcd_timeout };
        Ok(Self::over(config, Arc::new(FileStore::open(directory, options).await?), Reach::Requests))
    }

    /// A cluster whose state is in memory of this process, and ends with it.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn in_memory(config: &Config) -> anyhow::Result<Self> {
        let options = FileOptions { deadline: config.cluster_etcd_timeout };
        Ok(Self::over(config, Arc::new(FileStore::in_memory(&options)?), Reach::Requests))
    }

    fn over(config: &Config, store: Arc<dyn StateStore>, reach: Reach) -> Self {
        let configured = static_members(config).topology();
        let options = MembersOptions {
            group: config.cluster_cache_group.as_str().to_owned(),
            grace: config.cluster_lease_ttl * 2,
            until_told: Topology::clone(&configured),
            reach,
        };
        let members = Arc::new(Members::watch(&store, options));
        Self { store, members, certificates: None }
    }

    /// The state.
    pub fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    /// The members of our group.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// What became of the certificate files for etcd, if the state is there.
    pub fn certificates(&self) -> Option<&Arc<EtcdCertificates>> {
        self.certificates.as_ref()
    }

    /// Which cluster it is, for `df` and people.
    pub fn describe(&self, config: &Config) -> String {
        format!("{}/{}", config.cluster_name.as_str(), config.cluster_cache_group.as_str())
    }

    /// Waits until the members are known. If the state does not tell them, the configured ones will do.
    ///
    /// # Errors
    /// When the state does not tell them in time and none are configured.
    pub async fn told(&self) -> anyhow::Result<()> {
        if self.members.told(TOLD_WITHIN).await || !self.members.topology().ring.members().is_empty() {
            return Ok(());
        }
        let what = format!("{} did not tell who the workers are within {TOLD_WITHIN:?}", self.store.describe());
        let next =
            "check `cluster.etcd.endpoints` and that etcd runs; `cluster.workers` names workers to use without it";
        Err(Fault::new(Exit::Unavailable, what, next).into())
    }

    /// Ends the watching and the state.
    pub async fn close(&self) {
        self.members.close().await;
        self.store.close().await;
    }
}

/// The workers that the configuration names.
pub fn static_members(config: &Config) -> StaticMembership {
    StaticMembership::of(listed_members(config))
}

/// The same, as they stand in the list. Blocks are placed by addresses, also where the list has names: it gets these
/// without a block moving.
pub fn listed_members(config: &Config) -> Vec<Member> {
    let member = |worker: &ListedWorker| {
        let address: Arc<str> = worker.address.to_string().into();
        let identity = worker.name.as_deref().map(Arc::from);
        Member { name: Arc::clone(&address), address, weight: 1.0, identity }
    };
    config.cluster_workers.iter().map(member).collect()
}

/// The name of a node that is reached at `address` in a group that is a fixed list.
///
/// # Errors
/// When the list does not have it.
pub(crate) fn listed_as(config: &Config, address: &str) -> anyhow::Result<String> {
    if config.cluster_workers.iter().any(|worker| worker.address.to_string() == address) {
        return Ok(address.to_owned());
    }
    let what = format!(
        "this mount shares its cache at {address}, which is not among `cluster.workers`: nobody would read from it"
    );
    let next = "name it in `--workers` on every node of the group, have `worker.hostname` and `--port` say what is named there, or name \
                an etcd with `--etcd URL`; `--no-sharing` only reads";
    Err(Fault::new(Exit::Usage, what, next).into())
}

/// Where a coordinator keeps its state without etcd.
///
/// # Errors
/// When there is no directory of ours.
pub fn state_directory(config: &Config) -> anyhow::Result<PathBuf> {
    match &config.coordinator_state_dir {
        Some(directory) => Ok(directory.clone()),
        None => state::cluster_state(config.cluster_name.as_str()),
    }
}

fn etcd(config: &Config) -> anyhow::Result<EtcdStore> {
    let user = config.cluster_etcd_user.clone().map(|name| -> anyhow::Result<EtcdUser> {
        let Some(file) = &config.cluster_etcd_password_file else {
            let next = "name the file with the user's password as `cluster.etcd.password_file`";
            return Err(Fault::new(Exit::Usage, "`cluster.etcd.user` has no password", next).into());
        };
        let password = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        // The line break at the end of a file is no part of a password.
        Ok(EtcdUser { name, password: password.trim_end_matches(['\n', '\r']).to_owned() })
    });
    let identity = match (&config.cluster_etcd_cert_file, &config.cluster_etcd_key_file) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => {
            let next = "set both, or neither";
            let what = "of `cluster.etcd.cert_file` and `cluster.etcd.key_file` only one is set";
            return Err(Fault::new(Exit::Usage, what, next).into());
        }
    };
    let options = EtcdOptions {
        user: user.transpose()?,
        ca_file: config.cluster_etcd_ca_file.clone(),
        identity,
        deadline: config.cluster_etcd_timeout,
        ..EtcdOptions::new(config.cluster_etcd_endpoints.iter().map(String::as_str), config.cluster_name.as_str())
    };
    Ok(EtcdStore::new(options)?)
}

/// What became of the certificate files for etcd, for `forebay stats` and `/metrics`.
pub fn report_certificates(certificates: &EtcdCertificates) -> Value {
    let refused = certificates.refused_for().map(|duration| duration.as_secs());
    json!({ "certificate_renewals": certificates.renewals(), "certificate_refused_seconds": refused })
}

/// What is known of the members, for `forebay stats` and `forebay fs`.
pub fn report(topology: &Topology, members: Option<&Members>) -> Value {
    let member = |member: &Member| {
        json!({
            "name": &*member.name, "address": &*member.address, "weight": member.weight,
            "identity": member.identity.as_deref(),
        })
    };
    let last_known = members.and_then(|members| match members.knowledge().freshness {
        Freshness::Current => None,
        Freshness::LastKnown { since, reason } => Some(json!({"seconds": since.elapsed().as_secs(), "reason": reason})),
    });
    json!({
        "members": topology.ring.members().iter().map(member).collect::<Vec<_>>(),
        "leaving": topology.leaving.iter().map(member).collect::<Vec<_>>(),
        "last_known": last_known,
    })
}

#[cfg(test)]
mod tests {
    use forebay_config::Sources;

    use super::*;

    #[test]
    fn a_name_in_a_list_is_the_identity_and_moves_no_block() {
        let topology = |workers: &str| {
            let loaded = Config::load(&Sources::new().flags([format!("cluster.workers={workers}")])).unwrap();
            static_members(&loaded.config).topology()
        };
        let (plain, named) = (topology("node1:1,node2:2"), topology("w1=node1:1,node2:2"));
        let placed = |topology: &Topology| {
            let members = topology.ring.members().iter();
            members.map(|member| (member.name.to_string(), member.address.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(placed(&plain), placed(&named));
        let identity = |topology: &Topology, address: &str| {
            let member = topology.ring.members().iter().find(|member| *member.address == *address).unwrap();
            member.identity.as_deref().map(str::to_owned)
        };
        assert_eq!(identity(&named, "node1:1").as_deref(), Some("w1"));
        assert_eq!((identity(&named, "node2:2"), identity(&plain, "node1:1")), (None, None));
        assert_eq!(report(&named, None)["members"][0]["identity"], "w1");
    }
}
