//! What changes a [`FakeOrigin`]: each verb is one step under the lock, as if nothing could come in between.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use forebay_types::{Attr, Failure};

use super::{FakeCounts, FakeOrigin, Operations, State};
use crate::names::{
    check_change, check_part, check_parts, exists, is_a_directory, no_such_part, no_such_upload, not_a_directory,
    not_empty, not_found, not_of_size,
};

/// An upload under way.
pub(super) struct Upload {
    pub(super) path: Vec<u8>,
    /// By number: the tag and the bytes.
    parts: BTreeMap<u32, (String, Bytes)>,
}

impl FakeOrigin {
    /// Counts a change, lets the faults and stalls happen, and then makes it.
    pub(super) async fn change<T>(
        &self,
        path: &[u8],
        count: impl FnOnce(&mut FakeCounts) + Send,
        apply: impl FnOnce(&mut State) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        check_change(&self.url, path)?;
        count(&mut self.state.lock().counts);
        match self.enter(Operations::Changes).await {
            Some(fault) => Err(fault.failure),
            None => apply(&mut self.state.lock()),
        }
    }

    pub(super) fn store_file(&self, state: &mut State, path: &[u8], bytes: Bytes) -> Result<(), Failure> {
        if state.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        state.store(path, bytes);
        Ok(())
    }

    pub(super) fn attr_in(&self, state: &State, path: &[u8]) -> Result<Attr, Failure> {
        state.objects.get(path).map(|object| self.attr_of(path, object)).ok_or_else(|| not_found(&self.url, path))
    }

    pub(super) fn begin(&self, state: &mut State, path: &[u8]) -> Result<String, Failure> {
        if state.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        state.generation += 1;
        let name = format!("upload-{}", state.generation);
        state.uploads.insert(name.clone(), Upload { path: path.to_vec(), parts: BTreeMap::new() });
        Ok(name)
    }

    pub(super) fn add_part(
        &self,
        state: &mut State,
        path: &[u8],
        upload: &str,
        number: u32,
        bytes: Bytes,
    ) -> Result<String, Failure> {
        check_part(&self.url, path, number)?;
        state.generation += 1;
        let (tag, length) = (format!("part-{}", state.generation), bytes.len() as u64);
        let upload = state.uploads.get_mut(upload).filter(|upload| upload.path == path);
        let upload = upload.ok_or_else(|| no_such_upload(&self.url, path))?;
        upload.parts.insert(number, (tag.clone(), bytes));
        state.counts.uploaded += length;
        Ok(tag)
    }

    pub(super) fn complete(
        &self,
        state: &mut State,
        path: &[u8],
        name: &str,
        size: u64,
        tags: &[String],
    ) -> Result<Attr, Failure> {
        check_parts(&self.url, path, tags)?;
        if let Some(attr) = state.completed.get(name) {
            return Ok(attr.clone());
        }
        let upload = state.uploads.get(name).filter(|upload| upload.path == path);
        let upload = upload.ok_or_else(|| no_such_upload(&self.url, path))?;
        let mut whole = BytesMut::new();
        for (tag, number) in tags.iter().zip(1..) {
            match upload.parts.get(&number) {
                Some((known, bytes)) if known == tag => whole.extend_from_slice(bytes),
                _ => return Err(no_such_part(&self.url, path, number as usize)),
            }
        }
        if whole.len() as u64 != size {
            return Err(not_of_size(&self.url, path, size, whole.len() as u64));
        }
        self.store_file(state, path, whole.freeze())?;
        state.uploads.remove(name);
        let attr = self.attr_in(state, path)?;
        state.completed.insert(name.to_owned(), attr.clone());
        Ok(attr)
    }

    pub(super) fn copy_file(&self, state: &mut State, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        let object = state.objects.get(from).filter(|_| !state.is_directory(from));
        let bytes = object.map(|object| object.bytes.clone()).ok_or_else(|| not_found(&self.url, from))?;
        if from != to {
            self.store_file(state, to, bytes)?;
        }
        self.attr_in(state, to)
    }

    pub(super) fn remove_file(&self, state: &mut State, path: &[u8]) -> Result<(), Failure> {
        if state.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        state.objects.remove(path);
        Ok(())
    }

    pub(super) fn add_directory(&self, state: &mut State, path: &[u8]) -> Result<Attr, Failure> {
        if state.is_directory(path) || state.objects.contains_key(path) {
            return Err(exists(&self.url, path));
        }
        state.directories.insert(path.to_vec());
        Ok(Attr::directory())
    }

    pub(super) fn drop_directory(&self, state: &mut State, path: &[u8]) -> Result<(), Failure> {
        if !state.is_directory(path) {
            let is_file = state.objects.contains_key(path);
            return Err(if is_file { not_a_directory(&self.url, path) } else { not_found(&self.url, path) });
        }
        if !state.names(&[path, b"/"].concat()).is_empty() {
            return Err(not_empty(&self.url, path));
        }
        state.directories.remove(path);
        Ok(())
    }
}
