//! A device, as others see it: its thread does what they ask for.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::card::Card;
use crate::commands::{Answer, Command, CopyTask, Ended, Source};
use crate::error::Error;
use crate::handles::{Device, DeviceAddress, Stream};
use crate::outstanding::Ticket;
use crate::staging::{Ring, StagingBuffer};
use crate::traits::Cuda;

/// Copies to a device. On drop it waits for the copies that are under way, and gives back what it has of the device.
pub struct Copier {
    cuda: Arc<dyn Cuda>,
    device: Device,
    ring: Arc<Ring>,
    takes_windows: bool,
    /// None while it is dropped.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    /// Begins to use `device`, on a thread of its own. The first who does so in a process makes CUDA's context, which takes a while.
    ///
    /// # Errors
    /// [`Error::NoDevice`], and the driver's.
    pub async fn start(cuda: Arc<dyn Cuda>, device: Device) -> Result<Self, Error> {
        let (ring, (commands, given)) = (Arc::new(Ring::default()), mpsc::channel());
        let (begun, has_begun) = oneshot::channel();
        let of_thread = (Arc::clone(&cuda), Arc::clone(&ring));
        let run = move || {
            let (cuda, ring) = of_thread;
            match Card::open(cuda, device, ring) {
                Ok(card) => {
                    let _ = begun.send(Ok(card.takes_windows()));
                    card.run(&given);
                }
                Err(error) => _ = begun.send(Err(error)),
            }
        };
        let named = std::thread::Builder::new().name(format!("forebay-{device}"));
        let thread = named
            .spawn(run)
            .map_err(|error| Error::System { what: "start a thread for the device", reason: error.to_string() })?;
        // If this future is dropped meanwhile, so is what it has made: nobody gives commands, and the thread ends.
        let mut copier =
            Self { cuda, device, ring, takes_windows: false, commands: Some(commands), thread: Some(thread) };
        copier.takes_windows = has_begun.await.unwrap_or(Err(Error::Ended { device }))?;
        Ok(copier)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether it may copy from where bytes lie in the memory of workers ([`Source::Shared`]). If not, that is not worth a try.
    #[must_use]
    pub fn takes_windows(&self) -> bool {
        self.takes_windows
    }

    /// Whether `length` bytes from `address` on are the device's, as far as can be said by the first and the last of them.
    ///
    /// # Errors
    /// [`Error::NotOfDevice`], and the driver's.
    pub fn check(&self, address: DeviceAddress, length: usize) -> Result<(), Error> {
        let not_there = Error::NotOfDevice { address: address.0, device: self.device };
        let Some(last) = (length as u64).checked_sub(1) else { return Ok(()) };
        let Some(last) = address.0.checked_add(last) else { return Err(not_there) };
        for at in [address.0, last] {
            if self.cuda.device_of(DeviceAddress(at))? != Some(self.device) {
                return Err(not_there);
            }
        }
        Ok(())
    }

    /// Copies that are begun from now on come after all that `stream`, which is the caller's, has by now: whoever used the memory before,
    /// in that order, is done with it.
    ///
    /// # Errors
    /// [`Error::Stream`], and the driver's.
    ///
    /// # Safety
    /// It is a stream of the device's primary context, or the default one.
    pub async unsafe fn follow(&self, stream: Stream) -> Result<(), Error> {
        if stream == Stream::PER_THREAD {
            let reason =
                "it is another one on each thread; give the handle of a stream, or synchronize with it and give 0";
            return Err(Error::Stream { stream: stream.0, reason });
        }
        self.ask(|answer| Command::Follow(stream, answer)).await
    }

    /// A pinned buffer: one that is free, or a new one.
    ///
    /// # Errors
    /// When there is no memory that can be pinned.
    pub async fn staging(&self) -> Result<StagingBuffer, Error> {
        match self.ring.take() {
            Some(buffer) => Ok(buffer),
            None => self.ask(Command::Pin).await,
        }
    }

    /// Copies `source` to `to`. If the future is dropped, the copy goes on, and `ticket` is dropped when it has ended.
    ///
    /// # Errors
    /// The driver's. The bytes may have been copied in part.
    ///
    /// # Safety
    /// The memory at `to`, as many bytes as the source has, is allocated and nobody else's until `ticket` is dropped.
    pub async unsafe fn copy(&self, source: Source, to: DeviceAddress, ticket: Ticket) -> Result<Ended, Error> {
        self.ask(|done| Command::Copy(CopyTask { source, to, ticket, done })).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, Error> {
        let ended = Err(Error::Ended { device: self.device });
        let (answer, answered) = oneshot::channel();
        let Some(commands) = &self.commands else { return ended };
        if commands.send(command(answer)).is_err() {
            return ended;
        }
        answered.await.unwrap_or(ended)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(device = %self.device, "the thread of the device has panicked");
        }
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copier({})", self.device)
    }
}

#[cfg(test)]
mod tests;
