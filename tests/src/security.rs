//! In which mode of `security.mode` the processes of tests run: without one, on loopback, or in the mode that
//! `FOREBAY_TEST_SECURITY` names.
//!
//! * `key`: all prove who they are, and encrypt what they send;
//! * `auth`: all prove who they are, and bytes go in plain text.
//!
//! Processes and commands are told by variables of their environment, over which the flags of a test win: one that sets
//! `security.*` itself runs as it always does. All that one process of tests starts has one key, in a file that goes with
//! that process. A test that cannot run so says it by [`ruled_out_by_mode`].

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use forebay_identity::{ClusterKey, ClusterKeys, LiveIdentity, Material, Scope, Trust, http_client_config};
use forebay_types::Role;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The variable that chooses the mode.
const VARIABLE: &str = "FOREBAY_TEST_SECURITY";
/// The name of the cluster, and the trust domain, unless they are set.
const CLUSTER: &str = "forebay";
/// A certificate lasts from so long before it is made until so long after.
const VALID: Duration = Duration::from_secs(3600);

static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();

/// A mode, and the key of its cluster.
struct Chosen {
    mode: String,
    key: PathBuf,
    variables: Vec<(&'static str, String)>,
}

/// The mode, if there is one.
fn chosen() -> Option<&'static Chosen> {
    let read = || {
        let mode = std::env::var(VARIABLE).unwrap_or_default();
        (!mode.is_empty()).then(|| Chosen::new(mode))
    };
    CHOSEN.get_or_init(read).as_ref()
}

/// What the environment of every process has that tests start.
pub(crate) fn variables() -> &'static [(&'static str, String)] {
    chosen().map(|chosen| chosen.variables.as_slice()).unwrap_or_default()
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
    fn new(mode: String) -> Self {
        let over_tcp = match mode.as_str() {
            "key" => "encrypt",
            "auth" => "auth",
            other => panic!("{VARIABLE} is {other:?}: set it to `key` or `auth`, or unset it"),
        };
        let key = make_key();
        let variables = vec![
            ("FOREBAY_SECURITY_MODE", "key".to_owned()),
            ("FOREBAY_SECURITY_KEY_FILE", key.display().to_string()),
            ("FOREBAY_NETWORK_TCP_SECURITY", over_tcp.to_owned()),
        ];
        Self { mode, key, variables }
    }

    /// What an admin of the cluster proves, and whom it believes.
    fn admin(&self) -> ClientConfig {
        http_client_config(&member(&self.key, Role::Admin, "tests"), None).expect("a configuration")
    }
}

/// What somebody proves whom the cluster key in this file makes `name` in this role, and whom it believes: in the cluster and
/// the trust domain that processes have unless they are told otherwise.
///
/// # Panics
/// When there is no such key.
#[must_use]
pub fn member(key: &Path, role: Role, name: &str) -> Arc<LiveIdentity> {
    let keys = ClusterKeys::read(key).expect("the key");
    let (scope, now) = (Scope::new(CLUSTER, CLUSTER).expect("names"), SystemTime::now());
    let authority = keys.current().authority(&scope, role).expect("an authority");
    let credentials = authority.issue(name, now - VALID, now + VALID).expect("a certificate");
    let authorities = keys.authorities(&scope).expect("authorities");
    let trust = Trust::new(scope, &authorities, []).expect("authorities to believe");
    LiveIdentity::new(Material::new(credentials, trust, now).expect("an identity"))
}

/// A new key in a file that nobody else may read, and that goes when this process ends.
fn make_key() -> PathBuf {
    let file = tempfile::Builder::new().prefix("forebay-e2e-key-").tempfile();
    let mut file = file.expect("a file for the key of the cluster");
    let key = ClusterKey::generate().expect("a key");
    file.write_all(key.to_pem().as_bytes()).expect("writing the key");
    let (_, path) = file.keep().expect("keeping the key");
    // SAFETY: `remove_key` takes nothing, and unwinds in no case; what it looks at is there until the process is gone.
    unsafe { libc::atexit(remove_key) };
    path
}

extern "C" fn remove_key() {
    if let Some(Some(chosen)) = CHOSEN.get() {
        // Whoever cleans directories may have been here.
        let _ = std::fs::remove_file(&chosen.key);
    }
}
