//! Two readers of one handle, in the orders in which their steps can come and be seen (loom).
//!
//! Nothing that is lost here costs more than a window: so what is asserted is that no order makes the streams panic or fetch beyond
//! the file, that nothing continues where no read ended, and that a reader that goes on in order has a window again soon.

use crate::prefetch::{PrefetchOptions, Streams};

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "atomic_state.rs"]
    pub(crate) mod atomic_state;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    }
}

const PART: u64 = 128 << 10;
const SIZE: u64 = 1 << 30;

/// A handle, as `open_file.rs` has it: the atomic state, and the streams behind a lock.
struct Handle {
    fast_path: modelled::atomic_state::StreamFastPath,
    streams: loom::sync::Mutex<Streams>,
}

impl Handle {
    fn new() -> Self {
        let streams = Streams::new(SIZE, 4 << 20, PrefetchOptions::default());
        Self {
            fast_path: modelled::atomic_state::StreamFastPath::new(&streams),
            streams: loom::sync::Mutex::new(streams),
        }
    }

    /// A read of one part; whether it goes on where one ended.
    fn read(&self, offset: u64) -> bool {
        let end = offset + PART;
        if let Some(goes_on) = self.fast_path.try_record(offset, end) {
            return goes_on;
        }
        let mut streams = self.streams.lock().unwrap();
        self.fast_path.write_back(&mut streams, offset, end);
        let ahead = streams.on_read(offset, PART as u32, || u64::MAX);
        self.fast_path.refresh(&streams);
        assert!(ahead.fetch.is_none_or(|fetch| fetch.start < fetch.end && fetch.end <= SIZE));
        ahead.sequential
    }
}

/// Says how many orders were tried, also when one of them failed.
struct Said(String, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(std::sync::atomic::Ordering::Relaxed));
    }
}

fn in_every_order(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    // Each read looks at some thirty words, and may see what was there before: all orders of two reads are too many, so it is as
    // many as can be tried in a while.
    let seconds = if std::env::var_os("FOREBAY_MODEL").is_some() { 120 } else { 4 };
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_duration = Some(std::time::Duration::from_secs(seconds));
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let _said = Said(name.to_owned(), std::sync::Arc::clone(&orders));
    builder.check(move || {
        orders.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
}

#[test]
fn two_readers_of_one_handle_harm_nothing_and_have_their_windows_soon() {
    in_every_order("two readers of a handle", || {
        let handle = loom::sync::Arc::new(Handle::new());
        assert!(!handle.read(0), "nothing ended there");
        handle.read(PART);
        let far = SIZE / 2;
        let other = {
            let handle = loom::sync::Arc::clone(&handle);
            loom::thread::spawn(move || assert!(!handle.read(far), "nothing ended there"))
        };
        handle.read(2 * PART);
        other.join().unwrap();
        // Whatever was lost of their steps.
        for start in [3 * PART, far + PART] {
            assert!((0..3).any(|part| handle.read(start + part * PART)), "nobody follows the reader at {start}");
        }
    });
}
