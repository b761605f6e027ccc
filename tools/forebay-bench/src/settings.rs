//! How much is measured: rounds, bytes and time, which every section takes from here.

use std::time::Duration;

use forebay_types::ByteSize;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether only the harness is being tried.
    pub(crate) quick: bool,
    /// Rounds that count, after one to warm up, which counts where there are none.
    pub(crate) repeat: usize,
    /// Bytes of the large file.
    pub(crate) size: u64,
    /// How long one measurement reads.
    pub(crate) time: Duration,
}

impl Settings {
    /// What was asked for, and the rest as a quick or an ordinary run has it.
    pub(crate) fn new(quick: bool, repeat: Option<usize>, size: Option<ByteSize>, time: Option<Duration>) -> Self {
        let (usual_size, usual_time) = if quick {
            (ByteSize::mib(32), Duration::from_millis(200))
        } else {
            (ByteSize::gib(1), Duration::from_secs(2))
        };
        Self {
            quick,
            repeat: repeat.unwrap_or(if quick { 0 } else { 5 }),
            // Sixteen jobs read a part of whole MiB each.
            size: size.unwrap_or(usual_size).as_u64().next_multiple_of(16 << 20),
            time: time.unwrap_or(usual_time),
        }
    }

    /// Of several measurements of a kind those that are made: a quick run makes the first and the last.
    pub(crate) fn chosen<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match all {
            [first, .., last] if self.quick => vec![*first, *last],
            all => all.to_vec(),
        }
    }

    /// How many fio jobs and threads read at once, in turn.
    pub(crate) fn jobs(&self) -> &'static [u32] {
        if self.quick { &[4] } else { &[1, 4, 16] }
    }
}
