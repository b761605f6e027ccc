//! Entries on threads of this process, with the kernel played by the thread that owns them: for Miri and
//! ThreadSanitizer, too.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use forebay_memory::PoolOptions;
use forebay_types::ByteSize;

use super::*;

const ROUNDS: u8 = if cfg!(miri) { 3 } else { 100 };
const LENGTH: usize = 64;

/// One entry, and its owner thread's part of a round: it serves `request`, hands over what is to be answered later, waits until the
/// answer is there, and takes it out as the kernel does.
struct Owner {
    entries: Arc<Entries>,
    _pool: Pool,
}

impl Owner {
    fn new() -> Self {
        let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(4)) }).unwrap();
        let entries = Entries::new(&[(0, 1)], LENGTH, &pool, Ready::new(1).unwrap()).unwrap();
        entries.give(0);
        Self { entries: Arc::new(entries), _pool: pool }
    }

    fn bring(&self, number: u8) -> Taken<'_> {
        let mut header = [0; IN_HEADER_SIZE];
        header[8] = number;
        self.entries.bring(0, &header, &[number; 8], &[number; LENGTH]);
        let taken = self.entries.take(0);
        assert!(taken.header()[8] == number && taken.head()[0] == number && taken.tail() == [number; LENGTH]);
        taken
    }

    fn answered(&self) -> (u64, i32, Vec<u8>) {
        let mut is_ready = false;
        while !is_ready {
            self.entries.ready().drain(|entry| is_ready = entry == Some(0));
            thread::yield_now();
        }
        // As the thread does with one that is lent: it looks again.
        while self.entries.is_lent(0) {
            thread::yield_now();
        }
        self.entries.give(0);
        self.entries.fetch(0)
    }
}

/// A thread that does `work` with each thing that it is handed.
fn handed<T: Send + 'static>(
    work: impl Fn(T) + Send + 'static,
) -> (std::sync::mpsc::Sender<T>, thread::JoinHandle<()>) {
    let (sender, receiver): (_, Receiver<T>) = channel();
    (sender, thread::spawn(move || receiver.into_iter().for_each(work)))
}

#[test]
fn an_answer_is_written_when_nobody_reads_what_a_write_brought() {
    let owner = Owner::new();
    let (answers, answering) = handed(|(kept, number): (Kept, u8)| kept.answer(Ok(&[&[number + 1; LENGTH]])));
    let (reads, reading) = handed(|(bytes, number): (KeptBytes, u8)| {
        assert!(bytes.iter().all(|byte| *byte == number), "it was written over")
    });
    for number in 0..ROUNDS {
        let (kept, bytes) = owner.bring(number).keep_bytes();
        reads.send((bytes, number)).unwrap();
        answers.send((kept, number)).unwrap();
        assert_eq!(owner.answered(), (u64::from(number), 0, vec![number + 1; LENGTH]));
    }
    drop((answers, reads));
    [answering, reading].into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_lands_in_a_payload_that_is_lent_is_answered_and_what_comes_too_late_harms_nobody() {
    let owner = Owner::new();
    let (lands, landing) = handed(|(kept, mut span, number): (Kept, SpanMut, u8)| {
        span.fill(number + 1);
        assert!(kept.filled(span, LENGTH));
    });
    let (late, coming_late) = handed(|(mut span, number): (SpanMut, u8)| span.fill(number));
    for number in 0..ROUNDS {
        let mut kept = owner.bring(number).keep();
        let span = kept.lend().unwrap();
        assert!(kept.lend().is_none() && kept.payload().is_none());
        lands.send((kept, span, number)).unwrap();
        assert_eq!(owner.answered(), (u64::from(number), 0, vec![number + 1; LENGTH]));

        let mut kept = owner.bring(number).keep();
        late.send((kept.lend().unwrap(), 77)).unwrap();
        kept.answer(Ok(&[&[number + 2; 10]]));
        assert_eq!(owner.answered(), (u64::from(number), 0, vec![number + 2; 10]));

        let mut kept = owner.bring(number).keep();
        kept.payload().unwrap()[..5].fill(number + 3);
        kept.send_payload(5);
        assert_eq!(owner.answered(), (u64::from(number), 0, vec![number + 3; 5]));
        owner.bring(number).answer(Err(libc::ENOENT));
        owner.entries.give(0);
        assert_eq!(owner.entries.fetch(0), (u64::from(number), -libc::ENOENT, vec![]));
    }
    drop((lands, late));
    [landing, coming_late].into_iter().for_each(|thread| thread.join().unwrap());
}
