//! Small files in one round trip: which names to ask for together with their bytes, and what becomes of those.
//!
//! A worker that is asked what a name is can send the bytes of a small file along ([`Op::StatRead`]), which saves the reader a
//! trip. Bytes that nobody reads would be a waste, so a directory has to earn it: each small file that is opened there is worth
//! [`GAIN`], each answer with bytes costs one, and they are asked for from [`ENOUGH`] on. So a loader of a data set has them from
//! the third file on, and whoever only looks at names soon gets names only. A large file that is opened ends it.
//!
//! What comes is checked against its sums and put where the client buffers what it prefetches; the read that follows finds it
//! there. What is there already is not asked for again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use forebay_cluster::PlacementKey;
use forebay_engine::Fetched;
use forebay_memory::SpanMut;
use forebay_transport::message::{StatReadReply, StatReply};
use forebay_transport::{Flags, Op, Payload, Request};
use forebay_types::{
    Attr, BlockKey, BlockLayout, Failure, FileId, FileVersion, FsPath, SECTOR_SIZE, SectorRange, SectorSums,
};
use moka::sync::Cache;

use crate::client::Shared;
use crate::open_file::OpenFile;

/// What a small file that is opened is worth.
const GAIN: u32 = 2;
/// From so much on, bytes are asked for.
const ENOUGH: u32 = 4;
/// What a directory can have: after so many answers less [`ENOUGH`] that nobody wanted, it is asked for names only.
const MOST: u32 = 8;
/// Directories that are known, some 200 bytes each; and names whose bytes came.
const DIRECTORIES: u64 = 4096;
const NAMES: u64 = 65_536;

/// What is known of small files.
pub(crate) struct SmallFiles {
    /// The largest; 0 turns it off.
    most: u32,
    directories: Cache<FsPath, Arc<Directory>>,
    /// The same ones by what their files' versions tell of them: who opens a file names its version.
    by_version: Cache<u64, Arc<Directory>>,
    /// The block and the size of the files whose bytes came.
    came: Cache<FsPath, (FileId, u32)>,
}

/// What is known of one directory.
#[derive(Debug, Default)]
struct Directory {
    worth: AtomicU32,
    /// About the size of the largest file that was opened lately.
    largest: AtomicU32,
}

impl Directory {
    /// A small file of `size` bytes is opened.
    fn opened(&self, size: u32) {
        // Counts that are lost when two do this at once are made up for by the next file.
        let worth = self.worth.load(Ordering::Relaxed);
        self.worth.store((worth + GAIN).min(MOST), Ordering::Relaxed);
        let largest = self.largest.load(Ordering::Relaxed);
        self.largest.store(size.max(largest - largest / 8), Ordering::Relaxed);
    }

    fn opened_large(&self) {
        self.worth.store(0, Ordering::Relaxed);
    }

    /// Bytes came with an answer.
    fn answered(&self) {
        self.worth.store(self.worth.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// How many bytes to have room for, if they are worth asking for.
    fn wants(&self, most: u32) -> Option<u32> {
        let is_worth_it = self.worth.load(Ordering::Relaxed) >= ENOUGH;
        // Files of one directory differ little: what the buffers keep is as large as the room that was made.
        let room = self.largest.load(Ordering::Relaxed).max(SECTOR_SIZE).next_power_of_two();
        is_worth_it.then_some(room.min(most))
    }
}

/// What tells the directories of file versions apart.
fn place(version: &FileVersion) -> u64 {
    let end = version.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let mut hasher = DefaultHasher::new();
    (&version.origin, &version.path[..end]).hash(&mut hasher);
    hasher.finish()
}

impl SmallFiles {
    /// `most`: the bytes of the largest file that counts as small; 0 turns it off.
    pub(crate) fn new(most: u32) -> Self {
        let (directories, by_version) = (Cache::new(DIRECTORIES), Cache::new(DIRECTORIES));
        Self { most, directories, by_version, came: Cache::new(NAMES) }
    }

    /// Whether the file of `version` is a small one, and not empty.
    pub(crate) fn is_small(&self, version: &FileVersion) -> bool {
        (1..=u64::from(self.most)).contains(&version.size)
    }

    /// A file is opened.
    pub(crate) fn opened(&self, version: &FileVersion) {
        if self.most == 0 {
            return;
        }
        let Some(directory) = self.by_version.get(&place(version)) else { return };
        match u32::try_from(version.size) {
            Ok(size) if size <= self.most => directory.opened(size),
            _ => directory.opened_large(),
        }
    }

    /// A name of a directory turned out to be this.
    fn learned(&self, directory: &FsPath, attr: &Attr) {
        let Some(version) = attr.version() else { return };
        let place = place(version);
        if self.by_version.get(&place).is_none() {
            let known = self.directories.get_with_by_ref(directory, Arc::default);
            self.by_version.insert(place, known);
        }
    }
}

impl Shared {
    /// What `path` is, asked of the worker that owns its directory.
    pub(crate) async fn stat(&self, path: &FsPath, flags: Flags) -> Result<StatReply, Failure> {
        let directory = path.parent();
        // A directory's listing tells the attributes of its names, so one worker is asked about all of them.
        let key = PlacementKey::from(&directory);
        // What a worker in this process has is as near as what is buffered here. One whose memory this process merely sees is a
        // round trip away all the same.
        let is_here = self.small.most == 0 || self.router.routes().is_local(key, 1);
        let into = if is_here { None } else { self.room_for(path, &directory) };
        let body = path.as_bytes().to_vec().into();
        let Some(into) = into else {
            let body = self.router.ask(key, Op::Stat, body, flags).await?;
            let stat = StatReply::decode(&body)?;
            if !is_here {
                self.small.learned(&directory, &stat.attr);
            }
            return Ok(stat);
        };
        // Of several workers, the one that knows the name is rarely the one that is to fetch the bytes.
        let is_alone = self.router.routes().links.len() == 1;
        let flags = flags.and(Flags::SUMS).and(if is_alone { Flags::default() } else { Flags::CACHED });
        let mut request = Request::on_path(Op::StatRead, body, self.options.request_timeout).with_flags(flags);
        // Less than a buffer may have.
        request.length = into.len() as u32;
        let reply = self.router.call(key, request, Some(into)).await?;
        self.stats.delivered(reply.provenance);
        let StatReadReply { stat, sums } = StatReadReply::decode(&reply.body)?;
        self.small.learned(&directory, &stat.attr);
        if let Payload::Landed(filled) = reply.payload
            && let Some(version) = stat.attr.version()
            && self.keep(version, filled, sums).is_some()
        {
            if let Some(directory) = self.small.directories.get(&directory) {
                directory.answered();
            }
            // It is small.
            self.small.came.insert(path.clone(), (version.id(), version.size as u32));
        }
        Ok(stat)
    }
}

impl Shared {
    /// Room for the bytes of `path`, if they are worth asking for and there is some now: a question about a name waits for no
    /// memory.
    fn room_for(&self, path: &FsPath, directory: &FsPath) -> Option<SpanMut> {
        let room = self.small.directories.get(directory)?.wants(self.small.most)?;
        let is_here = |(file, size)| self.engine.store().is_in_memory(&BlockKey { file, index: 0 }, 0, size);
        if self.small.came.get(path).is_some_and(is_here) {
            return None;
        }
        self.engine.store().try_landing(room)
    }

    /// Has the reads that follow find the bytes of a file, if they are all there and what their sums say.
    fn keep(&self, version: &FileVersion, filled: SpanMut, sums: Bytes) -> Option<()> {
        let length = u32::try_from(version.size).ok().filter(|length| filled.len() == *length as usize)?;
        let (key, sectors) = (BlockKey { file: version.id(), index: 0 }, SectorRange::covering(0, length)?);
        if BlockLayout::new(version.size, self.options.block_size).block_len(0) != length {
            return None;
        }
        let store = self.engine.store();
        let Some(sums) = SectorSums::from_bytes(sums).filter(|sums| !sums.is_empty()) else {
            // The worker vouches for them.
            store.publish(key, sectors, length, filled);
            return Some(());
        };
        let fetched = Fetched { filled, sums: None, from_cache: 0 };
        match fetched.checked(sectors, length, sums.clone()) {
            Ok(Fetched { filled, .. }) => {
                store.publish_summed(key, sectors, length, filled, sums);
                Some(())
            }
            // The read has its worker check it.
            Err(sector) => {
                self.stats.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(block = %key, sector, "a small file arrived corrupt");
                None
            }
        }
    }

    /// Starts fetching a small file that is opened, unless it is here or a worker owns it whose memory this process sees: its
    /// reader is about to ask for all of it.
    pub(crate) fn fetch_small(self: &Arc<Self>, file: &OpenFile) {
        let version = file.version();
        self.small.opened(version);
        let key = BlockKey { file: file.id(), index: 0 };
        let (layout, length) = (file.layout(), version.size as u32);
        let is_wanted = self.small.is_small(version) && layout.blocks() == 1 && !file.is_near(&key);
        if !is_wanted || self.engine.store().is_in_memory(&key, 0, length) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.prefetches).try_acquire_owned() else { return };
        let (client, version) = (Arc::clone(self), Arc::new(version.clone()));
        let task = async move {
            match client.engine.fill(&version, key, layout, 0, length).await {
                Ok(_) => drop(client.stats.prefetched.fetch_add(u64::from(length), Ordering::Relaxed)),
                // The reader will meet the same failure, and gets it as an error.
                Err(failure) => tracing::debug!(%key, %failure, "prefetch failed"),
            }
            drop(permit);
        };
        self.tasks.spawn_on(task, &self.runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VersionTag;

    const KIB: u32 = 1 << 10;

    #[test]
    fn a_directory_whose_small_files_are_opened_earns_their_bytes_and_loses_them_when_nobody_reads() {
        let directory = Directory::default();
        directory.opened(100 * KIB);
        assert_eq!(directory.wants(256 * KIB), None);
        directory.opened(90 * KIB);
        assert_eq!(directory.wants(256 * KIB), Some(128 * KIB));
        for _ in 0..100 {
            directory.answered();
            directory.opened(100 * KIB);
            assert_eq!(directory.wants(256 * KIB), Some(128 * KIB), "those who read go on");
        }
        let answers = (0..100).take_while(|_| directory.wants(256 * KIB).map(|_| directory.answered()).is_some());
        assert!(answers.count() <= (MOST - ENOUGH) as usize + 1, "who only looks gets names");
        (0..3).for_each(|_| directory.opened(KIB));
        assert!(directory.wants(256 * KIB).is_some());
        directory.opened_large();
        assert_eq!(directory.wants(256 * KIB), None);
    }

    #[test]
    fn room_follows_the_sizes_of_the_files_and_stays_within_the_limit() {
        let directory = Directory::default();
        (0..3).for_each(|_| directory.opened(200 * KIB));
        assert_eq!((directory.wants(256 * KIB), directory.wants(150 * KIB)), (Some(256 * KIB), Some(150 * KIB)));
        (0..40).for_each(|_| directory.opened(3 * KIB));
        assert_eq!(directory.wants(256 * KIB), Some(SECTOR_SIZE));
    }

    #[test]
    fn a_directory_is_known_by_its_path_and_by_the_versions_of_its_files() {
        let version = |path: &str, size| FileVersion {
            origin: "s3://b".into(),
            path: path.as_bytes().into(),
            size,
            tag: VersionTag::Etag("\"1\"".into()),
        };
        let small = SmallFiles::new(256 * KIB);
        let (directory, elsewhere) = (FsPath::new("/data/d").unwrap(), FsPath::new("/data/e").unwrap());
        small.opened(&version("d/a", 10));
        assert!(small.directories.get(&directory).is_none(), "nobody has asked for a name of it");
        small.learned(&directory, &Attr::file(version("d/a", 10)));
        small.learned(&elsewhere, &Attr::file(version("e/a", 10)));
        for name in ["d/a", "d/b", "d/c"] {
            small.opened(&version(name, 10));
        }
        let wants = |path| small.directories.get(path).unwrap().wants(small.most);
        assert!(wants(&directory).is_some() && wants(&elsewhere).is_none());
        small.opened(&version("d/large", 1 << 30));
        assert!(wants(&directory).is_none());
        assert!(small.is_small(&version("f", 1)) && !small.is_small(&version("f", 0)));
        assert!(!SmallFiles::new(0).is_small(&version("f", 1)));
    }
}
