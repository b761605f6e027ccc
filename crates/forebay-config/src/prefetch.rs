//! How far ahead of a stream to fetch: what follows from the two keys that say so.

use crate::keys::Config;

/// Blocks ahead of a stream where the configuration does not say how many.
const PARTS: u32 = 8;

impl Config {
    /// Blocks ahead of each stream; 0: none.
    #[must_use]
    pub fn prefetch_parts(&self) -> u32 {
        self.client_prefetch_max_part_number.unwrap_or(PARTS)
    }

    /// The same for a stream that is held up by how long each fetch takes: what was set to be the most is never exceeded.
    #[must_use]
    pub fn prefetch_parts_far(&self) -> u32 {
        self.client_prefetch_max_part_number.unwrap_or(self.client_prefetch_far_part_number.max(PARTS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_to_be_the_most_is_the_most_and_the_least() {
        let parts = |max: Option<u32>, far: u32| {
            let config = Config {
                client_prefetch_max_part_number: max,
                client_prefetch_far_part_number: far,
                ..Config::default()
            };
            (config.prefetch_parts(), config.prefetch_parts_far())
        };
        assert_eq!(parts(None, 32), (8, 32));
        assert_eq!(parts(None, 4), (8, 8));
        assert_eq!(parts(Some(8), 32), (8, 8));
        assert_eq!(parts(Some(1), 32), (1, 1));
        assert_eq!(parts(Some(64), 32), (64, 64));
        assert_eq!(parts(Some(0), 32), (0, 0));
    }
}
