//! Which directories `worker.disks` means on this machine, and how much each may hold.
//!
//! A pattern stands for the directories that are there. What is free changes from start to start, and a slab that becomes another
//! size each time would lose what is cached at its end: so a slab that is there keeps its size while that is about right.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_config::{Config, Disk, Room};
use forebay_store::DiskOptions;
use forebay_types::ByteSize;

use crate::error::{Exit, Fault};

const KEY: &str = "worker.disks";
/// A slab keeps its size while that is within so much of its share, in percent.
const ABOUT: u64 = 10;

/// What a directory's file system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Space {
    /// Which it is.
    device: u64,
    /// Bytes that are free.
    free: u64,
    /// Bytes of the slab that is in the directory.
    slab: u64,
}

/// The directories, as the store takes them.
///
/// # Errors
/// When a pattern matches nothing, a directory is meant twice, or there is no room.
pub(crate) fn resolve(config: &Config) -> Result<Vec<DiskOptions>, Fault> {
    let mut directories = Vec::new();
    for disk in &config.worker_disks {
        directories.extend(expand(disk)?.into_iter().map(|path| (path, disk.room)));
    }
    let mut seen = BTreeSet::new();
    if let Some((twice, _)) = directories.iter().find(|(path, _)| !seen.insert(path.clone())) {
        let what = format!("{KEY}: {} is meant twice", twice.display());
        return Err(Fault::new(Exit::Usage, what, "give each directory once, by its name or by a pattern"));
    }
    let shared = directories.iter().filter(|(_, room)| matches!(room, Room::OfFree(_)));
    let spaces: Vec<(PathBuf, Space)> =
        shared.map(|(path, _)| Ok((path.clone(), look(path)?))).collect::<Result<_, Fault>>()?;
    let sizes = sizes(&directories, &spaces.into_iter().collect());
    let block = config.block_size.as_u64();
    if let Some((path, _)) = directories.iter().zip(&sizes).find_map(|(disk, size)| (*size < block).then_some(disk)) {
        let what = format!("{KEY}: {} has no room for a block", path.display());
        return Err(Fault::new(Exit::Failed, what, "free some of its file system, or take it off the list"));
    }
    let disks = directories.into_iter().zip(sizes);
    Ok(disks.map(|((dir, _), size)| DiskOptions { dir, size: ByteSize::bytes(size) }).collect())
}

/// The directories that `disk` names.
fn expand(disk: &Disk) -> Result<Vec<PathBuf>, Fault> {
    if !disk.is_pattern() {
        return Ok(vec![disk.path.clone()]);
    }
    let pattern = disk.path.display().to_string();
    let bad = |why: String| Fault::new(Exit::Usage, format!("{KEY}: `{pattern}`: {why}"), "correct the pattern");
    let found = glob::glob(&pattern).map_err(|error| bad(error.msg.to_owned()))?;
    // One that cannot be looked at is told, rather than left out: a disk that fails must not shrink the cache in silence.
    let found: Vec<PathBuf> = found.collect::<Result<_, _>>().map_err(|error| bad(error.to_string()))?;
    let directories: Vec<PathBuf> = found.into_iter().filter(|path| path.is_dir()).collect();
    if directories.is_empty() {
        let next = "mount the disks and make the directories, or correct the pattern";
        return Err(Fault::new(Exit::NotFound, format!("{KEY}: no directory matches `{pattern}`"), next));
    }
    Ok(directories)
}

/// What there is in `directory`, or will be once it is made.
fn look(directory: &Path) -> Result<Space, Fault> {
    let there = if directory.exists() { directory } else { directory.parent().unwrap_or(directory) };
    let looked = std::fs::metadata(there).and_then(|found| Ok((found.dev(), rustix::fs::statvfs(there)?)));
    let (device, space) = looked.map_err(|error| {
        let what = format!("{KEY}: cannot look at {}: {error}", there.display());
        Fault::new(Exit::NotFound, what, "mount its disk, or create the directory with `mkdir -p`")
    })?;
    // 512 is the unit of `st_blocks` whatever the file system.
    let slab = std::fs::metadata(forebay_store::slab_path(directory)).map_or(0, |slab| slab.blocks() * 512);
    Ok(Space { device, free: space.f_bavail.saturating_mul(space.f_frsize), slab })
}

/// How many bytes each of `directories` gets. Those on one file system share what is free of it.
fn sizes(directories: &[(PathBuf, Room)], spaces: &BTreeMap<PathBuf, Space>) -> Vec<u64> {
    let share = |path: &PathBuf, percent: u8| {
        let own = spaces.get(path).copied().unwrap_or_default();
        let together: Vec<&Space> = spaces.values().filter(|space| space.device == own.device).collect();
        let slabs = together.iter().fold(0_u64, |sum, space| sum.saturating_add(space.slab));
        let each = own.free.saturating_add(slabs) / together.len().max(1) as u64;
        let size = u64::try_from(u128::from(each) * u128::from(percent) / 100).unwrap_or(u64::MAX);
        let is_about_right = own.slab.abs_diff(size) <= size / 100 * ABOUT && own.slab <= each;
        if is_about_right { own.slab } else { size }
    };
    let size = |(path, room): &(PathBuf, Room)| match room {
        Room::Size(size) => size.as_u64(),
        Room::OfFree(percent) => share(path, *percent),
    };
    directories.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::UserError;
    use forebay_config::Sources;

    const GIB: u64 = 1 << 30;

    fn config(disks: &str) -> Config {
        Config::load(&Sources::new().flags([format!("worker.disks={disks}")])).unwrap().config
    }

    fn refused(disks: &str) -> (Exit, String) {
        let user_error = UserError::from(&anyhow::Error::new(resolve(&config(disks)).unwrap_err()));
        assert!(user_error.what.contains("worker.disks") && user_error.next.is_some(), "{user_error:?}");
        (user_error.exit, user_error.what)
    }

    #[test]
    fn a_pattern_is_the_directories_that_are_there_and_must_be_some() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        ["d1", "d2", "other"].iter().for_each(|name| std::fs::create_dir(at(name)).unwrap());
        std::fs::write(at("d3"), "no directory").unwrap();
        let pattern = format!("{}:100MiB", at("d*").display());
        let found = resolve(&config(&pattern)).unwrap();
        let size = ByteSize::mib(100);
        assert_eq!(found, [DiskOptions { dir: at("d1"), size }, DiskOptions { dir: at("d2"), size }]);
        let (exit, what) = refused(&format!("{}:100MiB", at("e*").display()));
        assert!(exit == Exit::NotFound && what.contains("no directory matches"), "{what}");
        let (_, what) = refused(&format!("{pattern},{}:1GiB", at("d2").display()));
        assert!(what.contains("d2 is meant twice"), "{what}");
    }

    #[test]
    fn what_is_free_is_shared_by_those_on_one_file_system() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        let found = resolve(&config(&format!("{}:50%,{}:50%", one.display(), two.display()))).unwrap();
        let free = rustix::fs::statvfs(root.path()).unwrap();
        let free = free.f_bavail * free.f_frsize;
        // Others write meanwhile.
        let sum: u64 = found.iter().map(|disk| disk.size.as_u64()).sum();
        assert!(sum <= free / 2 + free / 10 && sum >= free / 2 - free / 10, "{sum} of {free}");
        let (exit, what) = refused("/no/such/place/forebay:free");
        assert!(exit == Exit::NotFound && what.contains("/no/such/place"), "{what}");
    }

    #[test]
    fn a_slab_keeps_its_size_while_that_is_about_its_share() {
        let size = |space: Space| {
            let path = PathBuf::from("/d");
            sizes(&[(path.clone(), Room::OfFree(90))], &BTreeMap::from([(path, space)]))[0]
        };
        assert_eq!(size(Space { device: 1, free: 100 * GIB, slab: 0 }), 90 * GIB);
        assert_eq!(size(Space { device: 1, free: 10 * GIB, slab: 90 * GIB }), 90 * GIB);
        assert_eq!(size(Space { device: 1, free: 8 * GIB, slab: 90 * GIB }), 90 * GIB, "others took some");
        assert_eq!(size(Space { device: 1, free: 100 * GIB, slab: 10 * GIB }), 99 * GIB, "there is much more now");
        assert_eq!(size(Space { device: 1, free: 0, slab: 90 * GIB }), 81 * GIB, "others need what there is");
    }
}
