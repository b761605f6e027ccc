//! A mount, from its start to its end.
//!
//! It is served by threads: those of a [`Session`] take requests from the kernel; tasks of the runtime wait for workers; one thread
//! tells the kernel of stale names; one supervises, and ends the others when the kernel has ended the mount, which is
//! when the last file is closed after any unmount. Or another process goes on serving it ([`crate::handing`]).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use forebay_client::Client;
use forebay_fuse_io::{Adopted, Backings, Channel, ChannelInUse, FuseIo, Served, Session};
use forebay_handover::{Given, Kept, NotTaken, State, was_left};
use forebay_staging::{Draft, Staging};
use forebay_types::{ByteSize, FsPath};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::attach::attach;
use crate::detach::{Detach, detach};
use crate::dispatcher::Dispatcher;
use crate::error::MountError;
use crate::filesystem::FileSystem;
use crate::handing::HandOver;
use crate::handover::{Restored, negotiated, restore};
use crate::keeping::Keeping;
use crate::local_files::LocalFiles;
use crate::materialised::Materialised;
use crate::mount_table::{FS_TYPE, entry_at, hides_something, repair, resolve};
use crate::options::MountOptions;
use crate::outside::is_outside;
use crate::serving::MountShared;
use crate::stale::{StaleNames, StaleQueue, stale_names};
use crate::stats::MountStats;
use crate::supervising::{Finish, supervise};
use crate::surviving::{RESENDS, keep};
use crate::virtual_files::VirtualFiles;

/// `statfs` waits for a worker for a quarter of a second at most, so this is only about our own threads having started.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long an unmount waits for requests under way, when nothing is open any more.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing was open, and nothing is served any more.
    Clean,
    /// Files were open. The mount is gone from the namespace; what is open stays readable until it is closed, for as
    /// long as this process runs. [`Mount::wait`] tells when the last one was.
    Detached,
}

/// A mount that this process serves. Dropping it unmounts it, by force.
pub struct Mount {
    mountpoint: PathBuf,
    shared: Arc<MountShared>,
    served: Arc<Served>,
    ended: watch::Receiver<bool>,
    hand_over: HandOver,
}

impl Mount {
    /// Mounts `client`'s namespace at `mountpoint`; what a killed server left there is taken away first. The mount
    /// answers when this returns. Waits for workers happen on `runtime`.
    ///
    /// Blocks for some milliseconds: call it from a thread that may.
    ///
    /// # Errors
    /// [`MountError`], with what to do about it.
    pub fn start(
        client: Client,
        runtime: Handle,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        repair(mountpoint)?;
        let mountpoint = resolve(mountpoint)?;
        if !mountpoint.is_dir() {
            return Err(MountError::NotADirectory(mountpoint));
        }
        if hides_something(&mountpoint) {
            warn!(mountpoint = %mountpoint.display(), "the mountpoint is not empty: what is in it is hidden by the mount");
        }
        // Before there is a mount: until it is served, a look below it gets no answer.
        let (stale, stale_queue) = stale_names();
        let files = files(client, &runtime, &mountpoint, stale.clone(), options)?;
        let descriptor = attach(&mountpoint, options)?;
        // From here on there is something to take away if anything fails.
        let mut attached = Attached { mountpoint: mountpoint.clone(), keep: false };

        let virtual_files = VirtualFiles::new().noting_in(files.journal.clone());
        let shared = MountShared::new(files, virtual_files, runtime, mountpoint.clone(), options);
        let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&shared)));
        let mut session = Session::start(descriptor, dispatcher, &options.session())
            .map_err(|error| MountError::of_session(&mountpoint, error))?;
        if let Some(survival) = &options.survival {
            keep(&mut session, &shared, survival).map_err(MountError::NotKept)?;
        }
        let served = Self::serve(session, Arc::clone(&shared), mountpoint, (stale, stale_queue), || Ok(()));
        let mount = served.inspect_err(|_| shared.kept().into_iter().for_each(Keeping::forget))?;
        attached.keep = true;
        let carried = mount.answers()?;
        if options.io == FuseIo::Uring && !matches!(carried.channel, Channel::Uring(_)) {
            return Err(MountError::NoUring(carried.why_not.unwrap_or_default()));
        }
        set_read_ahead(&mount.mountpoint, options.read_ahead);
        info!(mountpoint = %mount.mountpoint.display(), source = options.source, io = %carried, "mounted");
        Ok(mount)
    }

    /// Serves `session`, whatever began it. `begins` is called when nothing else can fail any more, and before the first request is
    /// taken; if it fails, none is.
    fn serve(
        session: Session<Dispatcher>,
        shared: Arc<MountShared>,
        mountpoint: PathBuf,
        (stale, stale_queue): (StaleNames, StaleQueue),
        begins: impl FnOnce() -> Result<(), NotTaken>,
    ) -> Result<Self, MountError> {
        if let Some(payloads) = session.payloads() {
            shared.files.client.register(payloads);
        }
        let served = session.served();
        shared.begin(Arc::clone(&served));
        if let Some(materialised) = &shared.files.materialised {
            materialised.begin(session.backings(), served.passthrough());
        }
        let notifier = session.notifier();
        let teller = thread::Builder::new()
            .name("forebay-stale".to_owned())
            .spawn(move || stale_queue.serve(|parent, name| notifier.inval_entry(parent, name)))
            .map_err(MountError::io("start a thread"))?;
        let (hand_over, decisions) = HandOver::new(&session, Arc::clone(&shared));
        let (tell_ended, ended) = watch::channel(false);
        let supervised = Arc::clone(&shared);
        let (begin, may_begin) = channel();
        thread::Builder::new()
            .name("forebay-fuse".to_owned())
            .spawn(move || {
                let finish = may_begin.recv().map(|()| supervise(session, &decisions, &supervised, &stale));
                match finish {
                    // The kernel may keep the thread until the next process has answered a lookup, and that may wait for the end of
                    // this one.
                    Ok(Finish::Succeeded | Finish::Entrusted) => {
                        tell_ended.send_replace(true);
                    }
                    Ok(Finish::Ended) => {}
                    // It was not said that this process serves.
                    Err(_) => stale.end(),
                }
                // Whatever it held is not waited for.
                drop(supervised);
                if teller.join().is_err() {
                    warn!("the thread that tells of stale names panicked");
                }
                tell_ended.send_replace(true);
            })
            .map_err(MountError::io("start a thread"))?;
        // The keeper has been told that this process serves. It lets go: the one that serves on has it kept again.
        begins().inspect_err(|_| shared.kept().into_iter().for_each(Keeping::leave))?;
        // The thread waits for it.
        let _ = begin.send(());
        Ok(Self { mountpoint, shared, served, ended, hand_over })
    }

    /// Waits until it answers, for some seconds. How it is served.
    ///
    /// It is not asked: a thread of ours that waits for ourselves would not end when we are killed, and neither would the mount.
    ///
    /// # Errors
    /// [`MountError::NoAnswer`].
    pub fn answers(&self) -> Result<ChannelInUse, MountError> {
        self.served.wait(ANSWERS_WITHIN).ok_or_else(|| MountError::NoAnswer(self.mountpoint.clone()))
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> MountStats {
        self.shared.stats()
    }

    /// How requests come from the kernel, and what was agreed with it.
    #[must_use]
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Its materialised files; `None` when it was told to have none.
    #[must_use]
    pub fn local_files(&self) -> Option<LocalFiles> {
        LocalFiles::of(&self.shared)
    }

    /// A function that returns all counters, as `.stats.json` shows them. The caller may keep it for as long as it
    /// likes.
    pub fn reporter(&self) -> impl Fn() -> serde_json::Value + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.report()
    }

    /// Has the kernel ask again what `path` is; with `below`, also everything below it that it knows of. How many names that are;
    /// `None` if the kernel does not take them all in time, as behind a change that takes long.
    ///
    /// Waits for the kernel: call it from a thread that may.
    #[must_use]
    pub fn refresh(&self, path: &FsPath, below: bool) -> Option<u64> {
        self.shared.files.refresh(path, below)
    }

    /// `refresh` as a function, which the caller may keep for as long as it likes.
    pub fn refresher(&self) -> impl Fn(&FsPath, bool) -> Option<u64> + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |path, below| shared.files.refresh(path, below)
    }

    /// What it takes to give it to another process.
    #[must_use]
    pub fn hand_over(&self) -> HandOver {
        self.hand_over.clone()
    }

    /// Resolves when the mount has ended: unmounted, by us or from outside, and nothing open any more; or another process has it.
    pub async fn wait(&self) {
        // An error means that the supervisor is gone, and so is the mount.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Has it be kept over a crash as it was, if it was: the process before has said meanwhile that it does not serve it any more.
    pub fn keep_again(&self) {
        if let Some(keeping) = self.shared.kept() {
            keeping.again();
        }
    }

    /// It may be another process's by now: it is not unmounted by this one any more.
    pub fn abandon(&self) {
        self.hand_over.detached();
    }

    /// Unmounts. Where files are open, that is logged, and the mount is taken from the namespace all the same.
    ///
    /// # Errors
    /// [`MountError`] when neither way works.
    pub async fn unmount(&mut self) -> Result<Unmounted, MountError> {
        if *self.ended.borrow() {
            return Ok(Unmounted::Clean);
        }
        let mut how = Unmounted::Clean;
        if !self.hand_over.is_detached() {
            how = self.take_from_namespace().await?;
            self.hand_over.detached();
        }
        if how == Unmounted::Clean && tokio::time::timeout(ENDS_WITHIN, self.wait()).await.is_err() {
            warn!(mountpoint = %self.mountpoint.display(), "unmounted, but something still holds the mount");
            how = Unmounted::Detached;
        }
        Ok(how)
    }

    async fn take_from_namespace(&self) -> Result<Unmounted, MountError> {
        match self.detach(Detach::Clean).await {
            // It is unmounted already: something else was faster.
            Ok(()) | Err(MountError::NotMounted(_)) => Ok(Unmounted::Clean),
            Err(MountError::Busy(mountpoint)) => {
                warn!(
                    mountpoint = %mountpoint.display(),
                    "files are open: unmounted lazily, they stay readable for as long as this process runs"
                );
                self.detach(Detach::Lazy).await.map(|()| Unmounted::Detached)
            }
            Err(error) => Err(error),
        }
    }

    async fn detach(&self, how: Detach) -> Result<(), MountError> {
        let mountpoint = self.mountpoint.clone();
        let detached = tokio::task::spawn_blocking(move || detach(&mountpoint, how)).await;
        detached.map_err(|error| MountError::Io { action: "unmount".to_owned(), error: error.into() })?
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Also what was unmounted while files are open: they end with this process.
        self.shared.kept().into_iter().for_each(Keeping::forget);
        if *self.ended.borrow() || self.hand_over.is_detached() {
            return;
        }
        // Requests that wait get an error, so the supervisor and its threads end by themselves.
        if let Err(error) = detach(&self.mountpoint, Detach::Forced) {
            debug!(mountpoint = %self.mountpoint.display(), %error, "not unmounted");
        }
    }
}

/// What is served, with its directories.
fn files(
    client: Client,
    runtime: &Handle,
    mountpoint: &Path,
    stale: StaleNames,
    options: &MountOptions,
) -> Result<FileSystem, MountError> {
    let staging = options.writing.as_ref().map(|writing| {
        is_outside("write.staging_dir", &writing.staging.dir, mountpoint)?;
        Ok::<_, MountError>(Staging::open(writing.staging.clone(), Arc::new(client.clone()), runtime.clone())?)
    });
    let staging = staging.transpose()?;
    let materialised = options.local.as_ref().map(|local| {
        local.files.dir.iter().try_for_each(|dir| is_outside("client.local.dir", dir, mountpoint))?;
        Ok::<_, MountError>(Materialised::open(local, &client, runtime.clone())?)
    });
    Ok(FileSystem::new(client, staging, stale, options).with(materialised.transpose()?))
}

/// A mount that another process serves, and this one is about to. All that this one needs besides is there.
pub struct Successor {
    files: FileSystem,
    stale: (StaleNames, StaleQueue),
    runtime: Handle,
    mountpoint: PathBuf,
    options: MountOptions,
}

impl Successor {
    /// Opens what a mount at `mountpoint` needs, which is as the kernel names it. Looks at nothing below it: nobody may serve it.
    ///
    /// # Errors
    /// [`MountError`] for the directories that it needs.
    pub fn prepare(
        client: Client,
        runtime: Handle,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let (names, queue) = stale_names();
        let files = files(client, &runtime, mountpoint, names.clone(), options)?;
        Ok(Self { files, stale: (names, queue), runtime, mountpoint: mountpoint.to_owned(), options: options.clone() })
    }

    /// Serves it from now on. `begins` is called when nothing else can fail any more, and before the first request is taken. On an
    /// error, nothing was served, and the descriptor is closed.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn serve(self, given: Given, begins: impl FnOnce() -> Result<(), NotTaken>) -> Result<Mount, MountError> {
        let survival = self.options.survival.clone();
        let (mut session, going_on) = self.resume(given)?;
        if let Some(survival) = &survival
            && let Err(error) = keep(&mut session, &going_on.shared, survival)
        {
            warn!(%error, "the mount ends if this process is killed");
        }
        let drafts = going_on.drafts.clone();
        let begins = || begins().inspect(|()| drafts.iter().for_each(|draft| draft.own()));
        let mount = going_on.serve(session, begins)?;
        info!(mountpoint = %mount.mountpoint.display(), written = drafts.len(), "taken over from another process");
        Ok(mount)
    }

    /// Serves it from now on, after the process has ended that did, of which `kept` is left, and what it had taken and not answered.
    /// `begins` is called when nothing can fail any more, and before the first request is taken. On an error, nothing was served.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn recover(self, state: State, kept: Kept, begins: impl FnOnce()) -> Result<Mount, MountError> {
        let survival = self.options.survival.clone();
        let how = if was_left(&kept.memory) { "left it" } else { "died" };
        let Kept { connection, clones, .. } = kept;
        let (mut session, going_on) = self.resume(Given { state, connection, written: Vec::new() })?;
        // On an older kernel no mount outlives a crash: the process before has answered all that it had taken.
        if session.agreed().kernel >= RESENDS {
            session.notifier().resend().map_err(MountError::io("have the kernel hand requests out again"))?;
        }
        if let Some(survival) = &survival {
            keep(&mut session, &going_on.shared, survival).map_err(MountError::NotKept)?;
        }
        // What was read from them is handed out to this process now.
        drop(clones);
        let begins = || {
            begins();
            Ok(())
        };
        let mount = going_on.serve(session, begins)?;
        info!(mountpoint = %mount.mountpoint.display(), "taken over from a process that {how}");
        Ok(mount)
    }

    fn resume(self, given: Given) -> Result<(Session<Dispatcher>, GoingOn), MountError> {
        let Given { state, connection, written } = given;
        let Self { files, stale, runtime, mountpoint, options } = self;
        if entry_at(&mountpoint)?.is_none_or(|entry| entry.fs_type != FS_TYPE) {
            return Err(MountError::NotMounted(mountpoint));
        }
        let adopted = Adopted::new(connection, negotiated(&state.agreed));
        let adopted = adopted.map_err(MountError::io("take the connection to the kernel"))?;
        let backings = adopted.backings();
        let restored = restore(files, state, written, &backings).inspect_err(|_| backings.end());
        let Restored { files, virtual_files, drafts } = restored.map_err(MountError::Written)?;
        let shared = MountShared::new(files, virtual_files, runtime, mountpoint.clone(), &options);
        let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&shared)));
        let session = Session::resume(adopted, dispatcher, &options.session())
            // What is passed through is the other process's still: to drop `shared` must not end it.
            .inspect_err(|_| backings.end())
            .map_err(|error| MountError::of_session(&mountpoint, error))?;
        Ok((session, GoingOn { shared, backings, drafts, stale, mountpoint, read_ahead: options.read_ahead }))
    }
}

/// A mount of another process, all but the session.
struct GoingOn {
    shared: Arc<MountShared>,
    backings: Backings,
    /// What is open for writing.
    drafts: Vec<Arc<Draft>>,
    stale: (StaleNames, StaleQueue),
    mountpoint: PathBuf,
    read_ahead: ByteSize,
}

impl GoingOn {
    fn serve(
        self,
        session: Session<Dispatcher>,
        begins: impl FnOnce() -> Result<(), NotTaken>,
    ) -> Result<Mount, MountError> {
        let Self { shared, backings, drafts: _, stale, mountpoint, read_ahead } = self;
        let mount = Mount::serve(session, Arc::clone(&shared), mountpoint, stale, begins);
        let mount = mount.inspect_err(|_| backings.end())?;
        set_read_ahead(&mount.mountpoint, read_ahead);
        Ok(mount)
    }
}

/// Takes a mount away that did not come to be served.
struct Attached {
    mountpoint: PathBuf,
    keep: bool,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = detach(&self.mountpoint, Detach::Forced)
        {
            warn!(mountpoint = %self.mountpoint.display(), %error, "a mount that failed is left behind");
        }
    }
}

/// The kernel caps what we could ask for in the handshake at 128 KiB, so root sets it where the kernel keeps it.
fn set_read_ahead(mountpoint: &Path, read_ahead: ByteSize) {
    let set = || -> Result<(), MountError> {
        let Some(entry) = entry_at(mountpoint)? else { return Ok(()) };
        let file = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
        let kib = (read_ahead.as_u64() >> 10).to_string();
        let write = || OpenOptions::new().write(true).open(&file)?.write_all(kib.as_bytes());
        write().map_err(MountError::io(format!("write {file}")))
    };
    if let Err(error) = set() {
        debug!(%error, "the kernel's read-ahead stays as it is: only root can raise it");
    }
}
