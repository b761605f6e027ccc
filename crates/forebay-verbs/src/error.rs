//! What can go wrong, and what helps.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

use forebay_types::ByteSize;

/// Why something of verbs failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A library is missing.
    #[error(
        "{library} cannot be loaded: {reason}; install it (Debian: ibverbs-providers and librdmacm1, Fedora: libibverbs and \
         librdmacm)"
    )]
    Library {
        /// Its soname.
        library: &'static str,
        /// The dynamic linker's words.
        reason: String,
    },
    /// There is no such card.
    #[error("there is no RDMA device `{name}`, only {found}; `rdma link` lists them")]
    NoDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        found: String,
    },
    /// The card refuses to use memory.
    #[error("cannot register {size} with {device}: {reason}; see `ulimit -l`, or LimitMEMLOCK= of the systemd unit")]
    Register {
        /// How much.
        size: ByteSize,
        /// The card.
        device: String,
        /// The system's words.
        reason: String,
    },
    /// An address cannot be had.
    #[error("cannot use {address} for RDMA: {reason}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// Somebody else has it.
        is_taken: bool,
        /// The system's words.
        reason: String,
    },
    /// Anything else that the library refuses.
    #[error("cannot {what}: {reason}")]
    Refused {
        /// What was to be done.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
}

/// The last call of a function that sets `errno` failed.
pub(crate) fn refused(what: &'static str) -> Error {
    Error::Refused { what, reason: io::Error::last_os_error().to_string() }
}

/// Of a function that sets `errno` and returns -1, as those of librdmacm do.
pub(crate) fn by_errno(what: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(refused(what)) }
}

/// Of a function that returns an `errno`, as those of libibverbs do.
pub(crate) fn by_result(what: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    let reason = io::Error::from_raw_os_error(result.abs()).to_string();
    Err(Error::Refused { what, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_named_in_the_systems_words() {
        assert_eq!(by_result("post a receive", 0), Ok(()));
        for result in [libc::ENOMEM, -libc::ENOMEM] {
            let text = by_result("post a receive", result).unwrap_err().to_string();
            assert!(text.starts_with("cannot post a receive: ") && text.contains("memory"), "{text}");
        }
    }
}
