//! What an interface's driver says of itself: what `ethtool -i` shows.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// `SIOCETHTOOL` and `ETHTOOL_GDRVINFO`, from `linux/sockios.h` and `linux/ethtool.h`.
const ETHTOOL: libc::c_ulong = 0x8946;
const GET_DRIVER_INFO: u32 = 3;

/// What an interface's driver says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// Its name: `mlx5_core`, or `mlx5_core[ib_ipoib]`.
    pub driver: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The card's firmware and, in brackets, its board.
    pub firmware: Option<String>,
    /// The version of the card's expansion ROM.
    pub expansion_rom: Option<String>,
    /// Where the card is: its PCI address.
    pub bus: Option<String>,
    /// Whether it counts.
    pub supports_statistics: bool,
    /// Whether it can test itself.
    pub supports_test: bool,
    /// Whether its EEPROM can be read.
    pub supports_eeprom_access: bool,
    /// Whether its registers can be.
    pub supports_register_dump: bool,
    /// Whether it has settings that no other has.
    pub supports_private_flags: bool,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Raw {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    expansion_rom: [u8; 32],
    reserved: [u8; 12],
    private_flags: u32,
    statistics: u32,
    test_length: u32,
    eeprom_length: u32,
    register_length: u32,
}

/// `struct ifreq`, which has a pointer where it is not asked for something else.
#[repr(C)]
struct Request {
    name: [u8; 16],
    raw: *mut Raw,
    rest: [u8; 16],
}

impl DriverInfo {
    /// Those of all interfaces of this machine that have one, each with the interface's name.
    #[must_use]
    pub fn of_this_machine() -> Vec<(String, Self)> {
        let Ok(socket) = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0")) else {
            return Vec::new();
        };
        let names = Root::default().names("sys/class/net").into_iter();
        names.filter_map(|name| Some((name.clone(), Self::ask(&socket, &name)?))).collect()
    }

    fn ask(socket: &UdpSocket, interface: &str) -> Option<Self> {
        let mut raw = Raw {
            command: GET_DRIVER_INFO,
            driver: [0; 32],
            version: [0; 32],
            firmware: [0; 32],
            bus: [0; 32],
            expansion_rom: [0; 32],
            reserved: [0; 12],
            private_flags: 0,
            statistics: 0,
            test_length: 0,
            eeprom_length: 0,
            register_length: 0,
        };
        let mut request = Request { name: [0; 16], raw: &raw mut raw, rest: [0; 16] };
        // The last byte stays zero.
        request.name.get_mut(..interface.len()).filter(|name| name.len() < 16)?.copy_from_slice(interface.as_bytes());
        // SAFETY: the descriptor is open while `socket` is borrowed; the request is a `struct ifreq` whose pointer is to a
        // `struct ethtool_drvinfo` of ours, which the kernel fills and keeps no reference to.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &raw mut request) };
        (result == 0).then(|| Self::of(&raw))
    }

    fn of(raw: &Raw) -> Self {
        Self {
            driver: word(&raw.driver),
            version: word(&raw.version),
            firmware: word(&raw.firmware),
            expansion_rom: word(&raw.expansion_rom),
            bus: word(&raw.bus),
            supports_statistics: raw.statistics > 0,
            supports_test: raw.test_length > 0,
            supports_eeprom_access: raw.eeprom_length > 0,
            supports_register_dump: raw.register_length > 0,
            supports_private_flags: raw.private_flags > 0,
        }
    }

    /// What it can do besides moving packets.
    #[must_use]
    pub fn supports(&self) -> Vec<&'static str> {
        let all = [
            ("statistics", self.supports_statistics),
            ("test", self.supports_test),
            ("EEPROM access", self.supports_eeprom_access),
            ("register dump", self.supports_register_dump),
            ("private flags", self.supports_private_flags),
        ];
        all.into_iter().filter(|(_, does)| *does).map(|(name, _)| name).collect()
    }
}

/// The text before the first zero; drivers write `N/A` where they have none.
fn word(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next()?).trim().to_owned();
    (!text.is_empty() && text != "N/A").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_of_this_machine_are_asked_and_names_that_are_too_long_are_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for long in ["x".repeat(16), "x".repeat(300), "nonesuch".to_owned()] {
            assert_eq!(DriverInfo::ask(&socket, &long), None, "{long}");
        }
        for (name, info) in DriverInfo::of_this_machine() {
            assert!(!name.is_empty() && info.driver.is_some(), "{name}: {info:?}");
        }
    }

    #[test]
    fn words_end_with_a_zero() {
        assert_eq!(word(b"mlx5_core\0\0garbage").as_deref(), Some("mlx5_core"));
        assert_eq!((word(b"\0\0"), word(b"N/A\0"), word(b"")), (None, None, None));
        assert_eq!(word(b"full").as_deref(), Some("full"));
    }
}
