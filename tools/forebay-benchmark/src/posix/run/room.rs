//! Where the data goes when it is written, and whether there is room for it.
//!
//! What is written through a mount of an object store lies on the local disk first, and at the origin after that; an origin that is a
//! directory puts a file together from its parts, and has it twice for a moment. A mount itself cannot say how much it takes.

use crate::posix::words::bytes;

/// A place that takes what is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which, in words: `the origin file:///bucket`.
    pub place: String,
    /// Bytes that are free there; `None` where that is unknown.
    pub free: Option<u64>,
    /// What tells its file system from others, where that is known: what goes to one twice takes its room twice.
    pub device: Option<u64>,
    /// What of the data is there at once.
    pub takes: Takes,
}

/// What of the data is in a place at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// All of it.
    All,
    /// All of it, and of the largest file the parts that it is made of.
    AllAndParts,
    /// The largest file, as far as it has room here: no more than so many bytes.
    Largest(u64),
}

impl Takes {
    /// Bytes at once, of files of these sizes.
    fn of(self, files: &[u64]) -> u64 {
        let largest = files.iter().copied().max().unwrap_or(0);
        let all = files.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        match self {
            Self::All => all,
            Self::AllAndParts => all.saturating_add(largest),
            Self::Largest(most) => largest.min(most),
        }
    }
}

/// Why files of these sizes do not fit, if not: each file system once.
pub(super) fn lacking(rooms: &[Room], files: &[u64]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for (number, room) in rooms.iter().enumerate() {
        let same = |other: &Room| room.device.is_some() && other.device == room.device;
        if rooms[..number].iter().any(same) {
            continue;
        }
        let on_it: Vec<&Room> = rooms
            .iter()
            .enumerate()
            .filter(|(other, found)| *other == number || same(found))
            .map(|(_, found)| found)
            .collect();
        let needed = on_it.iter().fold(0_u64, |sum, room| sum.saturating_add(room.takes.of(files)));
        let Some(free) = on_it.iter().filter_map(|room| room.free).min().filter(|free| *free < needed) else {
            continue;
        };
        let places = on_it.iter().map(|room| room.place.as_str()).collect::<Vec<_>>().join(", and ");
        told.push(format!(
            "{places} has room for {}, and the data takes {} there; make room, or choose smaller --size, --file-size or --scale",
            bytes(free),
            bytes(needed)
        ));
    }
    told
}

/// Why what several directories are to hold does not fit where they share a file system, though what each of them is to hold would: the rooms
/// and the files of each.
pub(super) fn lacking_together(all: &[(Vec<Room>, Vec<u64>)]) -> Vec<String> {
    let mut devices: Vec<u64> = all.iter().flat_map(|(rooms, _)| rooms).filter_map(|room| room.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let told = |device: u64| {
        let on_it =
            |rooms: &'_ Vec<Room>| rooms.iter().filter(|room| room.device == Some(device)).cloned().collect::<Vec<_>>();
        let sharing: Vec<(Vec<Room>, &Vec<u64>)> =
            all.iter().map(|(rooms, files)| (on_it(rooms), files)).filter(|(rooms, _)| !rooms.is_empty()).collect();
        let needed = |(rooms, files): &(Vec<Room>, &Vec<u64>)| {
            rooms.iter().fold(0_u64, |sum, room| sum.saturating_add(room.takes.of(files)))
        };
        let together = sharing.iter().map(needed).fold(0_u64, u64::saturating_add);
        let free = sharing.iter().flat_map(|(rooms, _)| rooms).filter_map(|room| room.free).min()?;
        // What does not fit by itself is told already.
        let alone = sharing.iter().any(|each| needed(each) > free);
        let mut places: Vec<&str> =
            sharing.iter().flat_map(|(rooms, _)| rooms).map(|room| room.place.as_str()).collect();
        places.dedup();
        (sharing.len() > 1 && !alone && together > free).then(|| {
            format!(
                "{} is one file system for several directories: it has room for {}, and the data takes {} there; make room, or choose smaller --size, \
                 --file-size or --scale",
                places.join(", and "),
                bytes(free),
                bytes(together)
            )
        })
    };
    devices.into_iter().filter_map(told).collect()
}

/// Where the files go, with the room there: `the origin file:///bucket (83 GiB free)`.
pub(super) fn shown(rooms: &[Room]) -> String {
    let one = |room: &Room| match room.free {
        Some(free) => format!("{} ({} free)", room.place, bytes(free)),
        None => format!("{} (how much room it has is not known)", room.place),
    };
    rooms.iter().map(one).collect::<Vec<_>>().join(", through ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(place: &str, free: Option<u64>, device: Option<u64>, takes: Takes) -> Room {
        Room { place: place.into(), free, device, takes }
    }

    #[test]
    fn parts_and_staging_count_and_more_so_on_one_file_system() {
        let files = [10 * GIB, GIB, GIB];
        let origin = |free| room("the origin", Some(free), Some(1), Takes::AllAndParts);
        let staging = |free, device| room("staging", Some(free), Some(device), Takes::Largest(4 * GIB));
        assert_eq!(lacking(&[origin(22 * GIB), staging(4 * GIB, 2)], &files), Vec::<String>::new());
        assert!(
            lacking(&[origin(21 * GIB)], &files)[0]
                .starts_with("the origin has room for 21 GiB, and the data takes 22 GiB")
        );
        assert!(
            lacking(&[origin(22 * GIB), staging(3 * GIB, 2)], &files)[0].starts_with("staging has room for 3.0 GiB")
        );
        let both = lacking(&[origin(25 * GIB), staging(25 * GIB, 1)], &files);
        assert!(
            both.len() == 1
                && both[0].starts_with("the origin, and staging has room for 25 GiB, and the data takes 26 GiB")
        );
        let shared = |free| {
            let one = (vec![room("a tmpfs", Some(free), Some(1), Takes::All)], vec![10 * GIB]);
            let other = (vec![origin(free), staging(free, 2)], vec![10 * GIB]);
            lacking_together(&[one, other])
        };
        // Each would fit: one takes 10 GiB, the other 20.
        assert_eq!(shared(30 * GIB), Vec::<String>::new());
        let told = shared(29 * GIB);
        assert!(
            told.len() == 1
                && told[0].starts_with(
                    "a tmpfs, and the origin is one file system for several directories: it has room for 29 GiB, and the data takes 30 GiB"
                ),
            "{told:?}"
        );
        assert_eq!(shared(19 * GIB), Vec::<String>::new(), "the other alone does not fit, which is told of it");
        let unknown = [room("the origin s3://b", None, None, Takes::All)];
        assert_eq!(lacking(&unknown, &files), Vec::<String>::new());
        assert_eq!(shown(&unknown), "the origin s3://b (how much room it has is not known)");
    }
}
