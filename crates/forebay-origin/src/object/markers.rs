//! Directories that are there with nothing in them: markers, objects without bytes whose key ends in `/`.
//!
//! The client's paths never end so, but for one way: a path that an empty name is *joined* to. Azure's client takes a path
//! apart into names and drops one empty name at the end, so it gets two; and its listings leave the marker out, so it is
//! asked for. Tests hold this: with real servers, and with the requests that each client sends.

use std::time::Duration;

use forebay_types::{Attr, Failure, FailureKind};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::build::Flavor;
use super::writes::or_gone;
use super::{ObjectStoreOrigin, Wanted, directory_prefix};
use crate::Origin;
use crate::names::{exists, not_a_directory, not_empty};
use crate::stats::Operation;

impl ObjectStoreOrigin {
    pub(super) async fn put_marker(&self, path: &[u8]) -> Result<Attr, Failure> {
        let (writer, key) = self.to_change(path)?;
        match self.stat(path).await {
            Err(failure) if failure.kind() == FailureKind::NotFound => {}
            found => return found.and_then(|_| Err(exists(&self.requests.url, path))),
        }
        let marker = self.marker(key);
        self.change(Operation::Put, path, Duration::ZERO, || writer.store.put(&marker, PutPayload::default())).await?;
        Ok(Attr::directory())
    }

    pub(super) async fn remove_marker(&self, path: &[u8]) -> Result<(), Failure> {
        let (writer, client_key) = self.to_change(path)?;
        let (key, _) = self.key(path)?;
        let prefix = directory_prefix(&key);
        let (mut has_marker, mut after) = (false, None);
        loop {
            let wanted = Wanted { prefix: &prefix, after: after.as_deref(), max: 2, is_deep: false };
            let page = self.page(path, wanted).await?;
            if !page.prefixes.is_empty() || page.objects.iter().any(|object| object.key != prefix) {
                return Err(not_empty(&self.requests.url, path));
            }
            has_marker |= !page.objects.is_empty();
            // A page may be empty although more follow.
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        if !has_marker && !self.has_directory(path).await? {
            self.head(path).await?;
            return Err(not_a_directory(&self.requests.url, path));
        }
        let marker = self.marker(client_key);
        or_gone(self.change(Operation::Remove, path, Duration::ZERO, || writer.store.delete(&marker)).await)
    }

    /// Whether there is a marker that listings do not show.
    pub(super) async fn has_unlisted_marker(&self, path: &[u8]) -> Result<bool, Failure> {
        if self.client.flavor != Flavor::Azure || path.is_empty() {
            return Ok(false);
        }
        let (_, key) = self.key(path)?;
        match self.head_key(path, &self.marker(key)).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.kind() == FailureKind::NotFound => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn marker(&self, key: Path) -> Path {
        let marker = key.join("");
        if self.client.flavor == Flavor::Azure { marker.join("") } else { marker }
    }
}
