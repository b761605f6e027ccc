//! The attempts of one operation: permit, time limit, verdict, wait. The shell around `retry.rs` and `limit.rs`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Failure, FailureKind};
use tracing::{debug, warn};

use super::failure::{Problem, Setting};
use crate::OriginOptions;
use crate::limit::Limiter;
use crate::names::shown;
use crate::retry::{RetryPolicy, RetryState, Verdict};
use crate::stats::{Operation, OriginStats, Outcome};

/// The wait before the second attempt. An origin's hiccup is shorter than this, its overload longer; doubling finds out.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The slowest line that uploads are waited for on: 1 MiB/s for each request.
const SLOWEST_UPLOAD: u64 = 1 << 20;
/// How much longer than others those requests may take in which the origin itself works: joining parts, copying an object. S3
/// says "several minutes" of the former.
pub(crate) const AT_WORK: Duration = Duration::from_secs(300);

/// How much longer than others a request may take that brings so many bytes.
pub(crate) fn for_upload(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64 / SLOWEST_UPLOAD)
}

/// What all operations of an origin share.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) url: Arc<str>,
    pub(crate) setting: Setting,
    pub(crate) stats: Arc<OriginStats>,
    limiter: Limiter,
    policy: RetryPolicy,
    request_timeout: Duration,
    /// Some request was answered: credentials can be had, so that failing to get them again is a hiccup.
    proven: AtomicBool,
}

/// The attempts of one operation.
pub(crate) struct Attempts<'a> {
    requests: &'a Requests,
    operation: Operation,
    path: &'a [u8],
    retry: RetryState,
    request_timeout: Duration,
    /// Why the attempt before failed.
    before: Option<Failure>,
}

impl Requests {
    pub(crate) fn new(url: Arc<str>, setting: Setting, options: &OriginOptions) -> Self {
        Self {
            url,
            setting,
            stats: Arc::default(),
            limiter: Limiter::new(options.max_concurrency),
            policy: RetryPolicy {
                max_attempts: options.max_attempts.max(1),
                deadline: options.retry_deadline,
                first_wait: FIRST_WAIT,
                longest_wait: LONGEST_WAIT,
            },
            request_timeout: options.request_timeout,
            proven: AtomicBool::new(false),
        }
    }

    /// Starts an operation; its deadline runs from now.
    pub(crate) fn attempts<'a>(&'a self, operation: Operation, path: &'a [u8]) -> Attempts<'a> {
        self.attempts_with(operation, path, Duration::ZERO)
    }

    /// As [`Requests::attempts`], where each attempt, and the operation with it, may take so much longer.
    pub(crate) fn attempts_with<'a>(&'a self, operation: Operation, path: &'a [u8], longer: Duration) -> Attempts<'a> {
        let policy = RetryPolicy { deadline: self.policy.deadline + longer, ..self.policy };
        let retry = RetryState::new(policy, Instant::now());
        let request_timeout = self.request_timeout + longer;
        Attempts { requests: self, operation, path, retry, request_timeout, before: None }
    }
}

impl Attempts<'_> {
    /// Runs one attempt: waits for leave, then bounds it by the request timeout and the operation's deadline.
    pub(crate) async fn run<T>(&mut self, attempt: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
        let requests = self.requests;
        let place = || shown(&requests.url, self.path);
        let deadline = self.retry.deadline();
        let Ok(permit) = tokio::time::timeout_at(deadline.into(), requests.limiter.acquire()).await else {
            let message = format!("{}: too many requests are under way, and none ended in time", place());
            return Err(Problem::new(Verdict::Final, FailureKind::TimedOut, message));
        };
        let started = Instant::now();
        let until = deadline.min(started + self.request_timeout);
        let result = tokio::time::timeout_at(until.into(), attempt).await.unwrap_or_else(|_| {
            // An attempt that the operation's end cuts short knows less than the one before it.
            if until == deadline
                && let Some(failure) = self.before.take()
            {
                return Err(Problem { verdict: Verdict::Final, failure });
            }
            let (took, endpoint) = (until - started, &requests.setting.endpoint);
            let message = format!("{}: {endpoint} did not answer within {took:.1?}", place());
            Err(Problem::new(Verdict::Transient, FailureKind::TimedOut, message))
        });
        drop(permit);
        requests.stats.attempted(self.operation, outcome(&result), started.elapsed());
        match &result {
            Ok(_) => {
                self.before = None;
                requests.proven.store(true, Ordering::Relaxed);
                requests.limiter.on_success();
            }
            Err(Problem { verdict: Verdict::Throttled { .. }, .. }) => {
                requests.limiter.on_throttle(Instant::now());
            }
            Err(_) => {}
        }
        result
    }

    /// After a failed attempt: waits until the next one is due, or gives up with the failure.
    pub(crate) async fn retry_or_give_up(&mut self, problem: Problem, is_credentials: bool) -> Result<(), Failure> {
        let requests = self.requests;
        let verdict = match problem.verdict {
            Verdict::Final if is_credentials && requests.proven.load(Ordering::Relaxed) => Verdict::Transient,
            verdict => verdict,
        };
        let wait = self.retry.after_failure(verdict, Instant::now(), rand::random());
        let (url, operation, attempt) = (&requests.url, self.operation.name(), self.retry.failed_attempts());
        let failure = problem.failure;
        if let Some(wait) = wait {
            debug!(%url, operation, attempt, ?wait, %failure, "origin request failed, trying again");
            requests.stats.count_retry();
            self.before = Some(failure);
            tokio::time::sleep(wait).await;
            return Ok(());
        }
        if Outcome::of(failure.kind()) == Outcome::Refused {
            return Err(failure);
        }
        warn!(%url, operation, attempt, %failure, "origin request failed");
        requests.stats.count_error();
        if attempt == 1 {
            return Err(failure);
        }
        // Before the remedy, which follows a semicolon.
        let (what, remedy) = match failure.message().split_once("; ") {
            Some((what, remedy)) => (what, format!("; {remedy}")),
            None => (failure.message(), String::new()),
        };
        Err(Failure::new(failure.kind(), format!("{what} (after {attempt} attempts){remedy}")))
    }
}

/// How an attempt ended, for the counters.
fn outcome<T>(result: &Result<T, Problem>) -> Outcome {
    match result {
        Ok(_) => Outcome::Ok,
        Err(Problem { verdict: Verdict::Throttled { .. }, .. }) => Outcome::Throttled,
        Err(Problem { failure, .. }) => Outcome::of(failure.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_cut_short_does_not_hide_why_the_one_before_failed() {
        let options = OriginOptions { retry_deadline: Duration::from_secs(3), ..OriginOptions::default() };
        let setting = Setting {
            endpoint: "http://host".to_owned(),
            bucket: "bucket b".to_owned(),
            region: None,
            credentials: None,
        };
        let requests = Requests::new("s3://b".into(), setting, &options);
        let mut attempts = requests.attempts(Operation::Read, b"f");
        let refused = Problem::new(Verdict::Transient, FailureKind::Unavailable, "it refuses connections".to_owned());
        let first = attempts.run(async { Err::<(), _>(refused) }).await.unwrap_err();
        attempts.retry_or_give_up(first, false).await.unwrap();
        let second = attempts.run(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        let failure = attempts.retry_or_give_up(second, false).await.unwrap_err();
        assert_eq!(failure, Failure::new(FailureKind::Unavailable, "it refuses connections (after 2 attempts)"));
        // An attempt that is cut short says so when no attempt before it has failed.
        let mut attempts = requests.attempts(Operation::Read, b"f");
        let only = attempts.run(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(only.failure.kind(), FailureKind::TimedOut);
    }
}
