//! Several paths to one worker behind one link.
//!
//! [`WorkerLink`] is a worker's link: it asks for the worker's paths, one set for data and one for attributes and listings,
//! which are small and must not wait behind blocks. Each set is a [`PathsTransport`], which takes for each request the path that
//! its [`PathSelector`] says.

mod link;
mod selector;
mod stats;
mod transport;

pub use link::{PathMaker, WorkerLink, WorkerPaths};
pub use selector::{Choice, Fallback, Look, PathKind, PathPolicy, PathSelector, Ping, Switch};
pub use stats::{PathReport, PathStats, WorkerReport};
pub use transport::{Path, PathOptions, PathsTransport};
