//! The kinds of pages that memory can be in.

use std::fmt;

/// What pages a mapping got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved huge pages (`vm.nr_hugepages`).
    Huge,
    /// Ordinary pages that the kernel may merge into huge ones, and those of files that it keeps in such.
    Transparent,
    /// Ordinary pages.
    Small,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge",
            Self::Transparent => "transparent",
            Self::Small => "small",
        })
    }
}

/// Huge pages are 2 MiB on x86-64 and, with 4 KiB base pages, on arm64.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
