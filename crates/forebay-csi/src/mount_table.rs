//! What is mounted, as `/proc/self/mountinfo` tells it: all the state that the driver has.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::error::Refusal;

/// The file system type of our mounts.
pub(crate) const FS_TYPE: &str = "fuse.forebay";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `MAJOR:MINOR`: one for each mount of ours, and the same for all binds of it.
    pub(crate) device: String,
    pub(crate) mountpoint: PathBuf,
    /// Whether nobody writes there: because of the file system, or of the place.
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    /// What is shown there.
    pub(crate) source: String,
}

impl Entry {
    /// Whether it is a mount of forebay, dead or alive.
    pub(crate) fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// All mounts that a process sees, each before those that lie over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountTable(Vec<Entry>);

impl MountTable {
    /// That of this process, now.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn of_this_process() -> Result<Self, Refusal> {
        const TABLE: &str = "/proc/self/mountinfo";
        let table = std::fs::read(TABLE);
        table
            .map(|table| Self::parse(&table))
            .map_err(|error| Refusal::internal(format!("cannot read {TABLE}: {error}")))
    }

    /// The lines of a `mountinfo`, as proc(5) describes them; what does not look like one is passed over.
    pub(crate) fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(entry).collect())
    }

    /// The topmost mount at a place.
    pub(crate) fn at(&self, mountpoint: &Path) -> Option<&Entry> {
        self.0.iter().rfind(|entry| entry.mountpoint == mountpoint)
    }

    /// Where else the file system of `entry` is mounted below a directory.
    pub(crate) fn others_of<'a>(&'a self, entry: &'a Entry, below: &'a Path) -> impl Iterator<Item = &'a Path> {
        let same = move |other: &&Entry| other.device == entry.device && other.mountpoint != entry.mountpoint;
        self.0.iter().filter(same).map(|other| other.mountpoint.as_path()).filter(move |path| path.starts_with(below))
    }
}

/// A line: ID, parent, MAJOR:MINOR, root, mountpoint, options, any number of tags, `-`, type, source, options of the
/// file system.
fn entry(line: &[u8]) -> Option<Entry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let is_read_only = |field: Option<&&[u8]>| {
        field.is_some_and(|options| options.split(|byte| *byte == b',').any(|option| option == b"ro"))
    };
    Some(Entry {
        device: text(fields.get(2)?),
        mountpoint: OsString::from_vec(unescaped(fields.get(4)?)).into(),
        read_only: is_read_only(fields.get(5)) || is_read_only(fields.get(dash + 3)),
        fs_type: text(fields.get(dash + 1)?),
        source: text(fields.get(dash + 2)?),
    })
}

/// The kernel writes space, tab, newline, backslash and `#` as `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits.map(|digits| digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'))) {
            Some(value) => {
                bytes.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table with these lines: `DEVICE PLACE OPTIONS TYPE SOURCE`, each.
    pub(crate) fn table(lines: &[&str]) -> MountTable {
        let line = |line: &&str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [device, place, options, fs_type, source] = fields[..] else { panic!("what is {line:?}?") };
            format!("40 1 {device} / {place} {options} shared:7 - {fs_type} {source} rw,user_id=0,group_id=0\n")
        };
        MountTable::parse(lines.iter().map(line).collect::<String>().as_bytes())
    }

    #[test]
    fn a_line_of_the_kernel_says_what_is_where() {
        let kernels = b"22 1 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n\
            98 29 0:52 / /k/a\\040b rw,nosuid,nodev shared:3 master:1 - fuse.forebay s3://b/a\\040b ro,user_id=0\n\
            no line\n";
        let table = MountTable::parse(kernels);
        let entry = table.at(Path::new("/k/a b")).unwrap();
        assert_eq!((entry.device.as_str(), entry.source.as_str()), ("0:52", "s3://b/a b"));
        assert!(entry.is_ours() && entry.read_only);
        let proc = table.at(Path::new("/proc")).unwrap();
        assert!(!proc.is_ours() && !proc.read_only);
        assert_eq!(table.at(Path::new("/k")), None);
    }

    #[test]
    fn the_topmost_mount_counts_and_binds_are_known_by_their_device() {
        let table = table(&[
            "0:50 /k/staging rw fuse.forebay s3://b",
            "0:50 /k/pods/1 rw fuse.forebay s3://b",
            "0:50 /k/pods/2 ro fuse.forebay s3://b",
            "0:50 /elsewhere rw fuse.forebay s3://b",
            "0:51 /k/pods/1 rw tmpfs tmpfs",
        ]);
        let staged = table.at(Path::new("/k/staging")).unwrap();
        let others: Vec<_> = table.others_of(staged, Path::new("/k")).collect();
        assert_eq!(others, [Path::new("/k/pods/1"), Path::new("/k/pods/2")]);
        assert_eq!(table.at(Path::new("/k/pods/1")).unwrap().fs_type, "tmpfs");
    }

    proptest! {
        #[test]
        fn whatever_the_table_is_it_is_read(table in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&table);
        }

        #[test]
        fn a_mountpoint_is_found_under_its_own_name(name in "[a-z #\t\\\\]{1,12}") {
            let escape = |letter: char| match letter {
                ' ' | '#' | '\t' | '\\' => format!("\\{:03o}", u32::from(letter)),
                letter => letter.to_string(),
            };
            let escaped: String = name.chars().map(escape).collect();
            let line = format!("1 1 0:1 / /{escaped} rw - fuse.forebay s3://b rw\n");
            let place = PathBuf::from(format!("/{name}"));
            prop_assert!(MountTable::parse(line.as_bytes()).at(&place).is_some());
        }
    }
}
