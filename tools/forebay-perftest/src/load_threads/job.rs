//! What one job does with its link: operations one after the other, as many as it can, and such whose bytes are compared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_memory::{FRAME_SIZE, Pool};

use crate::error::Error;
use crate::link::{Link, Operation, Patience};
use crate::memory::Buffer;
use crate::options::Kind;
use crate::pattern;
use crate::plan::{AREA_FRAMES, parts};
use crate::wire::Region;

/// How many operations warm a latency test up, at most, and which part of its time.
const WARM_UP: (usize, u32) = (200, 10);
/// How far apart the jobs start in the server's memory, in operations: a prime, so that they do not meet.
const APART: u64 = 7919;

/// A bandwidth test that is running.
pub(super) struct Run {
    pub(super) end: AtomicBool,
    /// For each job, the operations that have ended.
    pub(super) moved: Box<[Counter]>,
}

/// A counter with a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Run {
    pub(super) fn operations(&self) -> u64 {
        self.moved.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
}

/// What a job's thread works with.
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) pool: Pool,
    /// Frames of the server to read from.
    pub(super) blocks: u32,
    /// What its patterns are made of: another one in each run.
    pub(super) seed: u64,
    pub(super) link: Box<dyn Link>,
}

impl Job {
    pub(super) fn buffer(&self, bytes: u64) -> Result<Buffer, Error> {
        match self.kind {
            Kind::Write => Buffer::to_write(&self.pool, bytes, |_, part| part.fill(self.number as u8)),
            Kind::Read | Kind::Seal | Kind::Cache => Buffer::to_read(&self.pool, bytes),
        }
    }

    fn operation(&self, number: u64) -> Operation {
        match self.kind {
            Kind::Write => Operation { writes: true, region: Region::Area, number },
            Kind::Read | Kind::Seal | Kind::Cache => Operation { writes: false, region: Region::Blocks, number },
        }
    }

    /// Starts one operation and waits for its end. Its buffer, back.
    fn one(&mut self, operation: Operation, buffer: Buffer, patience: Patience) -> Result<Buffer, Error> {
        let mut ended = Vec::with_capacity(1);
        self.link.start(operation, buffer)?;
        self.link.wait(&mut ended, patience)?;
        ended.pop().ok_or_else(|| std::io::Error::other("an operation of the benchmark got lost").into())
    }

    pub(super) fn latency(&mut self, bytes: u64, iterations: usize, within: Duration) -> Result<Vec<Duration>, Error> {
        let mut buffer = self.buffer(bytes)?;
        let mut samples = Vec::with_capacity(iterations);
        let mut number = 0;
        for (iterations, within) in [(WARM_UP.0, within / WARM_UP.1), (iterations, within)] {
            samples.clear();
            let begun = Instant::now();
            while samples.len() < iterations && (samples.is_empty() || begun.elapsed() < within) {
                let operation = self.operation(number);
                let start = Instant::now();
                buffer = self.one(operation, buffer, Patience::Poll)?;
                samples.push(start.elapsed());
                number += 1;
            }
        }
        Ok(samples)
    }

    pub(super) fn bandwidth(&mut self, mut free: Vec<Buffer>, run: &Run) -> Result<Instant, Error> {
        let depth = free.len();
        let mut number = u64::from(self.number) * APART;
        let moved = &run.moved[self.number as usize].0;
        // Each job begins once, also one that had no processor until the test was over: nothing moved would be no rate.
        let mut has_begun = false;
        loop {
            if !std::mem::replace(&mut has_begun, true) || !run.end.load(Ordering::Relaxed) {
                for buffer in free.drain(..) {
                    self.link.start(self.operation(number), buffer)?;
                    number += 1;
                }
            }
            let idle = free.len();
            if idle == depth {
                return Ok(Instant::now());
            }
            self.link.wait(&mut free, Patience::Sleep)?;
            moved.fetch_add((free.len() - idle) as u64, Ordering::Relaxed);
        }
    }

    /// At the first places and the last one: writes and reads back what was written, or reads what the server has.
    pub(super) fn verify(&mut self, bytes: u64) -> Result<u32, Error> {
        let frames = match self.kind {
            Kind::Write => AREA_FRAMES as u64,
            Kind::Read | Kind::Seal | Kind::Cache => u64::from(self.blocks),
        };
        let places = (frames * FRAME_SIZE as u64 / bytes).max(1);
        let mut numbers = vec![0, 1.min(places - 1), places - 1];
        numbers.dedup();
        for number in &numbers {
            self.verify_at(*number, bytes)?;
        }
        Ok(numbers.len() as u32)
    }

    fn verify_at(&mut self, number: u64, bytes: u64) -> Result<(), Error> {
        let pool = self.pool.clone();
        // Of its own for each run and place: what an earlier one left does not pass.
        let written = self.seed ^ number.wrapping_mul(APART);
        let mut operation = self.operation(number);
        if self.kind == Kind::Write {
            let buffer = Buffer::to_write(&pool, bytes, |position, part| pattern::fill(written, position, part))?;
            self.one(operation, buffer, Patience::Sleep)?;
            operation.writes = false;
        }
        let buffer = Buffer::to_read(&pool, bytes)?;
        let Buffer::In(read) = self.one(operation, buffer, Patience::Sleep)? else { return Ok(()) };
        let (lengths, mut before) = (parts(bytes).collect::<Vec<_>>(), 0);
        for (part, span) in read.iter().enumerate() {
            let difference = if self.kind == Kind::Write {
                pattern::first_difference(written, before, span)
            } else {
                let place = operation.part(part, lengths.len(), span.len(), self.blocks as usize);
                pattern::first_difference(pattern::block_seed(place.frame), place.offset.into(), span)
            };
            if let Some((at, expected, found)) = difference {
                return Err(Error::Mismatch { kind: self.kind, bytes, offset: before + at as u64, expected, found });
            }
            before += span.len() as u64;
        }
        if before != bytes {
            return Err(std::io::Error::other(format!("{before} of {bytes} bytes came back")).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::ByteSize;

    use super::*;
    use crate::memory::pool;

    /// Memory of this process, as a server whose links may change bytes.
    #[derive(Default)]
    struct Faulty {
        area: Vec<u8>,
        flying: Vec<Buffer>,
        /// The byte of a payload that arrives changed.
        wrong: Option<usize>,
    }

    impl Link for Faulty {
        fn start(&mut self, operation: Operation, mut buffer: Buffer) -> Result<(), Error> {
            self.area.resize(AREA_FRAMES * FRAME_SIZE, 0);
            let range = |part, count, length, frames| {
                let place = operation.part(part, count, length, frames);
                (place, place.frame as usize * FRAME_SIZE + place.offset as usize)
            };
            match &mut buffer {
                Buffer::Out(spans) => {
                    for (part, span) in spans.iter().enumerate() {
                        let (_, start) = range(part, spans.len(), span.len(), AREA_FRAMES);
                        self.area[start..start + span.len()].copy_from_slice(span);
                    }
                }
                Buffer::In(spans) => {
                    let count = spans.len();
                    for (part, span) in spans.iter_mut().enumerate() {
                        let length = span.len();
                        if operation.region == Region::Area {
                            let (_, start) = range(part, count, length, AREA_FRAMES);
                            span.copy_from_slice(&self.area[start..start + length]);
                        } else {
                            let (place, _) = range(part, count, length, 4);
                            pattern::fill(pattern::block_seed(place.frame), place.offset.into(), span);
                        }
                    }
                    let last = spans.len() - 1;
                    if let Some(wrong) = self.wrong {
                        spans[last][wrong] ^= 0x10;
                    }
                }
            }
            self.flying.push(buffer);
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<Buffer>, _: Patience) -> Result<(), Error> {
            ended.append(&mut self.flying);
            Ok(())
        }
    }

    fn verify(kind: Kind, bytes: u64, wrong: Option<usize>) -> Result<u32, Error> {
        let link = Box::new(Faulty { wrong, ..Faulty::default() });
        let pool = pool(ByteSize::mib(32)).unwrap();
        Job { kind, number: 0, pool, blocks: 4, seed: 77, link }.verify(bytes)
    }

    #[test]
    fn every_size_is_verified_at_several_places() {
        for kind in [Kind::Write, Kind::Read, Kind::Cache] {
            for bytes in [2, 4096, 1 << 20, 4 << 20, 8 << 20] {
                let expected = if kind == Kind::Write && bytes == 8 << 20 { 1 } else { 2 };
                let transfers = verify(kind, bytes, None).unwrap();
                assert!(transfers >= expected, "{transfers} of {kind} of {bytes}");
            }
        }
    }

    #[test]
    fn one_changed_bit_is_found_and_named_by_its_offset() {
        for kind in [Kind::Write, Kind::Read, Kind::Cache] {
            for (bytes, wrong, expected) in [(4096, 4095, 4095), (8 << 20, 17, (4 << 20) + 17)] {
                match verify(kind, bytes, Some(wrong)) {
                    Err(Error::Mismatch { kind: of, bytes: size, offset, expected: should, found }) => {
                        assert_eq!((of, size, offset, should ^ found), (kind, bytes, expected, 0x10));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
