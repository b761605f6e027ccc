//! The GPUs that a session copies to: each is opened when it is first read into, and closed with the session.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_cuda::{Copier, Cuda as _, Device, DeviceAddress, Driver};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::Error;

/// How many GPUs CUDA's driver shows.
///
/// # Errors
/// ENODEV where there is no driver; its own errors, by name.
pub fn count() -> Result<u32, Error> {
    Ok(Driver::shared()?.devices()?)
}

/// The driver. What begins it the first time is a thread that nobody else waits for, as others do for those of the runtime, and for that of
/// an event loop.
async fn driver() -> Result<Arc<Driver>, Error> {
    if let Some(begun) = Driver::begun() {
        return Ok(begun?);
    }
    let begun = tokio::task::spawn_blocking(Driver::shared).await;
    Ok(begun.map_err(|_| Error::lost("the beginning of CUDA"))??)
}

/// The device whose memory is at `address`.
///
/// # Errors
/// EFAULT if it is no device's.
pub(crate) async fn device_of(address: DeviceAddress) -> Result<Device, Error> {
    let refused = || {
        let what = format!("{:#x} is no memory of a GPU", address.0);
        let next = "give the address of a tensor that lies on one, as `tensor.data_ptr()`, or read with read_into";
        let error = std::io::Error::from_raw_os_error(libc::EFAULT);
        Error { next: Some(next.to_owned()), ..Error::system(&what, &error) }
    };
    driver().await?.device_of(address)?.ok_or_else(refused)
}

/// Those that are in use.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<BTreeMap<Device, Arc<InUse>>>);

/// One that is in use.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(crate) copier: Copier,
    /// One transfer at a time has all of the slots; the others wait in order.
    turn: Arc<Mutex<()>>,
}

impl InUse {
    /// Waits for a transfer's turn.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

impl Devices {
    /// The device, opened if need be.
    ///
    /// # Errors
    /// As [`count`]; ENODEV if there is no such device.
    pub(crate) async fn get(&self, device: Device) -> Result<Arc<InUse>, Error> {
        let mut in_use = self.0.lock().await;
        if let Some(found) = in_use.get(&device) {
            return Ok(Arc::clone(found));
        }
        let copier = Copier::start(driver().await?, device).await?;
        let opened = Arc::new(InUse { copier, turn: Arc::default() });
        in_use.insert(device, Arc::clone(&opened));
        Ok(opened)
    }

    /// Gives the devices back, once the transfers under way have ended.
    pub(crate) async fn close(&self) {
        self.0.lock().await.clear();
    }
}
