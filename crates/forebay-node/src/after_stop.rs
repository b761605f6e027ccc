//! A unit of systemd whose process has ended: whether another one follows, and if none does, taking away the mount that was left.
//!
//! What a process that is told to end, or is killed, leaves to systemd waits for the next one. If the start of that fails for good,
//! systemd lets go when the unit is down, and the mount is dead: programs get errors from it until somebody mounts or unmounts there.
//! So a unit runs this when its process has ended (`ExecStopPost=`). It asks systemd what follows, and where that is not known, does
//! nothing: to take a mount away that the next process would have gone on with is the worse mistake.

use std::path::Path;

use forebay_fuse::{MountError, mount_table};

use crate::state::{self, Claim, RunState};
use crate::unit_job::{self, UnitJob};

/// How a unit's process has ended, and what its unit says of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ended {
    /// `SERVICE_RESULT`, as of systemd.exec(5).
    result: String,
    /// The code that it ended with, if it was not killed.
    code: Option<i32>,
    /// `Restart=` of the unit.
    restart: String,
    /// Codes after which it is not started again, whatever that says.
    prevented: Vec<i32>,
}

/// What became of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStop {
    /// Another process is to serve it, or does; or that is not known. It stays as it is.
    Left,
    /// Nothing is mounted there.
    NotMounted,
    /// Nobody would have served it: it is unmounted, and what waited for it got errors.
    TakenAway,
}

/// Takes away the mount at `mountpoint`, if its unit, of which this process is, has ended, and its manager starts no other process.
///
/// # Errors
/// When it cannot be unmounted.
pub async fn take_away_unless_followed(mountpoint: &Path) -> anyhow::Result<AfterStop> {
    let Some(mountpoint) = mount_table::listed(mountpoint) else { return Ok(AfterStop::NotMounted) };
    let Some(job) = unit_job::own_job().await else { return Ok(AfterStop::Left) };
    let Some(properties) = unit_job::own_properties("Restart,RestartPreventExitStatus").await else {
        return Ok(AfterStop::Left);
    };
    let variable = |name: &str| std::env::var(name).ok();
    let ended = Ended::of(variable, &properties);
    if ended.is_followed(job) {
        return Ok(AfterStop::Left);
    }
    tokio::task::spawn_blocking(move || take_away_unless_served(&mountpoint)).await?
}

fn take_away_unless_served(mountpoint: &Path) -> anyhow::Result<AfterStop> {
    // One that is none of the unit serves it, as after `--replace` by hand; or is about to. It claims the mount and tells of itself
    // some moments after it serves, when the process before has let go of everything, and so after that has ended, maybe.
    let serves = state::find(mountpoint).is_some_and(|state: RunState| state.is_alive());
    if serves || mount_table::is_answered(mountpoint) {
        return Ok(AfterStop::Left);
    }
    let Ok(_claim) = Claim::take(mountpoint) else { return Ok(AfterStop::Left) };
    match mount_table::take_away(mountpoint) {
        Ok(()) => Ok(AfterStop::TakenAway),
        Err(MountError::NotMounted(_)) => Ok(AfterStop::NotMounted),
        Err(error) => Err(error.into()),
    }
}

impl Ended {
    /// As systemd tells it: in variables of whatever it runs then, and as properties of the unit.
    fn of(variable: impl Fn(&str) -> Option<String>, properties: &str) -> Self {
        let property = |name: &str| {
            let value = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().to_owned()
        };
        let is_exited = variable("EXIT_CODE").as_deref() == Some("exited");
        let code = variable("EXIT_STATUS").filter(|_| is_exited).and_then(|status| status.parse().ok());
        let prevented = property("RestartPreventExitStatus");
        let prevented = prevented.split_whitespace().filter_map(|status| status.parse().ok()).collect();
        Self { result: variable("SERVICE_RESULT").unwrap_or_default(), code, restart: property("Restart"), prevented }
    }

    /// Whether another process follows, or may.
    fn is_followed(&self, job: Option<UnitJob>) -> bool {
        match job {
            Some(UnitJob::Start) => true,
            // Whatever it ended with, it is not started again.
            Some(UnitJob::Stop) => false,
            // What that comes to is not for us to say.
            Some(UnitJob::Other) => true,
            // It is the start that has failed: systemd has it among its jobs until the unit is down.
            Some(UnitJob::Begun) | None => self.is_restarted(),
        }
    }

    /// Whether systemd starts it again by itself (systemd.service(5), `Restart=`), or may.
    fn is_restarted(&self) -> bool {
        if self.code.is_some_and(|code| self.prevented.contains(&code)) {
            return false;
        }
        match (self.restart.as_str(), self.result.as_str()) {
            ("no", _) => false,
            // Those that start it again after anything but a clean end.
            ("on-failure" | "on-abnormal" | "on-abort" | "on-watchdog", "success") => false,
            ("on-abnormal" | "on-abort" | "on-watchdog", "exit-code") => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPERTIES: &str = "Restart=on-failure\nRestartPreventExitStatus=2 3\n";

    fn ended(result: &str, exit: (&str, &str), properties: &str) -> Ended {
        let variables = [("SERVICE_RESULT", result), ("EXIT_CODE", exit.0), ("EXIT_STATUS", exit.1)];
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Ended::of(variable, properties)
    }

    #[test]
    fn a_process_that_is_started_again_has_its_mount_left_and_one_that_is_not_has_not() {
        let wrong = ended("exit-code", ("exited", "2"), PROPERTIES);
        assert_eq!((wrong.code, &*wrong.prevented), (Some(2), &[2, 3][..]));
        let killed = ended("signal", ("killed", "9"), PROPERTIES);
        assert_eq!(killed.code, None, "that is the signal's number");
        let failed = ended("exit-code", ("exited", "1"), PROPERTIES);
        let left = ended("success", ("exited", "0"), PROPERTIES);
        for (ended, followed) in [(&wrong, false), (&killed, true), (&failed, true), (&left, false)] {
            assert_eq!(ended.is_followed(None), followed, "{ended:?}");
            assert_eq!(ended.is_followed(Some(UnitJob::Begun)), followed, "{ended:?}");
            // As in a restart, before the start.
            assert!(ended.is_followed(Some(UnitJob::Start)), "{ended:?}");
            assert!(!ended.is_followed(Some(UnitJob::Stop)), "{ended:?}");
            assert!(ended.is_followed(Some(UnitJob::Other)), "{ended:?}");
        }
    }

    #[test]
    fn units_that_say_otherwise_are_believed_and_what_is_not_understood_leaves_the_mount() {
        let always = "Restart=always\nRestartPreventExitStatus=";
        assert!(ended("success", ("exited", "0"), always).is_followed(None));
        assert!(ended("exit-code", ("exited", "2"), always).is_followed(None));
        assert!(!ended("signal", ("killed", "9"), "Restart=no").is_followed(None));
        assert!(!ended("exit-code", ("exited", "1"), "Restart=on-abnormal").is_followed(None));
        assert!(ended("watchdog", ("killed", "6"), "Restart=on-abnormal").is_followed(None));
        for nonsense in ["", "Restart=", "Restart=some-day", "nonsense"] {
            assert!(ended("exit-code", ("exited", "2"), nonsense).is_followed(None), "{nonsense}");
        }
        assert!(ended("", ("", ""), PROPERTIES).is_followed(None));
    }
}
