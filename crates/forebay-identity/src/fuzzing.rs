//! What a fuzzer feeds to the readers of identities: names and certificates of strangers, and the files that say who is believed. What
//! they take is written again, and must read as the same.

use std::path::Path;
use std::time::SystemTime;

use forebay_types::Role;
use rustls::pki_types::CertificateDer;

use crate::cluster_key::{ClusterKey, ClusterKeys};
use crate::credentials::{certificates, certificates_pem, private_key};
use crate::error::IdentityError;
use crate::name::{Identity, Scope};
use crate::source::identities;
use crate::token::Tokens;
use crate::trust::{Peer, Side, Trust};
use crate::validity::CertificateSummary;

/// Characters of a message about what a stranger sent, at most.
const MAX_TOLD: usize = 4096;

/// A name in a certificate.
///
/// # Panics
/// When two texts are one name, or what is wrong with one makes more than a line of a log.
pub fn name(text: &str) {
    match text.parse::<Identity>() {
        Ok(identity) => {
            assert_eq!(identity.to_string(), text);
            assert_eq!(identity.scope().identity(identity.role(), identity.name()).as_ref(), Ok(&identity));
        }
        Err(error) => is_one_line(&error.to_string()),
    }
}

/// A file of those who are denied.
///
/// # Panics
/// When somebody is denied whom it does not name, or it says something else once it is written again.
pub fn denied(text: &str) {
    match identities(text) {
        Ok(denied) => {
            let written: Vec<String> = denied.iter().map(ToString::to_string).collect();
            assert!(written.iter().all(|name| text.contains(name.as_str())) && written.len() <= text.lines().count());
            assert_eq!(identities(&written.join("\n")), Ok(denied));
        }
        Err(why) => is_one_line(&why),
    }
}

/// Files of tokens, each with the role that it gives, and what somebody shows.
///
/// # Panics
/// When what is shown gives a role that it must not give, or gives none that it must.
pub fn tokens(files: &[(&str, Role)], shown: &str) {
    let (mut tokens, mut listed) = (Tokens::default(), Vec::new());
    for (text, role) in files {
        if tokens.add(text, *role).is_err() {
            return;
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        listed.extend(lines.map(|token| (token, *role)));
    }
    let role_of = |shown: &str| listed.iter().find(|(token, _)| *token == shown).map(|(_, role)| *role);
    let printed = format!("{tokens:?}");
    for (token, role) in &listed {
        assert_eq!(tokens.role(token), Some(*role), "a token is taken as its file has it");
        assert!(!printed.contains(token), "nothing shows a token");
        // They are ASCII, and long.
        for less in [&token[1..], &token[..token.len() - 1]] {
            assert_eq!(tokens.role(less), role_of(less), "a part of a token is none");
        }
    }
    assert_eq!(tokens.role(shown), role_of(shown));
}

/// A file of the keys of a cluster.
///
/// # Panics
/// When it holds other keys once it is written again.
pub fn cluster_keys(text: &str) {
    let path = Path::new("cluster.key");
    let read = |text: &str| {
        let keys = ClusterKeys::parse(text, path).ok()?;
        Some(keys.iter().map(|key| (key.fingerprint(), ClusterKey::to_pem(key))).collect::<Vec<_>>())
    };
    let Some(keys) = read(text) else { return };
    assert!(!keys.is_empty());
    let written: String = keys.iter().map(|(_, pem)| pem.as_str()).collect();
    assert_eq!(read(&written), Some(keys));
}

/// A file of certificates, or of a private key.
///
/// # Panics
/// When it holds other certificates once it is written again.
pub fn certificate_file(text: &str) {
    // It is read like the other, and what is in it goes no further.
    drop(private_key(text));
    let Ok(read) = certificates(text) else { return };
    assert!(!read.is_empty());
    read.iter().for_each(described);
    assert_eq!(certificates(&certificates_pem(&read)), Ok(read));
}

/// Authorities, in DER, that are to be believed.
///
/// # Errors
/// When one is none.
pub fn trust(scope: Scope, authorities: &[&[u8]], denied: impl IntoIterator<Item = Identity>) -> Result<Trust, String> {
    let authorities: Vec<CertificateDer<'_>> = authorities.iter().copied().map(CertificateDer::from).collect();
    Trust::new(scope, &authorities, denied)
}

/// Somebody shows this chain, in DER.
///
/// # Errors
/// [`IdentityError`]: it is not believed.
///
/// # Panics
/// When the reason makes more than a line of a log.
pub fn verify(trust: &Trust, chain: &[&[u8]], side: Side, now: SystemTime) -> Result<Peer, IdentityError> {
    let chain: Vec<CertificateDer<'_>> = chain.iter().copied().map(CertificateDer::from).collect();
    chain.iter().for_each(described);
    let judged = trust.verify(&chain, side, now);
    if let Err(error) = &judged {
        is_one_line(&error.to_string());
    }
    judged
}

/// Its time is one that can be shown.
fn described(certificate: &CertificateDer<'_>) {
    if let Some(CertificateSummary { from, until, .. }) = CertificateSummary::of(certificate) {
        assert!(from >= SystemTime::UNIX_EPOCH && until >= SystemTime::UNIX_EPOCH);
    }
}

fn is_one_line(told: &str) {
    assert!(!told.contains(char::is_control) && told.chars().count() <= MAX_TOLD, "{told:?}");
}
