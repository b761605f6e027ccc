//! Identities: their files are opened as a process of this configuration opens them. What is told of them is no secret.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::Config;
use forebay_doctor::facts::{Certificate, Obstacle, Refusal, Security};
use forebay_identity::{
    CertificateSummary, ClusterKey, ClusterKeys, FileError, KeyError, LoadError, Source, Watch, certificate_summaries,
};
use forebay_node::security;
use forebay_types::Role;

/// What is there `now`.
pub(super) fn look(config: &Config, now: SystemTime) -> Security {
    let found = Security { mode: config.security_mode.as_str().to_owned(), at: seconds(now), ..Security::default() };
    let (role, name) = part(config);
    let settings = match security::settings(config, role, &name) {
        Ok(None) => return found,
        Ok(Some(settings)) => settings,
        Err(error) => {
            let refusal = Refusal { file: None, obstacle: Obstacle::Other(error.to_string()) };
            return Security { refusal: Some(refusal), ..found };
        }
    };
    let found = match &settings.source {
        Source::Key { file, .. } => Security { keys: fingerprints(file), ..found },
        Source::Files { certificate, authorities, .. } => Security {
            certificates: [certificates(certificate, false), certificates(authorities, true)].concat(),
            ..found
        },
    };
    match Watch::begin(settings, now) {
        Ok((_, material)) => Security {
            identity: Some(material.identity().to_string()),
            role: Some(material.identity().role().to_string()),
            denied: Some(material.trust().denied().count()),
            ..found
        },
        Err(error) => Security { refusal: Some(refusal(&error)), ..found },
    }
}

/// The role and the name of what runs on a machine with this configuration: one with mounts is for a worker.
fn part(config: &Config) -> (Role, String) {
    match config.mounts.is_empty() {
        true => (security::role_of_client(config, true), security::machine()),
        false => (Role::Worker, config.worker_name.clone().unwrap_or_else(security::machine)),
    }
}

/// Those of a file that cannot be used are none, and who is to use it says why.
fn fingerprints(file: &Path) -> Vec<String> {
    ClusterKeys::read(file).map(|keys| keys.iter().map(ClusterKey::fingerprint).collect()).unwrap_or_default()
}

/// As [`fingerprints`].
fn certificates(file: &Path, is_authority: bool) -> Vec<Certificate> {
    let certificate = |described: CertificateSummary| Certificate {
        file: file.display().to_string(),
        name: described.name,
        is_authority,
        from: seconds(described.from),
        until: seconds(described.until),
    };
    certificate_summaries(file).unwrap_or_default().into_iter().map(certificate).collect()
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn refusal(error: &LoadError) -> Refusal {
    let (file, obstacle) = match error {
        LoadError::Key(KeyError::File(error)) | LoadError::File(error) => {
            let (file, obstacle) = of_file(error);
            (Some(file), obstacle)
        }
        LoadError::Key(KeyError::Content { path, reason }) => (Some(path), Obstacle::Content((*reason).to_owned())),
        LoadError::Content { path, reason } => (Some(path), Obstacle::Content(reason.clone())),
        LoadError::Pair { certificate, key } => (Some(certificate), Obstacle::Pair(key.display().to_string())),
        LoadError::Refused { path, reason } => (Some(path), Obstacle::Refused(reason.to_string())),
        // A look at files that begins, as here, takes any name.
        LoadError::Key(KeyError::Random) | LoadError::Issue(_) | LoadError::Renamed { .. } => {
            (None, Obstacle::Other(error.to_string()))
        }
    };
    Refusal { file: file.map(|file| file.display().to_string()), obstacle }
}

fn of_file(error: &FileError) -> (&PathBuf, Obstacle) {
    match error {
        FileError::Read { path, error } if error.kind() == ErrorKind::NotFound => (path, Obstacle::Missing),
        FileError::Read { path, error } => {
            let words = error.to_string();
            (path, Obstacle::Unreadable(words.split(" (os error").next().unwrap_or_default().to_owned()))
        }
        FileError::Open { path, mode } => (path, Obstacle::Open(*mode)),
        FileError::Owner { path, owner, user } => (path, Obstacle::Owner { owner: *owner, user: *user }),
        FileError::Kind { path } => (path, Obstacle::Content("it is no regular file, or far too long".to_owned())),
        FileError::Text { path } => (path, Obstacle::Content("it is not text".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use forebay_config::Sources;
    use forebay_identity::{Credentials, Scope, certificates_pem};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn found(settings: &[String]) -> Security {
        look(&Config::load(&Sources::new().flags(settings.iter().cloned())).unwrap().config, now())
    }

    fn of_key(file: &Path) -> Security {
        found(&["security.mode=key".to_owned(), format!("security.key_file={}", file.display())])
    }

    /// What is found of a key file with this text and mode.
    fn with_key(text: &str, mode: u32) -> Security {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cluster.key");
        write(&file, text, mode);
        of_key(&file)
    }

    /// The settings for certificates in `directory`.
    fn of_files(directory: &Path) -> Vec<String> {
        let file = |key: &str, name: &str| format!("security.{key}={}", directory.join(name).display());
        let files = [file("cert_file", "tls.crt"), file("cert_key_file", "tls.key"), file("ca_file", "ca.crt")];
        [vec!["security.mode=mtls".to_owned()], files.to_vec()].concat()
    }

    /// Writes what `key` vouches for, with the private key of `pair`.
    fn lay(directory: &Path, key: &ClusterKey, certificate: &Credentials, pair: &Credentials) {
        let authority = key.authority(&scope(), Role::Worker).unwrap();
        write(&directory.join("tls.crt"), &certificate.chain_pem(), 0o644);
        write(&directory.join("tls.key"), &pair.key_pem(), 0o600);
        write(&directory.join("ca.crt"), &certificates_pem(std::slice::from_ref(authority.certificate())), 0o644);
    }

    fn scope() -> Scope {
        Scope::new("forebay", "forebay").unwrap()
    }

    fn issue(key: &ClusterKey, from: SystemTime, until: SystemTime) -> Credentials {
        key.authority(&scope(), Role::Worker).unwrap().issue("node1", from, until).unwrap()
    }

    fn obstacle(found: &Security) -> &Obstacle {
        &found.refusal.as_ref().unwrap().obstacle
    }

    #[test]
    fn a_key_is_opened_and_nothing_of_it_is_told_but_its_fingerprint() {
        let (key, other) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
        let good = with_key(&key.to_pem(), 0o600);
        assert_eq!(good.refusal, None);
        assert_eq!(good.keys, [key.fingerprint()]);
        assert!(
            good.identity.as_ref().is_some_and(|identity| identity.starts_with("spiffe://forebay/forebay/forebay/"))
        );
        let both = with_key(&format!("{}{}", *key.to_pem(), *other.to_pem()), 0o600);
        assert_eq!(both.keys, [key.fingerprint(), other.fingerprint()]);
        let told = serde_json::to_string(&both).unwrap();
        for pem in [key.to_pem(), other.to_pem()] {
            let secret = pem.lines().nth(1).unwrap();
            assert!(!told.contains(secret), "{told}");
        }
    }

    #[test]
    fn a_key_that_no_process_takes_is_refused_for_the_same_reason() {
        let key = ClusterKey::generate().unwrap().to_pem();
        let open = with_key(&key, 0o644);
        assert_eq!((obstacle(&open), open.keys.len(), &open.identity), (&Obstacle::Open(0o644), 0, &None));
        let file = open.refusal.as_ref().and_then(|refusal| refusal.file.as_deref());
        assert!(file.is_some_and(|file| file.ends_with("/cluster.key")), "{open:?}");
        assert_eq!(obstacle(&of_key(Path::new("/nonexistent/cluster.key"))), &Obstacle::Missing);
        assert!(matches!(obstacle(&with_key("secret", 0o600)), Obstacle::Content(_)));
    }

    #[test]
    fn certificates_are_opened_with_the_time_that_they_have() {
        let directory = tempfile::tempdir().unwrap();
        let (path, key) = (directory.path(), ClusterKey::generate().unwrap());
        let look = |from: SystemTime, until: SystemTime| {
            let issued = issue(&key, from, until);
            lay(path, &key, &issued, &issued);
            found(&of_files(path))
        };
        let good = look(now() - HOUR, now() + HOUR);
        assert_eq!(good.identity.as_deref(), Some("spiffe://forebay/forebay/forebay/worker/node1"));
        assert_eq!((good.role.as_deref(), &good.refusal), (Some("worker"), &None));
        let [certificate, authority] = &good.certificates[..] else { panic!("there are two: {good:?}") };
        assert_eq!((certificate.from, certificate.until), (good.at - 3600, good.at + 3600));
        assert!(!certificate.is_authority && authority.is_authority && authority.file.ends_with("ca.crt"));
        let expired = look(now() - 2 * HOUR, now() - HOUR);
        assert!(
            matches!(obstacle(&expired), Obstacle::Refused(reason) if reason.contains("has expired")),
            "{expired:?}"
        );
        assert_eq!((expired.certificates[0].until, &expired.identity), (expired.at - 3600, &None));
        let early = look(now() + HOUR, now() + 2 * HOUR);
        assert!(matches!(obstacle(&early), Obstacle::Refused(reason) if reason.contains("not valid yet")), "{early:?}");
    }

    #[test]
    fn certificates_that_no_process_takes_are_refused_for_the_same_reason() {
        let directory = tempfile::tempdir().unwrap();
        let (path, key) = (directory.path(), ClusterKey::generate().unwrap());
        let (one, other) = (issue(&key, now() - HOUR, now() + HOUR), issue(&key, now() - HOUR, now() + HOUR));
        lay(path, &key, &one, &other);
        assert!(matches!(obstacle(&found(&of_files(path))), Obstacle::Pair(key) if key.ends_with("tls.key")));
        // Others do not know who signed it.
        lay(path, &ClusterKey::generate().unwrap(), &one, &one);
        assert!(matches!(obstacle(&found(&of_files(path))), Obstacle::Refused(_)));
        lay(path, &key, &one, &one);
        let denied = path.join("denied");
        let settings = [of_files(path), vec![format!("security.denied_file={}", denied.display())]].concat();
        assert_eq!(obstacle(&found(&settings)), &Obstacle::Missing);
        write(&denied, "nobody\n", 0o644);
        assert!(matches!(obstacle(&found(&settings)), Obstacle::Content(_)));
        write(&denied, "spiffe://forebay/forebay/forebay/reader/team-a # left\n", 0o644);
        assert_eq!(found(&settings).denied, Some(1));
        fs::remove_file(path.join("tls.crt")).unwrap();
        let missing = found(&settings);
        assert_eq!((obstacle(&missing), missing.certificates.len()), (&Obstacle::Missing, 1));
    }

    #[test]
    fn names_that_cannot_be_in_an_identity_are_no_files_fault() {
        let odd = found(&["security.mode=key".to_owned(), "security.trust_domain=Not A Domain".to_owned()]);
        assert_eq!(odd.refusal.as_ref().map(|refusal| &refusal.file), Some(&None));
        assert_eq!(found(&[]), Security { mode: "off".to_owned(), at: odd.at, ..Security::default() });
    }
}
