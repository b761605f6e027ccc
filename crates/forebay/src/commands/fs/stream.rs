//! A file's bytes in order, with a few reads ahead of the consumer.

use std::ops::Range;
use std::sync::Arc;

use forebay_client::OpenFile;
use forebay_memory::Spans;
use forebay_types::Failure;
use futures::stream::{self, Stream, StreamExt as _};
use tokio_util::task::AbortOnDropHandle;

/// Reads under way for one file. Four blocks of 4 MiB, each from the worker that owns it, hide a round trip to the
/// origin without holding much memory.
const AHEAD: usize = 4;

/// The bytes `range` of `file`, a block or less at a time, with where each piece starts.
pub(crate) fn chunks(
    file: Arc<OpenFile>,
    range: Range<u64>,
) -> impl Stream<Item = Result<(u64, Spans), Failure>> + Unpin {
    let block_size = u64::from(file.layout().block_size());
    let end = range.end.min(file.version().size);
    let starts = std::iter::successors(Some(range.start), move |at| Some((at / block_size + 1) * block_size))
        .take_while(move |at| *at < end);
    let reads = starts.map(move |at| {
        let length = (block_size - at % block_size).min(end - at);
        let file = Arc::clone(&file);
        async move {
            // A task of its own, so that it goes on while the consumer is busy with an earlier piece. A piece is
            // at most a block, whose size is a u32.
            let read = AbortOnDropHandle::new(tokio::spawn(async move { file.read(at, length as u32).await }));
            match read.await {
                Ok(spans) => spans.map(|spans| (at, spans)),
                Err(error) => {
                    Err(Failure::new(forebay_types::FailureKind::Internal, format!("a read failed: {error}")))
                }
            }
        }
    });
    stream::iter(reads).buffered(AHEAD).boxed()
}
