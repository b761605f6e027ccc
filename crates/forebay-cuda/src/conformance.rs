//! The suite that every implementation of [`Cuda`] passes: its contract in executable form.
//!
//! [`run`] wants a device, with which it does all that a [`Copier`](crate::Copier) does. It is run on the fake of this crate, on a library of
//! fake functions (`tests/fake/cuda.c`) through the driver's implementation, and on the driver of a machine that has one.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a suite of tests: what fails is an assertion")]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::Error;
use crate::handles::{Access, Device, DeviceAddress, Event, Stream};
use crate::traits::Cuda;

/// Memory of devices, which a test can make and look at.
pub trait World {
    /// New memory of `device`, of zeros.
    fn allocate(&self, device: Device, length: usize) -> DeviceAddress;

    /// Frees it.
    fn free(&self, address: DeviceAddress);

    /// The bytes there.
    fn bytes(&self, address: DeviceAddress, length: usize) -> Vec<u8>;
}

/// How long a copy may take that is not broken.
const SOON: Duration = Duration::from_secs(60);
const LENGTH: usize = 1 << 20;

/// Whole pages, as the driver wants them, filled so that each place has a byte of its own.
struct Pages(NonNull<u8>);

impl Pages {
    fn new(seed: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let mapped = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), LENGTH, protection, MapFlags::PRIVATE) };
        let start = NonNull::new(mapped.unwrap().cast::<u8>()).unwrap();
        // SAFETY: within the mapping, which nobody else knows of.
        (0..LENGTH).for_each(|at| unsafe { start.add(at).write(Self::byte(seed, at)) });
        Self(start)
    }

    fn byte(seed: usize, at: usize) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16) ^ seed) as u8
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which the test that made it has unregistered.
        unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), LENGTH).unwrap() };
    }
}

/// Runs all of it on device 0.
///
/// # Panics
/// Where the contract is not kept.
pub fn run(cuda: &dyn Cuda, world: &dyn World) {
    let device = Device(0);
    devices_are_known_and_others_are_named(cuda);
    let context = cuda.retain(device).unwrap();
    // SAFETY: it was retained.
    unsafe { cuda.make_current(context).unwrap() };
    an_address_has_a_device(cuda, world, device);
    memory_is_registered_once(cuda);
    copies_arrive_in_order(cuda, world, device);
    a_stream_follows_another(cuda, world, device);
    a_copy_to_nowhere_is_refused_by_name(cuda);
    // SAFETY: it was retained once, and nothing of it is left.
    unsafe { cuda.release(device) };
}

fn devices_are_known_and_others_are_named(cuda: &dyn Cuda) {
    let count = cuda.devices().unwrap();
    assert!(count > 0, "the suite wants a device");
    for number in [count, u32::MAX] {
        assert_eq!(cuda.retain(Device(number)), Err(Error::NoDevice { device: Device(number), count }));
    }
    let _ = cuda.registers_read_only(Device(0)).unwrap();
}

fn an_address_has_a_device(cuda: &dyn Cuda, world: &dyn World, device: Device) {
    let address = world.allocate(device, LENGTH);
    let of_host = [0_u8; 16];
    assert_eq!(cuda.device_of(address), Ok(Some(device)));
    assert_eq!(cuda.device_of(DeviceAddress(address.0 + LENGTH as u64 - 1)), Ok(Some(device)));
    assert_eq!(cuda.device_of(DeviceAddress(of_host.as_ptr() as u64)), Ok(None));
    assert_eq!(cuda.device_of(DeviceAddress(0)), Ok(None));
    world.free(address);
}

fn memory_is_registered_once(cuda: &dyn Cuda) {
    let pages = Pages::new(0);
    // SAFETY: the pages outlive their registration, and nothing is copied from them.
    unsafe {
        assert!(cuda.unregister(pages.0).is_err());
        cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap();
        let again = cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap_err();
        assert!(matches!(&again, Error::Driver { code: 712, .. }), "{again}");
        // What is registered for the host is no memory of a device.
        assert_eq!(cuda.device_of(DeviceAddress(pages.0.as_ptr() as u64)), Ok(None));
        cuda.unregister(pages.0).unwrap();
        cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap();
        cuda.unregister(pages.0).unwrap();
    }
}

fn copies_arrive_in_order(cuda: &dyn Cuda, world: &dyn World, device: Device) {
    let (pages, others) = (Pages::new(1), Pages::new(2));
    let (to, stream) = (world.allocate(device, LENGTH), cuda.stream().unwrap());
    let (first, second) = (cuda.event().unwrap(), cuda.event().unwrap());
    // SAFETY: an event that was never recorded may be asked for. Pages, memory and handles stay until the events have completed, and are
    // not used after they were ended.
    unsafe {
        assert_eq!(cuda.has_completed(first), Ok(true));
        for pages in [&pages, &others] {
            cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap();
        }
        cuda.copy(to, pages.0, LENGTH, stream).unwrap();
        cuda.record(first, stream).unwrap();
        // Over the middle of it.
        let part = DeviceAddress(to.0 + 1000);
        cuda.copy(part, others.0.add(1000), 5000, stream).unwrap();
        cuda.record(second, stream).unwrap();
        completed(cuda, second);
        assert_eq!(cuda.has_completed(first), Ok(true));
        for pages in [&pages, &others] {
            cuda.unregister(pages.0).unwrap();
        }
        cuda.end_event(first);
        cuda.end_event(second);
        cuda.end_stream(stream);
    }
    let wanted: Vec<_> = (0..LENGTH).map(|at| Pages::byte(1 + usize::from((1000..6000).contains(&at)), at)).collect();
    assert!(world.bytes(to, LENGTH) == wanted);
    world.free(to);
}

fn a_stream_follows_another(cuda: &dyn Cuda, world: &dyn World, device: Device) {
    let (pages, others) = (Pages::new(3), Pages::new(4));
    let (earlier, later) = (cuda.stream().unwrap(), cuda.stream().unwrap());
    let (to, between, end) = (world.allocate(device, LENGTH), cuda.event().unwrap(), cuda.event().unwrap());
    // SAFETY: as above.
    unsafe {
        for stream in [earlier, later, Stream(0)] {
            assert_eq!(cuda.is_captured(stream), Ok(false));
        }
        for pages in [&pages, &others] {
            cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap();
        }
        cuda.copy(to, pages.0, LENGTH, earlier).unwrap();
        cuda.record(between, earlier).unwrap();
        cuda.follow(later, between).unwrap();
        cuda.copy(to, others.0, LENGTH, later).unwrap();
        cuda.record(end, later).unwrap();
        // The event stands for what it was when it was waited for.
        cuda.record(between, later).unwrap();
        completed(cuda, end);
        completed(cuda, between);
        for pages in [&pages, &others] {
            cuda.unregister(pages.0).unwrap();
        }
        cuda.end_event(between);
        cuda.end_event(end);
        cuda.end_stream(earlier);
        cuda.end_stream(later);
    }
    let wanted: Vec<_> = (0..LENGTH).map(|at| Pages::byte(4, at)).collect();
    assert!(world.bytes(to, LENGTH) == wanted);
    world.free(to);
}

fn a_copy_to_nowhere_is_refused_by_name(cuda: &dyn Cuda) {
    let (pages, stream) = (Pages::new(5), cuda.stream().unwrap());
    // SAFETY: nothing is copied, so nothing is in use.
    let refused = unsafe {
        cuda.register(pages.0, LENGTH, Access::ReadWrite).unwrap();
        let refused = cuda.copy(DeviceAddress(0), pages.0, LENGTH, stream).unwrap_err();
        cuda.unregister(pages.0).unwrap();
        cuda.end_stream(stream);
        refused
    };
    assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    assert!(refused.to_string().contains(" (1): "), "{refused}");
}

/// Waits for an event.
unsafe fn completed(cuda: &dyn Cuda, event: Event) {
    let begun = Instant::now();
    // SAFETY: the caller's: it is one.
    while !unsafe { cuda.has_completed(event).unwrap() } {
        assert!(begun.elapsed() < SOON, "it hangs");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_fake_conforms_whenever_its_copies_end() {
        for delay in [0, 1, 7] {
            let fake = Fake::new(2);
            fake.delay(delay);
            run(&fake, &fake);
            assert!(fake.is_given_back());
        }
    }
}
