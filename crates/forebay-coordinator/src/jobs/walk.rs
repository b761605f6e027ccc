//! A walk over all files below a path, or over those that an index file names, in the order of the listing.
//!
//! It asks questions and takes answers, and holds a few pages of listings however large the tree is: the directories on
//! the way down, each with the page that it is at. Pages of directories far up are dropped and asked for again when the
//! walk comes back to them. Each item comes with the [`Place`] after it, from which another walk goes on; as a
//! [`Cursor`] it survives the process. In a page that is asked for again the walk goes on after the name that it was
//! at, or, when that is gone, at its position.
//!
//! A path is walked like an index file with one line.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use forebay_transport::message::ListReply;
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileKind, FileVersion, FsPath};
use serde::{Deserialize, Serialize};

use super::index::{Line, Lines};
use super::text;

/// Pages of directories that are held at once.
const PAGES_HELD: usize = 4;
/// Lines of an index file whose attributes are asked for at once.
const LINES_AHEAD: usize = 64;
/// Bytes of an index file that are read at once.
const INDEX_PIECE: u32 = 1 << 20;

/// After which item a walk is. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Place(Spot);

#[derive(Clone, Debug)]
enum Spot {
    /// Between lines, at this byte of the index file; for a path, 1 when it is done.
    Top(u64),
    /// In a page, after so many entries, the last of which was this one.
    In(Arc<Page>, u32, FsPath),
}

#[derive(Debug)]
struct Page {
    directory: FsPath,
    token: Option<String>,
    /// Where the walk goes on after the directory.
    parent: Place,
}

/// A [`Place`] that can be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// As in `Spot::Top`.
    top: u64,
    /// The directory of the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    /// On the way down: each page's last entry is the directory of the next one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pages: Vec<CursorPage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CursorPage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    position: u32,
    last: String,
}

/// What a walk comes by.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) path: FsPath,
    pub(super) found: Found,
    /// After it.
    pub(super) place: Place,
}

#[derive(Debug)]
pub(super) enum Found {
    File {
        version: FileVersion,
        modified_nanos: i64,
        replicas: u8,
    },
    /// A directory, after everything in it.
    Directory,
    /// A path that is not there, or a directory that cannot be listed.
    Failed(Failure),
}

/// What a walk wants to know.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// The attributes of the index file; answer with [`Walk::index_is`].
    Index(FsPath),
    /// Bytes of the index file; answer with [`Walk::read`].
    Read { version: FileVersion, offset: u64, length: u32 },
    /// The attributes of what the line before `end` names; answer with [`Walk::attributes`].
    Stat { path: FsPath, end: u64 },
    /// A page; answer with [`Walk::listed`]. One at a time.
    List { directory: FsPath, token: Option<String> },
}

#[derive(Debug)]
pub(super) enum Next {
    Item(Item),
    Ask(Ask),
    /// Nothing before an answer comes.
    Wait,
    End,
    /// The walk cannot go on.
    Fatal(Failure),
}

#[derive(Debug)]
pub(super) struct Walk {
    source: Source,
    frames: Vec<Frame>,
    top: u64,
    /// Lines that are read and not yet walked.
    ahead: VecDeque<Ahead>,
    fatal: Option<Failure>,
}

#[derive(Debug)]
enum Source {
    Path,
    Index { path: FsPath, is_asked: bool, version: Option<FileVersion>, lines: Option<Lines>, is_reading: bool },
}

#[derive(Debug)]
struct Ahead {
    line: Line,
    is_asked: bool,
    answer: Option<Result<Attr, Failure>>,
}

/// A directory on the way down.
#[derive(Debug)]
struct Frame {
    page: Arc<Page>,
    position: u32,
    last: Option<FsPath>,
    /// The page after this one.
    next: Option<String>,
    entries: Entries,
}

#[derive(Debug)]
enum Entries {
    Unknown,
    Asked,
    Here(std::vec::IntoIter<DirEntry>),
    Failed(Failure),
}

impl Place {
    /// Before everything.
    pub(super) fn start() -> Self {
        Self(Spot::Top(0))
    }

    pub(super) fn cursor(&self) -> Cursor {
        let (mut pages, mut place, mut directory) = (Vec::new(), self, None);
        loop {
            match &place.0 {
                Spot::Top(top) => {
                    pages.reverse();
                    let directory = directory.map(|path: &FsPath| text::escape(path.as_bytes()));
                    return Cursor { top: *top, directory, pages };
                }
                Spot::In(page, position, last) => {
                    directory = Some(&page.directory);
                    pages.push(CursorPage {
                        token: page.token.clone(),
                        position: *position,
                        last: text::escape(last.name()),
                    });
                    place = &page.parent;
                }
            }
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Chains are as long as paths are deep: dropped one by one, not by recursion.
        let mut parent = std::mem::replace(&mut self.parent, Place::start());
        while let Spot::In(page, ..) = parent.0 {
            let Some(mut page) = Arc::into_inner(page) else { return };
            parent = std::mem::replace(&mut page.parent, Place::start());
        }
    }
}

impl Walk {
    /// A walk from the start over what `path` is, or over what the index file `path` names.
    pub(super) fn new(path: &FsPath, is_index: bool) -> Self {
        let mut walk = Self { source: Source::Path, frames: Vec::new(), top: 0, ahead: VecDeque::new(), fatal: None };
        if is_index {
            let path = path.clone();
            walk.source = Source::Index { path, is_asked: false, version: None, lines: None, is_reading: false };
        } else {
            walk.ahead.push_back(Ahead::new(Line { end: 1, path: Ok(path.clone()) }));
        }
        walk
    }

    /// The same walk from a place on that was kept.
    ///
    /// # Errors
    /// When the cursor was not made by this program.
    pub(super) fn resume(path: &FsPath, is_index: bool, cursor: &Cursor) -> Result<(Self, Place), Failure> {
        let mut walk = Self::new(path, is_index);
        walk.top = cursor.top;
        if cursor.top > 0 {
            walk.ahead.clear();
        }
        let mut place = Place(Spot::Top(cursor.top));
        let bad = || Failure::new(FailureKind::Internal, "the job's record holds a place that cannot be read");
        let first = cursor.directory.as_deref().map(text::unescape);
        let mut next = first.and_then(|bytes| FsPath::new(bytes?).ok());
        for page in &cursor.pages {
            let directory = next.take().ok_or_else(bad)?;
            let last = text::unescape(&page.last).and_then(|name| directory.join(&name).ok()).ok_or_else(bad)?;
            let page_of = Arc::new(Page { directory, token: page.token.clone(), parent: place });
            place = Place(Spot::In(Arc::clone(&page_of), page.position, last.clone()));
            next = Some(last.clone());
            let (position, last) = (page.position, Some(last));
            walk.frames.push(Frame { page: page_of, position, last, next: None, entries: Entries::Unknown });
        }
        Ok((walk, place))
    }

    /// Which version of the index file is walked.
    pub(super) fn index_version(&self) -> Option<&FileVersion> {
        match &self.source {
            Source::Path => None,
            Source::Index { version, .. } => version.as_ref(),
        }
    }

    /// What to do next.
    pub(super) fn next(&mut self) -> Next {
        if let Some(failure) = self.fatal.clone() {
            return Next::Fatal(failure);
        }
        if let Some(ask) = self.ask_index() {
            return ask;
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return self.next_line() };
            match &mut frame.entries {
                Entries::Asked => return Next::Wait,
                Entries::Unknown => {
                    frame.entries = Entries::Asked;
                    let page = &frame.page;
                    return Next::Ask(Ask::List { directory: page.directory.clone(), token: page.token.clone() });
                }
                Entries::Failed(failure) => {
                    let found = Found::Failed(failure.clone());
                    return Next::Item(self.leave(found));
                }
                Entries::Here(entries) => {
                    if let Some(entry) = entries.next() {
                        if let Some(item) = self.enter(entry) {
                            return Next::Item(item);
                        }
                    } else if let Some(token) = frame.next.take() {
                        let (directory, parent) = (frame.page.directory.clone(), frame.page.parent.clone());
                        *frame = Frame::new(Page { directory, token: Some(token), parent });
                    } else {
                        return Next::Item(self.leave(Found::Directory));
                    }
                }
            }
        }
    }

    /// The answer to [`Ask::Index`].
    pub(super) fn index_is(&mut self, answer: Result<Attr, Failure>) {
        let Source::Index { path, version, lines, .. } = &mut self.source else { return };
        match answer.map(|attr| attr.kind) {
            Ok(FileKind::File(found)) => {
                *lines = Some(Lines::new(path, found.size, self.top));
                *version = Some(found);
            }
            Ok(FileKind::Directory) => {
                let message = format!("{path} is a directory, and was said to be an index file");
                self.fatal = Some(Failure::new(FailureKind::IsADirectory, message));
            }
            Err(failure) => self.fatal = Some(failure.context(path)),
        }
    }

    /// The answer to [`Ask::Read`].
    pub(super) fn read(&mut self, answer: Result<Bytes, Failure>) {
        let Source::Index { path, lines: Some(lines), is_reading, .. } = &mut self.source else { return };
        *is_reading = false;
        match answer {
            Ok(piece) if piece.is_empty() => {
                let message = format!("{path} ended before its end");
                self.fatal = Some(Failure::new(FailureKind::Internal, message));
            }
            Ok(piece) => lines.give(piece),
            Err(failure) => self.fatal = Some(failure.context(path)),
        }
    }

    /// The answer to [`Ask::Stat`].
    pub(super) fn attributes(&mut self, end: u64, answer: Result<Attr, Failure>) {
        if let Some(ahead) = self.ahead.iter_mut().find(|ahead| ahead.line.end == end) {
            ahead.answer = Some(answer);
        }
    }

    /// The answer to [`Ask::List`].
    pub(super) fn listed(&mut self, answer: Result<ListReply, Failure>) {
        let Some(frame) = self.frames.last_mut() else { return };
        frame.entries = match answer {
            Err(failure) => Entries::Failed(failure),
            Ok(reply) => {
                frame.next = reply.next;
                let mut entries = reply.entries.into_iter();
                if let Some(last) = &frame.last {
                    let known = entries.as_slice().iter().position(|entry| *entry.name == *last.name());
                    let seen = known.map_or(frame.position as usize, |at| at + 1);
                    if let Some(last_seen) = seen.checked_sub(1) {
                        entries.nth(last_seen.min(entries.len().saturating_sub(1)));
                    }
                }
                Entries::Here(entries)
            }
        };
    }

    fn ask_index(&mut self) -> Option<Next> {
        let Source::Index { path, is_asked, version: None, .. } = &mut self.source else { return None };
        Some(if std::mem::replace(is_asked, true) { Next::Wait } else { Next::Ask(Ask::Index(path.clone())) })
    }

    /// The next name of the directory that the walk is in.
    fn enter(&mut self, entry: DirEntry) -> Option<Item> {
        let frame = self.frames.last_mut()?;
        frame.position += 1;
        let path = match frame.page.directory.join(&entry.name) {
            Ok(path) => path,
            Err(error) => {
                let failure = Failure::new(FailureKind::InvalidArgument, error.to_string());
                let path = frame.page.directory.clone();
                let last = frame.last.clone().unwrap_or_else(|| path.clone());
                let place = Place(Spot::In(Arc::clone(&frame.page), frame.position, last));
                return Some(Item { path, found: Found::Failed(failure), place });
            }
        };
        let place = Place(Spot::In(Arc::clone(&frame.page), frame.position, path.clone()));
        frame.last = Some(path.clone());
        let Attr { kind, modified_nanos, replicas, .. } = entry.attr;
        match kind {
            FileKind::File(version) => {
                Some(Item { path, found: Found::File { version, modified_nanos, replicas }, place })
            }
            FileKind::Directory => {
                self.descend(path, place);
                None
            }
        }
    }

    fn descend(&mut self, directory: FsPath, parent: Place) {
        self.frames.push(Frame::new(Page { directory, token: None, parent }));
        if let Some(far) = self.frames.len().checked_sub(PAGES_HELD + 1) {
            self.frames[far].entries = Entries::Unknown;
        }
    }

    /// The directory that the walk is in is done, well or badly.
    fn leave(&mut self, found: Found) -> Item {
        // Called with a frame only; without one the root is what was left.
        let (path, place) = match self.frames.pop() {
            Some(frame) => (frame.page.directory.clone(), frame.page.parent.clone()),
            None => (FsPath::root(), Place(Spot::Top(self.top))),
        };
        Item { path, found, place }
    }

    fn next_line(&mut self) -> Next {
        self.read_ahead();
        if let Some(answer) = self.ahead.front_mut().and_then(Ahead::take)
            && let Some(Ahead { line, .. }) = self.ahead.pop_front()
        {
            self.top = line.end;
            let place = Place(Spot::Top(self.top));
            let (path, found) = match (line.path, answer) {
                (Err((path, failure)), _) | (Ok(path), Err(failure)) => (path, Found::Failed(failure)),
                (Ok(path), Ok(Attr { kind: FileKind::Directory, .. })) => {
                    self.descend(path, place);
                    return self.next();
                }
                (Ok(path), Ok(Attr { kind: FileKind::File(version), modified_nanos, replicas, .. })) => {
                    (path, Found::File { version, modified_nanos, replicas })
                }
            };
            return Next::Item(Item { path, found, place });
        }
        for ahead in self.ahead.iter_mut().filter(|ahead| !ahead.is_asked) {
            if let Ok(path) = &ahead.line.path {
                ahead.is_asked = true;
                return Next::Ask(Ask::Stat { path: path.clone(), end: ahead.line.end });
            }
        }
        if let Source::Index { version: Some(version), lines: Some(lines), is_reading, .. } = &mut self.source
            && self.ahead.len() < LINES_AHEAD
            && !*is_reading
            && let Some(offset) = lines.wants()
        {
            *is_reading = true;
            let length = u64::from(INDEX_PIECE).min(version.size - offset) as u32;
            return Next::Ask(Ask::Read { version: version.clone(), offset, length });
        }
        let is_reading = matches!(self.source, Source::Index { is_reading: true, .. });
        if self.ahead.is_empty() && !is_reading { Next::End } else { Next::Wait }
    }

    fn read_ahead(&mut self) {
        let Source::Index { lines: Some(lines), .. } = &mut self.source else { return };
        while self.ahead.len() < LINES_AHEAD
            && let Some(line) = lines.next()
        {
            self.ahead.push_back(Ahead::new(line));
        }
    }
}

impl Ahead {
    fn new(line: Line) -> Self {
        Self { line, is_asked: false, answer: None }
    }

    /// What is known of the line, once it is.
    fn take(&mut self) -> Option<Result<Attr, Failure>> {
        match &self.line.path {
            Err((_, failure)) => Some(Err(failure.clone())),
            Ok(_) => self.answer.take(),
        }
    }
}

impl Frame {
    fn new(page: Page) -> Self {
        Self { page: Arc::new(page), position: 0, last: None, next: None, entries: Entries::Unknown }
    }
}

#[cfg(test)]
mod tests;
