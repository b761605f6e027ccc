//! `forebay key`: the key of a cluster, certificates that follow from it, and tokens.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Subcommand;
use forebay_identity::{
    CLOCK_SKEW, ClusterKey, ClusterKeys, Credentials, FileError, IssueError, KeyError, Scope, certificates_pem,
    new_token,
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
    /// 0600, and nowhere else; or, where every process gets a certificate (`forebay key issue`), only on the machine
    /// that issues these. A file that standard output goes to is given that mode.
    ///
    /// To replace a key, append the new one to the file on every node, then put it first, then remove the old one: the
    /// first key signs, and all are trusted.
    #[command(after_help = "\
Example:
  forebay key create > /etc/forebay/cluster.key
  forebay key create >> /etc/forebay/cluster.key")]
    Create,
    /// Print a new token, for who has no certificate
    ///
    /// Whoever shows it to a coordinator or a page of metrics is an admin there, or may scrape: it goes into the file
    /// that security.token_file or security.metrics_token_file names, of mode 0600. A file that standard output goes to
    /// is given that mode. To replace a token, append a new one, change those who show it, then remove the old one.
    #[command(after_help = "\
Example:
  forebay key token > /etc/forebay/token
  forebay key token > /etc/forebay/metrics-token")]
    Token,
    /// Print a new key that requests to the S3 endpoint are signed with
    ///
    /// It is a line of the file that s3.credentials_file names, of mode 0600: an access key, its secret, and the role and
    /// the name of the client who gets both. What this client may do is what it might with a certificate of that role and
    /// name: access lists of mounts hold for it. A file that standard output goes to is given that mode. Remove the line to
    /// take the key away.
    #[command(after_help = "\
Example:
  forebay key s3 --role reader --client team-a > /etc/forebay/s3-keys
  forebay key s3 --role writer --client loader >> /etc/forebay/s3-keys")]
    S3 {
        /// What the client may do: reader, writer or admin
        #[arg(long)]
        role: Role,
        /// The client's name: letters, digits, `.`, `-` and `_`
        #[arg(long, value_name = "NAME")]
        client: String,
        #[command(flatten)]
        config: ConfigArgs,
    },
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
    /// Writes tls.crt, tls.key and ca.crt into a new directory, for security.mode=mtls. They make their owner this
    /// client in this role, and nobody else, until the certificate expires. Workers and coordinators may have
    /// certificates, too: then no node needs the key.
    ///
    /// To renew a certificate, issue it again with --replace. Each file takes the place of the one before it as a
    /// whole, and has its owner and group. Processes take the new ones up while they run, and never a certificate with
    /// the key of another one.
    #[command(after_help = "\
Example:
  forebay key issue --role reader --client team-a
  forebay key issue --role worker --client node1 --output /etc/forebay/tls --replace
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
        /// Replace the certificate that is in the directory
        #[arg(long)]
        replace: bool,
        /// A name or address that programs of others look for in the certificate, such as Prometheus; may be repeated
        #[arg(long = "host", value_name = "HOST")]
        hosts: Vec<String>,
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
        Command::Token => token(),
        Command::S3 { role, client, config } => s3_key(*role, client, config),
        Command::Show { json, config } => show(*json, config),
        Command::Issue { role, client, lifetime, output, replace, hosts, config } => {
            let output = output.clone().unwrap_or_else(|| PathBuf::from(client));
            issue(*role, client, hosts, **lifetime, &output, *replace, config)
        }
    }
}

fn create() -> anyhow::Result<()> {
    let key = ClusterKey::generate().map_err(unusable)?;
    print_secret(&key.to_pem(), "create")
}

fn token() -> anyhow::Result<()> {
    let token = new_token().map_err(unusable)?;
    print_secret(&format!("{}\n", *token), "token")
}

fn s3_key(role: Role, client: &str, config: &ConfigArgs) -> anyhow::Result<()> {
    let loaded = config.load([])?;
    let config = &loaded.config;
    let scope = Scope::new(&config.security_trust_domain, config.cluster_name.as_str()).map_err(unusable)?;
    let line = forebay_s3::new_line(role, client, &scope).map_err(unusable)?;
    print_secret(&line, "s3")
}

fn print_secret(text: &str, command: &str) -> anyhow::Result<()> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        eprintln!(
            "forebay: this is a secret; `forebay key {command} > FILE` keeps it in a file that only you can read"
        );
    } else {
        keep_private(&File::from(rustix::io::dup(&stdout)?))?;
    }
    output::print(text)
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

fn issue(
    role: Role,
    client: &str,
    hosts: &[String],
    lifetime: Duration,
    output: &Path,
    replace: bool,
    config: &ConfigArgs,
) -> anyhow::Result<()> {
    let loaded = config.load([])?;
    let config = &loaded.config;
    let scope = Scope::new(&config.security_trust_domain, config.cluster_name.as_str()).map_err(unusable)?;
    let keys = read(&config.security_key_file)?;
    let now = SystemTime::now();
    let too_long = || Fault::new(Exit::Usage, format!("{lifetime:?} is too long"), "choose a shorter --lifetime");
    let until = now.checked_add(lifetime).ok_or_else(too_long)?;
    let authority = keys.current().authority(&scope, role).map_err(unusable)?;
    let credentials = authority.issue_at(client, hosts, now - CLOCK_SKEW, until).map_err(unusable)?;
    let authorities = believed(&keys, &scope, role).map_err(unusable)?;
    make_directory(output, replace)?;
    write(output, &credentials, &authorities)?;
    let identity = scope.identity(role, client).map_err(unusable)?;
    let until = humantime::format_rfc3339_seconds(until);
    output::print(&format!("{}: {identity}, until {until}\n", output.display()))
}

/// The authorities that one of this role has to believe: those of whom it will meet, and those that vouch for itself.
fn believed(keys: &ClusterKeys, scope: &Scope, role: Role) -> Result<String, IssueError> {
    let mut roles = match role {
        Role::Reader | Role::Writer => vec![Role::Worker, Role::Coordinator, role],
        // Everybody comes to those who listen, and admins and who collects metrics come to all pages.
        _ => Role::ALL.to_vec(),
    };
    // Some browsers take the first certificate of a file alone, and what they come to is a coordinator.
    roles.sort_by_key(|role| *role != Role::Coordinator);
    let each = roles.into_iter().flat_map(|role| keys.iter().map(move |key| (key, role)));
    let certificates = each.map(|(key, role)| Ok(key.authority(scope, role)?.certificate().clone()));
    Ok(certificates_pem(&certificates.collect::<Result<Vec<_>, IssueError>>()?))
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

fn make_directory(directory: &Path, may_be_there: bool) -> anyhow::Result<()> {
    let Err(error) = DirBuilder::new().mode(0o700).create(directory) else { return Ok(()) };
    let is_there = error.kind() == io::ErrorKind::AlreadyExists;
    if is_there && may_be_there {
        return Ok(());
    }
    let what = format!("cannot make the directory {}: {error}", directory.display());
    if is_there {
        let next = "choose another --output, or `--replace` the certificate that is in it";
        return Err(Fault::new(Exit::Busy, what, next).into());
    }
    Err(anyhow::Error::from(error).context(what))
}

/// Writes the three files, and has them take their places when all are written. A process that looks in the midst of
/// this sees a key that does not go with the certificate, keeps what it has, and looks again.
fn write(directory: &Path, credentials: &Credentials, authorities: &str) -> anyhow::Result<()> {
    let (chain, key) = (credentials.chain_pem(), credentials.key_pem());
    let files = [("ca.crt", 0o644, authorities), ("tls.key", 0o600, &**key), ("tls.crt", 0o644, &*chain)];
    let places = files.map(|(name, ..)| (directory.join(format!(".{name}.new")), directory.join(name)));
    let failed = |path: &Path| format!("cannot write {}", path.display());
    for ((_, mode, content), (beside, place)) in files.iter().zip(&places) {
        write_beside(beside, place, *mode, content).with_context(|| failed(place))?;
    }
    for (beside, place) in &places {
        fs::rename(beside, place).with_context(|| failed(place))?;
    }
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(|| failed(directory))
}

/// Writes a file that is to take the place of another one, if there is one, and to be for the same user and group.
fn write_beside(beside: &Path, place: &Path, mode: u32, content: &str) -> io::Result<()> {
    // Left by one that did not come to its end, or put there by somebody else: it is not written into.
    match fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    match fs::symlink_metadata(place) {
        Ok(before) => fchown(&file, Some(before.uid()), Some(before.gid()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

/// What is wrong with a key or a name is said with its remedy.
fn unusable(error: impl std::fmt::Display) -> Fault {
    Fault::without_remedy(Exit::Usage, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use forebay_identity::{Reload, Settings, Side, Source, Watch, certificate_summaries};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A key, and a directory for what is issued with it.
    struct Issuer {
        directory: tempfile::TempDir,
        keys: ClusterKeys,
        scope: Scope,
    }

    impl Issuer {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("cluster.key");
            fs::write(&path, ClusterKey::generate().unwrap().to_pem().as_bytes()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let keys = ClusterKeys::read(&path).unwrap();
            Self { directory, keys, scope: Scope::new("example.org", "prod").unwrap() }
        }

        fn issue(&self, role: Role) -> Credentials {
            let now = SystemTime::now();
            let authority = self.keys.current().authority(&self.scope, role).unwrap();
            authority.issue("one", now - CLOCK_SKEW, now + HOUR).unwrap()
        }

        /// Writes what makes somebody of this role, and says where.
        fn write(&self, role: Role) -> PathBuf {
            let directory = self.directory.path().join(role.as_str());
            make_directory(&directory, true).unwrap();
            let authorities = believed(&self.keys, &self.scope, role).unwrap();
            write(&directory, &self.issue(role), &authorities).unwrap();
            directory
        }

        fn settings(&self, directory: &Path) -> Settings {
            let [certificate, key, authorities] = ["tls.crt", "tls.key", "ca.crt"].map(|name| directory.join(name));
            let source = Source::Files { certificate, key, authorities };
            Settings { scope: self.scope.clone(), source, also: None, denied: None }
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn everybody_and_a_worker_believe_each_other_and_tenants_believe_no_other_tenant() {
        let issuer = Issuer::new();
        let now = SystemTime::now();
        let trust = |role| {
            let settings = issuer.settings(&issuer.write(role));
            Watch::begin(settings, now).unwrap().1.trust().clone()
        };
        let worker = trust(Role::Worker);
        for role in Role::ALL {
            let chain = issuer.issue(role).chain().to_vec();
            let who = worker.verify(&chain, Side::Client, now).unwrap().identity;
            assert_eq!((who.role(), who.name()), (role, "one"));
            let of_worker = issuer.issue(Role::Worker).chain().to_vec();
            assert!(trust(role).verify(&of_worker, Side::Server, now).is_ok(), "{role}");
        }
        let admin = issuer.issue(Role::Admin).chain().to_vec();
        assert!(trust(Role::Reader).verify(&admin, Side::Client, now).is_err());
    }

    #[test]
    fn a_browser_that_takes_the_first_authority_takes_that_of_coordinators() {
        let issuer = Issuer::new();
        for role in Role::ALL {
            let authorities = certificate_summaries(&issuer.write(role).join("ca.crt")).unwrap();
            assert_eq!(authorities[0].name, issuer.scope.authority(Role::Coordinator), "{role}");
        }
    }

    #[test]
    fn a_certificate_is_replaced_with_its_key_and_stays_its_owners_alone() {
        let issuer = Issuer::new();
        let directory = issuer.write(Role::Reader);
        let now = SystemTime::now();
        let (mut watch, material) = Watch::begin(issuer.settings(&directory), now).unwrap();
        assert!(make_directory(&directory, false).unwrap_err().to_string().contains("cannot make the directory"));

        // What somebody left where the new key is written first.
        let victim = issuer.directory.path().join("victim");
        fs::write(&victim, "victim").unwrap();
        symlink(&victim, directory.join(".tls.key.new")).unwrap();
        fs::write(directory.join(".tls.crt.new"), "half").unwrap();
        let before = fs::read(directory.join("tls.key")).unwrap();
        assert_eq!(issuer.write(Role::Reader), directory);
        assert_ne!(fs::read(directory.join("tls.key")).unwrap(), before);
        assert_eq!(fs::read(&victim).unwrap(), b"victim");
        assert_eq!(names(&directory), ["ca.crt", "tls.crt", "tls.key"]);
        let mode = |name: &str| fs::symlink_metadata(directory.join(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("."), mode("tls.key")), (0o700, 0o600));

        let Reload::New(replaced) = watch.look(now) else { panic!("not seen") };
        assert_eq!(replaced.identity(), material.identity());
    }

    #[test]
    fn what_is_replaced_stays_with_its_user() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root gives files to another user");
            return;
        }
        let issuer = Issuer::new();
        let directory = issuer.write(Role::Worker);
        for name in names(&directory) {
            std::os::unix::fs::chown(directory.join(name), Some(65_534), Some(65_533)).unwrap();
        }
        issuer.write(Role::Worker);
        for name in names(&directory) {
            let metadata = fs::metadata(directory.join(&name)).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (65_534, 65_533), "{name}");
        }
    }
}
