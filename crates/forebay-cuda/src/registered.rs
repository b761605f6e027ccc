//! Windows of workers' memory that a device copies from.
//!
//! To register memory is to pin it: the kernel gives each page memory if it has none yet, which takes seconds for many gigabytes. So a
//! window is registered in pieces of [`PIECE`], each when the first copy reads from it, and stays so: what is read once is read again. No
//! more is pinned than the worker's memory.
//!
//! A window's mapping is held here while a piece of it is registered. When nobody reads it any more (the worker has gone, and no view of it
//! is left), its registration ends, and the memory is the system's ([`Registered::sweep`]).

use std::ptr::NonNull;

use forebay_memory::{Registrable, Span};

use crate::handles::Access;
use crate::traits::Cuda;

/// Bytes that are registered at once. Some tens of milliseconds; a multiple of every huge page but the largest.
const PIECE: usize = 256 << 20;

/// Bytes of one registration: where they begin, and how many.
pub(crate) type Part = (NonNull<u8>, usize);

/// What is registered.
#[derive(Debug)]
pub(crate) struct Registered {
    windows: Vec<Window>,
    /// Whether the device takes memory that is mapped for reading only, as windows are.
    takes_read_only: bool,
}

#[derive(Debug)]
struct Window {
    memory: Registrable,
    /// Of each piece, whether it is registered.
    pieces: Vec<bool>,
    /// The driver does not take it, and is not asked again.
    is_refused: bool,
}

/// The pieces that bytes lie in: the number of each, and which of the mapping's bytes it has of them.
fn cut(offset: usize, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, end) = (offset, offset + length);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (piece, start) = (at / PIECE, at);
            at = end.min((piece + 1) * PIECE);
            (piece, start, at - start)
        })
    })
}

impl Window {
    fn new(memory: Registrable) -> Self {
        let pieces = vec![false; memory.length().div_ceil(PIECE)];
        Self { memory, pieces, is_refused: false }
    }

    /// Adds the parts of `span`, registered; false if they cannot be.
    fn add(&mut self, cuda: &dyn Cuda, span: &Span, parts: &mut Vec<Part>) -> bool {
        let base = self.memory.base();
        let Some(offset) = (span.as_ptr() as usize).checked_sub(base.as_ptr() as usize) else { return false };
        for (piece, start, length) in cut(offset, span.len()) {
            if !self.has(cuda, piece) {
                return false;
            }
            // SAFETY: it lies in the span, and so in the mapping.
            parts.push((unsafe { base.add(start) }, length));
        }
        true
    }

    fn has(&mut self, cuda: &dyn Cuda, piece: usize) -> bool {
        let Some(is_registered) = self.pieces.get_mut(piece) else { return false };
        if *is_registered || self.is_refused {
            return *is_registered;
        }
        let start = piece * PIECE;
        let length = PIECE.min(self.memory.length() - start);
        // SAFETY: the piece lies in the mapping, which is held until the registration has ended (`end`).
        let registered = unsafe { cuda.register(self.memory.base().add(start), length, Access::ReadOnly) };
        match registered {
            Ok(()) => *is_registered = true,
            Err(error) => {
                tracing::warn!(%error, bytes = length, "memory of a worker is not registered: its bytes are copied twice");
                self.is_refused = true;
            }
        }
        *is_registered
    }

    /// Ends its registrations. No copy reads from it any more.
    fn end(&self, cuda: &dyn Cuda) {
        for (piece, _) in self.pieces.iter().enumerate().filter(|(_, is_registered)| **is_registered) {
            // SAFETY: it was registered there, and the caller says that nothing reads it.
            let ended = unsafe { cuda.unregister(self.memory.base().add(piece * PIECE)) };
            if let Err(error) = ended {
                tracing::warn!(%error, "memory stays pinned");
                // What would be mapped there next would be copied from the pages that the driver knows there.
                self.memory.leak();
            }
        }
    }
}

impl Registered {
    pub(crate) fn new(takes_read_only: bool) -> Self {
        Self { windows: Vec::new(), takes_read_only }
    }

    pub(crate) fn takes_windows(&self) -> bool {
        self.takes_read_only
    }

    /// The parts that `spans` are copied in, each within one registration; `None` if one of them is not registered and cannot be.
    pub(crate) fn parts(&mut self, cuda: &dyn Cuda, spans: &[Span]) -> Option<Vec<Part>> {
        if !self.takes_read_only {
            return None;
        }
        let mut parts = Vec::with_capacity(spans.len());
        for span in spans {
            let memory = span.registrable()?;
            let known = self.windows.iter().position(|window| window.memory.base() == memory.base());
            let number = known.unwrap_or_else(|| {
                self.sweep(cuda);
                self.windows.push(Window::new(memory));
                self.windows.len() - 1
            });
            if !self.windows[number].add(cuda, span, &mut parts) {
                return None;
            }
        }
        Some(parts)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Lets go of windows that nobody has any more: a copy that is under way holds its own.
    pub(crate) fn sweep(&mut self, cuda: &dyn Cuda) {
        self.windows.retain(|window| {
            let is_gone = window.memory.is_unused();
            if is_gone {
                window.end(cuda);
            }
            !is_gone
        });
    }

    /// Ends all registrations. No copy is under way.
    pub(crate) fn end(&mut self, cuda: &dyn Cuda) {
        self.windows.drain(..).for_each(|window| window.end(cuda));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_where_registrations_end() {
        assert_eq!(cut(100, 0).collect::<Vec<_>>(), []);
        assert_eq!(cut(100, 50).collect::<Vec<_>>(), [(0, 100, 50)]);
        assert_eq!(cut(PIECE - 1, 2).collect::<Vec<_>>(), [(0, PIECE - 1, 1), (1, PIECE, 1)]);
        let across: Vec<_> = cut(PIECE / 2, 2 * PIECE).collect();
        assert_eq!(across, [(0, PIECE / 2, PIECE / 2), (1, PIECE, PIECE), (2, 2 * PIECE, PIECE / 2)]);
    }
}
