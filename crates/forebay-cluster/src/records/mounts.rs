//! What is mounted where.
//!
//! Credentials never come into the state of a cluster: an option that holds one names where it is to be found. What
//! else an option means is the business of the origin.

use std::collections::BTreeMap;

use forebay_types::{AccessList, AccessListError, FsPath, OriginUrl};
use serde::{Deserialize, Serialize};

/// Under which key prefix mounts are: `mounts/PATH`, the path as one segment.
pub const MOUNTS: &str = "mounts/";
/// Written when a mount is added, under the condition that it is as it was before the others were looked at: of two mounts
/// that cannot be together, added at once, one is refused.
pub const LAST_ADDED: &str = "last-mount";

/// Options of a mount, at most.
const MAX_OPTIONS: usize = 64;
/// Bytes of an option's value, at most.
const MAX_VALUE: usize = 4096;
/// An option whose name has one of these in it holds a credential.
const SECRET_WORDS: [&str; 12] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "key_id",
    "access_key",
    "account_key",
    "private_key",
    "credential",
    "sas",
    "bearer",
];

/// A path of the namespace and the origin behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// Where in the namespace: absolute, normal.
    pub path: String,
    /// The origin's URL, `s3://bucket/prefix`.
    pub origin: String,
    /// Options of the origin. Those that hold credentials are references: `env:NAME`, `file:/PATH` or `role`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Which clients may use it. `None`: all whose role may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<AclRecord>,
}

/// Who may read what a mount shows, and who may change it, by the names of clients. A name that ends in `*` stands for
/// all that begin like it.
// A field that is not known may take something away: a record that has one is not used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclRecord {
    /// Those who may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<String>,
    /// Those who may read and change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<String>,
}

impl AclRecord {
    /// The list, checked.
    ///
    /// # Errors
    /// [`AccessListError`], which says what to write instead.
    pub fn list(&self) -> Result<AccessList, AccessListError> {
        AccessList::new(&self.read, &self.write)
    }
}

/// Why a mount was refused. No message tells a value that may be a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountProblem {
    /// Not a path.
    #[error(transparent)]
    Path(#[from] forebay_types::PathError),
    /// Not a URL.
    #[error("the origin is not a URL; write one as in `s3://bucket/prefix` or `file:///directory`")]
    Origin,
    /// A user, a password or a query in the URL: they would be seen by everyone.
    #[error("the origin's URL has a user, a password or a query in it; give credentials as references in options")]
    SecretInOrigin,
    /// The same in the URL that is an option's value.
    #[error(
        "the option `{0}` has a URL with a user, a password or a query in it; give credentials as references in options \
         of their own"
    )]
    SecretInOption(String),
    /// Not an option.
    #[error(
        "`{0}` is no option: names have 1 to 64 letters, digits, `.`, `_` and `-`, values at most 4096 bytes, and a \
         mount has at most 64 of them"
    )]
    Option(String),
    /// A credential as it is.
    #[error(
        "the option `{0}` holds a credential, which is never stored in clear; give a reference: `env:NAME` for a \
         variable of the workers' environment, `file:/PATH` for a file on the workers, or `role` for the machine's role"
    )]
    Secret(String),
    /// Not an access list.
    #[error(transparent)]
    AccessList(#[from] AccessListError),
}

/// Where a credential is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialReference {
    /// In this variable of the environment.
    Environment(String),
    /// In this file.
    File(std::path::PathBuf),
    /// In the machine's role: the cloud's own chain of credentials.
    Role,
}

impl CredentialReference {
    /// The reference in `text`; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "role" {
            return Some(Self::Role);
        }
        if let Some(name) = text.strip_prefix("env:") {
            let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            return (starts_well && is_name).then(|| Self::Environment(name.to_owned()));
        }
        let path = text.strip_prefix("file:").filter(|path| path.starts_with('/') && !path.contains('\0'))?;
        Some(Self::File(path.into()))
    }
}

/// Whether the option of this name holds a credential.
#[must_use]
pub fn is_secret(option: &str) -> bool {
    let option = option.to_ascii_lowercase().replace(['-', '.'], "_");
    let in_words = SECRET_WORDS.iter().filter(|word| word.len() > 3).any(|word| option.contains(word));
    in_words || option.split('_').any(|part| part == "sas") || option.replace('_', "").contains("accesskey")
}

impl MountRecord {
    /// Checks everything about a mount that can be checked without its origin.
    ///
    /// # Errors
    /// [`MountProblem`] that names the part to change.
    pub fn check(&self) -> Result<(), MountProblem> {
        FsPath::new(&self.path)?;
        let (scheme, rest) = self.origin.split_once("://").ok_or(MountProblem::Origin)?;
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_scheme || rest.is_empty() || self.origin.len() > MAX_VALUE || self.origin.contains(char::is_control) {
            return Err(MountProblem::Origin);
        }
        if may_hold_credential(rest) {
            return Err(MountProblem::SecretInOrigin);
        }
        for (at, (name, value)) in self.options.iter().enumerate() {
            let is_name = (1..=64).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !is_name || value.len() > MAX_VALUE || value.contains('\0') || at >= MAX_OPTIONS {
                let shown: String = name.chars().take(64).collect();
                return Err(MountProblem::Option(shown.escape_debug().to_string()));
            }
            if is_secret(name) && CredentialReference::parse(value).is_none() {
                return Err(MountProblem::Secret(name.clone()));
            }
            if value.split("://").skip(1).any(may_hold_credential) {
                return Err(MountProblem::SecretInOption(name.clone()));
            }
        }
        self.acl.as_ref().map(AclRecord::list).transpose()?;
        Ok(())
    }

    /// Who may use it. `None`: all whose role may. A list that makes no sense, which no record that was decoded has,
    /// names nobody.
    #[must_use]
    pub fn access(&self) -> Option<AccessList> {
        self.acl.as_ref().map(|acl| acl.list().unwrap_or_default())
    }

    /// Whether both show the same, whoever may use it.
    #[must_use]
    pub fn shows_as(&self, other: &Self) -> bool {
        (&self.path, &self.origin, &self.options) == (&other.path, &other.origin, &other.options)
    }

    /// Whether both read one origin, and not in the same way: from another endpoint, or with other credentials. A file's
    /// version names its origin by the URL alone, so the cache would take the bytes of one for those of the other. URLs are
    /// compared as the cache has them, however they are spelled.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        OriginUrl::are_one(&self.origin, &other.origin) && self.options != other.options
    }

    /// The key of the record whose path is `segment`, made fit for a key.
    #[must_use]
    pub fn key(segment: &str) -> String {
        format!("{MOUNTS}{segment}")
    }

    /// The record as it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A struct of texts: its encoding cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The record in `bytes`.
    ///
    /// # Errors
    /// A sentence about what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        record.check().map_err(|problem| problem.to_string())?;
        Ok(record)
    }
}

/// Whether what follows a URL's `://` has a user, a password or a query in it, where people put credentials.
fn may_hold_credential(rest: &str) -> bool {
    let authority = rest.split(['/', '\\']).next().unwrap_or_default();
    authority.contains('@') || rest.contains(['?', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(options: &[(&str, &str)]) -> MountRecord {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        MountRecord { path: "/s3".into(), origin: "s3://bucket/prefix".into(), options, acl: None }
    }

    #[test]
    fn an_access_list_comes_back_and_one_that_is_not_understood_opens_nothing() {
        let acl = AclRecord { read: vec!["team-*".into()], write: vec!["loader".into()] };
        let record = MountRecord { acl: Some(acl), ..mount(&[]) };
        assert_eq!(MountRecord::decode(&record.encode()), Ok(record.clone()));
        let list = record.access().unwrap();
        assert!(list.may_read("team-a") && list.may_write("loader") && !list.may_write("team-a"));
        assert!(record.shows_as(&mount(&[])) && record != mount(&[]) && mount(&[]).access().is_none());
        assert!(!record.shows_as(&mount(&[("s3.region", "eu")])));

        let decoded =
            |acl: &str| MountRecord::decode(format!(r#"{{"path":"/s3","origin":"s3://b","acl":{acl}}}"#).as_bytes());
        assert_eq!(decoded("{}").unwrap().access(), Some(AccessList::default()), "nobody");
        for wrong in [r#"{"read":["a b"]}"#, r#"{"read":["*a"]}"#, r#"{"deny":["a"]}"#, r#"{"read":"a"}"#] {
            assert!(decoded(wrong).is_err(), "{wrong}");
        }
        assert!(decoded(r#"{"write":[""]}"#).unwrap_err().contains("`team-*`"));
    }

    #[test]
    fn a_mount_comes_back() {
        let record = mount(&[("s3.endpoint", "http://minio:9000"), ("s3.secret_access_key", "env:MINIO_SECRET")]);
        assert_eq!(MountRecord::decode(&record.encode()), Ok(record));
        assert!(MountRecord::decode(b"{\"path\":\"s3\",\"origin\":\"s3://b\"}").is_err());
    }

    #[test]
    fn a_literal_credential_is_refused_and_not_told() {
        for name in ["s3.secret_access_key", "aws-access-key-id", "PASSWORD", "session.token", "azure.sas", "accessKey"]
        {
            let problem = mount(&[(name, "hunter2")]).check().unwrap_err();
            assert_eq!(problem, MountProblem::Secret(name.to_owned()));
            assert!(!problem.to_string().contains("hunter2"));
            for reference in ["env:SECRET_1", "file:/run/secrets/key", "role"] {
                assert_eq!(mount(&[(name, reference)]).check(), Ok(()), "{name}={reference}");
            }
        }
        for none in ["env:", "env:1A", "env:A B", "file:relative", "roles", ""] {
            assert_eq!(CredentialReference::parse(none), None, "{none}");
        }
        assert!(!is_secret("s3.region") && !is_secret("sasha") && !is_secret("keyboard"));
    }

    #[test]
    fn an_origin_has_no_credentials_in_its_url() {
        for (origin, problem) in [
            ("s3://id:hunter2@bucket", MountProblem::SecretInOrigin),
            ("https://account/container?sig=hunter2", MountProblem::SecretInOrigin),
            ("bucket", MountProblem::Origin),
            ("://bucket", MountProblem::Origin),
        ] {
            let record = MountRecord { origin: origin.into(), ..mount(&[]) };
            assert_eq!(record.check(), Err(problem));
        }
        // An object's name may have one.
        assert_eq!(MountRecord { origin: "s3://bucket/a@b".into(), ..mount(&[]) }.check(), Ok(()));
    }

    #[test]
    fn an_option_has_no_credentials_in_a_url_either() {
        for value in [
            "http://user:hunter2@minio:9000",
            "https://hunter2@minio",
            "http://minio:9000/?token=hunter2",
            "http://minio#hunter2",
            "http://one,http://user:hunter2@two",
        ] {
            let problem = mount(&[("s3.endpoint", value)]).check().unwrap_err();
            assert_eq!(problem, MountProblem::SecretInOption("s3.endpoint".into()), "{value}");
            assert!(!problem.to_string().contains("hunter2"));
        }
        for value in ["http://minio:9000", "https://minio/at@here", "http://[::1]:9000/", "a@b?c"] {
            assert_eq!(mount(&[("s3.endpoint", value)]).check(), Ok(()), "{value}");
        }
    }

    #[test]
    fn one_origin_read_in_two_ways_is_a_contradiction() {
        let one = mount(&[("s3.endpoint", "http://one:9000")]);
        let other = |origin: &str, options: &[(&str, &str)]| MountRecord {
            path: "/other".into(),
            origin: origin.into(),
            ..mount(options)
        };
        let same = [("s3.endpoint", "http://one:9000")];
        for origin in [
            "s3://bucket/prefix",
            "s3://bucket/prefix/",
            "s3://bucket/prefix//",
            "S3://bucket/prefix",
            "s3://bucket/x/../prefix",
            "s3://bucket/./prefix",
            "s3://bucket/%2e%2E/prefix",
            "s3://bucket/prefix ",
        ] {
            assert_eq!(other(origin, &same).check(), Ok(()), "{origin}");
            assert!(!one.contradicts(&other(origin, &same)), "{origin}");
            assert!(one.contradicts(&other(origin, &[])) && other(origin, &[]).contradicts(&one), "{origin}");
            assert!(one.contradicts(&other(origin, &[("s3.endpoint", "http://two:9000")])), "{origin}");
        }
        for origin in ["s3://bucket", "s3://other/prefix", "s3://bucket//prefix", "s3://Bucket/prefix", "no URL"] {
            assert!(!one.contradicts(&other(origin, &[])), "{origin}");
        }
    }

    #[test]
    fn options_are_bounded() {
        let record = mount(&[("a\n", "b")]);
        assert!(matches!(record.check(), Err(MountProblem::Option(_))));
        let mut many = mount(&[]);
        many.options = (0..65).map(|number| (format!("option-{number}"), String::new())).collect();
        assert!(matches!(many.check(), Err(MountProblem::Option(_))));
    }
}
