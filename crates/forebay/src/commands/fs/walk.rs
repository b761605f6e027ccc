//! Going through a tree, a page of names at a time, parents before what is in them.
//!
//! Memory is bounded by one page for each level of depth, however many names a directory has.

use forebay_types::{Attr, DirEntry};

use crate::commands::fs::target::Target;

/// Names asked for at a time.
pub(crate) const PAGE: u32 = 1000;

/// A directory's names in the origin's order.
pub(crate) struct Listing {
    directory: Target,
    page: std::vec::IntoIter<DirEntry>,
    /// Where the next page starts.
    next: Option<String>,
    done: bool,
}

impl Listing {
    /// Of `directory`. Nothing is asked yet.
    pub(crate) fn new(directory: Target) -> Self {
        Self { directory, page: Vec::new().into_iter(), next: None, done: false }
    }

    /// The next name.
    ///
    /// # Errors
    /// Whatever keeps the workers from saying.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            if self.done {
                return Ok(None);
            }
            let reply = self.directory.client.list(&self.directory.path, self.next.take(), PAGE, false).await;
            let reply = reply.map_err(|failure| failure.context(self.directory.shown()))?;
            self.page = reply.entries.into_iter();
            self.done = reply.next.is_none();
            self.next = reply.next;
        }
    }
}

/// Everything below a target, the target itself first.
pub(crate) struct Walk {
    first: Option<(Target, Attr)>,
    levels: Vec<Listing>,
}

impl Walk {
    /// Of `target`, which is `attr`.
    pub(crate) fn new(target: Target, attr: Attr) -> Self {
        Self { first: Some((target, attr)), levels: Vec::new() }
    }

    /// The next file or directory. After an error, the walk goes on beside the directory that could not be listed.
    ///
    /// # Errors
    /// Whatever keeps a directory from being listed.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<(Target, Attr)>> {
        if let Some((target, attr)) = self.first.take() {
            self.enter(&target, &attr);
            return Ok(Some((target, attr)));
        }
        while let Some(level) = self.levels.last_mut() {
            match level.next().await {
                Ok(Some(DirEntry { name, attr })) => {
                    let target = level.directory.join(&name)?;
                    self.enter(&target, &attr);
                    return Ok(Some((target, attr)));
                }
                Ok(None) => drop(self.levels.pop()),
                Err(error) => {
                    self.levels.pop();
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    fn enter(&mut self, target: &Target, attr: &Attr) {
        if attr.version().is_none() {
            self.levels.push(Listing::new(target.clone()));
        }
    }
}
