//! Reading a draft: what is staged, what the base has, and zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_types::{Failure, FailureKind, FsPath};

use crate::Base;
use crate::buffers::Buffers;
use crate::content::{Piece, Source};
use crate::error::{failed, let_go};
use crate::shared::DraftInner;
use crate::state::StagedFile;

/// Up to this many bytes are read where they are asked for: from the page cache, as a rule.
const AT_ONCE: u32 = 1 << 20;
/// What is asked of a base at once: a block of the cache.
const FROM_BASE: u64 = 4 << 20;

/// Bytes of a draft, and what of them only the base has.
struct Gathered {
    /// Zeros where the base's bytes belong; nothing when all are the base's.
    bytes: Vec<u8>,
    range: Range<u64>,
    from_base: Vec<Range<u64>>,
    base: Option<Arc<dyn Base>>,
    /// Whose memory that is.
    lender: Option<Arc<Buffers>>,
}

impl DraftInner {
    /// Bytes, cut off at the end.
    pub(crate) async fn read(self: &Arc<Self>, offset: u64, length: u32) -> Result<Bytes, Failure> {
        loop {
            let gathered = if length > AT_ONCE {
                let inner = Arc::clone(self);
                self.shared.blocking(move || inner.gather(offset, length)).await??
            } else {
                self.gather(offset, length)?
            };
            let asked = gathered.base.clone();
            let failure = match gathered.fill().await {
                Err(failure) if matches!(failure.kind(), FailureKind::VersionChanged | FailureKind::NotFound) => {
                    failure
                }
                done => return done,
            };
            // Our own sync may have replaced what was the base, or be about to say so.
            drop(self.serial.lock().await);
            let state = self.state.lock();
            if same(&asked, &state.base) {
                return Err(failure.context(&state.path));
            }
        }
    }

    /// Reads what is staged.
    fn gather(&self, offset: u64, length: u32) -> Result<Gathered, Failure> {
        // Nothing is cut off or let go of before it is read.
        let _io = self.io.read();
        let (pieces, range, file, base, path) = {
            let mut state = self.state.lock();
            state.used = Instant::now();
            let size = state.content.size();
            let range = offset.min(size)..offset.saturating_add(u64::from(length)).min(size);
            (state.content.pieces(range.clone()), range, state.file.clone(), state.base.clone(), state.path.clone())
        };
        self.gather_pieces(&pieces, range, file.as_deref(), base, &path, None)
    }

    fn gather_pieces(
        &self,
        pieces: &[Piece],
        range: Range<u64>,
        file: Option<&StagedFile>,
        base: Option<Arc<dyn Base>>,
        path: &FsPath,
        lender: Option<Arc<Buffers>>,
    ) -> Result<Gathered, Failure> {
        if let Some(gone) = pieces.iter().find(|piece| piece.source == Source::Gone) {
            return Err(let_go(path, &gone.range));
        }
        let is_base = |piece: &&Piece| piece.source == Source::Base;
        let from_base: Vec<_> = pieces.iter().filter(is_base).map(|piece| piece.range.clone()).collect();
        let bytes = if pieces.iter().all(|piece| piece.source == Source::Base) {
            Vec::new()
        } else {
            let length = (range.end - range.start) as usize;
            let into = lender.as_ref().map_or_else(|| Vec::with_capacity(length), |lender| lender.take(length));
            let read = staged(pieces, &range, file.map(|staged| &staged.file), into);
            let path = || self.shared.journal.data(file.map_or("", |staged| &staged.id));
            read.map_err(|error| failed("read", &path())(error))?
        };
        Ok(Gathered { bytes, range, from_base, base, lender })
    }

    /// The bytes of a part, or of the whole file, as they are now; beyond the end, zeros.
    pub(crate) async fn bytes_to_send(self: &Arc<Self>, range: Range<u64>) -> Result<Bytes, Failure> {
        let inner = Arc::clone(self);
        let gather = move || {
            // A cut is on the disk a moment before it is noted: in between, what was cut off would be read as zeros of the file as it was.
            let _io = inner.io.read();
            let (pieces, file, base, path) = {
                let state = inner.state.lock();
                (state.content.pieces(range.clone()), state.file.clone(), state.base.clone(), state.path.clone())
            };
            let lender = Some(Arc::clone(&inner.shared.buffers));
            inner.gather_pieces(&pieces, range, file.as_deref(), base, &path, lender)
        };
        self.shared.blocking(gather).await??.fill().await
    }
}

impl Gathered {
    /// Adds what the base has.
    async fn fill(mut self) -> Result<Bytes, Failure> {
        if self.from_base.is_empty() {
            return Ok(self.done());
        }
        let Some(base) = &self.base else {
            return Err(Failure::new(FailureKind::Internal, "a draft without a base has bytes of one"));
        };
        let length = (self.range.end - self.range.start) as usize;
        let is_all = self.bytes.is_empty();
        // Memory for a part, or for what a reader asked for.
        self.bytes.resize(length, 0);
        for range in &self.from_base {
            let mut at = range.start;
            while at < range.end {
                // At most `FROM_BASE`.
                let wanted = (range.end - at).min(FROM_BASE);
                let mut spans = base.read(at, wanted as u32).await?;
                let mut to = (at - self.range.start) as usize;
                let got: usize = spans.iter().map(|span| span.len()).sum();
                if got as u64 != wanted {
                    let message = format!("{got} bytes at {at} of {}, not {wanted}", base.version().id());
                    return Err(Failure::new(FailureKind::Corrupt, message));
                }
                if is_all && got == length && spans.len() == 1 {
                    // As in most reads of a file that is open for writing and was not written there.
                    return Ok(spans.pop().map(Bytes::from_owner).unwrap_or_default());
                }
                for span in spans {
                    self.bytes[to..to + span.len()].copy_from_slice(&span);
                    to += span.len();
                }
                at += wanted;
            }
        }
        Ok(self.done())
    }

    fn done(self) -> Bytes {
        match self.lender {
            Some(lender) => lender.lend(self.bytes),
            None => self.bytes.into(),
        }
    }
}

fn same(one: &Option<Arc<dyn Base>>, other: &Option<Arc<dyn Base>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Reads the staged pieces of `range`; the others stay zeros. What is missing at the file's end was cut off meanwhile.
fn staged(pieces: &[Piece], range: &Range<u64>, file: Option<&File>, into: Vec<u8>) -> io::Result<Vec<u8>> {
    let length = (range.end - range.start) as usize;
    if let ([Piece { source: Source::Staged, .. }], Some(file)) = (pieces, file) {
        // The common case, without writing zeros first.
        let mut bytes = into;
        while bytes.len() < length {
            let at = range.start + bytes.len() as u64;
            if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut bytes), at)? == 0 {
                break;
            }
        }
        bytes.resize(length, 0);
        return Ok(bytes);
    }
    let mut bytes = into;
    bytes.resize(length, 0);
    for piece in pieces.iter().filter(|piece| piece.source == Source::Staged) {
        let Some(file) = file else { break };
        let mut at = piece.range.start;
        while at < piece.range.end {
            let into = (at - range.start) as usize..(piece.range.end - range.start) as usize;
            match file.read_at(&mut bytes[into], at) {
                Ok(0) => break,
                Ok(read) => at += read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}
