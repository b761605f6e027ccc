//! RDMA for worker and mount: from the configuration to I/O threads, listeners and paths.
//!
//! * [`cards`]: the network cards that the configuration names, and an I/O thread on each;
//! * `provider`: by which library, verbs or UCX, pure;
//! * [`Servers`]: a worker's listeners, by each library one for each card's data and one for metadata;
//! * [`RdmaConnector`]: a mount's links to workers.
//!
//! With `network.rdma.data.provider = "auto"` it is enough that one of the two can be had: what is wrong with the other is logged.
//! RDMA that is asked for and cannot be had is an error at start, with the remedy, unless `network.rdma.data.fallback` is
//! `tcp-at-start`; what is wrong with metadata alone costs metadata alone. A worker with RDMA always listens on TCP too:
//! clients without it just work, and those with it ask over TCP where to connect.

pub mod cards;
mod connector;
mod idle;
mod provider;
pub mod rails;
mod remedy;
mod servers;
mod trace;

use forebay_config::{Config, RdmaFallback};
use forebay_rdma::{Library, Provider};
use tracing::{info, warn};

pub use connector::RdmaConnector;
pub use idle::say_which_are_idle;
pub use servers::Servers;

use crate::error::{Exit, Fault, UserError};

/// Whether blocks are to go over RDMA, through registered buffers.
pub fn is_wanted_for_data(config: &Config) -> bool {
    config.network_rdma_data_enabled
}

/// Whether anything is.
pub fn is_wanted(config: &Config) -> bool {
    config.network_rdma_data_enabled || config.network_rdma_metadata_enabled
}

/// Whether data may go by `provider`.
pub fn takes(config: &Config, provider: Provider) -> bool {
    provider::of_data(config).contains(&provider)
}

/// What came of the attempt to have RDMA: `None` when it was not asked for, or could not be had and need not be.
fn or_tcp<T>(config: &Config, attempt: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match attempt {
        Ok(had) => Ok(Some(had)),
        Err(error) if config.network_rdma_data_fallback == RdmaFallback::TcpAtStart => {
            let remedy = remedy::of(&error);
            warn!(cause = format!("{error:#}"), remedy, "RDMA cannot be had, TCP is used");
            Ok(None)
        }
        Err(error) => {
            let UserError { exit, what, .. } = UserError::from(&error);
            let next = format!(
                "{}; or set network.rdma.data.fallback = \"tcp-at-start\" to run on TCP, or network.rdma.data.enabled = false",
                remedy::of(&error)
            );
            Err(Fault::new(exit, format!("RDMA cannot be had: {what}"), next).into())
        }
    }
}

/// What came of the attempt to have RDMA for attributes and listings: without it they go over TCP, whatever
/// `network.rdma.data.fallback` says, and data is none the worse.
fn metadata_or_tcp<T>(attempt: anyhow::Result<T>) -> Option<T> {
    attempt
        .inspect_err(|error| {
            let next = format!("{}; or set network.rdma.metadata.enabled = false", remedy::of(error));
            warn!(cause = format!("{error:#}"), next, "metadata cannot go over RDMA, TCP is used for it");
        })
        .ok()
}

/// What came of the attempts by several libraries: all that was had, or what is wrong with each. A mistake in the configuration, or
/// a port that is taken, is one whatever the other library does.
fn by_any<T>(attempts: impl IntoIterator<Item = (Provider, anyhow::Result<Vec<T>>)>) -> anyhow::Result<Vec<T>> {
    let (mut had, mut failed) = (None, Vec::new());
    for (provider, attempt) in attempts {
        match attempt {
            Ok(more) => had.get_or_insert_with(Vec::new).extend(more),
            Err(error) if matches!(UserError::from(&error).exit, Exit::Usage | Exit::Busy) => return Err(error),
            Err(error) => failed.push((provider, error)),
        }
    }
    let Some(had) = had else { return by_none(failed).map_or_else(|| Ok(Vec::new()), Err) };
    for (provider, error) in failed {
        info!(%provider, cause = format!("{error:#}"), "RDMA goes without this library, by the other");
    }
    Ok(had)
}

/// The failures of all libraries as one error: who has one of them mends that one, and need not install the other.
fn by_none(mut failed: Vec<(Provider, anyhow::Error)>) -> Option<anyhow::Error> {
    if failed.len() < 2 {
        return failed.pop().map(|(_, error)| error);
    }
    let (mut what, mut next) = (Vec::new(), vec!["one library is enough".to_owned()]);
    for (provider, error) in &failed {
        what.push(format!("by {provider}: {}", UserError::from(error).what));
        next.extend(remedy::first(error).map(|remedy| format!("for {provider}: {remedy}")));
    }
    Some(Fault::new(Exit::Failed, what.join("; "), next.join("; ")).into())
}

/// libucp, as configured.
pub fn library(config: &Config) -> anyhow::Result<&'static Library> {
    Ok(Library::load(config.ucx_library.as_deref())?)
}

/// Loads libucp while the process has one thread, where it is going to be needed: only then can UCX be told to leave
/// `malloc` alone. What is wrong with it is told when it is needed.
pub fn load_early(config: &Config) {
    let by_ucx = |providers: &[Provider]| providers.contains(&Provider::Ucx);
    if is_wanted(config) && (by_ucx(provider::of_data(config)) || by_ucx(provider::of_metadata(config))) {
        let _ = library(config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_library_is_enough_and_without_any_each_failure_is_told() {
        let failed = |text: &'static str| -> anyhow::Result<Vec<u8>> { Err(anyhow::anyhow!(text)) };
        let (verbs, ucx) = (Provider::Verbs, Provider::Ucx);
        assert_eq!(by_any::<u8>([(verbs, Ok(vec![1, 2])), (ucx, Ok(vec![3]))]).unwrap(), [1, 2, 3]);
        assert_eq!(by_any([(verbs, failed("no windows")), (ucx, Ok(vec![3]))]).unwrap(), [3]);
        assert_eq!(by_any([(verbs, Ok(vec![1])), (ucx, failed("no libucp"))]).unwrap(), [1]);
        let error = by_any::<u8>([(verbs, failed("no windows")), (ucx, failed("no libucp"))]).unwrap_err();
        assert_eq!(error.to_string(), "by verbs: no windows; by UCX: no libucp");
        assert_eq!(by_any([(ucx, failed("no libucp"))]).unwrap_err().to_string(), "no libucp");
        let locked = Fault::new(Exit::Failed, "no memory can be locked", "raise the limit");
        let error = by_any::<u8>([(verbs, Err(locked.into())), (ucx, failed("no libucp"))]).unwrap_err();
        let next = UserError::from(&error).next.unwrap();
        assert_eq!(next, "one library is enough; for verbs: raise the limit");
        assert!(by_any::<u8>([]).unwrap().is_empty());
        let taken: anyhow::Result<Vec<u8>> = Err(Fault::new(Exit::Busy, "the port is taken", "take another").into());
        assert!(by_any([(verbs, Ok(vec![1])), (ucx, taken)]).is_err(), "a port that was named is wanted");
    }
}
