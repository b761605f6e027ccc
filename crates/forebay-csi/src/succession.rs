//! Daemons that go on in another process: that of the next driver, when this one's pod is replaced, or one with the credentials that
//! a volume's Secret has by now (ADR 0030).
//!
//! A daemon is one of this pod's if this process sees it: other pods have PID namespaces of their own. The kernel tells how it was
//! started, and a launcher starts it once more, to take the mount over from the one that runs (`--replace`, ADR 0028): programs
//! that have files open go on, those that write as well.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_handover::{Launched, Restart};
use forebay_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::volume::{Environment, OF_DRIVER, is_of_cloud};

/// How long the daemons of a driver that ends may take to be followed by others.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(150);
/// How long one may take whose volume has other credentials: shorter than the two minutes that the kubelet waits for a call.
const RENEWED_WITHIN: Duration = Duration::from_secs(90);
/// Credentials with which a daemon did not come to serve are not tried again for so long: programs wait for each try.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(15 * 60);
/// How many go on in another process at once: each needs memory twice for a moment.
const AT_ONCE: usize = 8;
/// How often it is looked whether one that was started to follow another has ended.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// Has a process take over the mount of the one that serves it.
const REPLACES: &str = "--replace";
/// What a daemon is started with, and the commands that have it.
const IN_BACKGROUND: &[u8] = b"--background-child";
const COMMANDS: [&[u8]; 2] = [b"up", b"mount"];

/// Where a daemon serves whose arguments the kernel tells like this, if it is one.
fn mountpoint_of(arguments: &[u8]) -> Option<&Path> {
    let mut words = arguments.strip_suffix(&[0])?.split(|byte| *byte == 0).skip(1);
    let command = words.next()?;
    let words: Vec<&[u8]> = words.collect();
    let is_one = COMMANDS.contains(&command) && words.contains(&IN_BACKGROUND);
    let last = words.last().filter(|_| is_one)?;
    Some(Path::new(std::ffi::OsStr::from_bytes(last)))
}

/// A daemon of this pod.
#[derive(Debug)]
struct Serving {
    process: OwnedFd,
    mountpoint: PathBuf,
    restart: Restart,
}

impl Serving {
    /// Those that serve a mount which `is_meant`.
    fn all(is_meant: impl Fn(&Path) -> bool) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // Whatever ends meanwhile is none.
            all.extend(Self::of(pid, &is_meant));
        }
        Ok(all)
    }

    fn of(pid: u32, is_meant: impl Fn(&Path) -> bool) -> Option<Self> {
        let arguments = || std::fs::read(format!("/proc/{pid}/cmdline")).ok();
        let mountpoint = mountpoint_of(&arguments()?).filter(|mountpoint| is_meant(mountpoint))?.to_owned();
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let restart = Restart::of_process(pid).ok()?;
        // From the first look to the last it was one process.
        let is_same = mountpoint_of(&arguments()?) == Some(mountpoint.as_path()) && !has_ended(&process);
        is_same.then_some(Self { process, mountpoint, restart })
    }

    /// Has `launcher` start a daemon as `restart` says that takes the mount over, and waits until this one has ended. May wait until then.
    ///
    /// # Errors
    /// Why this one serves on, as far as it is known.
    fn followed(&self, restart: Restart, launcher: &Path, until: Instant) -> Result<(), String> {
        let next = Launched::by(launcher, &restart.with_argument(REPLACES));
        let mut next = next.map_err(|error| format!("no other process can be started: {error}"))?;
        loop {
            if has_ended(&self.process) {
                return Ok(());
            }
            if let Some(why) = next.failure() {
                return Err(format!("the process that was to take it over does not run: {why}; its log says more"));
            }
            if Instant::now() >= until {
                return Err("it takes too long".to_owned());
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
    }
}

/// Whether a process has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whether another driver listens at `launcher` by now, where this one's socket had the number `own`.
fn is_followed(launcher: &Path, own: u64) -> bool {
    launcher.symlink_metadata().is_ok_and(|there| there.ino() != own)
}

/// Has the daemons of this pod that serve mounts below `kubelet` go on in the pod of the driver that listens at `launcher` by now. Of
/// one that has no successor, as when the driver is removed, none does. `own`: the number of this driver's own socket there.
pub(crate) async fn hand_over(launcher: PathBuf, own: u64, kubelet: PathBuf) {
    if !is_followed(&launcher, own) {
        return;
    }
    let until = Instant::now() + FOLLOWED_WITHIN;
    let found = waiting(move || Serving::all(|mountpoint| mountpoint.starts_with(&kubelet))).await;
    let all = match found.and_then(|all| all.map_err(|error| error.to_string())) {
        Ok(all) => all,
        Err(error) => return warn!(error, "daemons are not found, and end with this driver's pod"),
    };
    let (places, mut following) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for serving in all {
        let (places, launcher) = (Arc::clone(&places), launcher.clone());
        following.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire_owned().await;
            let at = serving.mountpoint.clone();
            let followed = waiting(move || serving.followed(serving.restart.clone(), &launcher, until)).await;
            match followed.flatten() {
                Ok(()) => info!(at = %at.display(), "a daemon of the next driver serves the mount"),
                // Its keeper has it then, if there is one.
                Err(why) => warn!(at = %at.display(), why, "the mount's daemon ends with this driver's pod"),
            }
        });
    }
    while following.join_next().await.is_some() {}
}

/// Has daemons go on with other credentials.
#[derive(Debug)]
pub(crate) struct Renewals {
    launcher: Option<PathBuf>,
    /// What a mount's daemon did not come to serve with, and when that was.
    failed: Mutex<HashMap<PathBuf, (Environment, Instant)>>,
}

impl Renewals {
    /// By daemons that are started at `launcher`; without, all go on with what they have.
    pub(crate) fn new(launcher: Option<PathBuf>) -> Self {
        Self { launcher, failed: Mutex::default() }
    }

    /// Has the daemon that serves `mountpoint` go on with these credentials, unless it has them. One that cannot goes on with those that it
    /// has, which the log says: whoever asks asks again.
    pub(crate) async fn renew(&self, mountpoint: &Path, environment: &Environment) {
        let Some(launcher) = self.launcher.clone().filter(|_| !environment.is_empty()) else { return };
        if self.has_failed(mountpoint, environment) {
            return;
        }
        let (at, wanted) = (mountpoint.to_owned(), environment.clone());
        match waiting(move || renewed(&at, &wanted, &launcher)).await.flatten() {
            Ok(false) => {}
            Ok(true) => info!(at = %mountpoint.display(), "the mount is served with the credentials of its Secret"),
            Err(why) => {
                warn!(at = %mountpoint.display(), why, "the mount is served with the credentials that it had");
                let mut failed = self.failed.lock();
                failed.retain(|_, (_, when)| when.elapsed() < NOT_AGAIN_FOR);
                failed.insert(mountpoint.to_owned(), (environment.clone(), Instant::now()));
            }
        }
    }

    fn has_failed(&self, mountpoint: &Path, environment: &Environment) -> bool {
        let failed = self.failed.lock();
        let last = failed.get(mountpoint).filter(|(_, when)| when.elapsed() < NOT_AGAIN_FOR);
        last.is_some_and(|(tried, _)| tried == environment)
    }
}

/// Whether a daemon was followed by one with these credentials. One of another pod is not: that pod's driver ends, and has them go on
/// here first.
fn renewed(mountpoint: &Path, environment: &Environment, launcher: &Path) -> Result<bool, String> {
    // Who has a secret has nothing of the driver's.
    let is_meant = |name: &str| is_of_cloud(name) || name == OF_DRIVER;
    let all = Serving::all(|at| at == mountpoint).map_err(|error| error.to_string())?;
    let has_others = |serving: &Serving| !serving.restart.has_variables(is_meant, environment.variables());
    let Some(serving) = all.into_iter().find(has_others) else { return Ok(false) };
    let restart = serving.restart.clone().with_variables(is_meant, environment.variables());
    serving.followed(restart, launcher, Instant::now() + RENEWED_WITHIN)?;
    Ok(true)
}

/// What `work` gives, which may wait.
async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<u8> {
        words.iter().flat_map(|word| word.bytes().chain([0])).collect()
    }

    #[test]
    fn a_daemon_is_known_by_its_arguments() {
        let of = |words: &[&str]| mountpoint_of(&line(words)).map(Path::to_owned);
        let up = ["forebay", "up", "--background-child", "--read-only", "--", "s3://b", "/k/staging"];
        assert_eq!(of(&up), Some("/k/staging".into()));
        let mount = ["/usr/bin/forebay", "mount", "--replace", "--background-child", "--", "/k/a b"];
        assert_eq!(of(&mount), Some("/k/a b".into()));
        for other in [
            &["forebay", "csi", "--node-name", "node1"][..],
            &["forebay", "up", "s3://b", "/k/staging"],
            &["forebay", "keeper", "--socket", "--background-child"],
            &["grep", "--background-child", "up"],
            &["forebay"],
            &[],
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn who_listens_at_the_launchers_socket_is_known_by_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let [path, next] = ["launcher.sock", "next.sock"].map(|name| directory.path().join(name));
        assert!(!is_followed(&path, 1), "nobody does");
        let _own = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = path.symlink_metadata().unwrap().ino();
        assert!(!is_followed(&path, own));
        let _next = std::os::unix::net::UnixListener::bind(&next).unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert!(is_followed(&path, own));
    }

    #[tokio::test]
    async fn credentials_that_did_not_work_are_not_tried_again_at_once() {
        let renewals = Renewals::new(Some("/none/launcher.sock".into()));
        let secret = |value: &str| {
            let secrets = HashMap::from([("AWS_ACCESS_KEY_ID".to_owned(), value.to_owned())]);
            Environment::of(&secrets).unwrap()
        };
        let place = Path::new("/k/staging");
        renewals.renew(place, &secret("one")).await;
        assert!(!renewals.has_failed(place, &secret("one")), "there is no daemon that could have failed");
        renewals.failed.lock().insert(place.to_owned(), (secret("one"), Instant::now()));
        assert!(renewals.has_failed(place, &secret("one")));
        assert!(!renewals.has_failed(place, &secret("two")) && !renewals.has_failed(Path::new("/k"), &secret("one")));
    }
}
