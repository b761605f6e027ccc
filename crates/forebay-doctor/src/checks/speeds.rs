//! What a card can do by its own account. Sysfs has no list of the speeds that a port supports, so it is taken from the card's name
//! in its vital product data, which only root may read, or else from its model, which says how fast a lane of InfiniBand may be:
//! how many of them a card has, and how fast its Ethernet is, differs among cards of one model.

use crate::facts::{Device, PciCard};
use crate::text::rate;

/// The speeds of a lane, in the words that the kernel writes, the slowest first.
const GENERATIONS: [&str; 9] = ["SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"];
/// What a whole port of InfiniBand does of each generation, as cards are named; the longer names first.
const PORTS: [(&str, u64); 8] = [
    ("NDR200", 200_000),
    ("HDR100", 100_000),
    ("XDR", 800_000),
    ("NDR", 400_000),
    ("HDR", 200_000),
    ("EDR", 100_000),
    ("FDR", 56_000),
    ("QDR", 40_000),
];

/// The fastest lanes of a model, by the number that its maker gives it on the bus.
fn generation_of_model(part: u32) -> Option<&'static str> {
    Some(match part {
        // ConnectX-3, ConnectX-3 Pro, and their virtual functions; Connect-IB.
        0x1003 | 0x1004 | 0x1007 | 0x1011 | 0x1012 => "FDR",
        // ConnectX-4, ConnectX-5, ConnectX-5 Ex; BlueField.
        0x1013 | 0x1014 | 0x1017..=0x101a | 0xa2d2 => "EDR",
        // ConnectX-6; BlueField-2.
        0x101b | 0x101c | 0xa2d6 => "HDR",
        // ConnectX-7; BlueField-3.
        0x1021 | 0xa2dc => "NDR",
        // ConnectX-8.
        0x1023 => "XDR",
        _ => return None,
    })
}

/// The Mb/s, the lanes and their generation in `200 Gb/sec (4X HDR)`.
pub(super) fn rate_of(rate: &str) -> Option<(u64, Option<&str>, Option<&str>)> {
    let (number, rest) = rate.split_once(" Gb/sec")?;
    let gbps: f64 = number.trim().parse().ok()?;
    let mut words = rest.split(['(', ' ', ')']);
    let lanes = words.clone().find(|word| word.ends_with('X'));
    let generation = words.find(|word| GENERATIONS.contains(word));
    (0.0..100_000.0).contains(&gbps).then_some(((gbps * 1000.0) as u64, lanes, generation))
}

/// Why a port of `device` whose link has this rate is slower than the card can do, if it is.
pub(super) fn slower_than_card(
    device: &Device,
    card: Option<&PciCard>,
    is_infiniband: bool,
    text: &str,
) -> Option<String> {
    let (own, _, generation) = rate_of(text)?;
    if let Some((product, most)) =
        card.and_then(|card| Some((card.product.as_ref()?, of_product(card.product.as_ref()?)?)))
    {
        return (own < most).then(|| format!("the card can do {} ({product})", rate(most)));
    }
    if !is_infiniband {
        return None;
    }
    let model = device.model.as_deref().and_then(|model| model.strip_prefix("MT")?.parse().ok());
    let most = generation_of_model(device.part_id.or(model)?)?;
    let rank = |name: &str| GENERATIONS.iter().position(|known| *known == name);
    let name = device.model.as_deref().unwrap_or("this model");
    (rank(generation?)? < rank(most)?).then(|| format!("the lanes of {name} can do {most}"))
}

/// The most that a card's name says it can do: `… 100Gb/s (HDR100, EDR InfiniBand and 100GbE), single-port QSFP56`.
fn of_product(product: &str) -> Option<u64> {
    let upper = product.to_ascii_uppercase();
    let mut most = None;
    for unit in ["GB/S", "GBE", "GBPS"] {
        for (at, _) in upper.match_indices(unit) {
            let before = upper[..at].trim_end();
            let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(before, |at| &before[at + 1..]);
            let mbps = digits.parse::<u64>().ok().filter(|gbps| (1..=3200).contains(gbps)).map(|gbps| gbps * 1000);
            most = most.max(mbps);
        }
    }
    most.or_else(|| PORTS.iter().find(|(name, _)| upper.contains(name)).map(|(_, mbps)| *mbps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rate_of("200 Gb/sec (4X HDR)"), Some((200_000, Some("4X"), Some("HDR"))));
        assert_eq!(rate_of("2.5 Gb/sec (1X SDR)"), Some((2500, Some("1X"), Some("SDR"))));
        assert_eq!(rate_of("41.25 Gb/sec (4X FDR10)"), Some((41_250, Some("4X"), Some("FDR10"))));
        assert_eq!(rate_of("100 Gb/sec"), Some((100_000, None, None)));
        assert_eq!((rate_of("fast"), rate_of("-1 Gb/sec"), rate_of("1e30 Gb/sec (4X)")), (None, None, None));
    }

    #[test]
    fn names_of_cards_say_what_they_can_do() {
        for (name, mbps) in [
            ("ConnectX-6 VPI adapter card, HDR IB (200Gb/s) and 200GbE, single-port QSFP56", Some(200_000)),
            ("ConnectX-6 VPI adapter card, 100Gb/s (HDR100, EDR InfiniBand and 100GbE)", Some(100_000)),
            ("ConnectX-5 Ex EN network interface card, 100GbE dual-port QSFP28", Some(100_000)),
            ("NVIDIA ConnectX-7 adapter card, NDR200, single-port OSFP", Some(200_000)),
            ("Broadcom NetXtreme 2x 25 GbE", Some(25_000)),
            ("a card of 99999999999999999999GbE", None),
            ("a card", None),
            ("", None),
        ] {
            assert_eq!(of_product(name), mbps, "{name}");
        }
    }

    #[test]
    fn a_model_says_how_fast_lanes_of_infiniband_may_be_and_no_more() {
        let device = |model: &str| Device { model: Some(model.to_owned()), ..Device::default() };
        let of = |model: &str, rate: &str| slower_than_card(&device(model), None, true, rate).is_some();
        assert!(of("MT4123", "40 Gb/sec (4X QDR)") && of("MT4123", "100 Gb/sec (4X EDR)"));
        assert!(!of("MT4123", "100 Gb/sec (2X HDR)"), "a card for 100 Gb/s has two lanes");
        assert!(!of("MT4119", "100 Gb/sec (4X EDR)") && !of("MT4126", "40 Gb/sec (4X QDR)") && !of("x", "x"));
        assert_eq!(slower_than_card(&device("MT4123"), None, false, "25 Gb/sec (1X EDR)"), None, "Ethernet differs");
    }
}
