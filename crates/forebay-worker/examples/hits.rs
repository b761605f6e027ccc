//! Reads that hit memory, and nothing else besides their setting up: `scripts/instructions.sh` counts what they execute.
//!
//! `hits client|worker COUNT`: so many of 4 KiB, through a client in the worker's process, or served by the worker alone.

#[path = "../benches/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::{Scene, somewhere};
use forebay_transport::Service;

const LENGTH: u32 = 4 << 10;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (who, count) = match arguments.as_slice() {
        [who, count] => (who.as_str(), count.parse::<u32>().unwrap_or(0)),
        _ => ("", 0),
    };
    let scene = Scene::new();
    // Every sector is read once before, so that its check is not among what is counted.
    for offset in (0..common::SIZE).step_by(1 << 20) {
        black_box(scene.worker.try_handle(&scene.request(0, offset, 1 << 20)));
    }
    match who {
        "client" => {
            let file = scene.open(0);
            (0..count).for_each(|_| drop(black_box(file.try_read(somewhere(LENGTH), LENGTH))));
        }
        "worker" => {
            let request = || scene.request(0, somewhere(LENGTH), LENGTH);
            (0..count).for_each(|_| drop(black_box(scene.worker.try_handle(&request()))));
        }
        _ => eprintln!("usage: hits client|worker COUNT"),
    }
}
