//! What an endpoint counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_metrics::LatencyHistogram;
use serde_json::{Value, json};

/// Operations that have a count of their own; what else is asked for is counted together.
const OPERATIONS: [&str; 19] = [
    "GetObject",
    "HeadObject",
    "ListObjectsV2",
    "ListObjects",
    "ListBuckets",
    "HeadBucket",
    "GetBucketLocation",
    "GetObjectAttributes",
    "PutObject",
    "CopyObject",
    "DeleteObject",
    "DeleteObjects",
    "CreateMultipartUpload",
    "UploadPart",
    "UploadPartCopy",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "ListParts",
    "ListMultipartUploads",
];
/// What these are counted as.
const OTHER: &str = "other";

/// What an endpoint counts.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    sent: AtomicU64,
    received: AtomicU64,
    operations: Mutex<BTreeMap<&'static str, LatencyHistogram>>,
    /// By the class of their status, 1 to 5, as HTTP has it.
    answers: [AtomicU64; 6],
    /// Requests whose signature or key was none of ours.
    unsigned: AtomicU64,
    under_way: AtomicU64,
}

impl Stats {
    /// A request has come.
    pub(crate) fn began(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// A request is over: its answer has begun, or nobody waits for one.
    pub(crate) fn ended(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// A request was answered with `status` after `took`.
    pub(crate) fn answered(&self, operation: Option<&str>, status: u16, took: Duration) {
        let class = usize::from(status / 100).min(self.answers.len() - 1);
        self.answers[class].fetch_add(1, Ordering::Relaxed);
        let known = operation.and_then(|operation| OPERATIONS.iter().find(|known| **known == operation));
        let name = known.copied().unwrap_or(OTHER);
        self.operations.lock().entry(name).or_default().record(took);
    }

    /// A request proved to be nobody's.
    pub(crate) fn nobodys(&self) {
        self.unsigned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All of it, and the memory that bodies hold, as a JSON object.
    pub(crate) fn report(&self, memory: u64) -> Value {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let operations: BTreeMap<_, _> =
            self.operations.lock().iter().map(|(name, latency)| (*name, json!(latency))).collect();
        let answers: BTreeMap<_, _> =
            ["2xx", "3xx", "4xx", "5xx"].into_iter().zip(self.answers[2..].iter().map(count)).collect();
        json!({
            "operations": operations,
            "answers": answers,
            "sent_bytes": count(&self.sent),
            "received_bytes": count(&self.received),
            "unsigned": count(&self.unsigned),
            "under_way": count(&self.under_way),
            "memory_bytes": memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_is_counted_by_operation_and_by_status() {
        let stats = Stats::default();
        stats.began();
        stats.answered(Some("GetObject"), 206, Duration::from_millis(1));
        stats.answered(Some("GetBucketAcl"), 501, Duration::from_millis(1));
        stats.answered(None, 403, Duration::from_millis(1));
        stats.sent(7);
        stats.received(5);
        stats.nobodys();
        let report = stats.report(64);
        assert_eq!(report["answers"], json!({ "2xx": 1, "3xx": 0, "4xx": 1, "5xx": 1 }));
        let names: Vec<_> = report["operations"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["GetObject", OTHER]);
        for (count, value) in
            [("sent_bytes", 7), ("received_bytes", 5), ("unsigned", 1), ("under_way", 1), ("memory_bytes", 64)]
        {
            assert_eq!(report[count], value, "{count}");
        }
        stats.ended();
        assert_eq!(stats.report(0)["under_way"], 0);
    }
}
