//! The S3 server as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_types::format_duration;

use super::{Programs, end};
use crate::S3ServerOptions;

/// A running `forebay-testkit-s3`; it ends when dropped.
pub struct S3Process {
    child: Child,
    url: String,
    keys: S3ServerOptions,
}

impl S3Process {
    /// Serves `directory`, which is made if need be, with `bucket` in it, on a free port of the loopback interface.
    ///
    /// # Errors
    /// When the server was not built or does not start.
    pub fn start(programs: &Programs, directory: &Path, bucket: &str) -> anyhow::Result<Self> {
        Self::start_distant(programs, directory, bucket, Duration::ZERO)
    }

    /// As [`S3Process::start`], with every request answered only after `latency`.
    ///
    /// # Errors
    /// As [`S3Process::start`].
    pub fn start_distant(
        programs: &Programs,
        directory: &Path,
        bucket: &str,
        latency: Duration,
    ) -> anyhow::Result<Self> {
        let keys = S3ServerOptions { latency, ..S3ServerOptions::default() };
        let mut child = programs
            .command("forebay-testkit-s3")?
            .arg("--dir")
            .arg(directory)
            .args(["--access-key", &keys.access_key, "--secret-key", &keys.secret_key, "--bucket", bucket])
            .args(["--latency", &format_duration(latency)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the S3 server")?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let url = line.trim().strip_prefix("listening on ").map(ToOwned::to_owned);
        let (Some(Ok(_)), Some(url)) = (read, url) else {
            let _ = end(&mut child);
            bail!("the S3 server did not start: it said `{}`", line.trim());
        };
        Ok(Self { child, url, keys })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The access key.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.keys.access_key
    }

    /// The secret key.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        &self.keys.secret_key
    }

    /// The environment that makes a process use this server: endpoint, region, keys.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.keys.environment(self.url.clone())
    }

    /// Ends the server and waits for it.
    ///
    /// # Errors
    /// When the system refuses to end it.
    pub fn stop(mut self) -> std::io::Result<()> {
        end(&mut self.child)
    }
}

impl Drop for S3Process {
    fn drop(&mut self) {
        let _ = end(&mut self.child);
    }
}
