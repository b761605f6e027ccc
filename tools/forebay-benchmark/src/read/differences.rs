//! Where a file differs from what was written into it: offset, what was read, what belongs there.
//!
//! A file may differ in one bit, or in every byte of 40 GB. The first few bytes are kept as they were read, since they tell what they
//! are (zeros, another block, one bit); of the rest their number, and where the last is, which tell how far it goes.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::pattern::Pattern;

/// Bytes of a file that are shown.
pub const SHOWN: usize = 8;

/// A byte that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where in the file.
    pub offset: u64,
    /// What was read.
    pub got: u8,
    /// What belongs there.
    pub expected: u8,
}

/// All that differs in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// The first, at most [`SHOWN`].
    pub shown: Vec<Difference>,
    /// How many bytes differ.
    pub bytes: u64,
    /// Where the last of them is.
    pub last: Option<u64>,
    /// The size that the file should have, if it has another.
    pub expected_size: Option<u64>,
}

impl Differences {
    /// Whether the file is as it should be.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.bytes == 0 && self.expected_size.is_none()
    }

    /// Compares `bytes`, which were read at `offset`, with `pattern`.
    pub fn look(&mut self, pattern: Pattern, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        // From one byte that differs to the next: what is right is passed over a word at a time.
        while let Some(at) = pattern.mismatch(offset + done as u64, &bytes[done..]) {
            let index = (at - offset) as usize;
            if self.shown.len() < SHOWN {
                self.shown.push(Difference { offset: at, got: bytes[index], expected: pattern.byte(at) });
            }
            self.bytes += 1;
            self.last = Some(at);
            done = index + 1;
        }
    }
}

/// A file that is not what was written, in lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What differs.
    pub differences: Differences,
}

impl Wrong {
    /// `path` with what differs in it, if anything does.
    #[must_use]
    pub fn of(path: &Path, bytes: u64, differences: &Differences) -> Option<Self> {
        (!differences.is_none()).then(|| Self { path: path.to_owned(), bytes, differences: differences.clone() })
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, bytes: size, differences } = self;
        let path = path.display();
        if let Some(expected) = differences.expected_size {
            write!(f, "{path} has {size} bytes where {expected} were expected")?;
        }
        let (Some(first), Some(last)) = (differences.shown.first(), differences.last) else { return Ok(()) };
        if differences.expected_size.is_some() {
            writeln!(f)?;
        }
        let verb = if differences.bytes == 1 { "differs" } else { "differ" };
        write!(f, "{path} is wrong from byte {} on: {} of {size} bytes {verb}", first.offset, differences.bytes)?;
        for Difference { offset, got, expected } in &differences.shown {
            write!(f, "\n  offset {offset}: got 0x{got:02x}, expected 0x{expected:02x}")?;
        }
        match differences.bytes - differences.shown.len() as u64 {
            0 => Ok(()),
            rest => write!(f, "\n  and {rest} more, the last at offset {last}"),
        }
    }
}

/// Some of the files that were read are not what was written: each of them in lines of its own.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", self.told())]
pub struct WrongFiles {
    /// How many were compared.
    pub files: usize,
    /// Those that differ; one that several clients have read differently is there more than once.
    pub wrong: Vec<Wrong>,
}

impl WrongFiles {
    fn told(&self) -> String {
        let paths: BTreeSet<&Path> = self.wrong.iter().map(|wrong| wrong.path.as_path()).collect();
        let (verb, names) = if paths.len() == 1 { ("is", "its name") } else { ("are", "their names") };
        let lines: Vec<String> = self.wrong.iter().map(ToString::to_string).collect();
        format!(
            "{} of {} files {verb} not what `bench read --write` wrote under {names}:\n{}",
            paths.len(),
            self.files,
            lines.join("\n")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pattern: Pattern, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        pattern.fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn every_byte_that_differs_is_counted_and_the_first_are_shown_wherever_a_read_ends() {
        let pattern = Pattern::of(b"a");
        let mut bytes = filled(pattern, 10_000);
        let wrong: Vec<usize> = (0..9990).step_by(333).chain([9998, 9999]).collect();
        for at in &wrong {
            bytes[*at] ^= 0x10;
        }
        for part in [1, 7, 4096, 10_000] {
            let mut found = Differences::default();
            for (number, piece) in bytes.chunks(part).enumerate() {
                found.look(pattern, (number * part) as u64, piece);
            }
            assert_eq!((found.bytes, found.last), (wrong.len() as u64, Some(9999)), "reads of {part}");
            let offsets: Vec<u64> = found.shown.iter().map(|difference| difference.offset).collect();
            assert_eq!(offsets, wrong[..SHOWN].iter().map(|at| *at as u64).collect::<Vec<_>>());
            assert!(found.shown.iter().all(|shown| shown.got == shown.expected ^ 0x10), "{found:?}");
        }
    }

    #[test]
    fn what_differs_is_told_with_offset_got_and_expected_and_the_rest_is_counted() {
        let pattern = Pattern::of(b"a");
        let mut bytes = filled(pattern, 100);
        bytes[7] ^= 1;
        let told = |bytes: &[u8], expected_size| {
            let mut differences = Differences { expected_size, ..Differences::default() };
            differences.look(pattern, 0, bytes);
            Wrong::of(Path::new("/d/a"), 100, &differences).map(|wrong| wrong.to_string())
        };
        let one = format!(
            "/d/a is wrong from byte 7 on: 1 of 100 bytes differs\n  offset 7: got 0x{:02x}, expected 0x{:02x}",
            bytes[7],
            pattern.byte(7)
        );
        assert_eq!(told(&bytes, None), Some(one.clone()));
        assert_eq!(told(&bytes, Some(101)), Some(format!("/d/a has 100 bytes where 101 were expected\n{one}")));
        let inverted: Vec<u8> = filled(pattern, 100).iter().map(|byte| !byte).collect();
        let many = told(&inverted, None).unwrap();
        assert!(
            many.contains("100 of 100 bytes differ\n") && many.ends_with("and 92 more, the last at offset 99"),
            "{many}"
        );
        assert_eq!(many.lines().count(), 1 + SHOWN + 1);
        assert_eq!(told(&filled(pattern, 100), None), None);
        assert_eq!(told(&filled(pattern, 100), Some(5)).as_deref(), Some("/d/a has 100 bytes where 5 were expected"));
    }
}
