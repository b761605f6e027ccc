//! Mountpoint for Amazon S3, with a cache of blocks on disk (here: tmpfs).

use std::process::Command;

use crate::fixture::BUCKET;
use crate::peer::program::{program, version};
use crate::peer::{Mounted, Peer, Place};

/// Mountpoint for Amazon S3.
pub(crate) struct Mountpoint;

impl Peer for Mountpoint {
    fn name(&self) -> &'static str {
        "mountpoint-s3"
    }

    fn version(&self) -> Option<String> {
        version("mount-s3", "--version", "mount-s3").map(|line| line.trim_start_matches("mount-s3 ").to_owned())
    }

    fn settings(&self) -> &'static str {
        "`--cache … --metadata-ttl indefinite --read-only`"
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let server = place.server();
        let mut command = Command::new(program("mount-s3"));
        command
            .arg(BUCKET)
            .arg(place.mountpoint())
            .args(["--foreground", "--no-log", "--read-only", "--endpoint-url", server.url(), "--force-path-style"])
            .args(["--region", "us-east-1", "--metadata-ttl", "indefinite", "--cache"])
            .arg(place.empty_cache()?)
            .envs(server.environment());
        Mounted::foreign(command, &place.mountpoint(), &place.log())
    }
}
