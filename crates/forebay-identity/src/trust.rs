//! Whom to believe: a certificate is judged by the authorities that may speak for the role that its name claims.

use std::collections::HashSet;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::error::IdentityError;
use crate::name::{Identity, Scope, role_of_authority};
use crate::provider::provider;
use crate::validity::ends;
use forebay_types::Role;

/// Somebody who was believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub identity: Identity,
    /// Until when its certificate says so.
    pub until: SystemTime,
}

/// Which end of a connection a certificate is shown at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connects.
    Client,
    /// The one that listens.
    Server,
}

/// The authorities of a cluster, and who is denied though they vouch for it.
#[derive(Clone, Debug)]
pub struct Trust {
    scope: Scope,
    anchors: Vec<Anchor>,
    denied: HashSet<Identity>,
}

#[derive(Clone, Debug)]
struct Anchor {
    anchor: TrustAnchor<'static>,
    /// The role that it speaks for; `None`: all of them.
    role: Option<Role>,
}

impl Trust {
    /// Believes these authorities. One that is named as an authority for one role of this cluster is believed for that role only.
    ///
    /// # Errors
    /// A sentence, when a certificate is not one of an authority.
    pub fn new(
        scope: Scope,
        authorities: &[CertificateDer<'_>],
        denied: impl IntoIterator<Item = Identity>,
    ) -> Result<Self, String> {
        let anchors = authorities.iter().map(|certificate| Anchor::new(&scope, certificate));
        let anchors = anchors.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { scope, anchors, denied: denied.into_iter().collect() })
    }

    /// The cluster whose identities are believed.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether somebody is denied, whatever its certificate says.
    #[must_use]
    pub fn denies(&self, identity: &Identity) -> bool {
        self.denied.contains(identity)
    }

    /// Those who are denied, in no order.
    pub fn denied(&self) -> impl Iterator<Item = &Identity> {
        self.denied.iter()
    }

    /// Who has shown this chain of certificates. That it has the key of the first is for TLS to find out.
    ///
    /// To be asked again of a session that is resumed: authorities, the list of the denied and the time are other ones than when
    /// the session began.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn verify(&self, chain: &[CertificateDer<'_>], side: Side, now: SystemTime) -> Result<Peer, IdentityError> {
        let (certificate, between) = chain.split_first().ok_or(IdentityError::Missing)?;
        let (leaf, peer) = self.claimed(certificate)?;
        let who = || Box::new(peer.identity.clone());
        let speaks = |anchor: &&Anchor| anchor.role.is_none_or(|role| role == peer.identity.role());
        let anchors: Vec<_> = self.anchors.iter().filter(speaks).map(|anchor| anchor.anchor.clone()).collect();
        let usage = match side {
            Side::Client => KeyUsage::client_auth(),
            Side::Server => KeyUsage::server_auth(),
        };
        // Before 1970 nothing is valid yet.
        let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let algorithms = provider().signature_verification_algorithms.all;
        match leaf.verify_for_usage(algorithms, &anchors, between, now, usage, None, None) {
            Ok(_) => Ok(peer),
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                Err(IdentityError::Authority(who()))
            }
            Err(webpki::Error::CertExpired { .. }) => Err(IdentityError::Expired(who())),
            Err(webpki::Error::CertNotValidYet { .. }) => Err(IdentityError::NotYet(who())),
            Err(error) => Err(IdentityError::Chain(who(), format!("{error:?}"))),
        }
    }

    /// Who a certificate says that it is, if that is somebody of this cluster who is not denied.
    fn claimed<'c>(&self, certificate: &'c CertificateDer<'_>) -> Result<(EndEntityCert<'c>, Peer), IdentityError> {
        let leaf = EndEntityCert::try_from(certificate).map_err(|_| IdentityError::Malformed)?;
        let names: Vec<_> = leaf.valid_uri_names().collect();
        let [name] = names[..] else { return Err(IdentityError::Names(names.len())) };
        let identity: Identity = name.parse()?;
        if *identity.scope() != self.scope {
            return Err(IdentityError::Stranger(Box::new(identity)));
        }
        if self.denies(&identity) {
            return Err(IdentityError::Denied(Box::new(identity)));
        }
        let until = ends(certificate).ok_or(IdentityError::Malformed)?;
        Ok((leaf, Peer { identity, until }))
    }
}

impl Anchor {
    fn new(scope: &Scope, certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let anchor = webpki::anchor_from_trusted_cert(certificate);
        let anchor = anchor.map_err(|error| format!("a certificate of an authority cannot be read: {error:?}"))?;
        let named = EndEntityCert::try_from(certificate);
        let names: Vec<_> = named.iter().flat_map(|it| it.valid_uri_names()).collect();
        let role = match names[..] {
            [] => None,
            [name] => restriction(scope, name)?,
            _ => return Err("a certificate of an authority has several URIs for names".to_owned()),
        };
        Ok(Self { anchor: anchor.to_owned(), role })
    }
}

/// What an authority's own name restricts it to. SPIFFE names authorities by their trust domain alone.
fn restriction(scope: &Scope, name: &str) -> Result<Option<Role>, String> {
    let domain = format!("spiffe://{}", scope.domain());
    if name == domain || name == format!("{domain}/") {
        return Ok(None);
    }
    let role = role_of_authority(scope, name);
    role.map(Some).ok_or_else(|| {
        format!("`{name}` is the name of an authority for something else than {domain} or a role of this cluster")
    })
}
