//! What the workers count, as people are told of it: each worker's counters, and the files that all of them together serve most of.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_types::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Files that are told as the hottest.
const HOTTEST: usize = 20;

/// What the workers count, as of the last time they were asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// When they were asked, in milliseconds since 1970.
    pub as_of_ms: u64,
    /// The workers, by name.
    pub workers: Vec<OneWorker>,
    /// The files of which most bytes were served, the most first.
    pub hottest: Vec<HotFile>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OneWorker {
    /// Its name.
    pub name: String,
    /// Its counters; absent if it did not answer.
    #[schema(value_type = Option<Object>)]
    pub stats: Option<Value>,
    /// Why it did not.
    pub error: Option<String>,
}

/// A file that is read much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HotFile {
    /// Its path.
    pub path: String,
    /// Bytes of it that all workers serve in a minute, by a sample of the reads of the last minutes.
    pub bytes_per_minute: u64,
}

impl WorkerStats {
    /// Of what the workers, by name, answered at `as_of_ms`.
    pub(crate) fn of(as_of_ms: u64, answers: Vec<(Arc<str>, Result<Value, Failure>)>) -> Self {
        let mut workers: Vec<_> = answers.into_iter().map(one_worker).collect();
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        let hottest = hottest(&workers);
        Self { as_of_ms, workers, hottest }
    }
}

fn one_worker((name, answer): (Arc<str>, Result<Value, Failure>)) -> OneWorker {
    let name = name.to_string();
    match answer {
        Ok(stats) => OneWorker { name, stats: Some(stats), error: None },
        Err(failure) => OneWorker { name, stats: None, error: Some(failure.to_string()) },
    }
}

/// Of what each worker says in `hottest`, an array of `{path, bytes_per_minute}`.
fn hottest(workers: &[OneWorker]) -> Vec<HotFile> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    let told = workers.iter().filter_map(|worker| worker.stats.as_ref()?.get("hottest")?.as_array());
    for file in told.flatten() {
        if let (Some(path), Some(rate)) = (file["path"].as_str(), file["bytes_per_minute"].as_f64()) {
            let total = totals.entry(path).or_default();
            *total = total.saturating_add(rate as u64);
        }
    }
    let hot = |(path, bytes_per_minute): (&str, u64)| HotFile { path: path.to_owned(), bytes_per_minute };
    let mut files: Vec<_> = totals.into_iter().map(hot).collect();
    files.sort_by(|a, b| b.bytes_per_minute.cmp(&a.bytes_per_minute).then_with(|| a.path.cmp(&b.path)));
    files.truncate(HOTTEST);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_files_are_those_of_all_workers_together() {
        let worker =
            |files: Value| OneWorker { stats: Some(serde_json::json!({ "hottest": files })), ..OneWorker::default() };
        let workers = [
            worker(
                serde_json::json!([{ "path": "/a", "bytes_per_minute": 5 }, { "path": "/b", "bytes_per_minute": 4 }]),
            ),
            worker(serde_json::json!([{ "path": "/b", "bytes_per_minute": 3 }, { "path": "/bad" }])),
            OneWorker::default(),
        ];
        let files: Vec<_> = hottest(&workers).into_iter().map(|file| (file.path, file.bytes_per_minute)).collect();
        assert_eq!(files, [("/b".to_owned(), 7), ("/a".to_owned(), 5)]);
    }
}
