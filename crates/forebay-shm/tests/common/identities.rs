//! Who takes part in tests of identities, and a client that speaks TLS by hand.

use std::io::{Read as _, Write as _};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_identity::testing::hostile_client;
use forebay_identity::{Credentials, LiveIdentity, testing};
use forebay_shm::{ClientOptions, ClientSecurity, ServerSecurity};
use forebay_transport::wire::Hello;
use forebay_types::Role;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::{BLOCK_SIZE, CLUSTER, Raw, client_options};

pub(crate) const HOUR: Duration = testing::HOUR;
/// What both ends call the protocol.
pub(crate) const PROTOCOL: &[u8] = b"forebay-shm/1";

/// A cluster, with its clients.
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

    pub(crate) fn options(&self, role: Role, name: &str) -> ClientOptions {
        options_of(&self.live(role, name))
    }
}

/// Of a client that proves what `live` has.
pub(crate) fn options_of(live: &Arc<LiveIdentity>) -> ClientOptions {
    ClientOptions { security: Some(proving(live)), ..client_options() }
}

pub(crate) fn proving(live: &Arc<LiveIdentity>) -> ClientSecurity {
    ClientSecurity::to_worker(live).unwrap()
}

pub(crate) fn demanding(live: &Arc<LiveIdentity>) -> ServerSecurity {
    ServerSecurity::new(live).unwrap()
}

/// A client that speaks TLS by hand, and then what the test says.
pub(crate) struct RawTls {
    pub(crate) raw: Raw,
    tls: ClientConnection,
    /// How many descriptors came.
    pub(crate) descriptors: usize,
    /// All packets that it has sent.
    pub(crate) said: Vec<Vec<u8>>,
}

impl RawTls {
    /// It presents `credentials`, if it has any, and says hello as soon as TLS lets it, and that it is `process`.
    pub(crate) fn begin(path: &Path, credentials: Option<&Credentials>, protocols: &[&[u8]], process: u64) -> Self {
        let name = ServerName::try_from("worker").unwrap();
        let mut tls = ClientConnection::new(Arc::new(hostile_client(credentials, protocols)), name).unwrap();
        let hello = Hello::ours(CLUSTER, BLOCK_SIZE).encode();
        tls.writer().write_all(&[&hello[..], &process.to_le_bytes()].concat()).unwrap();
        Self { raw: Raw::connect(path), tls, descriptors: 0, said: Vec::new() }
    }

    /// The next `length` bytes that the worker says within TLS, or how it ends that.
    pub(crate) fn hear(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let (mut heard, mut piece) = (Vec::new(), [0; 1000]);
        loop {
            self.flush();
            if let Ok(count) = self.tls.reader().read(&mut piece) {
                heard.extend_from_slice(&piece[..count]);
            }
            if heard.len() >= length {
                return Ok(heard);
            }
            let Some((packet, descriptors)) = self.raw.receive_any() else { return Err("it closed".to_owned()) };
            self.descriptors += descriptors;
            if !matches!(packet.first(), Some(20..=23)) {
                return Err(String::from_utf8_lossy(&packet).into_owned());
            }
            self.take(&packet)?;
        }
    }

    /// How many descriptors came until the worker closed its end.
    pub(crate) fn descriptors_in_all(mut self) -> usize {
        while let Some((_, descriptors)) = self.raw.receive_any() {
            self.descriptors += descriptors;
        }
        self.descriptors
    }

    fn take(&mut self, mut packet: &[u8]) -> Result<(), String> {
        while !packet.is_empty() {
            if self.tls.read_tls(&mut packet).unwrap() == 0 {
                return Err("it left".to_owned());
            }
            self.tls.process_new_packets().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn flush(&mut self) {
        let mut flight = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut flight).unwrap();
        }
        if !flight.is_empty() {
            self.raw.send(&flight);
            self.said.push(flight);
        }
    }
}
