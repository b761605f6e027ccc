//! The driver's functions: those of a fake library that is compiled here, and those of this machine's driver where it has a GPU.

use std::path::PathBuf;
use std::process::Command;

use libloading::Library;

use super::*;
use crate::conformance::{World, run};

/// The fake library; none where there is no compiler.
fn fake_library(directory: &Path) -> Option<PathBuf> {
    let (source, library) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/cuda.c"), directory.join("libcuda.so.1"));
    let arguments = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", "-o"];
    let said = match Command::new("cc").args(arguments).arg(&library).arg(&source).output() {
        Ok(said) => said,
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Some(library)
}

/// What the fake library has for tests.
struct Fakes(Library);

impl Fakes {
    fn number(&self, name: &str) -> usize {
        // SAFETY: functions of the fake of these types: `fake_in_use` gives an `int` that is not negative, the others a `size_t`.
        unsafe {
            match name {
                "fake_in_use" => self.0.get::<unsafe extern "C" fn() -> c_int>(name).unwrap()() as usize,
                _ => self.0.get::<unsafe extern "C" fn() -> usize>(name).unwrap()(),
            }
        }
    }

    fn fail(&self, call: &CStr, after: c_int, code: c_int) {
        // SAFETY: a function of the fake of this type.
        unsafe {
            self.0.get::<unsafe extern "C" fn(*const c_char, c_int, c_int)>("fake_fail").unwrap()(
                call.as_ptr(),
                after,
                code,
            );
        }
    }
}

impl World for Fakes {
    fn allocate(&self, device: Device, length: usize) -> DeviceAddress {
        // SAFETY: a function of the fake of this type.
        let address = unsafe {
            self.0.get::<unsafe extern "C" fn(c_int, usize) -> u64>("fake_allocate").unwrap()(device.0 as c_int, length)
        };
        DeviceAddress(address)
    }

    fn free(&self, address: DeviceAddress) {
        // SAFETY: a function of the fake of this type.
        unsafe { self.0.get::<unsafe extern "C" fn(u64)>("fake_free").unwrap()(address.0) };
    }

    fn bytes(&self, address: DeviceAddress, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: a function of the fake of this type, which writes `length` bytes.
        let known = unsafe {
            self.0.get::<unsafe extern "C" fn(u64, *mut c_void, usize) -> c_int>("fake_read").unwrap()(
                address.0,
                bytes.as_mut_ptr().cast(),
                length,
            )
        };
        assert_eq!(known, 1);
        bytes
    }
}

#[test]
fn the_driver_conforms_with_a_library_of_fake_functions() {
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = fake_library(directory.path()) else { return };
    let driver = Driver::load(Some(&path)).unwrap();
    // SAFETY: the fake does nothing when it is loaded. It is the same that the driver has.
    let fakes = Fakes(unsafe { Library::new(&path) }.unwrap());
    run(&driver, &fakes);
    assert_eq!((fakes.number("fake_in_use"), fakes.number("fake_registered")), (0, 0));
    assert!(fakes.number("fake_copied") > 0);
    assert_eq!(format!("{driver:?}"), "the driver of CUDA 12.4");
    errors_have_the_drivers_names(&driver, &fakes);
}

fn errors_have_the_drivers_names(driver: &Driver, fakes: &Fakes) {
    fakes.fail(c"cuDevicePrimaryCtxRetain", 0, 2);
    let error = driver.retain(Device(0)).unwrap_err();
    let said = "cannot use the device: CUDA_ERROR_OUT_OF_MEMORY (2): words of the fake";
    assert_eq!((error.to_string().as_str(), error.errno()), (said, libc::ENOMEM));
    // One that the driver has no name for.
    fakes.fail(c"cuDeviceGetCount", 0, 4711);
    let error = driver.devices().unwrap_err();
    assert!(error.to_string().contains("CUDA error 4711 (4711)"), "{error}");
    assert_eq!(driver.devices(), Ok(2));
}

#[test]
fn a_library_that_is_none_is_an_error_with_a_remedy() {
    let error = Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    let said = error.to_string();
    assert!(said.contains("/nowhere/libcuda.so.1") && said.contains("install NVIDIA's driver"), "{said}");
}

/// Memory of a real device. The context is current on the thread.
struct Gpu(Library);

impl World for Gpu {
    fn allocate(&self, _device: Device, length: usize) -> DeviceAddress {
        let mut address = 0_u64;
        // SAFETY: functions of the driver of these types, and memory that was allocated just now.
        unsafe {
            let allocated = self.0.get::<unsafe extern "C" fn(*mut u64, usize) -> c_uint>("cuMemAlloc_v2").unwrap()(
                &raw mut address,
                length,
            );
            assert_eq!(allocated, 0);
            let cleared = self.0.get::<unsafe extern "C" fn(u64, u8, usize) -> c_uint>("cuMemsetD8_v2").unwrap()(
                address, 0, length,
            );
            assert_eq!(cleared, 0);
            // It is done on a stream that ours do not wait for.
            assert_eq!(self.0.get::<unsafe extern "C" fn() -> c_uint>("cuCtxSynchronize").unwrap()(), 0);
        }
        DeviceAddress(address)
    }

    fn free(&self, address: DeviceAddress) {
        // SAFETY: a function of the driver of this type; the memory was allocated by it.
        assert_eq!(unsafe { self.0.get::<unsafe extern "C" fn(u64) -> c_uint>("cuMemFree_v2").unwrap()(address.0) }, 0);
    }

    fn bytes(&self, address: DeviceAddress, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: a function of the driver of this type, which writes `length` bytes.
        let copied = unsafe {
            self.0.get::<unsafe extern "C" fn(*mut c_void, u64, usize) -> c_uint>("cuMemcpyDtoH_v2").unwrap()(
                bytes.as_mut_ptr().cast(),
                address.0,
                length,
            )
        };
        assert_eq!(copied, 0);
        bytes
    }
}

#[test]
fn the_driver_of_this_machine_conforms() {
    let driver = match Driver::load(None).and_then(|driver| Ok((driver.devices()?, driver))) {
        Ok((0, _)) => return println!("skipped: there is no GPU"),
        Ok((_, driver)) => driver,
        Err(error) => return println!("skipped: {error}"),
    };
    println!("{driver:?}");
    // SAFETY: the driver is loaded already.
    run(&driver, &Gpu(unsafe { Library::new(forebay_cuda_sys::SONAME) }.unwrap()));
}
