//! Forebay, as the others see it.

use forebay_testkit::MountProcess;

use crate::fixture::{Fixture, LARGE};
use crate::materialised;
use crate::peer::{Mounted, Peer, Place};

/// How `forebay up` is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ours {
    /// As it comes.
    Daemon,
    /// With room for whole files, and the large one among them.
    Materialised,
    /// As it comes, with a cache for so many bytes.
    Sized(u64),
    /// The same, when all memory of the cache was taken from the kernel, as a worker does at its start.
    SizedPrewarmed(u64),
    /// As it comes, with room for as many bytes of whole files, each of which is taken when it is first opened.
    SizedLocal(u64),
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        match self {
            Self::Daemon | Self::Sized(_) => "Forebay",
            Self::SizedPrewarmed(_) => "Forebay, prewarmed",
            Self::Materialised | Self::SizedLocal(_) => "Forebay, materialised",
        }
    }

    fn version(&self) -> Option<String> {
        Some(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn settings(&self) -> &'static str {
        match self {
            Self::Daemon => "`up`",
            Self::Materialised => "`up`, `client.local.size`, `fs local add`",
            Self::Sized(_) => "`up`",
            Self::SizedPrewarmed(_) => "`up`, `worker.memory.prewarm=true`",
            Self::SizedLocal(_) => "`up`, `client.local.size`, `client.local.first_open_size=1MiB`",
        }
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let fixture = place.fixture;
        let mount = match self {
            Self::Daemon => fixture.up_at("peer-forebay", &[])?,
            Self::Materialised => {
                let mount = possible(materialised::up(fixture, "peer-forebay-local", fixture.settings.size, &[])?)?;
                materialised::keep(fixture, &mount, LARGE)?;
                mount
            }
            Self::Sized(bytes) => fixture.up_sized("peer-forebay", Fixture::memory_for(*bytes), &[])?,
            Self::SizedPrewarmed(bytes) => {
                fixture.prewarmed_up("peer-forebay", None, Fixture::memory_for(*bytes), &[])?
            }
            Self::SizedLocal(bytes) => {
                let room = format!("client.local.size={}", Fixture::memory_for(*bytes));
                let more = ["-o", &room, "-o", "client.local.min_opens=1", "-o", "client.local.first_open_size=1MiB"];
                let mount = fixture.up_sized("peer-forebay-local", Fixture::memory_for(*bytes), &more)?;
                possible(mount)?
            }
        };
        Ok(Mounted::ours(mount))
    }
}

/// A mount that can materialise files.
fn possible(mount: MountProcess) -> anyhow::Result<MountProcess> {
    if let Some(reason) = materialised::missing(&mount)? {
        mount.unmount()?;
        anyhow::bail!("materialised files: {reason}");
    }
    Ok(mount)
}
