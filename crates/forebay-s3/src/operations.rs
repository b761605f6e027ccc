//! The operations that there are, as the library calls them; all others are answered with `NotImplemented`.

use s3s::access::{S3Access, S3AccessContext};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput, CompleteMultipartUploadOutput,
    CopyObjectInput, CopyObjectOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput,
    DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, GetBucketLocationInput, GetBucketLocationOutput,
    GetBucketVersioningInput, GetBucketVersioningOutput, GetObjectAttributesInput, GetObjectAttributesOutput,
    GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput,
    ListBucketsInput, ListBucketsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    PutObjectInput, PutObjectOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::Rules;
use crate::asked::Asked;
use crate::served::Served;

/// Passes each operation on to where it is carried out.
macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident;)*) => {
        #[async_trait::async_trait]
        impl S3 for Served {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                Served::$name(self, request).await
            })*
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
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput;
    upload_part: UploadPartInput => UploadPartOutput;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput;
}

/// Notes who asks for what, once the signature was found good. Whether they may, [`Served`] looks at where it is known
/// what it is about.
pub(crate) struct Noting(pub(crate) Rules);

#[async_trait::async_trait]
impl S3Access for Noting {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let unsigned = || S3Error::with_message(S3ErrorCode::AccessDenied, "requests have to be signed");
        let credentials = context.credentials().ok_or_else(unsigned)?;
        let key = self.0.key(&credentials.access_key).ok_or_else(unsigned)?;
        let operation = context.s3_op().name().to_owned();
        if let Some(asked) = context.extensions_mut().get::<Asked>() {
            asked.operation(&operation);
            asked.signed_by(&key.identity);
        }
        Ok(())
    }
}
