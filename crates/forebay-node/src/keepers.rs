//! A host of keepers: starts one for each mount that asks, so that keepers do not end with what started the mounts.
//!
//! A keeper that a daemon starts itself is in the daemon's container, and goes with it. In Kubernetes the host is a pod of
//! its own, next to that of the daemons, with the same run directory, where they look for it. It has daemons started by
//! whoever listens at the launcher's socket (`forebay_handover::launch`): it has no rights to mount, and little memory. Or it has
//! none started, and the rights to unmount: then no mount is left that nobody serves when the host ends, and all keepers with it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_fuse::mount_table;
use forebay_locks::Mutex;
use forebay_private::PrivateListener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use tracing::{info, warn};

use crate::error::{Exit, Fault};
use crate::handover::connect;
use crate::keeper_process;

/// The name of a host's socket, among those of keepers.
pub const HOST: &str = "keepers.sock";
/// What the names of keepers' sockets end with. A host makes nothing else.
const KEEPER: &str = ".keeper.sock";
/// The longest path of a socket, and the end of the line.
const MAX_ASKED: u64 = 108;
/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 4096;
/// What is answered when a keeper listens.
const LISTENS: &str = "it listens";
/// How long a host may take: longer than a keeper takes until it listens.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// How long a keeper that was killed may take to end.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How often it is looked for mounts that nobody serves.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(200);
/// How long no connection is accepted after the system refused to accept one.
const PAUSE: Duration = Duration::from_millis(100);

/// Has the host that listens at `host` start a keeper that listens at `socket`. Returns when it does; `false`: there is no host. One
/// that was there and does not answer is not done without: somebody relies on it.
///
/// # Errors
/// When nobody listens there, or the host says why not.
pub(crate) fn ask(host: &Path, socket: &Path) -> anyhow::Result<bool> {
    if !host.exists() {
        return Ok(false);
    }
    let refused = |why: String| {
        let what = format!("no keeper can be had of {}: {why}", host.display());
        Fault::new(Exit::Unavailable, what, "start `forebay keeper --host` there again, or remove the socket")
    };
    let asking = || -> anyhow::Result<String> {
        let mut stream = connect(host)?;
        stream.set_read_timeout(Some(ANSWERED_WITHIN))?;
        stream.set_write_timeout(Some(ANSWERED_WITHIN))?;
        writeln!(stream, "{}", socket.display())?;
        line(&stream, MAX_ANSWER)
    };
    match asking() {
        Ok(answer) if answer == LISTENS => Ok(true),
        Ok(why) => Err(refused(why).into()),
        Err(error) => Err(refused(format!("{error:#}")).into()),
    }
}

/// Starts a keeper for each process that asks at `socket`, whose daemons are started at `launcher`. Runs until `end`; keepers do not
/// end with it, unless [`Keepers::end`] ends them.
///
/// # Errors
/// When it cannot listen there.
pub async fn host(socket: &Path, launcher: Option<&Path>, end: impl Future<Output = ()>) -> anyhow::Result<Keepers> {
    let keepers = Keepers {
        program: std::env::current_exe().context("cannot find the program's own file")?,
        directory: socket.parent().unwrap_or(Path::new("/")).to_owned(),
        launcher: launcher.map(Path::to_owned),
        started: Arc::new(Mutex::new(Some(Vec::new()))),
    };
    let listener = PrivateListener::bind(socket)?;
    info!(socket = %socket.display(), "ready to start keepers");
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.and_then(tokio::net::UnixStream::into_std),
            // Its path goes with it: who looks for a host from now on finds none.
            () = &mut end => return Ok(keepers),
        };
        match accepted {
            Ok(stream) => {
                let keepers = keepers.clone();
                tokio::task::spawn_blocking(move || keepers.answer(stream));
            }
            Err(error) => {
                warn!(%error, "no connection is accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// What a host starts.
#[derive(Clone, Debug)]
pub struct Keepers {
    program: PathBuf,
    directory: PathBuf,
    launcher: Option<PathBuf>,
    /// Those that may run still; `None`: they were ended, and none is started any more.
    started: Arc<Mutex<Option<Vec<OwnedFd>>>>,
}

impl Keepers {
    /// Ends all of them, and what they keep: of a mount that nobody serves, programs get errors. May wait.
    pub fn end(&self) {
        let started = self.started.lock().take();
        for process in started.into_iter().flatten() {
            kill(&process);
            // Until its descriptors are closed.
            let waited = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&ENDS_WITHIN));
            if !matches!(waited, Ok(1)) {
                warn!(?waited, "a keeper was killed, and does not end");
            }
        }
    }

    /// Notes that one was started.
    fn noted(&self, process: OwnedFd) {
        match &mut *self.started.lock() {
            Some(started) => {
                started.retain(|process| !has_ended(process));
                started.push(process);
            }
            None => kill(&process),
        }
    }

    fn answer(&self, mut stream: UnixStream) {
        let mut answering = || -> anyhow::Result<()> {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(ANSWERED_WITHIN))?;
            stream.set_write_timeout(Some(ANSWERED_WITHIN))?;
            let answer = match line(&stream, MAX_ASKED).and_then(|asked| self.start(Path::new(&asked))) {
                Ok(()) => LISTENS.to_owned(),
                Err(error) => format!("{error:#}"),
            };
            Ok(writeln!(stream, "{answer}")?)
        };
        if let Err(error) = answering() {
            warn!(%error, "who asked for a keeper does not listen");
        }
    }

    fn start(&self, socket: &Path) -> anyhow::Result<()> {
        let name = socket.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.ends_with(KEEPER) || socket.parent() != Some(self.directory.as_path()) {
            let what = format!("{} is no keeper's socket of {}", socket.display(), self.directory.display());
            return Err(Fault::new(Exit::Usage, what, "give both processes the same FOREBAY_RUN_DIR").into());
        }
        let (_, process) = keeper_process::start(&self.program, socket, self.launcher.as_deref())?;
        self.noted(process);
        Ok(())
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn kill(process: &OwnedFd) {
    // It fails when it has ended.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Unmounts what is mounted below `directory` and served by nobody, until nothing of ours is mounted there, or for `within`. A process
/// that is just ending may have a mount open that nobody serves; one that serves its mount is left alone. May wait.
///
/// # Errors
/// When the kernel does not say what is mounted, or something cannot be unmounted.
pub fn unmount_unserved(directory: &Path, within: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + within;
    loop {
        let left = mount_table::repair_below(directory)?;
        if left == 0 || Instant::now() >= until {
            info!(directory = %directory.display(), left, "what nobody serves is unmounted");
            return Ok(());
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    }
}

/// A line that is not longer than `limit`, without its end.
fn line(stream: &UnixStream, limit: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    BufReader::new(stream.take(limit)).read_line(&mut text)?;
    match text.strip_suffix('\n') {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers(program: &str, directory: &Path) -> Keepers {
        let started = Arc::new(Mutex::new(Some(Vec::new())));
        Keepers { program: program.into(), directory: directory.join("private"), launcher: None, started }
    }

    #[test]
    fn keepers_that_were_started_are_ended_and_one_that_comes_late_too() {
        let directory = tempfile::tempdir().unwrap();
        let keepers = keepers("/none", directory.path());
        let process = || {
            let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
            let handle = rustix::process::pidfd_open(
                rustix::process::Pid::from_child(&child),
                rustix::process::PidfdFlags::empty(),
            );
            (child, handle.unwrap())
        };
        let (mut first, handle) = process();
        keepers.noted(handle);
        let (mut late, handle) = process();
        keepers.end();
        keepers.noted(handle);
        for child in [&mut first, &mut late] {
            assert!(!child.wait().unwrap().success());
        }
        keepers.end();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_host_starts_keepers_in_its_own_directory_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join("private").join(name);
        let keepers = keepers("/bin/false", directory.path());
        for wrong in [at("a.sock"), directory.path().join("a.keeper.sock"), "a.keeper.sock".into()] {
            let error = keepers.start(&wrong).unwrap_err().to_string();
            assert!(error.contains("no keeper's socket"), "{error}");
        }
        let error = keepers.start(&at("a.keeper.sock")).unwrap_err().to_string();
        assert!(error.contains("ended at once"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_host_answers_is_told_and_that_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("private/keepers.sock");
        let (asked_at, host_at) = (socket.clone(), socket.clone());
        let asked = move |name: &'static str| {
            let (host, socket) = (asked_at.clone(), asked_at.with_file_name(name));
            tokio::task::spawn_blocking(move || ask(&host, &socket).unwrap_err().to_string())
        };
        assert!(!ask(&socket, &socket.with_file_name("a.keeper.sock")).unwrap(), "there is none");
        std::fs::create_dir(socket.parent().unwrap()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = asked("a.keeper.sock").await.unwrap();
        assert!(error.contains("keepers.sock") && error.contains("cannot connect"), "{error}");
        std::fs::remove_file(&socket).unwrap();
        let hosting = tokio::spawn(async move { host(&host_at, None, std::future::pending()).await });
        // It is there before anybody listens at it.
        while UnixStream::connect(&socket).is_err() {
            tokio::task::yield_now().await;
        }
        let error = asked("other.sock").await.unwrap();
        assert!(error.contains("other.sock is no keeper's socket"), "{error}");
        hosting.abort();
    }
}
