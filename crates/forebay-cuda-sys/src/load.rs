//! The library's functions, resolved all at once.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::types::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

/// The library's soname.
pub const SONAME: &str = "libcuda.so.1";

/// Declares the structure of the library's functions, each with its symbol.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal: $type:ty;)*) => {
        /// The library's functions, by the names of the header.
        #[allow(non_snake_case, reason = "names are those of the C header")]
        pub struct Libcuda {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Libcuda {
            /// # Safety
            /// `library` is CUDA's driver, or has functions of the same names and types.
            unsafe fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header, for these symbols.
                unsafe { Ok(Self { $($name: *library.get::<$type>($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    /// To be called before all others, with 0.
    cuInit = "cuInit": unsafe extern "C" fn(c_uint) -> CUresult;
    /// The version of CUDA that the driver knows: 12040 is 12.4.
    cuDriverGetVersion = "cuDriverGetVersion": unsafe extern "C" fn(*mut c_int) -> CUresult;
    /// The name of a result, a static C string.
    cuGetErrorName = "cuGetErrorName": unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
    /// What it means, a static C string.
    cuGetErrorString = "cuGetErrorString": unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
    /// How many devices there are.
    cuDeviceGetCount = "cuDeviceGetCount": unsafe extern "C" fn(*mut c_int) -> CUresult;
    /// The device of a number.
    cuDeviceGet = "cuDeviceGet": unsafe extern "C" fn(*mut CUdevice, c_int) -> CUresult;
    /// What a device can do.
    cuDeviceGetAttribute = "cuDeviceGetAttribute": unsafe extern "C" fn(*mut c_int, c_int, CUdevice) -> CUresult;
    /// The context of a device that all of the process share, made by the first who asks.
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain": unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult;
    /// Lets go of it.
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2": unsafe extern "C" fn(CUdevice) -> CUresult;
    /// What this thread uses from now on.
    cuCtxSetCurrent = "cuCtxSetCurrent": unsafe extern "C" fn(CUcontext) -> CUresult;
    /// What this thread may do while streams are captured; the answer is what it might before.
    cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode": unsafe extern "C" fn(*mut CUstreamCaptureMode) -> CUresult;
    /// What memory a pointer leads to.
    cuPointerGetAttribute = "cuPointerGetAttribute": unsafe extern "C" fn(*mut c_void, c_int, CUdeviceptr) -> CUresult;
    /// Pins memory of the host, and makes it known to the device.
    cuMemHostRegister = "cuMemHostRegister_v2": unsafe extern "C" fn(*mut c_void, usize, c_uint) -> CUresult;
    /// The reverse, of what was registered at that address.
    cuMemHostUnregister = "cuMemHostUnregister": unsafe extern "C" fn(*mut c_void) -> CUresult;
    /// Makes a stream.
    cuStreamCreate = "cuStreamCreate": unsafe extern "C" fn(*mut CUstream, c_uint) -> CUresult;
    /// Ends it.
    cuStreamDestroy = "cuStreamDestroy_v2": unsafe extern "C" fn(CUstream) -> CUresult;
    /// What a stream does from now on comes after an event; flags are 0.
    cuStreamWaitEvent = "cuStreamWaitEvent": unsafe extern "C" fn(CUstream, CUevent, c_uint) -> CUresult;
    /// Whether what is put on a stream becomes a graph, and is not carried out.
    cuStreamIsCapturing = "cuStreamIsCapturing": unsafe extern "C" fn(CUstream, *mut CUstreamCaptureStatus) -> CUresult;
    /// Makes an event.
    cuEventCreate = "cuEventCreate": unsafe extern "C" fn(*mut CUevent, c_uint) -> CUresult;
    /// Ends it.
    cuEventDestroy = "cuEventDestroy_v2": unsafe extern "C" fn(CUevent) -> CUresult;
    /// The event is when what the stream has by now is done.
    cuEventRecord = "cuEventRecord": unsafe extern "C" fn(CUevent, CUstream) -> CUresult;
    /// Whether it was.
    cuEventQuery = "cuEventQuery": unsafe extern "C" fn(CUevent) -> CUresult;
    /// Copies from memory of the host, some time after it has returned.
    cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2": unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
}

/// Loads the library `path`, or the one that the dynamic linker finds by its soname. It is never unloaded.
///
/// # Errors
/// Why not, in the words of the dynamic linker.
pub fn load(path: Option<&Path>) -> Result<Libcuda, String> {
    let path = path.unwrap_or(Path::new(SONAME));
    // SAFETY: what the driver does when it is loaded is made for any process; a library that was named in its place is of who named it.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
    let library = opened.map_err(in_words)?;
    // SAFETY: as above.
    unsafe { Libcuda::resolve(&library) }.map_err(in_words)
}

/// What the dynamic linker said, without what libloading says around it.
fn in_words(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_the_linkers_words() {
        let said = load(Some(Path::new("/nowhere/libcuda.so.1"))).err().unwrap();
        assert!(said.contains("/nowhere/libcuda.so.1"), "{said}");
        // A library that has none of the functions: the C library.
        let said = load(Some(Path::new("libc.so.6"))).err().unwrap();
        assert!(said.contains("cuInit"), "{said}");
    }
}
