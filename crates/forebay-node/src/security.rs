//! Who this process is to others over TCP, as `security.*` says.
//!
//! Each part of a process that listens or connects has an identity of its own: a worker is one towards its clients and towards
//! other workers, and the mount beside it reads as a client does. The files are looked at every few seconds.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_config::{Config, SecurityMode, WriteMode};
use forebay_identity::{Live, Looked, NameError, Scope, Settings, Source, Watch};
use forebay_tcp::{ClientSecurity, ServerSecurity};
use forebay_types::Role;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::error::{Exit, Fault};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// How long a certificate lasts that a process makes for itself.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Longest name of an identity.
const MAX_NAME: usize = 64;

/// The identity of a part of this process. It is looked after until it is dropped.
pub struct Security {
    live: Arc<Live>,
    server: ServerSecurity,
    client: ClientSecurity,
    watching: JoinHandle<()>,
}

impl Security {
    /// The identity of a part with this role and name, if `security.mode` wants one. With certificates of others, role and name
    /// are what these say.
    ///
    /// # Errors
    /// When it cannot be had: a process that should prove who it is does not start without.
    pub fn open(config: &Config, role: Role, name: &str) -> anyhow::Result<Option<Arc<Self>>> {
        let settings = settings(config, role, name).map_err(|error| {
            let next =
                "with `security.mode`, `cluster.name` and `security.trust_domain` are parts of identities: rename them";
            Fault::new(Exit::Usage, error.to_string(), next)
        })?;
        let Some(settings) = settings else { return Ok(None) };
        let unusable = |error: &dyn std::fmt::Display| Fault::without_remedy(Exit::Usage, error.to_string());
        let (watch, material) = Watch::begin(settings, SystemTime::now()).map_err(|error| unusable(&error))?;
        info!(identity = %material.identity(), "proves who it is over TCP");
        let live = Live::new(material);
        let server = ServerSecurity::new(&live, config.network_tcp_security).map_err(|error| unusable(&error))?;
        let client = ClientSecurity::to_worker(&live, config.network_tcp_security).map_err(|error| unusable(&error))?;
        let watching = tokio::spawn(look_after(watch, Arc::clone(&live)));
        Ok(Some(Arc::new(Self { live, server, client, watching })))
    }

    /// That of a client of the workers: of a mount, or of a command.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_client(config: &Config, mounts: bool) -> anyhow::Result<Option<Arc<Self>>> {
        Self::open(config, role_of_client(config, mounts), &machine())
    }

    /// Who it is, and until when that is believed, for `forebay stats` and `/metrics`.
    pub(crate) fn report(&self) -> Value {
        let material = self.live.material();
        let left = material.until().duration_since(SystemTime::now()).unwrap_or_default();
        json!({ "identity": material.identity().to_string(), "certificate_expires_seconds": left.as_secs() })
    }

    /// What a server demands.
    pub fn server(&self) -> ServerSecurity {
        self.server.clone()
    }

    /// What a client proves and demands.
    pub fn client(&self) -> ClientSecurity {
        self.client.clone()
    }
}

impl Drop for Security {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Where a part with this role and name has its identity from; nothing without `security.mode`. With certificates of
/// others, role and name are what these say.
///
/// # Errors
/// When `cluster.name` or `security.trust_domain` cannot be in an identity.
pub fn settings(config: &Config, role: Role, name: &str) -> Result<Option<Settings>, NameError> {
    let source = match config.security_mode {
        SecurityMode::Off => return Ok(None),
        SecurityMode::Key => {
            Source::Key { file: config.security_key_file.clone(), role, name: name_of(name), lifetime: LIFETIME }
        }
        SecurityMode::Mtls => Source::Files {
            certificate: config.security_cert_file.clone(),
            key: config.security_cert_key_file.clone(),
            authorities: config.security_ca_file.clone(),
        },
    };
    let scope = Scope::new(&config.security_trust_domain, config.cluster_name.as_str())?;
    Ok(Some(Settings { scope, source, denied: config.security_denied_file.clone() }))
}

/// The role that a client of the workers takes: a mount, or a command.
pub fn role_of_client(config: &Config, mounts: bool) -> Role {
    match (mounts, config.write_mode) {
        (false, _) => Role::Admin,
        (true, WriteMode::None) => Role::Reader,
        (true, _) => Role::Writer,
    }
}

/// This machine, as its certificates name it.
pub fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// `text` with what cannot be in an identity replaced.
fn name_of(text: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    let name: String = text.chars().take(MAX_NAME).map(|letter| if fits(letter) { letter } else { '-' }).collect();
    if name.chars().all(|letter| letter == '.') { "unnamed".to_owned() } else { name }
}

async fn look_after(watch: Watch, live: Arc<Live>) {
    let mut watch = Some(watch);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(mut looking) = watch.take() else { return };
        // A disk, or a server of files, may be slow.
        let looked = tokio::task::spawn_blocking(move || {
            let looked = looking.look(SystemTime::now());
            (looking, looked)
        });
        let Ok((looking, looked)) = looked.await else { return };
        watch = Some(looking);
        match looked {
            Looked::Same => {}
            Looked::New(material) => {
                info!(identity = %material.identity(), "has a new certificate, or new ones to believe");
                live.replace(*material);
            }
            Looked::Kept(reason) => error!(%reason, "what this process proves and believes stays as it was"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_what_an_identity_may_have() {
        assert_eq!(name_of("node7:29999"), "node7-29999");
        assert_eq!(name_of("[fe80::1]:29999"), "-fe80--1--29999");
        assert_eq!(name_of(""), "unnamed");
        assert_eq!(name_of("…"), "-");
        assert_eq!(name_of(&"n".repeat(100)).len(), MAX_NAME);
    }
}
