//! Names, types and numbers are those of the header of this machine, where it has CUDA's header and a compiler.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use forebay_cuda_sys::*;

const NUMBERS: [(&str, i64); 23] = [
    ("CUDA_SUCCESS", CUDA_SUCCESS as i64),
    ("CUDA_ERROR_INVALID_VALUE", CUDA_ERROR_INVALID_VALUE as i64),
    ("CUDA_ERROR_OUT_OF_MEMORY", CUDA_ERROR_OUT_OF_MEMORY as i64),
    ("CUDA_ERROR_NOT_INITIALIZED", CUDA_ERROR_NOT_INITIALIZED as i64),
    ("CUDA_ERROR_NO_DEVICE", CUDA_ERROR_NO_DEVICE as i64),
    ("CUDA_ERROR_INVALID_DEVICE", CUDA_ERROR_INVALID_DEVICE as i64),
    ("CUDA_ERROR_INVALID_CONTEXT", CUDA_ERROR_INVALID_CONTEXT as i64),
    ("CUDA_ERROR_NOT_READY", CUDA_ERROR_NOT_READY as i64),
    ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as i64),
    ("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED as i64),
    ("CUDA_ERROR_NOT_PERMITTED", CUDA_ERROR_NOT_PERMITTED as i64),
    ("CUDA_ERROR_NOT_SUPPORTED", CUDA_ERROR_NOT_SUPPORTED as i64),
    ("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as i64),
    ("CU_STREAM_CAPTURE_MODE_RELAXED", CU_STREAM_CAPTURE_MODE_RELAXED as i64),
    ("CU_STREAM_CAPTURE_STATUS_NONE", CU_STREAM_CAPTURE_STATUS_NONE as i64),
    ("CU_MEMHOSTREGISTER_PORTABLE", CU_MEMHOSTREGISTER_PORTABLE as i64),
    ("CU_MEMHOSTREGISTER_READ_ONLY", CU_MEMHOSTREGISTER_READ_ONLY as i64),
    ("CU_STREAM_NON_BLOCKING", CU_STREAM_NON_BLOCKING as i64),
    ("CU_EVENT_DISABLE_TIMING", CU_EVENT_DISABLE_TIMING as i64),
    (
        "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED",
        CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as i64,
    ),
    ("CU_POINTER_ATTRIBUTE_MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE as i64),
    ("CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as i64),
    ("CU_MEMORYTYPE_DEVICE", CU_MEMORYTYPE_DEVICE as i64),
];

/// Each function as `load.rs` declares it, in C: what it returns is `CUresult`.
const FUNCTIONS: [(&str, &str, &str); 23] = [
    ("cuInit", "cuInit", "unsigned"),
    ("cuDriverGetVersion", "cuDriverGetVersion", "int *"),
    ("cuGetErrorName", "cuGetErrorName", "CUresult, const char **"),
    ("cuGetErrorString", "cuGetErrorString", "CUresult, const char **"),
    ("cuDeviceGetCount", "cuDeviceGetCount", "int *"),
    ("cuDeviceGet", "cuDeviceGet", "int *, int"),
    ("cuDeviceGetAttribute", "cuDeviceGetAttribute", "int *, CUdevice_attribute, int"),
    ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", "CUcontext *, int"),
    ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "int"),
    ("cuCtxSetCurrent", "cuCtxSetCurrent", "CUcontext"),
    ("cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", "CUstreamCaptureMode *"),
    ("cuPointerGetAttribute", "cuPointerGetAttribute", "void *, CUpointer_attribute, CUdeviceptr"),
    ("cuMemHostRegister", "cuMemHostRegister_v2", "void *, size_t, unsigned"),
    ("cuMemHostUnregister", "cuMemHostUnregister", "void *"),
    ("cuStreamCreate", "cuStreamCreate", "CUstream *, unsigned"),
    ("cuStreamDestroy", "cuStreamDestroy_v2", "CUstream"),
    ("cuStreamWaitEvent", "cuStreamWaitEvent", "CUstream, CUevent, unsigned"),
    ("cuStreamIsCapturing", "cuStreamIsCapturing", "CUstream, CUstreamCaptureStatus *"),
    ("cuEventCreate", "cuEventCreate", "CUevent *, unsigned"),
    ("cuEventDestroy", "cuEventDestroy_v2", "CUevent"),
    ("cuEventRecord", "cuEventRecord", "CUevent, CUstream"),
    ("cuEventQuery", "cuEventQuery", "CUevent"),
    ("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", "CUdeviceptr, const void *, size_t, CUstream"),
];

/// A program that compiles where all of it is so.
fn program() -> String {
    let mut text = "#include <cuda.h>\n#define TEXT(name) #name\n#define NAME_OF(name) TEXT(name)\n".to_owned();
    text += "_Static_assert(sizeof(CUdeviceptr) == 8, \"addresses\");\n";
    for (name, ours) in NUMBERS {
        writeln!(text, "_Static_assert((long)({name}) == {ours}, \"{name} is not {ours}\");").unwrap();
    }
    for (name, symbol, parameters) in FUNCTIONS {
        writeln!(text, "CUresult (*test_{name})({parameters}) = {name};").unwrap();
        // The macro makes of a name the symbol that is to be looked up.
        writeln!(text, "_Static_assert(sizeof(NAME_OF({name})) == sizeof(\"{symbol}\"), \"{symbol}\");").unwrap();
    }
    text
}

#[test]
fn the_compiler_of_this_machine_agrees() {
    let places = ["/usr/local/cuda/include", "/usr/include"];
    let Some(place) = places.iter().find(|place| Path::new(place).join("cuda.h").exists()) else {
        println!("skipped: no cuda.h in {} (Debian: nvidia-cuda-dev)", places.join(" and "));
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("header.c");
    std::fs::write(&source, program()).unwrap();
    match Command::new("cc").args(["-std=gnu11", "-fsyntax-only", "-I", place]).arg(&source).output() {
        Ok(said) => assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr)),
        Err(error) => println!("skipped: no C compiler: {error}"),
    }
}
