//! JuiceFS, community edition: it keeps files in a format of its own, so they are written through its mount first.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::fixture::BUCKET;
use crate::peer::place::remove_if_there;
use crate::peer::program::{program, version};
use crate::peer::{Mounted, Peer, Place};

/// What its volume is called, and the directory of the bucket where it keeps what is in its files.
const OBJECTS: &str = "juicefs";

/// JuiceFS.
pub(crate) struct JuiceFs;

impl JuiceFs {
    /// Where it keeps the names: a database in files of its own, which needs no server.
    fn metadata(place: &Place<'_>) -> String {
        format!("badger://{}", place.state().display())
    }

    fn command() -> Command {
        let mut command = Command::new(program("juicefs"));
        command.stdin(Stdio::null());
        command
    }

    fn copy(from: &Path, to: &PathBuf) -> anyhow::Result<()> {
        if let Some(directory) = to.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {} to JuiceFS", from.display()))
    }
}

impl Peer for JuiceFs {
    fn name(&self) -> &'static str {
        "JuiceFS"
    }

    fn version(&self) -> Option<String> {
        version("juicefs", "version", "version").map(|line| line.trim_start_matches("juicefs version ").to_owned())
    }

    fn settings(&self) -> &'static str {
        "`badger`, `--cache-size 65536 --attr-cache 3600 --entry-cache 3600 --dir-entry-cache 3600 --open-cache 3600`"
    }

    fn prepare(&self, place: &Place<'_>, keys: &[String]) -> anyhow::Result<()> {
        let server = place.server();
        if !place.state().exists() {
            let bucket = format!("{}/{BUCKET}", server.url());
            let output = Self::command()
                .args(["format", "--no-color", "--storage", "s3", "--bucket", &bucket, "--trash-days", "0"])
                .args(["--access-key", server.access_key(), "--secret-key", server.secret_key()])
                .args([&Self::metadata(place), OBJECTS])
                .output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "`juicefs format` failed: {}", said.lines().last().unwrap_or_default());
        }
        let mounted = self.start(place)?;
        for key in keys {
            let to = mounted.path().join(key);
            if !to.exists() {
                Self::copy(&place.fixture.bucket().join(key), &to)?;
            }
        }
        mounted.end()
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let mut command = Self::command();
        command
            // It would tell its makers that it runs.
            .args(["mount", "--no-usage-report", "--no-syslog", "--no-color", "--no-bgjob", "--cache-size", "65536"])
            .args(["--free-space-ratio", "0.01", "--attr-cache", "3600", "--entry-cache", "3600"])
            .args(["--dir-entry-cache", "3600", "--open-cache", "3600", "--cache-dir"])
            .arg(place.empty_cache()?)
            .arg("--log")
            .arg(place.log().with_extension("more.log"))
            .arg(Self::metadata(place))
            .arg(place.mountpoint());
        Mounted::foreign(command, &place.mountpoint(), &place.log())
    }
    fn clean(&self, place: &Place<'_>) -> anyhow::Result<()> {
        remove_if_there(&place.cache())?;
        remove_if_there(&place.state())?;
        remove_if_there(&place.fixture.bucket().join(OBJECTS))
    }
}
