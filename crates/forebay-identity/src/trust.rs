//! Whom to believe: a certificate is judged by the authorities that may speak for the role that its name claims.

use std::collections::HashSet;
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{Cert, EndEntityCert, KeyUsage, VerifiedPath};

use crate::error::IdentityError;
use crate::name::{Identity, Scope, role_of_authority};
use crate::provider::provider;
use crate::validity::{CLOCK_SKEW, ends};
use forebay_types::Role;

/// Somebody who was believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub identity: Identity,
    /// Until when its certificate says so, and those between it and the authority are valid.
    pub until: SystemTime,
    /// Which authority vouches for it: a digest of that one's name and public key. `None`: nobody knows, and so nobody looks whether
    /// that authority is believed still.
    pub authority: Option<[u8; 32]>,
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
    /// What tells it from others.
    digest: [u8; 32],
}

/// Which authority vouches for a certificate, and for how long.
struct Vouched {
    /// Its digest.
    authority: [u8; 32],
    /// When the first of the certificates between the two ends, if there are any.
    until: Option<SystemTime>,
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

    /// How many authorities are believed. In mode `key` those are the roles'.
    #[must_use]
    pub fn authorities(&self) -> usize {
        self.anchors.len()
    }

    /// Whether somebody is denied, whatever its certificate says.
    #[must_use]
    pub fn denies(&self, identity: &Identity) -> bool {
        self.denied.contains(identity)
    }

    /// The same authorities, with others denied.
    #[must_use]
    pub fn denying(&self, denied: impl IntoIterator<Item = Identity>) -> Self {
        Self { denied: denied.into_iter().collect(), ..self.clone() }
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
        let judge = |at: SystemTime| self.judge(&leaf, between, peer.identity.role(), side, at);
        let judged = match judge(now) {
            // As cert-manager's, which are valid from the moment on when they are signed, by a clock that is ahead of this one.
            Err(early @ webpki::Error::CertNotValidYet { .. }) => {
                judge(now.checked_add(CLOCK_SKEW).unwrap_or(now)).map_err(|_| early)
            }
            judged => judged,
        };
        let who = || Box::new(peer.identity.clone());
        match judged {
            Ok(vouched) => {
                let until = vouched.until.map_or(peer.until, |between| between.min(peer.until));
                Ok(Peer { until, authority: Some(vouched.authority), ..peer })
            }
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                Err(IdentityError::Authority(who()))
            }
            Err(webpki::Error::CertExpired { .. }) => Err(IdentityError::Expired(who())),
            Err(webpki::Error::CertNotValidYet { .. }) => Err(IdentityError::NotYet(who())),
            Err(error) => Err(IdentityError::Chain(who(), format!("{error:?}"))),
        }
    }

    /// Whether the authority that vouched for somebody when it was admitted is believed still.
    #[must_use]
    pub fn believes_authority_of(&self, peer: &Peer) -> bool {
        let Some(digest) = peer.authority else { return true };
        let may_speak = |named: Option<Role>| named.is_none_or(|named| named == peer.identity.role());
        self.anchors.iter().any(|anchor| anchor.digest == digest && may_speak(anchor.role))
    }

    /// Whether an authority that may speak for `role` vouches for this certificate, by way of those `between`, `at` that time: which,
    /// and for how long.
    fn judge(
        &self,
        leaf: &EndEntityCert<'_>,
        between: &[CertificateDer<'_>],
        role: Role,
        side: Side,
        at: SystemTime,
    ) -> Result<Vouched, webpki::Error> {
        let may_speak = |named: Option<Role>| named.is_none_or(|named| named == role);
        let speaking = self.anchors.iter().filter(|anchor| may_speak(anchor.role));
        let anchors: Vec<_> = speaking.map(|anchor| anchor.anchor.clone()).collect();
        // An authority that another one signed is restricted by its own name, as one that is believed itself.
        let within = |path: &VerifiedPath<'_>| {
            let may = |it: &Cert<'_>| named_role(&self.scope, it).is_ok_and(may_speak);
            if path.intermediate_certificates().all(may) { Ok(()) } else { Err(webpki::Error::UnknownIssuer) }
        };
        let usage = match side {
            Side::Client => KeyUsage::client_auth(),
            Side::Server => KeyUsage::server_auth(),
        };
        // Before 1970 nothing is valid yet.
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let algorithms = provider().signature_verification_algorithms.all;
        let path = leaf.verify_for_usage(algorithms, &anchors, between, at, usage, None, Some(&within))?;
        // Who is admitted stays for as long as it would be admitted again.
        let mut until = None;
        for certificate in path.intermediate_certificates() {
            let end = ends(&certificate.der()).ok_or(webpki::Error::BadDer)?;
            until = Some(until.map_or(end, |before: SystemTime| before.min(end)));
        }
        Ok(Vouched { authority: digest_of(path.anchor()), until })
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
        Ok((leaf, Peer { identity, until, authority: None }))
    }
}

impl Anchor {
    fn new(scope: &Scope, certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let anchor = webpki::anchor_from_trusted_cert(certificate);
        let anchor = anchor.map_err(|error| format!("a certificate of an authority cannot be read: {error:?}"))?;
        let role = match &EndEntityCert::try_from(certificate) {
            Ok(certificate) => named_role(scope, certificate)?,
            // One of version 1 has no names.
            Err(_) => None,
        };
        Ok(Self { digest: digest_of(&anchor), anchor: anchor.to_owned(), role })
    }
}

/// What tells an authority from others. A certificate of it that is made anew changes nothing.
fn digest_of(anchor: &TrustAnchor<'_>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in [&anchor.subject, &anchor.subject_public_key_info] {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// The role that an authority's certificate restricts it to; `None`: to none.
fn named_role(scope: &Scope, certificate: &Cert<'_>) -> Result<Option<Role>, String> {
    let names: Vec<_> = certificate.valid_uri_names().collect();
    match names[..] {
        [] => Ok(None),
        [name] => restriction(scope, name),
        _ => Err("a certificate of an authority has several URIs for names".to_owned()),
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
