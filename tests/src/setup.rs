//! How a worker or a mount is to be started.

use std::path::Path;
use std::process::Command;

use forebay_types::Role;

use crate::{Bucket, forebay_as};

/// Options, and the environment that they are started in.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) arguments: Vec<String>,
}

impl Setup {
    /// For a bucket: with its endpoint and keys, and 128 MiB of memory for blocks.
    #[must_use]
    pub fn of(bucket: &Bucket) -> Self {
        Self { environment: bucket.environment(), arguments: Vec::new() }.memory("128MiB")
    }

    /// Without any origin: for a mount of workers, which needs no credentials. All that is read reaches it, as most tests of such
    /// mounts are about what it and its workers do then.
    #[must_use]
    pub fn without_origin() -> Self {
        Self::of_user().served_by_the_mount()
    }

    /// The same as a user has it: the kernel may read by itself what is read twice.
    #[must_use]
    pub fn of_user() -> Self {
        Self::default().option("client.memory.size=64MiB")
    }

    /// No file is materialised: all that is read reaches the mount, and its workers.
    #[must_use]
    pub fn served_by_the_mount(self) -> Self {
        self.option("client.local.size=0")
    }

    /// Adds a flag with a value.
    #[must_use]
    pub fn argument(mut self, flag: &str, value: &str) -> Self {
        self.arguments.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a flag that has none.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.arguments.push(flag.to_owned());
        self
    }

    /// Adds a setting, `key=value`.
    #[must_use]
    pub fn option(self, setting: &str) -> Self {
        self.argument("-o", setting)
    }

    /// Adds settings.
    #[must_use]
    pub fn options(self, settings: &[&str]) -> Self {
        settings.iter().fold(self, |setup, setting| setup.option(setting))
    }

    /// Sets the memory for blocks.
    #[must_use]
    pub fn memory(self, size: &str) -> Self {
        self.option(&format!("worker.memory.size={size}"))
    }

    /// Gives it a disk: a directory, and how much it may hold.
    #[must_use]
    pub fn disk(self, directory: &Path, size: &str) -> Self {
        self.option(&format!("worker.disks={}:{size}", directory.display()))
    }

    /// `forebay` in its environment, as a process of this role. Its name is `worker.name`, if that is set, and else that of
    /// the role.
    pub(crate) fn forebay(&self, role: Role) -> Command {
        forebay_as(role, self.setting("worker.name").unwrap_or(role.as_str()), &self.environment)
    }

    /// Whether this flag is among its arguments.
    pub(crate) fn has_flag(&self, flag: &str) -> bool {
        self.arguments.iter().any(|argument| argument == flag)
    }

    /// What `key` is set to; the last one counts.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        self.arguments.iter().rev().find_map(|argument| argument.strip_prefix(key)?.strip_prefix('='))
    }

    /// Variables of the environment with which a command proves who it is as what is started so does.
    pub(crate) fn identity(&self) -> Vec<(String, String)> {
        let settings = self.arguments.iter().filter_map(|argument| argument.split_once('='));
        let of_security = settings.filter(|(key, _)| key.starts_with("security."));
        let variable = |key: &str| format!("FOREBAY_{}", key.replace('.', "_").to_uppercase());
        of_security.map(|(key, value)| (variable(key), value.to_owned())).collect()
    }

    /// Changes a variable of the environment.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.retain(|(known, _)| *known != name);
        self.environment.push((name, value.to_owned()));
        self
    }
}
