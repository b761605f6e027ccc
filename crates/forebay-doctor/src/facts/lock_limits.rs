//! How much memory may be locked by those that will run a worker or a mount: units of systemd, and the user who called
//! `sudo`. Their limits are in files, and are none of this process's.
//!
//! A unit has the limit that its `LimitMEMLOCK` says, else `DefaultLimitMEMLOCK` of systemd; `limits.conf` is for sessions
//! (pam_limits) and does not concern units. Of what these files have besides, nothing is kept: units have environments.

use serde::{Deserialize, Serialize};

use crate::facts::memory::Limit;
use crate::root::Root;

/// Where units are, those that come first before those of the same name that come later.
const UNITS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// Lines of a unit that matter here.
const OF_UNIT: [&str; 5] = ["ExecStart", "User", "LimitMEMLOCK", "AmbientCapabilities", "CapabilityBoundingSet"];
const CAPABILITY: &str = "CAP_IPC_LOCK";

/// The limit of a unit, or of another user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLimit {
    /// Whose: `forebay-worker.service`, or `user alice`.
    pub of: String,
    /// The user; `None` is root.
    pub user: Option<String>,
    /// The limit; `None` where no file says one.
    pub limit: Option<Limit>,
    /// Whether none applies (`CAP_IPC_LOCK`).
    pub is_exempt: bool,
    /// The file that says so.
    pub file: Option<String>,
}

impl LockLimit {
    /// Those of units that start Forebay, and of `login`, the user who called sudo.
    pub(crate) fn read_all(root: &Root, login: Option<&str>) -> Vec<Self> {
        let mut found = units(root);
        found.extend(login.map(|user| of_user(root, user)));
        found
    }
}

fn units(root: &Root) -> Vec<LockLimit> {
    let mut found: Vec<LockLimit> = Vec::new();
    for folder in UNITS {
        let looked_through = root.unrecorded();
        let names = looked_through.names(folder).into_iter().filter(|name| name.ends_with(".service"));
        for name in names {
            if found.iter().any(|known| known.of == name) {
                continue;
            }
            let path = format!("{folder}/{name}");
            let starts_forebay = |text: &str| of_key(text, "ExecStart").any(starts_forebay);
            if looked_through.text(&path).is_some_and(|text| starts_forebay(&text)) {
                found.push(unit(root, name, path));
            }
        }
    }
    found
}

/// Whether the program of a command is ours, and it is no coordinator, which moves no data.
fn starts_forebay(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default().trim_start_matches(['-', '@', ':', '+', '!']);
    program.rsplit('/').next() == Some("forebay") && words.next() != Some("coordinator")
}

fn unit(root: &Root, name: String, path: String) -> LockLimit {
    let mut files = vec![path.clone()];
    for folder in UNITS.iter().rev() {
        let folder = format!("{folder}/{name}.d");
        let own = root.names(&folder).into_iter().filter(|file| file.ends_with(".conf"));
        files.extend(own.map(|file| format!("{folder}/{file}")));
    }
    let defaults = ["etc/systemd/system.conf"].map(str::to_owned).into_iter();
    let more =
        root.names("etc/systemd/system.conf.d").into_iter().map(|file| format!("etc/systemd/system.conf.d/{file}"));
    let mut unit = LockLimit { of: name, file: Some(path), ..LockLimit::default() };
    for file in defaults.chain(more) {
        let text = root.text_of(&file, |text| only(text, &["DefaultLimitMEMLOCK"])).unwrap_or_default();
        if let Some(limit) = of_key(&text, "DefaultLimitMEMLOCK").filter_map(limit).next_back() {
            (unit.limit, unit.file) = (Some(limit), Some(file));
        }
    }
    let (mut ambient, mut bounding) = (String::new(), None);
    for file in files {
        // Of a command only the program matters.
        let keep = |text: &str| {
            let kept = only(text, &OF_UNIT);
            let short = |line: &str| match line.strip_prefix("ExecStart=") {
                Some(command) => {
                    format!("ExecStart={}", command.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
                }
                None => line.to_owned(),
            };
            kept.lines().map(short).collect::<Vec<_>>().join("\n")
        };
        let text = root.text_of(&file, keep).unwrap_or_default();
        if let Some(user) = of_key(&text, "User").next_back() {
            unit.user = Some(user.to_owned()).filter(|user| !matches!(user.as_str(), "root" | "0" | ""));
        }
        if let Some(limit) = of_key(&text, "LimitMEMLOCK").filter_map(limit).next_back() {
            (unit.limit, unit.file) = (Some(limit), Some(file));
        }
        ambient.extend(of_key(&text, "AmbientCapabilities"));
        bounding = of_key(&text, "CapabilityBoundingSet").next_back().map(str::to_owned).or(bounding);
    }
    // Without `~` those that it has, with it those that it has not.
    let is_bounded = bounding.is_some_and(|set| set.contains(CAPABILITY) == set.starts_with('~'));
    unit.is_exempt = !is_bounded && (unit.user.is_none() || ambient.contains(CAPABILITY));
    unit
}

/// The lines of `text` that set one of `keys`, without white space.
fn only(text: &str, keys: &[&str]) -> String {
    let sets_one = |line: &&str| line.split_once('=').is_some_and(|(key, _)| keys.contains(&key.trim()));
    let line = |line: &str| line.split_once('=').map(|(key, value)| format!("{}={}", key.trim(), value.trim()));
    text.lines().filter(sets_one).filter_map(line).collect::<Vec<_>>().join("\n")
}

/// The values of `key` in `text`, in their order.
fn of_key<'a>(text: &'a str, key: &'a str) -> impl DoubleEndedIterator<Item = &'a str> {
    let value = move |line: &'a str| line.split_once('=').filter(|(found, _)| found.trim() == key);
    text.lines().filter_map(value).map(|(_, value)| value.trim())
}

/// `infinity`, `64M`, `8388608`, or two of them with `:` between, of which the first counts.
fn limit(text: &str) -> Option<Limit> {
    let text = text.split(':').next()?.trim();
    if matches!(text, "infinity" | "unlimited" | "-1") {
        return Some(Limit::Unlimited);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Limit::Bytes)
}

/// The limit that a session of `user` begins with (limits.conf(5)): a line for the user counts before one for a group of it, and
/// that before one for all.
fn of_user(root: &Root, user: &str) -> LockLimit {
    let has =
        |line: &str| line.split(':').nth(3).is_some_and(|members| members.split(',').any(|member| member == user));
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let own = |text: &str| {
        let found = text.lines().filter(|line| has(line)).map(|line| format!("{}:::{user}", name(line)));
        found.collect::<Vec<_>>().join("\n")
    };
    let groups = root.text_of("etc/group", own).unwrap_or_default();
    let groups: Vec<String> = groups.lines().map(name).collect();
    let folder = "etc/security/limits.d";
    let more = root.names(folder).into_iter().filter(|file| file.ends_with(".conf"));
    let files =
        std::iter::once("etc/security/limits.conf".to_owned()).chain(more.map(|file| format!("{folder}/{file}")));
    let of_memlock = |text: &str| {
        let concerns = |line: &&str| !line.trim_start().starts_with('#') && line.contains("memlock");
        text.lines().filter(concerns).collect::<Vec<_>>().join("\n")
    };
    let mut found = LockLimit { of: format!("user {user}"), user: Some(user.to_owned()), ..LockLimit::default() };
    let mut best = 0;
    for file in files {
        for line in root.text_of(&file, of_memlock).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let (Some(domain), Some("soft" | "-"), Some("memlock"), Some(value)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let rank = match domain.strip_prefix('@') {
                _ if domain == user => 3,
                Some(group) if groups.iter().any(|own| own == group) => 2,
                _ if domain == "*" => 1,
                _ => continue,
            };
            let limit = match value.parse::<u64>() {
                Ok(kibibytes) => kibibytes.checked_mul(1 << 10).map(Limit::Bytes),
                Err(_) => limit(value),
            };
            if rank >= best && limit.is_some() {
                best = rank;
                (found.limit, found.file) = (limit, Some(file.clone()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(files: &[(&str, &str)], login: Option<&str>) -> Vec<LockLimit> {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(folder.path()).recorded_to(copy.path()).unwrap();
        let found = LockLimit::read_all(&root, login);
        assert_eq!(LockLimit::read_all(&Root::new(copy.path()), login), found, "the copy says the same");
        let unit = std::fs::read_to_string(copy.path().join("etc/systemd/system/forebay-worker.service"));
        assert!(!unit.unwrap_or_default().contains("SECRET"));
        found
    }

    #[test]
    fn a_units_limit_is_its_own_or_systemds_and_capabilities_do_without() {
        let unit = "etc/systemd/system/forebay-worker.service";
        let start = "[Service]\nExecStart=/usr/bin/forebay worker --origin s3://a\nEnvironment=SECRET=1\n";
        let of = |more: &str, others: &[(&str, &str)]| {
            let text = format!("{start}{more}\n");
            let found = limits(&[&[(unit, text.as_str())][..], others].concat(), None);
            assert_eq!(found.len(), 1);
            (found[0].limit, found[0].is_exempt)
        };
        let as_user = "User=cache";
        assert_eq!(of("", &[]), (None, true), "root may");
        assert_eq!(of(as_user, &[]), (None, false));
        assert_eq!(of("User=cache\nLimitMEMLOCK=infinity", &[]), (Some(Limit::Unlimited), false));
        assert_eq!(of("User=cache\nLimitMEMLOCK=64M:1G", &[]), (Some(Limit::Bytes(64 << 20)), false));
        assert_eq!(of("User=cache\nAmbientCapabilities=CAP_SYS_ADMIN CAP_IPC_LOCK", &[]), (None, true));
        assert!(!of("CapabilityBoundingSet=CAP_NET_ADMIN", &[]).1);
        assert!(!of("CapabilityBoundingSet=~CAP_IPC_LOCK", &[]).1);
        assert!(of("CapabilityBoundingSet=CAP_IPC_LOCK", &[]).1);
        let default = ("etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=1\nDefaultLimitMEMLOCK=8M\n");
        assert_eq!(of(as_user, &[default]).0, Some(Limit::Bytes(8 << 20)));
        let more = ("etc/systemd/system/forebay-worker.service.d/limits.conf", "[Service]\nLimitMEMLOCK=1G\n");
        assert_eq!(of("User=cache\nLimitMEMLOCK=1M", &[default, more]).0, Some(Limit::Bytes(1 << 30)));
    }

    #[test]
    fn units_are_known_by_what_they_start() {
        let of = |command: &str| {
            let unit = format!("ExecStart={command}\n");
            limits(&[("etc/systemd/system/cache.service", &unit)], None).len()
        };
        assert_eq!((of("/opt/bin/forebay mount /mnt"), of("-/usr/bin/forebay up")), (1, 1));
        assert_eq!((of("/usr/bin/forebay coordinator"), of("/usr/bin/other forebay"), of("")), (0, 0, 0));
        let two = [
            ("etc/systemd/system/a.service", "ExecStart=/usr/bin/forebay up\nUser=one\n"),
            ("usr/lib/systemd/system/a.service", "ExecStart=/usr/bin/forebay up\nUser=two\n"),
        ];
        assert_eq!(limits(&two, None)[0].user.as_deref(), Some("one"), "the administrator's comes first");
    }

    #[test]
    fn a_users_limit_is_that_of_the_nearest_line() {
        let of = |text: &str| {
            let files = [("etc/security/limits.conf", text), ("etc/group", "rdma:x:9:bob,alice\nother:x:8:bob\n")];
            let found = limits(&files, Some("alice"));
            found[0].limit
        };
        assert_eq!(of("# alice - memlock unlimited\n"), None);
        assert_eq!(of("* soft memlock 65536\n"), Some(Limit::Bytes(64 << 20)));
        assert_eq!(of("alice - memlock unlimited\n* soft memlock 64\n"), Some(Limit::Unlimited));
        assert_eq!(
            of("* soft memlock 64\n@rdma soft memlock 128\n@other soft memlock 256\n"),
            Some(Limit::Bytes(128 << 10))
        );
        assert_eq!(of("* hard memlock unlimited\nbob soft memlock 1\nalice soft nofile 7\n"), None);
        assert_eq!(of("alice soft memlock -1\n"), Some(Limit::Unlimited));
    }
}
