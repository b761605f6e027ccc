//! A view as a tensor of other frameworks, by DLPack: <https://dmlc.github.io/dlpack/latest/python_spec.html>.
//!
//! Only the protocol of version 1 can say that a tensor is read-only, so a consumer that asks for an older one is refused rather than
//! handed bytes of the cache to write to.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_session::View;
use forebay_session::fork::OfProcess;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// `kDLCPU`, device 0.
pub(crate) const DEVICE: (i32, i32) = (1, 0);

/// The name of a capsule that nobody has taken yet.
const NAME: &CStr = c"dltensor_versioned";
const VERSION: Version = Version { major: 1, minor: 0 };
const FLAG_READ_ONLY: u64 = 1;
const FLAG_IS_COPIED: u64 = 2;
/// `kDLUInt` of 8 bits.
const BYTE: DataType = DataType { code: 1, bits: 8, lanes: 1 };

/// What a consumer asks for.
pub(crate) struct Wanted {
    /// The newest version that it understands.
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    /// Whether it wants memory of its own, or may not have any.
    pub(crate) copy: Option<bool>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedTensor {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    flags: u64,
    tensor: Tensor,
}

/// The tensor, what it points to, and what keeps its bytes. The tensor is first, so that a pointer to it is one to all of it.
#[repr(C)]
struct Owned {
    managed: ManagedTensor,
    shape: [i64; 1],
    strides: [i64; 1],
    _bytes: Bytes,
}

enum Bytes {
    /// A consumer may drop it in a forked child, too.
    View(OfProcess<Arc<View>>),
    Copy(Box<[u8]>),
}

/// A capsule with the bytes of `view` as a tensor.
///
/// # Errors
/// `BufferError` for what cannot be given.
pub(crate) fn capsule<'py>(py: Python<'py>, view: &Arc<View>, wanted: Wanted) -> PyResult<Bound<'py, PyCapsule>> {
    if wanted.device.is_some_and(|device| device != DEVICE) {
        return Err(PyBufferError::new_err("the bytes are in memory of the CPU; copy the tensor to the device"));
    }
    if wanted.max_version.is_none_or(|(major, _)| major < VERSION.major) {
        let text = "a view is read-only, which DLPack says since version 1.0; use a newer consumer, or its function for \
                    buffers, as torch.frombuffer(view, dtype=…)";
        return Err(PyBufferError::new_err(text));
    }
    let (bytes, flags) = match wanted.copy {
        Some(true) => (Bytes::Copy(view.bytes().into()), FLAG_IS_COPIED),
        Some(false) | None => (Bytes::View(OfProcess::new(Arc::clone(view))), FLAG_READ_ONLY),
    };
    let owned = Owned::leaked(bytes, view, flags);
    // SAFETY: a new tensor, which is the capsule's: `end` frees it unless a consumer took it, which then has it freed by its deleter.
    let made = unsafe { PyCapsule::new_with_pointer_and_destructor(py, owned.cast(), NAME, Some(end)) };
    if made.is_err() {
        // SAFETY: nobody else has it.
        unsafe { delete(owned.as_ptr()) };
    }
    made
}

impl Owned {
    fn leaked(bytes: Bytes, view: &View, flags: u64) -> NonNull<ManagedTensor> {
        let length = view.bytes().len() as i64;
        let data = match &bytes {
            Bytes::View(kept) => kept.get().map_or(std::ptr::null(), |view| view.bytes().as_ptr()),
            Bytes::Copy(copy) => copy.as_ptr(),
        };
        let tensor = Tensor {
            data: data.cast_mut().cast(),
            device: Device { kind: DEVICE.0, number: DEVICE.1 },
            dimensions: 1,
            data_type: BYTE,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed =
            ManagedTensor { version: VERSION, context: std::ptr::null_mut(), deleter: Some(delete), flags, tensor };
        let owned = Box::into_raw(Box::new(Self { managed, shape: [length], strides: [1], _bytes: bytes }));
        // SAFETY: it was just made, and is nobody else's yet.
        unsafe {
            (*owned).managed.tensor.shape = (&raw mut (*owned).shape).cast();
            (*owned).managed.tensor.strides = (&raw mut (*owned).strides).cast();
            NonNull::new_unchecked(owned).cast()
        }
    }
}

/// Frees a tensor. Consumers call it from any thread, attached or not.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    if !tensor.is_null() {
        // SAFETY: it is the first field of what `Owned::leaked` made, and freed once.
        drop(unsafe { Box::from_raw(tensor.cast::<Owned>()) });
    }
}

/// The end of a capsule. A consumer that took the tensor has given the capsule another name.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: CPython calls this with the capsule, attached; a pointer by this name is one that `capsule` put there.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
