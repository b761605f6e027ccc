//! How a card is connected to the machine: what `lspci -vv` shows as `LnkSta` and `LnkCap`.

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// A card's connection to the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Millions of transfers a second on each lane.
    pub speed_mtps: u32,
    /// Its lanes.
    pub width: u32,
    /// The most that the card can do.
    pub max_speed_mtps: Option<u32>,
    /// The most lanes.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// That of the PCI device in `folder`; `None` where it says nothing, as virtual ones do.
    pub(crate) fn read(root: &Root, folder: &str) -> Option<Self> {
        let speed = |attribute: &str| speed(&root.word(format!("{folder}/{attribute}"))?);
        let width =
            |attribute: &str| root.number(format!("{folder}/{attribute}")).filter(|width| (1..=64).contains(width));
        Some(Self {
            speed_mtps: speed("current_link_speed")?,
            width: width("current_link_width")?,
            max_speed_mtps: speed("max_link_speed"),
            max_width: width("max_link_width"),
        })
    }

    /// The most that the PCI device in `folder` can do.
    pub(crate) fn read_max(root: &Root, folder: &str) -> Option<Self> {
        let speed_mtps = speed(&root.word(format!("{folder}/max_link_speed"))?)?;
        let width = root.number(format!("{folder}/max_link_width")).filter(|width| (1..=64).contains(width))?;
        Some(Self { speed_mtps, width, ..Self::default() })
    }

    /// What it carries in one direction, in Mb/s, its encoding taken off.
    #[must_use]
    pub fn mbps(&self) -> u64 {
        // 8b/10b up to 5 GT/s, 128b/130b from 8 on; 64 GT/s has flits, which cost about as much.
        let (kept, of) = if self.speed_mtps <= 5000 { (8, 10) } else { (128, 130) };
        u64::from(self.speed_mtps) * u64::from(self.width) * kept / of
    }

    /// Whether it has come up with less than the card can do.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.max_width.is_some_and(|most| self.width < most)
            || self.max_speed_mtps.is_some_and(|most| self.speed_mtps < most)
    }

    /// The most that the card can do, where it says so.
    #[must_use]
    pub fn most(&self) -> Self {
        Self {
            speed_mtps: self.max_speed_mtps.unwrap_or(self.speed_mtps),
            width: self.max_width.unwrap_or(self.width),
            ..*self
        }
    }

    /// `x16 at 16 GT/s`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("x{} at {} GT/s", self.width, f64::from(self.speed_mtps) / 1000.0)
    }
}

/// The number in `16.0 GT/s PCIe`, in thousandths.
fn speed(text: &str) -> Option<u32> {
    let number: f64 = text.split_once(" GT/s")?.0.trim().parse().ok()?;
    (number > 0.0 && number < 1000.0).then_some((number * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_in_all_forms_and_nonsense_is_none() {
        assert_eq!(["2.5 GT/s PCIe", "8.0 GT/s", "16 GT/s"].map(speed), [Some(2500), Some(8000), Some(16000)]);
        assert_eq!(["Unknown", "", "-1 GT/s", "1e9 GT/s", "NaN GT/s"].map(speed), [None; 5]);
    }

    #[test]
    fn a_link_carries_what_its_lanes_do() {
        let link = |speed_mtps, width| PcieLink { speed_mtps, width, ..PcieLink::default() };
        assert_eq!((link(5000, 8).mbps(), link(16_000, 16).mbps()), (32_000, 252_061));
        assert_eq!(link(2500, 1).describe(), "x1 at 2.5 GT/s");
        assert!(!link(8000, 8).is_reduced());
        assert!(PcieLink { max_width: Some(16), ..link(8000, 8) }.is_reduced());
    }
}
