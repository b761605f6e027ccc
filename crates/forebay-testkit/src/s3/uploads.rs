//! Uploads in parts. A part is a file; completing an upload joins them with `copy_file_range`, in the order of the list.
//!
//! They are known to this server only as long as it runs, and their files go with it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};
use std::time::SystemTime;

use forebay_locks::Mutex;
use s3s::dto::{CompletedPart, ETag, MultipartUpload, Part as ListedPart};
use s3s::{S3Result, s3_error};

use super::draft::{Draft, DraftPath, Drafts};
use super::kept::Kept;

/// All parts but the last have as much at least.
const SMALLEST_PART: u64 = 5 << 20;
const MAX_PARTS: i32 = 10_000;

/// The uploads under way.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    begun: AtomicU64,
    under_way: Mutex<BTreeMap<String, Upload>>,
}

#[derive(Debug)]
struct Upload {
    bucket: String,
    key: String,
    metadata: BTreeMap<String, String>,
    begun: SystemTime,
    parts: BTreeMap<i32, Arc<Part>>,
}

#[derive(Debug)]
struct Part {
    file: DraftPath,
    tag: String,
    /// The checksum that its client sent with it.
    crc64nvme: Option<String>,
    size: u64,
    modified: SystemTime,
}

/// One page of a list, and whether more follow.
pub(super) type Page<T> = (Vec<T>, bool);

/// What an upload that is being completed becomes.
#[derive(Debug)]
pub(super) struct Chosen {
    parts: Vec<Arc<Part>>,
    metadata: BTreeMap<String, String>,
}

impl Uploads {
    pub(super) fn begin(&self, bucket: &str, key: &str, metadata: BTreeMap<String, String>) -> String {
        let begun = SystemTime::now();
        let nanos = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Another server's, which ran before this one, must not be taken for one of ours.
        let id = format!("{nanos:x}.{:x}", self.begun.fetch_add(1, atomic::Ordering::Relaxed));
        let upload = Upload { bucket: bucket.to_owned(), key: key.to_owned(), metadata, begun, parts: BTreeMap::new() };
        self.under_way.lock().insert(id.clone(), upload);
        id
    }

    /// Refuses what is no part of an upload of this object.
    pub(super) fn check(&self, id: &str, bucket: &str, key: &str, number: i32) -> S3Result<()> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(s3_error!(InvalidArgument, "part numbers go from 1 to {}", MAX_PARTS));
        }
        self.with(id, bucket, key, |_| ())
    }

    /// Takes a part, in place of one of the same number; its tag.
    pub(super) fn add(
        &self,
        drafts: &Drafts,
        id: &str,
        (bucket, key): (&str, &str),
        number: i32,
        (draft, crc64nvme): (Draft, Option<String>),
    ) -> S3Result<ETag> {
        let tag = drafts.stamp(&draft)?;
        let metadata = draft.file.metadata().map_err(|error| s3_error!(error, InternalError))?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let part = Part { file: draft.path, tag: tag.clone(), crc64nvme, size: metadata.len(), modified };
        self.with(id, bucket, key, |upload| upload.parts.insert(number, Arc::new(part)))?;
        Ok(ETag::Strong(tag))
    }

    /// Checks the list of an upload's parts; the upload stays as it is.
    pub(super) fn choose(&self, id: &str, bucket: &str, key: &str, list: &[CompletedPart]) -> S3Result<Chosen> {
        self.with(id, bucket, key, |upload| {
            if list.is_empty() {
                return Err(s3_error!(MalformedXML, "an upload has one part at least"));
            }
            let mut parts: Vec<Arc<Part>> = Vec::with_capacity(list.len());
            let mut before = 0;
            for listed in list {
                let number = listed.part_number.unwrap_or_default();
                if number <= before {
                    return Err(s3_error!(InvalidPartOrder));
                }
                before = number;
                let part = upload.parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
                if listed.e_tag.as_ref().is_none_or(|tag| tag.value() != part.tag) {
                    return Err(s3_error!(InvalidPart));
                }
                parts.push(Arc::clone(part));
            }
            if parts.iter().rev().skip(1).any(|part| part.size < SMALLEST_PART) {
                return Err(s3_error!(EntityTooSmall));
            }
            Ok(Chosen { parts, metadata: upload.metadata.clone() })
        })?
    }

    /// Ends an upload; whether there was one.
    pub(super) fn end(&self, id: &str, bucket: &str, key: &str) -> S3Result<()> {
        self.with(id, bucket, key, |_| ())?;
        self.under_way.lock().remove(id);
        Ok(())
    }

    /// `BUCKET/KEY` of each upload under way.
    pub(super) fn names(&self) -> Vec<String> {
        self.under_way.lock().values().map(|upload| format!("{}/{}", upload.bucket, upload.key)).collect()
    }

    pub(super) fn parts_here(&self) -> usize {
        self.under_way.lock().values().map(|upload| upload.parts.len()).sum()
    }

    /// The uploads after a key and the upload of it that has this id; without one, after all of the key.
    pub(super) fn list(
        &self,
        bucket: &str,
        prefix: &str,
        (key_marker, id_marker): (&str, &str),
        max: usize,
    ) -> Page<MultipartUpload> {
        let under_way = self.under_way.lock();
        let is_beyond = |key: &str, id: &str| match key.cmp(key_marker) {
            Ordering::Less => false,
            Ordering::Equal => !id_marker.is_empty() && id > id_marker,
            Ordering::Greater => true,
        };
        let named = under_way.iter().map(|(id, upload)| ((upload.key.as_str(), id.as_str()), upload));
        let here = named
            .filter(|((key, id), upload)| upload.bucket == bucket && key.starts_with(prefix) && is_beyond(key, id));
        let here: BTreeMap<_, _> = here.collect();
        let has_more = here.len() > max;
        let listed = here.into_iter().take(max).map(|((key, id), upload)| MultipartUpload {
            key: Some(key.to_owned()),
            upload_id: Some(id.to_owned()),
            initiated: Some(upload.begun.into()),
            ..MultipartUpload::default()
        });
        (listed.collect(), has_more)
    }

    /// The parts with numbers above `after`.
    pub(super) fn parts(
        &self,
        id: &str,
        (bucket, key): (&str, &str),
        after: i32,
        max: usize,
    ) -> S3Result<Page<ListedPart>> {
        self.with(id, bucket, key, |upload| {
            let mut beyond = upload.parts.range((Bound::Excluded(after), Bound::Unbounded));
            let listed = beyond.by_ref().take(max).map(|(number, part)| ListedPart {
                part_number: Some(*number),
                e_tag: Some(ETag::Strong(part.tag.clone())),
                checksum_crc64nvme: part.crc64nvme.clone(),
                size: i64::try_from(part.size).ok(),
                last_modified: Some(part.modified.into()),
                ..ListedPart::default()
            });
            let listed = listed.collect();
            (listed, beyond.next().is_some())
        })
    }

    fn with<T>(&self, id: &str, bucket: &str, key: &str, then: impl FnOnce(&mut Upload) -> T) -> S3Result<T> {
        let mut under_way = self.under_way.lock();
        let upload = under_way.get_mut(id).filter(|upload| upload.bucket == bucket && upload.key == key);
        upload.map(then).ok_or_else(|| s3_error!(NoSuchUpload))
    }
}

impl Chosen {
    /// The parts as one draft.
    pub(super) fn join(&self, drafts: &Drafts) -> S3Result<Draft> {
        let draft = drafts.make("put")?;
        for part in &self.parts {
            // Copies in the kernel.
            let copied = File::open(&part.file).and_then(|mut file| std::io::copy(&mut file, &mut &draft.file));
            let copied = copied.map_err(|error| s3_error!(error, InternalError))?;
            if copied != part.size {
                return Err(s3_error!(InternalError, "a part of {} bytes has {copied} now", part.size));
            }
        }
        Ok(draft)
    }

    pub(super) fn kept(self) -> Kept {
        Kept::of_parts(self.parts.iter().map(|part| part.size).collect(), self.metadata)
    }
}
