//! The command line: which commands there are. What each takes is beside what it does, in `commands/`.

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::{
    bench, cluster, completions, conf, coordinator, csi, doctor, etcd, fluid, fs, job, keeper, key, man, mount,
    mount_helper, mounts, operator, policy, profile, s3, stats, umount, up, version, worker,
};
use crate::exit;

/// A distributed read cache between object stores and the programs that read them
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    after_help = AFTER,
    after_long_help = after_long(),
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Example:
  forebay up s3://bucket/prefix /mnt/data     # a bucket, cached by this machine, as a directory
  forebay umount /mnt/data";

fn after_long() -> String {
    format!("{AFTER}\n\n{}", exit::CODES)
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Args),
    Worker(worker::Args),
    Coordinator(coordinator::Args),
    Mount(mount::Args),
    S3(s3::Args),
    Csi(csi::Args),
    Operator(operator::Args),
    Umount(umount::Args),
    Keeper(keeper::Args),
    Fs(fs::Args),
    Job(job::Args),
    Mounts(mounts::Args),
    Policy(policy::Args),
    Cluster(cluster::Args),
    Etcd(etcd::Args),
    Key(key::Args),
    Stats(stats::Args),
    Profile(profile::Args),
    Bench(bench::Args),
    Conf(conf::Args),
    Doctor(doctor::Args),
    Version(version::Args),
    Completions(completions::Args),
    MountHelper(mount_helper::Args),
    Fluid(fluid::Args),
    Man(man::Args),
}

impl Command {
    /// Whether this is the process in the background that another one waits for.
    pub(crate) fn is_background_child(&self) -> bool {
        match self {
            Self::Up(args) => args.stay.background_child,
            Self::Mount(args) => args.stay.background_child,
            _ => false,
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(args) => up::run(args),
            Self::Worker(args) => worker::run(&args),
            Self::Coordinator(args) => coordinator::run(&args),
            Self::Mount(args) => mount::run(args),
            Self::S3(args) => s3::run(&args),
            Self::Csi(args) => csi::run(args),
            Self::Operator(args) => operator::run(&args),
            Self::Umount(args) => umount::run(&args),
            Self::Keeper(args) => keeper::run(&args),
            Self::Fs(args) => fs::run(args),
            Self::Job(args) => job::run(args),
            Self::Mounts(args) => mounts::run(&args),
            Self::Policy(args) => policy::run(args),
            Self::Cluster(args) => cluster::run(args),
            Self::Etcd(args) => etcd::run(&args),
            Self::Key(args) => key::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::Bench(args) => bench::run(args),
            Self::Conf(args) => conf::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Version(args) => version::run(args),
            Self::Completions(args) => completions::run(&args, &mut Cli::command()),
            Self::MountHelper(args) => mount_helper::run(&args),
            Self::Fluid(args) => fluid::run(&args),
            Self::Man(args) => man::run(&args, Cli::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// The `forebay …` commands in the shell blocks of a page: without comments, paths and environment, and what becomes of their
    /// output. What else is said of a block (`sh hardware`) is for `tests/tests/guides.rs`.
    fn commands_of(page: &str) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        let mut in_shell = false;
        for line in page.lines() {
            if let Some(language) = line.trim().strip_prefix("```") {
                let language = language.split(' ').next().unwrap_or_default();
                in_shell = !in_shell && matches!(language, "sh" | "shell" | "bash");
                continue;
            }
            let command = line.split(" # ").next().unwrap_or_default().trim();
            let words = command.split_whitespace().take_while(|word| !matches!(*word, ">" | ">>" | "|" | "&&"));
            let mut words = words.map(str::to_owned).peekable();
            let is_ours = words.peek().is_some_and(|program| program.rsplit('/').next() == Some("forebay"));
            if in_shell && is_ours {
                commands.push(words.collect());
            }
        }
        commands
    }

    #[test]
    fn every_command_in_the_documentation_is_one_that_we_take() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for directory in ["docs", "docs/guides"] {
            let docs = std::fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
            pages.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
        }
        let mut seen = 0;
        for page in pages {
            for command in commands_of(&std::fs::read_to_string(&page).unwrap()) {
                if let Err(error) = super::Cli::try_parse_from(&command) {
                    let is_help = !error.use_stderr();
                    assert!(is_help, "{}: `{}`: {error}", page.display(), command.join(" "));
                }
                seen += 1;
            }
        }
        assert!(seen >= 5, "the documentation shows only {seen} commands");
    }

    #[test]
    fn every_command_of_the_units_is_one_that_we_take() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/systemd");
        let mut seen = 0;
        for unit in std::fs::read_dir(units).unwrap().map(|entry| entry.unwrap().path()) {
            let text = std::fs::read_to_string(&unit).unwrap();
            for line in text.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/forebay ")) {
                let line = line.replace("%f", "/mnt/data").replace("${ORIGIN}", "s3://bucket/prefix");
                let words = std::iter::once("forebay").chain(line.split(' '));
                let parsed = super::Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{}: {line}: {}", unit.display(), parsed.unwrap_err());
                seen += 1;
            }
        }
        assert_eq!(seen, 4, "a worker, a coordinator, a mount and `up`");
    }
}
