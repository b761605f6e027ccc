//! What signs certificates: one authority for each role.
//!
//! A certificate of one authority makes nobody of another role, whatever name it holds: a tenant with a reader's certificate, and
//! even with the authority of readers, is no worker.

use std::time::SystemTime;

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::credentials::Credentials;
use crate::error::IssueError;
use crate::name::Scope;
use crate::p256::PrivateKey;
use forebay_types::Role;

/// Signs certificates of one role of one cluster.
pub struct Authority {
    scope: Scope,
    role: Role,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Authority").field(&self.scope.authority(self.role)).finish()
    }
}

fn refused(error: impl std::fmt::Display) -> IssueError {
    IssueError::Library(error.to_string())
}

impl Authority {
    /// The one that signs with this key. Wherever and whenever it is made, its certificate has the same name, serial number and public
    /// key, and `trust.rs` looks at nothing else. What the certificate is signed with has other bytes each time: ECDSA draws a
    /// random number for each signature (FIPS 186-5, 6.4.1). It is valid from 1975 to 4095, since what ends is the key it
    /// follows from.
    ///
    /// # Errors
    /// [`IssueError::Library`], which no key causes.
    pub(crate) fn from_key(scope: Scope, role: Role, key: &PrivateKey) -> Result<Self, IssueError> {
        let document = key.to_pkcs8();
        let key = PrivatePkcs8KeyDer::from(document.as_slice());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).map_err(refused)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("Forebay {} {role} authority", scope.cluster()));
        params.subject_alt_names = vec![uri(&scope.authority(role))?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // Each time it is made it has another signature, and browsers take no two certificates with one number.
        params.serial_number = Some(random_serial()?);
        let certificate = params.self_signed(&key).map_err(refused)?.der().clone();
        Ok(Self { scope, role, certificate, issuer: Issuer::new(params, key) })
    }

    /// Its own certificate, for those who are to believe it.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A new key, and a certificate for it.
    ///
    /// # Errors
    /// [`IssueError`] when the name or the time cannot be in a certificate.
    pub fn issue(&self, name: &str, from: SystemTime, to: SystemTime) -> Result<Credentials, IssueError> {
        self.issue_at(name, &[], from, to)
    }

    /// The same for somebody who listens under these names and addresses. They say nothing to us: they are for programs of others,
    /// such as Prometheus, which look for the host that they asked for.
    ///
    /// # Errors
    /// [`IssueError`] when a name or the time cannot be in a certificate.
    pub fn issue_at(
        &self,
        name: &str,
        hosts: &[String],
        from: SystemTime,
        to: SystemTime,
    ) -> Result<Credentials, IssueError> {
        let identity = self.scope.identity(self.role, name)?;
        if from >= to {
            return Err(IssueError::Time);
        }
        let mut params = CertificateParams::default();
        params.not_before = date(from)?;
        params.not_after = date(to)?;
        params.distinguished_name = common_name(name);
        params.subject_alt_names = vec![uri(&identity.to_string())?];
        for text in hosts {
            params.subject_alt_names.push(host(text)?);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        // While one key replaces another, two authorities have one name.
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(refused)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(refused)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(Credentials::new(vec![certificate.der().clone()], key))
    }
}

fn random_serial() -> Result<SerialNumber, IssueError> {
    let mut number = [0; 16];
    SystemRandom::new().fill(&mut number).map_err(|_| refused("the system gives no random bytes"))?;
    Ok(SerialNumber::from_slice(&number))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn host(text: &str) -> Result<SanType, IssueError> {
    match text.parse() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(text.try_into().map_err(refused)?)),
    }
}

fn uri(text: &str) -> Result<SanType, IssueError> {
    Ok(SanType::URI(text.try_into().map_err(refused)?))
}

/// A certificate says seconds.
fn date(at: SystemTime) -> Result<OffsetDateTime, IssueError> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| IssueError::Time)?;
    let seconds = i64::try_from(since.as_secs()).map_err(|_| IssueError::Time)?;
    let date = OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| IssueError::Time)?;
    // Years have four digits (RFC 5280, 4.1.2.5).
    if date.year() > 9999 { Err(IssueError::Time) } else { Ok(date) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zeroize::Zeroizing;

    use super::*;
    use crate::trust::{Side, Trust};

    /// What programs of others look for says nothing to us.
    #[test]
    fn a_certificate_may_name_hosts_besides_its_identity() {
        let scope = Scope::new("example.org", "prod").unwrap();
        let key = PrivateKey::from_bytes(Zeroizing::new([7; 32])).unwrap();
        let authority = Authority::from_key(scope.clone(), Role::Worker, &key).unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let hosts = ["node1.example.org", "10.0.0.1", "fd00::1"].map(str::to_owned);
        let issued = authority.issue_at("node1", &hosts, now - hour, now + hour).unwrap();
        let trust = Trust::new(scope, std::slice::from_ref(authority.certificate()), []).unwrap();
        assert_eq!(trust.verify(issued.chain(), Side::Server, now).unwrap().identity.name(), "node1");
        let leaf: &[u8] = &issued.chain()[0];
        for name in [&b"node1.example.org"[..], &[10, 0, 0, 1]] {
            assert!(leaf.windows(name.len()).any(|part| part == name), "{name:?}");
        }
    }
}
