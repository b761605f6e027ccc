//! Where identities come from: the key of the cluster, or certificates that somebody else issues.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::cluster_key::ClusterKeys;
use crate::credentials::{Credentials, certificates, private_key};
use crate::error::{IssueError, KeyError, LoadError};
use crate::live::{Material, Unusable};
use crate::name::{Identity, NameError, Scope};
use crate::secret_file::{read_public, read_secret};
use crate::trust::Trust;
use crate::validity::CLOCK_SKEW;
use forebay_types::Role;

/// Where a process has its identity from.
#[derive(Clone, Debug)]
pub enum Source {
    /// It makes a certificate for itself from the key of the cluster.
    Key {
        /// The file of the key.
        file: PathBuf,
        /// The role that it takes.
        role: Role,
        /// Its name among those of its role.
        name: String,
        /// The names and addresses that programs of others reach it at over HTTPS.
        hosts: Vec<String>,
        /// How long a certificate of its lasts. It makes a new one when half of that is over.
        lifetime: Duration,
    },
    /// It presents certificates that others write, and replace: cert-manager, a SPIFFE driver, `forebay key issue`.
    Files {
        /// Its certificate and those between it and an authority: `tls.crt`.
        certificate: PathBuf,
        /// The private key: `tls.key`.
        key: PathBuf,
        /// The authorities that it believes: `ca.crt`.
        authorities: PathBuf,
    },
}

impl Source {
    /// The file that says who the process is.
    fn certificate(&self) -> &Path {
        let (Self::Key { file: path, .. } | Self::Files { certificate: path, .. }) = self;
        path
    }
}

/// Authorities that are believed besides those of the source, while a cluster goes over from one kind to the other.
#[derive(Clone, Debug)]
pub enum AuthoritySource {
    /// Those of the cluster's key, in this file.
    Key(PathBuf),
    /// Those in this file.
    Files(PathBuf),
}

impl AuthoritySource {
    fn path(&self) -> &Path {
        let (Self::Key(path) | Self::Files(path)) = self;
        path
    }

    fn read(&self) -> Result<Zeroizing<String>, LoadError> {
        match self {
            Self::Key(path) => Ok(read_secret(path).map_err(KeyError::from)?),
            Self::Files(path) => Ok(Zeroizing::new(read_public(path)?)),
        }
    }

    fn authorities(&self, text: &str, scope: &Scope) -> Result<Vec<CertificateDer<'static>>, LoadError> {
        match self {
            Self::Key(path) => Ok(ClusterKeys::parse(text, path)?.authorities(scope)?),
            Self::Files(path) => certificates(text).map_err(content(path)),
        }
    }
}

/// A source, the cluster that it is for, who else is believed, and the file of those that are denied.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster.
    pub scope: Scope,
    /// Where the identity is from.
    pub source: Source,
    /// Who is believed besides those whom the source names.
    pub also: Option<AuthoritySource>,
    /// A file with an identity on each line.
    pub denied: Option<PathBuf>,
}

/// Tells what files held at one moment from what they hold at another.
type Digest = [u8; 32];

fn digest(texts: &[&str]) -> Digest {
    let mut context = Context::new(&SHA256);
    for text in texts {
        context.update(&(text.len() as u64).to_le_bytes());
        context.update(text.as_bytes());
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

impl Settings {
    /// What the files say now, unless it is what they said when their digest was `known`.
    fn changed(&self, now: SystemTime, known: Option<Digest>) -> Result<Option<(Digest, Material)>, LoadError> {
        let denied = self.denied.as_deref().map(read_public).transpose()?.unwrap_or_default();
        let also = self.also.as_ref().map(AuthoritySource::read).transpose()?.unwrap_or_default();
        match &self.source {
            Source::Key { file, role, name, hosts, lifetime } => {
                let text = read_secret(file).map_err(KeyError::from)?;
                let digest = digest(&[&text, &also, &denied]);
                if known == Some(digest) {
                    return Ok(None);
                }
                let keys = ClusterKeys::parse(&text, file)?;
                let from = now.checked_sub(CLOCK_SKEW).unwrap_or(SystemTime::UNIX_EPOCH);
                let to = now.checked_add(*lifetime).ok_or(IssueError::Time)?;
                let authority = keys.current().authority(&self.scope, *role)?;
                let credentials = authority.issue_at(name, hosts, from, to)?;
                let trust = self.trust(file, keys.authorities(&self.scope)?, &also, &denied)?;
                Ok(Some((digest, usable(Material::new(credentials, trust, now), file, file)?)))
            }
            Source::Files { certificate, key, authorities } => {
                let (chain, trusted) = (read_public(certificate)?, read_public(authorities)?);
                let private = read_secret(key)?;
                let digest = digest(&[&chain, &trusted, &private, &also, &denied]);
                if known == Some(digest) {
                    return Ok(None);
                }
                let chain = certificates(&chain).map_err(content(certificate))?;
                let private = private_key(&private).map_err(content(key))?;
                let trusted = certificates(&trusted).map_err(content(authorities))?;
                let trust = self.trust(authorities, trusted, &also, &denied)?;
                let made = Material::new(Credentials::new(chain, private), trust, now);
                Ok(Some((digest, usable(made, certificate, key)?)))
            }
        }
    }

    fn renewal(&self, now: SystemTime) -> Option<SystemTime> {
        match self.source {
            Source::Key { lifetime, .. } => now.checked_add(lifetime / 2),
            Source::Files { .. } => None,
        }
    }

    fn trust(
        &self,
        path: &Path,
        mut authorities: Vec<CertificateDer<'static>>,
        also: &str,
        denied: &str,
    ) -> Result<Trust, LoadError> {
        let denied = identities(denied).map_err(content(self.denied.as_deref().unwrap_or(path)))?;
        let mut path = path;
        if let Some(believed) = &self.also {
            // What is wrong with the first ones is said of their file.
            Trust::new(self.scope.clone(), &authorities, []).map_err(content(path))?;
            authorities.extend(believed.authorities(also, &self.scope)?);
            path = believed.path();
        }
        Trust::new(self.scope.clone(), &authorities, denied).map_err(content(path))
    }
}

fn content(path: &Path) -> impl FnOnce(String) -> LoadError {
    let path = path.to_owned();
    move |reason| LoadError::Content { path, reason }
}

fn usable(made: Result<Material, Unusable>, certificate: &Path, key: &Path) -> Result<Material, LoadError> {
    made.map_err(|unusable| match unusable {
        Unusable::Pair => LoadError::Pair { certificate: certificate.to_owned(), key: key.to_owned() },
        Unusable::Refused(reason) => LoadError::Refused { path: certificate.to_owned(), reason },
    })
}

/// One identity a line; what follows a `#` is a remark.
pub(crate) fn identities(text: &str) -> Result<Vec<Identity>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let identities = lines.filter(|line| !line.is_empty()).map(str::parse);
    identities.collect::<Result<_, NameError>>().map_err(|error| error.to_string())
}

/// What a look at the files found.
#[derive(Debug)]
pub enum Reload {
    /// They are as they were.
    Unchanged,
    /// There is new material.
    New(Box<Material>),
    /// They changed, and what is there now cannot be used: what was good stays. Said once for each change.
    Refused(LoadError),
}

/// Looks after the files of an identity, in the time of its caller.
#[derive(Debug)]
pub struct Watch {
    settings: Settings,
    /// Who this process is. Others know it by that name, as by a worker's record, so it is the same as long as it runs.
    identity: Identity,
    good: Digest,
    /// Why what is there now is of no use, as it was told.
    told: Option<String>,
    /// When a certificate of our own making has half of its time left.
    renewal: Option<SystemTime>,
}

impl Watch {
    /// Loads for the first time: what cannot be used then ends the start of a process.
    ///
    /// # Errors
    /// [`LoadError`] names the file, and what is wrong with it.
    pub fn begin(settings: Settings, now: SystemTime) -> Result<(Self, Material), LoadError> {
        // Nothing is known, so all of it is new.
        let Some((good, material)) = settings.changed(now, None)? else { unreachable!("nothing was known") };
        let (identity, renewal) = (material.identity().clone(), settings.renewal(now));
        Ok((Self { settings, identity, good, told: None, renewal }, material))
    }

    /// Looks again. To be called every few seconds, from a thread that may wait for a disk.
    pub fn look(&mut self, now: SystemTime) -> Reload {
        match self.changed(now) {
            Ok(None) => {
                self.told = None;
                Reload::Unchanged
            }
            Ok(Some((digest, material))) => {
                (self.good, self.told, self.renewal) = (digest, None, self.settings.renewal(now));
                Reload::New(Box::new(material))
            }
            Err(error) => {
                let text = error.to_string();
                if self.told.as_ref() == Some(&text) {
                    return Reload::Unchanged;
                }
                self.told = Some(text);
                Reload::Refused(error)
            }
        }
    }

    /// Who is denied now, when the last look found something that cannot be used: whatever is wrong with a certificate, or is half
    /// replaced, somebody who is to be kept out does not wait for it. `None`: all is well, or it is this file that cannot be used.
    pub fn denied(&self) -> Option<Vec<Identity>> {
        self.told.as_ref()?;
        identities(&read_public(self.settings.denied.as_deref()?).ok()?).ok()
    }

    /// What the files say now, unless it is what they said before, or is not for this process.
    fn changed(&self, now: SystemTime) -> Result<Option<(Digest, Material)>, LoadError> {
        let is_due = self.renewal.is_some_and(|at| now >= at);
        let changed = self.settings.changed(now, (!is_due).then_some(self.good))?;
        match &changed {
            Some((_, material)) if *material.identity() != self.identity => Err(LoadError::Renamed {
                path: self.settings.source.certificate().to_owned(),
                found: Box::new(material.identity().clone()),
                identity: Box::new(self.identity.clone()),
            }),
            _ => Ok(changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::cluster_key::ClusterKey;
    use crate::credentials::certificates_pem;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn who_is_denied_does_not_wait_for_a_pair_that_is_half_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { directory.path().join(name) };
        let (scope, key, now) = (Scope::new("d", "c").unwrap(), ClusterKey::generate().unwrap(), SystemTime::now());
        let authority = key.authority(&scope, Role::Worker).unwrap();
        let issued = || authority.issue("w1", now - CLOCK_SKEW, now + CLOCK_SKEW).unwrap();
        let (first, second) = (issued(), issued());
        write(&at("tls.crt"), &first.chain_pem(), 0o644);
        write(&at("tls.key"), &first.key_pem(), 0o600);
        write(&at("ca.crt"), &certificates_pem(std::slice::from_ref(authority.certificate())), 0o644);
        write(&at("denied"), "", 0o644);
        let source = Source::Files { certificate: at("tls.crt"), key: at("tls.key"), authorities: at("ca.crt") };
        let settings = Settings { scope: scope.clone(), source, also: None, denied: Some(at("denied")) };
        let (mut watch, material) = Watch::begin(settings, now).unwrap();
        let live = crate::live::LiveIdentity::new(material);
        assert!(matches!(watch.look(now), Reload::Unchanged) && watch.denied().is_none());

        write(&at("tls.crt"), &second.chain_pem(), 0o644);
        let team_a = scope.identity(Role::Reader, "team-a").unwrap();
        write(&at("denied"), &format!("{team_a}\n"), 0o644);
        assert!(matches!(watch.look(now), Reload::Refused(LoadError::Pair { .. })));
        let denied = watch.denied().unwrap();
        assert!(live.deny(denied.clone()) && live.material().trust().denies(&team_a));
        assert!(!live.deny(denied), "it is said once");
        // A line that is none denies nobody more, and nobody less.
        write(&at("denied"), "team-b\n", 0o644);
        let _ = watch.look(now);
        assert!(watch.denied().is_none());

        write(&at("denied"), "", 0o644);
        write(&at("tls.key"), &second.key_pem(), 0o600);
        let Reload::New(material) = watch.look(now) else { panic!("the pair is whole") };
        live.replace(*material);
        assert!(!live.material().trust().denies(&team_a) && watch.denied().is_none());
    }

    /// Others know a process by its name, as by the record of a worker, and would refuse it under another one.
    #[test]
    fn a_process_stays_who_it_is_whatever_its_certificate_says() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { directory.path().join(name) };
        let (scope, key, now) = (Scope::new("d", "c").unwrap(), ClusterKey::generate().unwrap(), SystemTime::now());
        let authority = |role| key.authority(&scope, role).unwrap();
        let put = |role: Role, name: &str| {
            let issued = authority(role).issue(name, now - CLOCK_SKEW, now + CLOCK_SKEW).unwrap();
            write(&at("tls.crt"), &issued.chain_pem(), 0o644);
            write(&at("tls.key"), &issued.key_pem(), 0o600);
        };
        let authorities = Role::ALL.map(|role| authority(role).certificate().clone());
        write(&at("ca.crt"), &certificates_pem(&authorities), 0o644);
        put(Role::Worker, "w1");
        let source = Source::Files { certificate: at("tls.crt"), key: at("tls.key"), authorities: at("ca.crt") };
        let settings = Settings { scope: scope.clone(), source, also: None, denied: None };
        let (mut watch, _) = Watch::begin(settings.clone(), now).unwrap();

        for (role, name) in [(Role::Worker, "w2"), (Role::Reader, "w1")] {
            put(role, name);
            let Reload::Refused(error) = watch.look(now) else { panic!("it became the {role} {name}") };
            let (error, found) = (error.to_string(), format!("tls.crt is for `spiffe://d/forebay/c/{role}/{name}`"));
            assert!(error.contains(&found) && error.contains("is `spiffe://d/forebay/c/worker/w1` as long"), "{error}");
            assert!(matches!(watch.look(now), Reload::Unchanged), "it is said once");
        }
        // One that begins is whoever its certificate names, and this one takes one of its own.
        assert_eq!(Watch::begin(settings, now).unwrap().1.identity().role(), Role::Reader);
        put(Role::Worker, "w1");
        let Reload::New(material) = watch.look(now) else { panic!("not seen") };
        assert_eq!(material.identity().name(), "w1");
    }
}
