//! How much room a directory's file system has.
//!
//! A network file system that hangs may keep a thread for ever, and workers are asked every few seconds: one look is
//! under way at most, and a request that comes meanwhile, or waits too long, is told what was seen last.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;

use crate::Room;

/// How long a look is waited for.
const WITHIN: Duration = Duration::from_secs(1);
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of the kernel.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What was seen last.
#[derive(Default)]
pub(super) struct Look {
    last: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    room: Option<Room>,
    is_looking: bool,
}

impl Look {
    pub(super) async fn at(self: &Arc<Self>, root: &Path) -> Option<Room> {
        if !std::mem::replace(&mut self.last.lock().is_looking, true) {
            let (look, root) = (Arc::clone(self), root.to_owned());
            let looking = tokio::task::spawn_blocking(move || {
                let room = room_of(&root);
                *look.last.lock() = Seen { room, is_looking: false };
            });
            // Later it may still be seen.
            let _ = tokio::time::timeout(WITHIN, looking).await;
        }
        self.last.lock().room
    }
}

/// `None` where blocks are not counted.
fn room_of(root: &Path) -> Option<Room> {
    let found = rustix::fs::statvfs(root).ok().filter(|found| found.f_blocks > 0 && found.f_frsize > 0)?;
    let in_memory = rustix::fs::statfs(root).is_ok_and(|found| MEMORY.contains(&(found.f_type as u64)));
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(Room { free: bytes(found.f_bavail), total: bytes(found.f_blocks), in_memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_has_the_room_of_its_file_system() {
        let look = Arc::<Look>::default();
        let room = look.at(Path::new("/dev/shm")).await.unwrap();
        assert!(room.in_memory && room.total >= room.free && room.total > 0, "{room:?}");
        assert_eq!(look.at(Path::new("/no/such/directory")).await, None);
        // One that hangs costs no second thread, and what was known stays known.
        *look.last.lock() = Seen { room: Some(room), is_looking: true };
        assert_eq!(look.at(Path::new("/no/such/directory")).await, Some(room));
    }
}
