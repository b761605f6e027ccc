//! Who may ask an HTTP listener for what (ADR 0023), and who keeps a record of those who ask ([`crate::audit`]).
//!
//! ```text
//!   certificate, if one is shown ─── the role in its name ────┐
//!                                                             ├── may it what the operation asks for?
//!   Authorization: Bearer TOKEN ──── the role of its file ────┘   nobody: 401 · a role that may not: 403
//! ```
//!
//! A certificate is shown in the handshake and judged again with each request: it may have expired since, be denied, or be one of
//! an authority that is believed no more. A token is looked for in `Authorization` and nowhere else: what browsers send by
//! themselves, as cookies, and what logs keep, as addresses, says nothing here. Where nothing leaves the machine, a token may be
//! asked for in plain text ([`Access::by_token`]).

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{MatchedPath, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use forebay_identity::{Auditing, LiveIdentity, LiveTokens, Peer, Side, Standing, http_server_config, reason};
use forebay_types::{Permission, Role, Subject};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::server::TlsStream;

use crate::masking::masked;

/// The first byte of a TLS handshake (RFC 8446, 5.1). No method of HTTP begins with it.
const HANDSHAKE: u8 = 22;

/// What can be asked of a listener: a method, a path as its router has it, and what whoever asks must be permitted; `None`: nothing.
/// What is in no table, an admin may ask for.
pub type Operation = (&'static str, &'static str, Option<Permission>);

/// What a request is about as far as its place, as the router has it, and its URL say so: all that is known of one that is refused
/// unread. Whoever asks may write anything there, so what can be no name of what it stands for must be left out. What may be a
/// token is masked after that.
pub type Naming = fn(place: &str, url: &Uri) -> Subject;

/// What a listener demands of those who ask, and where that is recorded.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// `None`: nothing.
    demands: Option<Arc<Demands>>,
    audit: Option<Auditing>,
    /// `None`: nothing is known of what is refused, but its place.
    naming: Option<Naming>,
}

struct Demands {
    /// `None`: plain text is spoken, and nobody shows a certificate.
    tls: Option<Tls>,
    tokens: Arc<LiveTokens>,
    /// Whether whoever shows nothing may ask for everything, also in plain text.
    accepts_plain: bool,
}

/// What TLS is spoken with, and whose certificates are believed.
struct Tls {
    acceptor: TlsAcceptor,
    live: Arc<LiveIdentity>,
}

impl std::fmt::Debug for Demands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut demands = f.debug_struct("Demands");
        demands.field("tls", &self.tls.is_some()).field("accepts_plain", &self.accepts_plain).finish_non_exhaustive()
    }
}

/// Who is at the other end of a connection, if it has shown a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Option<Arc<Peer>>);

/// A connection, as far as it has come.
pub(crate) enum Opened {
    /// HTTP in plain text.
    Plain(TcpStream),
    /// HTTP within TLS.
    Secure(Box<TlsStream<TcpStream>>, Caller),
    /// It should have begun with a handshake, and did not.
    NotSecure(TcpStream),
}

/// What is found of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// The role of the token that it shows, if its certificate was not enough and the token is one of ours.
    pub(crate) by_token: Option<Role>,
    /// Whether it is answered.
    pub(crate) verdict: Result<(), Denial>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// Nobody known asks.
    Unproved,
    /// Somebody asks who may not.
    Role(Role, Permission),
}

impl Access {
    /// Everybody may ask for everything, in plain text.
    #[must_use]
    pub fn everybody() -> Self {
        Self::default()
    }

    /// Those whom `live` believes and those who show one of `tokens` may ask for what their roles may, over TLS. `accepts_plain`: and
    /// whoever shows nothing for everything, also in plain text, while a cluster is being changed.
    ///
    /// # Errors
    /// None that a sound build has.
    pub fn proved(
        live: &Arc<LiveIdentity>,
        tokens: Arc<LiveTokens>,
        accepts_plain: bool,
    ) -> Result<Self, rustls::Error> {
        let acceptor = TlsAcceptor::from(Arc::new(http_server_config(live)?));
        let tls = Some(Tls { acceptor, live: Arc::clone(live) });
        Ok(Self::of(Demands { tls, tokens, accepts_plain }))
    }

    /// Those who show one of `tokens` may ask for what their roles may, in plain text: for a listener on loopback, where other users
    /// of the machine may ask, and none of them listens in.
    #[must_use]
    pub fn by_token(tokens: Arc<LiveTokens>) -> Self {
        Self::of(Demands { tls: None, tokens, accepts_plain: false })
    }

    fn of(demands: Demands) -> Self {
        Self { demands: Some(Arc::new(demands)), ..Self::default() }
    }

    /// The same, and what is asked for is recorded: all that is refused, what changes something, and what is read beyond counters if
    /// `audit` wants that. `None`: nothing is.
    #[must_use]
    pub fn recorded(self, audit: Option<Auditing>) -> Self {
        Self { audit, ..self }
    }

    /// The same, and of what is refused is recorded what `naming` says that it is about.
    #[must_use]
    pub fn naming(self, naming: Naming) -> Self {
        Self { naming: Some(naming), ..self }
    }

    /// What a request is about that is not read.
    pub(crate) fn subject_of(&self, request: &Request) -> Subject {
        let place = request.extensions().get().map(MatchedPath::as_str);
        let named = self.naming.zip(place).map(|(naming, place)| naming(place, request.uri()));
        let is_token = |text: &str| self.demands.as_ref().is_some_and(|demands| demands.tokens.role(text).is_some());
        masked(named.unwrap_or_default(), is_token)
    }

    /// Where it is recorded, if it is.
    pub(crate) fn audit(&self) -> Option<&Auditing> {
        self.audit.as_ref()
    }

    /// Begins a connection. No deadline is kept here.
    pub(crate) async fn open(&self, stream: TcpStream) -> io::Result<Opened> {
        let Some(Demands { tls: Some(tls), accepts_plain, .. }) = self.demands.as_deref() else {
            return Ok(Opened::Plain(stream));
        };
        let mut first = [0];
        // Who leaves at once has begun no handshake, either.
        let has_begun = stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE;
        match (has_begun, *accepts_plain) {
            (true, _) => tls.secure(stream).await,
            (false, true) => Ok(Opened::Plain(stream)),
            (false, false) => Ok(Opened::NotSecure(stream)),
        }
    }

    /// Whether `caller` may ask for what asks for `permission`, with these headers.
    pub(crate) fn judge(
        &self,
        permission: Option<Permission>,
        caller: &Caller,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Judgement {
        let judged = |by_token, verdict| Judgement { by_token, verdict };
        let (Some(demands), Some(permission)) = (&self.demands, permission) else { return judged(None, Ok(())) };
        let by_certificate = demands.tls.as_ref().and_then(|tls| tls.role_of(caller, now));
        if by_certificate.is_some_and(|role| role.may(permission)) {
            return judged(None, Ok(()));
        }
        let by_token = token(headers).and_then(|token| demands.tokens.role(token));
        let shows_nothing = caller.0.is_none() && !headers.contains_key(AUTHORIZATION);
        let verdict = match by_token.or(by_certificate) {
            Some(role) if role.may(permission) => Ok(()),
            Some(role) => Err(Denial::Role(role, permission)),
            None if shows_nothing && demands.accepts_plain => Ok(()),
            None => Err(Denial::Unproved),
        };
        judged(by_token, verdict)
    }
}

impl Tls {
    async fn secure(&self, stream: TcpStream) -> io::Result<Opened> {
        let tls = self.acceptor.accept(stream).await.map_err(described)?;
        let trust = |chain| self.live.material().trust().verify(chain, Side::Client, SystemTime::now());
        let peer = tls.get_ref().1.peer_certificates().map(trust).transpose().map_err(io::Error::other)?;
        Ok(Opened::Secure(Box::new(tls), Caller(peer.map(Arc::new))))
    }

    /// The role of the certificate that was shown, if it still holds.
    fn role_of(&self, caller: &Caller, now: SystemTime) -> Option<Role> {
        let peer = caller.0.as_deref()?;
        (self.live.standing(peer, now) == Standing::Good).then(|| peer.identity.role())
    }
}

/// The token that a request shows, if it shows one.
pub(crate) fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(only), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Why a handshake failed, with who was refused.
fn described(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(tls) => io::Error::new(error.kind(), reason(tls)),
        None => error,
    }
}

impl std::fmt::Display for Denial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unproved => f.write_str("neither a certificate of this cluster nor one of its tokens is shown"),
            Self::Role(role, permission) => write!(f, "a {role} may not {permission}, which this asks for"),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_token_is_what_stands_in_authorization_and_nowhere_else() {
        for (lines, shown) in [
            (&[("authorization", "Bearer abc")][..], Some("abc")),
            (&[("authorization", "bearer  abc ")], Some("abc")),
            (&[("authorization", "Basic abc")], None),
            (&[("authorization", "abc")], None),
            (&[("authorization", "")], None),
            (&[("authorization", "Bearer a"), ("authorization", "Bearer b")], None),
            (&[("cookie", "authorization=Bearer abc"), ("x-authorization", "Bearer abc")], None),
            (&[], None),
        ] {
            assert_eq!(token(&headers(lines)), shown, "{lines:?}");
        }
    }

    #[test]
    fn nothing_is_named_where_nobody_says_what_names_something() {
        let request =
            || axum::http::Request::get("/api/v1/jobs/hush?path=/hush").body(axum::body::Body::empty()).unwrap();
        assert_eq!(Access::everybody().subject_of(&request()), Subject::default());
        let naming: Naming = |_, _| panic!("there is no such place");
        assert_eq!(Access::everybody().naming(naming).subject_of(&request()), Subject::default());
    }

    #[test]
    fn where_nobody_has_to_prove_anything_everything_may_be_asked_for() {
        let judged = |permission| {
            let shown = headers(&[("authorization", "Bearer abc")]);
            Access::everybody().judge(permission, &Caller(None), &shown, SystemTime::now()).verdict
        };
        assert_eq!((judged(None), judged(Some(Permission::Administer))), (Ok(()), Ok(())));
    }
}
