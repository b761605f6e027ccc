//! Where the counters come from: the process of a mount, a process that serves metrics, or workers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_client::Client;
use serde_json::Value;

use crate::commands::fs::target::{Targets, WorkersArgs, mount_of};
use crate::exit::{Exit, Fault};
use forebay_node::control;
use forebay_node::security::Security;
use forebay_node::state::{Role, RunState};

/// The counters of a mount, as a file in it.
const STATS_FILE: &str = ".stats.json";
/// How long a process may take to answer over HTTP.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What reports.
#[expect(clippy::large_enum_variant, reason = "a command has one")]
pub(super) enum Source {
    /// A mount: through the socket of its process, or, where that is out of reach as in a container, through the mount. With the
    /// run state of its process there is a client of its workers.
    Mount { mountpoint: PathBuf, found: Option<(RunState, Client)>, targets: Targets },
    /// `http://HOST:PORT/stats`, or `https://`; `security` is what is proved there, renewed as long as it is here.
    Web { address: String, scheme: &'static str, http: reqwest::Client, security: Option<Arc<Security>> },
    /// Workers, asked over TCP.
    Workers { client: Client, targets: Targets },
}

impl Source {
    /// What `target` means.
    ///
    /// # Errors
    /// When it is no mount and no address, and no workers are named.
    pub(super) async fn find(target: Option<&str>, args: &WorkersArgs) -> anyhow::Result<Self> {
        let mut targets = Targets::new(args)?;
        let Some(target) = target else {
            let client = targets.client_of(None).await?;
            return Ok(Self::Workers { client, targets });
        };
        if !args.workers.is_empty() {
            let next = "give either; `--workers` asks the workers alone";
            return Err(Fault::new(Exit::Usage, format!("both {target} and --workers are named"), next).into());
        }
        let path = Path::new(target);
        if is_address(target) && !path.exists() {
            let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).no_proxy();
            // Whoever counts, of whatever role.
            let security = Security::of_client(&targets.loaded().config, false)?;
            let proved = security.as_deref().map(|own| own.http_client(None)).transpose()?.flatten();
            let (scheme, http) = match proved {
                Some(proved) => ("https", http.tls_backend_preconfigured(proved)),
                None => ("http", http),
            };
            return Ok(Self::Web { address: target.to_owned(), scheme, http: http.build()?, security });
        }
        let mountpoint = path.to_owned();
        match mount_of(path) {
            Ok((state, _)) => {
                let client = targets.client_of_mount(&state).await?;
                Ok(Self::Mount { mountpoint, found: Some((state, client)), targets })
            }
            Err(_) if path.join(STATS_FILE).is_file() => Ok(Self::Mount { mountpoint, found: None, targets }),
            Err(error) => Err(error),
        }
    }

    /// The reports that say together what is happening.
    ///
    /// # Errors
    /// When none can be had.
    pub(super) async fn now(&self) -> anyhow::Result<Vec<(String, Value)>> {
        match self {
            Self::Mount { mountpoint, found, .. } => {
                let report = of_mount(mountpoint, found.as_ref().map(|(state, _)| state)).await?;
                Ok(vec![(mountpoint.display().to_string(), report)])
            }
            Self::Web { address, scheme, http, .. } => {
                Ok(vec![(address.clone(), of_web(&format!("{scheme}://{address}/stats"), http).await?)])
            }
            Self::Workers { client, .. } => {
                let (mut reports, mut failed) = (Vec::new(), None);
                for (worker, report) in of_workers(client).await {
                    match report {
                        Ok(report) => reports.push((worker, report)),
                        Err(error) => failed = Some(error),
                    }
                }
                // One that is down does not hide the others.
                match failed {
                    Some(error) if reports.is_empty() => Err(error),
                    _ => Ok(reports),
                }
            }
        }
    }

    /// All reports that there are: of a mount, those of its workers and then its own. What is of a worker and a mount in one process
    /// is in one of theirs.
    pub(super) async fn all(&self) -> Vec<(String, anyhow::Result<Value>)> {
        match self {
            Self::Mount { mountpoint, found, .. } => {
                let (mut reports, state) = match found {
                    Some((state, client)) => (of_workers(client).await, Some(state)),
                    None => (Vec::new(), None),
                };
                let mut own = of_mount(mountpoint, state).await;
                let is_here = |worker: &str| match state {
                    Some(state) if state.role == Role::Up => true,
                    Some(state) => state.node.as_deref() == Some(worker),
                    None => false,
                };
                for (_, worker) in reports.iter_mut().filter(|(worker, _)| is_here(worker)) {
                    told_once(worker, &mut own);
                }
                reports.push((mountpoint.display().to_string(), own));
                reports
            }
            Self::Web { address, scheme, http, .. } => {
                vec![(address.clone(), of_web(&format!("{scheme}://{address}/stats"), http).await)]
            }
            Self::Workers { client, .. } => of_workers(client).await,
        }
    }

    /// Ends the links to workers.
    pub(super) async fn close(self) {
        match self {
            Self::Mount { targets, .. } | Self::Workers { targets, .. } => targets.close().await,
            Self::Web { security, .. } => {
                if let Some(security) = security {
                    security.close().await;
                }
            }
        }
    }
}

/// Leaves the worker in a mount's process to its own report, and the process to the mount's.
fn told_once(worker: &mut anyhow::Result<Value>, mount: &mut anyhow::Result<Value>) {
    if let (Ok(Value::Object(worker)), Ok(Value::Object(mount))) = (worker, mount) {
        worker.remove("process");
        mount.remove("node");
    }
}

/// `HOST:PORT`; `[::1]:80` too.
fn is_address(target: &str) -> bool {
    target.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = !host.contains(['/', ':']) || (host.starts_with('[') && host.ends_with(']'));
        !host.is_empty() && plain && port.parse::<u16>().is_ok()
    })
}

async fn of_mount(mountpoint: &Path, state: Option<&RunState>) -> anyhow::Result<Value> {
    if let Some(control) = state.and_then(|state| state.control.as_ref()) {
        match control::ask(control).await {
            // That of another user's `forebay up`: who may read its mount may read this there, too.
            Err(error) if is_denied(&error) => {}
            answered => return answered,
        }
    }
    let file = mountpoint.join(STATS_FILE);
    let text = tokio::fs::read(&file).await.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn is_denied(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
}

async fn of_web(url: &str, http: &reqwest::Client) -> anyhow::Result<Value> {
    let answer = async { http.get(url).send().await?.error_for_status()?.json().await };
    answer.await.map_err(|error| {
        let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let cause = causes.by_ref().last().map(ToString::to_string).unwrap_or_default();
        if error.status() == Some(reqwest::StatusCode::MISDIRECTED_REQUEST) {
            let next = "give its IP address, or add the name to `network.http.hosts` of that process";
            return Fault::new(Exit::Denied, format!("what answers at {url} has another name"), next).into();
        }
        if matches!(error.status(), Some(reqwest::StatusCode::UNAUTHORIZED | reqwest::StatusCode::FORBIDDEN)) {
            let next = "ask with the certificate of an admin, or of one that collects metrics";
            return Fault::new(Exit::Denied, format!("{url} does not show its counters to this user"), next).into();
        }
        if error.status() == Some(reqwest::StatusCode::BAD_REQUEST) {
            let next = "set `security.mode` as it is set there";
            return Fault::new(Exit::Usage, format!("what answers at {url} speaks TLS only"), next).into();
        }
        // Another program listens there, or an old version.
        if error.is_status() || error.is_decode() {
            let next = "give the address that a worker's or a mount's log names with `/metrics`";
            return Fault::new(Exit::NotFound, format!("{url} has no counters of Forebay: {cause}"), next).into();
        }
        let next = "check that the process runs and serves metrics there, as its log says, then try again";
        Fault::new(Exit::Unavailable, format!("{url} does not answer: {cause}"), next).into()
    })
}

async fn of_workers(client: &Client) -> Vec<(String, anyhow::Result<Value>)> {
    let mut reports = Vec::new();
    for (worker, answer) in client.worker_stats().await {
        let report = match answer {
            Ok(text) => serde_json::from_str(&text).context("the worker's counters are not JSON"),
            Err(failure) => Err(failure.context(&worker).into()),
        };
        reports.push((worker.to_string(), report));
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_path() {
        assert!(is_address("node1:29998") && is_address("[::1]:80") && is_address("10.0.0.1:1"));
        for path in ["/mnt/data", "data", "/mnt/a:1", "node1:", ":80", "node1:http", "::1:80"] {
            assert!(!is_address(path), "{path}");
        }
    }
}
