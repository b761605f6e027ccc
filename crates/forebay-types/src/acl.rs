//! Access lists of mounts: which clients read, and which change files.
//!
//! A list names clients as their identities do ([`crate::Role`] says what each may do at all). A name may end in a `*`,
//! which stands for any rest, and that is all the pattern that there is: what a list lets in can be told by reading it.

/// Names for each of the two that an access list has at most.
pub const MAX_LISTED: usize = 256;
/// Longest name, in bytes: that of an identity.
const MAX_NAME: usize = 64;

/// Who may read what a mount shows, and who may change it. The default names nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessList {
    read: Box<[Listed]>,
    write: Box<[Listed]>,
}

/// A name on a list, or how the names that are meant begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Listed {
    Name(Box<str>),
    Beginning(Box<str>),
}

/// Why texts are no access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessListError {
    /// No client has such a name.
    #[error(
        "`{0}` cannot be in an access list; write the name of a client as `forebay key issue --client` takes it (1 to \
         {MAX_NAME} letters, digits, `.`, `-` and `_`), how names begin and a `*`, as in `team-*`, or `*` for all"
    )]
    Name(String),
    /// Too many.
    #[error(
        "an access list has at most {MAX_LISTED} readers and as many writers; let names begin alike, and list `team-*`"
    )]
    Many,
}

impl AccessList {
    /// A list of those who may read, and of those who may change files. The latter may read, too.
    ///
    /// # Errors
    /// [`AccessListError`], which says what to write instead.
    pub fn new<T: AsRef<str>>(read: &[T], write: &[T]) -> Result<Self, AccessListError> {
        Ok(Self { read: listed(read)?, write: listed(write)? })
    }

    /// Whether the client of this name may read.
    #[must_use]
    pub fn may_read(&self, name: &str) -> bool {
        self.read.iter().chain(self.write.iter()).any(|listed| listed.is(name))
    }

    /// Whether it may change files.
    #[must_use]
    pub fn may_write(&self, name: &str) -> bool {
        self.write.iter().any(|listed| listed.is(name))
    }
}

impl Listed {
    fn of(text: &str) -> Result<Self, AccessListError> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_name = |name: &str| name.len() <= MAX_NAME && name.bytes().all(is_of_name);
        match text.strip_suffix('*') {
            Some(beginning) if is_name(beginning) => Ok(Self::Beginning(beginning.into())),
            None if is_name(text) && !text.is_empty() => Ok(Self::Name(text.into())),
            _ => Err(AccessListError::Name(text.chars().take(MAX_NAME + 1).flat_map(char::escape_debug).collect())),
        }
    }

    fn is(&self, name: &str) -> bool {
        match self {
            Self::Name(listed) => **listed == *name,
            Self::Beginning(beginning) => name.starts_with(&**beginning),
        }
    }
}

fn listed<T: AsRef<str>>(names: &[T]) -> Result<Box<[Listed]>, AccessListError> {
    if names.len() > MAX_LISTED {
        return Err(AccessListError::Many);
    }
    names.iter().map(|name| Listed::of(name.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_lets_in_those_whom_it_names_and_nobody_whose_name_is_alike() {
        let list = AccessList::new(&["team-a", "batch-*"], &["loader"]).unwrap();
        for name in ["team-a", "batch-", "batch-7", "loader"] {
            assert!(list.may_read(name), "{name}");
        }
        for name in ["", "team", "team-ab", "Team-a", "a-team-a", "batch", "*", "batch-*x", "loader2"] {
            assert_eq!(list.may_read(name), name == "batch-*x", "{name}");
        }
        assert!(list.may_write("loader") && !list.may_write("team-a") && !list.may_write("batch-7"));
        let nobody = AccessList::default();
        assert!(!nobody.may_read("team-a") && !nobody.may_write("") && !nobody.may_read("*"));
        let all = AccessList::new(&["*"], &[]).unwrap();
        assert!(all.may_read("team-a") && !all.may_write("team-a"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_to_write() {
        let long = "n".repeat(MAX_NAME + 1);
        for wrong in ["", "**", "*a", "a*b", "team a", "spiffe://d/forebay/c/reader/a", "é", "a\n", long.as_str()] {
            let refused = AccessList::new(&[wrong], &[]).unwrap_err();
            assert!(AccessList::new(&[], &[wrong]) == Err(refused.clone()), "{wrong}");
            let message = refused.to_string();
            assert!(message.contains("`team-*`") && !message.contains('\n') && message.len() < 400, "{message}");
        }
        let many = vec!["a"; MAX_LISTED + 1];
        assert_eq!(AccessList::new(&many, &[]), Err(AccessListError::Many));
        assert!(AccessList::new(&many[1..], &many[1..]).is_ok());
    }
}
