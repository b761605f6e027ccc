//! Attacks on real processes that demand proof, beside those that have files of their own: docs/VERIFICATION.md,
//! "Attacks and their tests", lists all.

mod readers;
mod rotation;
mod secrets;
mod strangers;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{Finished, Setup, finish, forebay};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);

/// The key of a cluster and what follows from it, as an operator keeps them.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        let keys = Self(tempfile::tempdir().unwrap());
        keys.make("cluster.key", "create");
        keys
    }

    /// Has `forebay key COMMAND` make a secret.
    fn make(&self, name: &str, command: &str) {
        let made = run(&["key", command], &[]).succeeded().text();
        put(&self.path(name), made.as_bytes());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn key(&self) -> PathBuf {
        self.path("cluster.key")
    }

    /// What this file holds.
    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The settings of a process that has the key.
    fn settings(&self) -> Vec<String> {
        vec!["security.mode=key".to_owned(), format!("security.key_file={}", self.key().display())]
    }

    /// Issues a certificate into this directory, and gives the settings of a process that has it.
    fn issue(&self, role: &str, directory: &str) -> Vec<String> {
        let output = self.path(directory);
        let issue = ["key", "issue", "--role", role, "--client", "one", "--output", output.to_str().unwrap()];
        let _ = run(&issue, &self.settings()).succeeded();
        let file = |key: &str, name: &str| format!("security.{key}={}", output.join(name).display());
        let files = [file("cert_file", "tls.crt"), file("cert_key_file", "tls.key"), file("ca_file", "ca.crt")];
        [&["security.mode=mtls".to_owned()][..], &files].concat()
    }
}

/// Puts a secret in place as a whole.
fn put(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

fn set(setup: Setup, settings: &[String]) -> Setup {
    settings.iter().fold(setup, |setup, setting| setup.option(setting))
}

fn run(arguments: &[&str], settings: &[String]) -> Finished {
    let settings = settings.iter().flat_map(|setting| ["-o", setting]);
    finish(forebay(&[]).args(arguments).args(settings), SOON)
}
