//! What carries requests and answers between the kernel and [`crate::Dispatch`].
//!
//! * [`device`]: `/dev/fuse`, read and written, long answers through a [`pipe`]. Always there: it carries what a ring cannot, everything before the rings are
//!   live, and everything where there are none.
//! * [`ring`]: io_uring, a queue a processor.
//!
//! Both end when the kernel ends the mount, and contain panics: a request that panicked is answered `EIO`, and the next one is
//! taken.

pub(crate) mod batch;
pub(crate) mod busy_poll;
pub(crate) mod descriptor;
pub(crate) mod device;
pub(crate) mod pause;
pub(crate) mod pipe;
pub(crate) mod ring;
