//! The keys that requests are signed with: Forebay's own, each with who it is of.
//!
//! A file has one key a line, as `forebay key s3` prints them: `ACCESS SECRET ROLE NAME`. Both ends of a signature know
//! the secret, so the file holds it as it is, and must be this user's alone. Whoever signs with a key is the client of
//! its role and name, as if it had shown a certificate that says so: access lists and the list of the denied hold for
//! it. The file is read again when it changes. When its last key is gone, nobody signs any more.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use forebay_identity::{FileError, Identity, NameError, Scope, TokenError, new_token, read_secret};
use forebay_types::Role;
use zeroize::Zeroizing;

/// What an access key begins with that is made here.
const BEGINS: &str = "FB";
/// Its other characters: 72 random bits in hexadecimal. They need not be secret, and no two keys may have the same.
const ACCESS_DIGITS: usize = 18;
/// Lengths of an access key that are taken: those of Amazon's.
const ACCESS_LEN: std::ops::RangeInclusive<usize> = 3..=128;
/// Characters that a secret has at least: 128 random bits in hexadecimal.
const MIN_SECRET: usize = 32;

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The file cannot be read, or others may read it, too.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line of it is no key. What is on it is not shown: it may be a secret.
    #[error(
        "{path}, line {line}: {reason}; write `ACCESS SECRET ROLE NAME`, as `forebay key s3 --role reader --client team-a` \
         prints it",
        path = path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// It has none.
    #[error("{path} has no key in it; `forebay key s3 --role reader --client team-a >> {path}`", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Why a key is not made.
#[derive(Debug, thiserror::Error)]
pub enum NewKeyError {
    /// No requests are signed by one of this role.
    #[error("a {0} signs no requests over S3; keys are for readers, writers and admins")]
    Role(Role),
    /// Nobody has this name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are no random numbers.
    #[error(transparent)]
    Random(#[from] TokenError),
}

/// A key, and whose it is.
pub(crate) struct S3Key {
    pub(crate) secret: Zeroizing<String>,
    pub(crate) identity: Identity,
}

impl fmt::Debug for S3Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Key").field("identity", &self.identity).finish_non_exhaustive()
    }
}

type Keys = HashMap<String, Arc<S3Key>>;

/// The keys of this moment.
pub struct Keyring {
    path: PathBuf,
    scope: Scope,
    keys: ArcSwap<Keys>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("path", &self.path)
            .field("keys", &self.keys.load().len())
            .finish_non_exhaustive()
    }
}

impl Keyring {
    /// Those of the file at `path`; their owners are clients of the cluster `scope`.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn open(path: &Path, scope: Scope) -> Result<Self, KeyringError> {
        let keys = read(path, &scope)?;
        // Who starts an endpoint without keys means something else.
        if keys.is_empty() {
            return Err(KeyringError::Empty { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), scope, keys: ArcSwap::from_pointee(keys) })
    }

    /// Reads the file again, and says whether it holds other keys now; it may be none. If it cannot be used, what was good
    /// stays. To be called every few seconds, from a thread that may wait for a disk.
    ///
    /// # Errors
    /// [`KeyringError`], but for [`KeyringError::Empty`].
    pub fn look(&self) -> Result<bool, KeyringError> {
        let keys = read(&self.path, &self.scope)?;
        let known = self.keys.load();
        let is_known = |(access, key): (&String, &Arc<S3Key>)| {
            known.get(access).is_some_and(|known| known.identity == key.identity && known.secret == key.secret)
        };
        let is_new = known.len() != keys.len() || !keys.iter().all(is_known);
        if is_new {
            if keys.is_empty() {
                tracing::warn!(path = %self.path.display(), "the last key was taken away: all requests over S3 are refused");
            }
            self.keys.store(Arc::new(keys));
        }
        Ok(is_new)
    }

    /// The key with this name.
    pub(crate) fn get(&self, access: &str) -> Option<Arc<S3Key>> {
        self.keys.load().get(access).cloned()
    }
}

/// A new key for the client `name` of this role, as a line for the file.
///
/// # Errors
/// [`NewKeyError`].
pub fn new_line(role: Role, name: &str, scope: &Scope) -> Result<Zeroizing<String>, NewKeyError> {
    if !signs(role) {
        return Err(NewKeyError::Role(role));
    }
    let identity = scope.identity(role, name)?;
    let (access, secret) = (new_token()?, new_token()?);
    let access = access[..ACCESS_DIGITS].to_ascii_uppercase();
    Ok(Zeroizing::new(format!("{BEGINS}{access} {} {role} {}\n", *secret, identity.name())))
}

/// Whether clients of this role sign requests. Parts of a cluster have certificates, and pass all access lists.
fn signs(role: Role) -> bool {
    matches!(role, Role::Reader | Role::Writer | Role::Admin)
}

fn read(path: &Path, scope: &Scope) -> Result<Keys, KeyringError> {
    keys(&read_secret(path)?, path, scope)
}

/// The keys of the file at `path`, which says `text`.
pub(crate) fn keys(text: &str, path: &Path, scope: &Scope) -> Result<Keys, KeyringError> {
    let mut keys = Keys::new();
    for (line, text) in (1..).zip(text.lines().map(str::trim)) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |reason: String| KeyringError::Line { path: path.to_owned(), line, reason };
        let (access, key) = parse(text, scope).map_err(wrong)?;
        if keys.insert(access, Arc::new(key)).is_some() {
            return Err(wrong("the file has another key with this access key".to_owned()));
        }
    }
    Ok(keys)
}

fn parse(line: &str, scope: &Scope) -> Result<(String, S3Key), String> {
    let [access, secret, role, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err("it does not have four words".to_owned());
    };
    let is_of_access = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !ACCESS_LEN.contains(&access.len()) || !access.bytes().all(is_of_access) {
        return Err("an access key has 3 to 128 letters, digits, `-`, `_` and `.`".to_owned());
    }
    if secret.len() < MIN_SECRET || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("a secret has at least {MIN_SECRET} characters"));
    }
    let role = role.parse::<Role>().ok().filter(|role| signs(*role));
    let role = role.ok_or("its role is none of reader, writer and admin")?;
    // The error would show it.
    let identity = scope.identity(role, name);
    let identity = identity.map_err(|_| "its name is no name: letters, digits, `.`, `-` and `_`, at most 64")?;
    Ok((access.to_owned(), S3Key { secret: Zeroizing::new(secret.to_owned()), identity }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn scope() -> Scope {
        Scope::new("forebay", "prod").unwrap()
    }

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&file, text);
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn write(file: &tempfile::NamedTempFile, text: &str) {
        std::fs::write(file.path(), text).unwrap();
    }

    #[test]
    fn a_key_that_is_made_here_is_taken_here() {
        let line = new_line(Role::Reader, "team-a", &scope()).unwrap();
        let access = line.split(' ').next().unwrap().to_owned();
        assert_eq!(access.len(), 20);
        let keys = Keyring::open(file(&line, 0o600).path(), scope()).unwrap();
        let key = keys.get(&access).unwrap();
        assert_eq!(key.identity.to_string(), "spiffe://forebay/forebay/prod/reader/team-a");
        assert!(line.contains(&**key.secret) && key.secret.len() == 64);
        assert!(keys.get("FBOTHER").is_none());
        assert!(!format!("{keys:?}{key:?}").contains(&**key.secret));
        assert!(
            new_line(Role::Worker, "w1", &scope()).unwrap_err().to_string().contains("readers, writers and admins")
        );
        assert!(new_line(Role::Reader, "a b", &scope()).is_err());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let line = format!("KEY {SECRET} reader a\n");
        for mode in [0o644, 0o660, 0o604] {
            let refused = Keyring::open(file(&line, mode).path(), scope()).unwrap_err();
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_shows_no_secret() {
        for (line, told) in [
            (format!("KEY {SECRET} reader"), "four words"),
            (format!("KEY {SECRET} reader a more"), "four words"),
            (format!("K {SECRET} reader a"), "access key"),
            (format!("K/Y {SECRET} reader a"), "access key"),
            ("KEY short reader a".to_owned(), "32 characters"),
            (format!("KEY {SECRET} worker a"), "its role"),
            (format!("KEY {SECRET} nobody a"), "its role"),
            (format!("KEY {SECRET} reader a/b"), "no name"),
            (format!("KEY {} reader {SECRET}/+", "team-a".repeat(6)), "no name"),
            (format!("KEY {SECRET} reader a\nKEY {SECRET} writer b"), "another key"),
        ] {
            let refused = Keyring::open(file(&format!("# remark\n\n{line}\n"), 0o600).path(), scope()).unwrap_err();
            let message = refused.to_string();
            assert!(message.contains(told) && message.contains("line ") && !message.contains(SECRET), "{message}");
        }
        let empty = Keyring::open(file("# none\n", 0o600).path(), scope()).unwrap_err();
        assert!(empty.to_string().contains("forebay key s3"), "{empty}");
    }

    #[test]
    fn keys_are_replaced_while_a_process_runs_and_what_is_wrong_changes_nothing() {
        let file = file(&format!("ONE {SECRET} reader a\n"), 0o600);
        let keys = Keyring::open(file.path(), scope()).unwrap();
        assert!(!keys.look().unwrap());
        write(&file, "ONE short reader a\n");
        assert!(keys.look().is_err() && keys.get("ONE").is_some());
        write(&file, &format!("TWO {SECRET} writer a\n"));
        assert!(keys.look().unwrap());
        assert!(keys.get("ONE").is_none());
        assert_eq!(keys.get("TWO").unwrap().identity.role(), Role::Writer);
        write(&file, &format!("TWO {SECRET} reader a\n"));
        assert!(keys.look().unwrap(), "another role is another key");
    }

    #[test]
    fn the_last_key_that_is_taken_away_is_none_any_more() {
        let file = file(&format!("ONE {SECRET} reader a\n"), 0o600);
        let keys = Keyring::open(file.path(), scope()).unwrap();
        for text in ["# ONE was here\n", ""] {
            write(&file, text);
            let _ = keys.look().unwrap();
            assert!(keys.get("ONE").is_none(), "{text:?}");
        }
        assert!(!keys.look().unwrap(), "that is known");
        write(&file, &format!("TWO {SECRET} writer a\n"));
        assert!(keys.look().unwrap() && keys.get("TWO").is_some());
    }
}
