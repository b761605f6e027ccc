//! `forebay doctor`: what this machine has, what is wrong with it, and what to type.
//!
//! The facts and the verdicts are [`forebay_doctor`]'s. What is here asks the origins, by the very code that a worker
//! uses, and turns failures into an exit code.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_config::{Config, Loaded, Sources};
use forebay_doctor::checks::ports;
use forebay_doctor::facts::{Address, Clock, Configuration, OriginProbe, Ucx};
use forebay_doctor::{Facts, Outside, Report, Root, Section};
use serde_json::json;

use crate::config_args::{ConfigArgs, RdmaArgs};
use crate::exit::{Exit, Fault, Told};
use crate::output::{self, JsonArg};
use crate::{assembly, runtime};

/// How long an origin may take to answer, retries included.
const ORIGIN_WITHIN: Duration = Duration::from_secs(20);

/// Find out what does not work on this machine, and what to type
///
/// Shows what is there, part by part, and then a verdict on each thing that Forebay needs: `ok`, `info`, `warn` (works, but
/// not as well as it could) or `fail` (what the configuration asks for cannot work), with what to type. Needs no other
/// program, and root only to name other users' processes. Give it the options that the worker or mount is started with.
/// With --json it is one document: `facts`, `checks` and `counts`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay doctor
  forebay doctor --rdma-network ib0:ib2 --origin s3://bucket/prefix
  forebay doctor --json | jq '.checks[] | select(.verdict == \"fail\")'")]
pub(crate) struct Args {
    /// Ask this origin too, besides those in `mounts`; may be repeated
    #[arg(long, value_name = "URL")]
    origin: Vec<String>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When anything failed, with the code of the first.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loaded = args.config.load(args.rdma.settings());
    let (loaded, configuration) = match loaded {
        Ok(loaded) => {
            let configuration = Configuration::of(&loaded);
            (loaded, configuration)
        }
        // The machine can be looked at all the same.
        Err(errors) => {
            let problems = errors.to_string().lines().map(str::to_owned).collect();
            let defaults = Config::load(&Sources::new()).context("the defaults are wrong")?;
            (defaults, Configuration { problems, ..Configuration::default() })
        }
    };
    // Before there are other threads, as UCX wants it.
    let ucx = Ucx::find(loaded.config.ucx_library.as_deref());
    let origins = runtime::block_on(ask_origins(&loaded, &args.origin))?;
    let origin_exit = origins.iter().find_map(|(_, exit)| *exit).unwrap_or(Exit::Unavailable);
    let outside = Outside {
        addresses: Address::of_this_machine(),
        ucx,
        clock: Clock::read(),
        origins: origins.into_iter().map(|(probe, _)| probe).collect(),
        configuration,
        search_path: std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default(),
        ports: ports::configured(&loaded.config).into_iter().map(|(_, port)| port).collect(),
    };
    let report = Report::new(Facts::gather(&Root::default(), outside), &loaded.config);
    let mut out = output::stdout();
    if args.json.json {
        output::json_line(&mut out, &json!(report))?;
    } else {
        report.print(&mut out)?;
    }
    out.flush()?;
    let Some(first) = report.failures().next() else { return Ok(()) };
    let exit = match first.section {
        Section::Configuration => Exit::Usage,
        Section::Origin => origin_exit,
        _ => Exit::Failed,
    };
    let (count, name) = (report.counts.fail, first.name);
    let what =
        if count == 1 { format!("{name} failed") } else { format!("{count} checks failed, the first is {name}") };
    Err(Fault::new(exit, what, "the line below each that failed says what to type").into())
}

/// Asks every origin of the configuration, and `more`, all at once: each with the exit code of its failure.
async fn ask_origins(loaded: &Loaded, more: &[String]) -> anyhow::Result<Vec<(OriginProbe, Option<Exit>)>> {
    let configured = loaded.config.mounts.iter().map(|mount| &mount.origin);
    let ask = configured.chain(more).map(|url| ask_origin(loaded, url));
    Ok(futures::future::join_all(ask).await)
}

async fn ask_origin(loaded: &Loaded, url: &str) -> (OriginProbe, Option<Exit>) {
    let begun = Instant::now();
    let answer = tokio::time::timeout(ORIGIN_WITHIN, assembly::probe_origin(loaded, url)).await;
    let took = begun.elapsed();
    let answer = answer.unwrap_or_else(|_| {
        let next = "check the network, proxies and origin.s3.endpoint; curl -v to the endpoint shows where it stops";
        Err(Fault::new(Exit::Unavailable, "no answer", next).into())
    });
    match answer {
        Ok(()) => (OriginProbe::answered(url, took), None),
        Err(error) => {
            let Told { exit, what, next } = Told::from(&error);
            (OriginProbe::failed(url, took, what, next), Some(exit))
        }
    }
}
