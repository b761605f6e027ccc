//! Raw bindings to the parts of libibverbs and librdmacm that Forebay uses, loaded at run time.
//!
//! One binary must run on hosts with and without RDMA, so nothing is linked: [`load`] and [`load_cm`] resolve every function
//! of [`Ibverbs`] and [`Rdmacm`] in the libraries that the host has, or none. Half of the interface is no functions of the
//! library but inline ones of the header, which go through a table in the device's context ([`ibv_context_ops`]); they are here
//! as functions of the same names.
//!
//! The layouts are those of the stable ABI (`IBVERBS_1.1` and `RDMACM_1.0`, in use since 2006): structures only grew at the
//! end. Those that the library makes and that are reached through a pointer have their beginning here; those that we make and
//! it fills have room for more. `tests/layout.rs` compares all of them with the headers of the machine that it runs on; in
//! rdma-core 44 (Debian 12) and 64 what is used lies in the same places. Names are those of `infiniband/verbs.h` and `rdma/rdma_cma.h`.
//!
//! No safety here: a function's contract is its manual page; `forebay-verbs` is the crate to use.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]
#![allow(non_camel_case_types, reason = "names are those of the C headers")]

#[macro_use]
mod functions;
mod calls;
mod cm;
mod states;
mod verbs;

pub use calls::*;
pub use cm::*;
pub use states::*;
pub use verbs::*;
