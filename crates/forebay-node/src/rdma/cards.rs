//! The network cards that the configuration names, and the I/O threads on them.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::{Config, SecurityMode};
use forebay_doctor::Root;
use forebay_doctor::facts::{Address, Port, Rdma};
use forebay_memory::Pool;
use forebay_rdma::{FabricOptions, IoThread, IoThreadOptions, IoThreadStats, Resource, Trace};
use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;

use super::library;
use super::rails::Rail;
use crate::binding::{first_address, interface_names};
use crate::error::{Exit, Fault};

/// One network card to use, or all that UCX chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its name in logs.
    pub name: String,
    /// UCX's name of it; none leaves the choice to UCX.
    pub device: Option<String>,
    /// What is asked of its fabric.
    pub fabric: FabricOptions,
    /// Its first address.
    pub address: Option<IpAddr>,
    /// How many leading bits of that are its subnet's.
    pub prefix: Option<u8>,
    /// The NUMA node that it is next to.
    pub numa_node: Option<u32>,
}

/// What this machine has.
pub struct Machine {
    rdma: Rdma,
    /// Addresses, each with its interface.
    addresses: Vec<(String, Address)>,
    /// Network interfaces, those without an address too.
    interfaces: Vec<String>,
}

impl Machine {
    /// Looks.
    ///
    /// # Errors
    /// When the network interfaces cannot be listed.
    pub fn look(root: &Root) -> anyhow::Result<Self> {
        let addresses = Address::of_this_machine().context("cannot list the network interfaces")?;
        Ok(Self { rdma: Rdma::read(root), interfaces: interface_names(&addresses), addresses })
    }

    /// The cards for data: those of the interfaces and devices that are named, or the one that stands for UCX's choice.
    ///
    /// # Errors
    /// When one is not there; it is named, with those that are.
    pub fn data_cards(&self, config: &Config) -> anyhow::Result<Vec<Card>> {
        let any_transport = !config.network_rdma_data_transports.is_empty();
        let of_interfaces = config.network_rdma_data_network.iter();
        let of_interfaces = of_interfaces.map(|interface| self.card_of_interface(interface.as_str(), any_transport));
        let of_devices = config.network_rdma_data_bind_device.iter();
        let of_devices = of_devices.map(|device| self.card_of_device(device).context("network.rdma.data.bind.device"));
        let mut cards = Vec::new();
        for card in of_interfaces.chain(of_devices) {
            let card = card?;
            // Named twice, as an interface and as a device.
            if !cards.iter().any(|known: &Card| known.device == card.device) {
                cards.push(card);
            }
        }
        if cards.is_empty() {
            cards.push(Card::any());
        }
        let fabric = data_fabric(config);
        cards.iter_mut().for_each(|card| card.fabric = fabric);
        Ok(cards)
    }

    /// The card for attributes and listings.
    ///
    /// # Errors
    /// As for [`Machine::data_cards`].
    pub fn metadata_card(&self, config: &Config) -> anyhow::Result<Card> {
        let card = match &config.network_rdma_metadata_device {
            None => Ok(Card::any()),
            Some(device) if device.contains(':') || self.is_interface(device) => self.card_of_device(device),
            Some(device) => self.card_of_device(&format!("{device}:{}", config.network_rdma_metadata_ib_port)),
        };
        let card = card.context("network.rdma.metadata.device")?;
        // Negative means the default one.
        let gid_index = u32::try_from(config.network_rdma_metadata_gid_index).ok();
        Ok(Card { fabric: FabricOptions { gid_index, ..FabricOptions::default() }, ..card })
    }

    fn card_of_interface(&self, name: &str, any_transport: bool) -> anyhow::Result<Card> {
        // With transports of the user's choice a card need not be one of RDMA.
        let as_it_is = || (any_transport && self.is_interface(name)).then(|| name.to_owned());
        let port = self.rdma.port_of_interface(name).map(|port| port.name.clone());
        let numa_node = port.as_ref().and_then(|port| self.rdma.port(port)?.0.numa_node);
        let Some(device) = port.or_else(as_it_is) else {
            return Err(self.no_card("network.rdma.data.network", name).into());
        };
        let card = Card { name: name.to_owned(), device: Some(device), numa_node, ..Card::default() };
        Ok(self.with_address(card, Some(name)))
    }

    fn card_of_device(&self, device: &str) -> anyhow::Result<Card> {
        let (name, interface, numa_node) = match self.rdma.port(device) {
            Some((of, port)) => (&*port.name, port.interfaces.first().map(String::as_str), of.numa_node),
            None if self.is_interface(device) => (device, Some(device), None),
            None => {
                let what = format!("there is no RDMA device `{device}`");
                return Err(
                    Fault::new(Exit::Usage, what, format!("{}; names are case-sensitive", self.listed())).into()
                );
            }
        };
        let card = Card { name: name.to_owned(), device: Some(name.to_owned()), numa_node, ..Card::default() };
        Ok(self.with_address(card, interface))
    }

    /// The card with the first address of its interface.
    fn with_address(&self, card: Card, interface: Option<&str>) -> Card {
        let address = interface.and_then(|interface| first_address(&self.addresses, interface));
        let of_subnet = self.addresses.iter().find(|(_, known)| Some(known.ip) == address);
        Card { address, prefix: of_subnet.map(|(_, known)| known.prefix), ..card }
    }

    /// Why the interface `name`, which the setting `key` names, stands for no card: a slip of the pen and an interface of
    /// Ethernet without RDMA are mended in two ways.
    fn no_card(&self, key: &str, name: &str) -> Fault {
        if !self.is_interface(name) {
            let next =
                format!("{}; interfaces here: {}; names are case-sensitive", self.listed(), listed(&self.interfaces));
            return Fault::new(Exit::Usage, format!("{key}: there is no network interface `{name}`"), next);
        }
        let what = format!("{key}: the network interface `{name}` is there, and no RDMA device belongs to it");
        let next = match self.rdma.devices.is_empty() {
            true => "this machine has no RDMA device: `forebay doctor --problems` tells why; without RDMA, leave the setting out".to_owned(),
            false => format!("name one that has a card: {}", self.listed()),
        };
        Fault::new(Exit::Usage, what, next)
    }

    fn is_interface(&self, name: &str) -> bool {
        self.interfaces.iter().any(|interface| interface == name)
    }

    /// The cards that could be named: `RDMA devices here: mlx5_0:1 (ib0), mlx5_1:1`.
    fn listed(&self) -> String {
        let port = |port: &Port| match port.interfaces.as_slice() {
            [] => port.name.clone(),
            interfaces => format!("{} ({})", port.name, interfaces.join(" ")),
        };
        let ports: Vec<_> = self.rdma.ports().map(|(_, found)| port(found)).collect();
        format!("RDMA devices here: {}", listed(&ports))
    }
}

impl Card {
    fn any() -> Self {
        Self { name: "any".to_owned(), ..Self::default() }
    }

    /// Where it leads.
    pub fn rail(&self) -> Rail {
        Rail { subnet: self.address.zip(self.prefix), numa_node: self.numa_node }
    }

    /// An I/O thread on it, which takes `name` in logs, with `registered` bytes of `pool` registered. Blocks while they are
    /// registered, until it is `given_up`.
    ///
    /// # Errors
    /// When UCX cannot use the card, or it has no RDMA and no transports were configured.
    pub fn io_thread(
        &self,
        config: &Config,
        name: String,
        pool: &Pool,
        registered: ByteSize,
        trace: Option<&Arc<Trace>>,
        given_up: &CancellationToken,
    ) -> anyhow::Result<Arc<IoThread>> {
        let library = library(config)?;
        let options = IoThreadOptions {
            devices: self.device.iter().cloned().collect(),
            transports: config.network_rdma_data_transports.clone(),
            fabric: self.fabric,
            only_connected: is_only_connected(config),
            spin: config.network_rdma_data_spin,
            trace: trace.cloned(),
            given_up: given_up.clone(),
            ..IoThreadOptions::new(name, pool.clone(), registered)
        };
        let io_thread = IoThread::start(library, options).with_context(|| format!("card {}", self.name))?;
        let is_rdma = io_thread.resources().iter().any(Resource::is_rdma);
        if !is_rdma && config.network_rdma_data_transports.is_empty() {
            let found: Vec<_> = io_thread.resources().iter().map(ToString::to_string).collect();
            let left_out = match is_only_connected(config) {
                true => {
                    " (with `security.mode`, its tcp, ud, dc and EFA's srd are left out: anybody reaches it by these)"
                }
                false => "",
            };
            anyhow::bail!(
                "UCX {} ({}) offers no RDMA on card {}{left_out}: it found {}; `ucx_info -d` lists what it sees",
                library.version(),
                library.path().display(),
                self.name,
                listed(&found)
            );
        }
        Ok(Arc::new(io_thread))
    }
}

/// Whether nobody is to reach UCX here who was not admitted.
fn is_only_connected(config: &Config) -> bool {
    config.security_mode != SecurityMode::Off
}

/// What is asked of the fabric for data; negative numbers leave it to UCX.
fn data_fabric(config: &Config) -> FabricOptions {
    FabricOptions {
        gid_index: u32::try_from(config.network_rdma_data_gid_index).ok(),
        service_level: u8::try_from(config.network_rdma_data_service_level).ok(),
        traffic_class: u8::try_from(config.network_rdma_data_traffic_class).ok(),
        partition_key: config.network_rdma_data_partition_key.map(forebay_config::PartitionKey::bits),
    }
}

/// What an I/O thread counts, as JSON.
pub(super) fn report(io_thread: &IoThread) -> serde_json::Value {
    let IoThreadStats {
        registered,
        registration_failures,
        connections,
        operations_in_flight,
        caller_memory,
        fetched_into_caller_memory,
        unadmitted,
        forged,
        ..
    } = io_thread.stats();
    serde_json::json!({
        "card": io_thread.name(),
        "registered_bytes": registered.as_u64(),
        "registered_ring_bytes": caller_memory.as_u64(),
        "fetched_into_rings": fetched_into_caller_memory,
        "registration_failures": registration_failures,
        "connections": connections,
        "operations_in_flight": operations_in_flight,
        "unadmitted_connections": unadmitted,
        "forged_messages": forged,
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
        let told = |settings: &[&str]| {
            let error = none.data_cards(&config(settings)).unwrap_err();
            (format!("{error:#}"), crate::error::UserError::from(&error).next.unwrap_or_default())
        };
        let (what, next) = told(&["network.rdma.data.bind.device=mlx5_0:1"]);
        for part in ["network.rdma.data.bind.device: ", "mlx5_0:1"] {
            assert!(what.contains(part), "{what}");
        }
        assert!(next.contains("RDMA devices here: none"), "{next}");
        let (what, _) = told(&["network.rdma.data.network=ib0"]);
        assert!(what.contains("there is no network interface `ib0`"), "{what}");
        assert_eq!(none.data_cards(&config(&[])).unwrap(), [Card::any()]);
        let metadata = config(&["network.rdma.metadata.device=mlx5_3", "network.rdma.metadata.ib_port=2"]);
        let error = format!("{:#}", none.metadata_card(&metadata).unwrap_err());
        assert!(error.contains("network.rdma.metadata.device: ") && error.contains("mlx5_3:2"), "{error}");
    }

    #[test]
    fn an_interface_that_is_not_there_and_one_without_a_card_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let told = |machine: &Machine, name: &str| {
            let error = machine.data_cards(&config(&[&format!("network.rdma.data.network={name}")])).unwrap_err();
            let user_error = crate::error::UserError::from(&error);
            assert_eq!(user_error.exit, Exit::Usage);
            (user_error.what, user_error.next.unwrap())
        };
        let none = Machine::look(&Root::new(root.path())).unwrap();
        let (what, next) = told(&none, "ib7");
        assert!(what.contains("network.rdma.data.network: there is no network interface `ib7`"), "{what}");
        assert!(
            next.contains("RDMA devices here: none") && next.contains("interfaces here: ") && next.contains("lo"),
            "{next}"
        );
        let (what, next) = told(&none, "lo");
        assert!(what.contains("`lo` is there, and no RDMA device belongs to it"), "{what}");
        assert!(next.contains("this machine has no RDMA device"), "{next}");
        let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        std::fs::write(port.join("gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
        std::fs::write(port.join("gid_attrs/ndevs/0"), "ib9\n").unwrap();
        let machine = Machine::look(&Root::new(root.path())).unwrap();
        for wrong in ["lo", "ib7"] {
            assert!(told(&machine, wrong).1.contains("RDMA devices here: mlx5_0:1 (ib9)"), "{wrong}");
        }
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
        assert_eq!(card(&["network.rdma.metadata.gid_index=3"]).fabric.gid_index, Some(3));
        let second = card(&["network.rdma.metadata.device=mlx5_0", "network.rdma.metadata.ib_port=2"]);
        assert_eq!((second.device.as_deref(), second.fabric.gid_index), (Some("mlx5_0:2"), None));
        assert!(second.address.is_some() && second.prefix.is_some());
        let twice = config(&["network.rdma.data.network=lo", "network.rdma.data.bind.device=mlx5_0:1"]);
        assert_eq!(machine.data_cards(&twice).unwrap().len(), 1);
    }
    #[test]
    fn what_the_fabric_is_to_do_for_data_is_asked_of_every_card_for_data_and_of_no_other() {
        let machine = Machine::look(&Root::new("/nonexistent")).unwrap();
        let settings = [
            "network.rdma.data.gid_index=3",
            "network.rdma.data.service_level=5",
            "network.rdma.data.traffic_class=106",
            "network.rdma.data.partition_key=0x8012",
        ];
        let asked = FabricOptions {
            gid_index: Some(3),
            service_level: Some(5),
            traffic_class: Some(106),
            partition_key: Some(0x8012),
        };
        let cards = machine.data_cards(&config(&settings)).unwrap();
        assert!(!cards.is_empty() && cards.iter().all(|card| card.fabric == asked), "{cards:?}");
        assert_eq!(machine.metadata_card(&config(&settings)).unwrap().fabric, FabricOptions::default());
        assert_eq!(machine.data_cards(&config(&[])).unwrap()[0].fabric, FabricOptions::default());
    }
}
