//! Who takes part in tests of identities.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_identity::{ClusterKey, Identity, Live, Material, Scope, Trust};
use forebay_tcp::{ClientOptions, ClientSecurity, ServerOptions, ServerSecurity, TcpSecurity, TcpServer, TcpTransport};
use forebay_transport::conformance::Scripted;
use forebay_types::Role;

use super::{client_options, link, serve, server_options};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A cluster of this key.
pub(crate) struct Cluster(ClusterKey);

impl Cluster {
    pub(crate) fn new() -> Self {
        Self(ClusterKey::generate().unwrap())
    }

    pub(crate) fn scope() -> Scope {
        Scope::new("example.org", "prod").unwrap()
    }

    pub(crate) fn trust(&self, denied: Option<Identity>) -> Trust {
        let scope = Self::scope();
        let authorities = Role::ALL.map(|role| self.0.authority(&scope, role).unwrap().certificate().clone());
        Trust::new(scope, &authorities, denied).unwrap()
    }

    pub(crate) fn material(&self, role: Role, name: &str, trust: Trust, lasts: Duration) -> Material {
        let (authority, now) = (self.0.authority(&Self::scope(), role).unwrap(), SystemTime::now());
        Material::new(authority.issue(name, now - HOUR, now + lasts).unwrap(), trust, now).unwrap()
    }

    pub(crate) fn live(&self, role: Role, name: &str) -> Arc<Live> {
        Live::new(self.material(role, name, self.trust(None), HOUR))
    }

    pub(crate) fn server(&self, live: &Arc<Live>) -> TcpServer {
        let security = Some(server_security(live, TcpSecurity::Encrypt));
        serve(ServerOptions { security, ..server_options() }, Scripted::new())
    }

    pub(crate) fn worker(&self) -> TcpServer {
        self.server(&self.live(Role::Worker, "node1"))
    }

    pub(crate) fn options(&self, role: Role, name: &str) -> ClientOptions {
        options_of(&self.live(role, name))
    }

    pub(crate) fn link(&self, server: &TcpServer, role: Role) -> Arc<TcpTransport> {
        link(server.local_addr(), self.options(role, "team-a"))
    }
}

/// Of a client that proves what `live` has.
pub(crate) fn options_of(live: &Arc<Live>) -> ClientOptions {
    ClientOptions { security: Some(proving(live, TcpSecurity::Encrypt)), ..client_options() }
}

pub(crate) fn proving(live: &Arc<Live>, level: TcpSecurity) -> ClientSecurity {
    ClientSecurity::to_worker(live, level).unwrap()
}

pub(crate) fn server_security(live: &Arc<Live>, level: TcpSecurity) -> ServerSecurity {
    ServerSecurity::new(live, level).unwrap()
}
