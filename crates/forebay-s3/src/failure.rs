//! Failures of the cache as S3's errors. Pure.

use axum::http::StatusCode;
use forebay_types::{Failure, FailureKind};
use s3s::{S3Error, S3ErrorCode};

/// The code for a failure of what asks for an object.
fn code(kind: FailureKind) -> S3ErrorCode {
    match kind {
        FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::IsADirectory => S3ErrorCode::NoSuchKey,
        FailureKind::PermissionDenied | FailureKind::ReadOnly => S3ErrorCode::AccessDenied,
        FailureKind::InvalidArgument => S3ErrorCode::InvalidArgument,
        FailureKind::NameTooLong => S3ErrorCode::KeyTooLongError,
        FailureKind::TooLarge => S3ErrorCode::EntityTooLarge,
        FailureKind::Unsupported | FailureKind::NotPermitted | FailureKind::CrossDevice => S3ErrorCode::NotImplemented,
        FailureKind::Exists | FailureKind::NotEmpty => S3ErrorCode::OperationAborted,
        // Clients slow down at this one, and try again at the next.
        FailureKind::OutOfResources => S3ErrorCode::SlowDown,
        FailureKind::VersionChanged
        | FailureKind::Unavailable
        | FailureKind::TimedOut
        | FailureKind::Corrupt
        | FailureKind::NotReady
        | FailureKind::NoSpace => S3ErrorCode::ServiceUnavailable,
        _ => S3ErrorCode::InternalError,
    }
}

/// What a client is told of `failure`. What went wrong on our side is in our log: it may name servers that are none of
/// its business.
pub(crate) fn told(failure: &Failure) -> S3Error {
    let code = code(failure.kind());
    let is_ours = code.status_code().is_none_or(|status| status.is_server_error());
    if is_ours && !matches!(code, S3ErrorCode::NotImplemented) {
        tracing::warn!(%failure, code = code.as_str(), "a request over S3 fails");
        return S3Error::with_message(code, "the cache could not do this; try again, and see the log of the endpoint");
    }
    S3Error::with_message(code, failure.to_string())
}

/// The same of an object that is to be written where names of another kind are in its way. Amazon has no directories, and
/// so no code for it; these are versitygw's.
pub(crate) fn of_write(failure: &Failure) -> S3Error {
    let (code, message) = match failure.kind() {
        FailureKind::NotADirectory => ("ObjectParentIsFile", "what the key has as a directory is an object"),
        FailureKind::IsADirectory => ("ExistingObjectIsDirectory", "there are keys below this one, as in a directory"),
        _ => return told(failure),
    };
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(StatusCode::CONFLICT);
    error
}

/// What a client is told that asks for a part of an object which has not as many.
pub(crate) fn no_such_part() -> S3Error {
    let code = S3ErrorCode::Custom("InvalidPartNumber".into());
    let mut error = S3Error::with_message(code, "the requested part number is not satisfiable");
    error.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

/// The same of an upload in parts, of which what is not found is the upload.
pub(crate) fn of_upload(failure: &Failure) -> S3Error {
    match failure.kind() {
        FailureKind::NotFound => S3Error::with_message(S3ErrorCode::NoSuchUpload, "there is no such upload (any more)"),
        FailureKind::Corrupt => {
            S3Error::with_message(S3ErrorCode::InvalidPart, "the parts are not those that were uploaded")
        }
        _ => of_write(failure),
    }
}

/// The same of one that is to be completed; `is_short`: a part but the last one is shorter than object stores take. One
/// that takes none says of it only that the request makes no sense.
pub(crate) fn of_completion(failure: &Failure, is_short: bool) -> S3Error {
    match failure.kind() {
        FailureKind::InvalidArgument if is_short => {
            S3Error::with_message(S3ErrorCode::EntityTooSmall, failure.to_string())
        }
        _ => of_upload(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_did_is_told_with_its_reason_and_what_we_did_is_not() {
        let told_of = |kind| {
            let error = told(&Failure::new(kind, "10.0.0.1 said so"));
            let status = error.status_code().map(|status| status.as_u16());
            (error.code().as_str().to_owned(), status, error.message().is_some_and(|text| text.contains("10.0.0.1")))
        };
        for (kind, code, status) in [
            (FailureKind::NotFound, "NoSuchKey", 404),
            (FailureKind::IsADirectory, "NoSuchKey", 404),
            (FailureKind::PermissionDenied, "AccessDenied", 403),
            (FailureKind::ReadOnly, "AccessDenied", 403),
            (FailureKind::InvalidArgument, "InvalidArgument", 400),
            (FailureKind::TooLarge, "EntityTooLarge", 400),
            (FailureKind::NotEmpty, "OperationAborted", 409),
            (FailureKind::Unsupported, "NotImplemented", 501),
        ] {
            assert_eq!(told_of(kind), (code.to_owned(), Some(status), true), "{kind:?}");
        }
        for (kind, code, status) in [
            (FailureKind::Unavailable, "ServiceUnavailable", 503),
            (FailureKind::OutOfResources, "SlowDown", 503),
            (FailureKind::VersionChanged, "ServiceUnavailable", 503),
            (FailureKind::Internal, "InternalError", 500),
            (FailureKind::NotCached, "InternalError", 500),
        ] {
            assert_eq!(told_of(kind), (code.to_owned(), Some(status), false), "{kind:?}");
        }
    }

    #[test]
    fn what_is_missing_of_an_upload_is_the_upload() {
        let code = |kind| of_upload(&Failure::new(kind, "gone")).code().as_str().to_owned();
        assert_eq!(code(FailureKind::NotFound), "NoSuchUpload");
        assert_eq!(code(FailureKind::Corrupt), "InvalidPart");
        assert_eq!(code(FailureKind::TooLarge), "EntityTooLarge");
    }

    #[test]
    fn who_completes_an_upload_of_short_parts_is_told_so_if_its_origin_takes_none() {
        let code = |kind, is_short| of_completion(&Failure::new(kind, "no"), is_short).code().as_str().to_owned();
        assert_eq!(code(FailureKind::InvalidArgument, true), "EntityTooSmall");
        assert_eq!(code(FailureKind::InvalidArgument, false), "InvalidArgument");
        assert_eq!(code(FailureKind::NotFound, true), "NoSuchUpload");
    }

    #[test]
    fn what_is_in_the_way_of_a_write_is_a_conflict_and_not_missing() {
        let told_of = |kind| {
            let error = of_write(&Failure::new(kind, "there is something"));
            (error.code().as_str().to_owned(), error.status_code().map(|status| status.as_u16()))
        };
        assert_eq!(told_of(FailureKind::NotADirectory), ("ObjectParentIsFile".to_owned(), Some(409)));
        assert_eq!(told_of(FailureKind::IsADirectory), ("ExistingObjectIsDirectory".to_owned(), Some(409)));
        assert_eq!(told_of(FailureKind::ReadOnly), ("AccessDenied".to_owned(), Some(403)));
        assert_eq!(
            of_upload(&Failure::new(FailureKind::IsADirectory, "")).code().as_str(),
            "ExistingObjectIsDirectory"
        );
    }
}
