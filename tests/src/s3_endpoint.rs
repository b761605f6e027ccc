//! An S3 endpoint in a process of its own, and the keys that its clients sign with.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, RetryConfig};
use tempfile::TempDir;

use crate::{Finished, Setup, Worker, finish, forebay, once, program};

const START_WITHIN: Duration = Duration::from_secs(60);
/// How an endpoint says where it listens.
const LISTENING: &str = "S3 endpoint listening on ";

/// A key of the endpoint, as its owner has it.
#[derive(Clone, Debug)]
pub struct S3Key {
    /// The access key.
    pub access: String,
    /// Its secret.
    pub secret: String,
}

/// A file of keys.
pub struct S3Keys(TempDir);

impl Default for S3Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl S3Keys {
    /// One without keys.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let keys = Self(tempfile::tempdir().expect("a directory for keys"));
        keys.write("");
        keys
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.path().join("keys")
    }

    /// Adds a key for a client of this role and name.
    ///
    /// # Panics
    /// When none is made.
    #[track_caller]
    pub fn add(&self, role: &str, client: &str) -> S3Key {
        let made = finish(forebay(&[]).args(["key", "s3", "--role", role, "--client", client]), START_WITHIN);
        let line = made.succeeded().text();
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("a line of a key").to_owned();
        let key = S3Key { access: word(), secret: word() };
        let before = std::fs::read_to_string(self.path()).expect("the file of keys");
        self.write(&format!("{before}{line}"));
        key
    }

    /// Takes a key away.
    ///
    /// # Panics
    /// When the file cannot be changed.
    pub fn remove(&self, key: &S3Key) {
        let before = std::fs::read_to_string(self.path()).expect("the file of keys");
        let lines = before.lines().filter(|line| !line.starts_with(&key.access));
        self.write(&lines.map(|line| format!("{line}\n")).collect::<String>());
    }

    /// Puts another file in its place, as a whole.
    fn write(&self, text: &str) {
        let beside = self.0.path().join("new");
        std::fs::write(&beside, text).expect("writing keys");
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).expect("the mode of the keys");
        std::fs::rename(&beside, self.path()).expect("placing the keys");
    }
}

/// A running `forebay s3`. Dropping it kills it.
pub struct S3Endpoint {
    directory: TempDir,
    process: Child,
    address: SocketAddr,
}

impl Setup {
    /// Serves what these workers serve, or without any those of its cluster, to S3 clients that sign with a key of `keys`.
    ///
    /// # Panics
    /// When the endpoint does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn s3<'a>(self, workers: impl IntoIterator<Item = &'a Worker>, keys: &S3Keys) -> S3Endpoint {
        let addresses: Vec<String> = workers.into_iter().map(|worker| worker.address().to_string()).collect();
        let named = !addresses.is_empty();
        let setup = if named { self.argument("--workers", &addresses.join(",")) } else { self };
        let setup = setup.argument("--listen", "127.0.0.1:0");
        let setup = setup.options(&["client.web.port=0", &credentials(&keys.path())]);
        let directory = tempfile::tempdir().expect("a directory for the endpoint's log");
        let log = std::fs::File::create(directory.path().join("log")).expect("the endpoint's log");
        let mut command = forebay(&setup.environment);
        command.arg("s3").args(&setup.arguments).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().expect("starting an endpoint");
        let mut endpoint = S3Endpoint { directory, process, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        endpoint.address = once("the endpoint listens", START_WITHIN, || {
            let log = endpoint.log_text();
            assert!(!program::ended(endpoint.process.id()), "the endpoint ended: {log}");
            address_in(&log)
        });
        endpoint
    }

    /// Runs `forebay s3` with these arguments to an end that it should come to by itself.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    #[track_caller]
    pub fn s3_that_ends(self) -> Finished {
        finish(forebay(&self.environment).arg("s3").args(&self.arguments), START_WITHIN)
    }
}

/// The setting that names a file of keys.
#[must_use]
pub fn credentials(keys: &Path) -> String {
    format!("s3.credentials_file={}", keys.display())
}

/// Where an endpoint listens, as the log of its process says.
fn address_in(log: &str) -> Option<SocketAddr> {
    let address = log.lines().find_map(|line| line.split_once(LISTENING))?.1;
    address.split_whitespace().next()?.parse().ok()
}

impl S3Endpoint {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether its process runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        !program::ended(self.process.id())
    }

    /// What it has logged.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// A client of it, that tries nothing twice.
    ///
    /// # Panics
    /// When there can be none.
    #[must_use]
    pub fn client(&self, bucket: &str, key: &S3Key) -> AmazonS3 {
        self.client_over("http", bucket, key)
    }

    /// The same over TLS, that believes whatever certificate it is shown.
    ///
    /// # Panics
    /// When there can be none.
    #[must_use]
    pub fn secure_client(&self, bucket: &str, key: &S3Key) -> AmazonS3 {
        self.client_over("https", bucket, key)
    }

    fn client_over(&self, scheme: &str, bucket: &str, key: &S3Key) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_endpoint(format!("{scheme}://{}", self.address))
            .with_client_options(ClientOptions::new().with_allow_http(true).with_allow_invalid_certificates(true))
            .with_region("us-east-1")
            .with_bucket_name(bucket)
            .with_access_key_id(&key.access)
            .with_secret_access_key(&key.secret)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build()
            .expect("an S3 client")
    }
}

impl Drop for S3Endpoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the S3 endpoint at {}\n{}", self.address, self.log_text());
        }
        // It may have ended by itself.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}
