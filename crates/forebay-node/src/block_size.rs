//! The size of a block, on which all that speak to each other must agree.

use forebay_config::Config;

/// Bytes of a block: the same for store, worker, client and the hellos of both. The configuration allows none beyond a `u32`.
pub fn block_size(config: &Config) -> u32 {
    u32::try_from(config.block_size.as_u64()).unwrap_or(forebay_types::MAX_BLOCK_SIZE)
}
