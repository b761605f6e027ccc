//! Requests that only the leader can answer, from the coordinator that got them to the one that leads, and its answers back.
//!
//! A request goes to the address that the election's record names, and nowhere else, over a connection of its own. It goes on
//! once: it carries a mark, and a coordinator that gets it and does not lead says so, instead of passing it on to whom it
//! takes for the leader. Whoever asked may do so: that was judged here, and its token stays here.
//! Neither a request nor an answer is held in memory; both together have one deadline.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::RequestExt as _;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use http_body_util::LengthLimitError;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::fault::Fault;
use crate::leader::{LeaderConnector, LeaderRecord};

/// How long a connection to the leader may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long all of it may take: less than whoever asked waits, so that it is told what was waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);
/// Says that a coordinator passed a request on.
const FORWARDED: &str = "x-forebay-forwarded";
/// Names those that a request came from, the nearest one last.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// What is about one connection, and not about what goes over it: RFC 9110, 7.6.1, and names from before it.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a browser says of the page that asks. We have judged it, by our own names; to the leader our page is another origin.
const OF_THE_PAGE: [&str; 5] = ["origin", "referer", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];

/// What whoever asks has proved who it is with. We have judged it, and a request goes on in our own name.
const OF_WHO_ASKS: [&str; 2] = ["authorization", "cookie"];

/// Whether another coordinator has passed this request on.
pub(super) fn was_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
}

/// Has the leader answer `request`, which was asked for at `uri`.
///
/// # Errors
/// When it cannot be reached or does not answer in time, or the body is too large.
pub(super) async fn to_leader(
    connector: &dyn LeaderConnector,
    leader: &LeaderRecord,
    uri: &Uri,
    request: Request,
) -> Result<Response, Fault> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let request = outgoing(request, uri, leader)?;
    let connected = timeout(CONNECT_WITHIN, connector.connect(leader)).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(cannot_be_reached(leader, error)),
        Err(_) => return Err(cannot_be_reached(leader, format!("no connection within {CONNECT_WITHIN:?}"))),
    };
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| cannot_be_reached(leader, error))?;
    // Its failures are those of the request and of the answer, which go over it.
    let driving = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    match timeout_at(deadline, sender.send_request(request)).await {
        Ok(Ok(answer)) => Ok(incoming(answer, deadline, driving)),
        Ok(Err(error)) if is_too_large(&error) => {
            let (status, remedy) = (StatusCode::PAYLOAD_TOO_LARGE, "send less: no body of this interface is so large");
            Err(Fault::new(status, "TOO_LARGE", "the body is too large", remedy))
        }
        Ok(Err(error)) => Err(cannot_be_reached(leader, error)),
        Err(_) => {
            let message = format!("the coordinator at {} leads, and did not answer in time", leader.address);
            Err(Fault::new(StatusCode::GATEWAY_TIMEOUT, "TIMED_OUT", message, "look at its /readyz, then try again"))
        }
    }
}

/// The request as the leader gets it.
fn outgoing(request: Request, uri: &Uri, leader: &LeaderRecord) -> Result<Request, Fault> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    let (parts, body) = request.with_limited_body().into_parts();
    let mut headers = parts.headers;
    remove_hop_by_hop(&mut headers);
    for name in OF_THE_PAGE.into_iter().chain(OF_WHO_ASKS) {
        headers.remove(name);
    }
    let host = HeaderValue::from_str(&leader.address).map_err(|error| cannot_be_reached(leader, error))?;
    headers.insert(header::HOST, host);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    // After those that proxies before us have seen. An address is letters, digits, dots and colons.
    if let Some(Ok(address)) = peer.map(|peer| HeaderValue::from_str(&peer.ip().to_canonical().to_string())) {
        headers.append(FORWARDED_FOR, address);
    }
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

/// The answer as whoever asked gets it.
fn incoming(answer: Response<Incoming>, deadline: Instant, driving: AbortOnDropHandle<()>) -> Response {
    let (mut parts, body) = answer.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    let body = Answer { body, deadline: Box::pin(sleep_until(deadline)), _driving: driving };
    Response::from_parts(parts, Body::new(body))
}

/// Those that are always about one connection, and those that this one names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    let named: Vec<HeaderName> = named.collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Another one will lead, if this one is gone.
fn cannot_be_reached(leader: &LeaderRecord, reason: impl std::fmt::Display) -> Fault {
    let address = &leader.address;
    Fault::no_leader(format!(
        "the coordinator at {address}, which leads for all that this one knows, cannot be reached ({reason})"
    ))
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.is::<LengthLimitError>())
}

/// The body of an answer. It ends with an error at the deadline, and its connection ends with it.
struct Answer {
    body: Incoming,
    deadline: Pin<Box<Sleep>>,
    _driving: AbortOnDropHandle<()>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(this.deadline.as_mut().poll(context));
        Poll::Ready(Some(Err("the leader did not end its answer in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
