//! A read that hits memory: what the store itself costs, and what checking its bytes adds.
//!
//! `cargo bench -p forebay-store`

use divan::{Bencher, counter::BytesCount};
use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Store, StoreOptions};
use forebay_types::{BlockKey, ByteSize, FileId, MAX_BLOCK_SIZE, SectorRange};
use tokio::runtime::Runtime;

const BLOCKS: u64 = 32;

fn main() {
    divan::main();
}

fn key(index: u64) -> BlockKey {
    BlockKey { file: FileId([7; 16]), index }
}

/// A store with whole blocks in memory, and the runtime of its tasks.
fn filled(verify_reads: bool) -> (Runtime, Store) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(256))).expect("a pool");
    let options = StoreOptions { verify_reads, ..StoreOptions::in_memory(pool) };
    let store = runtime.block_on(async {
        let store = Store::open(options).await.expect("a store of memory alone opens");
        for index in 0..BLOCKS {
            let mut landing = store.landing(MAX_BLOCK_SIZE).await.expect("the pool is large enough");
            landing.fill(index as u8);
            let all = SectorRange { start: 0, end: 128 };
            store.publish(key(index), all, MAX_BLOCK_SIZE, landing);
        }
        store
    });
    (runtime, store)
}

fn hits(bencher: Bencher, length: u32, verify: bool) {
    let (_runtime, store) = filled(verify);
    let mut turn = 0u64;
    let mut next = || {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (key((turn >> 33) % BLOCKS), (turn >> 20) as u32 % (MAX_BLOCK_SIZE / length) * length)
    };
    bencher.counter(BytesCount::new(length)).bench_local(|| {
        let (key, offset) = next();
        store.try_read(&key, offset, length).expect("it is in memory")
    });
}

#[divan::bench(args = [4 << 10, 1 << 20])]
fn try_read(bencher: Bencher, length: u32) {
    hits(bencher, length, false);
}

#[divan::bench(args = [4 << 10, 1 << 20])]
fn try_read_verified(bencher: Bencher, length: u32) {
    hits(bencher, length, true);
}

/// Several readers of the same block.
#[divan::bench(threads = [1, 2])]
fn try_read_shared(bencher: Bencher) {
    let (_runtime, store) = filled(false);
    bencher.bench(|| store.try_read(&key(3), 8192, 4096).expect("it is in memory"));
}

#[divan::bench]
fn publish_1_mib(bencher: Bencher) {
    let (_runtime, store) = filled(false);
    let store = &store;
    let sectors = SectorRange { start: 0, end: 32 };
    let mut index = 1000;
    bencher
        .counter(BytesCount::new(1u32 << 20))
        .with_inputs(|| {
            index += 1;
            store.remove(&key(index - 1));
            (key(index), store.try_landing(1 << 20).expect("the block before was removed"))
        })
        .bench_local_values(|(key, landing)| store.publish(key, sectors, MAX_BLOCK_SIZE, landing));
}
