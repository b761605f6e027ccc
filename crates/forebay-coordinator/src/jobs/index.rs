//! The lines of an index file, read in pieces.

use bytes::Bytes;
use forebay_types::{Failure, FailureKind, FsPath};

/// The longest line that is taken for a path: Linux's longest path, and Amazon's longest key, are shorter.
const MAX_LINE: usize = 8 << 10;

/// A line that names something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Where the next line starts, in bytes from the start of the file.
    pub(crate) end: u64,
    /// What it names, or why it names nothing.
    pub(crate) path: Result<FsPath, (FsPath, Failure)>,
}

/// Cuts bytes into lines. Holds one piece of the file and one line.
#[derive(Debug)]
pub(crate) struct Lines {
    /// Relative paths start here.
    base: FsPath,
    /// The index file, for messages.
    index: FsPath,
    size: u64,
    /// What was read and not yet cut.
    piece: Bytes,
    /// The start of a line whose rest is not read yet; cut off when it is too long to be a path.
    partial: Vec<u8>,
    /// Bytes of that line so far, with those that were cut off.
    partial_length: u64,
    /// Where `piece` starts in the file.
    at: u64,
}

impl Lines {
    pub(crate) fn new(index: &FsPath, size: u64, at: u64) -> Self {
        let (piece, partial) = (Bytes::new(), Vec::new());
        Self { base: index.parent(), index: index.clone(), size, piece, partial, partial_length: 0, at }
    }

    /// Where to read on; `None` while lines are left in what was read, and at the end.
    pub(crate) fn wants(&self) -> Option<u64> {
        (self.piece.is_empty() && self.at < self.size).then_some(self.at)
    }

    pub(crate) fn give(&mut self, piece: Bytes) {
        self.piece = piece;
    }

    /// The next line that names something, if it is in what was read.
    pub(crate) fn next(&mut self) -> Option<Line> {
        loop {
            let end = self.piece.iter().position(|byte| *byte == b'\n');
            let taken = self.piece.split_to(end.map_or(self.piece.len(), |end| end + 1));
            self.at += taken.len() as u64;
            let text = if end.is_some() { &taken[..taken.len() - 1] } else { &taken[..] };
            self.partial_length += text.len() as u64;
            let room = MAX_LINE.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&text[..text.len().min(room)]);
            let is_whole = end.is_some() || (self.at >= self.size && self.partial_length > 0);
            if !is_whole {
                return None;
            }
            let (line, length) = (std::mem::take(&mut self.partial), std::mem::take(&mut self.partial_length));
            if let Some(path) = self.parse(&line, length) {
                return Some(Line { end: self.at, path });
            }
        }
    }

    fn parse(&self, line: &[u8], length: u64) -> Option<Result<FsPath, (FsPath, Failure)>> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"#") {
            return None;
        }
        let bad = |reason: String| {
            let message = format!("a line of the index file that ends at byte {} names no path: {reason}", self.at);
            // It says what stands there, which may be anything.
            Some(Err((self.index.clone(), Failure::of_peer(FailureKind::InvalidArgument, message.as_bytes()))))
        };
        if length > MAX_LINE as u64 {
            return bad(format!("it has {length} bytes"));
        }
        let path = if line.starts_with(b"/") {
            FsPath::new(line)
        } else {
            FsPath::new([self.base.as_bytes(), if self.base.is_root() { b"" } else { b"/" }, line].concat())
        };
        path.map_or_else(|error| bad(error.to_string()), |path| Some(Ok(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All lines of `text`, read by `step` bytes from `from` on.
    fn lines(text: &[u8], step: usize, from: u64) -> Vec<Line> {
        let index = FsPath::new("/s3/lists/a.txt").unwrap();
        let mut lines = Lines::new(&index, text.len() as u64, from);
        let mut found = Vec::new();
        loop {
            while let Some(line) = lines.next() {
                found.push(line);
            }
            let Some(at) = lines.wants() else { return found };
            let piece = &text[at as usize..text.len().min(at as usize + step)];
            lines.give(Bytes::copy_from_slice(piece));
        }
    }

    #[test]
    fn lines_are_paths_absolute_or_beside_the_index_file() {
        let found = lines(b"/s3/x\r\n\n# no\nb/c\n../d\nlast", 5, 0);
        let paths: Vec<_> = found.iter().map(|line| line.path.as_ref().map(ToString::to_string).ok()).collect();
        let expected = [Some("/s3/x"), Some("/s3/lists/b/c"), None, Some("/s3/lists/last")];
        assert_eq!(paths, expected.map(|path| path.map(str::to_owned)));
        assert_eq!(found[0].end, 7);
    }

    #[test]
    fn a_line_of_any_length_takes_bounded_memory() {
        let mut text = vec![b'x'; 100_000];
        text.extend_from_slice(b"\n/ok\n");
        let found = lines(&text, 1000, 0);
        assert!(found[0].path.as_ref().is_err_and(|(_, failure)| failure.message().contains("100000 bytes")));
        assert_eq!(found[1].path, Ok(FsPath::new("/ok").unwrap()));
    }

    #[test]
    fn what_is_no_path_is_told_in_one_line_and_controls_no_terminal() {
        let found = lines(b"a/../\x1b[2J\x07\n", 100, 0);
        let (_, failure) = found[0].path.as_ref().unwrap_err();
        assert!(!failure.message().contains(char::is_control) && failure.message().contains("[2J"), "{failure}");
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_have_the_same_lines(text in "[a-c/\n\r#]{0,200}", step in 1usize..50) {
            let whole = lines(text.as_bytes(), 1000, 0);
            prop_assert_eq!(&lines(text.as_bytes(), step, 0), &whole);
            for (at, line) in whole.iter().enumerate() {
                let rest = lines(text.as_bytes(), step, line.end);
                prop_assert_eq!(&rest[..], &whole[at + 1..]);
            }
        }
    }
}
