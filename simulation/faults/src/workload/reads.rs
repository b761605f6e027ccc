//! What users ask and read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::OpenFile;
use forebay_types::{FailureKind, FileVersion, FsPath};
use rand::Rng;

use super::dataset::Place;
use super::judge::Operation;
use super::state::state;
use crate::faults::Fault;
use crate::model::{self, Object};
use crate::{content, faults, kernel, origin};

impl Operation {
    /// What the client says that a name is, if it says anything.
    pub(super) async fn stat(&self, place: &Place, revalidate: bool) -> Option<Option<(FileVersion, u8)>> {
        let asked = self.asked();
        let answer = self.client.stat(&place.shown, revalidate).await;
        state(|state| state.counts.stats += 1);
        let timeout = self.dataset.settings.request_timeout;
        self.on_time(&asked, timeout, || format!("stat of {}", place.shown));
        if answer.is_ok() {
            state(|state| state.answered.insert(self.process));
        }
        let found = match answer {
            Ok(reply) => {
                let Some(version) = reply.attr.version().cloned() else {
                    kernel::violated("names", format!("{} is said to be a directory", place.shown));
                    return None;
                };
                Some((version, reply.attr.replicas, reply.valid_for))
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {
                // A worker that knows of no mount may say so only if mounts have just changed.
                if failure.message().contains("no mount")
                    && !faults::since(asked.at.saturating_sub(Duration::from_secs(60))).contains(&Fault::Mount)
                {
                    kernel::violated("names", format!("{}: {failure}", place.shown));
                }
                None
            }
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, || format!("stat of {}", place.shown));
                return None;
            }
        };
        let object = found.as_ref().and_then(|(version, ..)| origin::object_of(version));
        let ttl = if revalidate { Duration::ZERO } else { self.dataset.settings.metadata_ttl };
        self.is_fresh(place, object, &asked, ttl);
        if let Some((.., valid_for)) = &found
            && *valid_for > self.dataset.settings.metadata_ttl
        {
            kernel::violated("freshness", format!("{} is believed for {valid_for:?}", place.shown));
        }
        Some(found.map(|(version, replicas, _)| (version, replicas)))
    }

    /// Looks a file up and opens it, and reads some of it or all.
    pub(super) async fn read(&self) {
        let place = self.dataset.any();
        let Some(Some((version, replicas))) = self.stat(&place, false).await else { return };
        let file = self.client.open_replicated(version, replicas);
        if self.read_some(&place, &file).await == Some(FailureKind::VersionChanged) {
            // As a mount does: it was replaced, so what is it now?
            let Some(Some((version, replicas))) = self.stat(&place, true).await else { return };
            let file = self.client.open_replicated(version, replicas);
            self.read_some(&place, &file).await;
            return;
        }
        if kernel::once_in(3) {
            let dropped = state(|state| {
                let handles = state.handles.entry(self.process).or_default();
                handles.push(file);
                (handles.len() > 12).then(|| handles.remove(0))
            });
            drop(dropped);
        }
    }

    /// Reads on in a file that has been open for a while.
    pub(super) async fn read_on(&self) {
        let file = state(|state| {
            let handles = state.handles.get(&self.process)?;
            (!handles.is_empty()).then(|| handles.clone())
        });
        let Some(handles) = file else { return };
        let file = &handles[kernel::chance(|random| random.random_range(0..handles.len()))];
        let version = file.version();
        let Some(origin) = origin::with_url(&version.origin) else { return };
        let at = self.dataset.mounts.iter().find(|(number, _)| *number == origin).map_or("", |(_, at)| at);
        let shown = format!("{at}/{}", String::from_utf8_lossy(&version.path));
        let Ok(shown) = FsPath::new(shown) else { return };
        let place = Place { origin, below: version.path.to_vec(), shown };
        self.read_some(&place, file).await;
    }

    /// Reads some of a file, and looks at every byte. The kind of failure, if it fails.
    pub(super) async fn read_some(&self, place: &Place, file: &Arc<OpenFile>) -> Option<FailureKind> {
        let size = file.version().size;
        let whole = kernel::once_in(3);
        let step: u64 = kernel::chance(|random| 1 << random.random_range(9..21));
        let mut offset = if whole { 0 } else { kernel::chance(|random| random.random_range(0..=size)) };
        let times = if whole { u64::MAX } else { kernel::chance(|random| random.random_range(1..4)) };
        for _ in 0..times {
            let length = u32::try_from(step).unwrap_or(u32::MAX);
            let read = self.read_once(place, file, offset, length).await;
            let read = match read {
                Ok(read) => read,
                Err(kind) => return Some(kind),
            };
            offset += read;
            if read == 0 || offset >= size {
                break;
            }
        }
        None
    }

    pub(super) async fn read_once(
        &self,
        place: &Place,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u32,
    ) -> Result<u64, FailureKind> {
        let (version, asked) = (file.version().clone(), self.asked());
        let what = || format!("read of {length} bytes at {offset} of {} ({:?})", place.shown, version.tag);
        let answer = match file.try_read(offset, length) {
            Some(spans) => Ok(spans),
            None => file.read(offset, length).await,
        };
        state(|state| state.counts.reads += 1);
        self.on_time(&asked, self.dataset.settings.request_timeout * 2, what);
        let object = origin::object_of(&version);
        let spans = match answer {
            Ok(spans) => spans,
            Err(failure) if failure.kind() == FailureKind::VersionChanged => {
                state(|state| state.counts.stale += 1);
                let was = model::between(place.origin, &place.below, Duration::ZERO, kernel::now());
                if was.iter().all(|(_, was)| *was == object) {
                    kernel::violated(
                        "failure is local",
                        format!("{} failed, and it was never replaced: {failure}", what()),
                    );
                }
                return Err(failure.kind());
            }
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, what);
                return Err(failure.kind());
            }
        };
        let Some(object) = object else {
            kernel::violated("one version", format!("{} is a version that never was", what()));
            return Err(FailureKind::Corrupt);
        };
        let mut at = offset;
        for span in &spans {
            if let Some(wrong) = content::first_difference(object.number, at, span) {
                kernel::violated("right bytes", format!("{}: byte {wrong} is wrong", what()));
                return Err(FailureKind::Corrupt);
            }
            at += span.len() as u64;
        }
        let read = at - offset;
        let expected = u64::from(length).min(version.size.saturating_sub(offset));
        if read != expected {
            kernel::violated("whole reads", format!("{}: {read} bytes came, {expected} are there", what()));
        }
        state(|state| state.counts.bytes += read);
        Ok(read)
    }

    pub(super) async fn look(&self) {
        let place = self.dataset.any();
        let revalidate = kernel::once_in(4);
        self.stat(&place, revalidate).await;
    }

    pub(super) async fn list(&self) {
        let place = self.dataset.any();
        let directory = place.shown.parent();
        let asked = self.asked();
        let answer = self.client.list(&directory, None, 1000, kernel::once_in(4)).await;
        state(|state| state.counts.lists += 1);
        self.on_time(&asked, self.dataset.settings.request_timeout, || format!("listing of {directory}"));
        let reply = match answer {
            Ok(reply) => reply,
            // It goes with the last of its files.
            Err(failure) if failure.kind() == FailureKind::NotFound => return,
            Err(failure) => return self.failed(&asked, place.origin, &failure, || format!("listing of {directory}")),
        };
        let ttl = self.dataset.settings.metadata_ttl;
        let mut listed: BTreeMap<Vec<u8>, Object> = BTreeMap::new();
        for entry in &reply.entries {
            if let Some(object) = entry.attr.version().and_then(origin::object_of) {
                listed.insert(entry.name.to_vec(), object);
            }
        }
        for (name, place) in self.dataset.siblings(&place) {
            self.is_fresh(&place, listed.get(&name).copied(), &asked, ttl);
        }
    }

    /// Looks at all names of a directory, one after the other, as a program that goes through a data set does.
    pub(super) async fn walk(&self) {
        for (_, place) in self.dataset.siblings(&self.dataset.any()) {
            self.stat(&place, false).await;
        }
    }
}
