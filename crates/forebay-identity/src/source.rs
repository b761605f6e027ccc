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
use forebay_types::Role;

/// How far clocks of two machines may be apart for a fresh certificate to be believed.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

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

/// Authorities that are believed besides those of the source, while a cluster goes over from one kind to the other.
#[derive(Clone, Debug)]
pub enum Believed {
    /// Those of the cluster's key, in this file.
    Key(PathBuf),
    /// Those in this file.
    Files(PathBuf),
}

impl Believed {
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
    pub also: Option<Believed>,
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
        let also = self.also.as_ref().map(Believed::read).transpose()?.unwrap_or_default();
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
fn identities(text: &str) -> Result<Vec<Identity>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let identities = lines.filter(|line| !line.is_empty()).map(str::parse);
    identities.collect::<Result<_, NameError>>().map_err(|error| error.to_string())
}

/// What a look at the files found.
#[derive(Debug)]
pub enum Looked {
    /// They are as they were.
    Same,
    /// There is new material.
    New(Box<Material>),
    /// They changed, and what is there now cannot be used: what was good stays. Said once for each change.
    Kept(LoadError),
}

/// Looks after the files of an identity, in the time of its caller.
#[derive(Debug)]
pub struct Watch {
    settings: Settings,
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
        let renewal = settings.renewal(now);
        Ok((Self { settings, good, told: None, renewal }, material))
    }

    /// Looks again. To be called every few seconds, from a thread that may wait for a disk.
    pub fn look(&mut self, now: SystemTime) -> Looked {
        let is_due = self.renewal.is_some_and(|at| now >= at);
        match self.settings.changed(now, (!is_due).then_some(self.good)) {
            Ok(None) => {
                self.told = None;
                Looked::Same
            }
            Ok(Some((digest, material))) => {
                (self.good, self.told, self.renewal) = (digest, None, self.settings.renewal(now));
                Looked::New(Box::new(material))
            }
            Err(error) => {
                let text = error.to_string();
                if self.told.as_ref() == Some(&text) {
                    return Looked::Same;
                }
                self.told = Some(text);
                Looked::Kept(error)
            }
        }
    }
}
