//! From a URL to an origin.

use std::path::Path;
use std::sync::Arc;

use forebay_types::OriginUrl;

use crate::{FileOrigin, ObjectStoreOrigin, Origin, OriginError, OriginOptions};

/// Opens the origin that `url` names: `s3://bucket/prefix`, `gs://…`, `az://…`, `abfs://…`, `https://…` or
/// `file:///directory`.
///
/// Asks nothing of the origin: whether it answers shows at the first [`Origin::stat`].
///
/// # Errors
/// [`OriginError`] when the URL or the settings make no sense.
pub fn open(url: &str, options: &OriginOptions) -> Result<Arc<dyn Origin>, OriginError> {
    let refuse = |reason: String| OriginError::Url { url: url.to_owned(), reason };
    let origin = OriginUrl::parse(url).map_err(|error| refuse(error.to_string()))?;
    if origin.url().scheme() == "file" {
        let directory = origin.url().to_file_path().map_err(|()| refuse("it names another machine".to_owned()))?;
        return Ok(Arc::new(FileOrigin::new(origin.as_str(), Path::new(&directory), options)?));
    }
    // Variables that are not text mean nothing to us.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Ok(Arc::new(ObjectStoreOrigin::new(origin.url(), origin.as_str(), options, &variables)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_origin_is_refused_by_name() {
        for bad in ["", "bucket/prefix", "s3:bucket", "s3://b?x=y", "https://u:p@h/", "file://host/dir"] {
            let error = open(bad, &OriginOptions::default()).err().unwrap();
            assert!(matches!(error, OriginError::Url { .. }), "{bad}: {error}");
        }
        assert!(matches!(open("ftp://h/", &OriginOptions::default()), Err(OriginError::Scheme { .. })));
    }

    #[test]
    fn a_directory_is_an_origin() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}/", directory.path().display());
        let origin = open(&url, &OriginOptions::default()).unwrap();
        assert_eq!(**origin.url(), *url.trim_end_matches('/'));
    }
}
