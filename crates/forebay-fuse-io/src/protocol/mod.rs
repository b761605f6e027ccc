//! The FUSE protocol, version 7, as functions of bytes: no descriptor, no memory of its own, no `unsafe`.
//!
//! A message of the kernel is a header, the head of its operation, which has a fixed size, and a tail: names or what is to be
//! written. `/dev/fuse` has them one after the other, a ring in three places; [`request::parse`] takes head and tail and so
//! does not care. It is given what the kernel wrote and trusts none of it: any bytes give an operation or
//! [`Malformed`](request::Malformed), and never a panic.
//!
//! Numbers are in the machine's byte order. What of the protocol we speak:
//!
//! | part | where |
//! | --- | --- |
//! | numbers: operations, bits, sizes, commands | [`abi`] |
//! | what the kernel asks | [`request`] |
//! | what it is answered | [`encode`], and for directories [`names`] |
//! | what both can, told once at the start | [`init`] |
//! | what the kernel is told unasked | [`notify`] |
//!
//! Not spoken: locks (the kernel keeps them locally), `ioctl`, `poll`, extensions, the write-back cache, `DAX`, splicing.

pub mod abi;
pub mod encode;
mod fields;
pub mod init;
mod malformed;
pub mod names;
pub mod notify;
pub mod request;

pub use fields::Record;
