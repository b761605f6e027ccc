//! Looking at the bytes of a hit where they lie.
//!
//! A [`Spans`] holds on to memory by a count that all readers of a block share, and that goes from core to core with
//! them. A reader that only copies the bytes, or hands them to the kernel, needs no [`Spans`]: the owner of the bytes
//! keeps them for as long as the look takes.

use forebay_memory::Spans;

/// What is done with the bytes, in order. It should be short: their memory cannot be reused meanwhile.
pub type Look<'a> = &'a mut dyn FnMut(&[&[u8]]);

/// Looks at what is held anyway, if there is something.
pub(crate) fn look_at(spans: Option<Spans>, look: Look<'_>) -> bool {
    let Some(spans) = spans else { return false };
    match spans.as_slice() {
        [span] => look(&[span]),
        spans => look(&spans.iter().map(|span| &**span).collect::<Vec<_>>()),
    }
    true
}
