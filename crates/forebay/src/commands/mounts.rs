//! `forebay mounts`: which origins the cluster shows where.

use std::collections::BTreeMap;
use std::io::Write as _;

use clap::Subcommand;
use forebay_coordinator::api::{Mount, MountAcl};
use forebay_types::FsPath;
use serde_json::json;

use crate::coordinator_args::CoordinatorArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};
use crate::runtime;

/// Add, list and remove mounts of the cluster
///
/// Workers see a change within moments. Mounts show it when they next ask for names that they remember
/// (`metadata.ttl`). Nothing is restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay mounts add /s3 s3://bucket/prefix
  forebay mounts list")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show an origin at a path of the namespace
    #[command(after_help = "\
Credentials are never stored. An option that needs one says where the workers find it: env:NAME, file:/PATH or role.

A worker opens a mount only if its own configuration allows what the mount asks for: the server of s3.endpoint or of \
an http(s):// origin in cluster.mounts.endpoints, env:NAME in cluster.mounts.environment, a file or a directory below \
one of cluster.mounts.directories. A server that a mount names gets no other credentials of the workers, and so not role.

With --read or --write the mount has an access list: it is for the clients that are named, and for admins. Names are \
those that clients have in their certificates; one that ends in * stands for all that begin like it. It needs \
security.mode. The same command with other names replaces the list.

Example:
  forebay mounts add /s3 s3://bucket/prefix
  forebay mounts add /team-a s3://bucket/team-a --read 'team-a,batch-*' --write loader
  forebay mounts add /minio s3://bucket -o s3.endpoint=http://minio:9000 -o allow_http=true \\
      -o s3.access_key_id=env:MINIO_KEY -o s3.secret_access_key=file:/run/secrets/minio")]
    Add {
        /// A path of the namespace, as in /s3
        path: String,
        /// The origin: s3://…, gs://…, az://…, http(s)://…, file:///…
        origin: String,
        /// An option of the origin; may be repeated
        #[arg(short = 'o', value_name = "KEY=VALUE")]
        options: Vec<String>,
        /// Clients that may read it; may be repeated
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        read: Vec<String>,
        /// Clients that may read it and change files; may be repeated
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        write: Vec<String>,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// List the mounts: those that were added, and those of the coordinator's own process
    #[command(after_help = "\
Example:
  forebay mounts list --coordinator coordinator1:19999")]
    List {
        #[command(flatten)]
        json: JsonArg,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// Stop showing an origin; its data is not deleted
    #[command(after_help = "\
Example:
  forebay mounts remove /s3")]
    Remove {
        /// Its path in the namespace
        path: String,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
}

/// Runs it.
///
/// # Errors
/// What the coordinator refuses.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    runtime::block_on(mounts(&args.command))
}

async fn mounts(command: &Command) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match command {
        Command::Add { path, origin, options, read, write, coordinator } => {
            let options = options.iter().map(|option| pair(option)).collect::<anyhow::Result<BTreeMap<_, _>>>()?;
            let is_listed = !read.is_empty() || !write.is_empty();
            let acl = is_listed.then(|| MountAcl { read: read.clone(), write: write.clone() });
            let mount = Mount { path: path.clone(), origin: origin.clone(), options, acl };
            let mount = coordinator.client(None)?.add_mount(&mount).await?;
            writeln!(out, "{} shows {}", mount.path, mount.origin)?;
        }
        Command::List { json, coordinator } => {
            let list = coordinator.client(None)?.all_mounts().await?;
            let configured = list.configured.into_iter().map(|mount| (mount, true));
            let mut mounts: Vec<_> = configured.chain(list.mounts.into_iter().map(|mount| (mount, false))).collect();
            mounts.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
            let width = mounts.iter().map(|(mount, _)| mount.path.len()).max().unwrap_or(0);
            for (Mount { path, origin, options, acl }, configured) in mounts {
                if json.json {
                    let mount = json!({
                        "path": path, "origin": origin, "options": options, "acl": acl, "configured": configured,
                    });
                    output::json_line(&mut out, &mount)?;
                    continue;
                }
                let options = options.iter().map(|(key, value)| format!("{key}={value}"));
                let by = configured.then(|| "(configured)".to_owned());
                let more: Vec<String> = options.chain(acl.as_ref().map(shown)).chain(by).collect();
                let line = format!("{path:width$}  {origin}  {}", more.join(" "));
                writeln!(out, "{}", line.trim_end())?;
            }
        }
        Command::Remove { path, coordinator } => {
            coordinator.client(None)?.remove_mount(&FsPath::new(path)?).await?;
            writeln!(out, "{path} is removed")?;
        }
    }
    Ok(out.flush()?)
}

/// An access list, as the options of `add`.
fn shown(acl: &MountAcl) -> String {
    let named = |option: &str, names: &[String]| (!names.is_empty()).then(|| format!("{option} {}", names.join(",")));
    match (named("--read", &acl.read), named("--write", &acl.write)) {
        (Some(read), Some(write)) => format!("{read} {write}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "(for nobody)".to_owned(),
    }
}

/// The two sides of `KEY=VALUE`.
pub(crate) fn pair(option: &str) -> anyhow::Result<(String, String)> {
    let pair = option.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| {
        // It may be a credential that lost its name: it is not shown.
        Fault::new(Exit::Usage, "an option is not KEY=VALUE", "write it as in `-o s3.region=eu-central-1`").into()
    })
}
