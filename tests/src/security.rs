//! In which mode of `security.mode` the processes of tests run: without one, on loopback, or in the mode that
//! `FOREBAY_TEST_SECURITY` names.
//!
//! * `key`: all prove who they are, and encrypt what they send;
//! * `auth`: all prove who they are, and bytes go in plain text;
//! * `mtls`: as with `key`, and no process has the key: each has a certificate of its role and name, and a command that of
//!   an admin.
//!
//! Processes and commands are told by variables of their environment, over which the flags of a test win: one that sets
//! `security.*` itself runs as it always does. All that one process of tests starts is of one cluster, whose key and
//! certificates lie in a directory that goes with that process. A test that cannot run so says it by
//! [`ruled_out_by_mode`].

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use forebay_identity::{
    ClusterKey, ClusterKeys, Credentials, LiveIdentity, Material, Scope, Trust, certificates_pem, http_client_config,
};
use forebay_types::Role;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The variable that chooses the mode.
const VARIABLE: &str = "FOREBAY_TEST_SECURITY";
/// The name of the cluster, and the trust domain, unless they are set.
const CLUSTER: &str = "forebay";
/// A certificate lasts from so long before it is made until so long after.
const VALID: Duration = Duration::from_secs(6 * 3600);
/// The file of the cluster's key.
const KEY: &str = "cluster.key";
/// Which variable names which file of a certificate.
const CERTIFICATE: [(&str, &str); 3] = [
    ("FOREBAY_SECURITY_CERT_FILE", "tls.crt"),
    ("FOREBAY_SECURITY_CERT_KEY_FILE", "tls.key"),
    ("FOREBAY_SECURITY_CA_FILE", "ca.crt"),
];

static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();

/// The directories of certificates that were issued.
type Issued = Mutex<HashMap<(Role, String), PathBuf>>;

/// A mode, and the secrets of its cluster.
struct Chosen {
    mode: String,
    /// What `network.tcp.security` is.
    over_tcp: &'static str,
    /// Where the key and the certificates are.
    directory: PathBuf,
    /// What processes have in place of the key, if they have.
    certificates: Option<Issued>,
}

/// The mode, if there is one.
fn chosen() -> Option<&'static Chosen> {
    let read = || {
        let mode = std::env::var(VARIABLE).unwrap_or_default();
        (!mode.is_empty()).then(|| Chosen::new(mode, make_directory()))
    };
    CHOSEN.get_or_init(read).as_ref()
}

/// What the environment of a process has that tests start: of one that is `name` in this role, where each has a
/// certificate of its own. One that is started again has what it had.
///
/// # Panics
/// When there is no such name.
pub(crate) fn variables(role: Role, name: &str) -> Vec<(&'static str, String)> {
    chosen().map(|chosen| chosen.variables(role, name)).unwrap_or_default()
}

/// Whether the test is one that runs without a mode only, `why`, and there is one; says so.
#[must_use]
pub fn ruled_out_by_mode(why: &str) -> bool {
    if let Some(Chosen { mode, .. }) = chosen() {
        forebay_testkit::skipped(&format!("with {VARIABLE}={mode}: {why}"));
    }
    chosen().is_some()
}

/// What is spoken over.
pub(crate) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// What a client of an HTTP listener speaks over: in a mode, TLS as an admin.
///
/// # Panics
/// When there can be no TLS.
pub(crate) fn to_http(tcp: TcpStream) -> Box<dyn Stream> {
    let Some(chosen) = chosen() else { return Box::new(tcp) };
    let name = ServerName::try_from("listener").expect("a name");
    let tls = ClientConnection::new(Arc::new(chosen.admin()), name).expect("a client");
    Box::new(StreamOwned::new(tls, tcp))
}

impl Chosen {
    /// That mode, with a new key in this directory.
    fn new(mode: String, directory: PathBuf) -> Self {
        let (over_tcp, certificates) = match mode.as_str() {
            "key" => ("encrypt", None),
            "auth" => ("auth", None),
            "mtls" => ("encrypt", Some(Issued::default())),
            other => panic!("{VARIABLE} is {other:?}: set it to `key`, `auth` or `mtls`, or unset it"),
        };
        let chosen = Self { mode, over_tcp, directory, certificates };
        write_file(&chosen.key(), 0o600, &ClusterKey::generate().expect("a key").to_pem());
        chosen
    }

    fn key(&self) -> PathBuf {
        self.directory.join(KEY)
    }

    fn variables(&self, role: Role, name: &str) -> Vec<(&'static str, String)> {
        let names = |variable: &'static str, file: PathBuf| (variable, file.display().to_string());
        let (mode, files) = match &self.certificates {
            None => ("key", vec![names("FOREBAY_SECURITY_KEY_FILE", self.key())]),
            Some(issued) => {
                let mut issued = issued.lock().expect("certificates could be issued so far");
                let directory = issued.entry((role, name.to_owned())).or_insert_with(|| self.issue(role, name));
                ("mtls", CERTIFICATE.map(|(variable, file)| names(variable, directory.join(file))).to_vec())
            }
        };
        let settings = [("FOREBAY_SECURITY_MODE", mode), ("FOREBAY_NETWORK_TCP_SECURITY", self.over_tcp)];
        settings.into_iter().map(|(variable, value)| (variable, value.to_owned())).chain(files).collect()
    }

    /// Writes a certificate and whom to believe into a directory, as `forebay key issue` does. All authorities are believed:
    /// one of cert-manager speaks for all roles.
    fn issue(&self, role: Role, name: &str) -> PathBuf {
        let (credentials, authorities) = issued(&self.key(), role, name);
        let directory = self.directory.join(format!("{role}-{name}"));
        std::fs::create_dir(&directory).expect("a directory for a certificate");
        write_file(&directory.join("tls.crt"), 0o644, &credentials.chain_pem());
        write_file(&directory.join("tls.key"), 0o600, &credentials.key_pem());
        write_file(&directory.join("ca.crt"), 0o644, &certificates_pem(&authorities));
        directory
    }

    /// What an admin of the cluster proves, and whom it believes.
    fn admin(&self) -> ClientConfig {
        http_client_config(&member(&self.key(), Role::Admin, "tests"), None).expect("a configuration")
    }
}

/// What somebody proves whom the cluster key in this file makes `name` in this role, and whom it believes: in the cluster and
/// the trust domain that processes have unless they are told otherwise.
///
/// # Panics
/// When there is no such key.
#[must_use]
pub fn member(key: &Path, role: Role, name: &str) -> Arc<LiveIdentity> {
    let (credentials, authorities) = issued(key, role, name);
    let trust = Trust::new(scope(), &authorities, []).expect("authorities to believe");
    LiveIdentity::new(Material::new(credentials, trust, SystemTime::now()).expect("an identity"))
}

fn scope() -> Scope {
    Scope::new(CLUSTER, CLUSTER).expect("names")
}

/// What the cluster key in this file gives `name` in this role, and the authorities of the cluster.
fn issued(key: &Path, role: Role, name: &str) -> (Credentials, Vec<CertificateDer<'static>>) {
    let (keys, scope, now) = (ClusterKeys::read(key).expect("the key"), scope(), SystemTime::now());
    let authority = keys.current().authority(&scope, role).expect("an authority");
    let credentials = authority.issue(name, now - VALID, now + VALID).expect("a certificate");
    (credentials, keys.authorities(&scope).expect("authorities"))
}

/// Writes a new file of this mode, unless the umask takes more of it.
fn write_file(path: &Path, mode: u32, text: &str) {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}

/// A directory for secrets that nobody else may enter, and that goes when this process ends.
fn make_directory() -> PathBuf {
    let private = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().prefix("forebay-e2e-cluster-").permissions(private).tempdir();
    let directory = directory.expect("a directory for the key of the cluster").keep();
    // SAFETY: `remove_directory` takes nothing, and unwinds in no case; what it looks at is there until the process ends.
    unsafe { libc::atexit(remove_directory) };
    directory
}

extern "C" fn remove_directory() {
    if let Some(Some(chosen)) = CHOSEN.get() {
        // Whoever cleans directories may have been here.
        let _ = std::fs::remove_dir_all(&chosen.directory);
    }
}

#[cfg(test)]
mod tests {
    use forebay_identity::{Settings, Source, Watch};

    use super::*;

    #[test]
    fn with_mtls_each_process_has_a_certificate_of_its_role_and_name_and_none_has_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let chosen = Chosen::new("mtls".to_owned(), directory.path().to_owned());
        for (role, name) in [(Role::Worker, "w1"), (Role::Worker, "w2"), (Role::Writer, "w1"), (Role::Admin, "tests")] {
            let variables = chosen.variables(role, name);
            assert_eq!(variables, chosen.variables(role, name), "one that is started again is who it was");
            let value = |variable: &str| variables.iter().find(|(told, _)| *told == variable).unwrap().1.clone();
            assert_eq!([value("FOREBAY_SECURITY_MODE"), value("FOREBAY_NETWORK_TCP_SECURITY")], ["mtls", "encrypt"]);
            let key_file = chosen.key().display().to_string();
            assert!(variables.iter().all(|(_, value)| *value != key_file), "{variables:?}");
            // As the process does.
            let [certificate, key, authorities] = CERTIFICATE.map(|(variable, _)| PathBuf::from(value(variable)));
            let source = Source::Files { certificate, key, authorities };
            let settings = Settings { scope: scope(), source, also: None, denied: None };
            let (_, material) = Watch::begin(settings, SystemTime::now()).unwrap();
            assert_eq!(*material.identity(), scope().identity(role, name).unwrap());
        }
    }
}
