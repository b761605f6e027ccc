//! The options of `mount -o`: what each stands for on a command line of ours.

use std::path::PathBuf;

use crate::exit::{Exit, Fault};

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An origin, by `forebay up`.
    Origin,
    /// What workers serve, by `forebay mount`.
    Workers,
}

/// The options of one mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Flags and settings of the command, in the order of the options.
    pub(super) arguments: Vec<String>,
    /// The file with variables for its environment.
    pub(super) environment: Option<PathBuf>,
}

/// Flags of the commands, and of which one if not of both. A `-` is a `_` in an option.
const FLAGS: [(&str, Option<Kind>); 11] = [
    ("memory", None),
    ("disk", None),
    ("web", Some(Kind::Origin)),
    ("workers", Some(Kind::Workers)),
    ("etcd", Some(Kind::Workers)),
    ("cache_group", Some(Kind::Workers)),
    ("group_network", Some(Kind::Workers)),
    ("rdma_network", Some(Kind::Workers)),
    ("port", Some(Kind::Workers)),
    ("disk_serve", Some(Kind::Workers)),
    ("no_sharing", Some(Kind::Workers)),
];

/// What is for mount(8) and systemd alone; what every mount of ours does or is (`nosuid`, `nodev`); and times of
/// access, which an object store does not have. Whoever asks for `suid` or `dev` with `defaults` gets neither.
const FOR_OTHERS: [&str; 27] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "comment",
    "exec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
];

impl Options {
    /// Of what stands behind each `-o`. If `sloppy`, what is no option of ours is let be.
    ///
    /// # Errors
    /// The first option that makes no sense.
    pub(super) fn parse(lists: &[String], kind: Kind, sloppy: bool) -> Result<Self, Fault> {
        let mut options = Self::default();
        for option in lists.iter().flat_map(|list| split(list)).filter(|option| !option.is_empty()) {
            if !options.take(&option, kind)? && !sloppy {
                let next = "`forebay conf show` lists the keys that may be set, as in `worker.memory.size=8GiB`; \
                            mount.forebay(8) has the other options";
                return Err(Fault::new(Exit::Usage, format!("`{option}` is no option of a forebay mount"), next));
            }
        }
        Ok(options)
    }

    /// Takes one, if it is one.
    fn take(&mut self, option: &str, kind: Kind) -> Result<bool, Fault> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if FOR_OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            return Ok(true);
        }
        match (name, value) {
            ("ro", None) => self.arguments.push("--read-only".to_owned()),
            ("allow_other", None) => self.set("fuse.allow_other=true"),
            ("context", Some(label)) => self.set(&format!("fuse.selinux_context={label}")),
            ("config", Some(file)) => self.arguments.push(format!("--config={file}")),
            ("environment", Some(file)) => self.environment = Some(PathBuf::from(file)),
            (_, Some(_)) if name == "mounts" || name.contains('.') => self.set(option),
            _ => return self.take_flag(name, value, kind),
        }
        Ok(true)
    }

    fn set(&mut self, setting: &str) {
        self.arguments.extend(["-o".to_owned(), setting.to_owned()]);
    }

    fn take_flag(&mut self, name: &str, value: Option<&str>, kind: Kind) -> Result<bool, Fault> {
        let Some((_, of)) = FLAGS.iter().find(|(flag, _)| *flag == name) else { return Ok(false) };
        if of.is_some_and(|of| of != kind) {
            let (what, next) = match kind {
                Kind::Origin => ("an origin", "to mount what workers serve, name `forebay` as what is mounted"),
                Kind::Workers => ("what workers serve", "to mount an origin, name its URL as what is mounted"),
            };
            return Err(Fault::new(Exit::Usage, format!("`{name}` is no option of a mount of {what}"), next));
        }
        let flag = name.replace('_', "-");
        self.arguments.push(value.map_or_else(|| format!("--{flag}"), |value| format!("--{flag}={value}")));
        Ok(true)
    }
}

/// The options of a list. As for mount(8), what stands in double quotes may have commas; the quotes go.
fn split(list: &str) -> Vec<String> {
    let (mut options, mut option, mut in_quotes) = (Vec::new(), String::new(), false);
    for letter in list.chars() {
        match letter {
            '"' => in_quotes = !in_quotes,
            ',' if !in_quotes => options.push(std::mem::take(&mut option)),
            _ => option.push(letter),
        }
    }
    options.push(option);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str, kind: Kind) -> Result<Options, Fault> {
        Options::parse(&[list.to_owned()], kind, false)
    }

    #[test]
    fn commas_in_quotes_separate_nothing() {
        assert_eq!(split("ro,workers=\"a:1,b:2\",x"), ["ro", "workers=a:1,b:2", "x"]);
        assert_eq!(split(""), [""]);
        assert_eq!(split("größe=1"), ["größe=1"]);
    }

    #[test]
    fn keys_of_the_configuration_are_settings_and_the_rest_are_flags() {
        let options = parse("ro,memory=8GiB,fuse.io=uring,allow_other,environment=/etc/forebay/a.env", Kind::Origin);
        let expected = ["--read-only", "--memory=8GiB", "-o", "fuse.io=uring", "-o", "fuse.allow_other=true"];
        let options = options.unwrap();
        assert_eq!(options.arguments, expected);
        assert_eq!(options.environment, Some(PathBuf::from("/etc/forebay/a.env")));
    }

    #[test]
    fn a_label_keeps_its_commas() {
        let options = parse("ro,context=\"system_u:object_r:container_file_t:s0:c1,c2\"", Kind::Origin).unwrap();
        let label = "fuse.selinux_context=system_u:object_r:container_file_t:s0:c1,c2";
        assert_eq!(options.arguments, ["--read-only", "-o", label]);
    }

    #[test]
    fn what_mount_and_systemd_understand_is_nothing_to_us() {
        let list = "rw,nofail,_netdev,noatime,comment=a,x-systemd.automount,x-systemd.mount-timeout=30,X-mount.mkdir";
        assert_eq!(parse(list, Kind::Origin).unwrap(), Options::default());
    }

    #[test]
    fn an_option_that_is_not_kept_is_refused_by_name_unless_all_are_to_be_let_be() {
        for wrong in ["noexec", "remount", "sync", "memry=8GiB", "ro=1"] {
            assert!(parse(wrong, Kind::Origin).is_err(), "{wrong}");
        }
        assert!(parse("noexec", Kind::Origin).unwrap_err().to_string().contains("`noexec`"));
        assert_eq!(Options::parse(&["noexec".to_owned()], Kind::Origin, true).unwrap(), Options::default());
    }

    #[test]
    fn an_option_of_the_other_kind_of_mount_is_refused() {
        assert!(parse("etcd=http://etcd1:2379", Kind::Origin).unwrap_err().to_string().contains("an origin"));
        assert!(parse("web", Kind::Workers).unwrap_err().to_string().contains("what workers serve"));
    }
}
