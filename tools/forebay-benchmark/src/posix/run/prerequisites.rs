//! What must be so before anything is measured, and what should be.
//!
//! Everything that is wrong is told at once, each with what to do: a user who prepares a benchmark on ten machines does
//! not want to hear of one thing an hour.

use std::path::Path;

use rustix::fs::{Access, Mode, OFlags};

use super::cache::Capacity;
use super::data::{DIRECTORY, Data};
use super::error::RunError;
use super::machine::Way;
use super::mounts::MountPoint;
use super::processors::Watch;
use super::room;
use super::specification::{Measure, Run};
use crate::posix::words::bytes;
use crate::record::{CacheState, Finding, Layout, Level, Link};

/// Percent of a processor that a machine may do besides.
const MAX_OTHER_WORK: f64 = 25.0;

/// The interface that leads to this machine itself.
const LOOPBACK: &str = "lo";

/// The rule that these findings are of.
pub(super) const RULE: &str = "prerequisite";

/// What is not as it should be, and can be measured all the same.
///
/// # Errors
/// [`RunError::Prerequisites`]: what cannot. `layouts` are those that steps are left of.
pub(super) fn check(run: &Run<'_>, layouts: impl Fn(&str) -> Vec<Layout>) -> Result<Vec<Finding>, RunError> {
    let (mut notes, mut failures) = (Vec::new(), Vec::new());
    for (number, measure) in run.targets.iter().enumerate() {
        let place = Path::new(&measure.target.path);
        if !place.is_dir() {
            failures.push(format!("{} is no directory; create it, or name another one", place.display()));
            continue;
        }
        if number == 0 {
            notes.extend(is_a_mount(place));
        }
        let data = Data::new(place, &run.settings);
        failures.extend(has_room(measure, &data, &layouts(&measure.target.name)));
        if run.settings.states.contains(&CacheState::Warm) {
            failures.extend(fits(measure, &data, &layouts(&measure.target.name)));
        }
        let asked_cold = run.settings.states.contains(&CacheState::Cold);
        match measure.cache.cannot_empty().filter(|_| asked_cold) {
            Some(reason) if number == 0 => failures.push(reason),
            Some(reason) => {
                notes.push(note(Level::Warn, format!("cold is not measured on {}", named(measure)), &reason))
            }
            None => {
                let memory = measure.cache.cold_is_memory().filter(|_| asked_cold);
                notes.extend(memory.map(|reason| {
                    let text = format!("cold reads of {} are of memory: {reason}", named(measure));
                    note(Level::Warn, text, "put the origin on a disk, or measure the warm state only: --states warm")
                }));
            }
        }
    }
    let of = |measure: &Measure| {
        let place = Path::new(&measure.target.path);
        let missing = missing(&Data::new(place, &run.settings), &layouts(&measure.target.name));
        (measure.cache.rooms(place), missing)
    };
    failures.extend(room::lacking_together(&run.targets.iter().map(of).collect::<Vec<_>>()));
    for host in &run.hosts {
        failures.extend(host.check().err().map(|error| error.to_string()));
        notes.extend(host.warning().map(|warning| told(Level::Warn, &warning)));
    }
    if !run.hosts.is_empty() {
        notes.push(elsewhere(run.settings.direct));
    }
    notes.push(network(run.machine.network.as_ref(), run.way.as_ref()));
    notes.extend(Watch::idle_load().filter(|percent| *percent > MAX_OTHER_WORK).map(|percent| {
        let text = format!("this machine does other things, which take {percent:.0} % of a processor");
        note(Level::Warn, text, "end them: they slow the readers down, though what goes on during a step is not counted as the cost of serving it")
    }));
    notes.extend(
        run.settings.warnings().into_iter().map(|warning| Finding { next: None, ..told(Level::Warn, &warning) }),
    );
    if let Some(planned) = Writing::of(run, layouts) {
        failures.extend(run.budget.filter(|budget| planned.bytes > *budget).map(|budget| {
            let (planned, budget) = (bytes(planned.bytes), bytes(budget));
            format!("{planned} are to be written, and --budget allows {budget}; choose smaller --size, --file-size or --scale")
        }));
    }
    if failures.is_empty() { Ok(notes) } else { Err(RunError::Prerequisites(failures)) }
}

/// What a run is about to write.
pub(super) struct Writing {
    /// In all.
    pub(super) bytes: u64,
    /// Where that goes, a line for each directory.
    pub(super) places: Vec<String>,
}

impl Writing {
    /// `layouts` are those that steps of a target are left of. `None` when all is there.
    pub(super) fn of(run: &Run<'_>, layouts: impl Fn(&str) -> Vec<Layout>) -> Option<Self> {
        let mut writing = Self { bytes: 0, places: Vec::new() };
        for measure in &run.targets {
            let place = Path::new(&measure.target.path);
            let data = Data::new(place, &run.settings);
            let missing: Vec<u64> =
                layouts(&measure.target.name).iter().flat_map(|layout| data.missing_sizes(*layout)).collect();
            let total: u64 = missing.iter().sum();
            if total > 0 {
                let (files, to) = (missing.len(), room::shown(&measure.cache.rooms(place)));
                let below = place.join(DIRECTORY);
                writing.places.push(format!("{} in {files} files to {}: {to}", bytes(total), below.display()));
                writing.bytes = writing.bytes.saturating_add(total);
            }
        }
        (writing.bytes > 0).then_some(writing)
    }
}

/// Whether a file can be read as it will be.
pub(super) fn reads_direct(file: &Path) -> Result<(), RunError> {
    match rustix::fs::open(file, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INVAL) => Err(RunError::Usage(format!(
            "{} cannot be read past the page cache (O_DIRECT): its file system does not do that; measure with --buffered",
            file.display()
        ))),
        Err(error) => Err(RunError::io("open", file)(error.into())),
    }
}

fn named(measure: &Measure) -> String {
    format!("{} ({})", measure.target.name, measure.target.path)
}

fn note(level: Level, text: String, next: &str) -> Finding {
    Finding { rule: RULE.to_owned(), level, text, next: Some(next.to_owned()) }
}

/// Of `what; what to do`.
pub(super) fn told(level: Level, message: &str) -> Finding {
    let (text, next) = message.rsplit_once("; ").map_or((message, None), |(text, next)| (text, Some(next.to_owned())));
    Finding { rule: RULE.to_owned(), level, text: text.to_owned(), next }
}

/// A mount that is gone leaves an empty directory, on the disk below it.
fn is_a_mount(place: &Path) -> Option<Finding> {
    let mount = MountPoint::around(place).filter(MountPoint::is_local)?;
    let text =
        format!("{} is on the {} at {}: that is this machine's own", place.display(), mount.kind, mount.at.display());
    Some(note(
        Level::Info,
        text,
        "if a cache should be mounted there, mount it first: `findmnt -t fuse.forebay` lists them",
    ))
}

/// Why the data cannot be written, if not.
fn has_room(measure: &Measure, data: &Data, layouts: &[Layout]) -> Vec<String> {
    let place = Path::new(&measure.target.path);
    let missing = missing(data, layouts);
    if missing.is_empty() {
        return Vec::new();
    }
    let mut failures = Vec::new();
    let below = place.join(DIRECTORY);
    let writes_to = if below.is_dir() { below.as_path() } else { place };
    if let Err(error) = rustix::fs::access(writes_to, Access::WRITE_OK | Access::EXEC_OK) {
        let error = std::io::Error::from(error);
        failures.push(format!(
            "the data cannot be written to {}: {error}; mount it so that it takes writes, or put files with these names and sizes \
             there by another way",
            writes_to.display()
        ));
    }
    failures.extend(room::lacking(&measure.cache.rooms(place), &missing));
    failures
}

/// The sizes of what is to be written.
fn missing(data: &Data, layouts: &[Layout]) -> Vec<u64> {
    layouts.iter().flat_map(|layout| data.missing_sizes(*layout)).collect()
}

/// Why what is called warm would not be, if the cache is too small for it.
fn fits(measure: &Measure, data: &Data, layouts: &[Layout]) -> Vec<String> {
    let Some(Capacity { usable, total }) = measure.cache.capacity() else { return Vec::new() };
    let too_large = layouts.iter().filter(|layout| data.bytes(**layout) > usable);
    let told = |layout: &Layout| {
        let flags = match layout {
            Layout::Single => "--size",
            Layout::Multiple => "--files and --file-size",
            Layout::Small => "--small-files and --small-size",
        };
        format!(
            "{}: the cache of {} keeps {} of files ({} of it, less what eviction keeps free), and {flags} make {}: what is called warm \
             would be evicted while it is read; choose less, or give the workers more room (worker.memory.size, worker.disks), or measure \
             --states cold",
            layout.name(),
            measure.target.name,
            bytes(usable),
            bytes(total),
            bytes(data.bytes(*layout)),
        )
    };
    too_large.map(told).collect()
}

/// What cannot be done on other machines.
fn elsewhere(direct: bool) -> Finding {
    let text = "the other machines' processors are not this machine's to read, and their page caches not its to drop";
    if direct {
        return note(
            Level::Info,
            text.to_owned(),
            "the jobs read past the page cache; look at `top` there for processors",
        );
    }
    let text = format!(
        "{text}: before each step fio gives up the pages of its files there (invalidate), so that warm and cold are of the cache \
         only"
    );
    note(Level::Warn, text, "leave --buffered away if the file system there takes direct reads")
}

/// What the network between the machines carries is the first thing to know, and no program of one machine knows it.
fn network(link: Option<&Link>, way: Option<&Way>) -> Finding {
    let measure = match way.and_then(|way| way.peer).filter(|peer| !peer.is_loopback()) {
        Some(peer) => format!(
            "measure what it really gives before you trust a sweep: `forebay bench rdma` on {peer}, and here `forebay bench rdma \
             --remote-ip {peer} --case stress-read`"
        ),
        None => "measure what two machines really give one another: `forebay bench rdma`, or `iperf3`".to_owned(),
    };
    let say_it = "name it with --nic-speed, as in `--nic-speed 200Gbps`";
    let speed = |link: &Link| format!("{} says that it carries {:.0} Gb/s", link.name, link.bits_per_second / 1e9);
    match (link, way) {
        (Some(link), Some(way)) => note(Level::Info, format!("{}: {}", speed(link), way.why), &measure),
        (Some(link), None) => {
            let text = format!(
                "{}: it is the fastest card of this machine, and whether the data comes by it is not known",
                speed(link)
            );
            note(Level::Info, text, &format!("if it does not, {say_it}; {measure}"))
        }
        (None, Some(way)) if way.interface == LOOPBACK => {
            let text = format!("no network is between this machine and the data: `{LOOPBACK}` is {}", way.why);
            note(Level::Info, text, "measure from another machine what the network makes of it")
        }
        (None, way) => {
            let way = way.map(|way| format!(" (`{}`: {})", way.interface, way.why)).unwrap_or_default();
            let text = format!("the speed of this machine's network{way} is not known: results are no fraction of it");
            note(Level::Info, text, &format!("{say_it}; {measure}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_split_where_it_says_what_to_do() {
        let finding = told(Level::Warn, "a; b; c");
        assert_eq!((finding.text.as_str(), finding.next.as_deref()), ("a; b", Some("c")));
        assert_eq!(told(Level::Info, "a").next, None);
    }

    #[test]
    fn a_directory_of_this_machine_is_no_mount_of_a_cache() {
        let directory = tempfile::tempdir().unwrap();
        let found = is_a_mount(&directory.path().canonicalize().unwrap());
        let local = MountPoint::around(directory.path()).is_some_and(|mount| mount.is_local());
        assert_eq!(found.is_some(), local);
        let file = directory.path().join("f");
        std::fs::write(&file, [0; 4096]).unwrap();
        assert!(reads_direct(&directory.path().join("none")).is_err());
        // Whether the temporary directory takes direct reads is this machine's affair; that the answer says what to do is ours.
        if let Err(error) = reads_direct(&file) {
            assert!(error.to_string().contains("--buffered"), "{error}");
        }
    }

    #[test]
    fn how_the_network_is_known_is_told_and_the_line_that_measures_it() {
        let link = Link { name: "ib0".into(), bits_per_second: 200e9 };
        let way = |interface: &str, peer: &str| Way {
            interface: interface.into(),
            why: format!("the way to the worker {peer}"),
            peer: peer.parse().ok(),
        };
        let known = network(Some(&link), Some(&way("ib0", "10.0.0.1")));
        assert_eq!(known.text, "ib0 says that it carries 200 Gb/s: the way to the worker 10.0.0.1");
        assert!(known.next.unwrap().contains("`forebay bench rdma --remote-ip 10.0.0.1 --case stress-read`"));
        let fastest = network(Some(&link), None);
        assert!(fastest.text.contains("fastest card") && fastest.next.unwrap().contains("--nic-speed"));
        let here = network(None, Some(&way("lo", "127.0.0.1")));
        assert!(here.text.contains("no network is between"), "{}", here.text);
        assert!(network(None, Some(&way("tun0", "10.0.0.1"))).text.contains("`tun0`"));
        assert!(elsewhere(false).text.contains("of the cache only"));
    }
}
