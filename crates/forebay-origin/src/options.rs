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
    /// Read the bodies of S3's answers from the connection right into the reader's memory, rather than through the buffers of an HTTP
    /// library.
    pub in_place: bool,
    /// S3 only.
    pub s3: S3Options,
    /// Take `http://` endpoints. Without it only `https://` ones are taken.
    pub allow_http: bool,
    /// Who chose all this, and so how far it is believed.
    pub chosen_by: ChosenBy,
}

/// Who chose an origin, and so how far its URL and its options are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChosenBy {
    /// Whoever configures this process: all is believed.
    #[default]
    Operator,
    /// A record that anyone may have written, and that names no server: it is the operator's, or the cloud's, and gets
    /// the credentials of this process. The record's names are names and nothing more.
    Record,
    /// Such a record, which names the server, too. The server gets no credentials but [`S3Options::keys`], and nothing
    /// of this machine's environment; no redirect is followed, and no proxy asked.
    RecordWithServer {
        /// The operator allows the server though it may be this machine: requests may go to a loopback address, or to
        /// the address in the URL, whichever that is. Otherwise no address is taken that leads to this machine or to
        /// the metadata of its cloud.
        may_be_local: bool,
    },
}

impl ChosenBy {
    /// The same for an origin whose URL names the server. Nobody has said that a record's may be this machine.
    pub(crate) fn with_server(self) -> Self {
        match self {
            Self::Record => Self::RecordWithServer { may_be_local: false },
            Self::Operator | Self::RecordWithServer { .. } => self,
        }
    }
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
            max_concurrency: 256,
            request_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            retry_deadline: Duration::from_secs(60),
            max_attempts: 12,
            in_place: true,
            s3: S3Options::default(),
            allow_http: false,
            chosen_by: ChosenBy::Operator,
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
    /// A record names a server and no credentials for it. Those of this machine are not for a server that anyone may
    /// have named.
    #[error(
        "`{url}`: there are no credentials for `{endpoint}`, and those of this machine are not for a server that a \
         mount names; give the mount the options `s3.access_key_id` and `s3.secret_access_key`, or `s3.anonymous=true`"
    )]
    NoKeys {
        /// What was given.
        url: String,
        /// The server.
        endpoint: String,
    },
    /// A record's bucket or region that could be more than a name.
    #[error(
        "`{url}`: `{name}` is not the name of a {what}; it has letters, digits, `-` and `_`, and that of a bucket dots \
         between them"
    )]
    Name {
        /// What was given.
        url: String,
        /// What it should be the name of.
        what: &'static str,
        /// What it is.
        name: String,
    },
    /// A server, named by a record, at an address that leads back to this machine.
    #[error(
        "`{url}`: {address} is {what}, which is not for mounts of the cluster; choose another server, or name this \
         very address in `cluster.mounts.endpoints` on the workers"
    )]
    Address {
        /// What was given.
        url: String,
        /// The address.
        address: std::net::IpAddr,
        /// What is known of it: `a loopback address`.
        what: &'static str,
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
