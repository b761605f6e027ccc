//! What files have of a lender's memory: asked for by fills, given back when files go, and taken back.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{Checked, LocalShared};
use crate::backend::BackendKind;
use crate::fill::Whole;
use crate::index::room_of;
use crate::lender::Lender;
use crate::name::Name;
use crate::stats::Counts;

impl LocalShared {
    /// Who lends them memory, if anybody does.
    pub(super) fn lender(&self) -> Option<&Arc<dyn Lender>> {
        self.options.lender.as_ref().filter(|_| self.backend.kind() == BackendKind::Memory)
    }

    /// Takes in what the backend has free.
    pub(super) fn settle(&self, free: io::Result<u64>) {
        let Ok(free) = free else { return };
        let missing = self.missing(free);
        self.lender().into_iter().for_each(|lender| lender.lingers(missing));
    }

    fn missing(&self, free: u64) -> u64 {
        self.change(|state, now| {
            state.index.free(free, now);
            state.index.missing()
        })
    }

    /// A file is gone from the backend.
    pub(super) fn give_back(&self, name: Name) {
        if let Some(lender) = self.lender() {
            let room = room_of(name.size);
            match self.backend.free() {
                // A program may have it mapped: then it takes what it took before, and not both.
                Ok(free) => lender.is_gone(room, self.missing(free)),
                Err(_) => lender.give_back(room),
            }
        }
    }

    /// Lets the lender have what it wants back, as far as files may go for it.
    pub(super) fn reclaim(&self) {
        if let Some(wanted) = self.lender().and_then(|lender| lender.wanted_back(Instant::now())) {
            self.change(|state, now| state.index.reclaim(wanted.bytes, wanted.unused_since, now));
        }
    }

    /// Lets no other program have what the lender found to be wrong.
    pub(super) fn drop_wrong(&self) {
        for id in self.lender().map(|lender| lender.found_wrong()).unwrap_or_default() {
            Counts::add(&self.counts.corrupt_sectors, 1);
            tracing::warn!(file = %id, "a materialised file is no longer what it was, and goes");
            self.checked(id, Checked::Wrong);
        }
    }

    /// Shows a file that is whole to the lender.
    pub(super) async fn show(&self, name: Name, whole: &Whole) {
        let Some(lender) = self.lender().cloned() else { return };
        let (backend, layout, checksums) = (Arc::clone(&self.backend), whole.layout, whole.checksums.clone());
        let shown = move || {
            lender.is_whole(name.id, layout, backend.open(name)?, &checksums);
            Ok(())
        };
        if let Some(Err(error)) = self.blocking(shown).await {
            tracing::debug!(file = %name, %error, "a materialised file cannot be opened for the worker");
        }
    }
}
