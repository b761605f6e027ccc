//! The key of a cluster: one file, the same on every node, from which all its authorities follow.
//!
//! From 32 random bytes HKDF-SHA256 (RFC 5869) derives a private key of P-256 for each role of each cluster. So all processes
//! that have the file agree on the authorities without a word, mint certificates for themselves, and never send the key anywhere.
//! A file may hold several keys: the first one signs, all are trusted, and so a key is replaced without a pause.

use std::path::Path;

use aws_lc_rs::hkdf;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::authority::Authority;
use crate::error::{IssueError, KeyError};
use crate::name::Scope;
use crate::p256::PrivateKey;
use crate::secret_file::read_secret;
use forebay_types::Role;

const LEN: usize = 32;
const LABEL: &str = "FOREBAY CLUSTER KEY";
/// Apart from whatever else anybody derives from the same bytes, and from later ways of ours.
const SALT: &[u8] = b"forebay cluster key 1";
/// More keys than a rotation ever needs: each is six authorities to try.
const MAX_KEYS: usize = 4;

/// A secret that makes whoever knows it every process of the cluster.
pub struct ClusterKey(Zeroizing<[u8; LEN]>);

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClusterKey").field(&self.fingerprint()).finish()
    }
}

impl ClusterKey {
    /// A new one, of the system's random numbers.
    ///
    /// # Errors
    /// [`KeyError::Random`] when the system has none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut secret = Zeroizing::new([0; LEN]);
        SystemRandom::new().fill(secret.as_mut()).map_err(|_| KeyError::Random)?;
        Ok(Self(secret))
    }

    /// As a key file holds it: PEM (RFC 7468).
    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        Zeroizing::new(pem::encode_config(&pem::Pem::new(LABEL, self.0.to_vec()), config))
    }

    /// What tells two keys apart, and says nothing of either: 64 bits, in hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.derive::<8>(&[b"fingerprint"]).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The authority for one role of one cluster.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn authority(&self, scope: &Scope, role: Role) -> Result<Authority, IssueError> {
        // Names have no zero bytes, so no two triples are one.
        let info = ["authority", scope.domain(), scope.cluster(), role.as_str(), ""].join("\0");
        let key = PrivateKey::first(|number| self.derive(&[info.as_bytes(), &[number]]));
        let key = key.ok_or_else(|| IssueError::Library("no private key follows from this cluster key".to_owned()))?;
        Authority::from_key(scope.clone(), role, &key)
    }

    fn derive<const N: usize>(&self, info: &[&[u8]]) -> Zeroizing<[u8; N]> {
        struct Len(usize);
        impl hkdf::KeyType for Len {
            fn len(&self) -> usize {
                self.0
            }
        }
        let key = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(self.0.as_ref());
        let mut derived = Zeroizing::new([0; N]);
        let filled = key.expand(info, Len(N)).and_then(|material| material.fill(derived.as_mut()));
        // It fails for more than 255 times 32 bytes, and for another length than was asked for.
        filled.expect("as many bytes as were asked for");
        derived
    }
}

/// What a key file holds: at least one key.
#[derive(Debug)]
pub struct ClusterKeys(Vec<ClusterKey>);

impl ClusterKeys {
    /// Those of a file that is this user's alone.
    ///
    /// # Errors
    /// [`KeyError`] when the file cannot be read, others could read it, or it holds something else.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        Self::parse(&read_secret(path)?, path)
    }

    /// Those of a text that was read from `path`.
    ///
    /// # Errors
    /// [`KeyError::Content`].
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, KeyError> {
        Self::decode(text).map_err(|reason| KeyError::Content { path: path.to_owned(), reason })
    }

    fn decode(text: &str) -> Result<Self, &'static str> {
        let blocks = pem::parse_many(text).map_err(|_| "it is no PEM")?;
        if text.matches("-----BEGIN ").count() != blocks.len() {
            return Err("a block of it does not end");
        }
        let mut keys = Vec::new();
        for block in blocks {
            if block.tag() != LABEL {
                return Err("it holds something else beside cluster keys");
            }
            let secret = Zeroizing::new(block.into_contents());
            let secret: [u8; LEN] = secret.as_slice().try_into().map_err(|_| "a key is not 32 bytes long")?;
            keys.push(ClusterKey(Zeroizing::new(secret)));
        }
        match keys.len() {
            0 => Err("it holds no cluster key"),
            1..=MAX_KEYS => Ok(Self(keys)),
            _ => Err("it holds more than four keys"),
        }
    }

    /// The one that signs.
    #[must_use]
    pub fn current(&self) -> &ClusterKey {
        &self.0[0]
    }

    /// The certificates of all authorities that follow from them.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn authorities(&self, scope: &Scope) -> Result<Vec<CertificateDer<'static>>, IssueError> {
        let each = self.0.iter().flat_map(|key| Role::ALL.map(|role| (key, role)));
        each.map(|(key, role)| Ok(key.authority(scope, role)?.certificate().clone())).collect()
    }

    /// All that are trusted, the one that signs first.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope::new("example.org", "prod").unwrap()
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let (key, other) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
        assert_ne!(key.fingerprint(), other.fingerprint());
        let both = format!("# new\n{}# old\n{}", *key.to_pem(), *other.to_pem());
        let read = ClusterKeys::decode(&both).unwrap();
        let fingerprints: Vec<_> = read.iter().map(ClusterKey::fingerprint).collect();
        assert_eq!(fingerprints, [key.fingerprint(), other.fingerprint()]);
        assert_eq!(read.current().fingerprint(), key.fingerprint());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let key = ClusterKey::generate().unwrap().to_pem();
        let of_three = key.lines().take(2).map(|line| &line[..line.len() - 4]).collect::<Vec<_>>().join("\n");
        for (text, reason) in [
            ("", "no cluster key"),
            ("secret", "no cluster key"),
            (&key.replace("FOREBAY CLUSTER KEY", "PRIVATE KEY"), "something else"),
            (&of_three, "does not end"),
            (&format!("{}{of_three}", *key), "does not end"),
            ("-----BEGIN FOREBAY CLUSTER KEY-----\nAAAA\n-----END FOREBAY CLUSTER KEY-----\n", "32 bytes"),
            (&key.repeat(5), "more than four"),
        ] {
            let refused = ClusterKeys::decode(text).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn nothing_shows_the_secret() {
        let key = ClusterKey::generate().unwrap();
        let shown = format!("{key:?} {:?}", key.authority(&scope(), Role::Worker).unwrap());
        let pem = key.to_pem();
        let secret = pem.lines().nth(1).unwrap();
        assert!(!shown.contains(secret), "{shown}");
        assert!(shown.contains(&key.fingerprint()));
    }

    /// What is believed of an authority: its subject and its public key.
    fn believed(key: &ClusterKey, scope: &Scope, role: Role) -> [Vec<u8>; 2] {
        let authority = key.authority(scope, role).unwrap();
        let anchor = webpki::anchor_from_trusted_cert(authority.certificate()).unwrap();
        [anchor.subject.to_vec(), anchor.subject_public_key_info.to_vec()]
    }

    #[test]
    fn authorities_follow_from_the_key_the_cluster_and_the_role() {
        let key = ClusterKey(Zeroizing::new([7; LEN]));
        let worker = believed(&key, &scope(), Role::Worker);
        assert_eq!(worker, believed(&ClusterKey(Zeroizing::new([7; LEN])), &scope(), Role::Worker));
        for (key, scope, role) in [
            (&key, scope(), Role::Reader),
            (&key, Scope::new("example.org", "test").unwrap(), Role::Worker),
            (&key, Scope::new("example.com", "prod").unwrap(), Role::Worker),
            (&ClusterKey(Zeroizing::new([8; LEN])), scope(), Role::Worker),
        ] {
            assert_ne!(worker[1], believed(key, &scope, role)[1], "{scope:?} {role}");
        }
        // What nodes of two releases must agree on does not change by chance.
        assert_eq!(key.fingerprint(), "8352ff5b18454be7");
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &worker.concat());
        let start: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(start, "3284a80881fff18c");
    }
}
