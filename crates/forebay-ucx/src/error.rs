//! What can go wrong, in words that say what to do.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use forebay_types::ByteSize;
use forebay_ucx_sys as sys;

/// How UCX says that something ended: `ucs_status_t`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub(crate) sys::ucs_status_t);

impl Status {
    /// It worked.
    pub const OK: Self = Self(sys::UCS_OK);
    /// UCX got no memory for it.
    pub const NO_MEMORY: Self = Self(sys::UCS_ERR_NO_MEMORY);
    /// The endpoint was closed before the operation ended.
    pub const CANCELED: Self = Self(sys::UCS_ERR_CANCELED);
    /// A device that was there is gone.
    pub const NO_DEVICE: Self = Self(sys::UCS_ERR_NO_DEVICE);
    /// The peer closed, or died.
    pub const CONNECTION_RESET: Self = Self(sys::UCS_ERR_CONNECTION_RESET);
    /// The peer said no, or no process listens there.
    pub const REJECTED: Self = Self(sys::UCS_ERR_REJECTED);

    /// UCX's number for it; negative for errors.
    #[must_use]
    pub fn code(self) -> i32 {
        self.0.into()
    }

    /// `Ok` for [`Status::OK`], the status as an error otherwise.
    pub(crate) fn into_result(self) -> Result<(), Error> {
        if self == Self::OK { Ok(()) } else { Err(Error::Ended(self)) }
    }

    fn text(self) -> Option<&'static str> {
        Some(match self.0 {
            sys::UCS_OK => "success",
            sys::UCS_INPROGRESS => "in progress",
            sys::UCS_ERR_NO_RESOURCE => "no resources available",
            sys::UCS_ERR_IO_ERROR => "input/output error",
            sys::UCS_ERR_NO_MEMORY => "out of memory",
            sys::UCS_ERR_INVALID_PARAM => "invalid parameter",
            sys::UCS_ERR_UNREACHABLE => "destination is unreachable",
            sys::UCS_ERR_INVALID_ADDR => "address not valid",
            sys::UCS_ERR_NOT_IMPLEMENTED => "not implemented",
            sys::UCS_ERR_MESSAGE_TRUNCATED => "message truncated",
            sys::UCS_ERR_NO_ELEM => "no such element",
            sys::UCS_ERR_NO_DEVICE => "no such device",
            sys::UCS_ERR_BUSY => "device is busy",
            sys::UCS_ERR_CANCELED => "canceled",
            sys::UCS_ERR_SHMEM_SEGMENT => "shared memory error",
            sys::UCS_ERR_TIMED_OUT => "timed out",
            sys::UCS_ERR_EXCEEDS_LIMIT => "limit exceeded",
            sys::UCS_ERR_UNSUPPORTED => "unsupported",
            sys::UCS_ERR_REJECTED => "rejected",
            sys::UCS_ERR_NOT_CONNECTED => "not connected",
            sys::UCS_ERR_CONNECTION_RESET => "connection reset by the peer",
            sys::UCS_ERR_ENDPOINT_TIMEOUT => "endpoint timed out",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "UCX status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({}: {self})", self.0)
    }
}

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no libucp to use.
    #[error(transparent)]
    Load(#[from] sys::LoadError),
    /// A process can have one libucp, and has another.
    #[error("cannot load {wanted}: the process already uses {loaded}; restart it to change libraries")]
    OtherLibrary {
        /// The one in use.
        loaded: PathBuf,
        /// The one asked for.
        wanted: PathBuf,
    },
    /// A setting that this version of UCX does not have.
    #[error("UCX {version} has no option {key}; `ucx_info -f` lists those it has")]
    UnknownOption {
        /// The name, without `UCX_`.
        key: String,
        /// The version of the library.
        version: sys::Version,
    },
    /// A value that the setting does not take.
    #[error("UCX option {key} does not take {value:?}; `ucx_info -f -c` says what it takes")]
    InvalidOption {
        /// The name, without `UCX_`.
        key: String,
        /// The value.
        value: String,
    },
    /// No context with these settings.
    #[error("UCX cannot start with {settings}: {status}; `ucx_info -d` lists the devices and transports there are")]
    Context {
        /// The devices and transports asked for.
        settings: String,
        /// UCX's reason.
        status: Status,
    },
    /// A worker could not be made or be driven.
    #[error("UCX cannot {what}: {status}")]
    Worker {
        /// What was attempted.
        what: &'static str,
        /// UCX's reason.
        status: Status,
    },
    /// The system did not take the worker's event descriptor.
    #[error("cannot wait for the events of a UCX worker: {0}")]
    Events(String),
    /// The worker is being driven already.
    #[error("the UCX worker is already being driven")]
    AlreadyDriven,
    /// Registering would lock more memory than this user may.
    #[error(
        "cannot register {size} of memory: the limit of locked memory is {limit}; raise it (`ulimit -l unlimited`, \
         LimitMEMLOCK=infinity in a systemd unit, or the capability IPC_LOCK) or make the buffer pool smaller"
    )]
    LockedMemory {
        /// What was to be registered.
        size: ByteSize,
        /// `ulimit -l`.
        limit: ByteSize,
    },
    /// Memory could not be registered.
    #[error("cannot register {size} of memory: {status}")]
    Register {
        /// What was to be registered.
        size: ByteSize,
        /// UCX's reason.
        status: Status,
    },
    /// The address is taken.
    #[error("cannot listen on {address}: the port is in use; stop whoever listens there, or choose another port")]
    PortBusy {
        /// The address.
        address: SocketAddr,
    },
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {status}; the address must belong to a device that UCX may use")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// UCX's reason.
        status: Status,
    },
    /// No endpoint could be made.
    #[error("cannot connect to {address}: {status}")]
    Connect {
        /// The peer, or `unknown`.
        address: String,
        /// UCX's reason.
        status: Status,
    },
    /// The number is taken by another handler of the worker.
    #[error("active message {0} already has a handler")]
    HandlerTaken(u16),
    /// The number is beyond those that are received.
    #[error("active message {id} is not below {limit}")]
    MessageNumber {
        /// The number.
        id: u16,
        /// The first that is too large.
        limit: u16,
    },
    /// The header of an active message is longer than the transports in use can send.
    #[error("an active message header of {length} bytes is over the limit of {limit}")]
    HeaderTooLong {
        /// Its length in bytes.
        length: usize,
        /// What the worker's transports take.
        limit: usize,
    },
    /// An old UCX would abort the process.
    #[error(
        "UCX older than 1.16 cannot send {length} bytes before the peer has answered a message of at most {limit}; greet first"
    )]
    TooEarly {
        /// The data's length in bytes.
        length: usize,
        /// The most that may be sent.
        limit: usize,
    },
    /// The buffers given are too small for the message.
    #[error("a message of {length} bytes does not fit in {room}")]
    BufferTooSmall {
        /// The message's length in bytes.
        length: usize,
        /// The buffers' length in bytes.
        room: usize,
    },
    /// Memory of one context given to the endpoint of another, or memory that is not registered to be exposed.
    #[error("the memory is not registered with the context of this endpoint")]
    NotRegistered,
    /// Outside the memory that the peer exposed.
    #[error("bytes {offset} to {offset}+{length} are outside the {size} that the peer exposed")]
    OutOfBounds {
        /// Where the access starts, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        length: usize,
        /// What is exposed.
        size: ByteSize,
    },
    /// A packed key that is no key, or not one of a memory that this endpoint can reach.
    #[error("the peer's memory key cannot be used: {0}")]
    RemoteKey(String),
    /// The endpoint was closed by this side.
    #[error("the endpoint is closed")]
    Closed,
    /// The operation ended without success.
    #[error("{0}")]
    Ended(Status),
}
