//! Attacks on identities with chains of certificates: who is believed, by whose word, and when.

use std::time::{Duration, SystemTime};

use forebay_identity::{CLOCK_SKEW, ClusterKey, IdentityError, Scope, Side, Trust};
use forebay_types::Role;
use rustls::pki_types::CertificateDer;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> SystemTime {
    SystemTime::now()
}

fn scope() -> Scope {
    Scope::new("example.org", "prod").unwrap()
}

/// What a certificate of an authority, or of a process, with this one name says.
fn named(uri: &str, is_authority: bool) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, uri);
    params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
    if is_authority {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    params
}

/// A certificate of `identity` that an authority named `authority` signed, and that authority's own.
fn signed(authority: &str, identity: &str) -> (CertificateDer<'static>, Vec<CertificateDer<'static>>) {
    signed_below(authority, &[], identity)
}

/// The same, with authorities `between` the two, each signed by the one before it.
fn signed_below(
    authority: &str,
    between: &[&str],
    identity: &str,
) -> (CertificateDer<'static>, Vec<CertificateDer<'static>>) {
    let between: Vec<_> = between.iter().map(|name| named(name, true)).collect();
    signed_by_way_of(authority, between, named(identity, false))
}

/// The same of certificates of which more is said than their names.
fn signed_by_way_of(
    authority: &str,
    between: Vec<rcgen::CertificateParams>,
    leaf: rcgen::CertificateParams,
) -> (CertificateDer<'static>, Vec<CertificateDer<'static>>) {
    let (params, key) = (named(authority, true), rcgen::KeyPair::generate().unwrap());
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let (mut issuer, mut chain) = (rcgen::Issuer::new(params, key), Vec::new());
    for params in between {
        let key = rcgen::KeyPair::generate().unwrap();
        chain.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
        issuer = rcgen::Issuer::new(params, key);
    }
    let leaf = leaf.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap();
    chain.insert(0, leaf.der().clone());
    (certificate, chain)
}

/// A tenant who got hold of the authority of readers, which is more than any tenant is given.
#[test]
fn the_authority_of_readers_makes_no_worker() {
    let (reader, worker) = (scope().identity(Role::Reader, "team-a"), scope().identity(Role::Worker, "node1"));
    let (reader, worker) = (reader.unwrap().to_string(), worker.unwrap().to_string());
    let judged = |authority: &str, identity: &str| {
        let (authority, chain) = signed(authority, identity);
        Trust::new(scope(), &[authority], []).unwrap().verify(&chain, Side::Client, now())
    };
    let readers = scope().authority(Role::Reader);
    assert!(judged(&readers, &reader).is_ok());
    assert!(matches!(judged(&readers, &worker), Err(IdentityError::Authority(who)) if who.role() == Role::Worker));
    // One of the whole trust domain speaks for all roles.
    assert!(judged("spiffe://example.org", &reader).is_ok() && judged("spiffe://example.org", &worker).is_ok());
    // One of another domain or another cluster is none of ours.
    for foreign in ["spiffe://example.com", "spiffe://example.org/forebay/test/reader", "spiffe://example.org/web"] {
        let refused = Trust::new(scope(), &[signed(foreign, &reader).0], []).unwrap_err();
        assert!(refused.contains(foreign), "{refused}");
    }
}

/// A tenant that was given an authority of readers which that of the whole cluster signed.
#[test]
fn the_authority_of_readers_makes_no_worker_though_one_for_all_roles_signed_it() {
    let (reader, worker) = (scope().identity(Role::Reader, "team-a"), scope().identity(Role::Worker, "node1"));
    let (reader, worker) = (reader.unwrap().to_string(), worker.unwrap().to_string());
    let judged = |between: &[&str], identity: &str| {
        let (authority, chain) = signed_below("spiffe://example.org", between, identity);
        Trust::new(scope(), &[authority], []).unwrap().verify(&chain, Side::Client, now())
    };
    let (readers, workers) = (scope().authority(Role::Reader), scope().authority(Role::Worker));
    let (readers, workers) = (readers.as_str(), workers.as_str());
    assert!(judged(&[readers], &reader).is_ok() && judged(&[workers], &worker).is_ok());
    // Nor does it with an authority that it signed itself.
    let attempts: [&[&str]; 3] = [&[readers], &[readers, workers], &[readers, "spiffe://example.org"]];
    for between in attempts {
        let refused = judged(between, &worker);
        assert!(matches!(refused, Err(IdentityError::Authority(_))), "{between:?}: {refused:?}");
    }
    for foreign in ["spiffe://example.com", "spiffe://example.org/forebay/test/worker"] {
        assert!(judged(&[foreign], &worker).is_err(), "{foreign}");
    }
}

/// Whoever's authority has ended is not admitted again, so it does not stay either.
#[test]
fn somebody_is_believed_until_the_first_certificate_of_its_chain_ends() {
    // In whole seconds, as certificates have it.
    let end = |hours: u32| 4_000_000_000 + u64::from(hours) * HOUR.as_secs();
    let ending = |name: &str, is_authority: bool, hours: u32| {
        let mut params = named(name, is_authority);
        params.not_after = time::OffsetDateTime::from_unix_timestamp(end(hours) as i64).unwrap();
        params
    };
    let reader = scope().identity(Role::Reader, "team-a").unwrap().to_string();
    let readers = scope().authority(Role::Reader);
    // The second one is signed by the first.
    let names = ["spiffe://example.org/", readers.as_str()];
    let chains: [(&[u32], u32, u32); 5] = [(&[], 3, 3), (&[1], 3, 1), (&[2, 1], 3, 1), (&[1, 2], 3, 1), (&[5], 3, 3)];
    for (between, leaf, first) in chains {
        let authorities = names.iter().zip(between).map(|(name, hours)| ending(name, true, *hours)).collect();
        let (root, chain) = signed_by_way_of("spiffe://example.org", authorities, ending(&reader, false, leaf));
        let peer = Trust::new(scope(), &[root], []).unwrap().verify(&chain, Side::Client, now()).unwrap();
        assert_eq!(peer.until, SystemTime::UNIX_EPOCH + Duration::from_secs(end(first)), "{between:?} {leaf}");
    }
}

#[test]
fn a_certificate_has_one_name() {
    let key = ClusterKey::generate().unwrap();
    let (authority, _) = signed("spiffe://example.org", "spiffe://example.org/forebay/prod/reader/a");
    let trust = Trust::new(scope(), &[authority], []).unwrap();
    let (_, web) = signed("spiffe://example.org", "https://example.org/");
    assert!(matches!(trust.verify(&web, Side::Client, now()), Err(IdentityError::Name(_))));
    assert!(matches!(trust.verify(&[], Side::Client, now()), Err(IdentityError::Missing)));
    assert!(matches!(trust.verify(&[vec![1, 2, 3].into()], Side::Client, now()), Err(IdentityError::Malformed)));
    // An authority is nobody who connects, though it has a name.
    let own = key.authority(&scope(), Role::Reader).unwrap().certificate().clone();
    assert!(trust.verify(&[own], Side::Client, now()).is_err());
}

/// Those of cert-manager begin when they are signed, and the clock there may be ahead of that here.
#[test]
fn a_fresh_certificate_is_believed_though_the_clock_of_its_issuer_is_ahead() {
    let key = ClusterKey::generate().unwrap();
    let authority = key.authority(&scope(), Role::Reader).unwrap();
    let trust = Trust::new(scope(), &[authority.certificate().clone()], []).unwrap();
    let judged = |from: SystemTime, until: SystemTime| {
        let issued = authority.issue("team-a", from, until).unwrap();
        trust.verify(issued.chain(), Side::Client, now())
    };
    let soon = now() + CLOCK_SKEW / 2;
    assert!(judged(soon, now() + HOUR).is_ok());
    assert!(matches!(judged(now() + 2 * CLOCK_SKEW, now() + HOUR), Err(IdentityError::NotYet(_))));
    // It would have ended before the clock here was as far ahead as it may be.
    assert!(matches!(judged(soon, soon + CLOCK_SKEW / 4), Err(IdentityError::NotYet(_))));
}
