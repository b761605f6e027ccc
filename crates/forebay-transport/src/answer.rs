//! How every server asks its service.

use std::panic::AssertUnwindSafe;

use forebay_types::{Failure, FailureKind};
use futures::FutureExt;

use crate::reply::Response;
use crate::request::Request;
use crate::traits::Service;

/// The service's answer to `request`, within its deadline, if it is one that the request allows. A panic of the service is
/// a failure of this request and of no other.
///
/// # Errors
/// What the service failed with, [`FailureKind::TimedOut`], or [`FailureKind::Internal`] for a fault of the service.
pub async fn answer(service: &dyn Service, request: Request, takes_files: bool) -> Result<Response, Failure> {
    let deadline = request.deadline;
    let answer = AssertUnwindSafe(service.handle(request.clone(), takes_files)).catch_unwind();
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(answer)) => answer?.fitting(&request),
        Ok(Err(_)) => {
            Err(Failure::new(FailureKind::Internal, "the worker failed on this request; its log has the details"))
        }
        Err(_) => Err(Failure::new(FailureKind::TimedOut, format!("no answer within the request's {deadline:?}"))),
    }
}
