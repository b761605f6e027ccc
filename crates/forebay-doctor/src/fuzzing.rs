//! A recorded machine in memory, for a fuzzer: what it is looked at with is the same as for one in a folder.

use crate::facts::Outside;
use crate::recording;
use crate::root::Root;

/// The tree of these files, each with its path, and what `document` says besides. `None`: it is none that `doctor --record` writes.
pub fn recorded<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    document: Option<&[u8]>,
) -> Option<(Root, Outside)> {
    let document = document.map(str::from_utf8).transpose().ok()?;
    recording::read(Root::in_memory(files), "memory".to_owned(), document).ok()
}
