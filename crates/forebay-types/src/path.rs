//! Paths of the namespace: absolute, normal, any bytes but `/` and NUL in a name.

use std::fmt;
use std::sync::Arc;

/// The longest name that Linux file systems take, in bytes.
pub const MAX_NAME_LEN: usize = 255;

/// An absolute path of the namespace. `/` is the root; there is no trailing slash, no empty, `.` or `..` name.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsPath(Arc<[u8]>);

/// Why a path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not start at the root.
    #[error("`{0}` is not absolute: paths of the namespace start with `/`")]
    Relative(String),
    /// A name that no file can have.
    #[error("`{0}` has an empty, `.` or `..` name, or a NUL in it")]
    BadName(String),
    /// A name longer than [`MAX_NAME_LEN`].
    #[error("`{0}` has a name longer than 255 bytes")]
    NameTooLong(String),
}

impl FsPath {
    /// The root of the namespace.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(&b"/"[..]))
    }

    /// Checks and takes `path`; one trailing slash is dropped.
    ///
    /// # Errors
    /// [`PathError`] when it is relative or a name in it is not a file name.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, PathError> {
        let bytes = path.as_ref();
        let shown = || String::from_utf8_lossy(bytes).into_owned();
        let Some(rest) = bytes.strip_prefix(b"/") else {
            return Err(PathError::Relative(shown()));
        };
        if rest.is_empty() {
            return Ok(Self::root());
        }
        let rest = rest.strip_suffix(b"/").unwrap_or(rest);
        for name in rest.split(|byte| *byte == b'/') {
            check_name(name).map_err(|problem| problem.named(shown()))?;
        }
        Ok(Self(Arc::from(&bytes[..=rest.len()])))
    }

    /// The path of `name` in this directory.
    ///
    /// # Errors
    /// [`PathError`] when `name` cannot be a file name.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        check_name(name).map_err(|problem| problem.named(String::from_utf8_lossy(name).into_owned()))?;
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        if !self.is_root() {
            bytes.extend_from_slice(&self.0);
        }
        bytes.push(b'/');
        bytes.extend_from_slice(name);
        Ok(Self(bytes.into()))
    }

    /// The directory that holds this path; the root holds itself.
    #[must_use]
    pub fn parent(&self) -> Self {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(0) | None => Self::root(),
            Some(slash) => Self(Arc::from(&self.0[..slash])),
        }
    }

    /// The last name; empty for the root.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let slash = self.0.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        &self.0[slash..]
    }

    /// Whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// The bytes, starting with `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// What remains of this path below `ancestor`, without a leading slash; empty when they are equal, `None` when
    /// this path is elsewhere.
    #[must_use]
    pub fn relative_to(&self, ancestor: &Self) -> Option<&[u8]> {
        if ancestor.is_root() {
            return Some(&self.0[1..]);
        }
        match self.0.strip_prefix(&*ancestor.0)? {
            [] => Some(&[]),
            [b'/', rest @ ..] => Some(rest),
            _ => None,
        }
    }
}

enum NameProblem {
    Bad,
    TooLong,
}

impl NameProblem {
    fn named(self, path: String) -> PathError {
        match self {
            Self::Bad => PathError::BadName(path),
            Self::TooLong => PathError::NameTooLong(path),
        }
    }
}

fn check_name(name: &[u8]) -> Result<(), NameProblem> {
    if name.len() > MAX_NAME_LEN {
        return Err(NameProblem::TooLong);
    }
    let impossible = matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if impossible { Err(NameProblem::Bad) } else { Ok(()) }
}

impl fmt::Display for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn a_path_is_absolute_and_normal() {
        for bad in ["", "a", "//", "/a//b", "/./a", "/a/..", "/a\0b"] {
            assert!(FsPath::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(path("/a/b/"), path("/a/b"));
        assert!(matches!(FsPath::new(format!("/{}", "x".repeat(256))), Err(PathError::NameTooLong(_))));
    }

    #[test]
    fn names_may_be_any_bytes() {
        let odd = FsPath::root().join(b"\xff\xfe \n\"").unwrap();
        assert_eq!(odd.name(), b"\xff\xfe \n\"");
        assert_eq!(odd.parent(), FsPath::root());
    }

    #[test]
    fn relative_to_respects_name_boundaries() {
        assert_eq!(path("/s3/a/b").relative_to(&path("/s3")), Some(&b"a/b"[..]));
        assert_eq!(path("/s3").relative_to(&path("/s3")), Some(&b""[..]));
        assert_eq!(path("/s3x").relative_to(&path("/s3")), None);
        assert_eq!(path("/s3").relative_to(&FsPath::root()), Some(&b"s3"[..]));
    }

    proptest! {
        #[test]
        fn join_and_parent_are_inverse(names in prop::collection::vec("[^/\0]{1,20}", 1..5)) {
            let mut path = FsPath::root();
            for name in names.iter().filter(|name| *name != "." && *name != "..") {
                let child = path.join(name.as_bytes()).unwrap();
                prop_assert_eq!(&child.parent(), &path);
                prop_assert_eq!(child.name(), name.as_bytes());
                prop_assert_eq!(FsPath::new(child.as_bytes()).unwrap(), child.clone());
                path = child;
            }
        }
    }
}
