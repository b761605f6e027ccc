//! What a process proves and believes right now.
//!
//! A new [`Material`] takes the place of the old one as a whole: certificate, key, authorities and the denied of one moment.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::sign::CertifiedKey;

use crate::credentials::Credentials;
use crate::error::IdentityError;
use crate::name::Identity;
use crate::provider::provider;
use crate::trust::{Peer, Side, Trust};
use forebay_types::Role;

/// A certificate of this process, and whom it believes.
#[derive(Clone, Debug)]
pub struct Material {
    identity: Identity,
    until: SystemTime,
    certified: Arc<CertifiedKey>,
    trust: Trust,
}

/// Why credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The key is another certificate's.
    Pair,
    /// Others of this cluster would not believe it.
    Refused(IdentityError),
}

impl Material {
    /// # Errors
    /// [`Unusable`] when no peer that trusts the same authorities would believe these credentials.
    pub fn new(credentials: Credentials, trust: Trust, now: SystemTime) -> Result<Self, Unusable> {
        let (chain, key) = credentials.into_parts();
        let peer = trust.verify(&chain, Side::Client, now).map_err(Unusable::Refused)?;
        if matches!(peer.identity.role(), Role::Worker | Role::Coordinator) {
            // They listen, too.
            trust.verify(&chain, Side::Server, now).map_err(Unusable::Refused)?;
        }
        let certified = CertifiedKey::from_der(chain, key, provider()).map_err(|_| Unusable::Pair)?;
        Ok(Self { identity: peer.identity, until: peer.until, certified: Arc::new(certified), trust })
    }

    /// Who this process is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Until when its certificate is valid.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// Whom it believes.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }
}

/// What is thought of somebody who was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// May stay.
    Good,
    /// Has to come again, with a new certificate.
    Expired,
    /// Has to go, and need not come again.
    Denied,
}

/// The material of this moment, for everything in a process that listens or connects.
#[derive(Debug)]
pub struct LiveIdentity(ArcSwap<Material>);

impl LiveIdentity {
    /// Begins with this one.
    #[must_use]
    pub fn new(material: Material) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(material)))
    }

    /// What is current.
    #[must_use]
    pub fn material(&self) -> Arc<Material> {
        self.0.load_full()
    }

    /// Whether somebody who was admitted still may be here.
    #[must_use]
    pub fn standing(&self, peer: &Peer, now: SystemTime) -> Standing {
        if self.0.load().trust().denies(&peer.identity) {
            Standing::Denied
        } else if now > peer.until {
            Standing::Expired
        } else {
            Standing::Good
        }
    }

    /// From now on handshakes use this one. Connections that stand are not touched.
    pub fn replace(&self, material: Material) {
        self.0.store(Arc::new(material));
    }

    /// Denies these, and nobody else, from now on. Whether that is new.
    pub fn deny(&self, denied: impl IntoIterator<Item = Identity>) -> bool {
        let current = self.0.load_full();
        let trust = current.trust.denying(denied);
        let is_new = trust.denied().collect::<HashSet<_>>() != current.trust.denied().collect();
        if is_new {
            self.replace(Material { trust, ..Material::clone(&current) });
        }
        is_new
    }
}
