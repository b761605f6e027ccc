//! Who takes part in tests of identities.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::{LiveIdentity, testing};
use forebay_tcp::{ClientOptions, ClientSecurity, ServerOptions, ServerSecurity, TcpSecurity, TcpServer, TcpTransport};
use forebay_transport::conformance::Scripted;
use forebay_types::Role;

use super::{client_options, link, serve, server_options};

pub(crate) const HOUR: Duration = testing::HOUR;

/// A cluster, with its servers and clients over TCP.
pub(crate) struct Cluster(testing::Cluster);

impl Deref for Cluster {
    type Target = testing::Cluster;

    fn deref(&self) -> &testing::Cluster {
        &self.0
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self(testing::Cluster::new())
    }

    pub(crate) fn server(&self, live: &Arc<LiveIdentity>) -> TcpServer {
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
pub(crate) fn options_of(live: &Arc<LiveIdentity>) -> ClientOptions {
    ClientOptions { security: Some(proving(live, TcpSecurity::Encrypt)), ..client_options() }
}

pub(crate) fn proving(live: &Arc<LiveIdentity>, level: TcpSecurity) -> ClientSecurity {
    ClientSecurity::to_worker(live, level).unwrap()
}

pub(crate) fn server_security(live: &Arc<LiveIdentity>, level: TcpSecurity) -> ServerSecurity {
    ServerSecurity::new(live, level).unwrap()
}
