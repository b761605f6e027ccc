//! What defaults and limits in the table of keys are written with.

use std::time::Duration;

use forebay_types::{ByteSize, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, SECTOR_SIZE};

pub(crate) const BLOCK: ByteSize = ByteSize::bytes(MAX_BLOCK_SIZE as u64);
pub(crate) const SMALLEST_BLOCK: ByteSize = ByteSize::bytes(MIN_BLOCK_SIZE as u64);
pub(crate) const SECTOR: ByteSize = ByteSize::bytes(SECTOR_SIZE as u64);
/// More memory or disk than one machine has: a unit was mistyped.
pub(crate) const MAX_BYTES: ByteSize = ByteSize::gib(1 << 20);

pub(crate) const HOUR: Duration = secs(3600);
pub(crate) const DAY: Duration = secs(24 * 3600);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
