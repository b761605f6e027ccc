//! Names under which buckets are asked for: `BUCKET.DOMAIN` besides `DOMAIN/BUCKET`. Pure.

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};
use s3s::validation::NameValidation;

use crate::bucket::is_bucket_name;

/// The domains below which each name is a bucket; under every other name, a bucket stands in the path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains(Vec<String>);

impl Domains {
    pub(crate) fn new(domains: impl IntoIterator<Item = String>) -> Self {
        Self(domains.into_iter().map(|domain| domain.to_ascii_lowercase()).collect())
    }

    /// The bucket that a `Host` names, if it names one.
    fn bucket<'a>(&self, host: &'a str) -> Option<&'a str> {
        // Where one is given, a port says nothing of the bucket.
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let small = name.to_ascii_lowercase();
        if self.0.contains(&small) {
            return None;
        }
        let below = |domain: &String| small.strip_suffix(domain.as_str())?.strip_suffix('.').map(str::len);
        let length = self.0.iter().filter_map(below).min()?;
        name.get(..length).filter(|bucket| !bucket.is_empty())
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let named = VirtualHost::new(host);
        Ok(match self.bucket(host) {
            Some(bucket) => named.with_bucket(bucket),
            None => named,
        })
    }
}

/// Names of buckets are those of mounts.
pub(crate) struct BucketNames;

impl NameValidation for BucketNames {
    fn validate_bucket_name(&self, name: &str) -> bool {
        is_bucket_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_a_domain_is_the_bucket() {
        let domains = Domains::new(["s3.example.org".to_owned(), "org".to_owned()]);
        let bucket = |host| domains.parse_host_header(host).unwrap().bucket().map(str::to_owned);
        for (host, named) in [
            ("data.s3.example.org", Some("data")),
            ("data.s3.example.org:9000", Some("data")),
            ("a.b.S3.Example.Org", Some("a.b")),
            ("s3.example.com", None),
            ("xs3.example.com", None),
            ("localhost", None),
            ("localhost:9000", None),
            (".s3.example.org", None),
            ("", None),
            ("é.example.com", None),
        ] {
            assert_eq!(bucket(host).as_deref(), named, "{host}");
        }
        assert_eq!(Domains::default().bucket("data.s3.example.org"), None);
    }

    #[test]
    fn the_longest_domain_counts() {
        let domains = Domains::new(["example.org".to_owned(), "s3.example.org".to_owned()]);
        assert_eq!(domains.bucket("data.s3.example.org"), Some("data"));
        assert_eq!(domains.bucket("s3.example.org"), None, "it is a domain, and no bucket of another");
        assert!(BucketNames.validate_bucket_name("s3") && !BucketNames.validate_bucket_name(".."));
    }
}
