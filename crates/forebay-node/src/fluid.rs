//! What Fluid's CacheRuntime says of a pod, as command lines of this program: `forebay fluid` gives way to one of them.

mod lines;
mod runtime_config;

pub use lines::{Line, coordinator, coordinator_address, loads, mount, worker};
pub use runtime_config::RuntimeConfig;
