//! Makes the object store's client for a URL: settings, credentials, endpoint.
//!
//! Settings come from the options first, then from the environment, then (S3) from the profile. The client's own
//! retries are off, since ours, in `attempts.rs`, know the limit on requests, the deadline and the metrics. What a
//! record of the cluster chose is believed as far as `guard.rs` says.
//!
//! Changes have a client of their own, with the credentials of the first. Its time limits are longer, as the client's "no
//! byte came for so long" also counts while a request is being sent, and a part of 64 MiB may take longer than that; and
//! what it sends is told from requests for credentials by the connection (`exchange.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use super::attempts::AT_WORK;
use super::exchange::ObservingConnector;
use super::failure::Setting;
use super::guard::{self, Limits};
use super::in_place::{InPlaceConnector, Settings};
use super::profile::{Profile, ProfileFiles};
use super::signed::Asking;
use crate::{OriginError, OriginOptions, S3Checksum};

/// The kinds of object stores, as far as their answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// S3 and GCS: listings in S3's XML.
    S3,
    /// Azure: pages that the client reads.
    Azure,
    /// WebDAV, or plain http without listings.
    Http,
}

/// A client and what messages say of it.
pub(crate) struct Client {
    pub(crate) flavor: Flavor,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// `None` for http.
    pub(crate) pages: Option<Arc<dyn PaginatedListStore>>,
    pub(crate) setting: Setting,
    /// `None` for http.
    pub(crate) writer: Option<Writer>,
    /// `None` for all but S3, and where nobody signs.
    pub(crate) asking: Option<Asking>,
    /// What all keys of this origin start with: empty, or ending in `/`.
    pub(crate) prefix: String,
}

/// The client for changes.
pub(crate) struct Writer {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) uploads: Arc<dyn MultipartStore>,
    /// The largest object that the origin copies by itself, in one request.
    pub(crate) largest_copy: u64,
}

impl Writer {
    fn new<S: ObjectStore + MultipartStore>(store: S, largest_copy: u64) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), uploads: store, largest_copy }
    }
}

/// S3's bound for CopyObject.
const LARGEST_S3_COPY: u64 = 5 << 30;

/// Environment variables.
pub(crate) type Variables = HashMap<String, String>;

/// Makes the client for `url`, whose scheme is one of the object stores'.
pub(crate) fn build(url: &Url, options: &OriginOptions, variables: &Variables) -> Result<Client, OriginError> {
    guard::check(url, options)?;
    let variables = guard::environment(options, variables);
    match url.scheme() {
        "s3" | "s3a" => build_s3(url, options, &variables),
        "gs" => build_gcs(url, options, &variables),
        "az" | "abfs" | "abfss" | "azure" | "adl" => build_azure(url, options, &variables),
        "http" | "https" => build_http(url, options),
        scheme => Err(OriginError::Scheme { url: url.to_string(), scheme: scheme.to_owned() }),
    }
}

/// The variables that [`build_s3`] reads itself, in its own order of precedence, and keeps from the client's builder.
const OWN_S3_VARIABLES: [&str; 7] = [
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
];
/// The client's own variables about what is checked of uploads.
const CHECKSUM_VARIABLES: [&str; 2] = ["AWS_CHECKSUM_ALGORITHM", "AWS_UNSIGNED_PAYLOAD"];
const KEY_VARIABLES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

fn build_s3(url: &Url, options: &OriginOptions, variables: &Variables) -> Result<Client, OriginError> {
    let bucket = bucket(url)?;
    let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let (profile_name, profile) = read_profile(url, options, variables)?;
    let use_profile_keys = options.s3.keys.is_none()
        && profile.access_key_id.is_some()
        && (options.s3.profile.is_some() || variable("AWS_ACCESS_KEY_ID").is_none());
    let not_from_environment = use_profile_keys || options.s3.keys.is_some();

    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        let is_ours = OWN_S3_VARIABLES.contains(&&**name) || (not_from_environment && KEY_VARIABLES.contains(&&**name));
        if let (false, Ok(key)) = (is_ours, name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()) {
            builder = builder.with_config(key, value);
        }
    }
    let credentials = if options.s3.anonymous {
        builder = builder.with_skip_signature(true);
        None
    } else if let Some(keys) = &options.s3.keys {
        builder = builder.with_access_key_id(&keys.access_key_id).with_secret_access_key(&keys.secret_access_key);
        if let Some(token) = &keys.session_token {
            builder = builder.with_token(token);
        }
        Some(keys.source.clone())
    } else if use_profile_keys {
        builder = builder
            .with_access_key_id(profile.access_key_id.unwrap_or_default())
            .with_secret_access_key(profile.secret_access_key.unwrap_or_default());
        if let Some(token) = profile.session_token {
            builder = builder.with_token(token);
        }
        Some(format!("the aws profile `{profile_name}`"))
    } else if variable("AWS_ACCESS_KEY_ID").is_some() {
        Some("the environment (AWS_ACCESS_KEY_ID)".to_owned())
    } else if variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() {
        Some("this machine's web identity (AWS_WEB_IDENTITY_TOKEN_FILE)".to_owned())
    } else if KEY_PROVIDERS_OF_CONTAINERS.into_iter().any(|name| variable(name).is_some()) {
        Some("the container's role".to_owned())
    } else {
        Some("the environment, ~/.aws or the instance's role".to_owned())
    };

    let region =
        options.s3.region.clone().or_else(|| variable("AWS_REGION")).or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region.or(profile.region).unwrap_or_else(|| "us-east-1".to_owned());
    let endpoint = options
        .s3
        .endpoint
        .clone()
        .or_else(|| ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(variable));
    let endpoint = endpoint.or(profile.endpoint);
    // A dot in the bucket's name does not go with the certificate for `*.s3.REGION.amazonaws.com`.
    let path_style = options.s3.path_style.unwrap_or(endpoint.is_some() || bucket.contains('.'));
    let mut plain_allowed = false;
    if let Some(endpoint) = &endpoint {
        plain_allowed = is_plain_http_allowed(url, endpoint, options)?;
        let unusable = |error: url::ParseError| settings(url, format!("endpoint `{endpoint}`: {error}"));
        let mut parsed = Url::parse(endpoint).map_err(unusable)?;
        let host = parsed.host_str().unwrap_or_default().to_owned();
        if !path_style && !host.starts_with(&format!("{bucket}.")) {
            parsed.set_host(Some(&format!("{bucket}.{host}"))).map_err(unusable)?;
        }
        guard::check_server(url, &parsed, options)?;
        builder = builder.with_endpoint(parsed.as_str().trim_end_matches('/'));
    }
    let is_tls = endpoint.as_ref().is_none_or(|endpoint| !endpoint.to_ascii_lowercase().starts_with("http:"));
    builder = builder
        .with_bucket_name(&bucket)
        .with_region(&region)
        .with_virtual_hosted_style_request(!path_style)
        .with_retry(no_retries())
        .with_http_connector(connector_for_s3(options, variables, plain_allowed, is_tls));
    for (key, value) in client_settings(options, plain_allowed) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let refuse = |error: object_store::Error| settings(url, error.to_string());
    let store = Arc::new(builder.clone().build().map_err(refuse)?);
    // Not every server deletes many objects with one request, and then its answer names keys, which the client refuses to
    // read when they end in `/`.
    builder = builder.with_disable_bulk_delete(true).with_credentials(Arc::clone(store.credentials()));
    let connector = connector_for_changes(options, plain_allowed);
    let made = connector.made();
    builder = builder.with_http_connector(connector);
    for (key, value) in settings_for_changes(options) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let on_amazon = endpoint.is_none() && !CHECKSUM_VARIABLES.into_iter().any(|name| variables.contains_key(name));
    match options.s3.checksum {
        S3Checksum::Sha256 => builder = builder.with_unsigned_payload(false),
        S3Checksum::Auto if !on_amazon => {}
        S3Checksum::Auto | S3Checksum::Crc64Nvme => {
            builder = builder.with_unsigned_payload(true).with_checksum_algorithm(Checksum::CRC64NVME);
        }
    }
    let has_checksums = builder.get_config_value(&AmazonS3ConfigKey::Checksum).is_some();
    let changes = builder.build().map_err(refuse)?;
    let http = made.take().filter(|_| !options.s3.anonymous);
    let asking = http.map(|http| Asking::new(Arc::new(changes.clone()), http, has_checksums));
    let writer = Some(Writer::new(changes, LARGEST_S3_COPY));
    let setting = Setting {
        endpoint: endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
        bucket: format!("bucket `{bucket}`"),
        region: Some(region),
        credentials,
    };
    Ok(Client {
        flavor: Flavor::S3,
        store: store.clone(),
        pages: Some(store),
        setting,
        writer,
        asking,
        prefix: prefix(url)?,
    })
}

const KEY_PROVIDERS_OF_CONTAINERS: [&str; 2] =
    ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// The profile that is asked for, or else the default one, as far as there is one.
fn read_profile(url: &Url, options: &OriginOptions, variables: &Variables) -> Result<(String, Profile), OriginError> {
    let asked_for = options.s3.profile.clone().or_else(|| variables.get("AWS_PROFILE").cloned());
    let name = asked_for.clone().unwrap_or_else(|| "default".to_owned());
    let refuse = |reason: String| OriginError::Profile { url: url.to_string(), profile: name.clone(), reason };
    let has_keys = options.s3.anonymous || options.s3.keys.is_some() || variables.contains_key("AWS_ACCESS_KEY_ID");
    match ProfileFiles::locate(variables).read(&name) {
        Ok(Some(profile)) => Ok((name, profile)),
        Ok(None) if asked_for.is_some() => Err(refuse(
            "there is none in ~/.aws/config and ~/.aws/credentials; `aws configure list-profiles` shows them".into(),
        )),
        Ok(None) => Ok((name, Profile::default())),
        // A profile that is not needed may be of any kind.
        Err(_) if options.s3.profile.is_none() && has_keys => Ok((name, Profile::default())),
        Err(reason) => Err(refuse(reason)),
    }
}

fn build_gcs(url: &Url, options: &OriginOptions, variables: &Variables) -> Result<Client, OriginError> {
    let bucket = bucket(url)?;
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("GOOGLE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_bucket_name(&bucket)
        .with_retry(no_retries())
        .with_http_connector(connector_for_reads(options, options.allow_http));
    for (key, value) in client_settings(options, options.allow_http) {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    let refuse = |error: object_store::Error| settings(url, error.to_string());
    let store = Arc::new(builder.clone().build().map_err(refuse)?);
    builder = builder.with_credentials(Arc::clone(store.credentials()));
    builder = builder.with_http_connector(connector_for_changes(options, options.allow_http));
    for (key, value) in settings_for_changes(options) {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    let writer = Some(Writer::new(builder.build().map_err(refuse)?, u64::MAX));
    let setting = Setting {
        endpoint: "https://storage.googleapis.com".to_owned(),
        bucket: format!("bucket `{bucket}`"),
        region: None,
        credentials: Some(
            "the environment (GOOGLE_APPLICATION_CREDENTIALS) or this machine's service account".to_owned(),
        ),
    };
    Ok(Client {
        flavor: Flavor::S3,
        store: store.clone(),
        pages: Some(store),
        setting,
        writer,
        asking: None,
        prefix: prefix(url)?,
    })
}

fn build_azure(url: &Url, options: &OriginOptions, variables: &Variables) -> Result<Client, OriginError> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_url(url.as_str())
        .with_retry(no_retries())
        .with_http_connector(connector_for_reads(options, options.allow_http));
    for (key, value) in client_settings(options, options.allow_http) {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    let refuse = |error: object_store::Error| settings(url, error.to_string());
    let store = Arc::new(builder.clone().build().map_err(refuse)?);
    builder = builder.with_credentials(Arc::clone(store.credentials()));
    builder = builder.with_http_connector(connector_for_changes(options, options.allow_http));
    for (key, value) in settings_for_changes(options) {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    let writer = Some(Writer::new(builder.build().map_err(refuse)?, u64::MAX));
    let container = if url.username().is_empty() { bucket(url)? } else { url.username().to_owned() };
    let setting = Setting {
        endpoint: "Azure Blob Storage".to_owned(),
        bucket: format!("container `{container}`"),
        region: None,
        credentials: Some(
            "the environment (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY …) or this machine's identity"
                .to_owned(),
        ),
    };
    Ok(Client {
        flavor: Flavor::Azure,
        store: store.clone(),
        pages: Some(store),
        setting,
        writer,
        asking: None,
        prefix: prefix(url)?,
    })
}

fn build_http(url: &Url, options: &OriginOptions) -> Result<Client, OriginError> {
    // Here the URL names the server: whoever chose the one chose the other.
    let options = &OriginOptions { chosen_by: options.chosen_by.with_server(), ..options.clone() };
    guard::check_server(url, url, options)?;
    let plain_allowed = is_plain_http_allowed(url, url.as_str(), options)?;
    let mut builder = HttpBuilder::new()
        .with_url(url.as_str())
        .with_retry(no_retries())
        .with_http_connector(connector_for_reads(options, plain_allowed));
    for (key, value) in client_settings(options, plain_allowed) {
        builder = builder.with_config(key, value);
    }
    let store = Arc::new(builder.build().map_err(|error| settings(url, error.to_string()))?);
    let host = url.host_str().unwrap_or_default();
    let setting =
        Setting { endpoint: host.to_owned(), bucket: format!("site `{host}`"), region: None, credentials: None };
    let (writer, asking, prefix) = (None, None, String::new());
    Ok(Client { flavor: Flavor::Http, store, pages: None, setting, writer, asking, prefix })
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// The connections of the client that reads.
fn connector_for_reads(options: &OriginOptions, plain_allowed: bool) -> ObservingConnector {
    ObservingConnector::for_reads(guard::connector(options, limits_of_reads(options), plain_allowed))
}

/// The same of S3, where bodies of objects are read in place, unless somebody asked for connections as only the client makes them.
fn connector_for_s3(options: &OriginOptions, variables: &Variables, plain: bool, tls: bool) -> ObservingConnector {
    let limits = limits_of_reads(options);
    let others = guard::connector(options, limits, plain);
    if !options.in_place || variables.iter().any(asks_for_other_connections) {
        return ObservingConnector::for_reads(others);
    }
    let settings = Settings {
        plain,
        tls,
        resolver: guard::resolver(options),
        connect_timeout: options.connect_timeout,
        silence: limits.silence,
        idle_connections: options.max_concurrency,
    };
    ObservingConnector::for_reads(Box::new(InPlaceConnector::new(others, settings)))
}

/// Whether a variable asks for a proxy, for other certificates or for anything else that the client knows of connections, and that
/// [`client_settings`] do not say themselves.
fn asks_for_other_connections((name, value): (&String, &String)) -> bool {
    use ClientConfigKey::{AllowHttp, ConnectTimeout, PoolMaxIdlePerHost, ReadTimeout, Timeout};
    let name = name.to_ascii_lowercase();
    if value.is_empty() || !name.starts_with("aws_") {
        return !value.is_empty() && matches!(&*name, "http_proxy" | "https_proxy" | "all_proxy");
    }
    match name.parse::<AmazonS3ConfigKey>() {
        Ok(AmazonS3ConfigKey::Client(key)) => {
            !matches!(key, AllowHttp | ConnectTimeout | PoolMaxIdlePerHost | ReadTimeout | Timeout)
        }
        _ => false,
    }
}

/// The connections of the client that makes changes.
fn connector_for_changes(options: &OriginOptions, plain_allowed: bool) -> ObservingConnector {
    ObservingConnector::for_changes(guard::connector(options, limits_of_changes(options), plain_allowed))
}

fn limits_of_reads(options: &OriginOptions) -> Limits {
    // Ours ends an attempt first; this one is for requests for credentials.
    Limits { silence: options.stall_timeout, request: options.request_timeout + options.connect_timeout }
}

/// What is different for changes: only our own time limits hold.
fn limits_of_changes(options: &OriginOptions) -> Limits {
    let longest = options.request_timeout + options.connect_timeout + AT_WORK;
    Limits { silence: longest, request: longest }
}

fn client_settings(options: &OriginOptions, plain_allowed: bool) -> [(ClientConfigKey, String); 5] {
    let [silence, request] = time_limits(limits_of_reads(options));
    [
        (ClientConfigKey::AllowHttp, plain_allowed.to_string()),
        (ClientConfigKey::ConnectTimeout, millis(options.connect_timeout)),
        silence,
        request,
        (ClientConfigKey::PoolMaxIdlePerHost, options.max_concurrency.to_string()),
    ]
}

fn settings_for_changes(options: &OriginOptions) -> [(ClientConfigKey, String); 2] {
    time_limits(limits_of_changes(options))
}

fn time_limits(limits: Limits) -> [(ClientConfigKey, String); 2] {
    [(ClientConfigKey::ReadTimeout, millis(limits.silence)), (ClientConfigKey::Timeout, millis(limits.request))]
}

fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis().max(1))
}

/// Plain http needs leave, except to this machine itself.
fn is_plain_http_allowed(url: &Url, endpoint: &str, options: &OriginOptions) -> Result<bool, OriginError> {
    let parsed = Url::parse(endpoint).map_err(|error| settings(url, format!("endpoint `{endpoint}`: {error}")))?;
    let is_loopback = match parsed.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    };
    match parsed.scheme() {
        "https" => Ok(options.allow_http),
        "http" if options.allow_http || is_loopback => Ok(true),
        "http" => Err(OriginError::PlainHttp { url: url.to_string(), endpoint: endpoint.to_owned() }),
        other => Err(settings(url, format!("endpoint `{endpoint}`: `{other}` is not http or https"))),
    }
}

fn bucket(url: &Url) -> Result<String, OriginError> {
    match url.host_str() {
        Some(bucket) if !bucket.is_empty() => Ok(bucket.to_owned()),
        _ => Err(OriginError::Url { url: url.to_string(), reason: "it names no bucket".to_owned() }),
    }
}

/// The path of the URL, percent-decoded, as the prefix of all keys.
fn prefix(url: &Url) -> Result<String, OriginError> {
    let refuse = |reason: &str| OriginError::Url { url: url.to_string(), reason: reason.to_owned() };
    let path = url.path().trim_matches('/');
    let path = object_store::path::Path::from_url_path(path).map_err(|error| refuse(&error.to_string()))?;
    if path.as_ref().is_empty() { Ok(String::new()) } else { Ok(format!("{path}/")) }
}

fn settings(url: &Url, reason: String) -> OriginError {
    OriginError::Settings { url: url.to_string(), reason }
}

#[cfg(test)]
mod tests;
