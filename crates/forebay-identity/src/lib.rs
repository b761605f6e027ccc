//! Who a process is, and whom it believes.
//!
//! ```text
//!   the cluster's key ──HKDF──► an authority for each role ──signs──► a certificate of this process, for hours
//!   tls.crt, tls.key, ca.crt ──────────── read, checked as a pair ──► (ADR 0022)
//!                                                                        │
//!              Watch: looks at the files ──► Material ──► LiveIdentity ◄── TLS configurations, at each handshake
//! ```
//!
//! | question | file |
//! | --- | --- |
//! | How is an identity written? | `name.rs` |
//! | How does everything follow from one key? | `cluster_key.rs`, `p256.rs`, `authority.rs` |
//! | Who is believed? | `trust.rs` |
//! | Until when are certificates valid? | `validity.rs` |
//! | How is a certificate replaced while a process runs? | `source.rs`, `live.rs` |
//! | What is spoken? | `tls.rs` |
//! | Who is at the other end of a connection, and is it who was meant? | `proof.rs` |
//! | What does somebody show who has no certificate? | `token.rs` |
//! | And on a connection that proves nothing itself, as over RDMA? | `pass.rs` |
//! | Who asked for what, for whoever keeps a record of it? | `audit.rs` |
//! | Who is who in tests? | `testing.rs` |
//!
//! The crate does no network I/O and knows no clock: times are handed in.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod audit;
mod authority;
mod cluster_key;
mod credentials;
mod denied;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod live;
mod name;
mod p256;
mod pass;
mod proof;
mod provider;
mod secret_file;
mod source;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod token;
mod trust;
mod validity;

pub use audit::{Audit, AuditEvent, AuditOutcome, AuditPeer, Auditing};
pub use authority::Authority;
pub use cluster_key::{ClusterKey, ClusterKeys};
pub use credentials::{Credentials, certificates_pem};
pub use denied::DeniedFile;
pub use error::{IdentityError, IssueError, KeyError, LoadError, PassError, TokenError};
pub use live::{LiveIdentity, Material, Standing, Unusable};
pub use name::{Identity, NameError, Scope};
pub use pass::{PASS_LIFETIME, Pass, Passes, random_number};
pub use proof::{ClientProof, ServerProof, Unproved};
pub use secret_file::{FileError, read_secret};
pub use source::{AuthoritySource, Reload, Settings, Source, Watch};
pub use tls::{client_config, http_client_config, http_server_config, reason, server_config};
pub use token::{LiveTokens, TokenFile, may_hold_token, new_token};
pub use trust::{Peer, Side, Trust};
pub use validity::{CLOCK_SKEW, CertificateSummary, certificate_summaries};
