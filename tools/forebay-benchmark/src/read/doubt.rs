//! What makes a measurement count for nothing, and what too little processor time is to be told from none.

use super::mean::Mean;
use super::units::size;
use crate::record::Cell;

/// Percent × seconds below which processor time says nothing: five ticks of the kernel's.
pub const MIN_PROCESSORS: f64 = 5.0;
/// A part of the bytes from an origin that makes a cell a cold one. Below it are others' reads from a cluster that is shared.
const COLD: f64 = 0.01;

/// Why a measurement counts for nothing, if so.
#[must_use]
pub fn doubt(cell: &Cell) -> Option<String> {
    let (asked, carried) = (&cell.transport, &cell.carried_by);
    // `ucx (rc_mlx5) 60 %, tcp 40 %`, or nothing of it.
    if asked == "ucx" && (!carried.starts_with("ucx") || carried.contains('%')) {
        return Some(format!("{asked} was asked for, and it went over {carried}"));
    }
    // Clients read the same files.
    let bytes = cell.file_bytes.saturating_mul(u64::from(cell.files));
    let fetched = cell.origin_bytes.filter(|fetched| *fetched as f64 > bytes as f64 * COLD)?;
    Some(format!("{} came from the origin meanwhile, of {}", size(fetched), size(bytes)))
}

/// Whether processor time can be told from nothing.
#[must_use]
pub fn has_processors(mean: &Mean) -> bool {
    // One that is not known is not more, either.
    mean.processors() >= MIN_PROCESSORS
}
