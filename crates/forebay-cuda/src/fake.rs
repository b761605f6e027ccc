//! A CUDA with memory of the host in the place of a GPU's.
//!
//! It is strict where the driver is lenient: a copy from memory that is not registered is an error. Copies are carried out as late as they
//! may be: when their event is asked for, for the so-manieth time. So a source that is let go of too early is seen in what arrives.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr::NonNull;
use std::thread::ThreadId;

use forebay_cuda_sys as sys;
use forebay_locks::Mutex;

use crate::conformance::World;
use crate::error::Error;
use crate::handles::{Access, Context, Device, DeviceAddress, Event, Stream};
use crate::traits::Cuda;

/// Where the memory of devices begins: no memory of the host is there.
const DEVICE_MEMORY: u64 = 1 << 52;
/// The default stream.
const DEFAULT: usize = 0;

/// The fake.
#[derive(Debug)]
pub struct Fake {
    devices: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memory: BTreeMap<u64, (Device, Vec<u8>)>,
    allocated: u64,
    /// The length of what is registered at an address.
    registered: BTreeMap<usize, usize>,
    takes_read_only: bool,
    current: HashMap<ThreadId, Context>,
    retained: HashMap<Device, usize>,
    streams: HashMap<usize, VecDeque<Work>>,
    /// Of each event, how often it was recorded, and how many of these records were carried out.
    events: HashMap<usize, (usize, usize)>,
    made: usize,
    /// After so many questions streams go on.
    delay: usize,
    questions: usize,
    /// Which call fails after so many that do not, and with which error.
    fails: Option<(&'static str, usize, u32)>,
    broken: Option<u32>,
    copied: usize,
    /// The stream that is captured.
    captured: Option<Stream>,
}

#[derive(Debug)]
enum Work {
    Copy {
        to: u64,
        from: usize,
        length: usize,
    },
    Record {
        event: usize,
    },
    /// Until so many records of the event were carried out.
    Wait {
        event: usize,
        records: usize,
    },
}

impl Fake {
    /// With so many devices.
    #[must_use]
    pub fn new(devices: u32) -> Self {
        let mut state = State { takes_read_only: true, ..State::default() };
        state.streams.insert(DEFAULT, VecDeque::new());
        Self { devices, state: Mutex::new(state) }
    }

    /// Copies end when their event was asked for so many times.
    pub fn delay(&self, questions: usize) {
        self.state.lock().delay = questions;
    }

    /// The call `what` (`register`, `copy`, `record`, `query`) fails with `code` after it has succeeded `after` times. An error of `query`
    /// breaks the context.
    pub fn fail(&self, what: &'static str, after: usize, code: u32) {
        self.state.lock().fails = Some((what, after, code));
    }

    /// Whether memory that is mapped for reading only can be registered.
    pub fn take_read_only(&self, takes: bool) {
        self.state.lock().takes_read_only = takes;
    }

    /// `stream` is captured, until none is.
    pub fn capture(&self, stream: Option<Stream>) {
        self.state.lock().captured = stream;
    }

    /// How many bytes are registered.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.state.lock().registered.values().sum()
    }

    /// How many copies were carried out.
    #[must_use]
    pub fn copied(&self) -> usize {
        self.state.lock().copied
    }

    /// Whether nothing is left: no registration, no stream but the default one, no event and no context.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        let state = self.state.lock();
        let is_retained = state.retained.values().any(|count| *count > 0);
        state.registered.is_empty() && state.streams.len() == 1 && state.events.is_empty() && !is_retained
    }
}

fn refused(what: &'static str, code: u32) -> Error {
    Error::Driver { what, name: format!("FAKE_{code}"), code, text: "the fake refuses it".to_owned() }
}

impl State {
    /// Whether this call is one that fails.
    fn checked(&mut self, what: &'static str) -> Result<(), Error> {
        if let Some(code) = self.broken {
            return Err(refused(what, code));
        }
        match &mut self.fails {
            Some((failing, 0, code)) if *failing == what => {
                let code = *code;
                self.fails = None;
                if what == "query" {
                    self.broken = Some(code);
                }
                Err(refused(what, code))
            }
            Some((failing, after, _)) if *failing == what => {
                *after -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// That the thread has a context.
    fn in_context(&self, what: &'static str) -> Result<(), Error> {
        let has_one = self.current.contains_key(&std::thread::current().id());
        if has_one { Ok(()) } else { Err(refused(what, sys::CUDA_ERROR_INVALID_CONTEXT)) }
    }

    fn make(&mut self) -> usize {
        self.made += 1;
        self.made
    }

    /// Memory of a device that all of the bytes are in.
    fn allocation(&mut self, address: u64, length: usize) -> Option<(Device, &mut [u8])> {
        let (start, (device, bytes)) = self.memory.range_mut(..=address).next_back()?;
        let at = usize::try_from(address - start).ok()?;
        Some((*device, bytes.get_mut(at..at.checked_add(length)?)?))
    }

    fn is_registered(&self, from: usize, length: usize) -> bool {
        let found = self.registered.range(..=from).next_back();
        found.is_some_and(|(start, registered)| from + length <= start + registered)
    }

    /// Carries out what can be.
    fn go_on(&mut self) {
        loop {
            let ready = self.streams.iter().find_map(|(stream, works)| {
                let is_ready = match works.front()? {
                    Work::Wait { event, records } => self.events.get(event).is_none_or(|(_, done)| done >= records),
                    Work::Copy { .. } | Work::Record { .. } => true,
                };
                is_ready.then_some(*stream)
            });
            let Some(work) = ready.and_then(|stream| self.streams.get_mut(&stream)?.pop_front()) else { return };
            match work {
                Work::Copy { to, from, length } => self.carry_out(to, from, length),
                Work::Record { event } => {
                    if let Some((_, done)) = self.events.get_mut(&event) {
                        *done += 1;
                    }
                }
                Work::Wait { .. } => {}
            }
        }
    }

    fn carry_out(&mut self, to: u64, from: usize, length: usize) {
        assert!(self.is_registered(from, length), "memory is copied from that is not registered any more");
        let Some((_, into)) = self.allocation(to, length) else { panic!("memory is copied to that was freed") };
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: who began the copy said that the source stays until it has completed, which it has not.
        into.copy_from_slice(unsafe { std::slice::from_raw_parts(from, length) });
        self.copied += 1;
    }
}

impl Cuda for Fake {
    fn devices(&self) -> Result<u32, Error> {
        Ok(self.devices)
    }

    fn device_of(&self, address: DeviceAddress) -> Result<Option<Device>, Error> {
        Ok(self.state.lock().allocation(address.0, 1).map(|(device, _)| device))
    }

    fn retain(&self, device: Device) -> Result<Context, Error> {
        if device.0 >= self.devices {
            return Err(Error::NoDevice { device, count: self.devices });
        }
        *self.state.lock().retained.entry(device).or_default() += 1;
        Ok(Context(device.0 as usize + 1))
    }

    unsafe fn make_current(&self, context: Context) -> Result<(), Error> {
        self.state.lock().current.insert(std::thread::current().id(), context);
        Ok(())
    }

    unsafe fn release(&self, device: Device) {
        if let Some(count) = self.state.lock().retained.get_mut(&device) {
            *count -= 1;
        }
    }

    fn registers_read_only(&self, _device: Device) -> Result<bool, Error> {
        Ok(self.state.lock().takes_read_only)
    }

    unsafe fn register(&self, start: NonNull<u8>, length: usize, _access: Access) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.in_context("register")?;
        state.checked("register")?;
        let start = start.as_ptr().expose_provenance();
        let overlaps = |(other, registered): (&usize, &usize)| *other < start + length && start < *other + *registered;
        if state.registered.iter().any(overlaps) {
            return Err(refused("register", sys::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
        }
        state.registered.insert(start, length);
        Ok(())
    }

    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.in_context("unregister")?;
        let gone = state.registered.remove(&start.as_ptr().expose_provenance());
        gone.map(|_| ()).ok_or_else(|| refused("unregister", sys::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED))
    }

    fn stream(&self) -> Result<Stream, Error> {
        let mut state = self.state.lock();
        state.in_context("stream")?;
        let stream = state.make();
        state.streams.insert(stream, VecDeque::new());
        Ok(Stream(stream))
    }

    unsafe fn is_captured(&self, stream: Stream) -> Result<bool, Error> {
        let state = self.state.lock();
        state.in_context("stream")?;
        Ok(state.captured == Some(stream))
    }

    unsafe fn end_stream(&self, stream: Stream) {
        self.state.lock().streams.remove(&stream.0);
    }

    fn event(&self) -> Result<Event, Error> {
        let mut state = self.state.lock();
        state.in_context("event")?;
        let event = state.make();
        state.events.insert(event, (0, 0));
        Ok(Event(event))
    }

    unsafe fn end_event(&self, event: Event) {
        self.state.lock().events.remove(&event.0);
    }

    unsafe fn copy(&self, to: DeviceAddress, from: NonNull<u8>, length: usize, stream: Stream) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.in_context("copy")?;
        state.checked("copy")?;
        let from = from.as_ptr().expose_provenance();
        if state.allocation(to.0, length).is_none() || !state.is_registered(from, length) {
            return Err(refused("copy", sys::CUDA_ERROR_INVALID_VALUE));
        }
        state.streams.entry(stream.0).or_default().push_back(Work::Copy { to: to.0, from, length });
        Ok(())
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.in_context("record")?;
        state.checked("record")?;
        state.events.entry(event.0).or_default().0 += 1;
        state.streams.entry(stream.0).or_default().push_back(Work::Record { event: event.0 });
        Ok(())
    }

    unsafe fn follow(&self, stream: Stream, event: Event) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.in_context("follow")?;
        let records = state.events.get(&event.0).map_or(0, |(recorded, _)| *recorded);
        state.streams.entry(stream.0).or_default().push_back(Work::Wait { event: event.0, records });
        Ok(())
    }

    unsafe fn has_completed(&self, event: Event) -> Result<bool, Error> {
        let mut state = self.state.lock();
        state.in_context("query")?;
        state.checked("query")?;
        state.questions += 1;
        if state.questions > state.delay {
            state.questions = 0;
            state.go_on();
        }
        Ok(state.events.get(&event.0).is_none_or(|(recorded, done)| recorded == done))
    }
}

impl World for Fake {
    fn allocate(&self, device: Device, length: usize) -> DeviceAddress {
        let mut state = self.state.lock();
        let address = DEVICE_MEMORY + state.allocated;
        // There is a hole behind it.
        state.allocated += (length as u64).next_multiple_of(1 << 20) + (1 << 20);
        state.memory.insert(address, (device, vec![0; length]));
        DeviceAddress(address)
    }

    fn free(&self, address: DeviceAddress) {
        self.state.lock().memory.remove(&address.0);
    }

    fn bytes(&self, address: DeviceAddress, length: usize) -> Vec<u8> {
        let mut state = self.state.lock();
        state.allocation(address.0, length).map(|(_, bytes)| bytes.to_vec()).unwrap_or_default()
    }
}
