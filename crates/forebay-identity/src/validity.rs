//! What certificates say of themselves, for people who look after them. Whether they are believed, `trust.rs` says.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use x509_parser::certificate::X509Certificate;

use crate::credentials::certificates;
use crate::error::LoadError;
use crate::secret_file::read_public;

/// How far clocks of two machines may be apart for a fresh certificate to be believed.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// Whose a certificate is, and for which time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSummary {
    /// Its URI, where it has a single one; else its subject.
    pub name: String,
    /// Since when it is valid. What began before 1970 began in 1970.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
}

/// The certificates of a file in PEM format, in the order of the file.
///
/// # Errors
/// [`LoadError`] when the file cannot be read, or holds something else.
pub fn certificate_summaries(path: &Path) -> Result<Vec<CertificateSummary>, LoadError> {
    let content = |reason| LoadError::Content { path: path.to_owned(), reason };
    let certificates = certificates(&read_public(path)?).map_err(content)?;
    let each = certificates.iter().map(CertificateSummary::of).collect::<Option<_>>();
    each.ok_or_else(|| content("a certificate of it cannot be read".to_owned()))
}

impl CertificateSummary {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = parsed(certificate)?;
        let (from, until) = (&parsed.validity().not_before, &parsed.validity().not_after);
        let time = |seconds| since_1970(seconds).unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Self {
            name: uri(certificate).unwrap_or_else(|| parsed.subject().to_string()),
            from: time(from.timestamp()),
            until: time(until.timestamp()),
        })
    }
}

/// When a certificate ends, if that is after 1970.
pub(crate) fn ends(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    since_1970(parsed(certificate)?.validity().not_after.timestamp())
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> Option<X509Certificate<'c>> {
    x509_parser::parse_x509_certificate(certificate).ok().map(|(_, parsed)| parsed)
}

fn uri(certificate: &CertificateDer<'_>) -> Option<String> {
    let named = EndEntityCert::try_from(certificate).ok()?;
    let names: Vec<_> = named.valid_uri_names().collect();
    let [name] = names[..] else { return None };
    Some(name.to_owned())
}

fn since_1970(seconds: i64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_key::ClusterKey;
    use crate::credentials::certificates_pem;
    use crate::name::Scope;
    use forebay_types::Role;

    #[test]
    fn certificates_say_whose_they_are_and_for_how_long() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let scope = Scope::new("example.org", "prod").unwrap();
        let authority = ClusterKey::generate().unwrap().authority(&scope, Role::Reader).unwrap();
        let issued = authority.issue("team-a", at(1_000_000_000), at(2_000_000_000)).unwrap();
        let both = [issued.chain()[0].clone(), authority.certificate().clone()];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tls.crt");
        std::fs::write(&path, certificates_pem(&both)).unwrap();
        let described = certificate_summaries(&path).unwrap();
        let [leaf, signer] = &described[..] else { panic!("there are two: {described:?}") };
        assert_eq!(leaf.name, "spiffe://example.org/forebay/prod/reader/team-a");
        assert_eq!((leaf.from, leaf.until), (at(1_000_000_000), at(2_000_000_000)));
        assert_eq!(ends(&both[0]), Some(leaf.until));
        assert_eq!(signer.name, "spiffe://example.org/forebay/prod/reader");
        assert!(signer.from < leaf.from && signer.until > leaf.until, "{signer:?}");
    }

    #[test]
    fn what_is_no_certificate_is_told_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tls.crt");
        for (text, reason) in [
            ("", "holds no certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        ] {
            std::fs::write(&path, text).unwrap();
            let refused = certificate_summaries(&path).unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.contains("tls.crt"), "{refused}");
        }
    }
}
