//! `forebay umount`: takes a mount away, dead or alive.
//!
//! The kernel is asked first, so that a mount in use stays as it is and its users are named. The process that served it
//! ends by itself when the mount is gone; that is waited for, also where only its claim is seen, as of one in another pod.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_fuse::MountError;
use forebay_fuse::mount_table::{self, MountState};

use crate::exit::{Exit, Fault};
use crate::holders::Holders;
use crate::{output, runtime};
use forebay_node::after_stop::{AfterStop, take_away_unless_followed};
use forebay_node::claimed::Claimed;
use forebay_node::process::Process;
use forebay_node::state::{self, Claim, RunState};
use forebay_node::{mountpoint, staged};

/// Longer than the process takes to write what is queued for its disks.
const END_WITHIN: Duration = Duration::from_secs(60);
/// How long a mount that is in use is tried again: a process that looks at a file for a moment, or has inherited one and is about
/// to run another program, is no reason to give up.
const TRIED_FOR: Duration = Duration::from_secs(2);
const TRIED_EVERY: Duration = Duration::from_millis(50);

/// Unmount a mount of `forebay up` or `forebay mount`
///
/// The command waits until the process that served the mount has ended. While the mount is in use, the command retries
/// for two seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay umount /mnt/data
  forebay umount --lazy /mnt/data     # also while files below it are open")]
pub(crate) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Unmount even while it is in use: readers get some seconds to finish, then errors
    #[arg(long)]
    lazy: bool,
    /// For `ExecStopPost=` of a unit of systemd: unmount only if the unit's process has ended and systemd starts no other
    #[arg(long, conflicts_with = "lazy")]
    after_stop: bool,
}

/// Runs it.
///
/// # Errors
/// When nothing of ours is mounted there, it is in use, or its process does not end.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.after_stop {
        return after_stop(&args.mountpoint);
    }
    // A dead mount is there, and cannot be looked at; and one that is kept has nobody who would answer, for a moment.
    let looked = || args.mountpoint.symlink_metadata();
    if mount_table::listed(&args.mountpoint).is_none()
        && looked().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        return Err(MountError::NotMounted(args.mountpoint.clone()).into());
    }
    let mountpoint = mountpoint::resolve(&args.mountpoint)?;
    let found = state::find(&mountpoint);
    let serving = found.clone().and_then(|state| Some((Server::of(&state, &mountpoint)?, state)));
    let must_be_asked = match mount_table::inspect(&mountpoint)? {
        MountState::Dead { .. } => {
            clean_up(&mountpoint)?;
            found.iter().for_each(tell_left);
            return Ok(());
        }
        MountState::Forebay { .. } => {
            unmount(&mountpoint, args.lazy)?;
            // It would wait for the last reader; the signal bounds how long.
            args.lazy
        }
        // It was detached while it was in use, or its process uploads what was written: who is told to end gives that up after a while.
        MountState::NotMounted if serving.is_some() => args.lazy,
        MountState::NotMounted | MountState::Other { .. } => {
            // Refuses, and says what is there instead.
            mount_table::unmount(&mountpoint, false)?;
            false
        }
    };
    let Some((server, state)) = serving else { return Ok(()) };
    if must_be_asked {
        server.ask_to_end();
    }
    if server.wait_for_end(END_WITHIN) {
        tell_left(&state);
        return Ok(());
    }
    let what = format!("{} is unmounted, but process {} has not ended", mountpoint.display(), state.pid);
    let log = state.log.map(|log| format!("see its log, {}; ", log.display())).unwrap_or_default();
    let next = match server {
        Server::Seen(_) => format!("`kill {}` ends it", state.pid),
        Server::Unseen(_) => "it is in another container, which has that number for it".to_owned(),
    };
    Err(Fault::new(Exit::Unavailable, what, format!("{log}{next}")).into())
}

/// The process that serves a mount, while it lives.
enum Server {
    Seen(Process),
    /// It is in another PID namespace, of which this one has the run directory.
    Unseen(Claimed),
}

impl Server {
    /// The one that wrote `state`.
    fn of(state: &RunState, mountpoint: &Path) -> Option<Self> {
        // Held before it is looked at: it may end while the mount is tried to be taken away, and its number be a stranger's.
        let process = Process::of(state.pid);
        if state.is_alive() { Some(Self::Seen(process)) } else { Claimed::find(mountpoint).map(Self::Unseen) }
    }

    fn ask_to_end(&self) {
        // Another one ends when the last reader does.
        if let Self::Seen(process) = self {
            process.ask_to_end();
        }
    }

    fn wait_for_end(&self, limit: Duration) -> bool {
        match self {
            Self::Seen(process) => process.wait_for_end(limit),
            Self::Unseen(claimed) => claimed.wait_for_end(limit),
        }
    }
}

/// What the unit of a mount runs when its process has ended.
fn after_stop(mountpoint: &Path) -> anyhow::Result<()> {
    match runtime::on_one_thread(take_away_unless_followed(mountpoint))? {
        AfterStop::TakenAway => output::say(&format!(
            "{} is unmounted: its process has ended, and systemd starts no other",
            mountpoint.display()
        )),
        AfterStop::Left => output::say(&format!("{} is left to the next process", mountpoint.display())),
        AfterStop::NotMounted => {}
    }
    Ok(())
}

fn unmount(mountpoint: &Path, lazy: bool) -> anyhow::Result<()> {
    let until = Instant::now() + TRIED_FOR;
    loop {
        // Looked at before: the last try begins when the time is over, also in a process that does not run for a while.
        let is_last = Instant::now() >= until;
        match mount_table::unmount(mountpoint, lazy) {
            Err(MountError::Busy(_)) if !is_last => std::thread::sleep(TRIED_EVERY),
            Err(MountError::Busy(_)) => return Err(busy(mountpoint).into()),
            unmounted => return Ok(unmounted?),
        }
    }
}

fn busy(mountpoint: &Path) -> Fault {
    let by = Holders::of(mountpoint).named();
    let next = format!("end it, or unmount all the same with `forebay umount --lazy {}`", mountpoint.display());
    Fault::new(Exit::Busy, format!("{} is in use by {by}", mountpoint.display()), next)
}

/// A mount whose process was killed: takes it away, and its run state with it.
fn clean_up(mountpoint: &Path) -> anyhow::Result<()> {
    mount_table::repair(mountpoint)?;
    // Removes the files when it is dropped.
    drop(Claim::take(mountpoint)?);
    output::say(&format!("{} was a dead mount, left by a process that was killed: cleaned up", mountpoint.display()));
    Ok(())
}

/// Says what of that which was written did not get to the origin.
fn tell_left(state: &RunState) {
    if let Some(left) = staged::left_behind(state.staging.as_deref(), &state.source, &state.mountpoint) {
        output::say(&left);
    }
}
