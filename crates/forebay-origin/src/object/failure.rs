//! From what an origin answered to what a program and a person can act on.
//!
//! Pure: [`diagnose`] looks at the client's error and at what was seen of the exchange, and says whether another
//! attempt makes sense and what the failure is: the URL, what happened, what to do.

use forebay_types::{Failure, FailureKind};
use object_store::client::{HttpError, HttpErrorKind};

use super::exchange::{Observed, Refusal};
use crate::names::{exists, is_a_directory, no_such_upload, not_found, shown, version_changed};
use crate::retry::Verdict;

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) verdict: Verdict,
    pub(crate) failure: Failure,
}

/// What messages say of an origin besides its URL.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The server's URL, `https://s3.eu-west-1.amazonaws.com` for example.
    pub(crate) endpoint: String,
    /// The bucket or container, as `bucket NAME`.
    pub(crate) bucket: String,
    /// The region that requests are signed for; `None` where there are no regions.
    pub(crate) region: Option<String>,
    /// Where credentials come from; `None` when none are used.
    pub(crate) credentials: Option<String>,
}

impl Problem {
    pub(crate) fn new(verdict: Verdict, kind: FailureKind, message: String) -> Self {
        Self { verdict, failure: Failure::new(kind, message) }
    }

    /// Another attempt may do better.
    pub(crate) fn transient(message: String) -> Self {
        Self::new(Verdict::Transient, FailureKind::Unavailable, message)
    }

    /// The version is gone.
    pub(crate) fn version_changed(url: &str, path: &[u8]) -> Self {
        Self { verdict: Verdict::Final, failure: version_changed(url, path) }
    }
}

/// Says what an attempt's failure means.
pub(crate) fn diagnose(
    url: &str,
    path: &[u8],
    setting: &Setting,
    observed: &Observed,
    error: &object_store::Error,
) -> Problem {
    if let Some(refusal) = &observed.refusal {
        return diagnose_refusal(url, path, setting, refusal, observed.is_change);
    }
    let place = shown(url, path);
    let cause = root_cause(error);
    if let (false, Some(credentials)) = (observed.sent, &setting.credentials) {
        return Problem::new(
            Verdict::Final,
            FailureKind::PermissionDenied,
            format!(
                "{place}: no credentials: none from {credentials} ({cause}); set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, name a profile, give this machine a role, or use `anonymous` for a public bucket"
            ),
        );
    }
    match transport_error(error) {
        Some(HttpErrorKind::Timeout) => Problem::new(
            Verdict::Transient,
            FailureKind::TimedOut,
            format!("{place}: {} did not answer in time ({cause})", setting.endpoint),
        ),
        Some(HttpErrorKind::Connect) => Problem::transient(format!(
            "{place}: cannot connect to {} ({cause}); check that the endpoint is right and reachable from here",
            setting.endpoint
        )),
        Some(_) => Problem::transient(format!("{place}: the connection to {} broke ({cause})", setting.endpoint)),
        None => match error {
            object_store::Error::NotFound { .. } => Problem { verdict: Verdict::Final, failure: not_found(url, path) },
            object_store::Error::Precondition { .. } => Problem::version_changed(url, path),
            _ => Problem::transient(format!(
                "{place}: {} gave an answer that makes no sense ({cause})",
                setting.endpoint
            )),
        },
    }
}

fn diagnose_refusal(url: &str, path: &[u8], setting: &Setting, refusal: &Refusal, is_change: bool) -> Problem {
    if let Some(problem) = refused_change(url, path, refusal).filter(|_| is_change) {
        return problem;
    }
    let place = shown(url, path);
    let Setting { endpoint, bucket, .. } = setting;
    let credentials = setting.credentials.as_deref().unwrap_or("no credentials");
    let said = said(refusal);
    let problem = |verdict, kind, message: String| Problem::new(verdict, kind, format!("{place}: {message}"));
    let denied = |message| problem(Verdict::Final, FailureKind::PermissionDenied, message);
    // A fault of the settings is not `NotFound`, which callers remember as "no such file", and not `Unavailable`, which
    // makes them ask another worker.
    let misconfigured = |message| problem(Verdict::Final, FailureKind::InvalidArgument, message);

    match (refusal.status, refusal.code.as_str()) {
        (_, "NoSuchBucket" | "ContainerNotFound") => {
            misconfigured(format!("there is no {bucket} at {endpoint}; check the name and the endpoint, or create it"))
        }
        (_, "RequestTimeTooSkewed" | "RequestInTheFuture") => denied(format!(
            "this machine's clock is off: the server's says {}; set the clock with NTP (`timedatectl set-ntp true`)",
            refusal.date.as_deref().unwrap_or("otherwise")
        )),
        _ if is_wrong_region(setting, refusal) => {
            let ours = setting.region.as_deref().unwrap_or("no region");
            match &refusal.region {
                Some(region) => misconfigured(format!(
                    "{bucket} is in the region {region}, not {ours}; set the region to `{region}` (or AWS_REGION={region})"
                )),
                None => misconfigured(format!(
                    "{bucket} is not in the region {ours} ({said}); set its region (or AWS_REGION)"
                )),
            }
        }
        (_, "InvalidAccessKeyId" | "InvalidClientTokenId") => denied(format!(
            "the access key from {credentials} is unknown to {endpoint}; check it, and that the endpoint is the one it belongs to"
        )),
        (_, "SignatureDoesNotMatch") => {
            denied(format!("the secret key from {credentials} does not belong to the access key; check both"))
        }
        (_, "ExpiredToken" | "TokenRefreshRequired" | "InvalidToken") => {
            denied(format!("the session token from {credentials} is no longer valid; get a new one"))
        }
        (401 | 403, _) | (_, "AccessDenied") if is_change => denied(format!(
            "access denied with {credentials} ({said}); changing it needs the permissions s3:PutObject, s3:DeleteObject and \
             s3:AbortMultipartUpload (storage.objects.create and .delete, Storage Blob Data Contributor) on {bucket}"
        )),
        (401 | 403, _) => denied(format!(
            "access denied with {credentials} ({said}); reading needs the permissions s3:GetObject and s3:ListBucket \
             (storage.objects.get and .list, Storage Blob Data Reader) on {bucket}"
        )),
        (404, _) => Problem { verdict: Verdict::Final, failure: not_found(url, path) },
        (412 | 416, _) => Problem::version_changed(url, path),
        (429 | 503, _) | (_, "SlowDown" | "RequestLimitExceeded" | "TooManyRequests") => problem(
            Verdict::Throttled { retry_after: refusal.retry_after },
            FailureKind::Unavailable,
            format!("{endpoint} asks for fewer requests ({said}); lower `max_concurrency` if this lasts"),
        ),
        (408 | 500 | 502 | 504, _) | (_, "RequestTimeout" | "InternalError") => {
            problem(Verdict::Transient, FailureKind::Unavailable, format!("{endpoint} failed ({said})"))
        }
        _ => misconfigured(format!("{endpoint} refused the request ({said})")),
    }
}

/// The refusals that only a change meets. File gateways, which cannot hold the file `a` and the directory `a` at once, have
/// codes of their own: the latter two rows have versitygw's and MinIO's.
fn refused_change(url: &str, path: &[u8], refusal: &Refusal) -> Option<Problem> {
    let (place, said) = (shown(url, path), said(refusal));
    let failed = |kind, message: String| Failure::new(kind, format!("{place}: {message}"));
    let failure = match (refusal.status, refusal.code.as_str()) {
        (_, "NoSuchUpload" | "InvalidBlockList") => no_such_upload(url, path),
        (413, _) | (_, "EntityTooLarge" | "RequestBodyTooLarge") => {
            failed(FailureKind::TooLarge, format!("larger than the origin takes ({said})"))
        }
        (507, _) | (_, "QuotaExceeded" | "BucketQuotaExceeded" | "InsufficientStorage" | "XMinioStorageFull") => {
            failed(
                FailureKind::NoSpace,
                format!("the origin is full ({said}); make room there, or have its quota raised"),
            )
        }
        (_, "KeyTooLongError") => failed(FailureKind::NameTooLong, format!("the key is too long ({said})")),
        (405, _) => failed(FailureKind::ReadOnly, format!("the origin takes no changes ({said})")),
        // Two requests for one key at the same moment: either may come first, and then the other.
        (409, "OperationAborted" | "ConditionalRequestConflict") => {
            return Some(Problem::transient(format!("{place}: another request changes it at this moment ({said})")));
        }
        (_, "BlobAlreadyExists") => exists(url, path),
        (501, _) | (_, "NotImplemented") => {
            failed(FailureKind::Unsupported, format!("the origin does not know what is asked for ({said})"))
        }
        (_, "ExistingObjectIsDirectory" | "XMinioObjectExistsAsDirectory") => is_a_directory(url, path),
        (_, "ObjectParentIsFile" | "XMinioParentIsObject") => {
            failed(FailureKind::NotADirectory, format!("a name above it is a file ({said})"))
        }
        _ => return None,
    };
    Some(Problem { verdict: Verdict::Final, failure })
}

fn is_wrong_region(setting: &Setting, refusal: &Refusal) -> bool {
    let elsewhere = refusal.region.is_some() && refusal.region != setting.region;
    match refusal.code.as_str() {
        "PermanentRedirect" | "TemporaryRedirect" | "IllegalLocationConstraintException" => true,
        // It also stands for other malformations; only a region tells.
        "AuthorizationHeaderMalformed" => elsewhere || refusal.message.contains("region"),
        // A HEAD's answer has no body: the header is all there is.
        _ => matches!(refusal.status, 301 | 307 | 400) && elsewhere,
    }
}

/// Status, code and message, as far as there are any.
fn said(refusal: &Refusal) -> String {
    let mut said = format!("status {}", refusal.status);
    for part in [&refusal.code, &refusal.message] {
        if !part.is_empty() {
            said = format!("{said}, {part}");
        }
    }
    said
}

fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

fn transport_error(error: &object_store::Error) -> Option<HttpErrorKind> {
    chain(error).find_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind)
}

/// The innermost cause: the outer ones repeat it, with URLs and Rust's debug forms around.
fn root_cause(error: &object_store::Error) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}
