//! `forebay key`: the key of a cluster, and certificates that follow from it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Subcommand;
use forebay_identity::{
    CLOCK_SKEW, ClusterKey, ClusterKeys, Credentials, FileError, KeyError, Scope, certificates_pem,
};
use forebay_types::Role;
use serde_json::json;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};

/// Make the key of a cluster, and certificates for those who do not get the key
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay key create > /etc/forebay/cluster.key
  forebay key issue --role reader --client team-a")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a new key
    ///
    /// Whoever has it can be every process of the cluster: it belongs on the nodes of the cluster, in a file of mode
    /// 0600, and nowhere else. A file that standard output goes to is given that mode.
    ///
    /// To replace a key, append the new one to the file on every node, then put it first, then remove the old one: the
    /// first key signs, and all are trusted.
    #[command(after_help = "\
Example:
  forebay key create > /etc/forebay/cluster.key
  forebay key create >> /etc/forebay/cluster.key")]
    Create,
    /// Show the fingerprints of the keys in a file, and nothing else of them
    #[command(after_help = "\
Example:
  forebay key show
  forebay key show -o security.key_file=cluster.key")]
    Show {
        #[command(flatten)]
        json: JsonArg,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Issue a certificate to somebody who does not get the key
    ///
    /// Writes tls.crt, tls.key and ca.crt into a new directory. They make their owner this client in this role, and
    /// nobody else, until the certificate expires.
    #[command(after_help = "\
Example:
  forebay key issue --role reader --client team-a
  forebay key issue --role metrics --client prometheus --lifetime 365d --output /etc/prometheus/forebay")]
    Issue {
        /// What the client may do: reader, writer, admin, metrics, worker or coordinator
        #[arg(long)]
        role: Role,
        /// The client's name: letters, digits, `.`, `-` and `_`
        #[arg(long, value_name = "NAME")]
        client: String,
        /// How long the certificate is valid
        #[arg(long, default_value = "90d", value_name = "DURATION")]
        lifetime: humantime::Duration,
        /// The directory to make [default: the client's name]
        #[arg(long, value_name = "DIRECTORY")]
        output: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArgs,
    },
}

/// Runs it.
///
/// # Errors
/// When the key cannot be read, or what is made of it cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Create => create(),
        Command::Show { json, config } => show(*json, config),
        Command::Issue { role, client, lifetime, output, config } => {
            let output = output.clone().unwrap_or_else(|| PathBuf::from(client));
            issue(*role, client, **lifetime, &output, config)
        }
    }
}

fn create() -> anyhow::Result<()> {
    let key = ClusterKey::generate().map_err(unusable)?;
    let stdout = io::stdout();
    if stdout.is_terminal() {
        eprintln!("forebay: this is a secret; `forebay key create > FILE` keeps it in a file that only you can read");
    } else {
        keep_private(&File::from(rustix::io::dup(&stdout)?))?;
    }
    output::print(&key.to_pem())
}

/// A regular file that the shell made for us has the mode of the shell's choice. It is changed before the secret is in it.
fn keep_private(file: &File) -> anyhow::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))
            .context("cannot take others' access to the file")?;
    }
    Ok(())
}

fn show(json: JsonArg, config: &ConfigArgs) -> anyhow::Result<()> {
    let loaded = config.load([])?;
    let file = &loaded.config.security_key_file;
    let keys = read(file)?;
    let mut out = output::stdout();
    for (at, key) in keys.iter().enumerate() {
        let (fingerprint, signs) = (key.fingerprint(), at == 0);
        if json.json {
            output::json_line(&mut out, &json!({ "fingerprint": fingerprint, "signs": signs }))?;
        } else {
            writeln!(out, "{fingerprint}  {}", if signs { "signs" } else { "trusted" })?;
        }
    }
    Ok(out.flush()?)
}

fn issue(role: Role, client: &str, lifetime: Duration, output: &Path, config: &ConfigArgs) -> anyhow::Result<()> {
    let loaded = config.load([])?;
    let config = &loaded.config;
    let scope = Scope::new(&config.security_trust_domain, config.cluster_name.as_str()).map_err(unusable)?;
    let keys = read(&config.security_key_file)?;
    let now = SystemTime::now();
    let too_long = || Fault::new(Exit::Usage, format!("{lifetime:?} is too long"), "choose a shorter --lifetime");
    let until = now.checked_add(lifetime).ok_or_else(too_long)?;
    let authority = keys.current().authority(&scope, role).map_err(unusable)?;
    let credentials = authority.issue(client, now - CLOCK_SKEW, until).map_err(unusable)?;
    // Whom it will meet, and those who vouch for itself.
    let mut believed = Vec::new();
    for role in [Role::Worker, Role::Coordinator, role] {
        for key in keys.iter() {
            let certificate = key.authority(&scope, role).map_err(unusable)?.certificate().clone();
            if !believed.contains(&certificate) {
                believed.push(certificate);
            }
        }
    }
    write(output, &credentials, &certificates_pem(&believed))?;
    let identity = scope.identity(role, client).map_err(unusable)?;
    let until = humantime::format_rfc3339_seconds(until);
    output::print(&format!("{}: {identity}, until {until}\n", output.display()))
}

fn read(file: &Path) -> anyhow::Result<ClusterKeys> {
    ClusterKeys::read(file).map_err(|error| match &error {
        KeyError::File(FileError::Read { error: why, .. }) if why.kind() == io::ErrorKind::NotFound => {
            let next =
                format!("name another file with `security.key_file`, or `forebay key create > {}`", file.display());
            Fault::new(Exit::NotFound, error.to_string(), next).into()
        }
        _ => unusable(error).into(),
    })
}

/// Writes the three files into a new directory.
fn write(directory: &Path, credentials: &Credentials, authorities: &str) -> anyhow::Result<()> {
    DirBuilder::new().mode(0o700).create(directory).map_err(|error| cannot_make(directory, error))?;
    let (chain, key) = (credentials.chain_pem(), credentials.key_pem());
    let files = [("tls.crt", 0o644, &*chain), ("tls.key", 0o600, &**key), ("ca.crt", 0o644, authorities)];
    for (name, mode, content) in files {
        let path = directory.join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        let written = file.and_then(|mut file| file.write_all(content.as_bytes()).and_then(|()| file.sync_all()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn cannot_make(directory: &Path, error: io::Error) -> anyhow::Error {
    let what = format!("cannot make the directory {}: {error}", directory.display());
    match error.kind() {
        io::ErrorKind::AlreadyExists => Fault::new(Exit::Busy, what, "choose another --output").into(),
        _ => anyhow::Error::from(error).context(what),
    }
}

/// What is wrong with a key or a name is said with its remedy.
fn unusable(error: impl std::fmt::Display) -> Fault {
    Fault::without_remedy(Exit::Usage, error.to_string())
}
