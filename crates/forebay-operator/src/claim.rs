//! Who has a path where two objects want the same one: the one that was there first, and of two that came at once the
//! one whose name is first. Only that one is brought about, and what goes with an object goes only when no other wants
//! it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A path that an object wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim<'a> {
    /// The object's name.
    pub(crate) name: &'a str,
    /// When it was made, in seconds since 1970.
    pub(crate) made: i64,
    /// The path, as the object writes it.
    pub(crate) path: &'a str,
}

impl<'a> Claim<'a> {
    pub(crate) fn new(object: &'a ObjectMeta, path: &'a str) -> Self {
        let made = object.creation_timestamp.as_ref().map_or(i64::MAX, |made| made.0.as_second());
        Self { name: object.name.as_deref().unwrap_or_default(), made, path }
    }

    fn is_of_the_same_path(&self, other: &Self) -> bool {
        // `/s3/` and `/s3` are one.
        self.path.trim_end_matches('/') == other.path.trim_end_matches('/')
    }

    /// The object that has this one's path before it.
    pub(crate) fn predecessor(&self, others: &[Self]) -> Option<&'a str> {
        let before =
            |other: &&Self| self.is_of_the_same_path(other) && (other.made, other.name) < (self.made, self.name);
        others.iter().filter(before).min_by_key(|other| (other.made, other.name)).map(|other| other.name)
    }

    /// Whether another one wants the path, too.
    pub(crate) fn is_contested(&self, others: &[Self]) -> bool {
        others.iter().any(|other| self.is_of_the_same_path(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_has_the_path() {
        let claim = |name, made, path| Claim { name, made, path };
        let own = claim("b", 7, "/s3");
        assert_eq!(own.predecessor(&[claim("a", 8, "/s3"), claim("c", 6, "/other")]), None);
        assert_eq!(own.predecessor(&[claim("c", 6, "/s3/"), claim("d", 5, "/s3")]), Some("d"));
        assert_eq!(own.predecessor(&[claim("a", 7, "/s3")]), Some("a"), "at the same second, by name");
        assert!(own.is_contested(&[claim("z", 9, "/s3")]) && !own.is_contested(&[claim("z", 9, "/s3/below")]));
    }
}
