//! What can be set about an origin, with the defaults, and why opening one can fail.

use forebay_types::S3Checksum;

use std::time::Duration;

/// How to reach an origin and how hard to try.
#[derive(Clone, Debug)]
pub struct OriginOptions {
    /// The most requests under way at once. The adaptive limit starts at half of it and never exceeds it.
    pub max_concurrency: usize,
    /// The longest that one attempt may take, from the request to the last byte of its answer.
    pub request_timeout: Duration,
    /// The longest silence within an attempt: no byte for so long and the attempt is given up.
    pub stall_timeout: Duration,
    /// The longest that opening a connection may take.
    pub connect_timeout: Duration,
    /// The longest that an operation may take with all its attempts and the waits between them.
    pub retry_deadline: Duration,
    /// The most attempts of one operation.
    pub max_attempts: u32,
    /// S3 only.
    pub s3: S3Options,
    /// Take `http://` endpoints. Without it only `https://` ones are taken.
    pub allow_http: bool,
}

/// What can be set about an S3 origin. What is `None` comes from the environment (`AWS_ENDPOINT_URL_S3`,
/// `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_PROFILE`, `AWS_ACCESS_KEY_ID` and so on), then from the
/// profile in `~/.aws`, then from the machine's role.
#[derive(Clone, Debug, Default)]
pub struct S3Options {
    /// The endpoint's URL, for servers that are not AWS.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
    /// The profile in `~/.aws/config` and `~/.aws/credentials`; a profile that is asked for here comes before the
    /// environment's keys.
    pub profile: Option<String>,
    /// `true`: the bucket is in the URL's path; `false`: in its host name. `None`: in the path with an endpoint of
    /// one's own, in the host name on AWS.
    pub path_style: Option<bool>,
    /// Send no credentials: for public buckets.
    pub anonymous: bool,
    /// What the server checks of uploads.
    pub checksum: S3Checksum,
    /// Keys that come before all others.
    pub keys: Option<S3Keys>,
}

/// Keys of an S3 account.
#[derive(Clone)]
pub struct S3Keys {
    /// Which account, or which of its users.
    pub access_key_id: String,
    /// What signs requests.
    pub secret_access_key: String,
    /// Goes with keys that expire.
    pub session_token: Option<String>,
    /// Where they are from, for people: `the options of the mount /s3`.
    pub source: String,
}

impl std::fmt::Debug for S3Keys {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Keys").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Attempts of a probe: about 3 s of them if the origin refuses connections.
const PROBE_ATTEMPTS: u32 = 6;

impl OriginOptions {
    /// The same for a first question when something starts: the user who starts it wants to know soon.
    #[must_use]
    pub fn for_a_probe(self) -> Self {
        Self { max_attempts: self.max_attempts.min(PROBE_ATTEMPTS), ..self }
    }
}

impl Default for OriginOptions {
    fn default() -> Self {
        Self {
            max_concurrency: 64,
            request_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            retry_deadline: Duration::from_secs(60),
            max_attempts: 12,
            s3: S3Options::default(),
            allow_http: false,
        }
    }
}

/// Why an origin could not be opened. Opening asks the origin nothing: these are faults of the URL and the settings.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// Not a URL.
    #[error("`{url}` is not an origin: {reason}; write a URL as in `s3://bucket/prefix` or `file:///directory`")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A scheme that no origin has.
    #[error("`{url}`: no origin has the scheme `{scheme}`; there are s3, gs, az, abfs, http, https and file")]
    Scheme {
        /// What was given.
        url: String,
        /// Its scheme.
        scheme: String,
    },
    /// A `file://` origin whose directory cannot be used.
    #[error("`{url}`: {source}; a file origin is an existing directory that this process may read")]
    Directory {
        /// What was given.
        url: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A plain-text endpoint without leave.
    #[error("`{url}`: the endpoint `{endpoint}` is plain http; use https, or allow plain text with `allow_http`")]
    PlainHttp {
        /// What was given.
        url: String,
        /// The endpoint.
        endpoint: String,
    },
    /// A profile that is missing or of a kind that is not read.
    #[error("`{url}`: aws profile `{profile}`: {reason}")]
    Profile {
        /// What was given.
        url: String,
        /// The profile's name.
        profile: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Settings that the object store's client refuses.
    #[error("`{url}`: {reason}")]
    Settings {
        /// What was given.
        url: String,
        /// What the client said.
        reason: String,
    },
}
