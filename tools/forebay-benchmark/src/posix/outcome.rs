//! What fio said, from its JSON.
//!
//! A run on this machine answers with `jobs[]`, one of `--client` with `client_stats[]`. Either may have several entries: fio makes
//! one of all jobs in a group, and one for each client. At the end of `client_stats[]` it puts `All clients`, a sum of the others
//! which is left out here, and of which there is none for one client.
//!
//! Rates are added up; means are weighted with the number of operations; percentiles are of all operations together (`latency`).
//!
//! What must not pass for a result:
//! * a job that failed: fio still counts what it read before;
//! * a client that could not be reached: fio reports the others as if there were no more;
//! * nothing read at all.

mod latency;

use serde::Deserialize;

use self::latency::{Completion, total};
use crate::record::{Client, Cpu, Latency, Outcome};

/// The name of fio's own sum over clients.
const ALL_CLIENTS: &str = "All clients";

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutcomeError {
    /// It is not JSON: fio refused the job, or is not fio.
    #[error("fio gave no result: {0}")]
    NoResult(String),
    /// A job ended with an error.
    #[error("fio's job {job} failed{}: {reason}", .host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default())]
    Job {
        /// Its name.
        job: String,
        /// The client, when there are several.
        host: Option<String>,
        /// What the number of its error means.
        reason: String,
    },
    /// Some clients are not in the result.
    #[error(
        "{answered} of {asked} clients answered; start `fio --server` on all of them, and use addresses that this machine reaches"
    )]
    Clients {
        /// How many there are.
        asked: u32,
        /// How many have a result.
        answered: u32,
    },
    /// No operation was counted.
    #[error("fio read nothing")]
    NothingRead,
}

/// What fio's standard output says, whatever stands before and after the JSON. `clients` is how many machines were asked, or 1 when
/// fio read on this one. [`Cpu::machine`] and [`Outcome::origin_bytes`] are not fio's to know, and left out; so is [`Cpu::fio`] when other machines read.
///
/// # Errors
/// [`OutcomeError`].
pub fn outcome(output: &[u8], clients: u32) -> Result<Outcome, OutcomeError> {
    let report = report(output)?;
    let local = report.client_stats.is_none();
    let entries = report.client_stats.or(report.jobs).unwrap_or_default();
    let entries: Vec<&Entry> = entries.iter().filter(|entry| local || entry.jobname != ALL_CLIENTS).collect();
    if let Some(failed) = entries.iter().find(|entry| entry.error != 0) {
        let reason = std::io::Error::from_raw_os_error(failed.error).to_string();
        return Err(OutcomeError::Job { job: failed.jobname.clone(), host: failed.hostname.clone(), reason });
    }
    let by_client = if local { Vec::new() } else { by_client(&entries) };
    if !local && by_client.len() as u64 != u64::from(clients) {
        let answered = u32::try_from(by_client.len()).unwrap_or(u32::MAX);
        return Err(OutcomeError::Clients { asked: clients, answered });
    }
    let operations = total(entries.iter().map(|entry| entry.read.total_ios));
    if operations == 0 {
        return Err(OutcomeError::NothingRead);
    }
    let fio = if local { entries.iter().map(|entry| entry.processor_percent()).sum() } else { 0.0 };
    Ok(Outcome {
        bytes_per_second: entries.iter().map(|entry| entry.read.bw_bytes).sum(),
        operations_per_second: entries.iter().map(|entry| entry.read.iops).sum(),
        operations,
        bytes: total(entries.iter().map(|entry| entry.read.io_bytes)),
        seconds: entries.iter().map(|entry| entry.read.runtime).fold(0.0, f64::max) / 1e3,
        latency: latency_of(&entries),
        cpu: Cpu { fio, ..Cpu::default() },
        origin_bytes: None,
        clients: by_client,
    })
}

/// Notes and warnings are printed before the JSON, and may have braces in them: it begins with one that has a line for itself.
fn report(output: &[u8]) -> Result<Report, OutcomeError> {
    let text = String::from_utf8_lossy(output);
    let starts = text
        .match_indices('{')
        .map(|(at, _)| at)
        .filter(|at| at.checked_sub(1).is_none_or(|before| text.as_bytes()[before] == b'\n'));
    let mut reports = starts.filter_map(|at| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Report>();
        values.next()?.ok().filter(|report| report.jobs.is_some() || report.client_stats.is_some())
    });
    reports.next().ok_or_else(|| OutcomeError::NoResult(first_words(&text)))
}

/// The first line that says something, cut to what fits an error.
fn first_words(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing");
    line.chars().take(200).collect()
}

#[derive(Debug, Deserialize)]
struct Report {
    jobs: Option<Vec<Entry>>,
    client_stats: Option<Vec<Entry>>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    jobname: String,
    error: i32,
    hostname: Option<String>,
    port: Option<u16>,
    #[serde(default)]
    job_runtime: f64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
    read: Direction,
}

impl Entry {
    /// Percent of one processor. fio gives the mean of a group's jobs, over the sum of their times.
    fn processor_percent(&self) -> f64 {
        let jobs_at_once = if self.read.runtime > 0.0 { self.job_runtime / self.read.runtime } else { 1.0 };
        (self.usr_cpu + self.sys_cpu) * jobs_at_once
    }
}

#[derive(Debug, Deserialize)]
struct Direction {
    io_bytes: u64,
    bw_bytes: f64,
    iops: f64,
    /// Milliseconds.
    runtime: f64,
    total_ios: u64,
    clat_ns: Completion,
}

/// In microseconds.
fn latency_of(entries: &[&Entry]) -> Latency {
    let completions: Vec<_> = entries.iter().map(|entry| (&entry.read.clat_ns, entry.read.total_ios)).collect();
    latency::latency(&completions)
}

/// What each client did, in the order of their names. A name that several servers have (of one machine, on ports of their own) is
/// followed by the port.
fn by_client(entries: &[&Entry]) -> Vec<Client> {
    let key = |entry: &Entry| (entry.hostname.clone().unwrap_or_default(), entry.port.unwrap_or_default());
    let mut keys: Vec<_> = entries.iter().map(|entry| key(entry)).collect();
    keys.sort_unstable();
    keys.dedup();
    let client = |(host, port): &(String, u16)| {
        let own: Vec<&Entry> = entries.iter().copied().filter(|entry| key(entry) == (host.clone(), *port)).collect();
        let alone = keys.iter().filter(|(other, _)| other == host).count() == 1;
        Client {
            host: if alone { host.clone() } else { format!("{host}:{port}") },
            bytes_per_second: own.iter().map(|entry| entry.read.bw_bytes).sum(),
            operations: total(own.iter().map(|entry| entry.read.total_ios)),
            latency: latency_of(&own),
        }
    };
    keys.iter().map(client).collect()
}

#[cfg(test)]
mod tests;
