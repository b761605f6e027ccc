//! The units of systemd that start Forebay, as `systemctl show` tells of them.

use serde::{Deserialize, Serialize};

use crate::facts::memory::Limit;
use crate::text::without_passwords;

/// The units that systemd knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Units {
    /// Each of them.
    pub units: Vec<Unit>,
    /// Why nothing is known of any.
    pub skipped: Option<String>,
}

/// A unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unit {
    /// Its name: `forebay-worker.service`.
    pub name: String,
    /// What it has the program do, without options: `worker`.
    pub command: Option<String>,
    /// Whether its file could be read: `loaded`, `bad-setting`, `error`, `masked`, …
    pub load: String,
    /// `active`, `activating`, `failed`, `inactive`, …
    pub active: String,
    /// The same more exactly: `running`, `start`, `auto-restart`, …
    pub sub: String,
    /// How it ended, where it did: `exit-code`, `signal`, `watchdog`, `oom-kill`, …
    pub result: Option<String>,
    /// Whether it is started at boot: `enabled`, `disabled`, …
    pub enabled: Option<String>,
    /// How often systemd has started it again by itself since somebody started it.
    pub restarts: u32,
    /// When it counts as started: `notify` when its process says so.
    pub kind: Option<String>,
    /// Whether systemd ends a process that does not say any more that it is alive.
    pub has_watchdog: bool,
    /// How many descriptors systemd keeps of it while no process of it runs.
    pub kept_descriptors: Option<u32>,
    /// How much its process may lock.
    pub lock_limit: Option<Limit>,
    /// What its process last said.
    pub status: Option<String>,
}

impl Units {
    /// Those that `systemctl show` told of.
    #[must_use]
    pub fn of(told: &str) -> Self {
        Self { units: Unit::read_all(told), skipped: None }
    }

    /// None, for this reason.
    #[must_use]
    pub fn skipped(reason: String) -> Self {
        Self { units: Vec::new(), skipped: Some(reason) }
    }
}

impl Unit {
    /// What systemd is to be asked for. `ExecStart` may have secrets: no more than its second word is kept.
    pub const PROPERTIES: [&str; 13] = [
        "Id",
        "ExecStart",
        "LoadState",
        "ActiveState",
        "SubState",
        "Result",
        "UnitFileState",
        "NRestarts",
        "Type",
        "WatchdogUSec",
        "FileDescriptorStoreMax",
        "LimitMEMLOCK",
        "StatusText",
    ];

    /// Each unit is some lines such as `ActiveState=active`, with an empty one between two of them.
    fn read_all(told: &str) -> Vec<Self> {
        told.split("\n\n").map(Self::read).filter(|unit| !unit.name.is_empty() && unit.load != "not-found").collect()
    }

    fn read(lines: &str) -> Self {
        let value =
            |name: &str| lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::trim);
        let word = |name: &str| value(name).filter(|value| !value.is_empty()).map(str::to_owned);
        let must = |name: &str| word(name).unwrap_or_default();
        Self {
            name: must("Id"),
            command: value("ExecStart").and_then(command),
            load: must("LoadState"),
            active: must("ActiveState"),
            sub: must("SubState"),
            result: word("Result").filter(|result| result != "success"),
            enabled: word("UnitFileState"),
            restarts: value("NRestarts").and_then(|count| count.parse().ok()).unwrap_or(0),
            kind: word("Type"),
            has_watchdog: word("WatchdogUSec").is_some_and(|time| !matches!(time.as_str(), "0" | "infinity")),
            kept_descriptors: value("FileDescriptorStoreMax").and_then(|count| count.parse().ok()),
            lock_limit: value("LimitMEMLOCK").and_then(limit),
            status: word("StatusText").map(|status| without_passwords(&status)),
        }
    }

    /// Whether it serves a mount.
    #[must_use]
    pub fn mounts(&self) -> bool {
        matches!(self.command.as_deref(), Some("mount" | "up"))
    }

    /// Whether its process says to systemd that it is ready, and alive.
    #[must_use]
    pub fn could_notify(&self) -> bool {
        matches!(self.command.as_deref(), Some("worker" | "coordinator" | "mount" | "up"))
    }
}

/// What a command such as `{ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay worker --origin s3://b ; ignore_errors=no ; … }` has
/// Forebay do.
fn command(told: &str) -> Option<String> {
    let mut words = told.split_once("argv[]=")?.1.split(" ; ").next()?.split_whitespace();
    (words.next()?.rsplit('/').next() == Some("forebay")).then_some(())?;
    words.next().filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-')).map(str::to_owned)
}

/// `infinity`, which was the largest number before systemd 229, or bytes.
fn limit(text: &str) -> Option<Limit> {
    match text {
        "infinity" | "18446744073709551615" => Some(Limit::Unlimited),
        bytes => bytes.parse().ok().map(Limit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As systemd 252 tells it.
    const TOLD: &str = "\
Type=notify
WatchdogUSec=1min
NRestarts=0
Result=success
FileDescriptorStoreMax=0
StatusText=waits for etcd at http://me:secret@etcd1:2379
ExecStart={ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay worker --origin s3://key@b ; ignore_errors=no ; start_time=[n/a] ; \
stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }
LimitMEMLOCK=infinity
Id=forebay-worker.service
LoadState=loaded
ActiveState=activating
SubState=start
UnitFileState=enabled

Type=simple
WatchdogUSec=0
NRestarts=17
Result=exit-code
FileDescriptorStoreMax=4096
StatusText=
ExecStart={ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay mount --foreground -- /mnt ; ignore_errors=no }
LimitMEMLOCK=8388608
Id=forebay-mount@mnt-data.service
LoadState=loaded
ActiveState=failed
SubState=failed
UnitFileState=

Id=forebay-gone.service
LoadState=not-found
ActiveState=inactive
";

    #[test]
    fn units_are_read_and_secrets_are_not() {
        let Units { units, skipped } = Units::of(TOLD);
        assert_eq!((units.len(), skipped), (2, None), "one that there is no file of is none");
        let [worker, mount] = &units[..] else { panic!("{units:?}") };
        let expected = Unit {
            name: "forebay-worker.service".into(),
            command: Some("worker".into()),
            load: "loaded".into(),
            active: "activating".into(),
            sub: "start".into(),
            result: None,
            enabled: Some("enabled".into()),
            restarts: 0,
            kind: Some("notify".into()),
            has_watchdog: true,
            kept_descriptors: Some(0),
            lock_limit: Some(Limit::Unlimited),
            status: Some("waits for etcd at http://etcd1:2379".into()),
        };
        assert_eq!(*worker, expected);
        assert!(mount.mounts() && !worker.mounts());
        assert_eq!((mount.restarts, mount.result.as_deref(), mount.has_watchdog), (17, Some("exit-code"), false));
        assert_eq!((mount.kept_descriptors, mount.lock_limit), (Some(4096), Some(Limit::Bytes(8 << 20))));
        assert_eq!((&mount.status, &mount.enabled), (&None, &None));
    }

    #[test]
    fn nonsense_is_no_unit_and_other_programs_have_no_command() {
        for nonsense in ["", "\n\n\n", "Id=", "Id", "=\n\n=", "LoadState=loaded"] {
            assert_eq!(Units::of(nonsense), Units::default(), "{nonsense:?}");
        }
        assert_eq!(command("{ path=/bin/sh ; argv[]=/bin/sh -c forebay ; }"), None);
        assert_eq!(command("{ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay --token=secret ; }"), None);
        assert_eq!(command("{ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay ; }"), None);
        assert_eq!(command("argv[]=/opt/forebay up"), Some("up".to_owned()));
    }
}
