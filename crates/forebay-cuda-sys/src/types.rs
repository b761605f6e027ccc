//! Types and numbers of `cuda.h`.

use std::ffi::{c_int, c_uint, c_void};

/// What every function returns.
pub type CUresult = c_uint;
/// The number of a device, as the driver counts those that `CUDA_VISIBLE_DEVICES` leaves.
pub type CUdevice = c_int;
/// What a thread uses a device with.
pub type CUcontext = *mut c_void;
/// Copies and programs of a device, one after the other.
pub type CUstream = *mut c_void;
/// A moment of a stream.
pub type CUevent = *mut c_void;
/// What a thread may do while streams are captured.
pub type CUstreamCaptureMode = c_uint;
/// Whether a stream is captured.
pub type CUstreamCaptureStatus = c_uint;
/// An address of a device's memory.
pub type CUdeviceptr = u64;

/// It went well.
pub const CUDA_SUCCESS: CUresult = 0;
/// An argument is none, such as an address that the driver does not know.
pub const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
/// No memory of the device, or none of the host that can be pinned.
pub const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
/// `cuInit` was not called, or by the process that this one was forked from.
pub const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
/// There is no device.
pub const CUDA_ERROR_NO_DEVICE: CUresult = 100;
/// There is no device of that number.
pub const CUDA_ERROR_INVALID_DEVICE: CUresult = 101;
/// No context, or one that is broken.
pub const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
/// An event has not come yet, which is no failure.
pub const CUDA_ERROR_NOT_READY: CUresult = 600;
/// Of memory that is registered already.
pub const CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: CUresult = 712;
/// Of memory that is not registered.
pub const CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: CUresult = 713;
/// The system does not allow it.
pub const CUDA_ERROR_NOT_PERMITTED: CUresult = 800;
/// The device or the system cannot do it.
pub const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
/// Of the default stream while one that it waits for is captured.
pub const CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: CUresult = 906;

/// All contexts may use the memory as registered.
pub const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 0x01;
/// The device only reads it, so it may be mapped for reading only.
pub const CU_MEMHOSTREGISTER_READ_ONLY: c_uint = 0x08;
/// Copies wait for no others, those of the default stream included.
pub const CU_STREAM_NON_BLOCKING: c_uint = 0x1;
/// The event has no time, which makes it cheap.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 0x2;
/// The thread may do anything that is of no capture.
pub const CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;
/// What the stream has is carried out.
pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;

/// An attribute of a device: whether [`CU_MEMHOSTREGISTER_READ_ONLY`] may be given.
pub const CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: c_int = 113;
/// An attribute of a pointer: which kind of memory it leads to, a `c_uint`.
pub const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
/// An attribute of a pointer: the number of its device, a `c_int`.
pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
/// Memory of a device.
pub const CU_MEMORYTYPE_DEVICE: c_uint = 2;
