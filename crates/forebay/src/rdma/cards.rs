//! The network cards that the configuration names, and the lanes on them.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{Address, Rdma};
use forebay_memory::Pool;
use forebay_rdma::{Lane, LaneOptions, LaneStats, Resource, Trace};
use forebay_types::ByteSize;

use super::library;
use crate::binding::first_address;

/// One network card to use, or all that UCX chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Its name in logs.
    pub(crate) name: String,
    /// UCX's name of it; none leaves the choice to UCX.
    pub(crate) device: Option<String>,
    /// The entry of its GID table; none leaves the choice to UCX.
    pub(crate) gid_index: Option<u32>,
    /// Its first address.
    pub(crate) address: Option<IpAddr>,
}

/// What this machine has.
pub(crate) struct Machine {
    rdma: Rdma,
    /// Addresses, each with its interface.
    addresses: Vec<(String, Address)>,
}

impl Machine {
    /// Looks.
    ///
    /// # Errors
    /// When the network interfaces cannot be listed.
    pub(crate) fn look(root: &Root) -> anyhow::Result<Self> {
        let addresses = Address::of_this_machine().context("cannot list the network interfaces")?;
        Ok(Self { rdma: Rdma::read(root), addresses })
    }

    /// The cards for data: those of the interfaces and devices that are named, or the one that stands for UCX's choice.
    ///
    /// # Errors
    /// When one is not there; it is named, with those that are.
    pub(crate) fn data_cards(&self, config: &Config) -> anyhow::Result<Vec<Card>> {
        let any_transport = !config.network_rdma_data_transports.is_empty();
        let of_interfaces = config.network_rdma_data_network.iter();
        let of_interfaces = of_interfaces.map(|interface| self.card_of_interface(interface.as_str(), any_transport));
        let of_devices = config.network_rdma_data_bind_device.iter().map(|device| self.card_of_device(device));
        let mut cards = Vec::new();
        for card in of_interfaces.chain(of_devices) {
            let card = card?;
            // Named twice, as an interface and as a device.
            if !cards.iter().any(|known: &Card| known.device == card.device) {
                cards.push(card);
            }
        }
        Ok(if cards.is_empty() { vec![Card::any()] } else { cards })
    }

    /// The card for attributes and listings.
    ///
    /// # Errors
    /// As for [`Machine::data_cards`].
    pub(crate) fn metadata_card(&self, config: &Config) -> anyhow::Result<Card> {
        let card = match &config.network_rdma_metadata_device {
            None => Card::any(),
            Some(device) if device.contains(':') || self.is_interface(device) => self.card_of_device(device)?,
            Some(device) => self.card_of_device(&format!("{device}:{}", config.network_rdma_metadata_ib_port))?,
        };
        // Negative means the default one.
        Ok(Card { gid_index: u32::try_from(config.network_rdma_metadata_gid_index).ok(), ..card })
    }

    fn card_of_interface(&self, name: &str, any_transport: bool) -> anyhow::Result<Card> {
        // With transports of the user's choice a card need not be one of RDMA.
        let as_it_is = || (any_transport && self.is_interface(name)).then(|| name.to_owned());
        let port = self.rdma.port_of_interface(name).map(|port| port.name.clone());
        let Some(device) = port.or_else(as_it_is) else {
            anyhow::bail!("no RDMA device belongs to interface `{name}`; RDMA devices here: {}", self.listed());
        };
        let address = first_address(&self.addresses, name);
        Ok(Card { name: name.to_owned(), device: Some(device), gid_index: None, address })
    }

    fn card_of_device(&self, device: &str) -> anyhow::Result<Card> {
        let (name, interface) = match self.rdma.port(device) {
            Some((_, port)) => (&*port.name, port.interfaces.first().map(String::as_str)),
            None if self.is_interface(device) => (device, Some(device)),
            None => anyhow::bail!("there is no RDMA device `{device}`; RDMA devices here: {}", self.listed()),
        };
        let address = interface.and_then(|interface| first_address(&self.addresses, interface));
        Ok(Card { name: name.to_owned(), device: Some(name.to_owned()), gid_index: None, address })
    }

    fn is_interface(&self, name: &str) -> bool {
        self.addresses.iter().any(|(interface, _)| interface == name)
    }

    fn listed(&self) -> String {
        let ports: Vec<_> = self.rdma.ports().map(|(_, port)| port.name.clone()).collect();
        listed(&ports)
    }
}

impl Card {
    fn any() -> Self {
        Self { name: "any".to_owned(), device: None, gid_index: None, address: None }
    }

    /// A lane on it, which takes `name` in logs, with `registered` bytes of `pool` known to it. Blocks while they are
    /// registered.
    ///
    /// # Errors
    /// When UCX cannot use the card, or it has no RDMA and no transports were configured.
    pub(crate) fn lane(
        &self,
        config: &Config,
        name: String,
        pool: &Pool,
        registered: ByteSize,
        trace: Option<&Arc<Trace>>,
    ) -> anyhow::Result<Arc<Lane>> {
        let library = library(config)?;
        let options = LaneOptions {
            devices: self.device.iter().cloned().collect(),
            transports: config.network_rdma_data_transports.clone(),
            gid_index: self.gid_index,
            spin: config.network_rdma_data_spin,
            trace: trace.cloned(),
            ..LaneOptions::new(name, pool.clone(), registered)
        };
        let lane = Lane::start(library, options).with_context(|| format!("card {}", self.name))?;
        let is_rdma = lane.resources().iter().any(Resource::is_rdma);
        if !is_rdma && config.network_rdma_data_transports.is_empty() {
            let found: Vec<_> = lane.resources().iter().map(ToString::to_string).collect();
            anyhow::bail!(
                "UCX {} ({}) offers no RDMA on card {}: it found {}; `ucx_info -d` lists what it sees",
                library.version(),
                library.path().display(),
                self.name,
                listed(&found)
            );
        }
        Ok(Arc::new(lane))
    }
}

/// What a lane counts, as JSON.
pub(super) fn report(lane: &Lane) -> serde_json::Value {
    let LaneStats {
        registered, registration_failures, connections, operations_in_flight, lent, fetched_into_lent, ..
    } = lane.stats();
    serde_json::json!({
        "card": lane.name(),
        "registered_bytes": registered.as_u64(),
        "registered_ring_bytes": lent.as_u64(),
        "fetched_into_rings": fetched_into_lent,
        "registration_failures": registration_failures,
        "connections": connections,
        "operations_in_flight": operations_in_flight,
    })
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Config {
        let sources = forebay_config::Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
        Config::load(&sources).unwrap().config
    }

    #[test]
    fn a_card_that_is_not_there_is_named_with_those_that_are() {
        let none = Machine::look(&Root::new("/nonexistent")).unwrap();
        let wanted = config(&["network.rdma.data.bind.device=mlx5_0:1"]);
        let error = none.data_cards(&wanted).unwrap_err().to_string();
        assert!(error.contains("mlx5_0:1") && error.contains("none"), "{error}");
        let error = none.data_cards(&config(&["network.rdma.data.network=ib0"])).unwrap_err().to_string();
        assert!(error.contains("ib0"), "{error}");
        assert_eq!(none.data_cards(&config(&[])).unwrap(), [Card::any()]);
        let metadata = config(&["network.rdma.metadata.device=mlx5_3", "network.rdma.metadata.ib_port=2"]);
        let error = none.metadata_card(&metadata).unwrap_err().to_string();
        assert!(error.contains("mlx5_3:2"), "{error}");
    }

    #[test]
    fn metadata_has_a_device_a_port_and_a_gid_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        for port in ["1", "2"] {
            let port = root.path().join("sys/class/infiniband/mlx5_0/ports").join(port);
            std::fs::create_dir_all(port.join("gids")).unwrap();
            std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
            std::fs::write(port.join("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
            // An interface that every machine has, with an address.
            std::fs::write(port.join("gid_attrs/ndevs/0"), "lo\n").unwrap();
        }
        let machine = Machine::look(&Root::new(root.path())).unwrap();
        let card = |settings: &[&str]| machine.metadata_card(&config(settings)).unwrap();
        assert_eq!(card(&[]), Card::any());
        assert_eq!(card(&["network.rdma.metadata.gid_index=3"]).gid_index, Some(3));
        let second = card(&["network.rdma.metadata.device=mlx5_0", "network.rdma.metadata.ib_port=2"]);
        assert_eq!((second.device.as_deref(), second.gid_index), (Some("mlx5_0:2"), None));
        assert!(second.address.is_some());
        let twice = config(&["network.rdma.data.network=lo", "network.rdma.data.bind.device=mlx5_0:1"]);
        assert_eq!(machine.data_cards(&twice).unwrap().len(), 1);
    }
}
