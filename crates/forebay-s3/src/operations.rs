//! The operations that there are, as the library calls them; all others are answered with `NotImplemented`.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use s3s::access::{S3Access, S3AccessContext};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput, CompleteMultipartUploadOutput,
    CopyObjectInput, CopyObjectOutput, CreateBucketInput, CreateBucketOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput,
    GetBucketLocationInput, GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
    GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectInput, GetObjectOutput, HeadBucketInput,
    HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, ListPartsInput, ListPartsOutput, PutObjectInput, PutObjectOutput, UploadPartCopyInput,
    UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::{Rules, Signer};
use crate::asked::Asked;
use crate::failure;
use crate::memory::{BodyMemory, Share};
use crate::served::Served;

/// The longest list of parts, or of keys to delete, in bytes: of ten thousand parts.
pub(crate) const MAX_XML: usize = 2 << 20;
/// The operations whose bodies are such lists, or as long. The library reads them before it calls the operation.
const WITH_LISTS: [&str; 3] = ["CompleteMultipartUpload", "CreateBucket", "DeleteObjects"];

/// The operations, as the library calls them.
#[derive(Clone)]
pub(crate) struct Operations(pub(crate) Arc<Served>);

/// Passes each operation on to where it is carried out.
macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident;)*) => {
        #[async_trait::async_trait]
        impl S3 for Operations {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                Served::$name(&self.0, request).await
            })*
        }

        /// Whether there is an operation of this name.
        fn is_known(operation: &str) -> bool {
            [$(stringify!($input)),*].iter().any(|input| input.strip_suffix("Input") == Some(operation))
        }
    };
}

operations! {
    get_object: GetObjectInput => GetObjectOutput;
    head_object: HeadObjectInput => HeadObjectOutput;
    get_object_attributes: GetObjectAttributesInput => GetObjectAttributesOutput;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output;
    list_objects: ListObjectsInput => ListObjectsOutput;
    list_buckets: ListBucketsInput => ListBucketsOutput;
    head_bucket: HeadBucketInput => HeadBucketOutput;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput;
    put_object: PutObjectInput => PutObjectOutput;
    copy_object: CopyObjectInput => CopyObjectOutput;
    delete_object: DeleteObjectInput => DeleteObjectOutput;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput;
    create_bucket: CreateBucketInput => CreateBucketOutput;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput;
    upload_part: UploadPartInput => UploadPartOutput;
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput;
    list_parts: ListPartsInput => ListPartsOutput;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput;
}

/// Notes who asks for what, once the signature was found good, and before the library reads a list in the body: for
/// that, there has to be such an operation, and memory. Whether they may, [`Served`] looks at where it is known what it
/// is about.
pub(crate) struct Noting {
    pub(crate) rules: Rules,
    pub(crate) memory: BodyMemory,
}

/// How many bytes a list may have, by what its request says.
fn length_of_list(headers: &HeaderMap) -> S3Result<u64> {
    let said: Option<u64> = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    match said {
        Some(length) if length > MAX_XML as u64 => {
            let message = format!("a list of {length} bytes; they have at most {MAX_XML}");
            Err(S3Error::with_message(S3ErrorCode::MaxMessageLengthExceeded, message))
        }
        said => Ok(said.unwrap_or(MAX_XML as u64)),
    }
}

/// Memory for a list, which comes in as slowly as other bodies may.
async fn share_of_list(memory: &BodyMemory, headers: &HeaderMap) -> S3Result<[Share; 2]> {
    memory.share_of_incoming(length_of_list(headers)?).await.map_err(|failure| failure::told(&failure))
}

#[async_trait::async_trait]
impl S3Access for Noting {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let unsigned = || S3Error::with_message(S3ErrorCode::AccessDenied, "requests have to be signed");
        let shown = context.credentials().map(|credentials| Signer(credentials.access_key.clone()));
        let signer = shown.or_else(|| context.extensions_mut().get::<Signer>().cloned());
        let Signer(access) = signer.ok_or_else(unsigned)?;
        let key = self.rules.key(&access).ok_or_else(unsigned)?;
        let operation = context.s3_op().name().to_owned();
        if let Some(asked) = context.extensions_mut().get::<Asked>() {
            asked.operation(&operation);
            asked.signed_by(&key.identity);
        }
        if !is_known(&operation) {
            let message = format!("there is no {operation} here; docs/S3.md says what is answered");
            return Err(S3Error::with_message(S3ErrorCode::NotImplemented, message));
        }
        if WITH_LISTS.contains(&operation.as_str()) {
            let share = share_of_list(&self.memory, context.headers()).await?;
            let extensions = context.extensions_mut();
            if let Some(asked) = extensions.get::<Asked>() {
                asked.awaits_list();
            }
            // Until the request is over, with which it goes on.
            extensions.insert(Arc::new(share));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn what_is_not_carried_out_is_known_by_its_name() {
        assert!(is_known("GetObject") && is_known("ListObjectsV2") && WITH_LISTS.iter().all(|name| is_known(name)));
        for name in ["PutBucketAcl", "PostObject", "DeleteBucket", "GetObjectInput", "Input", ""] {
            assert!(!is_known(name), "{name}");
        }
    }

    #[test]
    fn a_list_has_a_share_of_what_it_says_and_of_no_more_than_there_may_be() {
        let of = |text: &'static str| {
            length_of_list(&HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static(text))]))
        };
        assert_eq!((of("5").unwrap(), of("x").unwrap()), (5, MAX_XML as u64));
        assert_eq!(of("9999999999").unwrap_err().code(), &S3ErrorCode::MaxMessageLengthExceeded);
        assert_eq!(length_of_list(&HeaderMap::new()).unwrap(), MAX_XML as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_that_come_slowly_leave_half_of_the_memory_to_those_who_read() {
        let memory = BodyMemory::new(8 * MAX_XML as u64);
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(MAX_XML))]);
        let mut lists = Vec::new();
        for _ in 0..4 {
            lists.push(share_of_list(&memory, &headers).await.unwrap());
        }
        let refused = share_of_list(&memory, &headers).await.unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::SlowDown);
        assert!(memory.share(4 * MAX_XML as u64).await.is_ok());
    }
}
