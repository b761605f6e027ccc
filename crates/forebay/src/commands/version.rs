//! `forebay version`: what this binary is.

use std::io::Write as _;

use serde_json::json;

use crate::output::{self, JsonArg};

const ORIGINS: [&str; 6] = ["s3", "gs", "az", "abfs", "http(s)", "file"];
const TRANSPORTS: [&str; 2] = ["local", "tcp"];

/// Show the version and what it was built from
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay version --json")]
pub(crate) struct Args {
    #[command(flatten)]
    json: JsonArg,
}

/// Runs it.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("FOREBAY_BUILD_COMMIT");
    let (target, compiler) = (env!("FOREBAY_BUILD_TARGET"), env!("FOREBAY_BUILD_RUSTC"));
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut out = output::stdout();
    if args.json.json {
        let version = json!({
            "version": version, "commit": commit, "target": target, "rustc": compiler, "profile": profile,
            "origins": ORIGINS, "transports": TRANSPORTS,
        });
        output::json_line(&mut out, &version)?;
    } else {
        writeln!(out, "forebay {version}{}", commit.map(|commit| format!(" ({commit})")).unwrap_or_default())?;
        writeln!(out, "  target      {target}, {profile}")?;
        writeln!(out, "  built with  {compiler}")?;
        writeln!(out, "  origins     {}", ORIGINS.join(", "))?;
        writeln!(out, "  transports  {}", TRANSPORTS.join(", "))?;
    }
    Ok(out.flush()?)
}
