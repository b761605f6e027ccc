//! Processes of Forebay that run here: what each may lock, and on which processors it may run. `sudo forebay doctor` has other
//! limits than a worker that systemd started, and what counts is the worker's.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::facts::memory::{Limit, locked};
use crate::facts::system::{capabilities, field, may_lock, numbers};
use crate::root::Root;

/// Most processes that are looked through.
const MAX_PROCESSES: usize = 10_000;
/// Most words of a command line that are kept: the command and what it is told to do, and no option of it.
const MAX_WORDS: usize = 3;

/// A process of Forebay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it was started as, without its options: `forebay worker`.
    pub command: String,
    /// The number of its user.
    pub user: Option<u32>,
    /// How much it may lock.
    pub lock_limit: Option<Limit>,
    /// Whether it may lock any amount (`CAP_IPC_LOCK`).
    pub may_lock_memory: bool,
    /// The processors that it may run on.
    pub processors: Option<BTreeSet<u32>>,
}

impl Process {
    /// Those that run, without this one.
    pub(crate) fn read_all(root: &Root) -> Vec<Self> {
        let looked_through = root.unrecorded();
        let own = root.link_name("proc/self").and_then(|pid| pid.parse::<u32>().ok());
        let numbers = looked_through.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        let is_ours = |pid: &u32| {
            Some(*pid) != own && looked_through.text(format!("proc/{pid}/comm")).as_deref() == Some("forebay")
        };
        let ours: Vec<u32> = numbers.take(MAX_PROCESSES).filter(is_ours).collect();
        ours.into_iter().filter_map(|pid| Self::read(root, pid)).collect()
    }

    fn read(root: &Root, pid: u32) -> Option<Self> {
        root.word(format!("proc/{pid}/comm"))?;
        // Options may contain what must stay private.
        let without_options = |text: &str| {
            let words = text.split('\0').take_while(|word| !word.starts_with('-')).take(MAX_WORDS);
            let words: Vec<&str> =
                words.filter(|word| !word.contains(['/', ':', '=']) || word.ends_with("forebay")).collect();
            words.join("\0")
        };
        let command = root.text_of(format!("proc/{pid}/cmdline"), without_options).unwrap_or_default();
        let command = command.split('\0').map(|word| word.rsplit('/').next().unwrap_or(word)).collect::<Vec<_>>();
        let status = root.text(format!("proc/{pid}/status")).unwrap_or_default();
        let [lock_limit, _] = locked(&root.text(format!("proc/{pid}/limits")).unwrap_or_default());
        Some(Self {
            pid,
            command: command.join(" ").trim().to_owned(),
            user: field(&status, "Uid:").and_then(|users| users.split_whitespace().nth(1)?.parse().ok()),
            lock_limit,
            may_lock_memory: may_lock(capabilities(&status)),
            processors: field(&status, "Cpus_allowed_list:").and_then(numbers),
        })
    }

    /// What it is called in a report.
    #[must_use]
    pub fn name(&self) -> String {
        let command = if self.command.is_empty() { "forebay" } else { &self.command };
        format!("{command} (process {})", self.pid)
    }

    /// Whether it has no memory to register: coordinators move no data.
    #[must_use]
    pub fn is_coordinator(&self) -> bool {
        self.command.split(' ').nth(1) == Some("coordinator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_name_and_their_options_are_left_out() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (pid, name) in [(7, "forebay"), (8, "forebay"), (9, "nginx"), (10, "forebay")] {
            write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        }
        write("proc/7/cmdline", "/usr/bin/forebay\0worker\0-o\0secret=1\0");
        write("proc/7/status", "Uid:\t998\t998\t998\t998\nCapEff:\t0000000000004000\nCpus_allowed_list:\t0-3\n");
        write("proc/7/limits", "Max locked memory         8388608              8388608              bytes\n");
        write("proc/10/cmdline", "forebay\0coordinator\0");
        std::os::unix::fs::symlink("8", folder.path().join("proc/self")).unwrap();
        let root = Root::new(folder.path()).recorded_to(copy.path()).unwrap();
        let found = Process::read_all(&root);
        let names: Vec<_> = found.iter().map(Process::name).collect();
        assert_eq!(names, ["forebay worker (process 7)", "forebay coordinator (process 10)"], "and not this one");
        let worker = &found[0];
        assert_eq!((worker.user, worker.lock_limit), (Some(998), Some(Limit::Bytes(8 << 20))));
        assert!(worker.may_lock_memory && !worker.is_coordinator() && found[1].is_coordinator());
        assert_eq!(worker.processors.as_ref().map(BTreeSet::len), Some(4));
        assert_eq!(Process::read_all(&Root::new(copy.path())), found);
        assert!(!copy.path().join("proc/9").exists());
        assert!(!std::fs::read_to_string(copy.path().join("proc/7/cmdline")).unwrap().contains("secret"));
    }
}
