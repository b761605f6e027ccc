//! What a job is asked to do.
//!
//! The same words on the command line, in the REST interface and in the state store, so that what is listed is what was
//! submitted.

use forebay_types::{ByteSize, FsPath, MAX_REPLICAS};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::text;

/// What a job is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum JobSpec {
    /// Bring files into the cache.
    Load(LoadSpec),
    /// Drop files from the cache. The origin keeps them.
    Free(FreeSpec),
}

/// What to load, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// A file, a directory with all below it, or an index file; a path of the namespace.
    #[serde(with = "text::path")]
    #[schema(value_type = String, example = "/s3/datasets/imagenet")]
    pub path: FsPath,
    /// `path` is a text file with a path on each line, of a file or a directory. Relative ones start at the directory
    /// that holds the index file; empty lines and those that start with `#` are passed over.
    #[serde(default)]
    pub index_file: bool,
    /// At most so many bytes a second from the origin, `500MiB`; as fast as it goes if not given.
    #[serde(default, with = "text::size", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "500MiB")]
    pub bandwidth: Option<ByteSize>,
    /// Start to load before everything is listed. Totals are then known only when the listing has ended.
    #[serde(default)]
    pub partial_listing: bool,
    /// Load again what the audit finds missing, and audit again.
    #[serde(default)]
    pub verify: bool,
    /// Load listings and attributes, no bytes.
    #[serde(default)]
    pub metadata_only: bool,
    /// Ask first, and pass over files that are cached whole.
    #[serde(default)]
    pub skip_if_exists: bool,
    /// How many workers shall hold each block; what the policies say if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 16)]
    pub replicas: Option<u8>,
    /// When it is loaded, have every mount that keeps files whole (`client.local.size`) keep these.
    #[serde(default)]
    pub to_clients: bool,
}

/// What to drop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FreeSpec {
    /// A file, a directory with all below it, or an index file; a path of the namespace.
    #[serde(with = "text::path")]
    #[schema(value_type = String, example = "/s3/datasets/imagenet")]
    pub path: FsPath,
    /// As for a load.
    #[serde(default)]
    pub index_file: bool,
}

/// The two kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// [`JobSpec::Load`].
    Load,
    /// [`JobSpec::Free`].
    Free,
}

impl JobKind {
    /// Its name, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Free => "free",
        }
    }
}

/// Why a job was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecProblem {
    /// A path that cannot be written down.
    #[error("`{0}` is not UTF-8; name a directory above it")]
    NotText(String),
    /// A bandwidth of nothing.
    #[error("a bandwidth of 0 loads nothing; leave it out for no limit")]
    NoBandwidth,
    /// Too few or too many.
    #[error("{0} replicas cannot be; give 1 to {MAX_REPLICAS}")]
    Replicas(u8),
    /// Options about bytes with a job that loads none.
    #[error("`metadata_only` loads no bytes; leave out `{0}`")]
    NoBytes(&'static str),
    /// An index file for mounts.
    #[error("mounts keep a file or a directory; give a path instead of an index file, or leave out `to_clients`")]
    NoIndex,
}

impl LoadSpec {
    /// Everything below `path`, with no option set.
    #[must_use]
    pub fn new(path: FsPath) -> Self {
        Self {
            path,
            index_file: false,
            bandwidth: None,
            partial_listing: false,
            verify: false,
            metadata_only: false,
            skip_if_exists: false,
            replicas: None,
            to_clients: false,
        }
    }
}

impl FreeSpec {
    /// Everything below `path`.
    #[must_use]
    pub fn new(path: FsPath) -> Self {
        Self { path, index_file: false }
    }
}

impl JobSpec {
    /// Load or free.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Load(_) => JobKind::Load,
            Self::Free(_) => JobKind::Free,
        }
    }

    /// What it is about.
    #[must_use]
    pub fn path(&self) -> &FsPath {
        match self {
            Self::Load(load) => &load.path,
            Self::Free(free) => &free.path,
        }
    }

    /// Whether the path is an index file.
    #[must_use]
    pub fn index_file(&self) -> bool {
        match self {
            Self::Load(load) => load.index_file,
            Self::Free(free) => free.index_file,
        }
    }

    /// Whether mounts are to keep what is loaded.
    #[must_use]
    pub fn to_clients(&self) -> bool {
        matches!(self, Self::Load(load) if load.to_clients)
    }

    /// Whether the options go together.
    ///
    /// # Errors
    /// [`SpecProblem`] that names the option to change.
    pub fn check(&self) -> Result<(), SpecProblem> {
        if std::str::from_utf8(self.path().as_bytes()).is_err() {
            return Err(SpecProblem::NotText(self.path().to_string()));
        }
        let Self::Load(load) = self else { return Ok(()) };
        if load.bandwidth.is_some_and(|bandwidth| bandwidth.as_u64() == 0) {
            return Err(SpecProblem::NoBandwidth);
        }
        if let Some(replicas) = load.replicas.filter(|replicas| !(1..=MAX_REPLICAS).contains(replicas)) {
            return Err(SpecProblem::Replicas(replicas));
        }
        let about_bytes = [
            ("verify", load.verify),
            ("skip_if_exists", load.skip_if_exists),
            ("replicas", load.replicas.is_some()),
            ("bandwidth", load.bandwidth.is_some()),
            ("to_clients", load.to_clients),
        ];
        if load.to_clients && load.index_file {
            return Err(SpecProblem::NoIndex);
        }
        match about_bytes.into_iter().find(|(_, given)| load.metadata_only && *given) {
            Some((option, _)) => Err(SpecProblem::NoBytes(option)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<JobSpec, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_spec_reads_back_what_it_writes() {
        let spec =
            parse(r#"{"kind":"load","path":"/s3/a b","bandwidth":"1.5GiB","verify":true,"replicas":2}"#).unwrap();
        let JobSpec::Load(load) = &spec else { panic!("{spec:?}") };
        assert_eq!((load.bandwidth, load.replicas), (Some(ByteSize::mib(1536)), Some(2)));
        assert_eq!(parse(&serde_json::to_string(&spec).unwrap()), Ok(spec));
        assert_eq!(parse(r#"{"kind":"free","path":"/x"}"#).unwrap().kind(), JobKind::Free);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, named) in [
            (r#"{"kind":"load","path":"s3"}"#, "absolute"),
            (r#"{"kind":"load","path":"/s3","bandwith":"1MiB"}"#, "bandwith"),
            (r#"{"kind":"load","path":"/s3","bandwidth":"fast"}"#, "`fast` is not a size"),
            (r#"{"kind":"steal","path":"/s3"}"#, "steal"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let load = |change: fn(&mut LoadSpec)| {
            let mut load = LoadSpec::new(FsPath::root());
            change(&mut load);
            JobSpec::Load(load).check()
        };
        assert_eq!(load(|_| ()), Ok(()));
        let odd = FsPath::new(b"/\xff").unwrap();
        assert!(matches!(JobSpec::Free(FreeSpec::new(odd)).check(), Err(SpecProblem::NotText(_))));
        assert_eq!(load(|load| load.replicas = Some(17)), Err(SpecProblem::Replicas(17)));
        assert_eq!(load(|load| load.bandwidth = Some(ByteSize::default())), Err(SpecProblem::NoBandwidth));
        assert_eq!(load(|load| (load.index_file, load.to_clients) = (true, true)), Err(SpecProblem::NoIndex));
        assert_eq!(load(|load| (load.metadata_only, load.verify) = (true, true)), Err(SpecProblem::NoBytes("verify")));
    }
}
