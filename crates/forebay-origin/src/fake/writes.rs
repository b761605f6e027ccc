//! What changes a [`FakeOrigin`](super::FakeOrigin): each verb is one step under the lock, as if nothing could come in between.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};
use forebay_types::{Attr, Failure, PartPage, UploadMarker, UploadPage, UploadedPart};

use super::state::{FakeOriginState, Upload};
use crate::names::{
    check_part, check_parts, exists, is_a_directory, no_such_part, no_such_upload, not_a_directory, not_empty,
    not_found, not_of_size,
};
use crate::pending::Collecting;

impl FakeOriginState {
    pub(super) fn store_file(&mut self, path: &[u8], bytes: Bytes) -> Result<(), Failure> {
        if self.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        self.store(path, bytes);
        Ok(())
    }

    pub(super) fn store_new_file(&mut self, path: &[u8], bytes: Bytes) -> Result<(), Failure> {
        if self.objects.contains_key(path) {
            return Err(exists(&self.url, path));
        }
        self.store_file(path, bytes)
    }

    pub(super) fn attr_in(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.objects.get(path).map(|object| self.attr_of(path, object)).ok_or_else(|| not_found(&self.url, path))
    }

    pub(super) fn begin(&mut self, path: &[u8]) -> Result<String, Failure> {
        if self.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        self.generation += 1;
        let name = format!("upload-{}", self.generation);
        self.uploads.insert(name.clone(), Upload { path: path.to_vec(), parts: BTreeMap::new() });
        Ok(name)
    }

    pub(super) fn add_part(&mut self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        check_part(&self.url, path, number)?;
        self.generation += 1;
        let (tag, length) = (format!("part-{}", self.generation), bytes.len() as u64);
        let upload = self.uploads.get_mut(upload).filter(|upload| upload.path == path);
        let upload = upload.ok_or_else(|| no_such_upload(&self.url, path))?;
        upload.parts.insert(number, (tag.clone(), bytes));
        self.counts.uploaded += length;
        Ok(tag)
    }

    pub(super) fn complete(&mut self, path: &[u8], name: &str, size: u64, tags: &[String]) -> Result<Attr, Failure> {
        check_parts(&self.url, path, tags)?;
        if let Some(attr) = self.completed.get(name) {
            return Ok(attr.clone());
        }
        let upload = self.uploads.get(name).filter(|upload| upload.path == path);
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
        self.store_file(path, whole.freeze())?;
        self.uploads.remove(name);
        let attr = self.attr_in(path)?;
        self.completed.insert(name.to_owned(), attr.clone());
        Ok(attr)
    }

    /// Nobody looks at a clock here: when a part was taken is not known.
    pub(super) fn parts_of(&self, path: &[u8], upload: &str, after: u32, max: usize) -> Result<PartPage, Failure> {
        let upload = self.uploads.get(upload).filter(|upload| upload.path == path);
        let upload = upload.ok_or_else(|| no_such_upload(&self.url, path))?;
        let mut beyond = upload.parts.range((Bound::Excluded(after), Bound::Unbounded));
        let part = |(number, (tag, bytes)): (&u32, &(String, Bytes))| UploadedPart {
            number: *number,
            tag: tag.clone(),
            size: bytes.len() as u64,
            modified_nanos: 0,
        };
        let parts = beyond.by_ref().take(max).map(part).collect();
        Ok(PartPage { parts, has_more: beyond.next().is_some() })
    }

    pub(super) fn uploads_below(&self, prefix: &[u8], after: Option<&UploadMarker>, max: usize) -> UploadPage {
        let mut collecting = Collecting::new(prefix, after, max);
        self.uploads.iter().for_each(|(name, upload)| collecting.add(&upload.path, name, 0));
        collecting.page()
    }

    pub(super) fn copy_file(&mut self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        let object = self.objects.get(from).filter(|_| !self.is_directory(from));
        let bytes = object.map(|object| object.bytes.clone()).ok_or_else(|| not_found(&self.url, from))?;
        if from != to {
            self.store_file(to, bytes)?;
        }
        self.attr_in(to)
    }

    pub(super) fn remove_file(&mut self, path: &[u8]) -> Result<(), Failure> {
        if self.is_directory(path) {
            return Err(is_a_directory(&self.url, path));
        }
        self.objects.remove(path);
        Ok(())
    }

    pub(super) fn add_directory(&mut self, path: &[u8]) -> Result<Attr, Failure> {
        if self.is_directory(path) || self.objects.contains_key(path) {
            return Err(exists(&self.url, path));
        }
        self.directories.insert(path.to_vec());
        Ok(Attr::directory())
    }

    pub(super) fn drop_directory(&mut self, path: &[u8]) -> Result<(), Failure> {
        if !self.is_directory(path) {
            let is_file = self.objects.contains_key(path);
            return Err(if is_file { not_a_directory(&self.url, path) } else { not_found(&self.url, path) });
        }
        if !self.names(&[path, b"/"].concat()).is_empty() {
            return Err(not_empty(&self.url, path));
        }
        self.directories.remove(path);
        Ok(())
    }
}
