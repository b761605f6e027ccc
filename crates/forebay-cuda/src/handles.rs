//! What CUDA gives names to.

use std::fmt;

/// A device, by the number that CUDA gives it: of those that `CUDA_VISIBLE_DEVICES` leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(pub u32);

/// An address of a device's memory, which nothing on the host can look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

/// A context of a device, as the implementation knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(pub usize);

/// A stream: its copies are carried out one after the other. 0 is the default stream of the current context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// An event: a moment of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub usize);

/// How a device uses memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may be mapped for reading only.
    ReadOnly,
    /// It is mapped for writing, too.
    ReadWrite,
}

impl Stream {
    /// `CU_STREAM_PER_THREAD`: the default stream of whichever thread uses it.
    pub const PER_THREAD: Self = Self(2);
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.0)
    }
}
