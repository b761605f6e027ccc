//! The suite that every transport passes: [`crate::Transport`]'s contract in executable form.
//!
//! A transport's crate implements [`Fixture`] and calls [`crate::transport_conformance`], which makes each of the
//! functions in [`cases`] a test of its own.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a suite of tests: what fails is an assertion")]

pub mod cases;
mod driven;
mod service;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use driven::Driven;
pub use service::{Behaviour, Scripted, digest, pattern, pool, read};

use crate::error::CallError;
use crate::reply::{Payload, Reply};
use crate::request::Request;
use crate::traits::{Service, Transport};

/// A link to a service, and power over the life of its peer.
#[async_trait::async_trait]
pub trait Fixture: Sized + Send + Sync + 'static {
    /// Starts a peer with `service` and makes a link to it.
    async fn start(service: Arc<dyn Service>) -> Self;

    /// The link.
    fn transport(&self) -> Arc<dyn Transport>;

    /// Whether requests that change something reach the service. Otherwise they are refused with
    /// [`PermissionDenied`](forebay_types::FailureKind::PermissionDenied), whoever asks.
    fn carries_changes(&self) -> bool {
        true
    }

    /// The peer dies without a word to its clients. False when it cannot, as in one process.
    async fn kill(&self) -> bool;

    /// The peer is there again, at the same address.
    async fn revive(&self);
}

/// Makes each case of the suite a test of its own, against the [`conformance::Fixture`](Fixture) given.
#[macro_export]
macro_rules! transport_conformance {
    ($fixture:ty) => {
        $crate::transport_conformance! { @cases $fixture:
            reads_of_any_size_bring_the_right_bytes
            a_short_answer_lands_as_it_is
            bodies_go_both_ways
            a_question_about_a_small_file_brings_body_and_payload
            large_bodies_arrive_whole_or_are_refused_and_hold_up_no_reads
            changes_reach_the_service_or_are_refused_and_cost_no_other_call
            failures_carry_their_kind_and_their_message
            a_reply_never_carries_more_than_was_asked_for
            a_thousand_calls_at_once_get_their_own_answers
            a_service_that_hangs_costs_the_deadline_and_no_more
            calls_that_wait_do_not_delay_others
            a_cancelled_call_disturbs_no_other
            nobody_sees_the_buffer_of_a_cancelled_call_while_it_may_be_written
            nobody_sees_the_buffer_of_a_timed_out_call_while_it_may_be_written
            reads_stay_right_while_others_are_cancelled_and_time_out
            a_peer_that_dies_fails_its_calls_and_serves_again_when_it_is_back
            close_waits_until_every_operation_has_ended
        }
    };
    (@cases $fixture:ty: $($case:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::cases::$case::<$fixture>().await;
            }
        )+
    };
}

/// How long the suite waits for what must happen, on a machine that does a lot else: two minutes, times what
/// `FOREBAY_TEST_SLOWNESS` says of an emulated one.
fn patience() -> Duration {
    Duration::from_secs(120) * slowness()
}

/// How many times slower than others this machine is: what `FOREBAY_TEST_SLOWNESS` says of an emulated one.
#[must_use]
pub fn slowness() -> u32 {
    std::env::var("FOREBAY_TEST_SLOWNESS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not for two minutes; `what` is in the message.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience(), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What `future` gives.
///
/// # Panics
/// When it takes longer than two minutes; `what` is in the message.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(patience(), future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Whether a call failed because of the link.
#[must_use]
pub fn is_link_error(result: &Result<Reply, CallError>) -> bool {
    matches!(result, Err(CallError::Link(_)))
}

/// The bytes of a reply, wherever they are.
#[must_use]
pub fn payload_of(reply: &Reply) -> Vec<u8> {
    match &reply.payload {
        Payload::None => Vec::new(),
        Payload::Landed(span) => span.to_vec(),
        Payload::Shared(spans) => spans.iter().flat_map(|span| span.iter().copied()).collect(),
    }
}

/// Fails unless `reply` brings `length` bytes of what `request` asked for.
///
/// # Panics
/// When a byte differs.
pub fn assert_bytes(reply: &Reply, request: &Request, length: usize) {
    let bytes = payload_of(reply);
    assert_eq!(bytes.len(), length, "of {request:?}");
    let wrong =
        (0..length).find(|at| bytes[*at] != pattern(request.block.index, request.offset.wrapping_add(*at as u32)));
    assert_eq!(wrong, None, "the first wrong byte of {request:?}");
}
