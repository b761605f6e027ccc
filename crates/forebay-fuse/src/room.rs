//! What `statfs(2)` shows: the room that a program finds for what it writes.
//!
//! The size of an object store is not known, and a mount that cannot be written must not look full to tools that watch
//! for full disks: both show a petabyte, all of it free. An origin that is a directory has the room of its file system,
//! which a worker tells. The staging directory is no limit to a file, since what is written goes on to the origin while
//! writing goes on. So its room is not shown, unless its disk is so full that it does not hold one part any more: then
//! that is all that can be written.
//!
//! Programs use `statfs(2)` to find out whether a mount lives, so it never waits for long: a task asks workers and
//! disks, at most once in [`FRESH`], and a request that comes meanwhile gets what was seen last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{Client, OriginRoom};
use forebay_fuse_io::Statfs;
use forebay_locks::Mutex;
use forebay_staging::Staging;
use forebay_types::FsPath;
use tokio::sync::watch;

/// A petabyte.
const UNKNOWN: u64 = 1 << 50;
const BLOCK: u32 = 4096;
const FILES: u64 = 1 << 32;
/// How long what was seen is told without another look.
pub(crate) const FRESH: Duration = Duration::from_secs(2);
/// How long a request waits for a look.
pub(crate) const WAITS: Duration = Duration::from_millis(250);
/// How long a look may take before another one is begun.
const LOOKS: Duration = Duration::from_secs(10);

/// What was seen of the rooms of a mount.
#[derive(Debug)]
pub(crate) struct Rooms {
    state: Mutex<RoomState>,
    /// Counts looks that have ended.
    looks: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct RoomState {
    seen: Seen,
    /// When that was.
    at: Option<Instant>,
    /// When the look that is under way began.
    looking: Option<Instant>,
}

/// What one look saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) origins: Vec<OriginRoom>,
    /// What staging holds, if that is less than it must be.
    pub(crate) staging: Option<u64>,
}

/// The duty to look, of the first request.
pub(crate) struct Look(Arc<Rooms>);

impl Rooms {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), looks: watch::Sender::new(0) })
    }

    /// What was seen last, if it is fresh. Otherwise what to wait for, and the duty to look, unless another request has
    /// it.
    pub(crate) fn ask(self: &Arc<Self>, now: Instant) -> Result<Seen, (watch::Receiver<u64>, Option<Look>)> {
        let is_within =
            |since: Option<Instant>, limit| since.is_some_and(|since| now.saturating_duration_since(since) < limit);
        let mut state = self.state.lock();
        if is_within(state.at, FRESH) {
            return Ok(state.seen.clone());
        }
        let ended = self.looks.subscribe();
        if is_within(state.looking, LOOKS) {
            return Err((ended, None));
        }
        state.looking = Some(now);
        Err((ended, Some(Look(Arc::clone(self)))))
    }

    /// What was seen last.
    pub(crate) fn last(&self) -> Seen {
        self.state.lock().seen.clone()
    }
}

impl Look {
    /// Asks a worker and the disk of staging. What does not answer is not known, or is as it was.
    pub(crate) async fn look(self, client: Client, staging: Staging) {
        let (origins, holds) = tokio::join!(
            tokio::time::timeout(LOOKS, client.origin_rooms()),
            tokio::time::timeout(LOOKS, staging.holds())
        );
        let seen = self.0.last();
        let origins = origins.ok().and_then(Result::ok).unwrap_or(seen.origins);
        let staging = holds.map_or(seen.staging, |holds| holds.filter(|holds| *holds < staging.least()));
        let mut state = self.0.state.lock();
        (state.seen, state.at) = (Seen { origins, staging }, Some(Instant::now()));
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.state.lock().looking = None;
        self.0.looks.send_modify(|ended| *ended += 1);
    }
}

/// What is told of `path`.
pub(crate) fn shown(seen: &Seen, path: &FsPath) -> Statfs {
    let origins = seen.origins.iter().filter(|room| path.relative_to(&room.path).is_some());
    let origin = origins.max_by_key(|room| room.path.as_bytes().len());
    let (mut free, total) = origin.map_or((UNKNOWN, UNKNOWN), |room| (room.free.min(room.total), room.total));
    if let Some(holds) = seen.staging {
        free = free.min(holds);
    }
    let blocks = |bytes: u64| bytes / u64::from(BLOCK);
    Statfs {
        blocks: blocks(total),
        free_blocks: blocks(free),
        available_blocks: blocks(free),
        files: FILES,
        free_files: FILES,
        block_size: BLOCK,
        name_length: forebay_types::MAX_NAME_LEN as u32,
        fragment_size: BLOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> FsPath {
        FsPath::new(path).unwrap()
    }

    fn room(at: &str, free: u64, total: u64) -> OriginRoom {
        OriginRoom { path: path(at), free, total }
    }

    /// Blocks that are free, and all of them, in bytes.
    fn bytes(seen: &Seen, of: &str) -> (u64, u64) {
        let shown = shown(seen, &path(of));
        assert_eq!(shown.free_blocks, shown.available_blocks);
        (shown.available_blocks * u64::from(BLOCK), shown.blocks * u64::from(BLOCK))
    }

    #[test]
    fn an_origin_whose_room_is_known_is_shown_below_its_path_and_elsewhere_there_is_a_petabyte() {
        let origins = vec![room("/dir", 40 << 30, 100 << 30), room("/dir/inner", 1 << 30, 2 << 30)];
        let seen = Seen { origins, staging: None };
        assert_eq!(bytes(&seen, "/dir/a/b"), (40 << 30, 100 << 30));
        assert_eq!(bytes(&seen, "/dir/inner/a"), (1 << 30, 2 << 30));
        for elsewhere in ["/", "/s3/a", "/directory"] {
            assert_eq!(bytes(&seen, elsewhere), (UNKNOWN, UNKNOWN), "{elsewhere}");
        }
        assert_eq!(bytes(&Seen::default(), "/"), (UNKNOWN, UNKNOWN), "before anything was seen");
    }

    #[test]
    fn a_staging_directory_that_holds_no_part_is_all_that_there_is() {
        let origins = vec![room("/", 40 << 30, 100 << 30)];
        assert_eq!(bytes(&Seen { origins, staging: Some(4096) }, "/a"), (4096, 100 << 30));
        assert_eq!(bytes(&Seen { origins: Vec::new(), staging: Some(0) }, "/a"), (0, UNKNOWN));
    }

    #[tokio::test]
    async fn one_looks_and_the_others_wait_for_it_or_take_what_was_seen() {
        let (rooms, now) = (Rooms::new(), Instant::now());
        let Err((_, Some(look))) = rooms.ask(now) else { panic!("nothing was seen") };
        let Err((mut ended, None)) = rooms.ask(now) else { panic!("somebody looks") };
        // One that hangs does not keep others from looking for ever.
        assert!(matches!(rooms.ask(now + LOOKS), Err((_, Some(_)))));
        {
            let mut state = rooms.state.lock();
            (state.seen.staging, state.at) = (Some(7), Some(now));
        }
        drop(look);
        ended.changed().await.unwrap();
        assert_eq!(rooms.ask(now).ok().unwrap().staging, Some(7));
        assert!(matches!(rooms.ask(now + FRESH), Err((_, Some(_)))));
        assert_eq!(rooms.last().staging, Some(7));
    }
}
