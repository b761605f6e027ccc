//! What a program of another language reads through: the part of every binding that knows nothing of its language.
//!
//! * [`mod@runtime`]: one runtime in a process, whoever uses it, which lasts as long as the process;
//! * [`mod@fork`]: which process a value was made in, so that a forked child neither uses nor drops what is its parent's;
//! * [`mod@log`]: what happens, for the log of the program;
//! * [`Settings`]: what a session is made from, which is all of it that crosses to another process;
//! * [`Session`]: a client of workers, or of a worker in this process; names, listings and open files;
//! * [`Read`] and [`CallerMemory`]: any number of reads in one call, into memory of the caller's;
//! * [`DeviceRead`]: reads into memory of a GPU, which copies by itself what has come while more is read;
//! * [`Writer`], and the session's changes: files are written whole and copied, names removed, directories made;
//! * [`Range`]: what a program announces that it will read;
//! * [`View`]: bytes where they lie in the cache, which stay as they are for as long as there is the view;
//! * [`Error`]: an errno, what failed, what to do, and the path.
//!
//! Two rules make it safe to hand memory of a garbage-collected language to it. Only the future that was given a [`CallerMemory`] ever
//! writes to it, between two awaits: once that future has ended or was dropped, nobody does. And no task, no thread and no future of
//! this crate calls back into the language.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod batch;
mod caller_memory;
mod changes;
mod device;
mod devices;
mod error;
pub mod fork;
mod handles;
pub mod log;
mod nearby;
mod node_thread;
mod parts;
pub mod runtime;
mod session;
mod settings;
mod upload;
mod view;
mod walk;

pub use caller_memory::CallerMemory;
pub use changes::{Existing, Writer};
pub use device::{DeviceRead, DeviceStream};
pub use devices::count as count_devices;
pub use error::{Error, ErrorClass};
pub use forebay_client::{FetchTo, OpenFile};
pub use session::{Place, Range, Read, Session};
pub use settings::Settings;
pub use view::View;
pub use walk::{Entry, Walk, Within};
