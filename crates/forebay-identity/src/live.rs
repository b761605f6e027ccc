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
    /// Has to come again, with a new certificate: its own has expired, or the authority that vouched for it is believed no
    /// more.
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
        let material = self.0.load();
        let trust = material.trust();
        if trust.denies(&peer.identity) {
            Standing::Denied
        } else if now > peer.until || !trust.believes_authority_of(peer) {
            Standing::Expired
        } else {
            Standing::Good
        }
    }

    /// From now on handshakes use this one, and connections that stand are judged by it ([`Self::standing`]).
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster_key::ClusterKey;
    use crate::name::Scope;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Whoever has a key makes certificates with it for as long a time as it wants: only that the key is believed no more ends them.
    #[test]
    fn who_was_admitted_by_a_key_that_was_taken_away_has_to_come_again() {
        let (old, new, now) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap(), SystemTime::now());
        let scope = Scope::new("example.org", "prod").unwrap();
        let issued = |key: &ClusterKey, role: Role| {
            key.authority(&scope, role).unwrap().issue("one", now - HOUR, now + HOUR).unwrap()
        };
        let material = |keys: &[&ClusterKey]| {
            let of_key = |key: &&ClusterKey| Role::ALL.map(|role| key.authority(&scope, role).unwrap());
            let authorities: Vec<_> = keys.iter().flat_map(of_key).map(|it| it.certificate().clone()).collect();
            let trust = Trust::new(scope.clone(), &authorities, []).unwrap();
            Material::new(issued(&new, Role::Worker), trust, now).unwrap()
        };
        let live = LiveIdentity::new(material(&[&old, &new]));
        let admitted = |key: &ClusterKey| {
            let credentials = issued(key, Role::Reader);
            live.material().trust().verify(credentials.chain(), Side::Client, now).unwrap()
        };
        let (before, after) = (admitted(&old), admitted(&new));
        let standing = || [&before, &after].map(|peer| live.standing(peer, now));
        assert_eq!(standing(), [Standing::Good; 2]);
        // Their certificates are made anew with each look at the files, and are other ones to the byte.
        live.replace(material(&[&new, &old]));
        assert_eq!(standing(), [Standing::Good; 2]);
        live.replace(material(&[&new]));
        assert_eq!(standing(), [Standing::Expired, Standing::Good]);
        live.deny([before.identity.clone()]);
        assert_eq!(standing(), [Standing::Denied; 2], "both have one name");
    }
}
