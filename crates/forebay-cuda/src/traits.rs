//! What is asked of CUDA.

use std::fmt;
use std::ptr::NonNull;

use crate::error::Error;
use crate::handles::{Access, Context, Device, DeviceAddress, Event, Stream};

/// CUDA, as far as it is needed.
///
/// All but the first three functions want a current context on the thread that calls them ([`Cuda::make_current`]). Handles belong to the
/// implementation that gave them, and to that context. Nothing of it works in a process that was forked from the one that used it first:
/// every call is an error there.
///
/// The contract of a copy: [`Cuda::copy`] may return before anything was copied. The copy reads its source, and writes its destination, at
/// any time until an event that was recorded after it has completed. An error of [`Cuda::has_completed`] means that the context is
/// broken: nothing of it runs any more, and nothing will.
pub trait Cuda: fmt::Debug + Send + Sync + 'static {
    /// How many devices there are.
    ///
    /// # Errors
    /// The driver's.
    fn devices(&self) -> Result<u32, Error>;

    /// The device whose memory an address is; `None` for memory of the host, and for what is no memory at all.
    ///
    /// # Errors
    /// The driver's.
    fn device_of(&self, address: DeviceAddress) -> Result<Option<Device>, Error>;

    /// The context of `device` that the whole process shares, kept until [`Cuda::release`] has been called as often as this.
    ///
    /// # Errors
    /// [`Error::NoDevice`], and the driver's.
    fn retain(&self, device: Device) -> Result<Context, Error>;

    /// Has this thread use `context`, and whatever it does be no part of graphs: a program may capture its streams while others read.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `context` is of this implementation and retained.
    unsafe fn make_current(&self, context: Context) -> Result<(), Error>;

    /// Lets go of the context of `device`. Handles that were made in it are not used any more.
    ///
    /// # Safety
    /// It was retained, and once for each call of this.
    unsafe fn release(&self, device: Device);

    /// Whether memory that is mapped for reading only can be registered for `device`.
    ///
    /// # Errors
    /// The driver's.
    fn registers_read_only(&self, device: Device) -> Result<bool, Error>;

    /// Pins memory and makes it known to all devices, so that they copy from it without the processor. Whole pages.
    ///
    /// # Errors
    /// The driver's: memory that is registered already, or that cannot be pinned.
    ///
    /// # Safety
    /// The memory is mapped until it is no longer registered.
    unsafe fn register(&self, start: NonNull<u8>, length: usize, access: Access) -> Result<(), Error>;

    /// The reverse, of all that was registered at `start`.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// No copy that has not completed reads there.
    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<(), Error>;

    /// A new stream, whose copies wait for no other stream.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<Stream, Error>;

    /// Whether `stream`, which may be another's, is captured: what is put on it is not carried out, but recorded for a graph.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// It is a stream of the current context, or the default one.
    unsafe fn is_captured(&self, stream: Stream) -> Result<bool, Error>;

    /// Ends a stream.
    ///
    /// # Safety
    /// It is of this implementation, not the default one, and not used after this.
    unsafe fn end_stream(&self, stream: Stream);

    /// A new event, which has completed.
    ///
    /// # Errors
    /// The driver's.
    fn event(&self) -> Result<Event, Error>;

    /// Ends an event.
    ///
    /// # Safety
    /// It is of this implementation, and not used after this.
    unsafe fn end_event(&self, event: Event);

    /// Begins to copy `length` bytes after all that `stream` has.
    ///
    /// # Errors
    /// The driver's. Nothing was begun then.
    ///
    /// # Safety
    /// Until the copy has completed (see above) the source is mapped, its bytes stay as they are, and nobody relies on what is at `to`. The
    /// stream is of this implementation.
    unsafe fn copy(&self, to: DeviceAddress, from: NonNull<u8>, length: usize, stream: Stream) -> Result<(), Error>;

    /// From now on `event` completes when all that `stream` has by now is done.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Both are of this implementation; the stream may be another one of the same context, in use by others.
    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Error>;

    /// What `stream` is given from now on is carried out after `event` has completed.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Both are of this implementation.
    unsafe fn follow(&self, stream: Stream, event: Event) -> Result<(), Error>;

    /// Whether `event` has completed. Never waits.
    ///
    /// # Errors
    /// The driver's, of this or of what was under way: see above.
    ///
    /// # Safety
    /// It is of this implementation.
    unsafe fn has_completed(&self, event: Event) -> Result<bool, Error>;
}
