//! What there is to be read.

use forebay_types::FsPath;
use rand::Rng;

use super::state::state;
use crate::cluster::Settings;
use crate::model::Object;
use crate::{kernel, origin};

/// What there is to be read: directories of files on each origin.
#[derive(Clone, Debug)]
pub(crate) struct Dataset {
    /// Each origin's number, and where it is mounted.
    pub(crate) mounts: Vec<(usize, String)>,
    pub(crate) directories: u32,
    pub(crate) files: u32,
    pub(crate) largest: u64,
    pub(crate) workers: Vec<usize>,
    pub(crate) clients: Vec<usize>,
    pub(crate) settings: Settings,
}

/// A file with a number that no file had before.
pub(crate) fn new_object(dataset: &Dataset) -> Object {
    let number = state(|state| {
        state.next += 1;
        state.next
    });
    // Short ones have their number's beginning only.
    let size = kernel::chance(|random| match random.random_range(0..20) {
        0 => 0,
        1 => random.random_range(8..100),
        2..14 => random.random_range(100..=64 << 10),
        14..18 => random.random_range(64 << 10..=512 << 10),
        _ => random.random_range(512 << 10..=dataset.largest),
    });
    let number = if size == 0 { 0 } else { number };
    Object { number, size }
}

/// A file of the dataset: its origin, its path there, and where it shows.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) origin: usize,
    pub(crate) below: Vec<u8>,
    pub(crate) shown: FsPath,
}

impl Dataset {
    /// One of its files; often one of a few, so that what is done to one and the same comes close together.
    pub(crate) fn any(&self) -> Place {
        let (directory, file, mount) = kernel::chance(|random| {
            let most = if random.random_bool(0.3) { 1 } else { u32::MAX };
            (
                random.random_range(0..self.directories.min(most)),
                random.random_range(0..self.files.min(most.saturating_mul(3))),
                random.random_range(0..self.mounts.len()),
            )
        });
        self.place(mount, directory, file)
    }

    pub(crate) fn place(&self, mount: usize, directory: u32, file: u32) -> Place {
        let (origin, at) = &self.mounts[mount];
        let below = format!("d{directory}/f{file}");
        let shown = FsPath::new(format!("{at}/{below}")).expect("a path");
        Place { origin: *origin, below: below.into_bytes(), shown }
    }

    /// All files of the directory that one is in, by their names there.
    pub(crate) fn siblings(&self, place: &Place) -> Vec<(Vec<u8>, Place)> {
        let parent = place.below.split(|byte| *byte == b'/').next().unwrap_or_default();
        let directory = place.shown.parent();
        let sibling = |file| {
            let name = format!("f{file}").into_bytes();
            let shown = directory.join(&name).expect("a path");
            let below = [parent, b"/", &name].concat();
            (name, Place { origin: place.origin, below, shown })
        };
        (0..self.files).map(sibling).collect()
    }

    /// All files of an origin.
    pub(crate) fn all(&self, origin: usize) -> impl Iterator<Item = Place> {
        let mounts = (0..self.mounts.len()).filter(move |mount| self.mounts[*mount].0 == origin);
        mounts
            .flat_map(|mount| (0..self.directories).map(move |directory| (mount, directory)))
            .flat_map(move |(mount, directory)| (0..self.files).map(move |file| self.place(mount, directory, file)))
    }

    /// Objects as they are at first: most are there.
    pub(crate) fn populate(&self) {
        for mount in 0..self.mounts.len() {
            for directory in 0..self.directories {
                for file in 0..self.files {
                    let place = self.place(mount, directory, file);
                    let object = (!kernel::once_in(5)).then(|| new_object(self));
                    origin::set(place.origin, &place.below, object);
                }
            }
        }
    }

    /// Another program changes an object.
    pub(crate) fn replace_any(&self) {
        let place = self.any();
        let object = (!kernel::once_in(6)).then(|| new_object(self));
        kernel::note(format!("{} is replaced: {object:x?}", place.shown));
        origin::set(place.origin, &place.below, object);
        state(|state| state.counts.replaced += 1);
    }
}
