//! CUDA's driver: the library that the machine has, or none.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use forebay_cuda_sys as sys;

use crate::error::Error;
use crate::handles::{Access, Context, Device, DeviceAddress, Event, Stream};
use crate::traits::Cuda;

/// The variable by which the tests of this project name a library in the place of the machine's. It is no setting.
pub const LIBRARY_OF_TESTS: &str = "TESTS_OF_FOREBAY_CUDA_LIBRARY";

/// The driver of this machine, once it was asked for.
static SHARED: OnceLock<Result<Arc<Driver>, Error>> = OnceLock::new();

/// The library, loaded and begun.
pub struct Driver {
    functions: sys::Libcuda,
    version: c_int,
}

impl Driver {
    /// The driver of this machine, loaded when it is first asked for and never unloaded. That may take a second, and more with many GPUs.
    ///
    /// # Errors
    /// [`Error::Library`] where there is none, and the driver's own: the same for as long as the process lives.
    pub fn shared() -> Result<Arc<Self>, Error> {
        SHARED
            .get_or_init(|| {
                let named = std::env::var_os(LIBRARY_OF_TESTS).filter(|name| !name.is_empty());
                Self::load(named.as_deref().map(Path::new)).map(Arc::new)
            })
            .clone()
    }

    /// What [`Driver::shared`] gave, if it was called: without waiting for anything.
    #[must_use]
    pub fn begun() -> Option<Result<Arc<Self>, Error>> {
        SHARED.get().cloned()
    }

    /// The driver `path`, or the machine's.
    ///
    /// # Errors
    /// As [`Driver::shared`].
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        let functions = sys::load(path).map_err(|reason| Error::Library { reason })?;
        let mut driver = Self { functions, version: 0 };
        let mut version = 0;
        // SAFETY: no argument but flags, of which there are none.
        driver.checked("begin to use CUDA", unsafe { (driver.functions.cuInit)(0) })?;
        // SAFETY: a place for the answer.
        driver.checked("ask for CUDA's version", unsafe { (driver.functions.cuDriverGetVersion)(&raw mut version) })?;
        driver.version = version;
        tracing::debug!(version, "loaded CUDA's driver");
        Ok(driver)
    }

    fn checked(&self, what: &'static str, result: sys::CUresult) -> Result<(), Error> {
        if result == sys::CUDA_SUCCESS { Ok(()) } else { Err(self.refused(what, result)) }
    }

    #[cold]
    fn refused(&self, what: &'static str, code: sys::CUresult) -> Error {
        let name = self.text(self.functions.cuGetErrorName, code).unwrap_or_else(|| format!("CUDA error {code}"));
        let text = self.text(self.functions.cuGetErrorString, code).unwrap_or_else(|| "unknown".to_owned());
        Error::Driver { what, name, code, text }
    }

    /// What one of the two functions says of a result.
    fn text(
        &self,
        of: unsafe extern "C" fn(sys::CUresult, *mut *const c_char) -> sys::CUresult,
        code: sys::CUresult,
    ) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: a place for the answer.
        let result = unsafe { of(code, &raw mut text) };
        if result != sys::CUDA_SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: the driver gives a C string that it keeps.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The driver's handle of a device.
    fn handle_of(&self, device: Device) -> Result<sys::CUdevice, Error> {
        let missing = |count| Error::NoDevice { device, count };
        let mut handle = 0;
        let Ok(ordinal) = c_int::try_from(device.0) else { return Err(missing(self.devices()?)) };
        // SAFETY: a place for the answer.
        match unsafe { (self.functions.cuDeviceGet)(&raw mut handle, ordinal) } {
            sys::CUDA_ERROR_INVALID_DEVICE => Err(missing(self.devices()?)),
            result => self.checked("find the device", result).map(|()| handle),
        }
    }

    /// An attribute of a pointer; `None` for what CUDA does not know.
    ///
    /// # Safety
    /// `T` is the type of the attribute.
    unsafe fn attribute<T: Default>(&self, attribute: c_int, address: DeviceAddress) -> Result<Option<T>, Error> {
        let mut answer = T::default();
        let place = (&raw mut answer).cast::<c_void>();
        // SAFETY: the caller's: the answer is of this type. Any address may be asked about.
        match unsafe { (self.functions.cuPointerGetAttribute)(place, attribute, address.0) } {
            sys::CUDA_ERROR_INVALID_VALUE => Ok(None),
            result => self.checked("ask what an address is", result).map(|()| Some(answer)),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the driver of CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }
}

fn stream_of(stream: Stream) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0)
}

fn event_of(event: Event) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut(event.0)
}

impl Cuda for Driver {
    fn devices(&self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: a place for the answer.
        self.checked("count the devices", unsafe { (self.functions.cuDeviceGetCount)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn device_of(&self, address: DeviceAddress) -> Result<Option<Device>, Error> {
        // SAFETY: the header says that it is an unsigned number.
        let kind: Option<c_uint> = unsafe { self.attribute(sys::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)? };
        if kind != Some(sys::CU_MEMORYTYPE_DEVICE) {
            return Ok(None);
        }
        // SAFETY: the header says that it is a number.
        let ordinal: Option<c_int> = unsafe { self.attribute(sys::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)? };
        Ok(ordinal.and_then(|ordinal| u32::try_from(ordinal).ok()).map(Device))
    }

    fn retain(&self, device: Device) -> Result<Context, Error> {
        let (handle, mut context) = (self.handle_of(device)?, std::ptr::null_mut());
        // SAFETY: a place for the answer, and a device of the driver's.
        let result = unsafe { (self.functions.cuDevicePrimaryCtxRetain)(&raw mut context, handle) };
        self.checked("use the device", result)?;
        Ok(Context(context.expose_provenance()))
    }

    unsafe fn make_current(&self, context: Context) -> Result<(), Error> {
        let context = std::ptr::with_exposed_provenance_mut(context.0);
        // SAFETY: the caller's: it is retained.
        self.checked("use the device on a thread", unsafe { (self.functions.cuCtxSetCurrent)(context) })?;
        // By default, what this thread asks for while another one captures a stream is refused, and ends the capture.
        let mut mode = sys::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a place for the answer, which says what the thread might do before.
        let relaxed = unsafe { (self.functions.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        self.checked("use the device beside captures", relaxed)
    }

    unsafe fn release(&self, device: Device) {
        if let Ok(handle) = self.handle_of(device) {
            // SAFETY: the caller's: it was retained. An error means that the driver has let go of it, at the end of the process.
            let _ = unsafe { (self.functions.cuDevicePrimaryCtxRelease)(handle) };
        }
    }

    fn registers_read_only(&self, device: Device) -> Result<bool, Error> {
        let (handle, mut answer) = (self.handle_of(device)?, 0);
        let attribute = sys::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        // SAFETY: a place for the answer, and a device of the driver's.
        match unsafe { (self.functions.cuDeviceGetAttribute)(&raw mut answer, attribute, handle) } {
            // A driver before CUDA 11.1 does not know the attribute.
            sys::CUDA_ERROR_INVALID_VALUE => Ok(false),
            result => self.checked("ask what the device can do", result).map(|()| answer != 0),
        }
    }

    unsafe fn register(&self, start: NonNull<u8>, length: usize, access: Access) -> Result<(), Error> {
        let flags = match access {
            Access::ReadOnly => sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY,
            Access::ReadWrite => sys::CU_MEMHOSTREGISTER_PORTABLE,
        };
        // SAFETY: the caller's: the memory is mapped until it is no longer registered.
        let result = unsafe { (self.functions.cuMemHostRegister)(start.as_ptr().cast(), length, flags) };
        self.checked("register memory of the host", result)
    }

    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<(), Error> {
        // SAFETY: the caller's: nothing reads there.
        let result = unsafe { (self.functions.cuMemHostUnregister)(start.as_ptr().cast()) };
        self.checked("end the registration of memory", result)
    }

    fn stream(&self) -> Result<Stream, Error> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        let result = unsafe { (self.functions.cuStreamCreate)(&raw mut stream, sys::CU_STREAM_NON_BLOCKING) };
        self.checked("make a stream", result)?;
        Ok(Stream(stream.expose_provenance()))
    }

    unsafe fn is_captured(&self, stream: Stream) -> Result<bool, Error> {
        let mut status = sys::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a place for the answer; the caller's: the stream is one.
        match unsafe { (self.functions.cuStreamIsCapturing)(stream_of(stream), &raw mut status) } {
            // The default stream, and one that it waits for is.
            sys::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            result => self
                .checked("ask whether a stream is captured", result)
                .map(|()| status != sys::CU_STREAM_CAPTURE_STATUS_NONE),
        }
    }

    unsafe fn end_stream(&self, stream: Stream) {
        // SAFETY: the caller's: it is one, and not used after this. An error is of what it did, and was told of.
        let _ = unsafe { (self.functions.cuStreamDestroy)(stream_of(stream)) };
    }

    fn event(&self) -> Result<Event, Error> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        let result = unsafe { (self.functions.cuEventCreate)(&raw mut event, sys::CU_EVENT_DISABLE_TIMING) };
        self.checked("make an event", result)?;
        Ok(Event(event.expose_provenance()))
    }

    unsafe fn end_event(&self, event: Event) {
        // SAFETY: the caller's: it is one, and not used after this.
        let _ = unsafe { (self.functions.cuEventDestroy)(event_of(event)) };
    }

    unsafe fn copy(&self, to: DeviceAddress, from: NonNull<u8>, length: usize, stream: Stream) -> Result<(), Error> {
        let from = from.as_ptr().cast_const().cast::<c_void>();
        // SAFETY: the caller's: the source stays until the copy has completed, and the driver refuses a destination that is none.
        let result = unsafe { (self.functions.cuMemcpyHtoDAsync)(to.0, from, length, stream_of(stream)) };
        self.checked("copy to the device", result)
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Error> {
        // SAFETY: the caller's: both are what they are said to be.
        let result = unsafe { (self.functions.cuEventRecord)(event_of(event), stream_of(stream)) };
        self.checked("record an event", result)
    }

    unsafe fn follow(&self, stream: Stream, event: Event) -> Result<(), Error> {
        // SAFETY: the caller's: both are what they are said to be.
        let result = unsafe { (self.functions.cuStreamWaitEvent)(stream_of(stream), event_of(event), 0) };
        self.checked("wait for another stream", result)
    }

    unsafe fn has_completed(&self, event: Event) -> Result<bool, Error> {
        // SAFETY: the caller's: it is one.
        match unsafe { (self.functions.cuEventQuery)(event_of(event)) } {
            sys::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.checked("copy to the device", result).map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests;
