//! The processes of the demo: the S3 server and `forebay up`, ended on every way out.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use forebay_types::ByteSize;

/// The bucket's name.
pub(crate) const BUCKET: &str = "forebay-demo";

const ACCESS_KEY: &str = "forebay-demo";
const SECRET_KEY: &str = "forebay-demo-secret";
/// How long a process may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program that was built next to this one.
fn sibling(name: &str) -> anyhow::Result<Command> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "{} is missing; run this with `make demo`, which builds it", path.display());
    Ok(Command::new(path))
}

/// The S3 server.
pub(crate) struct S3 {
    child: Child,
    url: String,
}

impl S3 {
    pub(crate) fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut child = sibling("forebay-testkit-s3")?
            .arg("--dir")
            .arg(directory)
            .args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--bucket", BUCKET])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the S3 server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let Some(url) = line.trim().strip_prefix("listening on ") else {
            let _ = child.kill();
            bail!("the S3 server did not start: it said `{}`", line.trim());
        };
        Ok(Self { url: url.to_owned(), child })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    pub(crate) fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Ends the server and waits for it.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        end(&mut self.child)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = end(&mut self.child);
    }
}

/// Asks a process to end, waits, and kills it when it does not.
fn end(child: &mut Child) -> anyhow::Result<()> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // It may have ended by itself: then there is nothing to ask.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// `forebay up`, in the background.
pub(crate) struct Mounted {
    mountpoint: PathBuf,
    mounted: bool,
}

impl Mounted {
    pub(crate) fn up(server: &S3, mountpoint: &Path, memory: ByteSize) -> anyhow::Result<Self> {
        std::fs::create_dir_all(mountpoint)?;
        let log = mountpoint.with_extension("log");
        let status = sibling("forebay")?
            .args(["up", &format!("s3://{BUCKET}")])
            .arg(mountpoint)
            .args(["--memory", &memory.to_string()])
            .arg("-o")
            .arg(format!("log.file={}", log.display()))
            .env("AWS_ENDPOINT_URL", server.url())
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", "us-east-1")
            .stdout(Stdio::null())
            .status()
            .context("cannot start forebay")?;
        ensure!(status.success(), "`forebay up` failed");
        Ok(Self { mountpoint: mountpoint.to_owned(), mounted: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// What the cache has counted so far.
    pub(crate) fn counters(&self) -> anyhow::Result<Counters> {
        let output = sibling("forebay")?.args(["stats", "--json"]).arg(&self.mountpoint).output()?;
        ensure!(output.status.success(), "`forebay stats` failed: {}", String::from_utf8_lossy(&output.stderr));
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).context("`forebay stats --json`")?;
        let bytes = |name: &str| {
            stats["worker"][name].as_u64().with_context(|| format!("`forebay stats --json` has no worker.{name}"))
        };
        Ok(Counters { memory: bytes("bytes_memory")?, disk: bytes("bytes_disk")?, origin: bytes("bytes_origin")? })
    }

    pub(crate) fn unmount(mut self) -> anyhow::Result<()> {
        self.mounted = false;
        let output = sibling("forebay")?.arg("umount").arg(&self.mountpoint).output()?;
        ensure!(output.status.success(), "`forebay umount` failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let umount =
                sibling("forebay").and_then(|mut forebay| Ok(forebay.arg("umount").arg(&self.mountpoint).status()?));
            if let Err(error) = umount {
                eprintln!("cannot unmount {}: {error}", self.mountpoint.display());
            }
        }
    }
}

/// Bytes, by where they came from.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) origin: u64,
}

impl Counters {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self { memory: self.memory - before.memory, disk: self.disk - before.disk, origin: self.origin - before.origin }
    }
}
