//! Defaults that give way to what the user has set.
//!
//! A default is what suits most users. Where another setting leaves no room for it, an error about a value that the
//! user never wrote would not help: the default takes what room there is. A value that the user wrote stays, and
//! conflicts are errors (`rules.rs`).

use crate::keys::Config;

/// Fits the defaults of `config` to what was set; `is_default` says which of its keys were not.
pub(crate) fn give_way(config: &mut Config, is_default: impl Fn(&str) -> bool) {
    if is_default("network.rdma.data.buffer_pool.initial_size") {
        let initial = &mut config.network_rdma_data_buffer_pool_initial_size;
        *initial = (*initial).min(config.network_rdma_data_buffer_pool_max_size);
    }
    if is_default("network.rdma.data.buffer_pool.prewarm_size") {
        let prewarm = &mut config.network_rdma_data_buffer_pool_prewarm_size;
        *prewarm = (*prewarm).min(config.network_rdma_data_buffer_pool_initial_size);
    }
}

#[cfg(test)]
mod tests {
    use crate::load::Sources;
    use crate::{Config, ConfigErrors};
    use forebay_types::ByteSize;

    fn pool(settings: &[&str]) -> Result<[ByteSize; 3], ConfigErrors> {
        let flags = settings.iter().map(|setting| format!("network.rdma.data.buffer_pool.{setting}"));
        let config = Config::load(&Sources::new().flags(flags))?.config;
        Ok([
            config.network_rdma_data_buffer_pool_max_size,
            config.network_rdma_data_buffer_pool_initial_size,
            config.network_rdma_data_buffer_pool_prewarm_size,
        ])
    }

    #[test]
    fn a_small_pool_lowers_the_defaults_of_what_it_starts_with_and_refuses_what_was_asked_for() {
        let (small, default) = (ByteSize::mib(128), ByteSize::mib(256));
        assert_eq!(pool(&["max_size=128MiB"]).unwrap(), [small, small, small]);
        assert_eq!(pool(&["initial_size=128MiB"]).unwrap(), [ByteSize::gib(8), small, small]);
        assert_eq!(pool(&["max_size=1GiB"]).unwrap(), [ByteSize::gib(1), default, default]);
        for asked in ["initial_size=256MiB", "prewarm_size=256MiB"] {
            let refused = pool(&["max_size=128MiB", asked]).unwrap_err().to_string();
            assert!(refused.contains(&format!("flag -o network.rdma.data.buffer_pool.{asked}")), "{refused}");
        }
    }
}
