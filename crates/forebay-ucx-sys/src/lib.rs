//! Raw bindings to the part of UCX's UCP interface that Forebay uses, loaded at run time.
//!
//! One binary must run on hosts with and without UCX, and with whatever version of it the host's distribution, NIC
//! vendor or Python environment brings. So nothing is linked: [`load()`] finds `libucp`, checks its version and resolves
//! every function of [`Ucp`], or says in words why not. A library is never unloaded: UCX leaves threads and hooks behind.
//!
//! The declarations are those of UCX 1.23, checked in (`bindgen.sh` made them). They hold for 1.13 to 1.23 and, UCX
//! promising a stable ABI within a major version, for later ones: from 1.13 on, structures only grew at the end, every
//! field is behind a bit of a mask, and no constant changed its number; the headers of six versions between were
//! compared. Fields that are newer than the library are gated by [`Loaded::version`]: an old library ignores mask bits
//! that it does not know, and leaves what they ask for unset. The only such field in use is
//! `ucp_ep_attr.transports`, from 1.14.
//!
//! No safety here: `forebay-ucx` is the crate to use.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod load;
mod search;

// Generated: names, documentation and safety comments are those of the C header.
#[allow(
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    dead_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings;

pub use bindings::*;
pub use load::{LIBRARY_VARIABLE, LoadError, Loaded, LogHandler, NEWEST_KNOWN, OLDEST, Version, load};

/// The datatype of plain bytes: `ucp_dt_make_contig(1)`, a macro of the header.
pub const DATATYPE_BYTES: ucp_datatype_t = (1 << UCP_DATATYPE_SHIFT) | UCP_DATATYPE_CONTIG as ucp_datatype_t;
/// The datatype of an array of [`ucp_dt_iov_t`]: `ucp_dt_make_iov()`, a macro of the header.
pub const DATATYPE_IOV: ucp_datatype_t = UCP_DATATYPE_IOV as ucp_datatype_t;
/// What `ucp_config_print` and its kin print: the settings.
pub const CONFIG_PRINT_CONFIG: std::ffi::c_int = 1;
/// What they are, and which group each is of.
pub const CONFIG_PRINT_DOC: std::ffi::c_int = 4;
/// Hidden settings too.
pub const CONFIG_PRINT_HIDDEN: std::ffi::c_int = 8;
