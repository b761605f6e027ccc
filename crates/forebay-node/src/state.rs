//! Run state: which process serves which mountpoint.
//!
//! Each mountpoint has files in a run directory, named after it: `NAME.json` says what is mounted, by which process,
//! and where its workers are; `NAME.pid` holds the process id and is locked for as long as that process lives, however
//! it ends; `NAME.sock` is where it answers for itself, or, of a `forebay up`, sockets in `private`, a directory of its user
//! alone, where every mount also has one over which the next process takes it over; the log, where the configuration names
//! none, lies in a log directory under the same name.
//!
//! The lock decides which process serves a mountpoint. What a killed process leaves behind is replaced by the next one.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Exit, Fault};

/// Which command mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// `forebay up`: with a worker of its own.
    Up,
    /// `forebay mount`: of workers in other processes.
    Mount,
}

/// What is mounted where, and by which process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// The process that serves the mount.
    pub pid: u32,
    /// When that process started, as the kernel counts it: tells it from a later process of the same number.
    pub process_started: u64,
    /// The command.
    pub role: Role,
    /// Where it is mounted; for people, since it may not be text.
    pub mountpoint: String,
    /// What is mounted: the origin's URL, or the workers.
    pub source: String,
    /// Where the workers are reached, for `forebay fs` and `forebay stats`: `HOST:PORT`, or `unix:PATH`.
    pub workers: Vec<String>,
    /// Their names in the certificates that they show, by address, where these are known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub identities: BTreeMap<String, String>,
    /// Where the process answers for itself, if it does.
    #[serde(default)]
    pub control: Option<PathBuf>,
    /// Where its coordinator is reached, if it has one: `HOST:PORT`, or `unix:PATH`.
    #[serde(default)]
    pub coordinator: Option<String>,
    /// Where it answers to `/metrics`, if it does.
    #[serde(default)]
    pub web: Option<String>,
    /// The cluster of the workers; without it, that of the process that asks them.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The name of the worker in the same process, where it shares that with others.
    #[serde(default)]
    pub node: Option<String>,
    /// Bytes in a block.
    pub block_size: u64,
    /// Where it keeps what was written until that is uploaded, if it takes writes.
    #[serde(default)]
    pub staging: Option<PathBuf>,
    /// Where the process logs; `None`: to its standard error.
    pub log: Option<PathBuf>,
    /// When it was mounted, RFC 3339.
    pub since: String,
    /// The version of the program.
    pub version: String,
}

impl RunState {
    /// Whether the process that wrote this still runs.
    pub fn is_alive(&self) -> bool {
        forebay_metrics::process_started(self.pid) == Some(self.process_started)
    }
}

/// The state of the mountpoint `mountpoint`, which must be resolved, as its process wrote it; it may be dead.
pub fn find(mountpoint: &Path) -> Option<RunState> {
    let name = format!("{}.json", name_of(mountpoint));
    run_directories().into_iter().filter(|directory| may_be_trusted(directory)).find_map(|directory| {
        let text = std::fs::read(directory.join(&name)).ok()?;
        serde_json::from_slice(&text).ok()
    })
}

/// The states of all mounts of live processes on this machine.
pub fn all() -> Vec<RunState> {
    known().into_iter().filter(RunState::is_alive).collect()
}

/// Those, and what killed processes left of theirs.
pub fn known() -> Vec<RunState> {
    let directories = run_directories().into_iter().filter(|directory| may_be_trusted(directory));
    let files = directories.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let states = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "json"));
    states.filter_map(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()).collect()
}

/// The Unix sockets of a `forebay up`, which nobody but its user and root gets to.
#[derive(Clone, Debug)]
pub(crate) struct PrivateSockets {
    /// Where it answers for itself.
    pub(crate) control: PathBuf,
    /// Where its worker is asked.
    pub(crate) worker: PathBuf,
    /// Where its coordinator is.
    pub(crate) coordinator: PathBuf,
    /// Where another process asks for its mount; also of a `forebay mount`.
    pub(crate) handover: PathBuf,
    /// Where its keeper listens, which is a process of its own; also of a `forebay mount`.
    pub(crate) keeper: PathBuf,
}

impl PrivateSockets {
    /// Those of this mountpoint. Names are short, as the path of a socket has 107 bytes at most.
    fn of(run_directory: &Path, mountpoint: &Path) -> Self {
        let stem = run_directory.join("private").join(hash_of(mountpoint));
        let socket = |what: &str| stem.with_extension(format!("{what}.sock"));
        let names = ["control", "worker", "coordinator", "handover", "keeper"];
        let [control, worker, coordinator, handover, keeper] = names.map(socket);
        Self { control, worker, coordinator, handover, keeper }
    }
}

/// Where a process may be asked for the mount at `mountpoint`, which must be resolved.
pub(crate) fn handover_sockets(mountpoint: &Path) -> Vec<PathBuf> {
    let directories = run_directories().into_iter().filter(|directory| may_be_trusted(directory));
    directories.map(|directory| PrivateSockets::of(&directory, mountpoint).handover).collect()
}

/// Where the process that has claimed `mountpoint`, which must be resolved, may have its number, in a file that it has locked.
pub(crate) fn pid_files(mountpoint: &Path) -> Vec<PathBuf> {
    let name = format!("{}.pid", name_of(mountpoint));
    let directories = run_directories().into_iter().filter(|directory| may_be_trusted(directory));
    directories.map(|directory| directory.join(&name)).collect()
}

/// Where a keeper of the mount at `mountpoint`, which must be resolved, may listen.
pub(crate) fn keeper_sockets(mountpoint: &Path) -> Vec<PathBuf> {
    let directories = run_directories().into_iter().filter(|directory| may_be_trusted(directory));
    directories.map(|directory| PrivateSockets::of(&directory, mountpoint).keeper).collect()
}

/// Where a keeper of it is to listen.
///
/// # Errors
/// When no directory for it can be made.
pub(crate) fn keeper_socket(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    Ok(PrivateSockets::of(&run_directory()?, mountpoint).keeper)
}

/// The claim of this process on a mountpoint. Dropping it removes its files.
#[derive(Debug)]
pub struct Claim {
    pid_file: PathBuf,
    state_file: PathBuf,
    sockets: PrivateSockets,
    /// What an earlier process wrote that did not end well.
    pub left_behind: Option<RunState>,
    /// Locked. Closed after the files are gone, so that no other process removes our files, nor we theirs.
    _lock: File,
}

impl Claim {
    /// Takes the mountpoint for this process.
    ///
    /// # Errors
    /// When another process has it, or the run directory cannot be written.
    pub fn take(mountpoint: &Path) -> anyhow::Result<Self> {
        let directory = run_directory()?;
        let name = name_of(mountpoint);
        let pid_file = directory.join(format!("{name}.pid"));
        let state_file = directory.join(format!("{name}.json"));
        let mut lock = lock(&pid_file, mountpoint)?;
        let cannot_write = || format!("cannot write {}", pid_file.display());
        lock.set_len(0).with_context(cannot_write)?;
        writeln!(lock, "{}", std::process::id()).with_context(cannot_write)?;
        let left_behind = std::fs::read(&state_file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let _ = std::fs::remove_file(&state_file);
        let sockets = PrivateSockets::of(&directory, mountpoint);
        Ok(Self { pid_file, state_file, sockets, left_behind, _lock: lock })
    }

    /// Tells others what is mounted.
    ///
    /// # Errors
    /// When the run directory cannot be written.
    pub fn publish(&self, state: &RunState) -> anyhow::Result<()> {
        let unfinished = self.state_file.with_extension("json.new");
        let write = || -> io::Result<()> {
            std::fs::write(&unfinished, serde_json::to_vec_pretty(state)?)?;
            std::fs::rename(&unfinished, &self.state_file)
        };
        write().with_context(|| format!("cannot write {}", self.state_file.display()))
    }

    /// Where this process answers for itself.
    pub fn control_socket(&self) -> PathBuf {
        self.state_file.with_extension("sock")
    }

    /// Where it answers to its user alone.
    pub(crate) fn private_sockets(&self) -> &PrivateSockets {
        &self.sockets
    }

    /// Where the process id is written.
    pub fn pid_file(&self) -> &Path {
        &self.pid_file
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.state_file);
        let _ = std::fs::remove_file(self.control_socket());
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

/// How long a process that still runs may have been killed without showing it.
const UNSEEN_DEATH: Duration = Duration::from_millis(500);
/// How long a killed process may take until the last of its threads has let go of its memory and its files.
const DEATH: Duration = Duration::from_secs(30);

/// Opens and locks the pid file. Another process may remove it between the two, and then it is the wrong file.
/// A process that was just killed has it locked until the last of its threads is gone, which is waited for.
fn lock(path: &Path, mountpoint: &Path) -> anyhow::Result<File> {
    let cannot_open = || format!("cannot open {}", path.display());
    let mut waited = false;
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(path)
            .with_context(cannot_open)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = std::fs::read_to_string(path).unwrap_or_default();
                if let Ok(holder) = pid.trim().parse()
                    && !std::mem::replace(&mut waited, true)
                    && crate::process::wait_for_end(
                        holder,
                        forebay_metrics::process_started(holder).map_or(DEATH, |_| UNSEEN_DEATH),
                    )
                {
                    continue;
                }
                let what = format!("{} is already served by process {}", mountpoint.display(), pid.trim());
                let next = format!("unmount it first with `forebay umount {}`", mountpoint.display());
                return Err(Fault::new(Exit::Busy, what, next).into());
            }
            Err(error) => {
                return Err(io::Error::from(error)).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let ours = file.metadata().with_context(cannot_open)?;
        if std::fs::metadata(path).is_ok_and(|now| now.ino() == ours.ino()) {
            return Ok(file);
        }
    }
}

/// Where a process in the background logs when the configuration names no file.
///
/// # Errors
/// When no directory for it can be made.
pub fn default_log(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let directory = lasting_directory("/var/log/forebay", Path::new(""), 0o755)?;
    Ok(directory.join(format!("{}.log", name_of(mountpoint))))
}

/// Where a coordinator of this cluster keeps its state when the configuration names no directory.
///
/// # Errors
/// When no directory for it can be made.
pub fn cluster_state(cluster: &str) -> anyhow::Result<PathBuf> {
    lasting_directory("/var/lib/forebay", &Path::new("state").join(name_of(Path::new(cluster))), 0o700)
}

/// Where the process that serves a mountpoint keeps the state of its jobs and further mounts.
///
/// # Errors
/// When no directory for it can be made.
pub fn mount_state(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    lasting_directory("/var/lib/forebay", &Path::new("mounts").join(name_of(mountpoint)), 0o700)
}

/// Where mounts keep what was written until it is uploaded when the configuration names no directory.
///
/// # Errors
/// When no directory for it can be made.
pub fn staging() -> anyhow::Result<PathBuf> {
    lasting_directory("/var/lib/forebay", Path::new("staging"), 0o700)
}

/// The directory `below` the system's directory, for root, or this user's; made if need be. The run directory's where neither
/// can be had.
fn lasting_directory(system: &str, below: &Path, mode: u32) -> anyhow::Result<PathBuf> {
    let directory = if rustix::process::geteuid().is_root() {
        Some(PathBuf::from(system))
    } else {
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home).map(|state| state.join("forebay"))
    };
    let made = directory.map(|directory| directory.join(below));
    let made = made.filter(|directory| make_directory(directory, mode).is_ok());
    made.map_or_else(
        || {
            let directory = run_directory()?.join(below);
            make_directory(&directory, mode).with_context(|| format!("cannot make {}", directory.display()))?;
            Ok(directory)
        },
        Ok,
    )
}

/// A file name for a mountpoint: its last name for people, and a hash of all of it.
fn name_of(mountpoint: &Path) -> String {
    let last = mountpoint.file_name().map_or(&b"root"[..], OsStrExt::as_bytes);
    let plain = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '-' };
    let last: String = last.iter().take(32).map(plain).collect();
    format!("{last}-{}", hash_of(mountpoint))
}

/// What tells mountpoints apart.
fn hash_of(mountpoint: &Path) -> String {
    blake3::hash(mountpoint.as_os_str().as_bytes()).to_hex()[..12].to_owned()
}

/// The variable that names another directory for run state, whose mounts are then the only ones that are known.
const RUN_DIR: &str = "FOREBAY_RUN_DIR";

/// Where run state may lie, the best first. A user also sees what root mounted.
fn run_directories() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(RUN_DIR).filter(|named| !named.is_empty()) {
        return vec![PathBuf::from(named)];
    }
    let system = PathBuf::from("/run/forebay");
    let user = rustix::process::geteuid();
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|directory| Path::new(&directory).join("forebay"));
    let fallback = PathBuf::from(format!("/tmp/forebay-{}", user.as_raw()));
    if user.is_root() { vec![system, fallback] } else { own.into_iter().chain([fallback, system]).collect() }
}

/// The run directory of this user, made if need be.
fn run_directory() -> anyhow::Result<PathBuf> {
    let root = rustix::process::geteuid().is_root();
    let mut problem = None;
    for directory in run_directories() {
        let mode = if root && directory.starts_with("/run") { 0o755 } else { 0o700 };
        match make_directory(&directory, mode) {
            Ok(()) if may_be_trusted(&directory) && may_be_written(&directory) => return Ok(directory),
            Ok(()) => {}
            Err(error) => problem = problem.or(Some((directory, error))),
        }
    }
    let what = match problem {
        Some((directory, error)) => format!("no directory for run state: cannot make {}: {error}", directory.display()),
        None => "no directory for run state that is ours alone".to_owned(),
    };
    Err(Fault::new(Exit::Denied, what, "set FOREBAY_RUN_DIR to a directory of yours that can be written").into())
}

fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(mode).create(directory) {
        Err(error) if !directory.is_dir() => Err(error),
        _ => Ok(()),
    }
}

fn may_be_written(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Whether only this user or root can have put something into `directory`: every user may make names in `/tmp`.
fn may_be_trusted(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(directory).is_ok_and(|metadata| {
        metadata.is_dir() && (metadata.uid() == user || metadata.uid() == 0) && metadata.mode() & 0o022 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mountpoint: &Path) -> RunState {
        RunState {
            pid: std::process::id(),
            process_started: forebay_metrics::process_started(std::process::id()).unwrap(),
            role: Role::Up,
            mountpoint: mountpoint.display().to_string(),
            source: "file:///data".to_owned(),
            workers: vec!["127.0.0.1:1".to_owned()],
            identities: BTreeMap::from([("127.0.0.1:1".to_owned(), "w1".to_owned())]),
            control: None,
            coordinator: None,
            web: None,
            cluster: None,
            node: None,
            block_size: 4 << 20,
            staging: None,
            log: None,
            since: "2026-01-01T00:00:00Z".to_owned(),
            version: "0".to_owned(),
        }
    }

    #[test]
    fn a_mountpoint_is_claimed_once_and_its_state_goes_with_the_claim() {
        let directory = tempfile::tempdir().unwrap();
        let claim = Claim::take(directory.path()).unwrap();
        claim.publish(&state(directory.path())).unwrap();
        let found = find(directory.path()).unwrap();
        assert_eq!(found, state(directory.path()));
        assert!(found.is_alive());
        let error = Claim::take(directory.path()).unwrap_err();
        assert!(error.to_string().contains("already served by process"), "{error}");
        let pid_file = claim.pid_file().to_owned();
        drop(claim);
        assert_eq!(find(directory.path()), None);
        assert!(!pid_file.exists());
    }

    #[test]
    fn what_a_killed_process_left_is_seen_by_the_next_claim() {
        let directory = tempfile::tempdir().unwrap();
        let claim = Claim::take(directory.path()).unwrap();
        claim.publish(&state(directory.path())).unwrap();
        // A kill closes the descriptors and removes nothing.
        let (pid_file, state_file) = (claim.pid_file.clone(), claim.state_file.clone());
        let text = std::fs::read(&state_file).unwrap();
        drop(claim);
        std::fs::write(&state_file, text).unwrap();
        std::fs::write(&pid_file, "1\n").unwrap();
        let claim = Claim::take(directory.path()).unwrap();
        assert_eq!(claim.left_behind, Some(state(directory.path())));
        assert_eq!(std::fs::read_to_string(pid_file).unwrap().trim(), std::process::id().to_string());
    }

    #[test]
    fn a_name_is_readable_and_tells_mountpoints_apart() {
        let (a, b) = (name_of(Path::new("/mnt/a data")), name_of(Path::new("/srv/a data")));
        assert!(a.starts_with("a-data-"));
        assert_ne!(a, b);
        assert!(name_of(Path::new("/")).starts_with("root-"));
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_trusted() {
        assert!(!may_be_trusted(Path::new("/tmp")));
    }
}
