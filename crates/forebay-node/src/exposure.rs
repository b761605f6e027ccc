//! That nothing listens where others of the network reach it before somebody has said who may.

use std::net::SocketAddr;

use forebay_config::{Config, Loaded, Origin};

use crate::binding::{self, WorkerAddresses};
use crate::error::{Exit, Fault};
use crate::{rdma, s3};

/// What a process is going to listen as.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listeners {
    /// A worker: requests and data.
    pub(crate) worker: bool,
    /// A coordinator: REST and the web page.
    pub(crate) coordinator: bool,
    /// A mount, or an S3 endpoint alone: its pages and metrics.
    pub(crate) mount: bool,
    /// An S3 endpoint.
    pub(crate) s3: bool,
}

/// Checks that `security.mode` is set, to whatever it may be, if one of these listens beyond this machine.
///
/// # Errors
/// When it is not set, with the line to type; and when an address cannot be had.
pub(crate) fn check(loaded: &Loaded, listeners: Listeners) -> anyhow::Result<()> {
    if loaded.origin("security.mode") != Origin::Default {
        return Ok(());
    }
    let config = &loaded.config;
    if listeners.worker
        && let Some(address) = WorkerAddresses::of(config)?.listeners().find(is_exposed)
    {
        return Err(refused("worker", address, "worker.rpc.bind.host").into());
    }
    if listeners.worker
        && let Some(address) = worker_pages(config)?.into_iter().find(is_exposed)
    {
        return Err(refused("worker", address, "worker.rpc.bind.host").into());
    }
    if listeners.worker
        && rdma::is_wanted(config)
        && let Some(address) = Some(binding::rdma_address(config)?).filter(is_exposed)
    {
        return Err(refused("worker", address, "network.rdma.data.bind.host").into());
    }
    if listeners.coordinator
        && let Some(address) = Some(binding::coordinator_address(config)?).filter(is_exposed)
    {
        return Err(refused("coordinator", address, "coordinator.bind.host").into());
    }
    if listeners.mount
        && let Some(address) = Some(binding::mount_web_address(config)?).filter(is_exposed)
    {
        return Err(refused("mount", address, "client.web.bind.host").into());
    }
    if listeners.s3
        && let Some(address) = Some(s3::address(config)?).filter(is_exposed)
    {
        return Err(refused("S3 endpoint", address, "s3.bind.host").into());
    }
    Ok(())
}

/// The same for an address that a flag of an operator's command line names.
///
/// # Errors
/// When `security.mode` is not set and the address is reached from beyond this machine.
pub(crate) fn check_operator(loaded: &Loaded, flag: &str, address: SocketAddr) -> Result<(), Fault> {
    if loaded.origin("security.mode") != Origin::Default || !is_exposed(&address) {
        return Ok(());
    }
    Err(refused_but("operator", address, &format!("{flag} 127.0.0.1:{}", address.port())))
}

/// Where a worker shows `/metrics` and so on.
fn worker_pages(config: &Config) -> anyhow::Result<Vec<SocketAddr>> {
    let rpc = WorkerAddresses::of(config)?.rpc.ip();
    let addresses = binding::worker_web_addresses(config, rpc)?.into_iter();
    Ok(addresses.map(|ip| SocketAddr::new(ip, config.worker_web_port)).collect())
}

fn is_exposed(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

fn refused(what: &str, address: SocketAddr, key: &str) -> Fault {
    refused_but(what, address, &format!("{key}=127.0.0.1"))
}

/// `alone`: what to write for this machine alone.
fn refused_but(what: &str, address: SocketAddr, alone: &str) -> Fault {
    let what = format!("the {what} would listen at {address}, beyond this machine, and `security.mode` is not set");
    let next = format!(
        "for a cluster, run `forebay key create > /etc/forebay/cluster.key`, copy that file to all nodes, and set \
         `security.mode=key` on each; for this machine alone, `{alone}`; where everybody on the network may read and \
         change everything, `security.mode=off`"
    );
    Fault::new(Exit::Usage, what, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::Sources;

    fn checked(settings: &[&str], listeners: Listeners) -> Result<(), String> {
        let loaded = Config::load(&Sources::new().flags(settings.iter().copied())).unwrap();
        check(&loaded, listeners).map_err(|error| error.to_string())
    }

    #[test]
    fn who_listens_beyond_the_machine_says_what_it_demands() {
        let worker = Listeners { worker: true, ..Listeners::default() };
        let coordinator = Listeners { coordinator: true, ..Listeners::default() };
        let mount = Listeners { mount: true, ..Listeners::default() };
        let s3 = Listeners { s3: true, ..Listeners::default() };
        for (listeners, key) in
            [(worker, "worker.rpc"), (coordinator, "coordinator"), (mount, "client.web"), (s3, "s3")]
        {
            let host = |host: &str| format!("{key}.bind.host={host}");
            for exposed in ["0.0.0.0", "::", "192.0.2.1"] {
                let refused = checked(&[&host(exposed)], listeners).unwrap_err();
                assert!(refused.contains("`security.mode` is not set"), "{refused}");
                assert_eq!(checked(&[&host(exposed), "security.mode=off"], listeners), Ok(()));
                assert_eq!(checked(&[&host(exposed), "security.mode=key"], listeners), Ok(()));
            }
            for own in ["127.0.0.1", "::1", "127.3.2.1"] {
                assert_eq!(checked(&[&host(own)], listeners), Ok(()));
            }
        }
        let rdma = ["worker.rpc.bind.host=127.0.0.1", "network.rdma.data.enabled=true"];
        assert!(checked(&rdma, worker).unwrap_err().contains("0.0.0.0:59999"));
        assert!(checked(&[], worker).is_err() && checked(&[], coordinator).is_err());
        assert_eq!((checked(&[], mount), checked(&[], s3)), (Ok(()), Ok(())));
        assert_eq!(checked(&[], Listeners::default()), Ok(()));
    }
    #[test]
    fn so_does_an_operator_that_shows_what_it_counts() {
        let checked = |settings: &[&str], address: &str| {
            let loaded = Config::load(&Sources::new().flags(settings.iter().copied())).unwrap();
            check_operator(&loaded, "--metrics", address.parse().unwrap()).map_err(|error| error.to_string())
        };
        let refused = checked(&[], "0.0.0.0:19997").unwrap_err();
        assert!(refused.contains("`security.mode` is not set"), "{refused}");
        assert_eq!(checked(&["security.mode=off"], "0.0.0.0:19997"), Ok(()));
        assert_eq!(checked(&[], "127.0.0.1:19997"), Ok(()));
    }
}
