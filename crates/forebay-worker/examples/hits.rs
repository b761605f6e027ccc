//! Reads that hit memory, and nothing else besides their setting up: `scripts/instructions.sh` counts what they execute.
//!
//! `hits client|worker|proved|listed COUNT`: so many of 4 KiB, through a client in the worker's process, or served by the worker alone:
//! to nobody in particular, to somebody who proved to be a reader, and to one on the access list of the mount.

#[path = "../benches/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::{Listed, Scene, somewhere};
use forebay_transport::{Caller, Service};

const LENGTH: u32 = 4 << 10;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (who, count) = match arguments.as_slice() {
        [who, count] => (who.as_str(), count.parse::<u32>().unwrap_or(0)),
        _ => ("", 0),
    };
    match who {
        "client" => {
            let scene = Scene::new();
            checked(&scene, &Caller::default());
            let file = scene.open(0);
            counted(count, || drop(black_box(file.try_read(somewhere(LENGTH), LENGTH))));
        }
        "worker" => served(&Scene::new(), &Caller::default(), count),
        "proved" => {
            let Listed { reader, .. } = Listed::new();
            served(&Scene::new(), &reader, count);
        }
        "listed" => {
            let Listed { scene, reader, .. } = Listed::new();
            served(&scene, &reader, count);
        }
        _ => eprintln!("usage: hits client|worker|proved|listed COUNT"),
    }
}

/// Every sector is read once before, so that its check is not among what is counted.
fn checked(scene: &Scene, caller: &Caller) {
    for offset in (0..common::SIZE).step_by(1 << 20) {
        black_box(scene.worker.try_handle(&scene.request(0, offset, 1 << 20).by(caller.clone())));
    }
}

/// `caller` reads.
fn served(scene: &Scene, caller: &Caller, count: u32) {
    checked(scene, caller);
    let request = || scene.request(0, somewhere(LENGTH), LENGTH).by(caller.clone());
    counted(count, || drop(black_box(scene.worker.try_handle(&request()))));
}

/// All that is counted: by its name valgrind knows when to count.
#[inline(never)]
fn counted(count: u32, hit: impl Fn()) {
    (0..count).for_each(|_| hit());
}
