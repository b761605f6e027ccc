//! What systemd is about to do with the unit of this process: a process that is told to end hears only that.
//!
//! `systemctl restart` is one job of the unit, which is a `restart` while the process ends, and then a `start`. A stop, also that of a
//! system that goes down, is a `stop`. A signal that somebody sends by hand has none. Asked is `systemctl`, as a child with a deadline.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;
use tracing::{debug, warn};

/// It is there where systemd is process 1: see sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
/// Where the kernel says in which control group this process is, and so in which unit.
const CGROUP: &str = "/proc/self/cgroup";
/// How long systemctl may take: it waits for a systemd that is busy.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// How often systemctl is run, where a signal ends it: a systemd that ends a unit signals all of its processes, and this one may be among
/// them, as it began just then.
const ATTEMPTS: usize = 3;

/// A job that a unit has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitJob {
    /// Its next process is started.
    Start,
    /// A process of it is being started: of one that ends, the start that it was.
    Begun,
    /// It is stopped.
    Stop,
    /// Something else.
    Other,
}

/// The unit of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnUnit {
    name: String,
    /// Its manager is a user's.
    is_of_user: bool,
}

/// The job of the unit of this process. `None`: it has none; this process is of no service; or systemd does not say.
pub(crate) async fn ask() -> Option<UnitJob> {
    // To a process that is told to end, a start is a start.
    own_job().await.flatten().map(|job| if job == UnitJob::Begun { UnitJob::Start } else { job })
}

/// The same, and whether a start is this process's own; `None` only where it is not known.
pub(crate) async fn own_job() -> Option<Option<UnitJob>> {
    let unit = own_unit()?;
    // Names are patterns to it, and have backslashes: so it lists all.
    let listed = systemctl(&unit, &["list-jobs", "--no-legend", "--no-pager", "--plain", "--full"]).await?;
    let job = job_of(&unit.name, &listed);
    debug!(unit = unit.name, ?job, "what systemd is about to do");
    Some(job)
}

/// Properties of the unit of this process, as lines of `NAME=VALUE`; `None` where they are not known.
pub(crate) async fn own_properties(names: &str) -> Option<String> {
    let unit = own_unit()?;
    // Only patterns have it read a backslash as anything else.
    let property = format!("--property={names}");
    systemctl(&unit, &["show", "--no-pager", &property, "--", &unit.name]).await
}

fn own_unit() -> Option<OwnUnit> {
    if !Path::new(BOOTED).is_dir() {
        return None;
    }
    unit_of(&std::fs::read_to_string(CGROUP).ok()?)
}

/// What systemctl prints; `None` if it does not work.
async fn systemctl(unit: &OwnUnit, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("systemctl");
    if unit.is_of_user {
        command.arg("--user");
    }
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    match timeout(ANSWERED_WITHIN, answer_of(&mut command)).await {
        Ok(Ok(output)) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            warn!(status = %output.status, %said, "systemctl does not say what systemd is about to do");
            None
        }
        Ok(Err(error)) => {
            warn!(%error, "systemctl cannot be run: it is not known what systemd is about to do");
            None
        }
        Err(_) => {
            warn!(within = ?ANSWERED_WITHIN, "systemctl gave no answer: it is not known what systemd is about to do");
            None
        }
    }
}

/// What `command` says, which is run again if a signal ended it.
async fn answer_of(command: &mut Command) -> io::Result<Output> {
    let mut output = command.output().await?;
    for _ in 1..ATTEMPTS {
        if output.status.signal().is_none() {
            break;
        }
        output = command.output().await?;
    }
    Ok(output)
}

/// The unit that a process with this control group is of, if it is a service's.
fn unit_of(cgroup: &str) -> Option<OwnUnit> {
    // Of version 2, or the tree that systemd has of version 1: `NUMBER:CONTROLLERS:PATH`.
    let mut paths = cgroup.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        (controllers.is_empty() || controllers == "name=systemd").then_some(path)
    });
    paths.find_map(service_in)
}

/// The innermost service of a path of control groups.
fn service_in(path: &str) -> Option<OwnUnit> {
    let groups: Vec<&str> = path.split('/').collect();
    let at = groups.iter().rposition(|group| group.ends_with(".service"))?;
    let (outer, group) = (groups.get(..at)?, groups.get(at)?);
    let is_of_user = outer.iter().any(|group| group.starts_with("user@") && group.ends_with(".service"));
    // systemd puts an underscore before names that the kernel has for its own.
    let name = group.strip_prefix('_').unwrap_or(group).to_owned();
    Some(OwnUnit { name, is_of_user })
}

/// The job of `unit` among those that `systemctl list-jobs` lists: number, unit, type and state.
fn job_of(unit: &str, listed: &str) -> Option<UnitJob> {
    listed.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        fields.next()?.parse::<u32>().ok()?;
        if fields.next()? != unit {
            return None;
        }
        // A restart runs while its process is stopped, and then waits to be a start; a start runs while its process starts.
        Some(match (fields.next()?, fields.next()) {
            ("start", Some("running")) => UnitJob::Begun,
            ("start" | "restart" | "try-restart" | "reload-or-start", _) => UnitJob::Start,
            ("stop", _) => UnitJob::Stop,
            _ => UnitJob::Other,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_a_signal_ends_is_run_again_and_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(directory.path());
            command
        };
        let output =
            answer_of(&mut run("[ -e second ] && echo said && exit; : > second; kill -TERM $$")).await.unwrap();
        assert_eq!(output.stdout, b"said\n");
        let output = answer_of(&mut run("echo >> times; kill -TERM $$")).await.unwrap();
        assert!(output.status.signal().is_some());
        assert_eq!(std::fs::read(directory.path().join("times")).unwrap().len(), ATTEMPTS);
    }

    #[test]
    fn the_unit_is_the_innermost_service_of_the_control_group() {
        let unit = |cgroup: &str| unit_of(cgroup).map(|unit| (unit.name, unit.is_of_user));
        let of_system = |name: &str| Some((name.to_owned(), false));
        let slice = "system.slice/system-forebay\\x2dmount.slice";
        let name = "forebay-mount@mnt-my\\x2ddata.service";
        assert_eq!(unit(&format!("0::/{slice}/{name}\n")), of_system(name));
        assert_eq!(unit(&format!("0::/{slice}/{name}/below\n")), of_system(name), "a group of its own below");
        let first = format!("5:cpu,cpuacct:/other.service\n1:name=systemd:/{slice}/{name}\n0::/\n");
        assert_eq!(unit(&first), of_system(name), "version 1");
        assert_eq!(unit("0::/system.slice/_cpu.service\n"), of_system("cpu.service"));
        let of_user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/forebay.service\n";
        assert_eq!(unit(of_user), Some(("forebay.service".to_owned(), true)));
        for none in
            ["", "0::/\n", "0::/user.slice/user-0.slice/session-3.scope\n", "nonsense", "0::/kubepods.slice/pod7/c\n"]
        {
            assert_eq!(unit(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_restart_is_told_from_a_stop_and_from_jobs_of_others() {
        let listed = "1404 forebay-mount@mnt-data.service restart running\n1405 forebay-worker.service       stop    waiting\n \
                      77 other.service nop waiting\n78 queued.service start waiting\n79 failing.service start running\n";
        let job = |unit: &str| job_of(unit, listed);
        assert_eq!(job("forebay-mount@mnt-data.service"), Some(UnitJob::Start));
        assert_eq!(job("queued.service"), Some(UnitJob::Start), "somebody starts it again that was to be stopped");
        assert_eq!(job("failing.service"), Some(UnitJob::Begun), "that is the start that comes to nothing");
        assert_eq!(job("forebay-worker.service"), Some(UnitJob::Stop));
        assert_eq!(job("other.service"), Some(UnitJob::Other));
        assert_eq!(job("forebay-mount@mnt.service"), None);
        for none in ["", "No jobs running.\n", "x forebay-worker.service stop\n", "1 forebay-worker.service\n"] {
            assert_eq!(job_of("forebay-worker.service", none), None, "{none:?}");
        }
    }
}
