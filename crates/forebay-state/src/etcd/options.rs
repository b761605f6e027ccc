//! How to reach an etcd.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use super::tls::{Problem, TlsFiles, TlsPaths};
use crate::{DEFAULT_DEADLINE, StateError};

/// How often an idle connection is tried, and how long its answer may take: a member that vanished without a word is
/// noticed. etcd refuses clients that ask more often than every five seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(6);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the certificate files are read again: those who replace them do so hours before the old ones end.
const REREAD_EVERY: Duration = Duration::from_secs(10);

/// The options of an [`crate::EtcdStore`].
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Client URLs of the members, `http://host:2379` or `https://…`; without a scheme it is https if a certificate is
    /// configured, else http. With a user, http is for members on this machine only.
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
    /// How often the files are read again, to be used when they have changed.
    pub reread_every: Duration,
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
            reread_every: REREAD_EVERY,
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
            if is_http && self.user.is_some() && !is_of_this_machine(&url) {
                return Err(StateError::Options {
                    setting: format!("the etcd endpoint `{endpoint}` of `cluster.etcd.endpoints`"),
                    reason: "over http the password of `cluster.etcd.user`, which is in `cluster.etcd.password_file`, would \
                             be read by whoever is on the way; have etcd serve https, and write `https://` and \
                             `cluster.etcd.ca_file`"
                        .to_owned(),
                });
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

    /// Where the certificate files are.
    pub(super) fn tls_paths(&self) -> TlsPaths {
        TlsPaths { ca: self.ca_file.clone(), identity: self.identity.clone() }
    }

    /// Options of connections, with what the certificate files hold.
    pub(super) fn connect_options(&self, files: &TlsFiles) -> ConnectOptions {
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
        if let Some(ca) = &files.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &files.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let has_tls = files.ca.is_some() || files.identity.is_some();
        if has_tls { options.with_tls(tls) } else { options }
    }
}

impl From<Problem> for StateError {
    fn from(Problem { file, reason }: Problem) -> Self {
        Self::Options { setting: file.display().to_string(), reason }
    }
}

/// Whether what is sent to this URL does not leave the machine. It is read as the code that connects reads it.
fn is_of_this_machine(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_password(endpoint: &str) -> EtcdOptions {
        let user = EtcdUser { name: "forebay".to_owned(), password: "secret".to_owned() };
        EtcdOptions { user: Some(user), ..EtcdOptions::new([endpoint], "c") }
    }

    #[test]
    fn a_password_goes_over_http_to_this_machine_only() {
        for near in
            ["http://127.0.0.1:2379", "http://127.8.0.1", "http://[::1]:2379", "localhost:2379", "http://LOCALHOST"]
        {
            assert!(with_password(near).checked_endpoints().is_ok(), "{near}");
        }
        assert!(with_password("https://etcd1:2379").checked_endpoints().is_ok());
        for far in [
            "http://etcd1:2379",
            "etcd1:2379",
            "http://10.0.0.1:2379",
            "http://[fd00::1]:2379",
            "http://0.0.0.0:2379",
            "http://127.0.0.1.example.org:2379",
            "http://localhost.example.org",
            "http://127.0.0.1@example.org:2379",
            "http://localhost:2379@example.org",
            "http://[::ffff:10.0.0.1]:2379",
        ] {
            let error = with_password(far).checked_endpoints().unwrap_err().to_string();
            for named in [far, "cluster.etcd.endpoints", "cluster.etcd.password_file", "https://"] {
                assert!(error.contains(named), "{error}");
            }
            assert!(!error.contains("secret"), "{error}");
            assert!(EtcdOptions { user: None, ..with_password(far) }.checked_endpoints().is_ok(), "{far}");
        }
        // One that is far among those that are near is enough.
        let both = EtcdOptions {
            endpoints: vec!["http://127.0.0.1:2379".to_owned(), "http://etcd2:2379".to_owned()],
            ..with_password("")
        };
        assert!(both.checked_endpoints().is_err());
    }
}
