//! What stands between a card and the machine's memory, and what the card says that it is: the bridges above it, the IOMMU, and
//! its vital product data (`lspci -vv` shows them as `LnkCap` of the port above, `ACSCtl` and `Product Name`).

use std::path::Path;

use crate::facts::pcie::PcieLink;
use crate::root::Root;

/// Bits of `ACSCtl` that have requests and completions between two cards take the way through the processor.
const REQUEST_REDIRECT: u16 = 1 << 2;
const COMPLETION_REDIRECT: u16 = 1 << 3;
/// The number of the capability (PCI Express Base Specification, 7.7.11), and where capabilities begin.
const ACCESS_CONTROL: u16 = 0x000d;
const FIRST_CAPABILITY: usize = 0x100;
/// Where `ACSCtl` is in the capability.
const CONTROL: usize = 6;
/// No device has more capabilities than fit into its 4 KiB.
const MAX_CAPABILITIES: usize = 64;
/// The tag of a card's name in its vital product data (PCI Local Bus Specification 3.0, I).
const NAME: u8 = 0x82;

/// The addresses of the bridges above the card in `folder`, the nearest first, each with its folder.
pub(crate) fn bridges(root: &Root, folder: &str) -> Vec<(String, String)> {
    let Some(place) = root.resolved(folder) else { return Vec::new() };
    let bridge = |above: &Path| {
        let name = above.file_name()?.to_str()?;
        is_address(name).then(|| (name.to_owned(), above.to_string_lossy().into_owned()))
    };
    place.ancestors().skip(1).map_while(bridge).collect()
}

/// `0000:3b:00.0`.
fn is_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let widths: Vec<usize> = parts.by_ref().map(str::len).collect();
    matches!(widths.as_slice(), [4 | 5, 2, 2, 1])
        && name.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
}

/// The most that the bridge in `folder` can do.
pub(crate) fn slot(root: &Root, folder: &str) -> Option<PcieLink> {
    PcieLink::read_max(root, folder)
}

/// How the IOMMU treats the card in `folder`: `identity`, or `DMA` and `DMA-FQ` where it translates each address.
pub(crate) fn iommu(root: &Root, folder: &str) -> Option<String> {
    root.word(format!("{folder}/iommu_group/type"))
}

/// Whether the bridge in `folder` sends what one card has for another through the processor; only root is told.
pub(crate) fn redirects(root: &Root, folder: &str) -> bool {
    let config = root.bytes_of(format!("{folder}/config"), |bytes| bytes).unwrap_or_default();
    control(&config).is_some_and(|control| control & (REQUEST_REDIRECT | COMPLETION_REDIRECT) != 0)
}

/// `ACSCtl` in a device's configuration space.
fn control(config: &[u8]) -> Option<u16> {
    let half = |at: usize| Some(u16::from_le_bytes(*config.get(at..)?.first_chunk()?));
    let mut at = FIRST_CAPABILITY;
    for _ in 0..MAX_CAPABILITIES {
        if half(at)? == ACCESS_CONTROL {
            return half(at + CONTROL);
        }
        // 12 bits, of which 0 is the end.
        at = usize::from(half(at + 2)? >> 4);
        (at >= FIRST_CAPABILITY).then_some(())?;
    }
    None
}

/// What the card in `folder` says that it is; only root is told. Of the rest, which has its serial number, nothing is kept.
pub(crate) fn product(root: &Root, folder: &str) -> Option<String> {
    let name_only = |bytes: Vec<u8>| {
        let end =
            bytes.first_chunk::<3>().map_or(0, |[_, low, high]| 3 + usize::from(u16::from_le_bytes([*low, *high])));
        bytes.get(..end).unwrap_or_default().to_vec()
    };
    let bytes = root.bytes_of(format!("{folder}/vpd"), name_only)?;
    let (head, name) = bytes.split_first_chunk::<3>()?;
    (head[0] == NAME && !name.is_empty()).then(|| String::from_utf8_lossy(name).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_that_redirects_is_found_by_its_configuration_and_nonsense_says_nothing() {
        let mut config = vec![0_u8; 4096];
        let mut capability = |at: usize, number: u16, next: u16, acs: u16| {
            config[at..at + 2].copy_from_slice(&number.to_le_bytes());
            config[at + 2..at + 4].copy_from_slice(&(next << 4 | 1).to_le_bytes());
            config[at + CONTROL..at + CONTROL + 2].copy_from_slice(&acs.to_le_bytes());
        };
        capability(0x100, 0x0001, 0x148, 0);
        capability(0x148, ACCESS_CONTROL, 0, 0x001d);
        assert_eq!(control(&config), Some(0x1d));
        assert_eq!((control(&config[..256]), control(&config[..0x148]), control(&[])), (None, None, None));
        let mut round = vec![0_u8; 4096];
        round[0x102..0x104].copy_from_slice(&(0x100_u16 << 4).to_le_bytes());
        assert_eq!(control(&round), None, "its capabilities go round in a circle");
    }

    #[test]
    fn addresses_of_the_bus_are_told_from_other_folders() {
        assert!(is_address("0000:3b:00.0") && is_address("10000:e1:00.1"));
        for other in ["pci0000:3a", "pci", "0000:3b:00", "virtual", "0000-3b-00.0", ""] {
            assert!(!is_address(other), "{other}");
        }
    }

    #[test]
    fn a_card_says_what_it_is_and_its_serial_number_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let copy = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("card")).unwrap();
        let name = b"ConnectX-6 VPI adapter card, HDR IB (200Gb/s)";
        let vital = [&[NAME, name.len() as u8, 0][..], name, &[0x90, 4, 0], b"SN\x01X"].concat();
        std::fs::write(folder.path().join("card/vpd"), &vital).unwrap();
        let root = Root::new(folder.path()).recorded_to(copy.path()).unwrap();
        assert_eq!(product(&root, "card").as_deref(), Some("ConnectX-6 VPI adapter card, HDR IB (200Gb/s)"));
        assert!(!std::fs::read(copy.path().join("card/vpd")).unwrap().ends_with(b"X"));
        std::fs::write(folder.path().join("card/vpd"), [NAME, 200, 0, b'x']).unwrap();
        assert_eq!(product(&root, "card"), None, "cut off");
    }
}
