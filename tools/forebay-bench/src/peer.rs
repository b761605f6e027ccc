//! File systems of others on the same bucket, started as a sensible operator would and ended on every way out.
//!
//! [`Peer`] is one of them: `ours.rs` too, so that all are measured by the same lines. Their caches lie on tmpfs, which is as good as
//! a disk with all of it in the page cache gets, and stays when the page cache is dropped. What is not installed is left out;
//! `scripts/peers.sh` installs what it can.

mod foreign;
mod geesefs;
mod juicefs;
mod mounted;
mod mountpoint;
mod ours;
mod place;
mod program;
mod rclone;
mod s3fs;
mod traits;

pub(crate) use mounted::Mounted;
pub(crate) use ours::Ours;
pub(crate) use place::Place;
pub(crate) use program::peers_directory;
pub(crate) use traits::Peer;

/// Everything that is compared, Forebay first. Only what is installed.
pub(crate) fn installed(ours: &[Ours]) -> Vec<Box<dyn Peer>> {
    let mut all: Vec<Box<dyn Peer>> = ours.iter().map(|ours| Box::new(*ours) as Box<dyn Peer>).collect();
    all.extend([
        Box::new(geesefs::Geesefs) as Box<dyn Peer>,
        Box::new(s3fs::S3fs),
        Box::new(juicefs::JuiceFs),
        Box::new(rclone::Rclone),
        Box::new(mountpoint::Mountpoint),
    ]);
    all.retain(|peer| peer.version().is_some());
    all
}
