//! How evenly blocks are spread, how many move when the cluster changes, and what looking up an owner costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use forebay_cluster::{Member, Ring};
use forebay_types::{BlockKey, FileId};
use rand::rngs::SmallRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

use crate::arguments::Arguments;
use crate::memory;
use crate::table::{Page, bytes, count, percent, time};

/// How long look-ups are timed.
const TIMED: Duration = Duration::from_millis(200);

pub(crate) fn simulate(arguments: &Arguments, page: &mut Page) {
    spread(arguments, page);
    moves(arguments, page);
    costs(arguments, page);
}

/// Block keys: of files, as the ids of files are: the output of a hash.
fn keys(seed: u64, number: u64) -> impl Iterator<Item = BlockKey> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..number).map(move |_| {
        let mut id = [0; 16];
        random.fill_bytes(&mut id);
        BlockKey { file: FileId(id), index: random.random_range(0..16) }
    })
}

fn member(number: usize, weight: f64) -> Member {
    Member {
        name: format!("node-{number:05}.cluster:29999").into(),
        address: format!("10.{}.{}.{}:29999", number >> 16, number >> 8 & 255, number & 255).into(),
        weight,
        identity: None,
    }
}

fn ring(workers: usize, weight: impl Fn(usize) -> f64) -> Ring {
    Ring::new((0..workers).map(|number| member(number, weight(number))))
}

/// Sizes of clusters up to the largest.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    [10, 100, 1_000, 10_000].into_iter().filter(move |size| *size < most).chain([most])
}

/// Three generations of hardware.
fn mixed(number: usize) -> f64 {
    [1.0, 2.0, 4.0][number % 3]
}

fn spread(arguments: &Arguments, page: &mut Page) {
    page.section(
        "Balance",
        &format!(
            "{} blocks placed, the load of each worker in relation to its weight. *by chance* is the largest load over the mean \
             that so many blocks thrown at random have, and *at a billion files* what is left of that with one block a file.",
            count(arguments.blocks)
        ),
        &["workers", "weights", "max/mean", "by chance", "at a billion files", "min/mean"],
    );
    for workers in sizes(arguments.workers) {
        for (named, weight) in [("equal", (|_| 1.0) as fn(usize) -> f64), ("1, 2 and 4", mixed)] {
            let ring = ring(workers, weight);
            let mut owned = vec![0u64; workers];
            for key in keys(arguments.seed, arguments.blocks) {
                // The ring is not empty.
                owned[ring.owner(&key).unwrap_or_default()] += 1;
            }
            let shares = ring.shares();
            let load = |at: usize| owned[at] as f64 / (shares[at] * arguments.blocks as f64);
            let loads = (0..workers).map(load);
            let (most, least) = loads.fold((0.0f64, f64::MAX), |(most, least), load| (most.max(load), least.min(load)));
            // The smallest workers, which have the fewest blocks, are the furthest from their mean.
            let least_share = shares.iter().copied().fold(f64::MAX, f64::min);
            let chance = |blocks: f64| 1.0 + (2.0 * (workers as f64).ln() / (least_share * blocks)).sqrt();
            page.row(&[
                count(workers as u64),
                named.to_owned(),
                format!("{most:.3}"),
                format!("{:.3}", chance(arguments.blocks as f64)),
                format!("{:.3}", chance(arguments.files as f64)),
                format!("{least:.3}"),
            ]);
        }
    }
}

fn moves(arguments: &Arguments, page: &mut Page) {
    let blocks = arguments.blocks / 8;
    page.section(
        "Blocks that move",
        &format!(
            "Of {} blocks: those whose owner is another one after the change; *needless* are those that moved between two \
             workers that the change did not concern.",
            count(blocks)
        ),
        &["workers", "change", "moved", "ideal", "needless"],
    );
    for workers in sizes(arguments.workers) {
        let before = ring(workers, |_| 1.0);
        let total = workers as f64;
        let tenth = workers / 10;
        // The numbers of the workers that a change concerns, and the share of the blocks that has to move.
        let changed = [
            ("one joins", ring(workers + 1, |_| 1.0), workers..workers + 1, 1.0 / (total + 1.0)),
            ("one leaves", ring(workers - 1, |_| 1.0), workers - 1..workers, 1.0 / total),
            (
                "one gets twice the weight",
                ring(workers, |number| if number == 3 { 2.0 } else { 1.0 }),
                3..4,
                2.0 / (total + 1.0) - 1.0 / total,
            ),
            ("a tenth leaves", ring(workers - tenth, |_| 1.0), workers - tenth..workers, tenth as f64 / total),
        ];
        for (named, after, concerned, ideal) in changed {
            let (mut moved, mut needless) = (0u64, 0u64);
            for key in keys(arguments.seed, blocks) {
                let (old, new) = (before.owner(&key), after.owner(&key));
                // Names are in order of number, so indices are numbers in both.
                if let (Some(old), Some(new)) = (old, new)
                    && old != new
                {
                    moved += 1;
                    needless += u64::from(!concerned.contains(&old) && !concerned.contains(&new));
                }
            }
            let share = moved as f64 / blocks as f64;
            page.row(&[count(workers as u64), named.to_owned(), percent(share), percent(ideal), count(needless)]);
        }
    }
}

fn costs(arguments: &Arguments, page: &mut Page) {
    page.section(
        "What it costs a client",
        "The time of one look-up, on one core of this machine, and the memory of a ring.",
        &["workers", "weights", "owner", "owner and 2 replicas", "the whole order", "memory"],
    );
    for workers in sizes(arguments.workers) {
        for (named, weight) in [("equal", (|_| 1.0) as fn(usize) -> f64), ("1, 2 and 4", mixed)] {
            let before = memory::now();
            let ring = ring(workers, weight);
            let held = memory::now() - before;
            page.row(&[
                count(workers as u64),
                named.to_owned(),
                time(timed(|key| ring.owner(key))),
                time(timed(|key| ring.first(key, 3))),
                time(timed(|key| ring.ranked(key))),
                bytes(held),
            ]);
        }
    }
}

/// How long `look_up` takes for one key.
fn timed<T>(look_up: impl Fn(&BlockKey) -> T) -> Duration {
    let keys: Vec<BlockKey> = keys(7, 1024).collect();
    let begun = Instant::now();
    let mut done = 0u32;
    while begun.elapsed() < TIMED {
        for key in &keys[..64] {
            black_box(look_up(key));
            done += 1;
        }
    }
    begun.elapsed() / done.max(1)
}
