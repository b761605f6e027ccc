//! A bucket of the S3 endpoint, and the path that it shows.

use forebay_types::FsPath;

use crate::value::{Scalar, quoted};

/// The longest name of a bucket, in bytes.
const MAX_BUCKET_LEN: usize = 63;

/// A bucket and where it is in the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPath {
    /// The bucket's name: letters, digits, `.`, `-` and `_`.
    pub name: String,
    /// The path that it shows.
    pub path: FsPath,
}

impl Scalar for BucketPath {
    fn form() -> String {
        "NAME=PATH".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = |why: String| format!("`{text}` is not NAME=PATH, as in `imagenet=/datasets/imagenet`: {why}");
        let (name, path) = text.split_once('=').ok_or_else(|| invalid("it has no `=`".to_owned()))?;
        let (name, path) = (name.trim(), path.trim());
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_only_dots = name.bytes().all(|byte| byte == b'.');
        if is_only_dots || name.len() > MAX_BUCKET_LEN || !name.bytes().all(is_of_name) {
            return Err(invalid(format!(
                "`{name}` is no name of a bucket, which has 1 to {MAX_BUCKET_LEN} letters, digits, `.`, `-` and `_`"
            )));
        }
        let path = FsPath::new(path).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { name: name.to_owned(), path })
    }

    fn toml(&self) -> String {
        quoted(&format!("{}={}", self.name, String::from_utf8_lossy(self.path.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_a_name_and_a_path() {
        let bucket = BucketPath::parse("imagenet = /datasets/a=b/").unwrap();
        assert_eq!((bucket.name.as_str(), bucket.path.to_string().as_str()), ("imagenet", "/datasets/a=b"));
        assert_eq!(bucket.toml(), "\"imagenet=/datasets/a=b\"");
        assert_eq!(BucketPath::parse("all=/").unwrap().path, FsPath::root());
        let long = format!("{}=/", "n".repeat(64));
        for wrong in ["", "imagenet", "=/a", "..=/a", "a/b=/a", "a b=/a", "é=/a", "a=b", "a=/b//c", "a=/../b", &long] {
            let refused = BucketPath::parse(wrong).unwrap_err();
            assert!(refused.contains("is not NAME=PATH, as in `imagenet=/datasets/imagenet`"), "{refused}");
        }
    }
}
