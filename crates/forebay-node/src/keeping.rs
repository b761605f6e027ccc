//! Who has the mount of this process in case it dies: the service manager that started it, or a process of `forebay keeper`, which also
//! starts the next one.
//!
//! What is kept is taken by the next process before it looks at the mountpoint: nobody serves that, so a look at it would wait.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_fuse::mount_table;
use forebay_handover::{Identity, KeeperLink, KeeperProcess, Keeps, Kept, Restart, State, Taken, read_kept, was_left};
use forebay_private::PrivateListener;
use tracing::{error, warn};

use crate::error::{Exit, Fault};
use crate::fdstore::FdStore;
use crate::handover::{connect, is_nobody, is_served};
use crate::{keeper_process, keepers, state};

/// How long it may not have seen yet that a process is dead.
const UNSEEN_DEATH: Duration = Duration::from_millis(500);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);
/// How long no connection is accepted after the system refused to accept one.
const PAUSE: Duration = Duration::from_millis(100);

/// How a keeper is started, and what it starts.
#[derive(Clone, Debug)]
pub struct KeeperProgram {
    program: PathBuf,
    restart: Option<Restart>,
}

impl KeeperProgram {
    /// A keeper that is run as `program keeper --socket PATH`, and waits for whoever starts the next process.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, restart: None }
    }

    /// One of this program, that starts this process again as it was started, with its standard error in `log`. To be called before the
    /// process changes its directory.
    ///
    /// # Errors
    /// When the system does not say which program this is, or where it runs.
    pub fn restarting(log: Option<&Path>) -> io::Result<Self> {
        let restart = Restart::of_this_process(log)?;
        Ok(Self { program: restart.program().to_owned(), restart: Some(restart) })
    }
}

/// What was found of a mount.
pub(crate) struct Found {
    pub(crate) keeper: Arc<dyn Keeps>,
    /// What is left of a process that has died.
    pub(crate) left: Option<Left>,
}

/// What is left of a process that has died, and has this one's options.
pub(crate) struct Left {
    pub(crate) state: State,
    pub(crate) kept: Kept,
}

/// Finds who keeps the mount at `mountpoint`, which must be resolved. `is_wanted`: this process has it kept, too; `waits`: a process
/// that seems to serve it may be dying.
///
/// # Errors
/// When this process has other options than the one that died; when a keeper started it and the mount is gone.
pub(crate) async fn find(
    mountpoint: &Path,
    program: KeeperProgram,
    (is_wanted, waits): (bool, bool),
    identity: Identity,
) -> anyhow::Result<Option<Found>> {
    let mountpoint = mountpoint.to_owned();
    let finding = move || -> anyhow::Result<Option<Found>> {
        let found = look(&mountpoint, &program, (is_wanted, waits), &identity)?;
        let is_left = found.as_ref().is_some_and(|found| found.left.is_some());
        // It was started for what is not there any more.
        if !is_left && Restart::is_this_process() && mount_table::listed(&mountpoint).is_none() {
            let what = format!("the mount at {} has ended meanwhile", mountpoint.display());
            return Err(Fault::without_remedy(Exit::NotFound, what).into());
        }
        Ok(found)
    };
    tokio::task::spawn_blocking(finding).await.context("looking for a keeper panicked")?
}

fn look(
    mountpoint: &Path,
    program: &KeeperProgram,
    (is_wanted, waits): (bool, bool),
    identity: &Identity,
) -> anyhow::Result<Option<Found>> {
    if let Some((store, kept)) = FdStore::of_environment() {
        return match kept {
            Some(kept) => usable(mountpoint, Arc::new(store), kept, identity),
            None => Ok(is_wanted.then(|| Found { keeper: Arc::new(store), left: None })),
        };
    }
    let mut link = None;
    for socket in state::keeper_sockets(mountpoint) {
        match connect(&socket) {
            Ok(stream) => {
                link = Some(KeeperLink::new(stream, program.restart.clone())?);
                break;
            }
            Err(error) if is_nobody(&error, || is_served(mountpoint)) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(link) = link else { return Ok(None) };
    match take(&link, waits) {
        Ok(Taken::Given(kept)) => usable(mountpoint, Arc::new(link), kept, identity),
        Ok(Taken::Served) => Ok(Some(Found { keeper: Arc::new(link), left: None })),
        Ok(Taken::Nothing) => Ok(is_wanted.then(|| Found { keeper: Arc::new(link), left: None })),
        Err(error) => {
            warn!(%error, "a keeper of the mount that ends, or does not answer");
            Ok(None)
        }
    }
}

fn take(link: &KeeperLink, waits: bool) -> io::Result<Taken> {
    let until = Instant::now() + UNSEEN_DEATH;
    loop {
        match link.take()? {
            Taken::Served if waits && Instant::now() < until => thread::sleep(LOOKED_AT_EVERY),
            taken => return Ok(taken),
        }
    }
}

/// What is left of a process, if this one can go on with it. Otherwise nobody can, and it is let go of: programs get errors.
fn usable(mountpoint: &Path, keeper: Arc<dyn Keeps>, kept: Kept, identity: &Identity) -> anyhow::Result<Option<Found>> {
    let is_there = mount_table::listed(mountpoint).is_some_and(|listed| listed == mountpoint) && !kept.has_ended();
    let (was, state) = match read_kept(&kept.memory) {
        Ok(read) if is_there => read,
        unusable => {
            if let Err(error) = unusable {
                error!(%error, "the mount of a process that was killed cannot be gone on with: it is let go of");
            }
            drop(kept);
            keeper.forget();
            return Ok(None);
        }
    };
    let differences = was.differences(identity);
    if !differences.is_empty() {
        let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
        if was_left(&kept.memory) {
            // Who restarts a service has what it is configured with by now.
            let differences = differences.join("; ");
            warn!(
                differences,
                "options have changed that a mount keeps: it is mounted anew, and what is open in it fails"
            );
            drop(kept);
            keeper.forget();
            return Ok(None);
        }
        let what = format!(
            "the process that served {} was killed, and its mount is kept with other options: {}",
            mountpoint.display(),
            differences.join("; ")
        );
        let next = format!("set them as they were, or `forebay umount {}`", mountpoint.display());
        return Err(Fault::new(Exit::Usage, what, next).into());
    }
    Ok(Some(Found { keeper, left: Some(Left { state, kept }) }))
}

/// Has somebody keep the mount at `mountpoint`: the service manager, or a new process.
///
/// # Errors
/// When that process does not come to listen.
pub(crate) async fn start(mountpoint: &Path, program: KeeperProgram) -> anyhow::Result<Arc<dyn Keeps>> {
    let mountpoint = mountpoint.to_owned();
    tokio::task::spawn_blocking(move || launch(&mountpoint, program)).await.context("starting a keeper panicked")?
}

/// The same, from a thread that may wait.
///
/// # Errors
/// As of [`start`].
pub(crate) fn launch(mountpoint: &Path, program: KeeperProgram) -> anyhow::Result<Arc<dyn Keeps>> {
    if let Some(keeper) = lasting(mountpoint, &program)? {
        return Ok(keeper);
    }
    let socket = state::keeper_socket(mountpoint)?;
    let KeeperProgram { program, restart } = program;
    let (connected, _) = keeper_process::start(&program, &socket, None)?;
    Ok(Arc::new(KeeperLink::new(connected, restart)?))
}

/// A keeper of the mount at `mountpoint`: one that is there, whatever it has, or another one. May wait.
///
/// # Errors
/// As of [`start`].
pub(crate) fn present(mountpoint: &Path, program: KeeperProgram) -> anyhow::Result<Arc<dyn Keeps>> {
    // The service manager comes before all others.
    if FdStore::of_environment().is_none() {
        // Those of other users are not for this process.
        let there = state::keeper_sockets(mountpoint).into_iter().find_map(|socket| connect(&socket).ok());
        if let Some(there) = there {
            return Ok(Arc::new(KeeperLink::new(there, program.restart)?));
        }
    }
    launch(mountpoint, program)
}

/// Another keeper of the mount at `mountpoint`, whose keeper has ended. `of_host`: that one was of a host, which may not be back yet. May
/// wait.
///
/// # Errors
/// When there is none.
pub(crate) fn another(mountpoint: &Path, program: KeeperProgram, of_host: bool) -> anyhow::Result<Arc<dyn Keeps>> {
    if !of_host {
        return launch(mountpoint, program);
    }
    let gone = || Fault::without_remedy(Exit::Unavailable, "the host of keepers is not there");
    Ok(lasting(mountpoint, &program)?.ok_or_else(gone)?)
}

/// Whether there is a host of keepers for the mount at `mountpoint`.
pub(crate) fn has_host(mountpoint: &Path) -> bool {
    state::keeper_socket(mountpoint).is_ok_and(|socket| socket.with_file_name(keepers::HOST).exists())
}

/// A keeper of the mount at `mountpoint` that ends with nothing of this process: the service manager, or one of a host.
///
/// # Errors
/// When there is a host, and it starts none.
pub(crate) fn lasting(mountpoint: &Path, program: &KeeperProgram) -> anyhow::Result<Option<Arc<dyn Keeps>>> {
    if let Some((store, _)) = FdStore::of_environment() {
        return Ok(Some(Arc::new(store)));
    }
    let socket = state::keeper_socket(mountpoint)?;
    if !keepers::ask(&socket.with_file_name(keepers::HOST), &socket)? {
        return Ok(None);
    }
    Ok(Some(Arc::new(KeeperLink::new(connect(&socket)?, program.restart.clone())?)))
}

/// Whether `keeper` ends with this process: it is of the same container, whose first process this is.
pub(crate) fn ends_with_us(keeper: &dyn Keeps) -> bool {
    // One of another container has no number here.
    std::process::id() == 1 && keeper.process().is_some()
}

/// Keeps a mount for the processes that connect to `socket`, until it has ended: what `forebay keeper` is. The next process is started
/// by whoever listens at `launcher`, or as a child.
///
/// # Errors
/// When it cannot listen there, or another keeper does.
pub async fn keep(socket: &Path, launcher: Option<PathBuf>) -> anyhow::Result<()> {
    if UnixStream::connect(socket).is_ok() {
        let what = format!("a keeper listens at {} already", socket.display());
        return Err(Fault::without_remedy(Exit::Busy, what).into());
    }
    let listener = PrivateListener::bind(socket)?;
    let (mut keeper, visitors) = KeeperProcess::new(launcher);
    let mut keeping = tokio::task::spawn_blocking(move || {
        keeper.run();
        keeper
    });
    loop {
        let accepted = tokio::select! {
            keeper = &mut keeping => {
                // The next keeper listens there when those hear of it who wait for the end of this one.
                drop(listener);
                drop(keeper);
                return Ok(());
            }
            accepted = listener.accept() => accepted.and_then(tokio::net::UnixStream::into_std),
        };
        match accepted {
            Ok(stream) => visitors.connected(stream),
            Err(error) => {
                warn!(%error, "no connection is accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
