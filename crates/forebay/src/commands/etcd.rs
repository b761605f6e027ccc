//! `forebay etcd`: what an etcd with users has to be told of a cluster.

use std::fmt::Write as _;

use clap::Subcommand;
use forebay_cluster::grants::Role;
use forebay_cluster::records;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output;

/// Prepare an etcd for the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay etcd grants")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the etcdctl commands that make a user and a role for each kind of process
    ///
    /// Each role may read and write what its processes read and write of the cluster's state, and nothing else: a worker
    /// cannot add mounts. Nothing is changed; run the commands as etcd's user root. `etcdctl user add` asks for a
    /// password.
    #[command(after_help = "\
Example:
  forebay etcd grants
  forebay etcd grants -o cluster.name=training > users.sh")]
    Grants {
        #[command(flatten)]
        config: ConfigArgs,
    },
}

/// Runs it.
///
/// # Errors
/// When the configuration is wrong, or names a cluster that cannot be in an etcd.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Grants { config } = &args.command;
    let loaded = config.load([])?;
    let cluster = loaded.config.cluster_name.as_str();
    if cluster.contains('/') {
        let what = format!("the cluster name `{cluster}` has a slash, and cannot be in an etcd");
        return Err(Fault::new(Exit::Usage, what, "set another `cluster.name`").into());
    }
    output::print(&commands(cluster))
}

/// Shell commands that make the users and the roles of `cluster`.
fn commands(cluster: &str) -> String {
    let mut text = format!("# Users and roles in etcd for the cluster {cluster}: to be run as etcd's user root.\n");
    let root = records::root(cluster);
    for role in Role::ALL {
        let name = quoted(&format!("{cluster}-{}", role.as_str()));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n# {}\netcdctl role add {name}", what_it_is(role));
        for grant in role.grants() {
            let (access, keys) = (grant.access.as_str(), quoted(&format!("{root}{}", grant.prefix)));
            let _ = writeln!(text, "etcdctl role grant-permission --prefix {name} {access} {keys}");
        }
        let _ = writeln!(text, "etcdctl user add {name}\netcdctl user grant-role {name} {name}");
    }
    let [worker, mount] = [Role::Worker, Role::Mount].map(|role| quoted(&format!("{cluster}-{}", role.as_str())));
    let _ = write!(
        text,
        "\n# For mounts that share their cache, which are workers, too:\n\
         # etcdctl user grant-role {mount} {worker}\n\
         \n# etcd heeds all this from here on. It needs a user root with the role root before:\n\
         # etcdctl auth enable\n"
    );
    text
}

fn what_it_is(role: Role) -> &'static str {
    match role {
        Role::Worker => "forebay worker",
        Role::Coordinator => "forebay coordinator",
        Role::Mount => "forebay mount, and commands that find the workers through etcd",
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '/');
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_gets_its_keys_of_this_cluster_and_no_other() {
        let text = commands("training");
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert!(lines.iter().all(|line| line.starts_with("etcdctl ")), "{text}");
        for line in [
            "etcdctl role add training-worker",
            "etcdctl role grant-permission --prefix training-worker readwrite /forebay/training/workers/",
            "etcdctl role grant-permission --prefix training-worker read /forebay/training/mounts/",
            "etcdctl role grant-permission --prefix training-coordinator readwrite /forebay/training/mounts/",
            "etcdctl role grant-permission --prefix training-mount read /forebay/training/workers/",
            "etcdctl user grant-role training-mount training-mount",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
        let mut granted = lines.iter().filter(|line| line.contains("grant-permission"));
        assert!(granted.all(|line| line.contains(" /forebay/training/")), "{text}");
    }

    #[test]
    fn a_name_is_one_word_to_a_shell_whatever_is_in_it() {
        assert_eq!(quoted("a-b_c.d/e"), "a-b_c.d/e");
        assert_eq!(quoted("two words; $(rm)"), "'two words; $(rm)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        let text = commands("it's $HOME");
        assert!(text.contains(r"etcdctl role add 'it'\''s $HOME-worker'"), "{text}");
    }
}
