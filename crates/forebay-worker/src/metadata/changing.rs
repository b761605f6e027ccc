//! What becomes of what is believed when a name is changed through this worker: nothing of before the change is believed after it, and
//! what it made is remembered as if it had been asked for.

use std::sync::Arc;
use std::time::Instant;

use forebay_types::{Attr, FsPath};

use super::{Known, Metadata};
use crate::scope::Scope;

impl Metadata {
    /// The change of a name begins. `lists`: it is a directory that comes or goes.
    pub(crate) fn changing(&self, scope: &Arc<Scope>, path: &FsPath, lists: bool) -> Changing<'_> {
        let (scope, path) = (Arc::clone(scope), path.clone());
        Changing { metadata: self, scope, path, lists, began: Instant::now(), ended: None }
    }

    /// What was made has made the directories above it, too, in an origin where those are only implied.
    async fn made_ancestors(&self, path: &FsPath, at: Instant) {
        let mut above = path.parent();
        while !above.is_root() {
            let known = self.attrs.get(&above).await;
            match known.map(|known| known.answer) {
                Some(Ok(_)) => return,
                Some(Err(_)) => self.invalidate(&above, at),
                None => {}
            }
            above = above.parent();
        }
    }
}

/// A change that is under way. However it ends, also when no request waits for it any more, nothing that was asked for
/// before its end is believed after it: it may have happened.
pub(crate) struct Changing<'a> {
    metadata: &'a Metadata,
    scope: Arc<Scope>,
    path: FsPath,
    lists: bool,
    began: Instant,
    /// When it ended, where that was before this is dropped.
    ended: Option<Instant>,
}

impl Changing<'_> {
    /// The name was made, or replaced, and has these attributes now; gives them back as this worker tells them.
    pub(crate) async fn made(mut self, attr: Attr) -> Attr {
        let (metadata, scope, path) = (self.metadata, Arc::clone(&self.scope), self.path.clone());
        // What ends from here on leaves a later tombstone than ours, and then the answer, which is of this time, is not
        // believed.
        let asked = Instant::now();
        self.ended = Some(asked);
        // Of two changes at once, this worker does not know which one the origin took last.
        let is_alone = metadata.invalidations.believes_name(&path, self.began, asked);
        let began = self.began;
        let attr = self.completed(attr).await;
        let answer = Ok(attr.clone());
        // It was so at some time since the change began, and another writer may have changed it after that.
        let ttl = scope.of_name(&path).believed(&answer).saturating_sub(asked.saturating_duration_since(began));
        if is_alone && !ttl.is_zero() {
            let known = Known { answer, asked, ttl, scope: scope.number };
            metadata.attrs.insert(path, known).await;
        }
        attr
    }

    /// The name was made, or replaced, now or by an earlier try whose answer was lost: nobody knows what it is now. Gives the
    /// attributes that it was made with back as this worker tells them.
    pub(crate) async fn completed(self, attr: Attr) -> Attr {
        let (metadata, scope, path) = (self.metadata, Arc::clone(&self.scope), self.path.clone());
        drop(self);
        metadata.made_ancestors(&path, Instant::now()).await;
        Attr { replicas: scope.of_name(&path).replicas, writable: scope.is_writable(&path), ..attr }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let now = self.ended.unwrap_or_else(Instant::now);
        self.metadata.invalidate(&self.path, now);
        if self.lists {
            self.metadata.invalidations.listing_changed(&self.path, now);
        }
    }
}
