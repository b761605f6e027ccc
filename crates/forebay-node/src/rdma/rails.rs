//! Which card here talks to which listener of a worker. Pure.
//!
//! Clusters with several cards a host often have a network for each, a rail, and the networks do not reach each other. So a
//! card talks to the listeners in its own subnet. Within one subnet both sides go by NUMA node: a worker offers its listeners in
//! that order, cards here are taken in that order, the first with the first and so on, round where one side has more. What is in
//! no subnet of the other side, as in a routed fabric, or has no address that is known, is paired in the same order with what is
//! left on the other side; with nothing if nothing is.

use std::net::IpAddr;

/// A card here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rail {
    /// Its address, and how many leading bits of that are its subnet's.
    pub subnet: Option<(IpAddr, u8)>,
    /// The NUMA node that it is next to.
    pub numa_node: Option<u32>,
}

impl Rail {
    fn reaches(&self, there: Option<IpAddr>) -> bool {
        self.subnet.zip(there).is_some_and(|((here, prefix), there)| is_same_subnet(here, there, prefix))
    }
}

fn is_same_subnet(here: IpAddr, there: IpAddr, prefix: u8) -> bool {
    let (bits, here, there) = match (here, there) {
        (IpAddr::V4(here), IpAddr::V4(there)) => (32, here.to_bits().into(), there.to_bits().into()),
        (IpAddr::V6(here), IpAddr::V6(there)) => (128, here.to_bits(), there.to_bits()),
        _ => return false,
    };
    let host_bits = u32::from(prefix.min(bits).abs_diff(bits));
    let subnet = |address: u128| address.checked_shr(host_bits).unwrap_or(0);
    subnet(here) == subnet(there)
}

/// Pairs of a card here and a listener there, by their places in `here` and `there`. Each listener is known by its address, if
/// that is known.
pub fn pair(here: &[Rail], there: &[Option<IpAddr>]) -> Vec<(usize, usize)> {
    let mut ours: Vec<usize> = (0..here.len()).collect();
    ours.sort_by_key(|at| here[*at].numa_node);
    let mut theirs: Vec<usize> = (0..there.len()).collect();
    let mut pairs = Vec::new();
    while let Some(first) = ours.iter().copied().find(|at| theirs.iter().any(|other| here[*at].reaches(there[*other])))
    {
        let (near, far): (Vec<usize>, Vec<usize>) =
            theirs.iter().copied().partition(|other| here[first].reaches(there[*other]));
        let (own, rest): (Vec<usize>, Vec<usize>) =
            ours.iter().copied().partition(|at| near.iter().any(|other| here[*at].reaches(there[*other])));
        pairs.extend(round(&own, &near));
        (ours, theirs) = (rest, far);
    }
    pairs.extend(round(&ours, &theirs));
    pairs
}

/// The first with the first and so on, round where one side has more.
fn round(ours: &[usize], theirs: &[usize]) -> Vec<(usize, usize)> {
    if ours.is_empty() || theirs.is_empty() {
        return Vec::new();
    }
    let count = ours.len().max(theirs.len());
    (0..count).map(|at| (ours[at % ours.len()], theirs[at % theirs.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(address: &str, numa_node: u32) -> Rail {
        let address = address.parse().unwrap();
        Rail { subnet: Some((address, if address.is_ipv4() { 24 } else { 64 })), numa_node: Some(numa_node) }
    }

    fn at(address: &str) -> Option<IpAddr> {
        Some(address.parse().unwrap())
    }

    #[test]
    fn a_card_talks_to_the_listener_of_its_subnet_whatever_the_order_of_the_lists() {
        let here = [rail("10.0.1.5", 0), rail("10.0.2.5", 1)];
        assert_eq!(pair(&here, &[at("10.0.2.9"), at("10.0.1.9")]), [(0, 1), (1, 0)]);
        let six = [rail("fd00:0:0:1::5", 0), rail("fd00:0:0:2::5", 0)];
        assert_eq!(pair(&six, &[at("fd00:0:0:2::9"), at("fd00:0:0:1::9")]), [(0, 1), (1, 0)]);
    }

    #[test]
    fn within_one_subnet_cards_are_taken_by_numa_node_and_round_where_one_side_has_more() {
        let here = [rail("10.0.0.5", 1), rail("10.0.0.6", 0)];
        assert_eq!(pair(&here, &[at("10.0.0.8"), at("10.0.0.9")]), [(1, 0), (0, 1)]);
        assert_eq!(pair(&here[..1], &[at("10.0.0.8"), at("10.0.0.9")]), [(0, 0), (0, 1)]);
        assert_eq!(pair(&here, &[at("10.0.0.8")]), [(1, 0), (0, 0)]);
    }

    #[test]
    fn a_listener_of_a_rail_that_is_not_here_is_left_alone() {
        assert_eq!(pair(&[rail("10.0.2.5", 0)], &[at("10.0.1.9"), at("10.0.2.9")]), [(0, 1)]);
        let more = [rail("10.0.1.5", 0), rail("10.0.2.5", 0)];
        assert_eq!(pair(&more, &[at("10.0.2.9")]), [(1, 0)]);
    }

    #[test]
    fn what_is_in_no_subnet_of_the_other_side_is_paired_in_order() {
        let here = [rail("10.0.1.5", 0), rail("10.0.2.5", 0)];
        assert_eq!(pair(&here, &[at("10.9.1.9"), at("10.9.2.9")]), [(0, 0), (1, 1)], "routed");
        assert_eq!(pair(&[Rail::default()], &[None, at("10.0.0.1")]), [(0, 0), (0, 1)]);
        assert_eq!(pair(&here, &[None, at("10.0.2.9")]), [(1, 1), (0, 0)]);
        assert_eq!(pair(&[], &[None]), []);
        assert_eq!(pair(&here, &[]), []);
    }

    #[test]
    fn every_prefix_is_a_subnet() {
        let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert!(is_same_subnet(here, there, 0) && is_same_subnet(here, there, 30) && is_same_subnet(here, here, 32));
        assert!(!is_same_subnet(here, there, 31) && !is_same_subnet(here, there, 255));
        assert!(is_same_subnet("::1".parse().unwrap(), "ffff::".parse().unwrap(), 0));
        assert!(!is_same_subnet(here, "::1".parse().unwrap(), 0));
    }
}
