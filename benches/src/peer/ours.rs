//! Forebay, as the others see it.

use crate::fixture::{Fixture, LARGE};
use crate::materialised;
use crate::peer::{Daemon, Mounted, Peer, Place};

/// How `forebay up` is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ours {
    /// As it comes.
    Daemon,
    /// With room for whole files, and the large one among them.
    Materialised,
    /// As it comes, with a cache for so many bytes.
    Sized(u64),
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        if *self == Self::Materialised { "Forebay, materialised" } else { "Forebay" }
    }

    fn version(&self) -> Option<String> {
        Some(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn settings(&self) -> &'static str {
        if *self == Self::Materialised { "`up`, `client.local.size`, `fs local add`" } else { "`up`" }
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let fixture = place.fixture;
        let mount = match self {
            Self::Daemon => fixture.up_at("peer-forebay", &[])?,
            Self::Materialised => {
                let mount = materialised::up(fixture, "peer-forebay-local", fixture.settings.size, &[])?;
                if let Some(reason) = materialised::missing(&mount)? {
                    mount.unmount()?;
                    anyhow::bail!("materialised files: {reason}");
                }
                materialised::keep(fixture, &mount, LARGE)?;
                mount
            }
            Self::Sized(bytes) => fixture.up_sized("peer-forebay", Fixture::memory_for(*bytes), &[])?,
        };
        Ok(Mounted { path: mount.path().to_owned(), pids: vec![mount.pid()], daemon: Daemon::Ours(mount) })
    }
}
