//! When a run in a worker's memory is sealed: once it is warm, by whoever hits it then. Threads share it.

use crate::sync::{AtomicU8, Ordering};

/// Hits by clients that could use its location, until a run is sealed.
const WARM: u8 = 2;
/// It is to be sealed, or was.
const TAKEN: u8 = u8::MAX;

/// How warm one run is. Counted are hits by those alone who could be told its location, so whoever has one-sided reads
/// off pays nothing.
#[derive(Debug)]
pub struct Warmth(AtomicU8);

/// What a hit is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Wait,
    /// Have the run sealed: this hit, and no other.
    Seal,
}

impl Default for Warmth {
    fn default() -> Self {
        Self(AtomicU8::new(0))
    }
}

impl Warmth {
    /// Somebody hit the run who could have used its location.
    pub fn hit(&self) -> Next {
        // Looked at first, so that hits do not fight for its cache line.
        if self.0.load(Ordering::Relaxed) == TAKEN {
            return Next::Wait;
        }
        let next = |hits: u8| match hits {
            TAKEN => None,
            hits if hits + 1 < WARM => Some(hits + 1),
            _ => Some(TAKEN),
        };
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(hits) if next(hits) == Some(TAKEN) => Next::Seal,
            _ => Next::Wait,
        }
    }

    /// It could not be sealed, as nobody had the time: later hits may have that done.
    pub fn cool(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_second_hit_has_a_run_sealed_and_no_other() {
        let warmth = Warmth::default();
        let hits: Vec<_> = (0..300).map(|_| warmth.hit()).collect();
        assert_eq!(hits.iter().position(|next| *next == Next::Seal), Some(1));
        assert_eq!(hits.iter().filter(|next| **next == Next::Seal).count(), 1);
        warmth.cool();
        assert_eq!([warmth.hit(), warmth.hit(), warmth.hit()], [Next::Wait, Next::Seal, Next::Wait]);
    }
}
