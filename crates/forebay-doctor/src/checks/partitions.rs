//! Partitions of InfiniBand, and priorities of RoCE: whose packets a port takes at all, and which of them are not dropped.

use forebay_config::Config;

use crate::checks::cards::less;
use crate::checks::{Check, Section, Verdict, provider};
use crate::facts::{Device, DeviceKind, Facts, Interface, Port};
use crate::text::listed;

/// Bit 15 of a partition key: full members talk to all, others to full members only.
const FULL_MEMBER: u32 = 0x8000;
/// The traffic class of UCX for RoCE v2 unless it is told another (`UCX_IB_TRAFFIC_CLASS`): its upper six bits are the DSCP.
const UCX_TRAFFIC_CLASS: u8 = 106;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let active = || facts.rdma.ports().filter(|(_, port)| port.is_active());
    let partitions = active().filter_map(|(_, port)| partition(facts, config, port));
    let flows = active().filter_map(|(device, port)| flow_control(facts, config, device, port));
    partitions.chain(flows).collect()
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, name, verdict, what)
}

/// Nodes talk only within a partition: machines that were not made as members of one, as in some clouds, cannot.
fn partition(facts: &Facts, config: &Config, port: &Port) -> Option<Check> {
    const REMEDY: &str = "have the subnet manager make it a full member (partitions.conf: ALL=full); in a cloud, create the machines \
                          together, as one scale set or placement group";
    if !port.is_infiniband() || port.partition_keys.is_empty() {
        return None;
    }
    let number = |key: &String| u32::from_str_radix(key.trim_start_matches("0x"), 16).ok();
    let table: Vec<u32> = port.partition_keys.iter().filter_map(number).collect();
    let keys = listed(&port.partition_keys);
    // Connections are made by addresses, and so within the partition of the interface that has the address.
    let interfaces = port.interfaces.iter().filter_map(|name| facts.interface(name));
    let keyed =
        interfaces.filter_map(|interface| Some((interface, interface.partition_key.as_ref().and_then(number)?)));
    for (interface, key) in keyed.filter(|(interface, _)| interface.address().is_some()) {
        let name = &interface.name;
        let same = || table.iter().filter(|entry| **entry & !FULL_MEMBER == key & !FULL_MEMBER);
        if same().next().is_none() {
            let what = format!("{name} is in partition 0x{key:04x}, of which the port is no member ({keys})");
            return Some(row("partition", less(config, port), what).about(&port.name).remedy(format!(
                "have the subnet manager add the port to that partition, or make an interface of one that it is in: \
                 ip link add link {name} name {name}.8001 type ipoib pkey 0x8001; {REMEDY}"
            )));
        }
        if same().all(|entry| entry & FULL_MEMBER == 0) {
            let what = format!(
                "{name} is in partition 0x{key:04x}, of which the port is a limited member only ({keys}): two such nodes \
                 cannot talk to each other"
            );
            return Some(row("partition", less(config, port), what).about(&port.name).remedy(REMEDY));
        }
    }
    let check = match table.iter().any(|key| key & FULL_MEMBER != 0) {
        true => row("partition", Verdict::Ok, format!("full member ({keys}); peers need the same one")),
        false => row(
            "partition",
            less(config, port),
            format!("limited member only ({keys}): two such nodes cannot talk to each other"),
        )
        .remedy(REMEDY),
    };
    Some(check.about(&port.name))
}

/// RoCE resends what was lost after a time-out. A switch holds back the packets of one priority rather than drop them: those of
/// RoCE must have that priority.
fn flow_control(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    if !port.is_ethernet() || device.kind != DeviceKind::Verbs {
        return None;
    }
    let interfaces = port.interfaces.iter().filter_map(|name| facts.interface(name));
    let (interface, flow) = interfaces.filter_map(|found| Some((found, found.flow_control.as_ref()?))).next()?;
    let dscp = traffic_class(facts, config, device) >> 2;
    let priority = flow.priority(dscp);
    let trust = match flow.priority_of_dscp.is_empty() {
        true => "DSCP is not trusted",
        false => "DSCP is trusted",
    };
    let travels =
        format!("packets of RoCE have DSCP {dscp} and travel on priority {priority} of {} ({trust})", interface.name);
    let lossless = listed(flow.lossless.iter().map(ToString::to_string));
    let check = if flow.lossless.is_empty() {
        row(
            "flow-control",
            Verdict::Info,
            format!("no priority is lossless (PFC is off); {travels}: ECN alone keeps them from being lost"),
        )
        .remedy(remedy(interface, dscp))
    } else if flow.lossless.contains(&priority) {
        row("flow-control", Verdict::Ok, format!("{travels}, which is lossless (PFC)"))
    } else {
        let what = format!("PFC is on for priority {lossless}, and {travels}: they are dropped when a buffer is full");
        row("flow-control", less(config, port), what).remedy(remedy(interface, dscp))
    };
    Some(check.about(&port.name))
}

/// The traffic class of packets of RoCE: that which the driver gives all, or the one that is configured, or that UCX was told. Verbs have
/// none of their own.
fn traffic_class(facts: &Facts, config: &Config, device: &Device) -> u8 {
    let configured = u8::try_from(config.network_rdma_data_traffic_class).ok();
    let of_ucx = facts.ucx.environment.get("UCX_IB_TRAFFIC_CLASS").and_then(|class| class.parse().ok());
    let of_library = if provider::has_verbs(facts, config) { 0 } else { of_ucx.unwrap_or(UCX_TRAFFIC_CLASS) };
    // 0 gives way to what programs say.
    device.traffic_class.filter(|class| *class > 0).or(configured).unwrap_or(of_library)
}

fn remedy(interface: &Interface, dscp: u8) -> String {
    let (name, priority) = (&interface.name, dscp >> 3);
    let enabled: Vec<&str> = (0..8).map(|one| if one == priority { "1" } else { "0" }).collect();
    format!(
        "mlnx_qos -i {name} --trust dscp --pfc {}, and the same on every switch between; dcb pfc show dev {name} and dcb app show \
         dev {name} show what is set",
        enabled.join(",")
    )
}
