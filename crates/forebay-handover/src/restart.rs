//! How a daemon is started again.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

/// Set in the environment of what a keeper starts.
const MARK: &str = "FOREBAY_STARTED_BY_KEEPER";

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
    fn what_a_manager_tells_one_process_is_not_told_to_the_next() {
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "FDSTORE"] {
            assert!(is_of_the_manager(OsStr::new(name)));
        }
        assert!(!is_of_the_manager(OsStr::new("AWS_REGION")));
    }
}
