//! Forebay, as the others see it.

use crate::fixture::{BY_DAEMON, Fixture};
use crate::peer::{Mounted, Peer, Place};

/// How `forebay up` is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ours {
    /// As it comes, with memory in which the large file is no large one.
    Default,
    /// With nothing materialised, so that all bytes come from the daemon.
    Daemon,
    /// As it comes, with a cache for so many bytes.
    Sized(u64),
    /// The same, when all memory of the cache was taken from the kernel, as a worker does at its start.
    SizedPrewarmed(u64),
    /// With a cache for so many bytes, and nothing materialised.
    SizedDaemon(u64),
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        match self {
            Self::Default | Self::Sized(_) => "Forebay",
            Self::SizedPrewarmed(_) => "Forebay, prewarmed",
            Self::Daemon | Self::SizedDaemon(_) => "Forebay, by its daemon",
        }
    }

    fn version(&self) -> Option<String> {
        Some(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn settings(&self) -> &'static str {
        match self {
            Self::Default => "`up`, `--memory` of three times the file, at least 1 GiB, its default",
            Self::Daemon | Self::SizedDaemon(_) => "`up`, `client.local.size=0`",
            Self::Sized(_) => "`up`",
            Self::SizedPrewarmed(_) => "`up`, `worker.memory.prewarm=true`",
        }
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let fixture = place.fixture;
        let mount = match self {
            Self::Default => fixture.up_sized("peer-forebay", fixture.ample_memory(), &[])?,
            Self::Daemon => fixture.up_at("peer-forebay-daemon", &BY_DAEMON)?,
            Self::Sized(bytes) => fixture.up_sized("peer-forebay", Fixture::memory_for(*bytes), &[])?,
            Self::SizedPrewarmed(bytes) => {
                fixture.prewarmed_up("peer-forebay", None, Fixture::memory_for(*bytes), &[])?
            }
            Self::SizedDaemon(bytes) => {
                fixture.up_sized("peer-forebay-daemon", Fixture::memory_for(*bytes), &BY_DAEMON)?
            }
        };
        Ok(Mounted::ours(mount))
    }
}
