//! How a person names an origin: by its URL, or by a directory of this machine.

use std::path::Path;

use crate::error::{Exit, Fault};

/// The URL that `origin` means: itself, or that of the directory that it names.
///
/// # Errors
/// When it is neither.
pub fn url_of(origin: &str) -> anyhow::Result<String> {
    if origin.contains("://") {
        return Ok(origin.to_owned());
    }
    let directory = Path::new(origin).canonicalize().map_err(|error| {
        let next = "give a URL, as in s3://bucket/prefix, or an existing directory";
        Fault::new(Exit::NotFound, format!("origin `{origin}` is neither a URL nor a directory: {error}"), next)
    })?;
    let url = url::Url::from_directory_path(&directory);
    let url = url.map_err(|()| anyhow::anyhow!("{} cannot be written as a URL", directory.display()))?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_file_origin_and_a_url_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("a b");
        std::fs::create_dir(&path).unwrap();
        let url = url_of(path.to_str().unwrap()).unwrap();
        assert!(url.starts_with("file:///") && url.ends_with("/a%20b"), "{url}");
        assert_eq!(url_of("s3://b/p/").unwrap(), "s3://b/p/");
        let error = url_of("/no/such/directory").unwrap_err();
        assert!(error.to_string().contains("neither a URL nor a directory"));
    }
}
