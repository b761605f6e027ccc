//! Operations that tell of uploads in parts: the parts of one, and which are under way.
//!
//! The origin is asked each time. An endpoint keeps nothing of uploads, and what it could keep would not be all there is:
//! another endpoint may take a part, or another program send one to the store itself. Of a list that leaves a part out,
//! clients that go on with an upload would make an object without it. So what an origin does not tell is not told (501).
//!
//! Who may know of uploads is who may write what they are to become.

use forebay_types::{FsPath, Permission, UploadMarker, UploadedPart};
use s3s::dto::{
    CommonPrefix, ETag, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput,
    MultipartUpload, Part, StorageClass,
};
use s3s::{S3Request, S3Response, S3Result};

use crate::access::Caller;
use crate::etag::{self, PartTag};
use crate::failure::{self, of_upload};
use crate::lists::{Encoding, delimiter, invalid};
use crate::pending::{Asked, Collected, Pending, Start};
use crate::served::{Served, without};

/// Parts, or uploads and common prefixes, of an answer at most: as Amazon has it.
const MAX: usize = 1000;
/// Uploads that a worker is asked for at once.
const PAGE: u32 = 500;
/// Pages of a worker that are looked through for one answer: thousands of uploads may have one common prefix. Who asks goes on
/// from there.
const MAX_PAGES: usize = 20;

/// How many are wanted, as the answer says it, too.
fn at_most(asked: Option<i32>, negative: &'static str) -> S3Result<usize> {
    let asked = usize::try_from(asked.unwrap_or(i32::MAX)).map_err(|_| invalid(negative))?;
    Ok(asked.min(MAX))
}

fn standard() -> Option<StorageClass> {
    Some(StorageClass::from_static(StorageClass::STANDARD))
}

/// A part as it was told when it was sent.
fn told(UploadedPart { number, tag, size, modified_nanos }: UploadedPart) -> Part {
    Part {
        part_number: i32::try_from(number).ok(),
        e_tag: Some(ETag::Strong(PartTag { tag, size }.encode())),
        size: i64::try_from(size).ok(),
        last_modified: etag::time(modified_nanos),
        ..Part::default()
    }
}

/// A page of uploads.
struct UploadsTold {
    uploads: Vec<Pending>,
    prefixes: Vec<String>,
    /// The key and the upload after which the next page begins.
    next: Option<(String, String)>,
}

impl Served {
    pub(crate) async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        without(&[("an upload under a key of the client's", input.sse_customer_key.is_some())])?;
        let place = self.file(&caller, &input.bucket, &input.key)?;
        // It is asked, and nothing is changed.
        caller.asked.about(&place.path, Permission::Read);
        let max = at_most(input.max_parts, "`max-parts` is negative")?;
        let marker = input.part_number_marker.unwrap_or_default();
        let after = u32::try_from(marker).map_err(|_| invalid("`part-number-marker` is negative"))?;
        // At least one is asked for: whoever wants none is told whether there is such an upload.
        let wanted = u32::try_from(max.max(1)).unwrap_or(1);
        let page = self.client.list_parts(&place.path, &input.upload_id, after, wanted).await;
        let page = page.map_err(|failure| of_upload(&failure))?;
        let parts: Vec<Part> = page.parts.into_iter().take(max).map(told).collect();
        let last = parts.last().and_then(|part| part.part_number);
        Ok(S3Response::new(ListPartsOutput {
            is_truncated: Some(page.has_more && max > 0),
            max_parts: i32::try_from(max).ok(),
            part_number_marker: Some(marker),
            next_part_number_marker: last.or(Some(marker)),
            parts: Some(parts),
            storage_class: standard(),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            ..ListPartsOutput::default()
        }))
    }

    pub(crate) async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let max = at_most(input.max_uploads, "`max-uploads` is negative")?;
        let asked = Asked {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: delimiter(input.delimiter.as_ref()),
            key_marker: input.key_marker.unwrap_or_default(),
            upload_marker: input.upload_id_marker.unwrap_or_default(),
            max,
        };
        let UploadsTold { uploads, prefixes, next } = self.uploads(&caller, &input.bucket, &asked).await?;
        let encoding = Encoding::of(input.encoding_type.as_ref());
        let pending = |Pending { key, upload, begun_nanos }| MultipartUpload {
            key: Some(encoding.write(&key)),
            upload_id: Some(upload),
            initiated: etag::time(begun_nanos),
            storage_class: standard(),
            ..MultipartUpload::default()
        };
        let prefix = |prefix: String| CommonPrefix { prefix: Some(encoding.write(&prefix)) };
        let is_truncated = Some(next.is_some());
        let (next_key, next_upload) = next.unzip();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            is_truncated,
            uploads: Some(uploads.into_iter().map(pending).collect()),
            common_prefixes: Some(prefixes.into_iter().map(prefix).collect()),
            next_key_marker: next_key.map(|key| encoding.write(&key)),
            next_upload_id_marker: next_upload,
            key_marker: Some(encoding.write(&asked.key_marker)),
            upload_id_marker: Some(asked.upload_marker),
            prefix: input.prefix.map(|prefix| encoding.write(&prefix)),
            delimiter: asked.delimiter.as_deref().map(|delimiter| encoding.write(delimiter)),
            encoding_type: input.encoding_type,
            max_uploads: i32::try_from(max).ok(),
            bucket: Some(input.bucket),
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn uploads(&self, caller: &Caller, bucket: &str, asked: &Asked) -> S3Result<UploadsTold> {
        let (directory, names) = asked.directory();
        let directory = match directory {
            "" => Some(self.reach_bucket(caller, bucket, Permission::Write)?),
            key => self.reach(caller, bucket, key, Permission::Write)?.map(|place| place.path),
        };
        self.check_bucket(bucket).await?;
        let mut collected = Collected::new(asked);
        let next = match (directory, asked.start()) {
            (Some(directory), Start::Beginning) if asked.max > 0 => {
                self.collect(caller, &directory, names, None, &mut collected).await?
            }
            (Some(directory), Start::After(marker)) if asked.max > 0 => {
                self.collect(caller, &directory, names, Some(marker), &mut collected).await?
            }
            // No key can be there, or none is wanted.
            _ => None,
        };
        let Collected { uploads, prefixes, .. } = collected;
        Ok(UploadsTold { uploads, prefixes, next })
    }

    /// Collects the uploads below `directory` of names that start with `names`; the markers of the page that follows, if there is
    /// more.
    async fn collect(
        &self,
        caller: &Caller,
        directory: &FsPath,
        names: &str,
        mut after: Option<UploadMarker>,
        collected: &mut Collected<'_>,
    ) -> S3Result<Option<(String, String)>> {
        // As for parts.
        caller.asked.about(directory, Permission::Read);
        for _ in 0..MAX_PAGES {
            let page = self.client.list_uploads(directory, names.as_bytes(), after.clone(), PAGE).await;
            let page = page.map_err(|failure| failure::told(&failure))?;
            for pending in page.uploads {
                if !collected.take(pending) {
                    return Ok(Some(collected.end()));
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(None),
            }
        }
        Ok(after.map(|after| collected.looked_until(after)))
    }
}
