//! Where each byte of a draft is. Pure.
//!
//! A byte is *staged* (in the staged file, where it belongs), or comes from the *base* (the version that the draft
//! began as, or became when it was synced), or is *zero*, or is *gone*: staged once, sent to the origin in a part, and
//! let go of to make room; it can be read again when the file is synced, from the base then.
//!
//! What was never written comes from the base below the *base limit* and is zero above. Truncation lowers the limit,
//! and nothing but a sync raises it: a file that is cut and grown again has zeros there.

use std::ops::Range;

use crate::ranges::RangeMap;

/// What is known of bytes that are not simply the base's, or zeros beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Staged,
    Zero,
    Gone,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the staged file.
    Staged,
    /// In the base.
    Base,
    /// Nowhere: they are zeros.
    Zero,
    /// At the origin, in a part of an upload that is not complete.
    Gone,
}

/// Bytes that are in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    pub(crate) source: Source,
}

/// The content of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    size: u64,
    /// Never above `size`.
    base_limit: u64,
    /// The smallest that the file was since the last [`Content::mark`].
    lowest: u64,
    marks: RangeMap<Mark>,
    staged: u64,
    gone: u64,
}

impl Content {
    /// Begins as a base of `size` bytes; 0 where there is none.
    pub(crate) fn new(size: u64) -> Self {
        Self { size, base_limit: size, lowest: size, marks: RangeMap::new(), staged: 0, gone: 0 }
    }

    /// As a record says that it is: `size` bytes, those below `base_limit` from the base but for these ranges.
    pub(crate) fn restored(
        size: u64,
        base_limit: u64,
        staged: &[(u64, u64)],
        zeros: &[(u64, u64)],
        gone: &[(u64, u64)],
    ) -> Self {
        let mut content = Self { base_limit: base_limit.min(size), ..Self::new(size) };
        for (ranges, mark) in [(staged, Mark::Staged), (zeros, Mark::Zero), (gone, Mark::Gone)] {
            for &(start, end) in ranges {
                content.set(start..end.min(size), mark);
            }
        }
        content
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn base_limit(&self) -> u64 {
        self.base_limit
    }

    /// Bytes in the staged file.
    pub(crate) fn staged(&self) -> u64 {
        self.staged
    }

    /// How many of these bytes would be new in the staged file.
    pub(crate) fn unstaged(&self, range: Range<u64>) -> u64 {
        let length = range.end - range.start;
        length - self.marks.bytes(range, Mark::Staged)
    }

    /// Whether all of it is staged.
    pub(crate) fn is_staged(&self, range: &Range<u64>) -> bool {
        self.marks.has(range, Mark::Staged)
    }

    /// Bytes that are gone.
    pub(crate) fn gone(&self) -> u64 {
        self.gone
    }

    /// The bytes of `range` that are gone.
    pub(crate) fn gone_within(&self, range: Range<u64>) -> u64 {
        if self.gone == 0 { 0 } else { self.marks.bytes(range, Mark::Gone) }
    }

    /// Bytes were written. Returns how many are new in the staged file.
    pub(crate) fn write(&mut self, range: Range<u64>) -> u64 {
        let before = self.staged;
        self.size = self.size.max(range.end);
        self.set(range, Mark::Staged);
        self.staged - before
    }

    /// The file is cut, or grown with zeros. Returns how many staged bytes are not needed any more.
    pub(crate) fn truncate(&mut self, size: u64) -> u64 {
        let before = self.staged;
        if size < self.size {
            self.clear(size..self.size);
        }
        self.size = size;
        self.base_limit = self.base_limit.min(size);
        self.lowest = self.lowest.min(size);
        before - self.staged
    }

    /// Bytes become zeros, within the size. Returns how many staged bytes are not needed any more.
    pub(crate) fn zero(&mut self, range: Range<u64>) -> u64 {
        let before = self.staged;
        // Marked even where nothing was: a sync under way may have sent what was there before.
        self.set(range.start..range.end.min(self.size), Mark::Zero);
        before - self.staged
    }

    /// Staged bytes are let go of, that the base has, too.
    pub(crate) fn let_go_to_base(&mut self, range: Range<u64>) {
        debug_assert!(range.end <= self.base_limit && self.is_staged(&range));
        self.clear(range);
    }

    /// Staged bytes are let go of that have gone to the origin in a part.
    pub(crate) fn let_go(&mut self, range: Range<u64>) {
        debug_assert!(range.end <= self.size && self.is_staged(&range));
        self.set(range, Mark::Gone);
    }

    /// Lets go of everything: the base has it.
    pub(crate) fn rest_on_base(&mut self) {
        *self = Self { lowest: self.lowest, ..Self::new(self.size) };
    }

    /// From here on, [`Content::lowest`] counts anew.
    pub(crate) fn mark(&mut self) {
        self.lowest = self.size;
    }

    /// The smallest that the file was since the mark.
    pub(crate) fn lowest(&self) -> u64 {
        self.lowest
    }

    /// The base is now what the file was, as far as it was not changed since the mark: `size` bytes.
    pub(crate) fn synced(&mut self, size: u64) {
        let gone: Vec<_> = self.all_gone().collect();
        gone.into_iter().for_each(|range| self.clear(range));
        self.base_limit = size.min(self.lowest);
    }

    /// Where the bytes of `range` are, in order and without gaps. Beyond the end there are zeros.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (run, mark) in self.marks.within(range.clone()) {
            self.unmarked(at..run.start, &mut pieces);
            at = run.end;
            let source = match mark {
                Mark::Staged => Source::Staged,
                Mark::Zero => Source::Zero,
                Mark::Gone => Source::Gone,
            };
            pieces.push(Piece { range: run, source });
        }
        self.unmarked(at..range.end, &mut pieces);
        pieces
    }

    fn unmarked(&self, range: Range<u64>, pieces: &mut Vec<Piece>) {
        let border = self.base_limit.clamp(range.start, range.end.max(range.start));
        for (range, source) in [(range.start..border, Source::Base), (border..range.end, Source::Zero)] {
            if !range.is_empty() {
                pieces.push(Piece { range, source });
            }
        }
    }

    /// The staged bytes within `range`.
    pub(crate) fn staged_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.marked(range, Mark::Staged)
    }

    /// The bytes that were made zeros.
    pub(crate) fn zeros(&self) -> impl Iterator<Item = Range<u64>> {
        self.marked(0..self.size, Mark::Zero)
    }

    /// The bytes that are gone.
    pub(crate) fn all_gone(&self) -> impl Iterator<Item = Range<u64>> {
        self.marked(0..self.size, Mark::Gone)
    }

    fn marked(&self, range: Range<u64>, wanted: Mark) -> impl Iterator<Item = Range<u64>> {
        self.marks.within(range).filter(move |(_, mark)| *mark == wanted).map(|(range, _)| range)
    }

    fn set(&mut self, range: Range<u64>, mark: Mark) {
        if range.is_empty() {
            return;
        }
        let length = range.end - range.start;
        self.forget(range.clone());
        match mark {
            Mark::Staged => self.staged += length,
            Mark::Gone => self.gone += length,
            Mark::Zero => {}
        }
        self.marks.set(range, mark);
    }

    fn clear(&mut self, range: Range<u64>) {
        self.forget(range.clone());
        self.marks.clear(range);
    }

    /// Counts `range` as if nothing were known of it.
    fn forget(&mut self, range: Range<u64>) {
        self.gone -= self.gone_within(range.clone());
        self.staged -= self.marks.bytes(range, Mark::Staged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX_SIZE: u64 = 60;

    #[derive(Clone, Debug)]
    enum Change {
        Write(u64, u64),
        Truncate(u64),
        Zero(u64, u64),
        /// Lets go of what is staged in a range and below the base limit, when it is clean.
        LetGo(u64, u64),
        /// A sync begins: what it sends is read now.
        Begin,
        /// A sync that began has ended.
        End,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0..MAX_SIZE, 1..20u64).prop_map(|(start, length)| Change::Write(start, length)),
            2 => (0..MAX_SIZE).prop_map(Change::Truncate),
            2 => (0..MAX_SIZE, 1..20u64).prop_map(|(start, length)| Change::Zero(start, length)),
            2 => (0..MAX_SIZE, 1..20u64).prop_map(|(start, length)| Change::LetGo(start, length)),
            1 => Just(Change::Begin),
            1 => Just(Change::End),
        ]
    }

    /// What would be read: the staged file and the base as arrays.
    fn read(content: &Content, staged: &[u8], base: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Piece { range, source } in content.pieces(0..content.size()) {
            assert_eq!(range.start, bytes.len() as u64, "in order, without gaps");
            let range = range.start as usize..range.end as usize;
            match source {
                Source::Staged => bytes.extend_from_slice(&staged[range]),
                Source::Base => bytes.extend_from_slice(&base[range]),
                Source::Zero => bytes.resize(range.end, 0),
                Source::Gone => panic!("nothing was let go of"),
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn it_reads_as_an_array_does(
            base in prop::collection::vec(1..10u8, 0..MAX_SIZE as usize),
            changes in prop::collection::vec(change(), 0..60),
        ) {
            let (mut model, mut base) = (base.clone(), base);
            let mut content = Content::new(base.len() as u64);
            let (mut staged, mut under_way, mut clean) = (vec![0; 2 * MAX_SIZE as usize], None, true);
            for (step, change) in changes.into_iter().enumerate() {
                match change {
                    Change::Write(start, length) => {
                        let range = start as usize..(start + length) as usize;
                        model.resize(model.len().max(range.end), 0);
                        model[range.clone()].fill(10 + step as u8);
                        staged[range].fill(10 + step as u8);
                        let new = content.unstaged(start..start + length);
                        prop_assert_eq!(content.write(start..start + length), new);
                        clean = false;
                    }
                    Change::Truncate(size) => {
                        model.resize(size as usize, 0);
                        content.truncate(size);
                        staged[size as usize..].fill(0);
                        clean = false;
                    }
                    Change::Zero(start, length) => {
                        let range = start.min(content.size())..(start + length).min(content.size());
                        content.zero(range.clone());
                        model[range.start as usize..range.end as usize].fill(0);
                        clean = false;
                    }
                    Change::LetGo(start, length) if clean && under_way.is_none() => {
                        let end = (start + length).min(content.base_limit());
                        let ranges: Vec<_> = content.staged_within(start.min(end)..end).collect();
                        for range in ranges {
                            staged[range.start as usize..range.end as usize].fill(0);
                            content.let_go_to_base(range);
                        }
                    }
                    Change::LetGo(..) => {}
                    Change::Begin => {
                        content.mark();
                        under_way = Some(model.clone());
                        clean = true;
                    }
                    Change::End => if let Some(sent) = under_way.take() {
                        content.synced(sent.len() as u64);
                        base = sent;
                    }
                }
                prop_assert_eq!(&read(&content, &staged, &base), &model, "after step {}", step);
                let count = content.staged_within(0..content.size()).map(|range| range.end - range.start).sum::<u64>();
                prop_assert_eq!(content.staged(), count);
                prop_assert!(content.base_limit() <= content.size());
            }
        }
    }

    #[test]
    fn what_is_gone_comes_from_the_base_after_the_sync() {
        let mut content = Content::new(0);
        content.write(0..30);
        content.mark();
        content.let_go(0..10);
        assert_eq!((content.staged(), content.gone(), content.gone_within(5..30)), (20, 10, 5));
        assert_eq!(content.pieces(9..11)[0], Piece { range: 9..10, source: Source::Gone });
        content.synced(30);
        assert_eq!(content.gone(), 0);
        assert_eq!(content.pieces(0..10), [Piece { range: 0..10, source: Source::Base }]);
    }

    #[test]
    fn a_file_that_was_cut_during_its_sync_and_grew_again_has_zeros_there() {
        let mut content = Content::new(0);
        content.write(0..100);
        content.mark();
        content.truncate(50);
        content.truncate(80);
        content.synced(100);
        assert_eq!(content.pieces(40..80)[1..], [Piece { range: 50..80, source: Source::Zero }]);
    }
}
