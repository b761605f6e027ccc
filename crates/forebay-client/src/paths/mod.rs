//! Several paths to one worker behind one link.
//!
//! [`WorkerLink`] is a worker's link: it asks for the worker's paths, one set for data and one for attributes and
//! listings, which are small and must not wait behind blocks. Each set is a [`PathsTransport`], which takes for each
//! request the path that its [`PathSelector`] says. Where there are several cards, it divides large reads among them.

mod cards;
mod link;
mod selector;
mod shared;
mod stats;
mod striped;
mod striping;
mod transport;

pub use cards::CardTraffic;
pub use link::{PathMaker, WorkerLink, WorkerPaths};
pub use selector::{Choice, Fallback, Look, PathKind, PathPolicy, PathSelector, Ping, Switch};
pub use shared::{Path, PathOptions};
pub use stats::{PathReport, PathStats, StripingStats, WorkerReport};
pub use transport::PathsTransport;
