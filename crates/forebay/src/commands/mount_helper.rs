//! `forebay mount-helper`: what `mount -t forebay` and lines of `/etc/fstab` run, through `mount.forebay`.
//!
//! mount(8) calls `mount.forebay SOURCE MOUNTPOINT [-sfnv] [-o OPTION,...]`. That becomes a command line of this
//! program: a URL or a directory is an origin, for `forebay up`; `forebay` is what the workers of the configuration
//! serve, for `forebay mount`. The helper gives way to that command, which goes to the background and ends when the
//! mount answers. `mount.forebay`, a few lines of shell, has the exit codes that mount(8) knows.

mod options;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::exit::{Exit, Fault};
use crate::output;
use options::{Kind, Options};

/// The source of a mount of what workers serve.
const WORKERS: [&str; 2] = ["forebay", "none"];

/// Mount as mount(8) asks for it, also for /etc/fstab
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  mount -t forebay s3://bucket/prefix /mnt/data -o ro,memory=8GiB
  mount -t forebay forebay /mnt/data -o workers=node1:29999
  forebay mount-helper s3://bucket/prefix /mnt/data -f -v -o ro"
)]
pub(crate) struct Args {
    /// An origin, as s3://…, or `forebay` for what the workers serve
    source: String,
    /// An existing directory
    mountpoint: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<String>,
    /// The type of the file system, as it was named to mount(8)
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<String>,
    /// Let be what is no option of this file system
    #[arg(short = 's')]
    sloppy: bool,
    /// Only check, and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Has no meaning today: there is no /etc/mtab to be written
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Say which command is run
    #[arg(short = 'v')]
    verbose: bool,
}

/// Runs it. Returns only when nothing was to be mounted.
///
/// # Errors
/// When an option makes no sense, or the command cannot be run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let kind = if WORKERS.contains(&args.source.as_str()) { Kind::Workers } else { Kind::Origin };
    let options = Options::parse(&args.options, kind, args.sloppy)?;
    let line = command_line(&args.source, &args.mountpoint, kind, &options);
    let environment = match &options.environment {
        Some(file) => variables(file)?,
        None => Vec::new(),
    };
    if args.verbose {
        let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
        output::say(&format!("forebay {}", words.join(" ")));
    }
    if args.fake {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    let error = Command::new(&program).args(line).envs(environment).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// The words behind the name of the program.
fn command_line(source: &str, mountpoint: &Path, kind: Kind, options: &Options) -> Vec<OsString> {
    let mut line: Vec<OsString> = match kind {
        Kind::Origin => vec!["up".into()],
        Kind::Workers => vec!["mount".into()],
    };
    line.extend(options.arguments.iter().map(OsString::from));
    // What may begin with a dash.
    line.push("--".into());
    line.extend((kind == Kind::Origin).then(|| source.into()));
    line.push(mountpoint.into());
    line
}

/// The variables of a file with a `NAME=VALUE` a line, as the `EnvironmentFile=` of a unit: credentials, which no
/// command line should show.
fn variables(file: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let what = format!("option `environment`: cannot read {}: {error}", file.display());
        Fault::new(Exit::Usage, what, "name a file with a line NAME=VALUE for each variable")
    })?;
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) else {
            // Without the line: it may be a secret.
            let what = format!("{}, line {number}: it is no NAME=VALUE", file.display());
            return Err(Fault::new(Exit::Usage, what, "write one variable a line, without `export`").into());
        };
        variables.push((name.to_owned(), unquoted(value.trim()).to_owned()));
    }
    Ok(variables)
}

fn is_name(name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    !name.is_empty() && name.chars().all(is_of_name) && !name.starts_with(|letter: char| letter.is_ascii_digit())
}

fn unquoted(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn line(source: &str, options: &str) -> Vec<OsString> {
        let kind = if WORKERS.contains(&source) { Kind::Workers } else { Kind::Origin };
        let options = Options::parse(&[options.to_owned()], kind, false).unwrap();
        command_line(source, Path::new("/mnt/a b"), kind, &options)
    }

    #[test]
    fn an_origin_is_for_up_and_workers_are_for_mount() {
        let up = line("s3://bucket/prefix", "rw,memory=8GiB,_netdev,x-systemd.automount");
        assert_eq!(up, ["up", "--memory=8GiB", "--", "s3://bucket/prefix", "/mnt/a b"]);
        let mount = line("forebay", "ro,workers=\"node1:29999,node2:29999\"");
        assert_eq!(mount, ["mount", "--read-only", "--workers=node1:29999,node2:29999", "--", "/mnt/a b"]);
    }

    #[test]
    fn every_command_line_is_one_that_we_take() {
        for (source, options) in [
            ("s3://bucket", "ro,memory=1GiB,disk=/nvme:1TiB,disk=/nvme2:free,web,allow_other,fuse.io=uring"),
            ("s3://bucket", "web=8080,config=/etc/forebay/other.toml,noatime,nosuid,nodev,nofail"),
            ("-odd", "defaults"),
            (
                "s3://bucket",
                "context=\"system_u:object_r:container_file_t:s0:c1,c2\",log.file=/k/logs/a.log,posix.gid=2000",
            ),
            ("none", "etcd=http://etcd1:2379,cache_group=training,no_sharing,port=0,rdma_network=ib0:ib2"),
            ("forebay", "group_network=eth0,disk_serve=splice,mounts=/=s3://bucket,worker.memory.size=1GiB"),
        ] {
            let line = line(source, options);
            let words = std::iter::once(OsString::from("forebay")).chain(line.clone());
            let parsed = crate::cli::Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{line:?}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn a_file_of_variables_is_read_as_systemd_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bucket.env");
        std::fs::write(&file, "# a remark\n\nAWS_REGION = us-east-1\n").unwrap();
        let error = variables(&file).unwrap_err().to_string();
        assert!(error.contains("line 3") && !error.contains("us-east-1"), "{error}");
        std::fs::write(&file, "; a remark\nAWS_ACCESS_KEY_ID=a=b\nAWS_SECRET_ACCESS_KEY=\"c d\"\nEMPTY=\n").unwrap();
        let expected = [("AWS_ACCESS_KEY_ID", "a=b"), ("AWS_SECRET_ACCESS_KEY", "c d"), ("EMPTY", "")];
        assert_eq!(variables(&file).unwrap(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(variables(&directory.path().join("missing")).is_err());
    }
}
