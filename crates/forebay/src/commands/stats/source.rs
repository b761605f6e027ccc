//! Where the counters come from: the process of a mount, a process that serves metrics, or workers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use forebay_client::Client;
use serde_json::Value;

use crate::commands::fs::target::{Targets, WorkersArgs};
use crate::control;
use crate::exit::{Exit, Fault};

/// The counters of a mount, as a file in it.
const STATS_FILE: &str = ".stats.json";
/// How long a process may take to answer over HTTP.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What reports.
pub(super) enum Source {
    /// A mount: through the socket of its process, or, where that is out of reach as in a container, through the mount. The
    /// client is of its workers.
    Mount { mountpoint: PathBuf, control: Option<PathBuf>, targets: Targets, workers: Option<Client> },
    /// `http://HOST:PORT/stats`.
    Web { address: String, http: reqwest::Client },
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
            let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).no_proxy().build()?;
            return Ok(Self::Web { address: target.to_owned(), http });
        }
        match targets.client_of(Some(path)).await {
            Ok(workers) => {
                let control = targets.control_of(Some(path))?;
                Ok(Self::Mount { mountpoint: path.to_owned(), control, targets, workers: Some(workers) })
            }
            Err(_) if path.join(STATS_FILE).is_file() => {
                Ok(Self::Mount { mountpoint: path.to_owned(), control: None, targets, workers: None })
            }
            Err(error) => Err(error),
        }
    }

    /// The reports that say together what is happening.
    ///
    /// # Errors
    /// When none can be had.
    pub(super) async fn now(&self) -> anyhow::Result<Vec<(String, Value)>> {
        match self {
            Self::Mount { mountpoint, control, .. } => {
                Ok(vec![(mountpoint.display().to_string(), of_mount(mountpoint, control.as_deref()).await?)])
            }
            Self::Web { address, http } => Ok(vec![(address.clone(), of_web(address, http).await?)]),
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

    /// All reports that there are: of a mount, those of its workers and then its own.
    pub(super) async fn all(&self) -> Vec<(String, anyhow::Result<Value>)> {
        match self {
            Self::Mount { mountpoint, control, workers, .. } => {
                let mut reports = match workers {
                    Some(client) => of_workers(client).await,
                    None => Vec::new(),
                };
                let own = of_mount(mountpoint, control.as_deref()).await;
                reports.push((mountpoint.display().to_string(), own));
                reports
            }
            Self::Web { address, http } => vec![(address.clone(), of_web(address, http).await)],
            Self::Workers { client, .. } => of_workers(client).await,
        }
    }

    /// Ends the links to workers.
    pub(super) async fn close(self) {
        match self {
            Self::Mount { targets, .. } | Self::Workers { targets, .. } => targets.close().await,
            Self::Web { .. } => {}
        }
    }
}

/// `HOST:PORT`; `[::1]:80` too.
fn is_address(target: &str) -> bool {
    target.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = !host.contains(['/', ':']) || (host.starts_with('[') && host.ends_with(']'));
        !host.is_empty() && plain && port.parse::<u16>().is_ok()
    })
}

async fn of_mount(mountpoint: &Path, control: Option<&Path>) -> anyhow::Result<Value> {
    if let Some(control) = control {
        return control::ask(control).await;
    }
    let file = mountpoint.join(STATS_FILE);
    let text = tokio::fs::read(&file).await.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

async fn of_web(address: &str, http: &reqwest::Client) -> anyhow::Result<Value> {
    let url = format!("http://{address}/stats");
    let answer = async { http.get(&url).send().await?.error_for_status()?.json().await };
    answer.await.with_context(|| format!("{url} does not answer"))
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
