//! The certificate files of a client of etcd: what they hold, and whether it can be used.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsPaths {
    /// That of the authority which signed the members' certificates.
    pub(super) ca: Option<PathBuf>,
    /// Those of our certificate and of its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// What the files hold, in PEM format.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) ca: Option<Vec<u8>>,
    /// The certificate, and its key.
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) file: PathBuf,
    pub(super) reason: String,
}

impl TlsPaths {
    pub(super) fn are_any(&self) -> bool {
        self.ca.is_some() || self.identity.is_some()
    }

    /// What the files hold now, if all of it can be used. It is read anew each time: a file that is a link into a directory
    /// which is replaced as a whole, as Kubernetes does it, keeps its name and may keep its times.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(super) fn load(&self) -> Result<TlsFiles, Problem> {
        let ca = self.ca.as_deref().map(read).transpose()?;
        let identity = match &self.identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let files = TlsFiles { ca, identity };
        self.check(&files)?;
        Ok(files)
    }

    /// Whether `files`, which were read from here, can be used.
    fn check(&self, files: &TlsFiles) -> Result<(), Problem> {
        if let (Some(path), Some(pem)) = (&self.ca, &files.ca) {
            check_authority(pem).map_err(|reason| problem(path, reason))?;
        }
        if let (Some((certificate, key)), Some((certificate_pem, key_pem))) = (&self.identity, &files.identity) {
            let chain = certificates(certificate_pem).map_err(|reason| problem(certificate, reason))?;
            let private_key = PrivateKeyDer::from_pem_slice(key_pem);
            let private_key = private_key.map_err(|error| problem(key, format!("it holds no private key: {error}")))?;
            CertifiedKey::from_der(chain, private_key, &aws_lc_rs::default_provider()).map_err(|error| {
                problem(key, format!("it does not go with the certificate in {}: {error}", certificate.display()))
            })?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    std::fs::read(path).map_err(|error| problem(path, error.to_string()))
}

/// A bundle may hold certificates that we cannot read, among those that we can.
fn check_authority(pem: &[u8]) -> Result<(), String> {
    let (usable, _) = RootCertStore::empty().add_parsable_certificates(certificates(pem)?);
    if usable == 0 { Err("it holds no certificate of an authority".to_owned()) } else { Ok(()) }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(none) if none.is_empty() => Err("it holds no certificate in PEM format".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("it is not in PEM format: {error}")),
    }
}

fn problem(file: &Path, reason: String) -> Problem {
    Problem { file: file.to_owned(), reason }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.file.display(), self.reason)
    }
}

impl fmt::Debug for TlsFiles {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_ca, has_identity) = (self.ca.is_some(), self.identity.is_some());
        formatter.debug_struct("TlsFiles").field("has_ca", &has_ca).field("has_identity", &has_identity).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use forebay_testkit::Authority;

    use super::*;

    /// Files as Kubernetes mounts a secret: links through `..data`, which is a link to a directory of this version.
    struct Secret {
        directory: tempfile::TempDir,
        versions: usize,
    }

    impl Secret {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            for name in ["ca.crt", "tls.crt", "tls.key"] {
                symlink(format!("..data/{name}"), directory.path().join(name)).unwrap();
            }
            Self { directory, versions: 0 }
        }

        fn paths(&self) -> TlsPaths {
            let at = |name: &str| self.directory.path().join(name);
            TlsPaths { ca: Some(at("ca.crt")), identity: Some((at("tls.crt"), at("tls.key"))) }
        }

        /// Replaces all files at once.
        fn update(&mut self, ca: &str, certificate: &str, key: &str) {
            self.versions += 1;
            let (root, version) = (self.directory.path(), format!("..version{}", self.versions));
            std::fs::create_dir(root.join(&version)).unwrap();
            for (name, text) in [("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)] {
                std::fs::write(root.join(&version).join(name), text).unwrap();
            }
            symlink(&version, root.join("..new")).unwrap();
            std::fs::rename(root.join("..new"), root.join("..data")).unwrap();
        }
    }

    #[test]
    fn a_secret_that_is_replaced_as_a_whole_is_seen_and_a_wrong_one_is_named() {
        let (authority, mut secret) = (Authority::new().unwrap(), Secret::new());
        let paths = secret.paths();
        assert!(paths.load().unwrap_err().file.ends_with("ca.crt"), "there is none yet");
        let (one, two) = (authority.issue().unwrap(), authority.issue().unwrap());
        secret.update(authority.pem(), &one.certificate, &one.key);
        let first = paths.load().unwrap();
        assert_eq!(paths.load().unwrap(), first);
        assert!(!format!("{first:?}").contains("PRIVATE") && format!("{first:?}").len() < 80);
        secret.update(authority.pem(), &two.certificate, &two.key);
        assert_ne!(paths.load().unwrap(), first);

        secret.update(authority.pem(), &one.certificate, &two.key);
        let mixed = paths.load().unwrap_err();
        assert!(mixed.file.ends_with("tls.key") && mixed.to_string().contains("does not go with"), "{mixed}");
        let half = &two.certificate[..two.certificate.len() / 2];
        for (ca, certificate, key, wrong) in [
            (authority.pem(), half, &*two.key, "tls.crt"),
            (authority.pem(), "", &*two.key, "tls.crt"),
            (authority.pem(), &*two.certificate, "", "tls.key"),
            (authority.pem(), &*two.certificate, &two.key[..two.key.len() / 2], "tls.key"),
            ("", &*two.certificate, &*two.key, "ca.crt"),
            (&*two.key, &*two.certificate, &*two.key, "ca.crt"),
        ] {
            secret.update(ca, certificate, key);
            let problem = paths.load().unwrap_err();
            assert!(problem.file.ends_with(wrong), "{problem}");
            assert!(!problem.to_string().contains("BEGIN"), "{problem}");
        }
        secret.update(authority.pem(), &one.certificate, &one.key);
        assert_eq!(paths.load().unwrap(), first);
    }

    #[test]
    fn what_is_not_configured_is_not_looked_for() {
        let nothing = TlsPaths { ca: None, identity: None };
        assert!(!nothing.are_any());
        assert_eq!(nothing.load().unwrap(), TlsFiles::default());
    }
}
