//! rclone's mount, with a cache of whole files on disk (here: tmpfs).

use std::process::Command;

use crate::fixture::BUCKET;
use crate::peer::program::{program, version};
use crate::peer::{Mounted, Peer, Place};

/// rclone.
pub(crate) struct Rclone;

impl Peer for Rclone {
    fn name(&self) -> &'static str {
        "rclone"
    }

    fn version(&self) -> Option<String> {
        version("rclone", "version", "rclone v").map(|line| line.trim_start_matches("rclone ").to_owned())
    }

    fn settings(&self) -> &'static str {
        "`--vfs-cache-mode full --vfs-cache-max-size 64G --dir-cache-time 1h --attr-timeout 1m --max-read-ahead 4M --read-only`"
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let server = place.server();
        // The small server knows version 2 of listings only.
        let remote = format!(
            ":s3,provider=Other,env_auth=true,region=us-east-1,list_version=2,endpoint='{}':{BUCKET}",
            server.url()
        );
        let mut command = Command::new(program("rclone"));
        command
            .args(["mount", "--config", "", &remote])
            .arg(place.mountpoint())
            .arg("--cache-dir")
            .arg(place.empty_cache()?)
            .args(["--vfs-cache-mode", "full", "--vfs-cache-max-size", "64G", "--vfs-cache-poll-interval", "1h"])
            .args(["--dir-cache-time", "1h", "--attr-timeout", "1m", "--max-read-ahead", "4M", "--read-only"])
            // Its HTTP client takes none, and gives up where one is set; the server speaks no TLS.
            .env_remove("AWS_CA_BUNDLE")
            .envs(server.environment());
        Mounted::foreign(command, &place.mountpoint(), &place.log())
    }
}
