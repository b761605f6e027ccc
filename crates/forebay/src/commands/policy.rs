//! `forebay policy`: how what lies below a path is cached.

use std::io::Write as _;

use clap::Subcommand;
use forebay_coordinator::api::Policy;
use forebay_types::FsPath;
use serde_json::Value;

use crate::coordinator_args::CoordinatorArgs;
use crate::output::{self, JsonArg};
use crate::runtime;

/// Set how the cache treats a path and everything below it
///
/// Where several policies apply to a path, each option comes from the longest policy path that sets it. A change takes
/// effect within moments, also on what is already cached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay policy set /s3/models --replicas 3 --pin
  forebay policy list")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set the policy of a path; it replaces the one that was there
    #[command(after_help = "\
Example:
  forebay policy set /s3/models --replicas 3 --pin
  forebay policy set /s3/scratch --priority low --quota 100GiB --metadata-ttl 5s
  forebay policy set /s3/archive --skip-cache
  forebay policy set /s3/datasets/imagenet --immutable")]
    Set {
        /// A path of the namespace
        path: String,
        #[command(flatten)]
        wishes: Box<Wishes>,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// List the policies
    #[command(after_help = "\
Example:
  forebay policy list")]
    List {
        #[command(flatten)]
        json: JsonArg,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// Remove the policy of a path
    #[command(after_help = "\
Example:
  forebay policy remove /s3/models")]
    Remove {
        /// A path of the namespace
        path: String,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Wishes {
    /// How long attributes and listings stay valid
    #[arg(long, value_name = "DURATION")]
    metadata_ttl: Option<String>,
    /// Keep cached blocks until they are freed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pin: Option<bool>,
    /// Eviction priority: low (evicted first), normal or high
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// Most bytes of the path that each worker caches, in memory and on disk each
    #[arg(long, value_name = "SIZE")]
    quota: Option<String>,
    /// Serve the path from the origin and cache nothing
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    skip_cache: Option<bool>,
    /// The files never change: their attributes stay valid for ever
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    immutable: Option<bool>,
    /// How many workers hold each block
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
}

/// Runs it.
///
/// # Errors
/// What the coordinator refuses.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    runtime::block_on(policy(args.command))
}

async fn policy(command: Command) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match command {
        Command::Set { path, wishes, coordinator } => {
            let Wishes { metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas } = *wishes;
            let policy = Policy { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas };
            let policy = coordinator.client(None)?.set_policy(&policy).await?;
            writeln!(out, "{}", told(&policy)?)?;
        }
        Command::List { json, coordinator } => {
            for policy in coordinator.client(None)?.policies().await? {
                if json.json {
                    output::json_line(&mut out, &serde_json::to_value(&policy)?)?;
                } else {
                    writeln!(out, "{}", told(&policy)?)?;
                }
            }
        }
        Command::Remove { path, coordinator } => {
            coordinator.client(None)?.remove_policy(&FsPath::new(&path)?).await?;
            writeln!(out, "the policy of {path} is removed")?;
        }
    }
    Ok(out.flush()?)
}

/// The path and what is wished, as the flags are written.
fn told(policy: &Policy) -> anyhow::Result<String> {
    let Value::Object(fields) = serde_json::to_value(policy)? else { return Ok(policy.path.clone()) };
    let wishes = fields.iter().filter(|(name, value)| *name != "path" && !value.is_null()).map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{}={value}", name.replace('_', "-"))
    });
    Ok(format!("{}  {}", policy.path, wishes.collect::<Vec<_>>().join(" ")))
}
