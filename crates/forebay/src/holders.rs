//! Which processes hold a mount: what `/proc` tells of the processes that have something below it open.
//!
//! A look at the mappings of a process waits for the lock of its address space, which the kernel may hold while a page of a file
//! comes: of a file system that does not answer, for ever. So mappings come last, and how long they are looked at is bounded.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the mappings of one process are looked at, which takes microseconds of a processor.
const ONE_WITHIN: Duration = Duration::from_secs(2);
/// How long those of all are.
const ALL_WITHIN: Duration = Duration::from_secs(10);
/// How many processes are named.
const NAMED: usize = 5;

/// A process that keeps a mount busy, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its number.
    pub(crate) pid: u32,
    /// Its name.
    pub(crate) name: String,
    /// What it has of the mount: an open file, its working directory, a mapping.
    pub(crate) holds: PathBuf,
}

/// The processes that keep a mount busy, as far as `/proc` lets us see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// With at most one thing each.
    pub(crate) found: Vec<Holder>,
    /// Those whose mappings could not be looked at in time, by number and name.
    pub(crate) stuck: Vec<(u32, String)>,
}

impl Holders {
    /// The processes that have something below `mountpoint` open. Takes some ten seconds at most.
    pub(crate) fn of(mountpoint: &Path) -> Self {
        // From the first of them on.
        let until = OnceCell::new();
        let below = mountpoint.to_owned();
        Self::among(
            processes(),
            |pid| opened(pid, mountpoint),
            move |pid| {
                let below = below.clone();
                let until: &Instant = until.get_or_init(|| Instant::now() + ALL_WITHIN);
                within(ONE_WITHIN.min(until.saturating_duration_since(Instant::now())), move || mapped(pid, &below))
            },
        )
    }

    fn among(
        pids: Vec<u32>,
        opened: impl Fn(u32) -> Option<PathBuf>,
        mapped: impl Fn(u32) -> Option<Option<PathBuf>>,
    ) -> Self {
        let mut holders = Self::default();
        let mut others = Vec::new();
        for pid in pids {
            match opened(pid) {
                Some(holds) => holders.found.push(Holder { pid, name: name(pid), holds }),
                None => others.push(pid),
            }
        }
        for pid in others {
            match mapped(pid) {
                Some(Some(holds)) => holders.found.push(Holder { pid, name: name(pid), holds }),
                Some(None) => {}
                None => holders.stuck.push((pid, name(pid))),
            }
        }
        holders.found.sort_by_key(|holder| holder.pid);
        holders
    }

    /// Them, for a sentence that says which processes use a mount.
    pub(crate) fn named(&self) -> String {
        if !self.found.is_empty() {
            let each =
                |holder: &Holder| format!("{} (process {}, {})", holder.name, holder.pid, holder.holds.display());
            return some_of(self.found.iter().map(each));
        }
        if self.stuck.is_empty() {
            return "another user's process".to_owned();
        }
        let stuck = some_of(self.stuck.iter().map(|(pid, name)| format!("{name} (process {pid})")));
        format!("a process that cannot be looked at, perhaps one that waits for a page of a file: {stuck}")
    }
}

/// The first few, and how many more there are.
fn some_of(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut named: Vec<String> = names.take(NAMED).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// What `act` returns, or `None` when it takes longer than `limit`.
fn within<T: Send + 'static>(limit: Duration, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A thread that the kernel keeps cannot be joined. It ends with this program, which is about to end.
    std::thread::spawn(move || drop(sender.send(act())));
    receiver.recv_timeout(limit).ok()
}

fn opened(pid: u32, mountpoint: &Path) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let places = ["cwd", "root", "exe"].into_iter().map(|name| process.join(name));
    places.chain(links(&process.join("fd"))).find_map(|link| target(&link, mountpoint))
}

fn mapped(pid: u32, mountpoint: &Path) -> Option<PathBuf> {
    let mappings = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    String::from_utf8_lossy(&mappings)
        .lines()
        .find_map(|mapping| below(Path::new(mapping.get(mapping.find('/')?..)?), mountpoint))
}

fn links(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Where a link leads, if that is below `mountpoint`.
fn target(link: &Path, mountpoint: &Path) -> Option<PathBuf> {
    below(&std::fs::read_link(link).ok()?, mountpoint)
}

fn below(path: &Path, mountpoint: &Path) -> Option<PathBuf> {
    path.starts_with(mountpoint).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_open_file_is_a_holder() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let file = std::fs::File::create(root.join("f")).unwrap();
        let found = Holders::of(&root).found;
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, &found[0].holds), (std::process::id(), &root.join("f")));
        drop(file);
        assert_eq!(Holders::of(&root).found, []);
    }

    #[test]
    fn who_cannot_be_looked_at_keeps_nobody_else_from_being_found() {
        let opened = |pid| (pid == 3).then(|| PathBuf::from("/mnt/open"));
        let mapped = |pid| match pid {
            1 => None,
            2 => Some(Some(PathBuf::from("/mnt/mapped"))),
            _ => Some(None),
        };
        let holders = Holders::among(vec![1, 2, 3, 4], opened, mapped);
        let found: Vec<_> = holders.found.iter().map(|holder| (holder.pid, holder.holds.to_str().unwrap())).collect();
        assert_eq!(found, [(2, "/mnt/mapped"), (3, "/mnt/open")]);
        assert_eq!(holders.stuck.len(), 1);
        assert_eq!(holders.stuck[0].0, 1);
    }

    #[test]
    fn holders_are_named_and_else_who_could_not_be_looked_at() {
        let stuck = vec![(7, "cat".to_owned())];
        let none = Holders::default();
        assert_eq!(none.named(), "another user's process");
        let waits = Holders { stuck: stuck.clone(), ..Holders::default() }.named();
        assert!(waits.contains("cannot be looked at") && waits.ends_with("cat (process 7)"), "{waits}");
        let holder = |pid| Holder { pid, name: "sh".to_owned(), holds: "/mnt/f".into() };
        let one = Holders { found: vec![holder(8)], stuck };
        assert_eq!(one.named(), "sh (process 8, /mnt/f)");
        let many = Holders { found: (1..=7).map(holder).collect(), stuck: Vec::new() };
        assert!(many.named().ends_with("sh (process 5, /mnt/f), and 2 more"), "{}", many.named());
    }

    #[test]
    fn what_takes_too_long_is_not_waited_for() {
        let (_hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(10), move || held.recv().is_ok()), None);
        assert_eq!(within(Duration::from_secs(60), || 1), Some(1));
    }
}
