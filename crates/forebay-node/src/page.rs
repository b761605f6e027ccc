//! The web page of a standalone node: whether there is one, and what it demands, a token of this process.
//!
//! The token is in no file. It goes to the person in the fragment of a URL, which a browser does not send, and from the
//! page's memory into the head of each request. So the page itself is open, and has nothing to hide.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_identity::{LiveTokens, TokenError, new_token};
use forebay_metrics::Access;
use forebay_types::Role;

/// Whether a standalone node serves its web page, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    /// It does not.
    #[default]
    None,
    /// At the configured port, or a free one if that is taken.
    AnyPort,
    /// At this port.
    Port(u16),
}

/// A token, and what listeners demand that take it. Whoever has it may ask them for everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PageToken {
    text: Arc<str>,
    access: Access,
}

impl PageToken {
    /// A new one, which nobody can guess.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn new() -> Result<Self, TokenError> {
        let token = new_token()?;
        let access = Access::by_token(LiveTokens::only(&token, Role::Admin));
        Ok(Self { text: token.as_str().into(), access })
    }

    /// What a listener on loopback demands that is for who has it.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// The URL of the page at `address`, for the one who may have the token.
    pub(crate) fn url(&self, address: SocketAddr) -> String {
        format!("http://{address}/#token={}", self.text)
    }
}
