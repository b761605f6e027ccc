//! A cluster that goes by a key: the file of it, as `forebay key create` makes one, what a worker is told, and what
//! clients prove.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use forebay_identity::{ClusterKey, LiveIdentity, Material, Scope, Settings, Source, Watch};
use forebay_tcp::{ClientOptions, ClientSecurity};
use forebay_types::{MAX_BLOCK_SIZE, Role, TcpSecurity};

/// The name of the cluster, and the trust domain, unless they are set.
const NAME: &str = "forebay";
/// How long a certificate lasts, as those that `forebay` makes for itself.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The key, and the identity of a reader that follows from it.
pub(crate) struct Cluster {
    key: PathBuf,
    reader: Arc<LiveIdentity>,
}

impl Cluster {
    /// One with a new key, which is written to the file `key`.
    ///
    /// # Errors
    /// When the file cannot be written, or the system has no random numbers.
    pub(crate) fn create(key: PathBuf) -> anyhow::Result<Self> {
        write_key(&key)?;
        let reader = LiveIdentity::new(reader(&key)?);
        Ok(Self { key, reader })
    }

    /// What a worker is told that demands `level` of who connects; `None`: nothing is demanded.
    pub(crate) fn worker_settings(&self, level: Option<TcpSecurity>) -> Vec<String> {
        let Some(level) = level else { return vec!["security.mode=off".to_owned()] };
        let key = format!("security.key_file={}", self.key.display());
        vec!["security.mode=key".to_owned(), key, format!("network.tcp.security={}", level.as_str())]
    }

    /// A client of such a worker, which has no sessions to resume yet.
    ///
    /// # Errors
    /// None that a sound build has.
    pub(crate) fn client(&self, level: Option<TcpSecurity>) -> anyhow::Result<ClientOptions> {
        let security = level.map(|level| ClientSecurity::to_worker(&self.reader, level)).transpose()?;
        Ok(ClientOptions { security, ..ClientOptions::new(NAME, MAX_BLOCK_SIZE) })
    }
}

fn write_key(path: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let pem = ClusterKey::generate()?.to_pem();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).with_context(cannot)?;
    file.write_all(pem.as_bytes()).with_context(cannot)
}

/// A certificate for a reader, made as a mount makes its own.
fn reader(key: &Path) -> anyhow::Result<Material> {
    let source = Source::Key {
        file: key.to_owned(),
        role: Role::Reader,
        name: "bench".to_owned(),
        hosts: Vec::new(),
        lifetime: LIFETIME,
    };
    let settings = Settings { scope: Scope::new(NAME, NAME)?, source, also: None, denied: None };
    let (_, material) = Watch::begin(settings, SystemTime::now())?;
    Ok(material)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_clients_of_a_cluster_have_its_key_and_those_in_plain_text_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        let cluster = Cluster::create(path.clone()).unwrap();
        assert_eq!(cluster.worker_settings(None), ["security.mode=off"]);
        assert!(cluster.client(None).unwrap().security.is_none());
        let file = format!("security.key_file={}", path.display());
        let settings = cluster.worker_settings(Some(TcpSecurity::Auth));
        assert_eq!(settings, ["security.mode=key", file.as_str(), "network.tcp.security=auth"]);
        assert!(cluster.client(Some(TcpSecurity::Encrypt)).unwrap().security.is_some());
        // A section that is measured twice has another key each time.
        let before = std::fs::read(&path).unwrap();
        Cluster::create(path.clone()).unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), before);
    }
}
