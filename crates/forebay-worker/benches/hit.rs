//! A read that hits memory: what the worker takes to serve it, and what client and worker together take in one process.
//!
//! `cargo bench -p forebay-worker --bench hit`

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{FILES, SIZE, Scene, somewhere};
use divan::{Bencher, black_box, counter::ItemsCount};
use forebay_client::OpenFile;
use forebay_transport::Service;

const LENGTHS: [u32; 2] = [4 << 10, 1 << 20];

fn main() {
    divan::main();
}

/// Which of the handles the thread reads through: threads are told apart, whatever the number of them.
fn mine(handles: &[Arc<OpenFile>]) -> &Arc<OpenFile> {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    &handles[MINE.with(Cell::get) % handles.len()]
}

/// The worker alone.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn serve(bencher: Bencher, length: u32) {
    let scene = Scene::new();
    bencher.counter(ItemsCount::new(1u32)).bench(|| {
        let served = scene.worker.try_handle(&scene.request(0, somewhere(length), length));
        black_box(served.expect("it is in memory"));
    });
}

/// Threads with a handle each, all on one file.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn read_one_file(bencher: Bencher, length: u32) {
    read(bencher, length, |_| 0);
}

/// Threads with a handle each, each on a file of its own.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn read_files(bencher: Bencher, length: u32) {
    read(bencher, length, |handle| handle);
}

fn read(bencher: Bencher, length: u32, file_of: fn(usize) -> usize) {
    let scene = Scene::new();
    let handles: Vec<_> = (0..FILES).map(|handle| scene.open(file_of(handle))).collect();
    bencher.counter(ItemsCount::new(1u32)).bench(|| {
        let read = mine(&handles).try_read(somewhere(length), length);
        black_box(read.expect("it is in memory"));
    });
}

/// A file from its start to its end, again and again.
#[divan::bench(args = LENGTHS, sample_size = 1000)]
fn read_in_order(bencher: Bencher, length: u32) {
    let scene = Scene::running();
    let mut handle = scene.open(0);
    let mut at = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        if at == SIZE {
            handle = scene.open(0);
            at = 0;
        }
        black_box(handle.try_read(at, length).expect("it is in memory"));
        at += u64::from(length);
    });
}
