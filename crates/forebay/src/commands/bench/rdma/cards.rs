//! The cards of this machine: those to measure, and what a person wants to know of them.

use std::net::IpAddr;

use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::{Address, Port, Rdma};
use forebay_node::binding::first_address;
use forebay_node::rdma::cards::Machine;
use forebay_perftest::{CardNames, VerbsCard};
use forebay_rdma::Provider;

use crate::exit::{Exit, Fault, UserError};

/// The card for CACHE by verbs: the first that is named, else the first that is active.
///
/// # Errors
/// When there is none, or it has no address.
pub(super) fn verbs_card(devices: &[String], config: &Config, rdma: &Rdma) -> anyhow::Result<Option<VerbsCard>> {
    let of_device = |port: &str| port.split_once(':').map_or(port, |(device, _)| device).to_owned();
    if let Some(named) = devices.first() {
        let (what, next) = match (rdma.port(named), address_of(named, rdma)) {
            (Some((_, port)), Some(address)) => {
                return Ok(Some(VerbsCard { device: of_device(&port.name), address }));
            }
            (Some(_), None) => {
                (format!("--devices {named}: it has no IP address, by which verbs connect"), "give its interface one")
            }
            (None, _) => {
                (format!("--devices {named}: there is no such RDMA device"), "`rdma link` lists those that there are")
            }
        };
        return Err(Fault::new(Exit::Usage, what, next).into());
    }
    let cards = Machine::look(&Root::default())?.data_cards_by(config, Provider::Verbs).map_err(|error| {
        let UserError { exit, what, next } = UserError::from(&error);
        let next = next.map_or_else(String::new, |next| format!("{next}; "));
        Fault::new(exit, format!("--provider verbs: {what}"), format!("{next}--devices names a card for this run"))
    })?;
    Ok(cards.into_iter().find_map(|card| {
        let device = card.device.as_deref().map(of_device)?;
        Some(VerbsCard { device, address: card.address? })
    }))
}

/// UCX's names of the cards that the configuration names.
pub(super) fn cards_of(config: &Config) -> anyhow::Result<Vec<String>> {
    let cards = Machine::look(&Root::default())?.data_cards(config).map_err(|error| {
        let UserError { what, next, .. } = UserError::from(&error);
        let next = next.map_or_else(String::new, |next| format!("{next}; "));
        Fault::new(Exit::Usage, what, format!("{next}--devices names one for this run"))
    })?;
    Ok(cards.into_iter().filter_map(|card| card.device).collect())
}

/// What a person wants to know of this machine's cards beside a measurement.
pub(super) fn card_names(rdma: &Rdma) -> CardNames {
    let of_port = |port: &Port| {
        let mtu = port.active_mtu.map(|mtu| format!("MTU {mtu}"));
        let known = [port.link_layer.clone(), port.rate.clone(), mtu, port.state.clone()];
        let known: Vec<String> = known.into_iter().flatten().collect();
        (port.name.clone(), format!("{}: {}", port.name, known.join(", ")))
    };
    let of_interface = |name: &str, what: &str| std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok();
    let of_address = |(name, address): (String, Address)| {
        // Interfaces without a speed, such as loopback, have none or a negative one.
        let speed = of_interface(&name, "speed").and_then(|speed| speed.trim().parse::<u32>().ok());
        let speed = speed.map(|mbps| format!(", {} Gb/s", f64::from(mbps) / 1000.0)).unwrap_or_default();
        let mtu = of_interface(&name, "mtu")?;
        Some((address.ip, format!("{name}: MTU {}{speed}", mtu.trim())))
    };
    let addresses = Address::of_this_machine().unwrap_or_default();
    CardNames {
        devices: rdma.ports().map(|(_, port)| of_port(port)).collect(),
        addresses: addresses.into_iter().filter_map(of_address).collect(),
    }
}

/// The first address of a device's interface.
pub(super) fn address_of(device: &str, rdma: &Rdma) -> Option<IpAddr> {
    let interface = rdma.port(device).and_then(|(_, port)| port.interfaces.first()).map_or(device, String::as_str);
    first_address(&Address::of_this_machine().ok()?, interface)
}
