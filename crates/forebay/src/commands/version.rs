//! `forebay version`: what this binary is.

use std::collections::BTreeSet;
use std::io::Write as _;

use forebay_rdma::{Library, Resource};
use serde_json::json;

use crate::output::{self, JsonArg};

const ORIGINS: [&str; 6] = ["s3", "gs", "az", "abfs", "http(s)", "file"];
const TRANSPORTS: [&str; 3] = ["local", "tcp", "ucx"];

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
    let ucx = Ucx::find();
    let mut out = output::stdout();
    if args.json.json {
        let version = json!({
            "version": version, "commit": commit, "target": target, "rustc": compiler, "profile": profile,
            "origins": ORIGINS, "transports": TRANSPORTS, "ucx": ucx.json(),
        });
        output::json_line(&mut out, &version)?;
    } else {
        writeln!(out, "forebay {version}{}", commit.map(|commit| format!(" ({commit})")).unwrap_or_default())?;
        writeln!(out, "  target      {target}, {profile}")?;
        writeln!(out, "  built with  {compiler}")?;
        writeln!(out, "  origins     {}", ORIGINS.join(", "))?;
        writeln!(out, "  transports  {}", TRANSPORTS.join(", "))?;
        writeln!(out, "  ucx         {}", ucx.text())?;
    }
    Ok(out.flush()?)
}

/// The libucp of this machine, and what it offers.
struct Ucx(Result<(&'static Library, Vec<Resource>), String>);

impl Ucx {
    fn find() -> Self {
        let found = Library::load(None).and_then(|library| Ok((library, library.transports()?)));
        Self(found.map_err(|error| error.to_string()))
    }

    /// The names of its transports, each once.
    fn transports(resources: &[Resource]) -> Vec<&str> {
        let names: BTreeSet<_> = resources.iter().map(|resource| resource.transport.as_str()).collect();
        names.into_iter().collect()
    }

    fn json(&self) -> serde_json::Value {
        match &self.0 {
            Ok((library, resources)) => json!({
                "version": library.version().to_string(), "path": library.path(),
                "transports": Self::transports(resources), "rdma": resources.iter().any(Resource::is_rdma),
            }),
            Err(why) => json!({ "error": why }),
        }
    }

    fn text(&self) -> String {
        match &self.0 {
            Ok((library, resources)) => {
                let rdma = if resources.iter().any(Resource::is_rdma) { "RDMA" } else { "no RDMA device here" };
                let transports = Self::transports(resources).join(", ");
                format!("{} ({}): {transports}; {rdma}", library.version(), library.path().display())
            }
            Err(why) => why.clone(),
        }
    }
}
