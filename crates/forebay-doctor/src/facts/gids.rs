//! Which entry of a card's table of GIDs verbs use. Pure.
//!
//! rdma_cm is told no index. Over RoCE it takes the entry that is made of the address that a card connects from, or listens at, of the
//! kind that the port is set to (`cma_roce_mode`; RoCE v2 where the port has it). So an index stands for an address: that of its entry.
//! Over InfiniBand the GID is part of the hardware address of the interface, and nobody chooses it.

use std::net::{IpAddr, Ipv6Addr};

use crate::facts::rdma::{Device, DeviceKind, Gid, Port};

/// The address by which rdma_cm takes entry `index` of the table of `port`, which is one of `device`.
///
/// # Errors
/// Why it never takes that, and what to do.
pub fn address_of_gid(device: &Device, port: &Port, index: u32) -> Result<IpAddr, (String, String)> {
    let name = &port.name;
    let next = |text: &str| text.to_owned();
    if device.kind == DeviceKind::Iwarp {
        return Err((
            format!("over {name}, which is iWARP, connections are those of TCP, for which no GID is chosen"),
            next("leave network.rdma.data.gid_index out"),
        ));
    }
    if !port.is_ethernet() {
        return Err((
            format!("over {name}, which is not RoCE, verbs take the GID of the interface that is connected from"),
            next("leave network.rdma.data.gid_index out and name the interface in network.rdma.data.network"),
        ));
    }
    let Some(entry) = port.gids.iter().find(|gid| gid.index == index) else {
        let found: Vec<_> = port.gids.iter().map(|gid| gid.index.to_string()).collect();
        return Err((
            format!("the table of GIDs of {name} has no entry {index}, only {}", found.join(", ")),
            next("`forebay doctor` lists the entries"),
        ));
    };
    if !entry.is_roce_v2() && port.gids.iter().any(Gid::is_roce_v2) {
        let same = port.gids.iter().find(|gid| gid.is_roce_v2() && gid.gid == entry.gid);
        let instead = same
            .map_or_else(String::new, |same| format!("set the index {}, which is the same by RoCE v2; ", same.index));
        return Err((
            format!("entry {index} of {name} is of RoCE v1, and rdma_cm connects by RoCE v2 there"),
            format!("{instead}for RoCE v1 leave the index out and tell the port: cma_roce_mode -d DEVICE -p PORT -m 1"),
        ));
    }
    let gid: Option<Ipv6Addr> = entry.gid.parse().ok();
    match gid.map(|gid| (gid.to_ipv4_mapped(), gid)) {
        Some((Some(address), _)) => Ok(address.into()),
        Some((None, address)) if !address.is_unicast_link_local() => Ok(address.into()),
        _ => Err((
            format!("entry {index} of {name} is made of no address that can be connected to ({})", entry.gid),
            next("set the index of one that is made of an IP address of the interface: `forebay doctor` lists them"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(link_layer: &str) -> Port {
        let gid = |index, gid: &str, kind: &str| Gid {
            index,
            gid: gid.into(),
            kind: Some(kind.into()),
            interface: Some("eth0".into()),
        };
        let v4 = "0000:0000:0000:0000:0000:ffff:0a00:010a";
        let link_local = "fe80:0000:0000:0000:ba59:9fff:fe00:0001";
        Port {
            name: "mlx5_0:1".into(),
            link_layer: Some(link_layer.into()),
            gids: vec![
                gid(0, link_local, "IB/RoCE v1"),
                gid(1, link_local, "RoCE v2"),
                gid(2, v4, "IB/RoCE v1"),
                gid(3, v4, "RoCE v2"),
                gid(5, "fd00:0000:0000:0000:0000:0000:0000:0007", "RoCE v2"),
            ],
            ..Port::default()
        }
    }

    fn of_gid(port: &Port, index: u32) -> Result<IpAddr, (String, String)> {
        address_of_gid(&Device::default(), port, index)
    }

    #[test]
    fn an_index_stands_for_the_address_that_its_entry_is_made_of() {
        let roce = port("Ethernet");
        assert_eq!(of_gid(&roce, 3), Ok("10.0.1.10".parse().unwrap()));
        assert_eq!(of_gid(&roce, 5), Ok("fd00::7".parse().unwrap()));
        let v1_alone = Port { gids: vec![roce.gids[2].clone()], ..roce.clone() };
        assert_eq!(of_gid(&v1_alone, 2), Ok("10.0.1.10".parse().unwrap()), "then rdma_cm takes version 1");
    }

    #[test]
    fn an_entry_that_rdma_cm_never_takes_is_refused_with_what_to_do() {
        let roce = port("Ethernet");
        let refused = |index| of_gid(&roce, index).unwrap_err();
        let (what, next) = refused(2);
        assert!(what.contains("RoCE v1") && next.contains("index 3"), "{what}; {next}");
        assert!(refused(1).0.contains("no address"), "{:?}", refused(1));
        assert!(refused(9).0.contains("only 0, 1, 2, 3, 5"), "{:?}", refused(9));
        let (what, next) = of_gid(&port("InfiniBand"), 0).unwrap_err();
        assert!(what.contains("not RoCE") && next.contains("network.rdma.data.network"), "{what}; {next}");
        let iwarp = Device { kind: DeviceKind::Iwarp, ..Device::default() };
        let (what, next) = address_of_gid(&iwarp, &roce, 3).unwrap_err();
        assert!(what.contains("iWARP") && next.contains("leave"), "{what}; {next}");
    }
}
