//! Where the commands that talk to a coordinator find it.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::{Config, Loaded};
use forebay_coordinator::ApiClient;
use forebay_types::Role;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::logging;
use forebay_node::security::Security;
use forebay_node::{binding, state};

/// Which coordinator to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CoordinatorArgs {
    /// The coordinator [default: coordinator.hostname, or that of the `forebay up` on this machine]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// The configuration file [default: $FOREBAY_CONFIG, else /etc/forebay/forebay.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A client of a coordinator, which proves who this user is.
pub(crate) struct Coordinator {
    api: ApiClient,
    /// What the client proves is renewed as long as it is here.
    _security: Option<Arc<Security>>,
}

impl Coordinator {
    /// A client of the coordinator at `address`, asked as this configuration says. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When that is no address; and when it should prove who it is, and cannot.
    pub(crate) fn at(address: &str, config: &Config) -> anyhow::Result<Self> {
        let source = binding::group_source(config)?;
        Self::from_source(address, source, config)
    }

    /// The same, from an address of this machine if one is given.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub(crate) fn from_source(address: &str, source: Option<IpAddr>, config: &Config) -> anyhow::Result<Self> {
        let security = Security::of_client(config, false)?;
        let proved = security.as_deref().map(|own| own.http_client(Some(Role::Coordinator))).transpose()?.flatten();
        Ok(Self { api: ApiClient::from_source(address, source, proved)?, _security: security })
    }
}

impl Deref for Coordinator {
    type Target = ApiClient;

    fn deref(&self) -> &ApiClient {
        &self.api
    }
}

impl CoordinatorArgs {
    /// A client of the coordinator, which proves what this user's configuration has. `path`, as a person wrote it, says which where
    /// several mounts have one. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is none to be found, or more than one; and when it should prove who it is, and cannot.
    pub(crate) fn client(&self, path: Option<&Path>) -> anyhow::Result<Coordinator> {
        let config = ConfigArgs { config: self.config.clone(), settings: Vec::new() };
        let loaded = config.load([])?;
        logging::start_quiet(&loaded.config)?;
        Coordinator::at(&self.address(&loaded, path)?, &loaded.config)
    }

    fn address(&self, loaded: &Loaded, path: Option<&Path>) -> anyhow::Result<String> {
        if let Some(address) = &self.coordinator {
            return Ok(address.clone());
        }
        match Known::find(loaded, path)? {
            Known::Address(address) => Ok(address),
            Known::Mount(state) => Ok(state.coordinator.unwrap_or_default()),
        }
    }
}

/// A coordinator that is not named on the command line.
pub(crate) enum Known {
    /// Named by the configuration.
    Address(String),
    /// That of a mount on this machine.
    Mount(Box<state::RunState>),
}

impl Known {
    /// `path`, as a person wrote it, says which where several mounts have one.
    ///
    /// # Errors
    /// When there is none to be found, or more than one.
    pub(crate) fn find(loaded: &Loaded, path: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(host) = &loaded.config.coordinator_hostname {
            return Ok(Self::Address(binding::host_and_port(host.as_str(), loaded.config.coordinator_port)));
        }
        let mounted = |state: &state::RunState| path.is_some_and(|path| path.starts_with(&state.mountpoint));
        let with_one = state::all().into_iter().filter(|state| state.coordinator.is_some());
        let mut found: Vec<_> = with_one.collect();
        if found.iter().any(mounted) {
            found.retain(mounted);
        }
        let next = "name one with `--coordinator HOST:PORT`, or as `coordinator.hostname`";
        match &found[..] {
            [state] => Ok(Self::Mount(Box::new(state.clone()))),
            [] => {
                let what = "no coordinator is named, and no `forebay up` runs on this machine";
                Err(Fault::new(Exit::Usage, what, next).into())
            }
            several => {
                let mounts: Vec<_> = several.iter().map(|state| state.mountpoint.as_str()).collect();
                let what = format!("several mounts on this machine have a coordinator: {}", mounts.join(", "));
                Err(Fault::new(Exit::Usage, what, format!("{next}, or give a path below one of them")).into())
            }
        }
    }
}
