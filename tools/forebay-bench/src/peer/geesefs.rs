//! geesefs, which caches in its own memory.

use std::process::Command;

use crate::fixture::BUCKET;
use crate::peer::program::{program, version};
use crate::peer::{Mounted, Peer, Place};

/// geesefs.
pub(crate) struct Geesefs;

impl Peer for Geesefs {
    fn name(&self) -> &'static str {
        "geesefs"
    }

    fn version(&self) -> Option<String> {
        version("geesefs", "--version", "version").map(|line| line.trim_start_matches("geesefs version ").to_owned())
    }

    fn settings(&self) -> &'static str {
        "`--memory-limit 8192 --entry-limit 1000000 --stat-cache-ttl 1h -o ro`"
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let server = place.server();
        let mut command = Command::new(program("geesefs"));
        command
            .args(["-f", "--endpoint", server.url(), "--region", "us-east-1", "--no-detect", "--list-type", "2"])
            .args(["--memory-limit", "8192", "--entry-limit", "1000000", "--stat-cache-ttl", "1h", "-o", "ro", BUCKET])
            .arg(place.mountpoint())
            .envs(server.environment());
        Mounted::foreign(command, &place.mountpoint(), &place.log())
    }
}
