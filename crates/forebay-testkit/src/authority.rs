//! A certificate authority of a test's own.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// What a certificate of [`Authority::issue`] names: this machine.
const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// An authority, which nobody else knows.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for both sides of a connection, and its key, in PEM format.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Its own certificate, in PEM format.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A new certificate for this machine, with a new key.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn issue(&self) -> anyhow::Result<Issued> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}
