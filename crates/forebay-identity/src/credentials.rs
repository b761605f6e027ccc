//! What a process proves its identity with: a chain of certificates, and the key of the first.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// A certificate, those between it and an authority, and its private key.
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// `chain` begins with the certificate of `key`.
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }

    /// The certificate first, then those between it and an authority.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The chain as a file such as `tls.crt` holds it.
    #[must_use]
    pub fn chain_pem(&self) -> String {
        certificates_pem(&self.chain)
    }

    /// The key as a file such as `tls.key` holds it.
    #[must_use]
    pub fn key_pem(&self) -> Zeroizing<String> {
        let label = match &self.key {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        Zeroizing::new(pem::encode_config(&pem::Pem::new(label, self.key.secret_der()), LINES))
    }

    pub(crate) fn into_parts(self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain, self.key)
    }
}

const LINES: pem::EncodeConfig = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);

/// Certificates as a file such as `ca.crt` holds them.
#[must_use]
pub fn certificates_pem(certificates: &[CertificateDer<'_>]) -> String {
    let block = |it: &CertificateDer<'_>| pem::encode_config(&pem::Pem::new("CERTIFICATE", it.as_ref()), LINES);
    certificates.iter().map(block).collect()
}

/// All certificates of a text, at least one.
///
/// # Errors
/// A sentence, when there is none or one cannot be decoded.
pub(crate) fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| format!("a certificate cannot be decoded: {error}"))?;
    if all.is_empty() { Err("it holds no certificate in PEM format".to_owned()) } else { Ok(all) }
}

/// The one private key of a text.
///
/// # Errors
/// A sentence that shows nothing of the text.
pub(crate) fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes());
    key.map_err(|_| "it holds no private key in PEM format that is not encrypted".to_owned())
}
