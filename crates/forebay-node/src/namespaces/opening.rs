//! From a mount that the cluster agreed on to an origin, as far as the operator of this process lets it.
//!
//! Whoever reaches a coordinator, or etcd, can write the record of a mount, so a record is not believed. It may ask;
//! what it gets, the configuration of each worker says. By default that is buckets at the servers that the worker knows,
//! and beyond them
//!
//! * a server of its own, if `cluster.mounts.endpoints` lists it;
//! * a variable of the environment, if `cluster.mounts.environment` does;
//! * a directory, or a file with a credential, below one of `cluster.mounts.directories`.
//!
//! A server that a record names never gets the credentials that this process has for others: only those that the record
//! leads to ([`ChosenBy`]).
//!
//! A coordinator checks a record before it is stored, and has neither the lists nor the credentials of the workers. So
//! a record is first read into what is [`Wanted`] of it, which is the same everywhere; whether it may have that is asked
//! only where it is opened.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_cluster::records::mounts::{CredentialReference, MountRecord};
use forebay_config::Loaded;
use forebay_origin::{ChosenBy, Origin, OriginOptions, S3Checksum, S3Keys, S3Options};
use url::Url;

use crate::assembly;

pub(super) const ID: &str = "s3.access_key_id";
pub(super) const SECRET: &str = "s3.secret_access_key";
const TOKEN: &str = "s3.session_token";
const KEYS: [&str; 3] = [ID, SECRET, TOKEN];
/// More than a credential has: a session token is a kilobyte or two.
const MAX_CREDENTIAL: usize = 64 << 10;

/// The origin of a mount of the cluster.
///
/// # Errors
/// When its URL or its options make no sense here, it asks for what the configuration does not let mounts have, or a
/// credential is not where its reference says. The message names the mount, and the key to set.
pub(super) fn open(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<Arc<dyn Origin>> {
    let opened = options(loaded, record).and_then(|options| Ok(forebay_origin::open(&record.origin, &options)?));
    opened.with_context(|| format!("the mount {}", record.path))
}

/// Whether a mount of the cluster can be opened on a worker that lets it have what it asks for: all that can be told
/// without the workers' lists, files and credentials.
///
/// # Errors
/// A sentence about what to change.
pub(crate) fn check(loaded: &Loaded, record: &MountRecord) -> Result<(), String> {
    checked(loaded, record).map_err(|error| format!("the mount {}: {error:#}", record.path))
}

fn checked(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<()> {
    let mut wanted = Wanted::of(loaded, record)?;
    wanted.find_keys(record, |_, _| Ok("a credential".to_owned()))?;
    // Directories and profiles are the workers'.
    if wanted.directory.is_some() {
        return Ok(());
    }
    wanted.options.s3.profile = None;
    if wanted.server.is_some() {
        wanted.options.chosen_by = ChosenBy::RecordWithServer { may_be_local: true };
    }
    forebay_origin::open(&record.origin, &wanted.options)?;
    Ok(())
}

/// How a mount of the cluster is opened here.
///
/// # Errors
/// As for [`open`].
pub(super) fn options(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<OriginOptions> {
    let mut wanted = Wanted::of(loaded, record)?;
    if let Some(directory) = &wanted.directory {
        within(loaded, directory)?;
    }
    if let Some(server) = &wanted.server {
        wanted.options.chosen_by = allowed(loaded, server)?;
    }
    wanted.find_keys(record, |name, reference| credential(loaded, name, reference))?;
    Ok(wanted.options)
}

/// What a record asks for.
struct Wanted {
    /// The options of the origin, but for its credentials.
    options: OriginOptions,
    /// The directory that is its origin.
    directory: Option<PathBuf>,
    /// The server that it names.
    server: Option<Url>,
    /// Where its credentials are, by option; none for the role of the machine.
    credentials: BTreeMap<String, CredentialReference>,
}

impl Wanted {
    /// # Errors
    /// When an option or the URL makes no sense, whatever a worker lets mounts have.
    fn of(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<Self> {
        let url = Url::parse(&record.origin).with_context(|| format!("`{}` is not a URL", record.origin))?;
        let directory = match url.scheme() {
            // As `forebay_origin::open` takes it: the text may say the same in other ways.
            "file" => Some(url.to_file_path().map_err(|()| anyhow::anyhow!("`{url}` names another machine"))?),
            _ => None,
        };
        let server = server(&url, record)?;
        let mut options = assembly::origin_options(loaded);
        options.chosen_by = ChosenBy::Record;
        if server.is_some() {
            // What this process does at other servers is not for that one.
            options.s3 = S3Options { endpoint: None, profile: None, anonymous: false, ..options.s3 };
        }
        let mut wanted = Self { options, directory, server, credentials: BTreeMap::new() };
        for (name, value) in &record.options {
            wanted.take(name, value)?;
        }
        Ok(wanted)
    }

    /// Takes in an option.
    fn take(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let truth = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(anyhow::anyhow!("the option {name} is neither `true` nor `false`")),
        };
        let s3 = &mut self.options.s3;
        match name {
            "s3.endpoint" => s3.endpoint = Some(value.to_owned()),
            "s3.region" => s3.region = Some(value.to_owned()),
            "s3.profile" if self.server.is_some() => anyhow::bail!(
                "a profile is for the servers of the workers' operator, and not for one that a mount names; give it {ID} \
                 and {SECRET}"
            ),
            "s3.profile" => s3.profile = Some(value.to_owned()),
            "s3.path_style" => s3.path_style = Some(truth()?),
            "s3.anonymous" => s3.anonymous = truth()?,
            "s3.checksum" => {
                let checksum = S3Checksum::named(value);
                s3.checksum = checksum
                    .with_context(|| format!("the option {name} is none of `{}`", S3Checksum::NAMES.join("`, `")))?;
            }
            "allow_http" if self.server.is_some() => self.options.allow_http = truth()?,
            "allow_http" => {
                anyhow::ensure!(
                    !truth()?,
                    "the option {name} is for a server that the mount names; for those of the workers' operator there is \
                     `origin.allow_http`"
                );
                self.options.allow_http = false;
            }
            name if KEYS.contains(&name) => match CredentialReference::parse(value) {
                None => anyhow::bail!("the option {name} is no reference to a credential"),
                Some(CredentialReference::Role) => {}
                Some(reference) => drop(self.credentials.insert(name.to_owned(), reference)),
            },
            name => anyhow::bail!(unknown_option(name)),
        }
        Ok(())
    }

    /// Has `find` find the credentials, by option and reference.
    ///
    /// # Errors
    /// Those of `find`, and for half a key.
    fn find_keys(
        &mut self,
        record: &MountRecord,
        find: impl Fn(&str, &CredentialReference) -> anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        let find = |name: &str| self.credentials.get(name).map(|reference| find(name, reference)).transpose();
        self.options.s3.keys = match (find(ID)?, find(SECRET)?, find(TOKEN)?) {
            (Some(access_key_id), Some(secret_access_key), session_token) => {
                let source = format!("the options of the mount {}", record.path);
                Some(S3Keys { access_key_id, secret_access_key, session_token, source })
            }
            (None, None, None) => None,
            (None, None, Some(_)) => anyhow::bail!("it has {TOKEN} without {ID} and {SECRET}"),
            _ => anyhow::bail!("it has only one of {ID} and {SECRET}"),
        };
        Ok(())
    }
}

fn unknown_option(name: &str) -> String {
    format!(
        "mounts have no option `{name}`; there are s3.endpoint, s3.region, s3.profile, s3.path_style, s3.anonymous, \
         s3.checksum, allow_http, {ID}, {SECRET} and {TOKEN}"
    )
}

/// The server that a record names: in its URL, or with `s3.endpoint`.
fn server(url: &Url, record: &MountRecord) -> anyhow::Result<Option<Url>> {
    let endpoint = record.options.get("s3.endpoint");
    match (url.scheme(), endpoint) {
        ("http" | "https", None) => Ok(Some(url.clone())),
        ("s3" | "s3a", Some(endpoint)) => {
            let server = Url::parse(endpoint).with_context(|| format!("the option s3.endpoint, `{endpoint}`"))?;
            let is_web = matches!(server.scheme(), "http" | "https");
            anyhow::ensure!(is_web, "the option s3.endpoint, `{endpoint}`, is neither https nor http");
            Ok(Some(server))
        }
        (_, None) => Ok(None),
        (scheme, Some(_)) => anyhow::bail!("the option s3.endpoint is for `s3://` origins, and not for `{scheme}://`"),
    }
}

/// What the operator of this process thinks of a server that a record names.
///
/// # Errors
/// When it is none of those that mounts may name.
fn allowed(loaded: &Loaded, server: &Url) -> anyhow::Result<ChosenBy> {
    let entry = loaded.config.cluster_mounts_endpoints.iter().find(|entry| entry.admits(server));
    let entry = entry.with_context(|| {
        format!(
            "the server `{}` is not one that mounts of the cluster may name; add it to `cluster.mounts.endpoints` on \
             this worker if it may get requests and credentials",
            server.origin().ascii_serialization()
        )
    })?;
    Ok(ChosenBy::RecordWithServer { may_be_local: entry.may_be_local() })
}

/// The credential that a reference leads to.
fn credential(loaded: &Loaded, name: &str, reference: &CredentialReference) -> anyhow::Result<String> {
    match reference {
        CredentialReference::Environment(variable) => {
            // Before it is looked for: that a variable is there is nobody's business either.
            anyhow::ensure!(
                loaded.config.cluster_mounts_environment.contains(variable),
                "{name}: the variable {variable} is not one that mounts of the cluster may use; add it to \
                 `cluster.mounts.environment` on this worker if it is a credential for them"
            );
            std::env::var(variable).with_context(|| format!("{name}: the variable {variable} of the environment"))
        }
        CredentialReference::File(path) => {
            let real = within(loaded, path).with_context(|| name.to_owned())?;
            read(&real).with_context(|| format!("{name}: {}", path.display()))
        }
        // It was left out when the record was read.
        CredentialReference::Role => anyhow::bail!("{name}: the role of the machine is no credential of a mount"),
    }
}

/// The real path of a file or directory of this machine that mounts of the cluster may have to do with.
///
/// # Errors
/// When it is not there or not among those. Which of the two is nobody's business.
fn within(loaded: &Loaded, path: &Path) -> anyhow::Result<PathBuf> {
    let allowed = &loaded.config.cluster_mounts_directories;
    let is_allowed = |real: &Path| {
        let mut directories = allowed.iter().filter_map(|directory| Path::new(directory).canonicalize().ok());
        directories.any(|directory| real.starts_with(directory))
    };
    let real = path.canonicalize().ok().filter(|real| is_allowed(real));
    real.with_context(|| {
        format!(
            "{} is not there, or in none of the directories that `cluster.mounts.directories` names on this worker",
            path.display()
        )
    })
}

/// The credential in a file.
fn read(path: &Path) -> anyhow::Result<String> {
    // To open a pipe would wait for a writer.
    anyhow::ensure!(std::fs::metadata(path)?.is_file(), "it is not a file");
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_CREDENTIAL as u64 + 1).read_to_string(&mut text)?;
    anyhow::ensure!(text.len() <= MAX_CREDENTIAL, "it is longer than {MAX_CREDENTIAL} bytes, and so no credential");
    Ok(text.trim().to_owned())
}
