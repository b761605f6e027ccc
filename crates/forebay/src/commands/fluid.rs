//! `forebay fluid`: what a pod of Fluid's CacheRuntime runs.
//!
//! Fluid gives each pod a file of JSON with the data set's mounts, the parts of the runtime and their options, and says
//! in the environment which part the pod is. That becomes a command line of this program, to which this command gives
//! way: the master is a coordinator, a worker a worker, a client a mount. Workers and mounts find each other by the
//! names that pods of a StatefulSet have, so there need be no etcd. Credentials come in files, and go into the
//! environment of the worker alone.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;
use forebay_node::fluid::{self, Line, RuntimeConfig};

use crate::exit::{Exit, Fault};
use crate::output;

/// Which part of the runtime the pod is.
const COMPONENT: &str = "FLUID_RUNTIME_COMPONENT_TYPE";
/// The file that Fluid writes.
const CONFIG: &str = "FLUID_RUNTIME_CONFIG_PATH";
/// The paths of a DataLoad, and how many replicas each is to have, separated by colons.
const PATHS: &str = "FLUID_DATALOAD_DATA_PATH";
const REPLICAS: &str = "FLUID_DATALOAD_PATH_REPLICAS";

/// Run what a pod of Fluid's CacheRuntime is for
///
/// It reads the configuration that Fluid gives the pod, and gives way to `forebay coordinator`, `worker`, `mount` or
/// `job load`. deploy/fluid has the CacheRuntimeClass.
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  forebay fluid                          # what FLUID_RUNTIME_COMPONENT_TYPE says
  forebay fluid worker --print
  forebay fluid load --coordinator svc-imagenet-master:19999"
)]
pub(crate) struct Args {
    /// What to run [default: $FLUID_RUNTIME_COMPONENT_TYPE]
    part: Option<Part>,
    /// What Fluid has written [default: $FLUID_RUNTIME_CONFIG_PATH]
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// With `load`: the coordinator, where the pod does not have what Fluid has written
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Only say which commands would be run
    #[arg(long)]
    print: bool,
}

/// What a pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// `forebay coordinator`
    Master,
    /// `forebay worker`
    Worker,
    /// `forebay mount`
    Client,
    /// `forebay job load`, for a DataLoad
    Load,
}

/// Runs it. Returns only after an error, or when nothing was to be run.
///
/// # Errors
/// When what Fluid says makes no sense, or a command cannot be run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let lines = match args.part()? {
        Part::Load => loads(args)?,
        Part::Master => vec![fluid::coordinator(&config(&args.config_file()?)?)?],
        Part::Worker => vec![fluid::worker(&config(&args.config_file()?)?)?],
        Part::Client => vec![fluid::mount(&config(&args.config_file()?)?)?],
    };
    if args.print {
        return output::print(&lines.iter().map(Line::to_string).collect::<String>());
    }
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    let Some((last, first)) = lines.split_last() else { return Ok(()) };
    for line in first {
        let ended = line.command(&program)?.status().with_context(|| format!("cannot run {}", program.display()))?;
        if !ended.success() {
            // It has said why.
            return Err(Fault::without_remedy(Exit::JobFailed, "").into());
        }
    }
    let error = last.command(&program)?.exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

impl Args {
    fn part(&self) -> anyhow::Result<Part> {
        if let Some(part) = self.part {
            return Ok(part);
        }
        let named = variable(COMPONENT)?;
        Part::from_str(&named, false).map_err(|_| {
            let next = "write `forebay fluid master`, `worker`, `client` or `load`";
            Fault::new(Exit::Usage, format!("{COMPONENT} is `{named}`, which is no part of a runtime"), next).into()
        })
    }

    fn config_file(&self) -> anyhow::Result<PathBuf> {
        match &self.config_file {
            Some(file) => Ok(file.clone()),
            None => Ok(variable(CONFIG)?.into()),
        }
    }
}

/// The commands of a DataLoad.
fn loads(args: &Args) -> anyhow::Result<Vec<Line>> {
    let coordinator = match (&args.coordinator, args.config_file()) {
        (Some(coordinator), _) => coordinator.clone(),
        (None, Ok(file)) if file.exists() => fluid::coordinator_address(&config(&file)?)?,
        (None, _) => {
            let what = "this pod does not have what Fluid has written, which says where the coordinator is";
            let next =
                "name it in `dataOperationSpecs` of the CacheRuntimeClass: `--coordinator svc-DATASET-master:19999`";
            return Err(Fault::new(Exit::Usage, what, next).into());
        }
    };
    let replicas = std::env::var(REPLICAS).unwrap_or_default();
    Ok(fluid::loads(&variable(PATHS)?, &replicas, &coordinator)?)
}

fn config(file: &Path) -> anyhow::Result<RuntimeConfig> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let what = format!("cannot read what Fluid has written, {}: {error}", file.display());
        Fault::new(Exit::Usage, what, "name it with --config-file, or have Fluid set FLUID_RUNTIME_CONFIG_PATH")
    })?;
    RuntimeConfig::parse(&text).with_context(|| format!("{} is not what Fluid 1.1 writes", file.display()))
}

fn variable(name: &str) -> Result<String, Fault> {
    std::env::var(name).map_err(|_| {
        Fault::new(Exit::Usage, format!("{name} is not set"), "run it in a pod of Fluid's CacheRuntime, or see --help")
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// What Fluid writes.
    const WRITTEN: [&str; 2] = [
        include_str!("../../../forebay-node/src/fluid/golden/s3.json"),
        include_str!("../../../forebay-node/src/fluid/golden/etcd.json"),
    ];

    fn lines_of(text: &str) -> Vec<Line> {
        let config = RuntimeConfig::parse(text).unwrap();
        [fluid::coordinator(&config), fluid::worker(&config), fluid::mount(&config)].map(Result::unwrap).into()
    }

    #[test]
    fn every_command_is_one_that_we_take() {
        let loads = fluid::loads("/imagenet:/models/llama", "1:2", "svc-imagenet-master:19999").unwrap();
        let lines: Vec<Line> = WRITTEN.into_iter().flat_map(lines_of).chain(loads).collect();
        assert_eq!(lines.len(), 8);
        for line in lines {
            let words = std::iter::once("forebay").chain(line.words.iter().map(String::as_str));
            let parsed = crate::cli::Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn the_class_runs_commands_that_we_take() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join("deploy/fluid/cacheruntimeclass.yaml")).unwrap();
        let class = &yaml_rust2::YamlLoader::load_from_str(&text).unwrap()[0];
        let words = |arguments: &yaml_rust2::Yaml| -> Vec<String> {
            let words = arguments.as_vec().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
            std::iter::once("forebay".to_owned()).chain(words).collect()
        };
        let image = concat!("ghcr.io/forebay/forebay:", env!("CARGO_PKG_VERSION"));
        for part in ["master", "worker", "client"] {
            let container = &class["topology"][part]["template"]["spec"]["containers"][0];
            assert_eq!(container["image"].as_str(), Some(image), "{part}");
            assert!(crate::cli::Cli::try_parse_from(words(&container["args"])).is_ok(), "{part}");
        }
        let operation = &class["dataOperationSpecs"][0];
        assert_eq!((operation["name"].as_str(), operation["image"].as_str()), (Some("DataLoad"), Some(image)));
        assert!(crate::cli::Cli::try_parse_from(words(&operation["args"])).is_ok());
    }
}
