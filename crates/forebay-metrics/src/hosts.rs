//! By which names a listener may be asked, and from which pages: what keeps a browser from being used against it.
//!
//! A listener asks for no password: whoever reaches its port may ask. A browser of somebody within the network reaches
//! it, and runs what the pages of anybody give it. Two ways lead from such a page to a listener.
//!
//! * **DNS rebinding.** A page of `http://evil.example:19999` has its own name lead to our address, and then asks what
//!   its browser takes for the server that it came from: it may read every answer. The browser says
//!   `Host: evil.example:19999`. So a request under a name that is not ours is not answered.
//! * **A request across sites.** A page of another origin asks us, under our own name. Its browser keeps the answer
//!   from it, but what was asked for is done. The browser says where the page is from: in `Origin`, with every method
//!   but GET and HEAD, which change nothing here; and in `Sec-Fetch-Site`, with all methods, on loopback and behind
//!   TLS. So what comes from another origin is not answered, unless it only opens a page of ours in place of the other
//!   one, as a link does.
//!
//! **A literal address is always ours.** A name can be made to lead elsewhere after a page has come; an address cannot.
//! A page that asks `http://10.0.0.5:19999` as its own origin has come from there, which is here. Every other page that
//! asks it is of another origin, and told by that. For the same reason an address is *not* always an origin of ours: a
//! page of `http://203.0.113.7` came from that machine. As an origin counts the one that is being asked, with its host
//! and its port.
//!
//! **So is `localhost`**, which browsers take for loopback whatever a name server says, and so are the names of this
//! machine and those that it is advertised by. The names that the configuration lists are trusted further: also as
//! origins with any scheme and port, since an ingress may speak TLS, and ask us under another name than it was asked
//! by.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Method, StatusCode, Uri};

/// The port of `http://HOST`.
const HTTP_PORT: u16 = 80;
/// The port of `https://HOST`, as it is in front of an ingress.
const HTTPS_PORT: u16 = 443;

/// The names that a listener answers to, besides literal IP addresses and `localhost`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames {
    /// Of this machine, in small letters.
    own: BTreeSet<String>,
    /// Of the configuration, in small letters.
    listed: BTreeSet<String>,
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no `Host`, or several, or one that is no host.
    Malformed,
    /// It asks for another host.
    Host(String),
    /// It comes from a page of another origin.
    Origin,
}

impl HostNames {
    /// Literal IP addresses and `localhost`, and no other name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a name of this machine, and its first label: `node1.example.org` is `node1`, too. A port (`HOST:PORT`) does
    /// not count, and what is no name adds none.
    #[must_use]
    pub fn with_own(mut self, name: &str) -> Self {
        if let Some(Authority { host: Host::Name(name), .. }) = Authority::parse(name) {
            self.own.extend(name.split('.').next().map(str::to_owned));
            self.own.insert(name);
        }
        self
    }

    /// Adds names of the configuration: of an ingress, or of a Kubernetes service.
    #[must_use]
    pub fn with_listed<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        for name in names {
            if let Some(Authority { host: Host::Name(name), .. }) = Authority::parse(name) {
                self.listed.insert(name);
            }
        }
        self
    }

    /// Whether a request is to be answered.
    pub(crate) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = match values(headers, "host")[..] {
            [Some(host)] => Authority::parse(host).ok_or(Refusal::Malformed)?,
            _ => return Err(Refusal::Malformed),
        };
        // `GET http://HOST/ HTTP/1.1` asks for that host, whatever `Host` says (RFC 9112, 3.2.2).
        let asked = match uri.authority() {
            Some(authority) => Authority::parse(authority.as_str()).ok_or(Refusal::Malformed)?,
            None => host.clone(),
        };
        if let Some(other) = [&host, &asked].into_iter().find(|authority| !self.is_own(&authority.host)) {
            return Err(Refusal::Host(other.host.to_string()));
        }
        match values(headers, "origin")[..] {
            [] => {}
            [Some(origin)] if self.is_own_origin(origin, &asked) => {}
            _ => return Err(Refusal::Origin),
        }
        let is_across_sites = values(headers, "sec-fetch-site").contains(&Some("cross-site"));
        if is_across_sites && !opens_a_page(method, headers) {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    fn is_own(&self, host: &Host) -> bool {
        match host {
            Host::Address(_) => true,
            Host::Name(name) => name == "localhost" || self.own.contains(name) || self.listed.contains(name),
        }
    }

    /// Whether a page of `origin` may ask `asked`, which is ours.
    fn is_own_origin(&self, origin: &str, asked: &Authority) -> bool {
        // A page without an origin, as in a sandbox, says `null`.
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let usual_port = match scheme {
            "http" => HTTP_PORT,
            "https" => HTTPS_PORT,
            _ => return false,
        };
        let Some(page) = Authority::parse(authority) else { return false };
        let is_listed = matches!(&page.host, Host::Name(name) if self.listed.contains(name));
        let port = |authority: &Authority| authority.port.unwrap_or(usual_port);
        is_listed || (page.host == asked.host && port(&page) == port(asked))
    }
}

impl Refusal {
    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// What a program can act on.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Malformed => "INVALID_ARGUMENT",
            Self::Host(_) => "MISDIRECTED",
            Self::Origin => "FOREIGN_ORIGIN",
        }
    }

    /// What to do next.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Malformed => "send one `Host`, the host and port that were asked for",
            Self::Host(_) => "add the name to `network.http.hosts` of this process, or ask for its IP address",
            Self::Origin => "if the page is yours, add the name of its host to `network.http.hosts` of this process",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the request does not say which host it asks for"),
            Self::Host(host) => write!(f, "`{host}` is no name of this host"),
            Self::Origin => f.write_str("pages of other origins are not answered"),
        }
    }
}

/// All values of a header; `None` for those that are no text.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<Option<&'a str>> {
    headers.get_all(name).iter().map(|value| value.to_str().ok()).collect()
}

/// Whether a browser asks for a page to show in place of another one, which then learns nothing of it.
fn opens_a_page(method: &Method, headers: &HeaderMap) -> bool {
    let is_safe = matches!(*method, Method::GET | Method::HEAD);
    let says = |name: &str, value: &str| values(headers, name) == [Some(value)];
    is_safe && says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// A host, as one can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    /// In small letters, without the dot that may end it.
    Name(String),
}

impl Host {
    /// One that is no IPv6 address.
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        (!name.is_empty() && name.chars().all(is_plain)).then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// `HOST` or `HOST:PORT`; an IPv6 address is in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    host: Host,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (address, rest) = bracketed.split_once(']')?;
                (Host::Address(address.parse::<Ipv6Addr>().ok()?.into()), rest)
            }
            None => {
                let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
                (Host::parse(host)?, rest)
            }
        };
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            // `HOST:` is `HOST` (RFC 3986, 3.2.3).
            Some("") => None,
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Some(digits.parse().ok()?),
            _ => return None,
        };
        Some(Self { host, port })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn ours() -> HostNames {
        HostNames::new().with_own("Node1.Example.org").with_own("coordinator1:19999").with_listed(["cache.example.com"])
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn judged(uri: &str, lines: &[(&'static str, &str)]) -> Result<(), Refusal> {
        ours().judge(&Method::GET, &uri.parse().unwrap(), &headers(lines))
    }

    fn status(lines: &[(&'static str, &str)]) -> u16 {
        judged("/", lines).err().map_or(200, |refusal| refusal.status().as_u16())
    }

    #[test]
    fn addresses_localhost_and_the_own_names_are_answered() {
        for host in [
            "10.0.0.5",
            "10.0.0.5:19999",
            "203.0.113.7:80",
            "[::1]:19999",
            "[fd00::1]",
            "localhost:30000",
            "LOCALHOST",
            "localhost.",
            "localhost:",
            "node1.example.org:30000",
            "node1:30000",
            "NODE1",
            "coordinator1",
            "cache.example.com",
        ] {
            assert_eq!(status(&[("host", host)]), 200, "{host}");
        }
    }

    #[test]
    fn a_name_that_was_led_here_is_misdirected() {
        for host in [
            "evil.example:19999",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "node1.evil.example",
            "example.org",
            "xcache.example.com",
            "a.cache.example.com",
            "cache",
            "2130706433",
            "0x7f.1",
            "127.1",
            "127.0.0.1.",
        ] {
            assert_eq!(status(&[("host", host)]), 421, "{host}");
        }
        assert_eq!(judged("/", &[("host", "Evil.example:1")]), Err(Refusal::Host("evil.example".to_owned())));
    }

    #[test]
    fn a_request_that_names_no_host_or_several_is_malformed() {
        assert_eq!(status(&[]), 400);
        assert_eq!(status(&[("host", "localhost"), ("host", "localhost")]), 400);
        for host in [
            "",
            ":80",
            "user@localhost",
            "localhost:80:80",
            "localhost:+80",
            "localhost:99999",
            "local host",
            "localhost/",
            "::1",
            "[::1",
            "[::1]80",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "localhost,evil.example",
            "l\u{f6}calhost",
        ] {
            let value = HeaderValue::from_bytes(host.as_bytes()).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("host", value);
            assert_eq!(ours().judge(&Method::GET, &Uri::from_static("/"), &headers), Err(Refusal::Malformed), "{host}");
        }
    }

    #[test]
    fn what_an_absolute_uri_asks_for_counts_as_well_as_host() {
        let host = [("host", "localhost")];
        assert_eq!(judged("http://localhost/healthz", &host), Ok(()));
        assert_eq!(judged("http://10.0.0.5:1/healthz", &host), Ok(()));
        assert!(matches!(judged("http://evil.example/healthz", &host), Err(Refusal::Host(_))));
        assert!(matches!(judged("http://localhost/", &[("host", "evil.example")]), Err(Refusal::Host(_))));
        assert_eq!(judged("http://user@localhost/", &host), Err(Refusal::Malformed));
        assert_eq!(judged("http://localhost/", &[]), Err(Refusal::Malformed));
    }

    #[test]
    fn a_page_of_ours_may_ask_and_one_of_another_origin_not() {
        let from = |host: &'static str, origin: &'static str| status(&[("host", host), ("origin", origin)]);
        for (host, origin) in [
            ("10.0.0.5:19999", "http://10.0.0.5:19999"),
            ("[::1]:19999", "http://[::1]:19999"),
            ("localhost:80", "http://localhost"),
            ("node1", "http://node1:80"),
            // Behind an ingress with TLS, which passes the name on, or asks us by another one.
            ("cache.example.com", "https://cache.example.com"),
            ("coordinator1:19999", "https://cache.example.com"),
            ("10.0.0.5:19999", "https://cache.example.com:8443"),
        ] {
            assert_eq!(from(host, origin), 200, "{origin} asks {host}");
        }
        for (host, origin) in [
            ("10.0.0.5:19999", "http://evil.example"),
            ("10.0.0.5:19999", "null"),
            ("10.0.0.5:19999", ""),
            ("10.0.0.5:19999", "10.0.0.5:19999"),
            ("10.0.0.5:19999", "http://203.0.113.7:19999"),
            ("10.0.0.5:19999", "http://10.0.0.5:8080"),
            ("10.0.0.5:19999", "http://10.0.0.5"),
            ("10.0.0.5:19999", "http://localhost:19999"),
            ("localhost:19999", "http://localhost:3000"),
            ("localhost:80", "https://localhost"),
            ("node1:19999", "http://coordinator1:19999"),
            ("localhost", "chrome-extension://localhost"),
            ("localhost", "http://localhost/"),
            ("localhost", "http://evil@localhost"),
        ] {
            assert_eq!(from(host, origin), 403, "{origin} asks {host}");
        }
        let twice = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert_eq!(status(&twice), 403);
    }

    #[test]
    fn across_sites_a_page_is_opened_and_nothing_else_is_asked() {
        let across = ("sec-fetch-site", "cross-site");
        let host = ("host", "localhost");
        assert_eq!(status(&[host, across]), 403);
        assert_eq!(status(&[host, ("sec-fetch-site", "same-origin")]), 200);
        let (mode, dest) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        assert_eq!(status(&[host, across, mode, dest]), 200, "a link");
        assert_eq!(status(&[host, across, mode, ("sec-fetch-dest", "iframe")]), 403);
        assert_eq!(status(&[host, across, ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")]), 403);
        let form = ours().judge(&Method::POST, &Uri::from_static("/"), &headers(&[host, across, mode, dest]));
        assert_eq!(form, Err(Refusal::Origin));
    }

    #[test]
    fn each_refusal_says_what_to_set() {
        for refusal in [Refusal::Host("evil.example".to_owned()), Refusal::Origin] {
            assert!(refusal.remedy().contains("`network.http.hosts`"), "{refusal}");
        }
    }

    #[test]
    fn what_is_no_name_adds_none() {
        let none = HostNames::new().with_own("10.0.0.5:1").with_own("[::1]:1").with_own("fd00::1").with_own("a b");
        assert_eq!(none.with_listed(["10.0.0.5", "a/b", ""]), HostNames::new());
    }

    proptest! {
        #[test]
        fn whatever_a_host_is_it_is_an_address_a_known_name_or_refused(host in "\\PC{0,24}") {
            let Ok(value) = HeaderValue::from_str(&host) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert("host", value);
            let judged = HostNames::new().judge(&Method::GET, &Uri::from_static("/"), &headers);
            let name = host.split(':').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
            let is_address = name.parse::<Ipv4Addr>().is_ok() || host.starts_with('[');
            prop_assert!(judged.is_err() || is_address || name == "localhost", "{host:?}");
        }
    }
}
