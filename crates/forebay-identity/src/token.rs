//! Tokens (RFC 6750) for those who have no certificate: a browser, or a program that scrapes. Whoever shows one has the role that
//! its file is for, and no name.
//!
//! A process keeps digests of the tokens that it takes, and never the tokens. What is shown is compared by its digest with each of
//! them, so that the time this takes says nothing of how much of it was right.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use crate::error::TokenError;
use crate::secret_file::read_secret;
use forebay_types::Role;

/// Random bytes of a token that is made here.
const LEN: usize = 32;
/// Characters that a token has at least: 128 random bits in hexadecimal.
const MIN_CHARACTERS: usize = 32;
/// More tokens than a file ever needs while one replaces another.
const MAX_TOKENS: usize = 8;

type Digest = [u8; 32];

/// Whether a token may be in `text`, which is better not shown then: as many characters in a row as a token has at least, of those
/// that one can have. Dots and slashes end a row, for names of hosts and paths have them, too: a token that has them is known by
/// [`LiveTokens::role`] alone.
#[must_use]
pub fn may_hold_token(text: &str) -> bool {
    let ends_row = |letter| matches!(letter, '.' | '/') || !is_of_token(letter);
    text.split(ends_row).any(|row| row.len() >= MIN_CHARACTERS)
}

/// Whether a token can have this character (RFC 6750, 2.1).
fn is_of_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-._~+/=".contains(letter)
}

/// A file of tokens, and what whoever shows one of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    /// Where it is. It must be this user's alone.
    pub path: PathBuf,
    /// The role that its tokens give.
    pub role: Role,
}

/// A new token: 64 hexadecimal digits.
///
/// # Errors
/// [`TokenError::Random`].
pub fn new_token() -> Result<Zeroizing<String>, TokenError> {
    let mut secret = Zeroizing::new([0; LEN]);
    SystemRandom::new().fill(secret.as_mut()).map_err(|_| TokenError::Random)?;
    // Room for all of it at once: what grows is moved, and leaves the secret where it was.
    let mut token = Zeroizing::new(String::with_capacity(2 * LEN));
    for byte in secret.iter() {
        token.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(u32::from(digit), 16)));
    }
    Ok(token)
}

/// The tokens that are taken, as digests.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Tokens(Vec<(Digest, Role)>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokens").field(&self.0.len()).finish()
    }
}

impl Tokens {
    fn read(files: &[TokenFile]) -> Result<Self, TokenError> {
        let mut tokens = Self::default();
        for TokenFile { path, role } in files {
            let text = read_secret(path)?;
            let added = tokens.add(&text, *role);
            added.map_err(|reason| TokenError::Content { path: path.clone(), reason })?;
        }
        Ok(tokens)
    }

    /// Adds those of a file: one a line; a line that begins with `#` is a remark.
    pub(crate) fn add(&mut self, text: &str, role: Role) -> Result<(), &'static str> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut added = 0;
        for token in lines {
            if !token.chars().all(is_of_token) {
                return Err("a line of it is no token");
            }
            if token.len() < MIN_CHARACTERS {
                return Err("a token in it has less than 32 characters");
            }
            let digest = digest_of(token);
            if self.0.iter().any(|(known, of)| *known == digest && *of != role) {
                return Err("a token in it is also in the file of another role");
            }
            self.0.push((digest, role));
            added += 1;
        }
        match added {
            0 => Err("it holds no token"),
            1..=MAX_TOKENS => Ok(()),
            _ => Err("it holds more than eight tokens"),
        }
    }

    pub(crate) fn role(&self, shown: &str) -> Option<Role> {
        let shown = digest_of(shown);
        let mut found = None;
        // All are looked at, whichever it is.
        for (known, role) in &self.0 {
            if verify_slices_are_equal(known, &shown).is_ok() {
                found = Some(*role);
            }
        }
        found
    }
}

fn digest_of(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

/// The tokens of this moment, for everything in a process that listens.
#[derive(Debug)]
pub struct LiveTokens {
    /// Of none, what is taken stays as it is.
    files: Vec<TokenFile>,
    taken: ArcSwap<Tokens>,
}

impl LiveTokens {
    /// Those of these files; of no files, no token is taken.
    ///
    /// # Errors
    /// [`TokenError`] names the file, and what is wrong with it.
    pub fn open(files: Vec<TokenFile>) -> Result<Arc<Self>, TokenError> {
        let taken = ArcSwap::from_pointee(Tokens::read(&files)?);
        Ok(Arc::new(Self { files, taken }))
    }

    /// This token alone, which is in no file, for as long as the process runs.
    #[must_use]
    pub fn only(token: &str, role: Role) -> Arc<Self> {
        let taken = ArcSwap::from_pointee(Tokens(vec![(digest_of(token), role)]));
        Arc::new(Self { files: Vec::new(), taken })
    }

    /// What whoever shows this is; `None`: it is no token.
    #[must_use]
    pub fn role(&self, shown: &str) -> Option<Role> {
        self.taken.load().role(shown)
    }

    /// Reads the files again, and says whether they hold other tokens now. If they cannot be used, what was good stays. To be called
    /// every few seconds, from a thread that may wait for a disk.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn look(&self) -> Result<bool, TokenError> {
        if self.files.is_empty() {
            return Ok(false);
        }
        let tokens = Tokens::read(&self.files)?;
        let is_new = **self.taken.load() != tokens;
        if is_new {
            self.taken.store(Arc::new(tokens));
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn file(directory: &Path, role: Role, text: &str) -> TokenFile {
        let path = directory.join(role.as_str());
        write(&path, text, 0o600);
        TokenFile { path, role }
    }

    #[test]
    fn a_token_gives_the_role_of_its_file_and_nothing_else_gives_any() {
        let directory = tempfile::tempdir().unwrap();
        let (admin, next, scrapes) = (new_token().unwrap(), new_token().unwrap(), new_token().unwrap());
        assert!(admin.len() == 64 && *admin != *next && *next != *scrapes);
        let files = vec![
            file(directory.path(), Role::Admin, &format!("# old\n{}\n\n# new\n  {} \n", *admin, *next)),
            file(directory.path(), Role::Metrics, &scrapes),
        ];
        let tokens = LiveTokens::open(files).unwrap();
        for (shown, role) in [(&admin, Role::Admin), (&next, Role::Admin), (&scrapes, Role::Metrics)] {
            assert_eq!(tokens.role(shown), Some(role));
        }
        let longer = format!("{}0", *admin);
        for shown in ["", "# old", &admin[..63], &longer, &admin.to_uppercase()] {
            assert_eq!(tokens.role(shown), None, "{shown}");
        }
        assert_eq!(LiveTokens::open(Vec::new()).unwrap().role(""), None);
    }

    #[test]
    fn a_token_of_no_file_is_taken_for_as_long_as_the_process_runs() {
        let (token, other) = (new_token().unwrap(), new_token().unwrap());
        let tokens = LiveTokens::only(&token, Role::Admin);
        assert!(!tokens.look().unwrap());
        for (shown, role) in [(&**token, Some(Role::Admin)), (&token[..63], None), ("", None), (&**other, None)] {
            assert_eq!(tokens.role(shown), role, "{shown}");
        }
    }

    #[test]
    fn what_may_be_a_token_is_known_by_its_form() {
        let token = new_token().unwrap();
        for held in [&**token, &token[..32], &format!("key: {}!", *token), "of-my-own-made_of+all~that=is=allowed"] {
            assert!(may_hold_token(held), "{held}");
        }
        for not in [
            "",
            "load-19a3f2b7c1d-4e5f",
            "worker-3.forebay-worker.default.svc.cluster.local:29999",
            &token[..31],
            "more than thirty-two letters, in words",
        ] {
            assert!(!may_hold_token(not), "{not}");
        }
    }

    #[test]
    fn nothing_shows_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let token = new_token().unwrap();
        let of_file = LiveTokens::open(vec![file(directory.path(), Role::Admin, &token)]).unwrap();
        for tokens in [of_file, LiveTokens::only(&token, Role::Admin)] {
            let shown = format!("{tokens:?}");
            assert!(shown.contains("Tokens(1)") && !shown.contains(&**token), "{shown}");
        }
        let half = format!("{}\nno token\n", *token);
        let refused = LiveTokens::open(vec![file(directory.path(), Role::Admin, &half)]).unwrap_err();
        assert!(!format!("{refused} {refused:?}").contains(&**token), "{refused}");
    }

    #[test]
    fn a_file_that_others_may_read_or_that_holds_no_tokens_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = new_token().unwrap();
        let open = |text: &str, mode: u32| {
            write(&path, text, mode);
            LiveTokens::open(vec![TokenFile { path: path.clone(), role: Role::Admin }]).map(drop)
        };
        assert!(open(&token, 0o600).is_ok());
        for mode in [0o644, 0o660, 0o604] {
            let refused = open(&token, mode).unwrap_err().to_string();
            assert!(refused.contains("chmod 600") && !refused.contains(&**token), "{refused}");
        }
        let many = format!("{}\n", *token).repeat(9);
        for (text, why) in [
            ("", "no token"),
            ("# nothing\n", "no token"),
            ("admin", "less than 32"),
            ("two words, and so no token at all", "is no token"),
            (&many, "more than eight"),
        ] {
            let refused = open(text, 0o600).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("`forebay key token`"), "{refused}");
        }
        let both = [Role::Admin, Role::Metrics].map(|role| file(directory.path(), role, &token)).to_vec();
        assert!(LiveTokens::open(both).unwrap_err().to_string().contains("another role"));
    }

    #[test]
    fn tokens_are_replaced_while_a_process_runs_and_half_a_file_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (new_token().unwrap(), new_token().unwrap());
        let of = file(directory.path(), Role::Admin, &old);
        let path = of.path.clone();
        let tokens = LiveTokens::open(vec![of]).unwrap();
        assert!(!tokens.look().unwrap());
        write(&path, &new[..10], 0o600);
        assert!(tokens.look().is_err());
        assert_eq!(tokens.role(&old), Some(Role::Admin));
        write(&path, &new, 0o600);
        assert!(tokens.look().unwrap());
        assert_eq!((tokens.role(&old), tokens.role(&new)), (None, Some(Role::Admin)));
    }
}
