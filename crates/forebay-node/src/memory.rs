//! Whether the memory that the configuration asks for can be had, before any of it is taken. What is asked for and what there is are
//! judged by `forebay-doctor`, as `forebay doctor` does.

use forebay_config::{Loaded, Origin};
use forebay_doctor::Root;
use forebay_doctor::demand::{self, BUFFERS_MAX_SIZE, Demand};
use forebay_doctor::facts::Memory;
use forebay_types::ByteSize;

use crate::error::{Exit, Fault};

/// What of a process takes memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// It is a worker.
    pub(crate) worker: Option<Takes>,
    /// It reads from workers of other processes.
    pub(crate) client: bool,
}

/// When a worker takes its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// All of it when it starts: it is prewarmed, or registered for RDMA.
    AtStart,
    /// As it is used.
    AsUsed,
}

impl Takes {
    /// When a worker does that others reach over RDMA if the configuration says so.
    pub(crate) fn of_shared(loaded: &Loaded) -> Self {
        let registered = loaded.config.network_rdma_data_enabled;
        if loaded.config.worker_memory_prewarm || registered { Self::AtStart } else { Self::AsUsed }
    }
}

/// Checks that a process of these parts can have the memory that it is to take. If the maximum size of the buffers is
/// not set, it is lowered to what there is.
///
/// # Errors
/// When it cannot; the settings are named.
pub(crate) fn check(loaded: &mut Loaded, parts: Parts) -> Result<(), Fault> {
    let memory = Memory::read(&Root::default());
    let limited = loaded.origin(BUFFERS_MAX_SIZE) != Origin::Default;
    if let (false, Some(usable)) = (limited, memory.ordinary_bytes()) {
        let config = &mut loaded.config;
        // What starts larger is refused below.
        let least = config.network_rdma_data_buffer_pool_initial_size;
        let most = config.network_rdma_data_buffer_pool_max_size.min(ByteSize::bytes(usable)).max(least);
        config.network_rdma_data_buffer_pool_max_size = most;
    }
    let demands = demands(loaded, parts, limited);
    match demand::shortage(&memory, &demands) {
        Some(shortage) => Err(Fault::new(Exit::Usage, shortage.what, shortage.remedy)),
        None => Ok(()),
    }
}

fn demands(loaded: &Loaded, parts: Parts, limited: bool) -> Vec<Demand> {
    let worker = parts.worker.map(|takes| demand::of_worker(&loaded.config, takes == Takes::AtStart));
    let client = parts.client.then(|| demand::of_client(&loaded.config, limited));
    worker.into_iter().chain(client.into_iter().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Config, Sources};

    fn loaded(settings: &[&str]) -> Loaded {
        Config::load(&Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()))).unwrap()
    }

    fn refused(settings: &[&str], parts: Parts) -> Option<(Exit, String)> {
        let fault = check(&mut loaded(settings), parts).err()?;
        let user_error = crate::error::UserError::from(&anyhow::Error::new(fault));
        Some((user_error.exit, format!("{}; {}", user_error.what, user_error.next.unwrap_or_default())))
    }

    #[test]
    fn what_no_machine_has_is_refused_with_its_key_for_those_parts_that_take_it() {
        let worker = Parts { worker: Some(Takes::AsUsed), client: false };
        let client = Parts { worker: None, client: true };
        let large = ["worker.memory.size=1024TiB"];
        let (exit, words) = refused(&large, worker).unwrap();
        assert!(exit == Exit::Usage && words.contains("worker.memory.size is 1PiB"), "{words}");
        assert!(words.contains("lower worker.memory.size"), "{words}");
        assert_eq!(refused(&large, client), None);
        let rdma = "network.rdma.data.enabled=true";
        for key in ["max_size", "initial_size"] {
            let key = format!("network.rdma.data.buffer_pool.{key}=1PiB");
            let most = "network.rdma.data.buffer_pool.max_size=1PiB".to_owned();
            let (exit, words) = refused(&[rdma, &most, &key], client).unwrap();
            assert!(exit == Exit::Usage && words.contains("buffer_pool.max_size is 1PiB"), "{words}");
            assert_eq!(refused(&[&most, &key], client), None, "without RDMA there are no such buffers");
        }
    }

    #[test]
    fn the_default_limit_of_buffers_gives_way_to_what_there_is() {
        let mut small = loaded(&["network.rdma.data.enabled=true"]);
        check(&mut small, Parts { worker: None, client: true }).unwrap();
        let usable = Memory::read(&Root::default()).ordinary_bytes().unwrap();
        let most = small.config.network_rdma_data_buffer_pool_max_size.as_u64();
        assert_eq!(most, usable.min(ByteSize::gib(8).as_u64()));
    }
}
