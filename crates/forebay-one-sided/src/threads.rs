//! The board under a scheduler that tries orders out (shuttle): `make model`.
//!
//! One thread has the memory, and fills it again and again; each time it seals what it wrote, says where it is, and
//! lets go. Others go by what they were told, late as that may be, and read word by word. No word of another filling is
//! believed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_types::{BlockKey, FileId, SectorChecksums, SectorRange};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, Runner, thread};

use crate::board::Board;
use crate::location::Location;
use crate::sync::{AtomicU64, Ordering};
use crate::warmth::{Next, Warmth};

const KEY: BlockKey = BlockKey { file: FileId([1; 16]), index: 0 };
/// Of a run, the last of a file: each order looks at few words.
const WORDS: usize = 2;

/// Says how many orders were tried, also when one of them failed.
struct Said(String, Arc<AtomicUsize>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(std::sync::atomic::Ordering::Relaxed));
    }
}

/// Tries `model` in some thousand orders, half of them by priorities that change at a few random places, which finds
/// deep bugs.
fn in_many_orders(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("FOREBAY_MODEL_ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(5_000);
    let tried = Arc::new(AtomicUsize::new(0));
    let _said = Said(name.to_owned(), Arc::clone(&tried));
    let model = Arc::new(move || {
        tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let again = Arc::clone(&model);
    let mut config = Config::new();
    // Coroutines have little otherwise.
    config.stack_size = 512 << 10;
    Runner::new(RandomScheduler::new(orders), config.clone()).run(move || model());
    Runner::new(PctScheduler::new(3, orders), config).run(move || again());
}

/// Memory that one writes while others look.
struct Slab([AtomicU64; WORDS]);

impl Slab {
    fn write(&self, byte: u8) {
        self.0.iter().for_each(|word| word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
    }

    fn read(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes()).collect()
    }
}

/// The bytes of one filling. Their memory is the next one's when this is dropped.
struct Bytes(Vec<u8>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn read(board: &Board, slab: &Slab, location: Location) -> Option<Vec<u8>> {
    let plan = location.plan(KEY, 0, location.length)?;
    let data = slab.read();
    // The fence.
    let seals: Vec<u8> = (0..8).flat_map(|word| board.word(location.at, word)).collect();
    plan.judge(&data, &seals).is_ok().then_some(data)
}

#[test]
fn whoever_reads_by_an_old_location_believes_no_word_of_what_came_after_it() {
    in_many_orders("a board: one who fills and lets go, and two who read", || {
        let board = Board::new(1);
        let slab = Arc::new(Slab(std::array::from_fn(|_| AtomicU64::new(0))));
        let told: Arc<Mutex<Vec<(Location, u8)>>> = Arc::default();
        let writer = {
            let (board, slab, told) = (Arc::clone(&board), Arc::clone(&slab), Arc::clone(&told));
            thread::spawn(move || {
                for byte in 1..4 {
                    slab.write(byte);
                    let bytes = Bytes(vec![byte; 8 * WORDS]);
                    let (sectors, checksums) = (SectorRange::new(0, 1).unwrap(), SectorChecksums::of(&bytes.0));
                    let sealed = board.seal(KEY, sectors, 0, &checksums, bytes).unwrap();
                    let length = 8 * WORDS as u32;
                    let location = Location { generation: sealed.generation(), at: 0, first: 0, length };
                    told.lock().unwrap().push((location, byte));
                    thread::yield_now();
                    drop(sealed);
                }
            })
        };
        let readers = [0, 1].map(|_| {
            let (board, slab, told) = (Arc::clone(&board), Arc::clone(&slab), Arc::clone(&told));
            thread::spawn(move || {
                for _ in 0..3 {
                    let last = told.lock().unwrap().last().copied();
                    let Some((location, byte)) = last else {
                        thread::yield_now();
                        continue;
                    };
                    if let Some(data) = read(&board, &slab, location) {
                        assert!(data.iter().all(|other| *other == byte), "of another filling");
                    }
                }
            })
        });
        writer.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        for (location, _) in told.lock().unwrap().iter() {
            assert_eq!(read(&board, &slab, *location), None, "all of them were let go of");
        }
    });
}

#[test]
fn a_run_is_sealed_by_one_of_those_who_hit_it_at_once() {
    in_many_orders("a run that is hit by three at once", || {
        let warmth = Arc::new(Warmth::default());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let warmth = Arc::clone(&warmth);
                thread::spawn(move || warmth.hit() == Next::Seal)
            })
            .collect();
        let sealed = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|is| *is).count();
        assert_eq!(sealed, 1);
    });
}
