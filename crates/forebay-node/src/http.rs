//! What the HTTP listeners of a process have in common: the names that they answer to, whom they answer, and the listener for probes.

use forebay_config::{Config, Host};
use forebay_metrics::{Access, HostNames, MetricsServer, serve_health};
use tracing::{info, warn};

use crate::binding;
use crate::error::Fault;
use crate::page::PageToken;
use crate::security::{self, Security};
use crate::worker_node::hostname_or;

/// Whom a listener answers, and under which names.
pub(crate) struct Terms {
    pub(crate) access: Access,
    pub(crate) names: HostNames,
}

impl Terms {
    /// Those of a listener of a part with this identity.
    ///
    /// # Errors
    /// When tokens are to be taken, and their files cannot be used.
    pub(crate) fn of(config: &Config, security: Option<&Security>) -> Result<Self, Fault> {
        Ok(Self { access: security::access(config, security)?, names: host_names(config) })
    }

    /// Those of a listener on loopback that is for who has this token.
    pub(crate) fn by_token(config: &Config, token: &PageToken) -> Self {
        Self { access: token.access(), names: host_names(config) }
    }
}

/// The names that this process answers to over HTTP.
pub(crate) fn host_names(config: &Config) -> HostNames {
    let configured = [&config.worker_hostname, &config.coordinator_hostname].into_iter().flatten();
    let names = configured.fold(HostNames::new(), |names, host| names.with_own(host.as_str()));
    let names = names.with_listed(config.network_http_hosts.iter().map(Host::as_str));
    match hostname_or(None) {
        Ok(machine) => names.with_own(&machine),
        Err(_) => names,
    }
}

/// Serves `/healthz` and `/readyz` alone at the port that the setting `key` names, if it names one. Where that cannot
/// be, it is logged, and all else goes on.
pub(crate) async fn probes<F, R>(config: &Config, key: &str, port: Option<u16>, is_ready: F) -> Option<MetricsServer>
where
    F: Fn() -> R + Clone + Send + Sync + 'static,
    R: Future<Output = bool> + Send + 'static,
{
    let port = port?;
    let started = async {
        let address = binding::health_address(config, port)?;
        anyhow::Ok(serve_health(address, is_ready, host_names(config)).await?)
    };
    match started.await {
        Ok(server) => {
            info!(address = %server.local_addr(), "serving /healthz and /readyz alone");
            Some(server)
        }
        Err(error) => {
            warn!(key, error = format!("{error:#}"), "probes are not answered");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_config::{Key, Sources};

    use super::*;

    #[test]
    fn the_machine_and_the_hosts_of_the_configuration_are_names_of_the_process() {
        // What a refused request is told to set.
        assert!(Key::find("network.http.hosts").is_some());
        let settings = ["worker.hostname=node1.example.org", "network.http.hosts=cache.example.com"];
        let config = Config::load(&Sources::new().flags(settings)).unwrap().config;
        let expected = HostNames::new().with_own("node1.example.org").with_listed(["cache.example.com"]);
        let expected = expected.with_own(&hostname_or(None).unwrap());
        assert_eq!(host_names(&config), expected);
    }
}
