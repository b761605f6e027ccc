//! Raw bindings to the part of CUDA's driver API that Forebay uses, loaded at run time.
//!
//! One binary must run on hosts with and without a GPU, so nothing is linked: [`load()`] finds `libcuda.so.1`, which comes with the kernel's
//! driver, and resolves every function of [`Libcuda`], or says in words why not. The library stays loaded: it has threads of its own.
//!
//! The driver's interface is stable: a function whose meaning changes gets another symbol (`cuMemHostRegister_v2`), and the old one stays.
//! The header hides that behind macros; here each function has the header's name, and `load.rs` the symbol that CUDA 12's header makes of
//! it. All of them are there since CUDA 11. `tests/header.rs` compares names, types and numbers with the header of a machine that has it.
//!
//! No safety here: a function's contract is NVIDIA's manual of the driver API; `forebay-cuda` is the crate to use.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]
#![allow(non_camel_case_types, reason = "names are those of the C header")]

mod load;
mod types;

pub use load::{Libcuda, SONAME, load};
pub use types::*;
