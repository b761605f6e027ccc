//! Mounting and unmounting, by the program itself: `forebay mount-helper` goes to the background once the mount
//! answers, and `forebay umount` waits until its daemon has ended.
//!
//! A daemon has a session of its own and a log of its own, so it lives on when the driver ends. What is secret goes
//! into its environment, which its user and root alone can look at, and into no argument and no log.
//!
//! A keeper has the descriptors of a mount beyond its daemon's death (ADR 0028). The daemon finds who starts keepers in its
//! run directory: the driver has no part in serving.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::Command;
use tracing::{info, warn};

use crate::error::Refusal;
use crate::fields::VolumeId;
use crate::volume::{OF_DRIVER, Volume};

/// Shorter than the two minutes that the kubelet waits for a call.
const MOUNT_WITHIN: Duration = Duration::from_secs(110);
/// The same. `forebay umount` itself waits for a minute.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(110);
/// How long a program that took too long has to clean up.
const END_WITHIN: Duration = Duration::from_secs(10);
/// The option with which a mount is kept. What a volume says comes after it, and wins.
const SURVIVES: &str = "-ofuse.survive_crash=true";
/// The option with which a mount of workers materialises no files by itself: each would have memory of its own for them, and there is no
/// saying how many volumes a node gets. What a volume says wins here, too.
const KEEPS_NO_FILES: &str = "-oclient.local.size=0";
/// How much of what a program said becomes a message, in bytes.
const SAID: usize = 2048;

/// Exit codes of the program (docs/EXIT_CODES.md).
mod code {
    pub(super) const USAGE: i32 = 2;
    pub(super) const NOT_FOUND: i32 = 3;
    pub(super) const UNAVAILABLE: i32 = 4;
    pub(super) const PERMISSION: i32 = 5;
    pub(super) const BUSY: i32 = 6;
}

/// Which daemon of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// That of a volume of the node, which pods have binds of.
    Staged,
    /// That of a volume of one pod alone.
    Inline,
}

/// Daemons, one for each mount.
#[derive(Clone, Debug)]
pub(crate) struct Daemons {
    program: PathBuf,
    logs: PathBuf,
    keepers: Option<PathBuf>,
}

impl Daemons {
    /// Run by `program`, with a log for each volume in `logs`, which is made, for its owner alone. Their mounts are kept by keepers of
    /// the host that listens at `keepers`, if there is one.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub(crate) fn new(program: PathBuf, logs: PathBuf, keepers: Option<PathBuf>) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&logs)?;
        Ok(Self { program, logs, keepers })
    }

    /// Mounts a volume at a directory, and returns once it answers. A dead mount that is there goes.
    ///
    /// # Errors
    /// What the program says.
    pub(crate) async fn mount(&self, volume: &Volume, id: &VolumeId, kind: Kind, at: &Path) -> Result<(), Refusal> {
        let log = self.log(id, kind);
        let mut command = Command::new(&self.program);
        command.arg("mount-helper").arg(format!("-olog.file={}", log.display()));
        if let Some(keepers) = &self.keepers {
            // Without it the daemon would start a keeper of its own, which ends with this container.
            if !keepers.exists() {
                return Err(Refusal::unavailable(
                    "no pod keeps mounts on this node: see the pods of the keeper's DaemonSet",
                ));
            }
            command.arg(SURVIVES);
        }
        if volume.is_of_workers() {
            command.arg(KEEPS_NO_FILES);
        }
        for option in volume.options() {
            command.arg(format!("-o{option}"));
        }
        // What may begin with a dash.
        command.arg("--").arg(volume.source()).arg(at);
        for (name, _) in std::env::vars_os() {
            if !name.to_str().is_none_or(|name| volume.environment.goes_with(name)) {
                command.env_remove(name);
            }
        }
        command.envs(volume.environment.variables());
        match volume.environment.is_empty() {
            true => command.env(OF_DRIVER, "1"),
            false => command.env_remove(OF_DRIVER),
        };
        let ended = run(command, MOUNT_WITHIN, "mounting").await?;
        let said = said(&ended);
        match ended.status.code() {
            Some(0) => {
                info!(volume = id.as_str(), at = %at.display(), source = volume.source(), "mounted");
                Ok(())
            }
            status => {
                warn!(volume = id.as_str(), at = %at.display(), ?status, said, "not mounted");
                Err(refusal(status, format!("cannot mount {}: {said}", volume.source())))
            }
        }
    }

    /// Unmounts what is mounted at a directory, dead or alive, and returns once its daemon has ended.
    ///
    /// # Errors
    /// When it is in use, or its daemon does not end.
    pub(crate) async fn unmount(&self, id: &VolumeId, kind: Kind, at: &Path) -> Result<(), Refusal> {
        let mut command = Command::new(&self.program);
        command.arg("umount").arg("--").arg(at);
        let ended = run(command, UNMOUNT_WITHIN, "unmounting").await?;
        let said = said(&ended);
        match ended.status.code() {
            Some(0 | code::NOT_FOUND) => {
                info!(volume = id.as_str(), at = %at.display(), said, "unmounted");
                self.forget(id, kind);
                Ok(())
            }
            status => Err(refusal(status, format!("cannot unmount {}: {said}", at.display()))),
        }
    }

    /// Nothing of the volume is mounted, and nobody wants it to be: removes the log of the daemon, also of one that never came to serve.
    /// There would be one for each volume that ever was, and nothing in it of one that ended well.
    pub(crate) fn forget(&self, id: &VolumeId, kind: Kind) {
        let _ = std::fs::remove_file(self.log(id, kind));
    }

    fn log(&self, id: &VolumeId, kind: Kind) -> PathBuf {
        let name = id.file_name();
        self.logs.join(match kind {
            Kind::Staged => format!("{name}.log"),
            Kind::Inline => format!("pod-{name}.log"),
        })
    }
}

/// Runs a program to its end, with nothing of ours but our environment.
async fn run(mut command: Command, limit: Duration, doing: &str) -> Result<Output, Refusal> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir("/").process_group(0);
    let child = command.spawn().map_err(|error| Refusal::internal(format!("cannot run the program: {error}")))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut ending = std::pin::pin!(child.wait_with_output());
    let waiting = |error: io::Error| Refusal::internal(format!("cannot wait for the program: {error}"));
    if let Ok(ended) = tokio::time::timeout(limit, &mut ending).await {
        return ended.map_err(waiting);
    }
    // The process has not been waited for, so its number is no other one's.
    for signal in [Signal::TERM, Signal::KILL] {
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, signal);
        }
        if tokio::time::timeout(END_WITHIN, &mut ending).await.is_ok() {
            break;
        }
    }
    Err(Refusal::late(format!("{doing} took longer than {} s: see the log of the volume", limit.as_secs())))
}

/// The end of what a program said to people.
fn said(ended: &Output) -> String {
    let said = &ended.stderr[ended.stderr.len().saturating_sub(SAID)..];
    String::from_utf8_lossy(said).trim().to_owned()
}

fn refusal(status: Option<i32>, what: String) -> Refusal {
    match status {
        Some(code::USAGE) => Refusal::invalid(what),
        Some(code::NOT_FOUND) => Refusal::not_found(what),
        Some(code::UNAVAILABLE) => Refusal::unavailable(what),
        Some(code::PERMISSION) => Refusal::denied(what),
        Some(code::BUSY) => Refusal::precondition(what),
        _ => Refusal::internal(what),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::fields::Access;
    use tonic::Code;

    /// A program that does what a shell is told to.
    fn daemons(directory: &Path, script: &str) -> Daemons {
        let [text, program] = ["text", "forebay"].map(|name| directory.join(name));
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // By another process: what this one has open for writing, a child of another test has for a moment, too, and
        // then it cannot be run.
        let installed = std::process::Command::new("install").args(["-m", "755"]).args([&text, &program]).status();
        assert!(installed.unwrap().success());
        Daemons::new(program, directory.join("logs"), None).unwrap()
    }

    fn volume(secrets: &[(&str, &str)]) -> Volume {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let attributes: HashMap<String, String> = map(&[("source", "s3://b"), ("options", "metadata.ttl=5m")]);
        let access = Access { read_only: true, single_writer: false, group: None, flags: Vec::new() };
        Volume::persistent(&attributes, &map(secrets), &access).unwrap()
    }

    fn id() -> VolumeId {
        VolumeId::of("volume").unwrap()
    }

    #[tokio::test]
    async fn a_secret_is_in_the_environment_of_the_daemon_and_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let script = format!("printf '%s\\n' \"$@\" \"$AWS_SECRET_ACCESS_KEY\" > {}", told.display());
        let daemons = daemons(directory.path(), &script);
        let volume = volume(&[("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        daemons.mount(&volume, &id(), Kind::Staged, Path::new("/k/staging")).await.unwrap();
        let told = std::fs::read_to_string(told).unwrap();
        let log = format!("-olog.file={}", daemons.log(&id(), Kind::Staged).display());
        let lines: Vec<&str> = told.lines().collect();
        let expected = [
            "mount-helper",
            &log,
            "-oallow_other",
            "-oro",
            "-ometadata.ttl=5m",
            "--",
            "s3://b",
            "/k/staging",
            "hunter2",
        ];
        assert_eq!(lines, expected);
        assert_eq!(std::fs::metadata(directory.path().join("logs")).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[tokio::test]
    async fn who_has_the_drivers_credentials_is_known_to_whoever_starts_it_again() {
        for (secrets, own) in [(&[][..], "1"), (&[("AWS_ACCESS_KEY_ID", "me")][..], "")] {
            let directory = tempfile::tempdir().unwrap();
            let told = directory.path().join("told");
            let daemons = daemons(directory.path(), &format!("printf %s \"${OF_DRIVER}\" > {}", told.display()));
            daemons.mount(&volume(secrets), &id(), Kind::Inline, Path::new("/k")).await.unwrap();
            assert_eq!(std::fs::read_to_string(told).unwrap(), own);
        }
    }

    #[tokio::test]
    async fn a_volume_that_was_never_mounted_leaves_no_log() {
        let directory = tempfile::tempdir().unwrap();
        let script = "for word; do case $word in -olog.file=*) echo why > \"${word#-olog.file=}\";; esac; done; exit 4";
        let daemons = daemons(directory.path(), script);
        for kind in [Kind::Staged, Kind::Inline] {
            daemons.mount(&volume(&[]), &id(), kind, Path::new("/k")).await.unwrap_err();
        }
        let logs = || std::fs::read_dir(directory.path().join("logs")).unwrap().count();
        assert_eq!(logs(), 2, "each has its own");
        daemons.forget(&id(), Kind::Inline);
        daemons.forget(&id(), Kind::Inline);
        assert!(logs() == 1 && daemons.log(&id(), Kind::Staged).exists());
        daemons.forget(&id(), Kind::Staged);
        assert_eq!(logs(), 0);
    }

    #[tokio::test]
    async fn a_mount_is_kept_where_there_are_keepers_unless_the_volume_says_no() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let script = format!("printf '%s\\n' \"$@\" > {}", told.display());
        let keepers = directory.path().join("keepers.sock");
        let daemons = Daemons { keepers: Some(keepers.clone()), ..daemons(directory.path(), &script) };
        let staging = Path::new("/k/staging");
        let refusal = daemons.mount(&volume(&[]), &id(), Kind::Staged, staging).await.unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable);
        std::fs::write(keepers, "").unwrap();
        daemons.mount(&volume(&[]), &id(), Kind::Staged, staging).await.unwrap();
        let told = std::fs::read_to_string(told).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[2], SURVIVES);
        assert!(lines[3..].contains(&"-ometadata.ttl=5m"), "{lines:?}");
    }

    #[tokio::test]
    async fn what_the_program_says_is_the_answer() {
        for (exit, code) in [
            (1, Code::Internal),
            (2, Code::InvalidArgument),
            (3, Code::NotFound),
            (4, Code::Unavailable),
            (5, Code::PermissionDenied),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let daemons = daemons(directory.path(), &format!("echo 'forebay: why' >&2; exit {exit}"));
            let refusal = daemons.mount(&volume(&[]), &id(), Kind::Staged, Path::new("/k")).await.unwrap_err();
            assert_eq!(refusal.code(), code, "{exit}");
            assert!(refusal.to_string().contains("forebay: why"), "{refusal}");
        }
    }

    #[tokio::test]
    async fn what_is_not_mounted_is_unmounted_and_what_is_in_use_is_not() {
        for (exit, code) in [(0, None), (3, None), (6, Some(Code::FailedPrecondition))] {
            let directory = tempfile::tempdir().unwrap();
            let daemons = daemons(directory.path(), &format!("exit {exit}"));
            let ended = daemons.unmount(&id(), Kind::Staged, Path::new("/k")).await;
            assert_eq!(ended.map_err(|refusal| refusal.code()).err(), code, "{exit}");
        }
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let refusal = run(command, Duration::from_millis(1), "mounting").await.unwrap_err();
        assert_eq!(refusal.code(), Code::DeadlineExceeded);
    }
}
