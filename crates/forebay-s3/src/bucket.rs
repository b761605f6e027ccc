//! Buckets and keys, and the paths of the namespace that they stand for. Pure.
//!
//! A bucket is a name at the top of the namespace: `/imagenet` is the bucket `imagenet`, whether it is a mount or leads
//! to some. Where the configuration lists buckets, these are all that there are: a namespace that is one mount, as that
//! of `forebay up`, has no names at its top that could be buckets. A key is the rest of a path. One that ends in `/` is
//! a directory, and one that is no path (`a//b`, `../x`) names nothing.

use std::collections::BTreeMap;

use forebay_types::FsPath;

/// Longest name of a bucket, in bytes.
const MAX_BUCKET: usize = 63;

/// Whether a bucket may have this name. Shorter names than Amazon's are taken, and capitals and `_`: mounts have them.
#[must_use]
pub fn is_bucket_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_only_dots = name.bytes().all(|byte| byte == b'.');
    !is_only_dots && name.len() <= MAX_BUCKET && name.bytes().all(is_of_name)
}

/// Which buckets there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Empty: the names at the top of the namespace.
    listed: BTreeMap<String, FsPath>,
}

/// What a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: FsPath,
    /// The key ends in `/`.
    pub(crate) is_directory: bool,
}

impl Buckets {
    /// Those with these names at these paths; of none, the names at the top of the namespace.
    #[must_use]
    pub fn new(listed: impl IntoIterator<Item = (String, FsPath)>) -> Self {
        Self { listed: listed.into_iter().collect() }
    }

    /// Those that the configuration lists, if it lists any.
    pub(crate) fn listed(&self) -> Option<impl Iterator<Item = &str>> {
        (!self.listed.is_empty()).then(|| self.listed.keys().map(String::as_str))
    }

    /// The path of a bucket; `None` if there cannot be one of this name.
    pub(crate) fn path(&self, bucket: &str) -> Option<FsPath> {
        if !self.listed.is_empty() {
            return self.listed.get(bucket).cloned();
        }
        if !is_bucket_name(bucket) {
            return None;
        }
        FsPath::root().join(bucket.as_bytes()).ok()
    }
}

/// What `key` names in the bucket at `root`; `None` if no file can be there.
pub(crate) fn place(root: &FsPath, key: &str) -> Option<Place> {
    let (names, is_directory) = match key.strip_suffix('/') {
        Some(names) => (names, true),
        None => (key, false),
    };
    let path = names.split('/').try_fold(root.clone(), |path, name| path.join(name.as_bytes()));
    Some(Place { path: path.ok()?, is_directory })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn buckets_are_names_at_the_top_or_those_that_are_listed() {
        let top = Buckets::default();
        assert_eq!(top.path("s3"), Some(path("/s3")));
        assert!(top.listed().is_none());
        for wrong in ["", ".", "..", "a/b", "a b", "é", "a\0", &"n".repeat(64)] {
            assert_eq!(top.path(wrong), None, "{wrong:?}");
        }
        let listed = Buckets::new([("data".to_owned(), FsPath::root()), ("sets".to_owned(), path("/a/sets"))]);
        assert_eq!(listed.path("data"), Some(FsPath::root()));
        assert_eq!(listed.path("sets"), Some(path("/a/sets")));
        assert_eq!(listed.path("a"), None, "only what is listed is a bucket");
        assert_eq!(listed.listed().unwrap().collect::<Vec<_>>(), ["data", "sets"]);
    }

    #[test]
    fn a_key_is_a_path_below_its_bucket_or_nothing() {
        let root = path("/s3");
        let place_of = |key: &str| place(&root, key).map(|place| (place.path.to_string(), place.is_directory));
        assert_eq!(place_of("a/b.txt"), Some(("/s3/a/b.txt".to_owned(), false)));
        assert_eq!(place_of("a/b/"), Some(("/s3/a/b".to_owned(), true)));
        let long = "n".repeat(256);
        for wrong in ["", "/", "/a", "a//b", "a//", "..", "../x", "a/../../x", "./a", "a/.", "a\0b", &long] {
            assert_eq!(place_of(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_key_leads_out_of_its_bucket(key in "[a./\\\\%2ef\0é]{0,20}") {
            let root = path("/s3");
            if let Some(Place { path, .. }) = place(&root, &key) {
                let below = path.relative_to(&root).expect("below its bucket");
                prop_assert!(!below.is_empty());
                prop_assert_eq!(below, key.strip_suffix('/').unwrap_or(&key).as_bytes());
            }
        }
    }
}
