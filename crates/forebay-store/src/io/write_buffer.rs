//! The memory of a write: a header page, whole pages of the run in place, and its last bytes in a page of their own.

use std::sync::Arc;

use forebay_memory::Span;
use smallvec::SmallVec;

use crate::disk::DiskExtent;

/// Bytes in a page.
const PAGE: usize = 4096;

/// A page of memory, aligned for `O_DIRECT`.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE]);

/// What is to be written, all of it multiples of pages.
pub(crate) struct WriteBuffer {
    header: Box<Page>,
    body: Body,
    /// The bytes after the last whole page, then zeros.
    tail: Option<Box<Page>>,
    /// Stays in use until the write has ended.
    _extent: Option<Arc<DiskExtent>>,
}

enum Body {
    Nothing,
    Whole(Span),
    /// Of a span that does not start at a page.
    Copied(Box<[Page]>),
}

impl WriteBuffer {
    /// A single page.
    pub(crate) fn page(page: Page, extent: Option<Arc<DiskExtent>>) -> Self {
        Self { header: Box::new(page), body: Body::Nothing, tail: None, _extent: extent }
    }

    /// A page and the bytes after it.
    pub(crate) fn run(header: Page, bytes: &Span, extent: Option<Arc<DiskExtent>>) -> Self {
        let whole = bytes.len() / PAGE * PAGE;
        let body = if bytes.as_ptr().addr().is_multiple_of(PAGE) {
            Body::Whole(bytes.slice(0..whole))
        } else {
            Body::Copied(bytes[..whole].as_chunks().0.iter().map(|page| Page(*page)).collect())
        };
        let rest = &bytes[whole..];
        let tail = (!rest.is_empty()).then(|| {
            let mut page = Box::new(Page([0; PAGE]));
            page.0[..rest.len()].copy_from_slice(rest);
            page
        });
        Self { header: Box::new(header), body, tail, _extent: extent }
    }

    /// The pieces to write, one after the other.
    pub(crate) fn parts(&self) -> SmallVec<[&[u8]; 3]> {
        let body: &[u8] = match &self.body {
            Body::Nothing => &[],
            Body::Whole(span) => span,
            Body::Copied(pages) => {
                // SAFETY: a `Page` is exactly its bytes (`repr(C)`, as large as its alignment), so a slice of pages is
                // as many bytes in a row.
                unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * PAGE) }
            }
        };
        let tail: &[u8] = self.tail.as_ref().map_or(&[], |page| &page.0);
        [&self.header.0[..], body, tail].into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// Bytes in all parts.
    pub(crate) fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_memory::{Pool, PoolOptions};
    use forebay_types::ByteSize;

    #[test]
    fn parts_are_header_run_and_zeros_up_to_a_page_whatever_the_alignment() {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
        for (skip, length) in [(0, 10_000), (0, 8192), (0, 5), (100, 10_000), (100, 8192)] {
            let mut span = pool.try_alloc(skip + length).unwrap();
            span.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
            let bytes = span.freeze().slice(skip..skip + length);
            let buffer = WriteBuffer::run(Page([9; PAGE]), &bytes, None);
            let parts = buffer.parts();
            assert!(parts.iter().all(|part| part.as_ptr().addr() % PAGE == 0 && part.len() % PAGE == 0));
            let all = parts.concat();
            assert_eq!(all.len(), buffer.len());
            assert_eq!(all.len(), PAGE + length.next_multiple_of(PAGE));
            assert_eq!(all[PAGE..PAGE + length], *bytes);
            assert!(all[PAGE + length..].iter().all(|byte| *byte == 0));
        }
    }
}
