//! The network cards that the configuration names, and the I/O threads on them.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::{Config, SecurityMode};
use forebay_doctor::Root;
use forebay_doctor::facts::{Address, Device, DeviceKind, Port, Rdma, VerbsDevice, address_of_gid};
use forebay_memory::Pool;
use forebay_rdma::verbs::{VerbsLibrary, VerbsOptions, VerbsThread};
use forebay_rdma::{
    Driven, FabricOptions, IoThread, IoThreadOptions, IoThreadStats, Provider, RdmaError, Resource, Trace,
};
use forebay_transport::message::MAX_PATHS;
use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::library;
use super::rails::Rail;
use crate::binding::{first_address, interface_names};
use crate::error::{Exit, Fault};

/// One network card to use, or all that UCX chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its name in logs.
    pub name: String,
    /// What drives it.
    pub provider: Provider,
    /// UCX's name of it, `mlx5_0:1`; none leaves the choice to UCX. Verbs have the part before the colon.
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

    /// The cards for data by `provider`. Verbs need an address on each, and where none is named take every active card that has one.
    ///
    /// # Errors
    /// As for [`Machine::data_cards`]; for verbs also when there is no such card.
    pub fn data_cards_by(&self, config: &Config, provider: Provider) -> anyhow::Result<Vec<Card>> {
        let cards = self.data_cards(config)?;
        if provider == Provider::Ucx {
            return Ok(cards);
        }
        let fabric = data_fabric(config);
        let cards = match cards.iter().any(|card| card.device.is_some()) {
            true => cards,
            // Clients refuse an offer of more, metadata's included.
            false => self.fit_cards().into_iter().take(MAX_PATHS - 1).map(|card| Card { fabric, ..card }).collect(),
        };
        let cards = cards.into_iter().map(|card| self.at_gid(Card { provider, ..card }));
        let cards = cards.collect::<anyhow::Result<Vec<_>>>()?;
        cards.iter().try_for_each(Card::check_address)?;
        if cards.is_empty() {
            return Err(self.none_active().into());
        }
        Ok(cards)
    }

    /// The card for attributes and listings by `provider`.
    ///
    /// # Errors
    /// As for [`Machine::data_cards_by`].
    pub fn metadata_card_by(&self, config: &Config, provider: Provider) -> anyhow::Result<Card> {
        let card = self.metadata_card(config)?;
        if provider == Provider::Ucx {
            return Ok(card);
        }
        let card = match card.device {
            Some(_) => card,
            None => self.fit_cards().into_iter().next().ok_or_else(|| self.none_active())?,
        };
        let fabric = metadata_fabric(config);
        let card = self.at_gid(Card { provider, fabric, ..card })?;
        card.check_address()?;
        Ok(card)
    }

    /// The card with the address that the entry of its GID table is made of, if one is asked for.
    fn at_gid(&self, card: Card) -> anyhow::Result<Card> {
        let port = card.device.as_deref().and_then(|device| self.rdma.port(device));
        let (Some(index), Some((device, port))) = (card.fabric.gid_index, port) else { return Ok(card) };
        // UCX may still have what verbs have not.
        let refused = |(what, next): (String, String)| Fault::new(Exit::Failed, what, next);
        let address = address_of_gid(device, port, index).map_err(refused)?;
        let Some((_, known)) = self.addresses.iter().find(|(_, known)| known.ip == address) else {
            let what = format!("no interface has the address {address} of entry {index} of {}", port.name);
            return Err(refused((what, "`ip addr` lists those that there are".to_owned())).into());
        };
        Ok(Card { address: Some(address), prefix: Some(known.prefix), ..card })
    }

    /// Every port that verbs can use: it is active, and one of its interfaces, which may be a VLAN's, has an address.
    fn active_cards(&self) -> impl Iterator<Item = Card> {
        let is_for_verbs = |(device, port): &(&Device, &Port)| port.is_active() && device.kind != DeviceKind::Efa;
        self.rdma.ports().filter(is_for_verbs).filter_map(|(device, port)| {
            let name = port.name.clone();
            let card = Card { device: Some(name.clone()), name, numa_node: device.numa_node, ..Card::default() };
            let of_interface = |interface: &String| self.with_address(card.clone(), Some(interface));
            port.interfaces.iter().map(of_interface).find(|card| card.address.is_some())
        })
    }

    /// Those of them that bind memory windows. If none does, all: over the others payload is copied, which nobody has asked for who has
    /// better ones.
    fn fit_cards(&self) -> Vec<Card> {
        let verbs = VerbsDevice::of_this_machine(&self.rdma);
        divided(self.active_cards(), &verbs).map_or_else(
            |all| all,
            |(fit, unfit)| {
                for card in unfit {
                    info!(
                        card = card.name,
                        "verbs go without this card, which binds no memory windows of type 2, as others do"
                    );
                }
                fit
            },
        )
    }

    fn none_active(&self) -> Fault {
        let what = "no RDMA device is active and has an IP address, so verbs have nothing to use";
        Fault::new(
            Exit::Failed,
            what,
            format!("give a card's interface an address, see its link: `rdma link`; {}", self.listed()),
        )
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
        Ok(Card { fabric: metadata_fabric(config), ..card })
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

    /// What its I/O thread is called in logs and statistics: with both libraries, a card has one of each.
    pub fn thread_name(&self) -> String {
        match self.provider {
            Provider::Ucx => self.name.clone(),
            Provider::Verbs => format!("{} verbs", self.name),
        }
    }

    fn check_address(&self) -> anyhow::Result<()> {
        match self.address {
            Some(_) => Ok(()),
            None => {
                let what = format!("card {} has no IP address, by which verbs connect", self.name);
                Err(Fault::new(Exit::Failed, what, "give its interface one: `ip addr add ADDRESS/BITS dev INTERFACE`")
                    .into())
            }
        }
    }

    /// An I/O thread on it, which takes `name` in logs, with `registered` bytes of `pool` registered. Blocks while they are
    /// registered, until it is `given_up`.
    ///
    /// # Errors
    /// When its library cannot use the card, or it has no RDMA and no transports were configured.
    pub fn io_thread(
        &self,
        config: &Config,
        name: String,
        pool: &Pool,
        registered: ByteSize,
        trace: Option<&Arc<Trace>>,
        given_up: &CancellationToken,
    ) -> anyhow::Result<Arc<dyn Driven>> {
        match self.provider {
            Provider::Ucx => self.ucx_thread(config, name, pool, registered, trace, given_up),
            Provider::Verbs => self.verbs_thread(config, name, pool, registered, trace, given_up),
        }
    }

    fn verbs_thread(
        &self,
        config: &Config,
        name: String,
        pool: &Pool,
        registered: ByteSize,
        trace: Option<&Arc<Trace>>,
        given_up: &CancellationToken,
    ) -> anyhow::Result<Arc<dyn Driven>> {
        let of_card = || format!("card {}", self.name);
        let library = VerbsLibrary::load().map_err(RdmaError::from).with_context(of_card)?;
        let port = self.device.as_deref().unwrap_or(&self.name);
        let device = port.split_once(':').map_or(port, |(device, _)| device);
        let options = VerbsOptions {
            name,
            fabric: self.fabric,
            unacknowledged: config.rdma_unacknowledged(),
            receive_buffers: config.network_rdma_data_receive_buffers,
            spin: config.network_rdma_data_spin,
            trace: trace.cloned(),
            given_up: given_up.clone(),
            ..VerbsOptions::new(device, pool.clone(), registered)
        };
        Ok(Arc::new(VerbsThread::start(library, options).with_context(of_card)?))
    }

    fn ucx_thread(
        &self,
        config: &Config,
        name: String,
        pool: &Pool,
        registered: ByteSize,
        trace: Option<&Arc<Trace>>,
        given_up: &CancellationToken,
    ) -> anyhow::Result<Arc<dyn Driven>> {
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

/// The cards that bind memory windows, as far as libibverbs says, and those that do not; all, if none does.
fn divided(cards: impl Iterator<Item = Card>, verbs: &[VerbsDevice]) -> Result<(Vec<Card>, Vec<Card>), Vec<Card>> {
    let is_unfit = |card: &Card| {
        let device = card.device.as_deref().and_then(|device| device.split(':').next());
        verbs.iter().any(|known| Some(known.name.as_str()) == device && known.has_windows == Some(false))
    };
    let (unfit, fit): (Vec<_>, Vec<_>) = cards.partition(is_unfit);
    if fit.is_empty() { Err(unfit) } else { Ok((fit, unfit)) }
}

/// Whether the configuration names the cards for data.
pub(super) fn are_named(config: &Config) -> bool {
    !config.network_rdma_data_network.is_empty() || !config.network_rdma_data_bind_device.is_empty()
}

/// Of the `cards` that a worker takes because none is named, the one that has the address at which it is to listen; all, if none has.
pub(super) fn at_bind_host(config: &Config, cards: Vec<Card>) -> Vec<Card> {
    let found = (config.network_rdma_data_bind_host.as_str(), 0).to_socket_addrs();
    let configured = found.ok().and_then(|mut found| found.next()).map(|address| address.ip());
    let is_there = |card: &Card| configured.is_some() && card.address == configured;
    let (there, others): (Vec<_>, Vec<_>) = cards.into_iter().partition(is_there);
    if there.is_empty() { others } else { there }
}

/// Whether nobody is to reach UCX here who was not admitted.
fn is_only_connected(config: &Config) -> bool {
    config.security_mode != SecurityMode::Off
}

/// What is asked of the fabric for metadata; a negative number leaves it to UCX or rdma_cm.
fn metadata_fabric(config: &Config) -> FabricOptions {
    let gid_index = u32::try_from(config.network_rdma_metadata_gid_index).ok();
    FabricOptions { gid_index, ..FabricOptions::default() }
}

/// The same for data.
fn data_fabric(config: &Config) -> FabricOptions {
    FabricOptions {
        gid_index: u32::try_from(config.network_rdma_data_gid_index).ok(),
        service_level: u8::try_from(config.network_rdma_data_service_level).ok(),
        traffic_class: u8::try_from(config.network_rdma_data_traffic_class).ok(),
        partition_key: config.network_rdma_data_partition_key.map(forebay_config::PartitionKey::bits),
        mtu: config.network_rdma_data_mtu.and_then(|bytes| u16::try_from(bytes).ok()),
        ack_timeout: config.network_rdma_data_ack_timeout,
        retry_count: u8::try_from(config.network_rdma_data_retry_count).ok(),
        rnr_retry_count: u8::try_from(config.network_rdma_data_rnr_retry_count).ok(),
    }
}

/// What an I/O thread counts, as JSON.
pub(super) fn report(io_thread: &dyn Driven) -> serde_json::Value {
    let IoThreadStats {
        registered,
        registration_failures,
        connections,
        operations_in_flight,
        caller_memory,
        fetched_into_caller_memory,
        unadmitted,
        forged,
        refused,
        no_room,
        one_sided,
        one_sided_refused,
        in_messages,
        ..
    } = io_thread.stats();
    serde_json::json!({
        "card": io_thread.name(),
        "provider": io_thread.provider().to_string().to_lowercase(),
        "registered_bytes": registered.as_u64(),
        "registered_ring_bytes": caller_memory.as_u64(),
        "fetched_into_rings": fetched_into_caller_memory,
        "registration_failures": registration_failures,
        "connections": connections,
        "operations_in_flight": operations_in_flight,
        "unadmitted_connections": unadmitted,
        "forged_messages": forged,
        "refused_connections": refused,
        "no_room_connections": no_room,
        "one_sided_reads": one_sided,
        "one_sided_refused": one_sided_refused,
        "bytes_in_messages": in_messages,
    })
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests;
