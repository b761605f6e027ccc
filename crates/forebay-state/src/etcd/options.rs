//! How to reach an etcd.

use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::{DEFAULT_DEADLINE, StateError};

/// How often an idle connection is tried, and how long its answer may take: a member that vanished without a word is
/// noticed. etcd refuses clients that ask more often than every five seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(6);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The options of an [`crate::EtcdStore`].
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Client URLs of the members, `http://host:2379` or `https://…`; without a scheme it is https if a certificate is
    /// configured, else http.
    pub endpoints: Vec<String>,
    /// The name of the cluster, one segment of a key: several may share an etcd.
    pub cluster: String,
    /// The user and where its password is, if etcd asks for them.
    pub user: Option<EtcdUser>,
    /// The certificate authority that signed the members' certificates, a PEM file.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate and its key, PEM files, if etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// How long an operation may take, trying all members it needs.
    pub deadline: Duration,
}

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for EtcdUser {
    /// Without the password.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// A cluster in the etcd at these URLs, without user and TLS files.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>, cluster: impl Into<String>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            cluster: cluster.into(),
            user: None,
            ca_file: None,
            identity: None,
            deadline: DEFAULT_DEADLINE,
        }
    }

    pub(super) fn checked_cluster(&self) -> Result<&str, StateError> {
        if self.cluster.contains('/') || crate::key::check(&self.cluster).is_err() {
            let reason = "it is one segment of a key: not empty, without slashes".to_owned();
            return Err(StateError::Options { setting: format!("the cluster name `{}`", self.cluster), reason });
        }
        Ok(&self.cluster)
    }

    /// With a scheme, each once.
    pub(super) fn checked_endpoints(&self) -> Result<Vec<String>, StateError> {
        let has_tls = self.ca_file.is_some() || self.identity.is_some();
        let mut endpoints: Vec<String> = Vec::new();
        for endpoint in &self.endpoints {
            let scheme = if has_tls { "https://" } else { "http://" };
            let url = if endpoint.contains("://") { endpoint.clone() } else { format!("{scheme}{endpoint}") };
            let is_http = url.starts_with("http://") && !has_tls;
            if !is_http && !url.starts_with("https://") {
                let reason = "it has to begin with `http://`, or `https://` where TLS files are given".to_owned();
                return Err(StateError::Options { setting: format!("the etcd endpoint `{endpoint}`"), reason });
            }
            if !endpoints.contains(&url) {
                endpoints.push(url);
            }
        }
        if endpoints.is_empty() {
            let (setting, reason) = ("the list of etcd endpoints".to_owned(), "it is empty".to_owned());
            return Err(StateError::Options { setting, reason });
        }
        Ok(endpoints)
    }

    /// Options of connections. Reads the files.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions, StateError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.deadline / 2)
            .with_keep_alive(KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT)
            // A member that lost the others answers at once that it did, and ends its watches.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(EtcdUser { name, password }) = &self.user {
            options = options.with_user(name, password);
        }
        let mut tls = TlsOptions::new();
        if let Some(path) = &self.ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        let has_tls = self.ca_file.is_some() || self.identity.is_some();
        Ok(if has_tls { options.with_tls(tls) } else { options })
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, StateError> {
    std::fs::read(path)
        .map_err(|error| StateError::Options { setting: path.display().to_string(), reason: error.to_string() })
}
