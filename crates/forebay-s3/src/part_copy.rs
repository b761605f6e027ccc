//! Parts of uploads that are copied from an object: they are read through the cache, and sent as other parts are.
//!
//! Clients copy in parts what is larger than a few MiB (`aws s3 cp`, the transfers of boto3). The store could copy by
//! itself, but workers know no such call. What is cached is not fetched for it, and a part may come from another
//! origin.

use std::ops::Range;

use s3s::dto::{CopyPartResult, ETag, UploadPartCopyInput, UploadPartCopyOutput};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::body::ObjectReader;
use crate::conditions::Conditions;
use crate::copies::Source;
use crate::etag::PartTag;
use crate::failure::{self, of_upload};
use crate::sending::MAX_PART;
use crate::served::{Served, no_such_key, without};

/// The bytes of an object of `size` bytes that are to be a part. Unlike the range of a GET, it has both ends, and they
/// are there.
fn source_range(asked: Option<&str>, size: u64) -> S3Result<Range<u64>> {
    let Some(text) = asked else { return Ok(0..size) };
    let number = |digits: &str| {
        let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_plain)
    };
    let ends = text.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    match ends.and_then(|(first, last)| Some((number(first)?, number(last)?))) {
        Some((first, last)) if first <= last && last < size => Ok(first..last + 1),
        _ => {
            let message = format!("`{text}` is no range `bytes=FIRST-LAST` of a source of {size} bytes");
            Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message))
        }
    }
}

impl Served {
    /// Reads the part, of one version, and sends it to the upload.
    pub(crate) async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let caller = self.caller(&request)?;
        let source = Source::of(&request)?;
        let input = request.input;
        let encrypted = input.sse_customer_key.is_some() || input.copy_source_sse_customer_key.is_some();
        without(&[("encryption that is asked for", encrypted)])?;
        let number = u32::try_from(input.part_number).ok().filter(|number| (1..=10_000).contains(number));
        let no_part = || S3Error::with_message(S3ErrorCode::InvalidArgument, "parts are numbered from 1 to 10000");
        let number = number.ok_or_else(no_part)?;
        let conditions = Conditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (found, _) = self.source(&caller, source, &conditions).await?;
        let place = self.file(&caller, &input.bucket, &input.key)?;
        let range = source_range(input.copy_source_range.as_deref(), found.size())?;
        let length = range.end - range.start;
        if length > MAX_PART {
            let message = format!("{length} bytes are more than the {MAX_PART} of a part; copy in smaller ones");
            return Err(S3Error::with_message(S3ErrorCode::EntityTooLarge, message));
        }
        // A directory has no bytes.
        let Some(version) = found.version() else { return Err(no_such_key()) };
        let _share = self.memory.share_of_incoming(length).await.map_err(|failure| failure::told(&failure))?;
        let file = self.client.open_replicated(version.clone(), found.attr.replicas);
        let reader = ObjectReader::new(file, range, self.memory.clone(), self.stats.clone());
        let bytes = reader.collect().await.map_err(|failure| failure::told(&failure))?;
        let sent = self.client.upload_part(&place.path, &input.upload_id, number, bytes).await;
        let tag = PartTag { tag: sent.map_err(|failure| of_upload(&failure))?, size: length };
        let copied = CopyPartResult { e_tag: Some(ETag::Strong(tag.encode())), ..CopyPartResult::default() };
        Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(copied), ..UploadPartCopyOutput::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_all_of_its_source_or_a_range_that_is_there() {
        assert_eq!(source_range(None, 5).unwrap(), 0..5);
        assert_eq!(source_range(None, 0).unwrap(), 0..0);
        assert_eq!(source_range(Some("bytes=0-4"), 5).unwrap(), 0..5);
        assert_eq!(source_range(Some("bytes=2-2"), 5).unwrap(), 2..3);
        for wrong in
            ["", "0-4", "bytes=", "bytes=-4", "bytes=1-", "bytes=3-2", "bytes=0-5", "bytes=+1-2", "bytes=0-1,3-4"]
        {
            let refused = source_range(Some(wrong), 5).unwrap_err();
            assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{wrong}");
        }
        assert!(source_range(Some("bytes=0-18446744073709551615"), u64::MAX).is_err());
    }
}
