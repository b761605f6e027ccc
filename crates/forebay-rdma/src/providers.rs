//! Both providers as [`Driven`] and [`Listening`].

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_memory::Pool;
use forebay_metrics::LatencySnapshot;
use forebay_transport::{Service, Transport};
use forebay_types::ByteSize;

use crate::RdmaError;
use crate::client::RdmaTransport;
use crate::driven::{Driven, Listening, Provider};
use crate::io_thread::{IoThread, IoThreadStats};
use crate::options::{ClientOptions, ServerOptions};
use crate::server::{RdmaServer, ServerStats};
use crate::verbs::{VerbsServer, VerbsThread};

#[async_trait::async_trait]
impl Driven for IoThread {
    fn provider(&self) -> Provider {
        Provider::Ucx
    }

    fn name(&self) -> &str {
        Self::name(self)
    }

    fn stats(&self) -> IoThreadStats {
        Self::stats(self)
    }

    fn registered(&self) -> ByteSize {
        self.registration().size()
    }

    fn grow_to(&self, size: ByteSize) -> Result<(), RdmaError> {
        Self::grow_to(self, size)
    }

    fn register(&self, pool: &Pool) {
        Self::register(self, pool);
    }

    fn is_registered(&self, bytes: &[u8]) -> bool {
        Self::is_registered(self, bytes)
    }

    fn can_register(&self) -> bool {
        Self::can_register(self)
    }

    fn register_frame(&self, bytes: &[u8]) {
        Self::register_frame(self, bytes);
    }

    fn link(self: Arc<Self>, address: String, options: ClientOptions) -> Arc<dyn Transport> {
        Arc::new(RdmaTransport::new(address, self, options))
    }

    async fn listen(
        self: Arc<Self>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Arc<dyn Listening>, RdmaError> {
        Ok(Arc::new(RdmaServer::bind(self, options, service).await?))
    }

    async fn close(&self) {
        Self::close(self).await;
    }
}

#[async_trait::async_trait]
impl Driven for VerbsThread {
    fn provider(&self) -> Provider {
        Provider::Verbs
    }

    fn name(&self) -> &str {
        Self::name(self)
    }

    fn stats(&self) -> IoThreadStats {
        let stats = Self::stats(self);
        IoThreadStats {
            registered: stats.registered,
            registration_failures: stats.registration_failures,
            connections: stats.connections,
            unadmitted: stats.unadmitted,
            forged: stats.forged,
            refused: stats.refused,
            no_room: stats.no_room,
            one_sided: stats.one_sided,
            one_sided_refused: stats.one_sided_refused,
            in_messages: stats.in_messages,
            ..IoThreadStats::default()
        }
    }

    fn registered(&self) -> ByteSize {
        self.registration().size()
    }

    fn grow_to(&self, size: ByteSize) -> Result<(), RdmaError> {
        Self::grow_to(self, size)
    }

    /// Memory outside of its pool is not registered: what would land there is copied.
    fn register(&self, _pool: &Pool) {}

    fn is_registered(&self, bytes: &[u8]) -> bool {
        self.registration().covers(bytes)
    }

    fn can_register(&self) -> bool {
        false
    }

    fn register_frame(&self, _bytes: &[u8]) {}

    fn link(self: Arc<Self>, address: String, options: ClientOptions) -> Arc<dyn Transport> {
        Arc::new(RdmaTransport::over_verbs(address, self, options))
    }

    async fn listen(
        self: Arc<Self>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Arc<dyn Listening>, RdmaError> {
        Ok(Arc::new(VerbsServer::bind(self, options, service).await?))
    }

    async fn close(&self) {
        Self::close(self).await;
    }
}

#[async_trait::async_trait]
impl Listening for RdmaServer {
    fn thread(&self) -> Arc<dyn Driven> {
        Arc::clone(self.io_thread()) as Arc<dyn Driven>
    }

    fn local_addr(&self) -> SocketAddr {
        Self::local_addr(self)
    }

    fn stats(&self) -> ServerStats {
        Self::stats(self)
    }

    fn latency(&self) -> LatencySnapshot {
        Self::latency(self)
    }

    async fn close(&self) {
        Self::close(self).await;
    }
}

#[async_trait::async_trait]
impl Listening for VerbsServer {
    fn thread(&self) -> Arc<dyn Driven> {
        Arc::clone(Self::thread(self)) as Arc<dyn Driven>
    }

    fn local_addr(&self) -> SocketAddr {
        Self::local_addr(self)
    }

    fn stats(&self) -> ServerStats {
        Self::stats(self)
    }

    fn latency(&self) -> LatencySnapshot {
        Self::latency(self)
    }

    async fn close(&self) {
        Self::close(self).await;
    }
}
