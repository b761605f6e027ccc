//! The options that every command with a configuration shares.

use std::path::PathBuf;

use forebay_config::{Config, ConfigErrors, Loaded, Sources};

/// `--rdma-network`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RdmaArgs {
    /// Use RDMA over the devices of these network interfaces [default: network.rdma.data.enabled, off]
    #[arg(long, value_name = "INTERFACE:...", value_delimiter = ':')]
    rdma_network: Vec<String>,
}

impl RdmaArgs {
    /// The settings that it stands for.
    pub(crate) fn settings(&self) -> Vec<String> {
        if self.rdma_network.is_empty() {
            return Vec::new();
        }
        let network = format!("network.rdma.data.network={}", self.rdma_network.join(","));
        vec!["network.rdma.data.enabled=true".to_owned(), network]
    }
}

/// `--etcd`, `--cache-group` and `--group-network`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The etcd that holds the cluster's state [default: cluster.etcd.endpoints, none]
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    etcd: Vec<String>,
    /// The cache group: its workers share a ring [default: cluster.cache_group, default]
    #[arg(long, value_name = "NAME")]
    pub(crate) cache_group: Option<String>,
    /// The interface for TCP between the nodes of the cluster [default: network.group_network, by the routing table]
    #[arg(long, value_name = "INTERFACE")]
    group_network: Option<String>,
}

impl ClusterArgs {
    /// The settings that it stands for.
    pub(crate) fn settings(&self) -> Vec<String> {
        let etcd = (!self.etcd.is_empty()).then(|| format!("cluster.etcd.endpoints={}", self.etcd.join(",")));
        let group = self.cache_group.as_ref().map(|group| format!("cluster.cache_group={group}"));
        let network = self.group_network.as_ref().map(|interface| format!("network.group_network={interface}"));
        etcd.into_iter().chain(group).chain(network).collect()
    }
}

/// `--port` and `--disk-serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ServeArgs {
    /// The port where others read the cached data; 0 takes a free one [default: worker.rpc.port, 29999]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// How blocks go from disk to a TCP connection: dio, pagecache or splice [default: worker.disk.serve, dio]
    #[arg(long, value_name = "MODE")]
    disk_serve: Option<String>,
}

impl ServeArgs {
    /// The settings that it stands for.
    pub(crate) fn settings(&self) -> Vec<String> {
        let port = self.port.map(|port| format!("worker.rpc.port={port}"));
        let mode = self.disk_serve.as_ref().map(|mode| format!("worker.disk.serve={mode}"));
        port.into_iter().chain(mode).collect()
    }
}

/// `--read-only`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ReadOnlyArg {
    /// Refuse writes: short for -o write.mode=none
    #[arg(long)]
    read_only: bool,
}

impl ReadOnlyArg {
    /// The setting that it stands for.
    pub(crate) fn setting(self) -> Option<String> {
        self.read_only.then(|| "write.mode=none".to_owned())
    }
}

/// `--config` and `-o`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file [default: $FOREBAY_CONFIG, else /etc/forebay/forebay.toml if it is there]
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    /// Set a configuration key over file and environment; `forebay conf show` lists the keys
    #[arg(short = 'o', value_name = "KEY=VALUE", help_heading = "Configuration")]
    pub(crate) settings: Vec<String>,
}

impl ConfigArgs {
    /// Reads file, environment and flags. `more` are settings that options of the command stand for.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn load(&self, more: impl IntoIterator<Item = String>) -> Result<Loaded, ConfigErrors> {
        Config::load(&self.sources(more))
    }

    /// Reads `text`, called `name`, or the file that was named on the command line, under the flags. Nothing of this machine's own
    /// counts: it is about another one.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn load_elsewhere(
        &self,
        name: &str,
        text: String,
        more: impl IntoIterator<Item = String>,
    ) -> Result<Loaded, ConfigErrors> {
        let sources = match &self.config {
            Some(file) => Sources::new().file(file),
            None => Sources::new().text(name, text),
        };
        Config::load(&sources.flags(self.settings.iter().cloned()).flags(more))
    }

    fn sources(&self, more: impl IntoIterator<Item = String>) -> Sources {
        Sources::of_machine(self.config.clone()).flags(self.settings.iter().cloned()).flags(more)
    }
}
