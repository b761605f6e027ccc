//! From a URL to an origin.

use std::path::Path;
use std::sync::Arc;

use url::Url;

use crate::{FileOrigin, ObjectStoreOrigin, Origin, OriginError, OriginOptions};

/// Opens the origin that `url` names: `s3://bucket/prefix`, `gs://…`, `az://…`, `abfs://…`, `https://…` or
/// `file:///directory`.
///
/// Asks nothing of the origin: whether it answers shows at the first [`Origin::stat`].
///
/// # Errors
/// [`OriginError`] when the URL or the settings make no sense.
pub fn open(url: &str, options: &OriginOptions) -> Result<Arc<dyn Origin>, OriginError> {
    let (parsed, normal) = normalise(url)?;
    if parsed.scheme() == "file" {
        let refuse = || OriginError::Url { url: url.to_owned(), reason: "it names another machine".to_owned() };
        let directory = parsed.to_file_path().map_err(|()| refuse())?;
        return Ok(Arc::new(FileOrigin::new(&normal, Path::new(&directory), options)?));
    }
    // Variables that are not text mean nothing to us.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Ok(Arc::new(ObjectStoreOrigin::new(&parsed, &normal, options, &variables)?))
}

/// The URL and its normal form: no trailing slash, no query, no password.
fn normalise(url: &str) -> Result<(Url, String), OriginError> {
    let refuse = |reason: String| OriginError::Url { url: url.to_owned(), reason };
    let mut parsed = Url::parse(url).map_err(|error| refuse(error.to_string()))?;
    if parsed.cannot_be_a_base() {
        return Err(refuse("it has no `//` after the scheme".to_owned()));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(refuse(
            "it has a query or a fragment (`?`, `#`); write %3F and %23 for those characters".to_owned(),
        ));
    }
    if parsed.password().is_some() {
        return Err(refuse("it has a password in it; credentials come from the environment or a profile".to_owned()));
    }
    let path = parsed.path().trim_end_matches('/').to_owned();
    parsed.set_path(&path);
    let normal = parsed.as_str().trim_end_matches('/').to_owned();
    // The root directory's URL is nothing but slashes after the scheme.
    let normal = if normal.ends_with(':') { format!("{normal}///") } else { normal };
    Ok((parsed, normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_normalised() {
        for (given, normal) in [
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("file:///data/x//", "file:///data/x"),
            ("file:///", "file:///"),
            ("https://example.com/", "https://example.com"),
        ] {
            assert_eq!(normalise(given).unwrap().1, normal, "{given}");
        }
    }

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
