//! Mounts in the files that administrators keep them in: a command line, alone or in a script or a unit of systemd, and
//! `/etc/fstab`.

use std::collections::VecDeque;

/// What the command may be called.
const PROGRAMS: [&str; 2] = ["juicefs", "mount.rdma"];
/// The type of the file system in `/etc/fstab`.
const FSTAB_TYPES: [&str; 2] = ["juicefs", "fuse.juicefs"];
/// What the program in `/sbin` is called that `mount` runs.
const MOUNT_PROGRAM: &str = "mount.juicefs";

/// A mount, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// The line that it starts on, from 1.
    pub(super) line: usize,
    /// What follows the command's name: options and operands. Of a line in fstab, options with the dashes that it leaves out.
    pub(super) words: VecDeque<String>,
    /// Variables that are set for it, on its line or before.
    pub(super) variables: Vec<(usize, String, String)>,
}

/// The mounts in `text`.
///
/// # Errors
/// The line of a command whose quotes do not end, or 1 if there is none at all.
pub(super) fn mounts(text: &str) -> Result<Vec<Written>, (usize, String)> {
    let mut mounts = Vec::new();
    let mut variables = Vec::new();
    for (line, logical) in logical_lines(text) {
        let Some(words) = shlex::split(unit_prefix(&logical)) else {
            if PROGRAMS.iter().any(|program| logical.contains(program)) {
                return Err((line, "a quote in this line has no end".to_owned()));
            }
            continue;
        };
        let found = of_command(&words).or_else(|| of_fstab(&words));
        let ahead = found.as_ref().map_or(words.len(), |found| words.len() - found.len().min(words.len()));
        variables.extend(words[..ahead].iter().filter_map(|word| variable(line, word)));
        if let Some(words) = found {
            mounts.push(Written { line, words, variables: variables.clone() });
        }
    }
    if mounts.is_empty() {
        let why = "there is neither a `juicefs mount` command nor a line of type juicefs for /etc/fstab in it";
        return Err((1, why.to_owned()));
    }
    Ok(mounts)
}

/// Lines joined where a backslash ends one, each with the number of its first.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut logical: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let (line, continues) = line.strip_suffix('\\').map_or((line, false), |line| (line, true));
        match logical.last_mut().filter(|_| goes_on) {
            Some((_, whole)) => {
                whole.push(' ');
                whole.push_str(line);
            }
            None => logical.push((index + 1, line.to_owned())),
        }
        goes_on = continues;
    }
    logical
}

/// The line without what a unit of systemd puts before a command or a variable.
fn unit_prefix(line: &str) -> &str {
    let line = line.trim();
    let rest = ["ExecStart=", "Environment="].iter().find_map(|prefix| line.strip_prefix(prefix));
    rest.map_or(line, |rest| rest.trim_start_matches(['-', '@', ':', '+', '!']))
}

fn variable(line: usize, word: &str) -> Option<(usize, String, String)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| (line, name.to_owned(), value.to_owned()))
}

/// What follows `juicefs mount`, whatever comes before: `sudo`, variables, a path. Options of `juicefs` itself may stand between.
fn of_command(words: &[String]) -> Option<VecDeque<String>> {
    let called = |word: &str, name: &str| word.rsplit('/').next() == Some(name);
    if let Some(at) = words.iter().position(|word| called(word, MOUNT_PROGRAM)) {
        return Some(words[at + 1..].iter().cloned().collect());
    }
    let program = words.iter().position(|word| PROGRAMS.iter().any(|name| called(word, name)))?;
    let mount = words[program + 1..].iter().position(|word| word == "mount")? + program + 1;
    let (global, rest) = (&words[program + 1..mount], &words[mount + 1..]);
    let only_options = global.iter().all(|word| word.starts_with('-'));
    only_options.then(|| rest.iter().chain(global).cloned().collect())
}

/// The line's operands and options, if it is of fstab.
fn of_fstab(words: &[String]) -> Option<VecDeque<String>> {
    let [source, mountpoint, kind, options, rest @ ..] = words else { return None };
    if !FSTAB_TYPES.contains(&kind.as_str()) || rest.len() > 2 {
        return None;
    }
    let options = options.split(',').filter(|option| !option.is_empty()).map(of_fstab_option);
    Some([source.clone(), mountpoint.clone()].into_iter().chain(options).collect())
}

/// Options of fstab are those of the command without their dashes, beside those of every file system.
fn of_fstab_option(option: &str) -> String {
    match option {
        "ro" => "--read-only".to_owned(),
        "rw" | "defaults" | "auto" | "noauto" | "user" | "users" | "nofail" | "noatime" | "nodev" | "nosuid" => {
            format!("-o={option}")
        }
        _ if option.starts_with('_') || option.starts_with("x-") => format!("-o={option}"),
        "allow_other" | "allow_root" => format!("-o={option}"),
        _ => format!("--{option}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        mounts(text).unwrap().remove(0).words.into()
    }

    #[test]
    fn a_command_is_found_in_a_script_a_unit_and_behind_sudo() {
        let expected = ["vol", "/jfs", "--cache-group=cg", "-d"];
        for text in [
            "juicefs mount vol /jfs --cache-group=cg -d",
            "#!/bin/sh\nset -e\nsudo /usr/local/bin/juicefs mount vol /jfs \\\n  --cache-group=cg -d # now\n",
            "[Service]\nExecStart=-/usr/bin/juicefs mount vol '/jfs' --cache-group=cg -d\nRestart=always\n",
            "vol /jfs juicefs cache-group=cg,d 0 0",
        ] {
            let found = words(text);
            let found: Vec<&str> = found.iter().map(|word| if word == "--d" { "-d" } else { word }).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn variables_are_those_of_the_command_and_of_lines_before_it() {
        let text = "export IORPC_RDMA_RETRY_DURATION=30s\nA=1 juicefs mount vol /jfs\n";
        let mounts = mounts(text).unwrap();
        assert_eq!(mounts[0].line, 2);
        let variables: Vec<_> =
            mounts[0].variables.iter().map(|(line, name, value)| (*line, name.as_str(), value.as_str())).collect();
        assert_eq!(variables, [(1, "IORPC_RDMA_RETRY_DURATION", "30s"), (2, "A", "1")]);
    }

    #[test]
    fn what_is_no_mount_is_said_with_its_line() {
        assert_eq!(mounts("echo 'juicefs' is nice\n").unwrap_err().0, 1);
        assert_eq!(mounts("\njuicefs mount 'vol /jfs\n").unwrap_err().0, 2);
        assert!(mounts("UUID=1 / ext4 defaults 0 1\n").unwrap_err().1.contains("fstab"));
    }
}
