//! `forebay version`: what this binary is.

use std::io::Write as _;

use forebay_doctor::facts::{Ucx, VerbsLibraries};
use serde_json::json;

use crate::output::{self, JsonArg};

const ORIGINS: [&str; 6] = ["s3", "gs", "az", "abfs", "http(s)", "file"];
const TRANSPORTS: [&str; 4] = ["local", "tcp", "ucx", "verbs"];

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
    let ucx = Ucx::find(None);
    let verbs = VerbsLibraries::find();
    let mut out = output::stdout();
    if args.json.json {
        let version = json!({
            "version": version, "commit": commit, "target": target, "rustc": compiler, "profile": profile,
            "origins": ORIGINS, "transports": TRANSPORTS, "ucx": ucx_json(&ucx),
            "verbs": verbs_json(&verbs),
        });
        output::json_line(&mut out, &version)?;
    } else {
        writeln!(out, "forebay {version}{}", commit.map(|commit| format!(" ({commit})")).unwrap_or_default())?;
        writeln!(out, "  target      {target}, {profile}")?;
        writeln!(out, "  built with  {compiler}")?;
        writeln!(out, "  origins     {}", ORIGINS.join(", "))?;
        writeln!(out, "  transports  {}", TRANSPORTS.join(", "))?;
        writeln!(out, "  ucx         {}", ucx.summary())?;
        writeln!(out, "  verbs       {}", verbs.summary())?;
    }
    Ok(out.flush()?)
}

/// The libucp of this machine, and what it offers.
fn ucx_json(ucx: &Ucx) -> serde_json::Value {
    match &ucx.error {
        None => json!({
            "version": ucx.version, "path": ucx.path, "transports": ucx.transports, "rdma": !ucx.rdma.is_empty(),
        }),
        Some(why) => json!({ "error": why }),
    }
}

/// The libibverbs and librdmacm of this machine, and what they see.
fn verbs_json(verbs: &VerbsLibraries) -> serde_json::Value {
    match &verbs.error {
        None => json!({
            "rdma_core": verbs.rdma_core, "libibverbs": verbs.libibverbs, "librdmacm": verbs.librdmacm,
            "devices": verbs.devices, "unopened": verbs.unopened,
        }),
        Some(why) => json!({ "error": why }),
    }
}
