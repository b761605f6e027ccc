//! How a daemon is started again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

/// Set in the environment of what a keeper starts.
const MARK: &str = "FOREBAY_STARTED_BY_KEEPER";

/// What the kernel puts behind the name of a program whose file is gone.
const REPLACED: &[u8] = b" (deleted)";

/// What starts a process once more as it was started.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    program: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    directory: Vec<u8>,
    log: Option<Vec<u8>>,
}

impl Restart {
    /// This process, with its arguments, its environment and the directory that it is in now. What the next one writes to its standard
    /// error goes to `log`.
    ///
    /// # Errors
    /// When the system does not say which program this is, or where it runs.
    pub fn of_this_process(log: Option<&Path>) -> io::Result<Self> {
        let bytes = |text: OsString| text.into_vec();
        let environment = std::env::vars_os().filter(|(name, _)| !is_of_the_manager(name));
        Ok(Self {
            program: bytes(std::env::current_exe()?.into()),
            arguments: std::env::args_os().skip(1).map(bytes).collect(),
            environment: environment.map(|(name, value)| (bytes(name), bytes(value))).collect(),
            directory: bytes(std::env::current_dir()?.into()),
            log: log.map(|log| log.as_os_str().as_bytes().to_vec()),
        })
    }

    /// Another process, as the kernel tells of it: one of this PID namespace, and of a user whom we may look at. What the next one writes
    /// to its standard error goes where that one's does, if that is a file.
    ///
    /// # Errors
    /// When there is no such process, or we may not look at it.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let at = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let link = |name: &str| std::fs::read_link(at(name)).map(|path| path.into_os_string().into_vec());
        let mut words = words(&std::fs::read(at("cmdline"))?).into_iter();
        if words.next().is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        let variables = self::words(&std::fs::read(at("environ"))?).into_iter().filter_map(|variable| {
            let equals = variable.iter().position(|byte| *byte == b'=')?;
            let (name, value) = variable.split_at(equals);
            // `value` begins with the sign.
            Some((name.to_vec(), value.get(1..)?.to_vec()))
        });
        let mut program = link("exe")?;
        // Another one is in its place by now, as after an upgrade: that one is meant.
        if program.ends_with(REPLACED) {
            program.truncate(program.len() - REPLACED.len());
        }
        let log = link("fd/2").ok().filter(|log| path(log).is_file());
        Ok(Self {
            program,
            arguments: words.collect(),
            environment: variables.filter(|(name, _)| !is_of_the_manager(OsStr::from_bytes(name))).collect(),
            directory: link("cwd")?,
            log,
        })
    }

    /// The same with `argument` behind the name of the command, unless it is there.
    #[must_use]
    pub fn with_argument(mut self, argument: &str) -> Self {
        if !self.arguments.iter().any(|there| there == argument.as_bytes()) {
            self.arguments.insert(self.arguments.len().min(1), argument.as_bytes().to_vec());
        }
        self
    }

    /// The same with these variables in the place of those that `is_meant` names.
    #[must_use]
    pub fn with_variables<'a>(
        self,
        is_meant: impl Fn(&str) -> bool,
        variables: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        self.with(is_meant, variables.map(|(name, value)| (name.into(), value.into())))
    }

    /// Whether those of its variables that `is_meant` names are these.
    #[must_use]
    pub fn has_variables<'a>(
        &self,
        is_meant: impl Fn(&str) -> bool,
        variables: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let meant = self.environment.iter().filter(|(name, _)| std::str::from_utf8(name).is_ok_and(&is_meant));
        let has: BTreeSet<(&[u8], &[u8])> = meant.map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        let wanted: BTreeSet<(&[u8], &[u8])> =
            variables.map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        has == wanted
    }

    /// Whether this process was started so, by a keeper.
    #[must_use]
    pub fn is_this_process() -> bool {
        std::env::var_os(MARK).is_some()
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        path(&self.program)
    }

    /// Whether the variable `name` is set for it.
    #[must_use]
    pub fn has_variable(&self, name: &str) -> bool {
        self.environment.iter().any(|(set, _)| set == name.as_bytes())
    }

    /// The same with this process's variables in the place of those that `is_own` names, also where it had none.
    #[must_use]
    pub fn with_own(self, is_own: impl Fn(&str) -> bool) -> Self {
        self.with(is_own, std::env::vars_os())
    }

    fn with(mut self, is_own: impl Fn(&str) -> bool, own: impl Iterator<Item = (OsString, OsString)>) -> Self {
        self.environment.retain(|(name, _)| !std::str::from_utf8(name).is_ok_and(&is_own));
        let own = own.filter(|(name, _)| name.to_str().is_some_and(&is_own));
        self.environment.extend(own.map(|(name, value)| (name.into_vec(), value.into_vec())));
        self
    }

    /// A program without arguments.
    #[cfg(test)]
    pub(crate) fn of_program(program: &str) -> Self {
        let program = program.as_bytes().to_vec();
        Self { program, arguments: Vec::new(), environment: Vec::new(), directory: b"/".to_vec(), log: None }
    }

    /// What a shell is told to do.
    #[cfg(test)]
    pub(crate) fn of_shell(script: &str) -> Self {
        Self { arguments: vec![b"-c".to_vec(), script.as_bytes().to_vec()], ..Self::of_program("/bin/sh") }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When its log cannot be opened, or the program not be started.
    pub(crate) fn start(&self) -> io::Result<Child> {
        let log = self.log.as_ref().map(|log| OpenOptions::new().create(true).append(true).mode(0o600).open(path(log)));
        let text = |bytes: &Vec<u8>| OsStr::from_bytes(bytes).to_owned();
        Command::new(path(&self.program))
            .args(self.arguments.iter().map(text))
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (text(name), text(value))))
            .env(MARK, "1")
            .current_dir(path(&self.directory))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.transpose()?.map_or_else(Stdio::inherit, Stdio::from))
            .spawn()
    }
}

impl fmt::Debug for Restart {
    /// Without the environment, in which secrets may be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restart").field("program", &self.program()).finish_non_exhaustive()
    }
}

/// What ends with a NUL each, as the kernel tells of arguments and variables.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    match text.strip_suffix(&[0]).unwrap_or(text) {
        [] => Vec::new(),
        text => text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Whether a service manager set it, for one process alone.
fn is_of_the_manager(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == b"NOTIFY_SOCKET" || name == b"FDSTORE" || name.starts_with(b"LISTEN_") || name.starts_with(b"WATCHDOG_")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_process_is_started_as_it_was_and_its_log_is_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut restart = Restart::of_this_process(Some(&log)).unwrap();
        assert_eq!(restart.program(), std::env::current_exe().unwrap());
        restart.program = b"/bin/sh".to_vec();
        restart.arguments = [&b"-c"[..], b"echo $0 $A $(pwd) >&2; exit 7", b"zero"].map(<[u8]>::to_vec).to_vec();
        restart.environment = vec![(b"A".to_vec(), b"a".to_vec())];
        restart.directory = b"/".to_vec();
        for _ in 0..2 {
            assert_eq!(restart.start().unwrap().wait().unwrap().code(), Some(7));
        }
        let mut text = String::new();
        std::fs::File::open(&log).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "zero a /\nzero a /\n");
        assert!(!format!("{restart:?}").contains("environment"));
    }

    #[test]
    fn who_starts_it_may_have_other_credentials_by_now() {
        let variable = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let before =
            vec![variable("AWS_ACCESS_KEY_ID", "old"), variable("AWS_PROFILE", "gone"), variable("PATH", "/bin")];
        let restart = Restart { environment: before, ..Restart::of_program("/bin/true") };
        let own: [(OsString, OsString); 2] =
            [("AWS_ACCESS_KEY_ID", "new"), ("PATH", "/other")].map(|(name, value)| (name.into(), value.into()));
        let restart = restart.with(|name| name.starts_with("AWS_"), own.into_iter());
        assert_eq!(restart.environment, [variable("PATH", "/bin"), variable("AWS_ACCESS_KEY_ID", "new")]);
        assert!(restart.has_variable("PATH") && !restart.has_variable("AWS_PROFILE"));
    }

    #[test]
    fn another_process_is_known_as_the_kernel_tells_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let started = Restart {
            // What runs has a number, says that it does, and waits: of a program that the kernel still begins there are no arguments.
            arguments: [&b"-c"[..], b"echo runs; read wait", b"", b"last"].map(<[u8]>::to_vec).to_vec(),
            environment: vec![(b"A".to_vec(), b"a=b".to_vec()), (b"EMPTY".to_vec(), Vec::new())],
            ..Restart::of_program("/bin/sh")
        };
        let mut child = Command::new("/bin/sh")
            .args(started.arguments.iter().map(|argument| OsStr::from_bytes(argument)))
            .env_clear()
            .envs([("A", "a=b"), ("EMPTY", ""), ("NOTIFY_SOCKET", "/run/notify")])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut runs = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut runs).unwrap();
        let found = Restart::of_process(child.id()).unwrap();
        assert_eq!((&found.arguments, &found.environment), (&started.arguments, &started.environment));
        assert_eq!((found.directory.as_slice(), found.log.as_deref()), (&b"/"[..], Some(log.as_os_str().as_bytes())));
        assert!(found.program().is_file());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(Restart::of_process(child.id()).is_err());
    }

    #[test]
    fn who_takes_over_is_told_so_once_and_may_have_other_credentials() {
        let restart = Restart::of_shell("exit").with_argument("--replace").with_argument("--replace");
        assert_eq!(restart.arguments, [&b"-c"[..], b"--replace", b"exit"].map(<[u8]>::to_vec));
        let is_key = |name: &str| name.starts_with("AWS_");
        let keys = [("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
        assert!(!restart.has_variables(is_key, keys.into_iter()));
        let restart = restart.with_variables(is_key, keys.into_iter());
        assert!(restart.has_variables(is_key, keys.into_iter().rev()));
        assert!(!restart.has_variables(is_key, keys.into_iter().take(1)));
        assert!(!restart.has_variables(is_key, [("AWS_ACCESS_KEY_ID", "you"), keys[1]].into_iter()));
    }

    #[test]
    fn what_a_manager_tells_one_process_is_not_told_to_the_next() {
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "FDSTORE"] {
            assert!(is_of_the_manager(OsStr::new(name)));
        }
        assert!(!is_of_the_manager(OsStr::new("AWS_REGION")));
    }
}
