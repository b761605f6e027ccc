//! Names of identities: `spiffe://DOMAIN/forebay/CLUSTER/ROLE/NAME`.
//!
//! A name is a URI in the subject alternative names of a certificate, as SPIFFE has it ("The SPIFFE Identity and Verifiable
//! Identity Document", sections 2.1 to 2.3): characters are few, nothing is encoded, and no two spellings are one name.

use std::fmt;
use std::str::FromStr;

use forebay_types::Role;

/// Longest name of an identity, in bytes (SPIFFE, section 2.3).
const MAX_LEN: usize = 2048;
/// Longest trust domain, in bytes.
const MAX_DOMAIN_LEN: usize = 255;
/// Longest name of a process, in bytes: what a certificate's common name can show, and a log line.
const MAX_PROCESS_LEN: usize = 64;

/// Why a text is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is no URI of ours.
    #[error("`{0}` is no identity of Forebay: spiffe://DOMAIN/forebay/CLUSTER/ROLE/NAME")]
    Form(String),
    /// The trust domain has other characters, or too many.
    #[error("`{0}` is no trust domain: 1 to {MAX_DOMAIN_LEN} of a-z, 0-9, `.`, `-` and `_`")]
    Domain(String),
    /// A part of the path has other characters, or too many.
    #[error(
        "`{0}` is no name within an identity: letters, digits, `.`, `-` and `_`, not only dots, at most {MAX_PROCESS_LEN}"
    )]
    Part(String),
    /// There is no such role.
    #[error(transparent)]
    Role(#[from] forebay_types::UnknownRole),
}

/// The cluster that an identity is of. Identities of other clusters and of other trust domains are strangers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    domain: String,
    cluster: String,
}

impl Scope {
    /// The cluster of this name in this trust domain.
    ///
    /// # Errors
    /// [`NameError`] when either has characters that a SPIFFE name cannot have.
    pub fn new(domain: &str, cluster: &str) -> Result<Self, NameError> {
        let is_of_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if domain.is_empty() || domain.len() > MAX_DOMAIN_LEN || !domain.bytes().all(is_of_domain) {
            return Err(NameError::Domain(shortened(domain)));
        }
        Ok(Self { domain: domain.to_owned(), cluster: part(cluster)?.to_owned() })
    }

    /// The trust domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The name of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The identity of a process of this cluster.
    ///
    /// # Errors
    /// [`NameError::Part`].
    pub fn identity(&self, role: Role, name: &str) -> Result<Identity, NameError> {
        Ok(Identity { scope: self.clone(), role, name: part(name)?.to_owned() })
    }

    /// What stands before the name in identities of one role: an authority with this name speaks for that role alone.
    #[must_use]
    pub fn authority(&self, role: Role) -> String {
        format!("spiffe://{}/forebay/{}/{role}", self.domain, self.cluster)
    }
}

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    scope: Scope,
    role: Role,
    name: String,
}

impl Identity {
    /// The cluster that it is of.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its name among those of its role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope.authority(self.role), self.name)
    }
}

impl FromStr for Identity {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let form = || NameError::Form(shortened(text));
        if text.len() > MAX_LEN {
            return Err(form());
        }
        let path = text.strip_prefix("spiffe://").ok_or_else(form)?;
        let mut parts = path.split('/');
        let mut next = || parts.next().ok_or_else(form);
        let (domain, product, cluster, role, name) = (next()?, next()?, next()?, next()?, next()?);
        if product != "forebay" || parts.next().is_some() {
            return Err(form());
        }
        Scope::new(domain, cluster)?.identity(role.parse()?, name)
    }
}

/// The role that an authority of this name speaks for, if it is one of this cluster's.
pub(crate) fn role_of_authority(scope: &Scope, uri: &str) -> Option<Role> {
    Role::ALL.into_iter().find(|&role| scope.authority(role) == uri)
}

fn part(text: &str) -> Result<&str, NameError> {
    let is_of_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_only_dots = text.bytes().all(|byte| byte == b'.');
    if is_only_dots || text.len() > MAX_PROCESS_LEN || !text.bytes().all(is_of_part) {
        return Err(NameError::Part(shortened(text)));
    }
    Ok(text)
}

/// What a message shows of a text that somebody else chose.
fn shortened(text: &str) -> String {
    text.chars().take(100).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        let scope = Scope::new("gpu.example.org", "prod-1").unwrap();
        let identity = scope.identity(Role::Worker, "node_7.rack-2").unwrap();
        assert_eq!(identity.to_string(), "spiffe://gpu.example.org/forebay/prod-1/worker/node_7.rack-2");
        assert_eq!(identity.to_string().parse(), Ok(identity.clone()));
        assert_eq!((identity.role(), identity.name()), (Role::Worker, "node_7.rack-2"));
        assert_eq!(role_of_authority(&scope, &scope.authority(Role::Worker)), Some(Role::Worker));
        assert_eq!(role_of_authority(&Scope::new("gpu.example.org", "prod").unwrap(), "spiffe://x/y"), None);
    }

    #[test]
    fn what_looks_like_one_is_none() {
        for text in [
            "",
            "spiffe://",
            "https://a/forebay/c/worker/n",
            "SPIFFE://a/forebay/c/worker/n",
            "spiffe://A/forebay/c/worker/n",
            "spiffe://a:1/forebay/c/worker/n",
            "spiffe://u@a/forebay/c/worker/n",
            "spiffe://a/other/c/worker/n",
            "spiffe://a/forebay/c/worker",
            "spiffe://a/forebay/c/worker/",
            "spiffe://a/forebay/c/worker/n/",
            "spiffe://a/forebay/c/worker/n/m",
            "spiffe://a/forebay//worker/n",
            "spiffe://a/forebay/../worker/n",
            "spiffe://a/forebay/c/root/n",
            "spiffe://a/forebay/c/worker/n?x",
            "spiffe://a/forebay/c/worker/%6e",
            "spiffe://a/forebay/c/worker/n\0",
            "spiffe://a/forebay/c/worker/ñ",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
        let long = format!("spiffe://a/forebay/c/worker/{}", "n".repeat(65));
        assert!(long.parse::<Identity>().is_err());
    }

    /// A stranger's certificate has whatever names, and what is wrong with them comes into a log.
    #[test]
    fn what_is_wrong_with_a_name_is_told_on_one_short_line() {
        let long = "\n".repeat(1000);
        for text in [
            "spiffe://a\nb/forebay/c/worker/n",
            "spiffe://a/forebay/\u{1b}[2J/worker/n",
            "spiffe://a/forebay/c/wor\nker/n",
            "spiffe://a/forebay/c/worker/\r",
            &format!("spiffe://{long}/forebay/c/worker/n"),
            &format!("spiffe://a/forebay/c/{long}/n"),
        ] {
            let told = text.parse::<Identity>().unwrap_err().to_string();
            assert!(!told.contains(char::is_control) && told.len() < 400, "{told:?}");
        }
    }

    proptest! {
        #[test]
        fn no_two_texts_are_one_identity(text in ".{0,80}|spiffe://[a-z.]{1,4}/forebay/[a-z.]{1,3}/(worker|reader)/[a-zA-Z.%]{1,4}") {
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }
    }
}
