//! Servers that mounts of the cluster may name.
//!
//! Whoever can write the state of a cluster can add mounts to it, and a worker sends requests, and credentials, to the
//! server that a mount names. So the operator of each worker lists those servers. An entry is the origin of a URL in
//! the sense of RFC 6454: scheme, host and port, and nothing more.

use std::fmt;

use url::{Host, Url};

use crate::value::{Scalar, quoted};

/// A server that mounts of the cluster may name: `https://minio.example.com:9000`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MountEndpoint(Url);

impl MountEndpoint {
    /// Whether `url` is at this server: the same scheme, host and port.
    #[must_use]
    pub fn admits(&self, url: &Url) -> bool {
        // The origin of a `blob:` URL is that of the URL within.
        self.0.scheme() == url.scheme() && self.0.origin() == url.origin()
    }

    /// Whether it is an IP address or `localhost`. Whoever wrote that knows which machine it is, so requests may go
    /// there though it is this one. Any other name means what those who answer for it say, and they may change their mind.
    #[must_use]
    pub fn may_be_local(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
            None => false,
        }
    }
}

impl fmt::Display for MountEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.origin().ascii_serialization())
    }
}

impl Scalar for MountEndpoint {
    fn form() -> String {
        "URL of a server".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = |why: &str| {
            format!(
                "`{text}` is not a server that mounts may name: {why}; write scheme, host and port alone, as in \
                 `https://minio.example.com:9000`"
            )
        };
        let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("its scheme is neither https nor http"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("it has a user or a password"));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it has a path, a query or a fragment"));
        }
        if url.host_str().is_some_and(|host| host.contains('*')) {
            return Err(invalid("`*` stands for nothing"));
        }
        Ok(Self(url))
    }

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(entry: &str, url: &str) -> bool {
        MountEndpoint::parse(entry).unwrap().admits(&Url::parse(url).unwrap())
    }

    #[test]
    fn an_entry_admits_its_scheme_host_and_port_and_nothing_else() {
        assert!(admits("https://minio", "https://minio:443/any/path"));
        assert!(admits("https://MinIO:9000/", "https://minio:9000"));
        assert!(admits("http://127.0.0.1:9000", "http://127.1:9000"));
        for other in ["http://minio", "https://minio:8443", "https://minio.evil", "https://x.minio", "https://minio."] {
            assert!(!admits("https://minio", other), "{other}");
        }
        for other in ["https://minio@evil", "s3://minio", "blob:https://minio/x"] {
            assert!(!admits("https://minio", other), "{other}");
        }
    }

    #[test]
    fn an_entry_that_is_no_server_is_refused_with_what_to_write() {
        for bad in [
            "",
            "minio:9000",
            "minio",
            "s3://bucket",
            "https://",
            "https://u@minio",
            "https://minio/path",
            "https://m?q",
            "https://*",
        ] {
            let error = MountEndpoint::parse(bad).unwrap_err();
            assert!(error.contains("as in `https://minio.example.com:9000`"), "{error}");
        }
    }

    #[test]
    fn an_entry_is_written_as_it_is_read() {
        for (text, written) in [
            ("https://minio:443/", "https://minio"),
            ("http://[::1]:9000", "http://[::1]:9000"),
            ("http://2130706433", "http://127.0.0.1"),
        ] {
            let entry = MountEndpoint::parse(text).unwrap();
            assert_eq!(entry.to_string(), written);
            assert_eq!(MountEndpoint::parse(written), Ok(entry));
        }
    }

    #[test]
    fn only_addresses_and_localhost_may_be_local() {
        for (entry, may) in [
            ("http://127.0.0.1:9000", true),
            ("https://10.0.0.1", true),
            ("http://[fd00::1]", true),
            ("http://localhost:9000", true),
            ("https://minio", false),
            ("https://localhost.evil", false),
        ] {
            assert_eq!(MountEndpoint::parse(entry).unwrap().may_be_local(), may, "{entry}");
        }
    }
}
