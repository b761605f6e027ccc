//! What a record of the cluster may make of an origin.
//!
//! Whoever reaches a coordinator, or etcd, can write a record, so what it says is not believed ([`ChosenBy`]):
//!
//! * its bucket and its region are names, which make no other host of the server's URL;
//! * a server that it names gets the credentials that the record leads to, and nothing of what this process has for
//!   other servers: neither keys, nor a profile, a role or an identity, nor a header that the environment asks for;
//! * and is reached over connections of its own. They follow no redirect, as a server could send requests where it
//!   cannot go itself, use no proxy, which would look up names by itself, and go to no address of `addresses.rs`. A
//!   name is looked up right before each connection, and the connection goes to the addresses that were looked at.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use rand::seq::SliceRandom as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Url};

use super::addresses::never_for_records;
use crate::{ChosenBy, OriginError, OriginOptions};

/// How long a name may be. S3's buckets from before 2018 have up to 255 letters.
const MAX_NAME: usize = 255;
/// What a server that a record names may learn of the environment: no secret, and no header.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Whether what a record says can be taken as it is.
///
/// # Errors
/// For a name that could be more than that, and for a server without credentials.
pub(super) fn check(url: &Url, options: &OriginOptions) -> Result<(), OriginError> {
    if options.chosen_by == ChosenBy::Operator || matches!(url.scheme(), "http" | "https") {
        return Ok(());
    }
    if !url.username().is_empty() || url.password().is_some() || url.port().is_some() {
        let reason = "it has a user or a port in it, where a mount of the cluster has the name of a bucket".to_owned();
        return Err(OriginError::Url { url: url.to_string(), reason });
    }
    let name = |what, name: &str| OriginError::Name { url: url.to_string(), what, name: name.to_owned() };
    let bucket = url.host_str().unwrap_or_default();
    if !is_bucket(bucket) {
        return Err(name("bucket", bucket));
    }
    if let Some(region) = options.s3.region.as_deref().filter(|region| !is_label(region)) {
        return Err(name("region", region));
    }
    let has_keys = options.s3.anonymous || options.s3.keys.is_some();
    if matches!(options.chosen_by, ChosenBy::RecordWithServer { .. }) && !has_keys {
        let endpoint = options.s3.endpoint.clone().unwrap_or_default();
        return Err(OriginError::NoKeys { url: url.to_string(), endpoint });
    }
    Ok(())
}

/// Labels with dots between them. None is empty or `..`, which would be another place in the path of a URL.
fn is_bucket(name: &str) -> bool {
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

fn is_label(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

/// Whether the address in the URL of a server, if there is one and no name, is one that requests may go to.
///
/// # Errors
/// When it leads where no mount of the cluster may go. What a name leads to is looked at when it is looked up.
pub(super) fn check_server(url: &Url, server: &Url, options: &OriginOptions) -> Result<(), OriginError> {
    let ChosenBy::RecordWithServer { may_be_local: false } = options.chosen_by else { return Ok(()) };
    let address = match server.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        Some(Host::Domain(_)) | None => return Ok(()),
    };
    match never_for_records(address) {
        Some(what) => Err(OriginError::Address { url: url.to_string(), address, what }),
        None => Ok(()),
    }
}

/// What an origin may know of the environment.
pub(super) fn environment<'a>(
    options: &OriginOptions,
    variables: &'a HashMap<String, String>,
) -> Cow<'a, HashMap<String, String>> {
    match options.chosen_by {
        ChosenBy::Operator | ChosenBy::Record => Cow::Borrowed(variables),
        ChosenBy::RecordWithServer { .. } => {
            let known = |name: &str| Some((name.to_owned(), variables.get(name)?.clone()));
            Cow::Owned(REGIONS.into_iter().filter_map(known).collect())
        }
    }
}

/// The time limits of one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The longest silence of the server.
    pub(super) silence: Duration,
    /// The longest that a request may take.
    pub(super) request: Duration,
}

/// What looks names up if a record named the server.
pub(super) fn resolver(options: &OriginOptions) -> Option<GuardedResolver> {
    match options.chosen_by {
        ChosenBy::Operator | ChosenBy::Record => None,
        ChosenBy::RecordWithServer { may_be_local } => Some(GuardedResolver { may_be_local }),
    }
}

/// How a client connects: as it does by itself, or with care if a record named the server. `plain` allows `http://`.
pub(super) fn connector(options: &OriginOptions, limits: Limits, plain: bool) -> Box<dyn HttpConnector> {
    match resolver(options) {
        None => Box::new(ReqwestConnector::default()),
        Some(resolver) => Box::new(GuardedConnector {
            resolver,
            plain,
            limits,
            connect_timeout: options.connect_timeout,
            idle_connections: options.max_concurrency,
        }),
    }
}

/// Connects to servers that a record named.
#[derive(Debug)]
struct GuardedConnector {
    resolver: GuardedResolver,
    plain: bool,
    limits: Limits,
    connect_timeout: Duration,
    idle_connections: usize,
}

impl HttpConnector for GuardedConnector {
    /// Without the client's own options: they say the same, but for what would take requests elsewhere.
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.limits.silence)
            .timeout(self.limits.request)
            .pool_max_idle_per_host(self.idle_connections)
            .https_only(!self.plain)
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(self.resolver)
            // As the client does: one connection for each request under way, and the bytes as they are.
            .http1_only()
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .build();
        let refuse =
            |error: reqwest::Error| object_store::Error::Generic { store: "HTTP client", source: Box::new(error) };
        Ok(HttpClient::new(client.map_err(refuse)?))
    }
}

/// Looks names up, and gives no address that is not for records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardedResolver {
    may_be_local: bool,
}

/// A name, in the URL of a record, that leads where no mount of the cluster may go.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{name}` is at {address}, {what}, which is not for mounts of the cluster; a mount may name that address itself if \
     `cluster.mounts.endpoints` does"
)]
struct NotForRecords {
    name: String,
    address: IpAddr,
    what: &'static str,
}

impl GuardedResolver {
    /// Whether all of `addresses` are ones that requests may go to. One that is not speaks against the rest.
    fn check(self, name: &str, addresses: &[SocketAddr]) -> Result<(), NotForRecords> {
        let allowed = |address: IpAddr| self.may_be_local && address.to_canonical().is_loopback();
        let mut refused = addresses.iter().map(SocketAddr::ip).filter(|address| !allowed(*address));
        match refused.find_map(|address| Some((address, never_for_records(address)?))) {
            Some((address, what)) => Err(NotForRecords { name: name.to_owned(), address, what }),
            None => Ok(()),
        }
    }
}

impl GuardedResolver {
    /// Where a name leads. The port is that of the URL, and not told here.
    pub(crate) async fn lookup(self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
        self.check(name, &found).map_err(io::Error::other)?;
        Ok(found)
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = *self;
        Box::pin(async move {
            let mut found = resolver.lookup(name.as_str()).await?;
            // Each connection begins with another server, where there are several.
            found.shuffle(&mut rand::rng());
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{S3Keys, S3Options};

    fn options(chosen_by: ChosenBy) -> OriginOptions {
        OriginOptions { chosen_by, ..OriginOptions::default() }
    }

    fn keys() -> S3Keys {
        let text = |text: &str| text.to_owned();
        S3Keys { access_key_id: text("a"), secret_access_key: text("s"), session_token: None, source: text("here") }
    }

    #[test]
    fn the_bucket_and_the_region_of_a_record_are_names() {
        let judged = |url: &str, chosen_by, region: Option<&str>| {
            let mut options = options(chosen_by);
            options.s3.region = region.map(str::to_owned);
            check(&Url::parse(url).unwrap(), &options)
        };
        for good in ["s3://my-bucket/a@b", "s3://a.b_c", "gs://example.com", "az://container/p", "https://h:1/"] {
            assert!(judged(good, ChosenBy::Record, Some("us-east-1")).is_ok(), "{good}");
        }
        for bad in [
            "s3://bucket:9000/",
            "s3://bucket%2F/",
            "s3://b..c/",
            "s3://.b/",
            "s3://b./",
            "s3://a%40evil",
            "abfss://c%5C@account.dfs.core.windows.net/",
            "abfss://c@account.dfs.core.windows.net/",
            "s3:///prefix",
        ] {
            assert!(judged(bad, ChosenBy::Record, None).is_err(), "{bad}");
            assert!(judged(bad, ChosenBy::Operator, None).is_ok(), "{bad}");
        }
        for region in ["x.evil.com/#", "x.evil.com", "x/", "x:1@evil", "", "a b"] {
            let error = judged("s3://b", ChosenBy::Record, Some(region)).unwrap_err();
            assert!(matches!(error, OriginError::Name { what: "region", .. }), "{region}: {error}");
        }
    }

    #[test]
    fn a_server_of_a_record_needs_credentials_of_the_record_or_none() {
        let of_record = |s3: S3Options| {
            let options = options(ChosenBy::RecordWithServer { may_be_local: false });
            check(&Url::parse("s3://b").unwrap(), &OriginOptions { s3, ..options })
        };
        let endpoint = Some("https://minio".to_owned());
        let error = of_record(S3Options { endpoint, ..S3Options::default() }).unwrap_err();
        assert!(matches!(&error, OriginError::NoKeys { endpoint, .. } if endpoint == "https://minio"), "{error}");
        assert!(of_record(S3Options { anonymous: true, ..S3Options::default() }).is_ok());
        assert!(of_record(S3Options { keys: Some(keys()), ..S3Options::default() }).is_ok());
    }

    #[test]
    fn a_server_of_a_record_learns_nothing_of_the_environment_but_the_region() {
        let names = ["AWS_ACCESS_KEY_ID", "AWS_SSE_CUSTOMER_KEY_BASE64", "AWS_PROXY_URL", "HOME", "AWS_REGION"];
        let variables = names.into_iter().map(|name| (name.to_owned(), "x".to_owned())).collect();
        let known = environment(&options(ChosenBy::RecordWithServer { may_be_local: true }), &variables);
        assert_eq!(known.keys().collect::<Vec<_>>(), ["AWS_REGION"]);
        assert_eq!(*environment(&options(ChosenBy::Record), &variables), variables);
    }

    #[test]
    fn an_address_in_a_url_is_looked_at_too() {
        let judged = |server: &str, may_be_local| {
            let options = options(ChosenBy::RecordWithServer { may_be_local });
            check_server(&Url::parse("s3://b").unwrap(), &Url::parse(server).unwrap(), &options)
        };
        for server in ["http://169.254.169.254", "http://127.1:9000", "http://[::ffff:7f00:1]", "http://0x7f.1"] {
            let error = judged(server, false).unwrap_err();
            assert!(error.to_string().contains("cluster.mounts.endpoints"), "{error}");
            assert!(judged(server, true).is_ok(), "{server}");
        }
        assert!(judged("http://10.0.0.1:9000", false).is_ok());
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_followed_unless_that_is_allowed() {
        let resolve = async |may_be_local| {
            let found = GuardedResolver { may_be_local }.resolve("localhost".parse().unwrap()).await;
            found.map(Iterator::count).map_err(|error| error.to_string())
        };
        let error = resolve(false).await.unwrap_err();
        assert!(error.contains("`localhost` is at") && error.contains("cluster.mounts.endpoints"), "{error}");
        assert!(resolve(true).await.unwrap() > 0);
        let metadata = [SocketAddr::from(([169, 254, 169, 254], 0)), SocketAddr::from(([10, 0, 0, 1], 0))];
        for may_be_local in [false, true] {
            assert!(GuardedResolver { may_be_local }.check("evil", &metadata).is_err());
            assert!(GuardedResolver { may_be_local }.check("minio", &metadata[1..]).is_ok());
        }
    }
}
