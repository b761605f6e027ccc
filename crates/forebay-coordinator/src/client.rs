//! A client of the REST interface, for the command line.
//!
//! Any coordinator will do: what is the leader's, it passes on. A redirect is not followed: whoever answered with one is
//! no coordinator of this release. Every request has a deadline, and a refusal is told in the words of the coordinator
//! that refused. Over TLS both ends prove who they are, and nothing is sent to who is no coordinator.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use forebay_types::FsPath;
use reqwest::{Method, RequestBuilder, StatusCode};
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    ClusterStatus, Drain, ErrorBody, JobList, Mount, MountList, NO_LEADER, Policy, PolicyList, Submitted, Version,
    WorkerStats,
};
use crate::jobs::{JobKind, JobReport, JobSpec};
use crate::series::{Plot, Window};

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a request may take: longer than the coordinator gives itself, so that it says what it waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);
/// Bytes of an answer, at most: a thousand jobs, or a day of plots of hundreds of workers.
const MAX_ANSWER: usize = 64 << 20;

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Not an address.
    #[error("`{0}` is not the address of a coordinator: write HOST:PORT, as in `coordinator-0:19999`")]
    Address(String),
    /// It is another user's.
    #[error("the coordinator at {address} belongs to another user: run the command as that user, or as root")]
    Denied {
        /// Where it is.
        address: String,
    },
    /// No coordinator answers there.
    #[error(
        "the coordinator at {address} cannot be reached ({reason}): check the address, and that `forebay coordinator` \
         runs there"
    )]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// The cause.
        reason: String,
    },
    /// It took too long.
    #[error(
        "the coordinator at {address} did not answer within {within:?}: look at http://{address}/readyz, then try again"
    )]
    TimedOut {
        /// Where it is.
        address: String,
        /// How long it was given.
        within: Duration,
    },
    /// It said no.
    #[error("{message}: {remedy}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// `NOT_FOUND` and so on.
        code: String,
        /// What went wrong.
        message: String,
        /// What to do next.
        remedy: String,
    },
    /// What answers is no coordinator, or one of another release.
    #[error("what answers at {address} is not understood ({reason}): check that it is a coordinator of this release")]
    NotUnderstood {
        /// Where it is.
        address: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

impl ApiError {
    /// Whether another try may succeed without anyone's changing anything.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } => true,
            Self::Refused { status, .. } => matches!(status, 429 | 503 | 504),
            Self::Address(_) | Self::Denied { .. } | Self::NotUnderstood { .. } => false,
        }
    }

    /// Whether no coordinator leads now. One will: the state store elects it.
    #[must_use]
    pub fn is_without_leader(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == NO_LEADER)
    }

    /// Whether what was asked for is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

/// A client of one coordinator. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiClient {
    address: String,
    scheme: &'static str,
    /// What its URLs name as the host.
    host: String,
    http: reqwest::Client,
}

impl ApiClient {
    /// A client of the coordinator at `HOST:PORT`, or at a Unix socket, `unix:PATH`, in plain text. Nothing is asked yet.
    ///
    /// # Errors
    /// [`ApiError::Address`].
    pub fn new(address: &str) -> Result<Self, ApiError> {
        Self::from_source(address, None, None)
    }

    /// The same, connecting from the address `source` of this machine, if one is given, and over TLS if `security` says who is to be
    /// believed there. Neither is asked of a Unix socket: nothing leaves the machine, and the kernel says who is there.
    ///
    /// # Errors
    /// [`ApiError::Address`].
    pub fn from_source(
        address: &str,
        source: Option<IpAddr>,
        security: Option<ClientConfig>,
    ) -> Result<Self, ApiError> {
        let bad = || ApiError::Address(address.to_owned());
        // A proxy of the environment is for the world outside, not for the cluster.
        let http = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_WITHIN).timeout(ANSWER_WITHIN);
        let http = http.redirect(reqwest::redirect::Policy::none());
        if let Some(path) = forebay_private::socket_of(address) {
            let http = http.unix_socket(path).build().map_err(|_| bad())?;
            let (address, host) = (address.to_owned(), "localhost".to_owned());
            return Ok(Self { address, scheme: "http", host, http });
        }
        let url: reqwest::Url = format!("http://{address}/").parse().map_err(|_| bad())?;
        let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        if !is_bare || url.host_str().is_none_or(str::is_empty) || url.port_or_known_default().is_none() {
            return Err(bad());
        }
        let http = http.local_address(source);
        let (scheme, http) = match security {
            Some(config) => ("https", http.tls_backend_preconfigured(config)),
            None => ("http", http),
        };
        let http = http.build().map_err(|_| bad())?;
        Ok(Self { address: address.to_owned(), scheme, host: address.to_owned(), http })
    }

    /// Submits a job, or finds the one that is under way.
    ///
    /// # Errors
    /// Any [`ApiError`]; so for all methods.
    pub async fn submit(&self, spec: &JobSpec) -> Result<Submitted, ApiError> {
        self.json(self.request(Method::POST, &["jobs"]).json(spec)).await
    }

    /// The jobs of this kind for this path, where given, the newest first.
    pub async fn jobs(&self, path: Option<&FsPath>, kind: Option<JobKind>) -> Result<Vec<JobReport>, ApiError> {
        let mut query = Vec::new();
        query.extend(path.map(|path| ("path", path.to_string())));
        query.extend(kind.map(|kind| ("kind", kind.as_str().to_owned())));
        let list: JobList = self.json(self.request_with(Method::GET, &["jobs"], &query)).await?;
        Ok(list.jobs)
    }

    /// The job of the kind of `spec`, for its path or its index file, that was submitted last, whether it has ended or not.
    pub async fn latest_job(&self, spec: &JobSpec) -> Result<Option<JobReport>, ApiError> {
        let jobs = self.jobs(Some(spec.path()), Some(spec.kind())).await?;
        // A path may be loaded as the file that it is, too.
        Ok(jobs.into_iter().find(|job| job.spec.index_file() == spec.index_file()))
    }

    /// How far a job is.
    pub async fn job(&self, id: &str) -> Result<JobReport, ApiError> {
        self.json(self.request(Method::GET, &["jobs", id])).await
    }

    /// Stops a job.
    pub async fn stop(&self, id: &str) -> Result<JobReport, ApiError> {
        self.json(self.request(Method::POST, &["jobs", id, "stop"]).json(&Empty {})).await
    }

    /// Mounts an origin.
    pub async fn add_mount(&self, mount: &Mount) -> Result<Mount, ApiError> {
        self.json(self.request(Method::POST, &["mounts"]).json(mount)).await
    }

    /// The mounts that the cluster agreed on, in the order of their paths.
    pub async fn mounts(&self) -> Result<Vec<Mount>, ApiError> {
        Ok(self.all_mounts().await?.mounts)
    }

    /// Those, and the ones that the coordinator knows of by itself.
    pub async fn all_mounts(&self) -> Result<MountList, ApiError> {
        self.json(self.request(Method::GET, &["mounts"])).await
    }

    /// Removes a mount.
    pub async fn remove_mount(&self, path: &FsPath) -> Result<(), ApiError> {
        self.done(self.request_with(Method::DELETE, &["mounts"], &[("path", path.to_string())])).await
    }

    /// Sets the policy of a path.
    pub async fn set_policy(&self, policy: &Policy) -> Result<Policy, ApiError> {
        self.json(self.request(Method::PUT, &["policies"]).json(policy)).await
    }

    /// The policies, in the order of their paths.
    pub async fn policies(&self) -> Result<Vec<Policy>, ApiError> {
        let list: PolicyList = self.json(self.request(Method::GET, &["policies"])).await?;
        Ok(list.policies)
    }

    /// Removes the policy of a path.
    pub async fn remove_policy(&self, path: &FsPath) -> Result<(), ApiError> {
        self.done(self.request_with(Method::DELETE, &["policies"], &[("path", path.to_string())])).await
    }

    /// The cluster as the coordinator sees it.
    pub async fn cluster(&self) -> Result<ClusterStatus, ApiError> {
        self.json(self.request(Method::GET, &["cluster"])).await
    }

    /// Asks a worker to leave.
    pub async fn drain(&self, worker: &str) -> Result<Drain, ApiError> {
        self.json(self.request(Method::PUT, &["cluster", "drains", worker]).json(&Empty {})).await
    }

    /// Takes a worker back.
    pub async fn undrain(&self, worker: &str) -> Result<(), ApiError> {
        self.done(self.request(Method::DELETE, &["cluster", "drains", worker])).await
    }

    /// What the workers count.
    pub async fn stats(&self) -> Result<WorkerStats, ApiError> {
        self.json(self.request(Method::GET, &["stats"])).await
    }

    /// Throughput and hit ratio over time.
    pub async fn series(&self, window: Window) -> Result<Plot, ApiError> {
        let window = match window {
            Window::Recent => "recent",
            Window::Day => "day",
        };
        self.json(self.request_with(Method::GET, &["series"], &[("window", window.to_owned())])).await
    }

    /// The release that the coordinator runs.
    pub async fn version(&self) -> Result<Version, ApiError> {
        self.json(self.request(Method::GET, &["version"])).await
    }

    fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        self.request_with(method, segments, &[])
    }

    fn request_with(&self, method: Method, segments: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        let mut url = String::new();
        for segment in segments {
            url.push('/');
            url.push_str(&forebay_state::encode_segment(segment));
        }
        let sep = |at: usize| if at == 0 { '?' } else { '&' };
        for (at, (name, value)) in query.iter().enumerate() {
            url.push_str(&format!("{}{name}={}", sep(at), forebay_state::encode_segment(value)));
        }
        self.http.request(method, format!("{}://{}/api/v1{url}", self.scheme, self.host))
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ApiError> {
        let body = self.answer(request).await?;
        serde_json::from_slice(&body).map_err(|error| self.not_understood(error.to_string()))
    }

    async fn done(&self, request: RequestBuilder) -> Result<(), ApiError> {
        self.answer(request).await.map(|_| ())
    }

    /// The body of a success.
    async fn answer(&self, request: RequestBuilder) -> Result<Vec<u8>, ApiError> {
        let mut response = request.send().await.map_err(|error| self.failed(&error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(self.not_understood(format!("more than {MAX_ANSWER} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return Ok(body);
        }
        Err(self.refused(status, &body))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ApiError {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) => ApiError::Refused {
                status: status.as_u16(),
                code: error.code,
                message: error.message,
                remedy: error.remedy,
            },
            // Not in a coordinator's words: a proxy before it says that it gets to none.
            Err(_) if matches!(status.as_u16(), 502..=504) => {
                ApiError::Unreachable { address: self.address.clone(), reason: format!("a proxy answers {status}") }
            }
            Err(_) => self.not_understood(format!("status {status}")),
        }
    }

    fn failed(&self, error: &reqwest::Error) -> ApiError {
        let address = self.address.clone();
        if error.is_timeout() && !error.is_connect() {
            return ApiError::TimedOut { address, within: ANSWER_WITHIN };
        }
        // The innermost cause says what the system said.
        let error: &(dyn std::error::Error + 'static) = error;
        let cause = std::iter::successors(Some(error), |cause| (*cause).source()).last().unwrap_or(error);
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if forebay_private::socket_of(&address).is_some() && cause.downcast_ref().is_some_and(is_denied) {
            return ApiError::Denied { address };
        }
        ApiError::Unreachable { address, reason: told(cause) }
    }

    fn not_understood(&self, reason: String) -> ApiError {
        ApiError::NotUnderstood { address: self.address.clone(), reason }
    }
}

/// What the innermost cause says; one of TLS, in our words.
fn told(cause: &(dyn std::error::Error + 'static)) -> String {
    match of_tls(cause) {
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS: `security.mode` has to be the same at both ends".to_owned()
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("it refuses the certificate of this command ({alert:?}), and its log says why")
        }
        Some(error) => forebay_identity::reason(error),
        None => cause.to_string(),
    }
}

/// The error of TLS that is in this one: errors of I/O, which do not name what they are made of as their source, may be made of it.
fn of_tls<'e>(mut cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    loop {
        if let Some(error) = cause.downcast_ref() {
            return Some(error);
        }
        cause = cause.downcast_ref::<std::io::Error>()?.get_ref()?;
    }
}

#[derive(Serialize)]
struct Empty {}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["localhost:19999", "[::1]:19999", "coordinator-0.forebay:80"] {
            assert!(ApiClient::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b:1", "host:1/path", "user@host:1", "host:99999", "http://host:1"] {
            assert!(ApiClient::new(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_coordinator_that_a_proxy_does_not_reach_is_away() {
        for (status, is_away) in [
            ("502 Bad Gateway", true),
            ("503 Service Unavailable", true),
            ("504 Gateway Timeout", true),
            ("500 Internal Server Error", false),
            ("404 Not Found", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = ApiClient::new(&listener.local_addr().unwrap().to_string()).unwrap();
            let proxy = std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                assert!(lines.take_while(|line| !line.is_empty()).count() > 0);
                write!(&stream, "HTTP/1.1 {status}\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>").unwrap();
            });
            let error = client.version().await.unwrap_err();
            proxy.join().unwrap();
            assert_eq!(error.is_unavailable(), is_away, "{error}");
            assert!(error.to_string().contains(status), "{error}");
        }
    }

    #[tokio::test]
    async fn nobody_there_is_told_with_the_address() {
        let error = ApiClient::new("127.0.0.1:1").unwrap().version().await.unwrap_err();
        assert!(error.is_unavailable());
        assert!(error.to_string().contains("127.0.0.1:1 cannot be reached"), "{error}");
    }
}
