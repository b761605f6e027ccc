//! Who starts the next daemon of a mount: the keeper, as its own child, or a *launcher*, whom it asks.
//!
//! A keeper outlives daemons for as long as nothing of its own ends. In Kubernetes that is a pod of its own, without the
//! rights, the memory and the files of those that mount; so a daemon is started where it may run, by the process that
//! listens there by then. It may be gone for a while, as in an upgrade: that is a daemon that cannot be started, and the
//! keeper asks again.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::restart::Restart;
use crate::wire::{Wire, WireError};

/// How long either of both waits for the other's word.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What a launcher says of a daemon.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// It runs, with this number in the launcher's PID namespace.
    Started(u32),
    /// It does not, and why.
    NotStarted(String),
    /// It has ended, with this code if it was not killed.
    Ended(Option<i32>),
}

/// A daemon that a keeper has had started.
#[derive(Debug)]
pub(crate) enum Started {
    /// Here.
    Child(Child),
    /// By a launcher, which tells how it ends.
    Elsewhere { pid: u32, launcher: Wire },
}

/// How a daemon has ended: its code, if it was not killed and somebody saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended(pub(crate) Option<i32>);

impl Started {
    /// Starts a daemon here, or by the launcher that listens at a path.
    ///
    /// # Errors
    /// When it is not started, or nobody listens there.
    pub(crate) fn by(launcher: Option<&Path>, restart: &Restart) -> io::Result<Self> {
        match launcher {
            Some(path) => Self::asked_for(path, restart),
            None => restart.start().map(Self::Child),
        }
    }

    fn asked_for(path: &Path, restart: &Restart) -> io::Result<Self> {
        let mut launcher = Wire::new(UnixStream::connect(path)?)?;
        launcher.send(restart, &[]).map_err(told)?;
        let said = launcher.receive(Some(Instant::now() + ANSWERED_WITHIN)).map_err(told)?;
        match said {
            Some((Said::Started(pid), _)) => Ok(Self::Elsewhere { pid, launcher }),
            Some((Said::NotStarted(why), _)) => Err(io::Error::other(why)),
            Some((Said::Ended(_), _)) => Err(io::Error::other("it ended before it was started")),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "who starts it does not answer")),
        }
    }

    /// Its number, where it runs.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Elsewhere { pid, .. } => *pid,
        }
    }

    /// How it has ended, if it has. Of a launcher that is gone nothing is known but that its daemons ended with it, or soon will.
    ///
    /// # Errors
    /// When the system does not say.
    pub(crate) fn ended(&mut self) -> io::Result<Option<Ended>> {
        match self {
            Self::Child(child) => Ok(child.try_wait()?.map(|status| Ended(status.code()))),
            Self::Elsewhere { launcher, .. } => match launcher.receive(Some(Instant::now())) {
                Ok(Some((Said::Ended(code), _))) => Ok(Some(Ended(code))),
                Ok(_) => Ok(None),
                Err(_) => Ok(Some(Ended(None))),
            },
        }
    }
}

/// A daemon that a launcher was asked to start by somebody who is no keeper.
#[derive(Debug)]
pub struct Launched(Started);

impl Launched {
    /// Has the launcher that listens at `launcher` start it. May wait.
    ///
    /// # Errors
    /// When it is not started, or nobody listens there.
    pub fn by(launcher: &Path, restart: &Restart) -> io::Result<Self> {
        Started::by(Some(launcher), restart).map(Self)
    }

    /// Why it does not run, if it does not any more.
    pub fn failure(&mut self) -> Option<String> {
        match self.0.ended() {
            Ok(None) => None,
            Ok(Some(Ended(Some(code)))) => Some(format!("it ended with code {code}")),
            Ok(Some(Ended(None))) => Some("it was killed, or whoever started it is gone".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Starts the daemon that a keeper asks for over `socket`, as `renewed` makes of that, and tells it how it ends. Returns when it has.
///
/// # Errors
/// When nothing that can be understood is asked, or the daemon cannot be waited for.
pub fn launch(socket: UnixStream, renewed: impl FnOnce(Restart) -> Restart) -> io::Result<()> {
    let mut keeper = Wire::new(socket)?;
    let asked = keeper.receive::<Restart>(Some(Instant::now() + ANSWERED_WITHIN)).map_err(told)?;
    let (restart, _) = asked.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "nothing is asked"))?;
    // A request may have waited here for long. Its keeper has asked again, or has let go of the mount: nobody wants this daemon.
    if keeper.receive::<Restart>(Some(Instant::now())).is_err() {
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the keeper that asked has gone"));
    }
    let restart = renewed(restart);
    let mut child = match restart.start() {
        Ok(child) => child,
        Err(error) => return keeper.send(&Said::NotStarted(error.to_string()), &[]).map_err(told),
    };
    info!(pid = child.id(), ?restart, "the process of a mount is started again");
    // Who asked may be gone. Somebody has to wait for the process in any case.
    let heard = keeper.send(&Said::Started(child.id()), &[]);
    let status = child.wait()?;
    if let Err(error) = heard.and_then(|()| keeper.send(&Said::Ended(status.code()), &[])) {
        warn!(%error, %status, "the process of a mount has ended, and its keeper does not listen");
    }
    Ok(())
}

fn told(error: WireError) -> io::Error {
    match error {
        WireError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A launcher that starts one daemon.
    fn launcher(directory: &Path) -> (std::path::PathBuf, JoinHandle<io::Result<()>>) {
        let path = directory.join("launcher.sock");
        let listener = UnixListener::bind(&path).unwrap();
        (path, thread::spawn(move || launch(listener.accept().unwrap().0, |restart| restart)))
    }

    fn wait(started: &mut Started) -> Ended {
        loop {
            if let Some(ended) = started.ended().unwrap() {
                return ended;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_daemon_that_is_started_elsewhere_ends_as_one_that_is_started_here() {
        let directory = tempfile::tempdir().unwrap();
        let restart = Restart::of_shell("exit 7");
        let (path, launching) = launcher(directory.path());
        for launcher in [None, Some(path.as_path())] {
            let mut started = Started::by(launcher, &restart).unwrap();
            assert!(started.pid() > 1);
            assert_eq!(wait(&mut started), Ended(Some(7)), "{launcher:?}");
        }
        launching.join().unwrap().unwrap();
    }

    #[test]
    fn who_is_no_keeper_hears_why_what_it_asked_for_does_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let (path, launching) = launcher(directory.path());
        let mut launched = Launched::by(&path, &Restart::of_shell("exit 6")).unwrap();
        let failure = loop {
            match launched.failure() {
                Some(failure) => break failure,
                None => thread::yield_now(),
            }
        };
        assert_eq!(failure, "it ended with code 6");
        launching.join().unwrap().unwrap();
        assert!(Launched::by(&directory.path().join("none.sock"), &Restart::of_shell("")).is_err());
    }

    #[test]
    fn where_nobody_listens_or_it_cannot_be_started_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let none = directory.path().join("none.sock");
        assert_eq!(Started::by(Some(&none), &Restart::of_shell("")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let (path, launching) = launcher(directory.path());
        let error = Started::by(Some(&path), &Restart::of_program("/none")).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
        launching.join().unwrap().unwrap();
    }

    #[test]
    fn a_daemon_whose_launcher_is_gone_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("launcher.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let launching = thread::spawn(move || {
            let mut keeper = Wire::new(listener.accept().unwrap().0).unwrap();
            keeper.receive::<Restart>(None).unwrap();
            keeper.send(&Said::Started(2), &[]).unwrap();
        });
        let mut started = Started::by(Some(&path), &Restart::of_shell("")).unwrap();
        launching.join().unwrap();
        assert_eq!(wait(&mut started), Ended(None));
    }

    #[test]
    fn what_a_keeper_asked_for_that_has_gone_is_not_started() {
        let directory = tempfile::tempdir().unwrap();
        let started = directory.path().join("started");
        let (launcher, keeper) = UnixStream::pair().unwrap();
        let mut keeper = Wire::new(keeper).unwrap();
        keeper.send(&Restart::of_shell(&format!("touch {}", started.display())), &[]).unwrap();
        drop(keeper);
        let launched = launch(launcher, |restart| restart);
        assert_eq!(launched.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert!(!started.exists());
    }

    #[test]
    fn what_cannot_be_understood_starts_nothing() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(one);
        assert!(launch(other, |restart| restart).is_err());
    }
}
