//! Operations that list: buckets, and the keys in one.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use forebay_identity::Identity;
use forebay_types::{DirEntry, Failure, FsPath, Permission};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{
    Bucket, CommonPrefix, CreateBucketInput, CreateBucketOutput, EncodingType, GetBucketLocationInput,
    GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput, HeadBucketOutput,
    ListBucketsInput, ListBucketsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object, Timestamp,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::Caller;
use crate::bucket::{is_bucket_name, place};
use crate::listing::{self, Listed, MAX_KEYS, Names, Order, Page, Query, key_of_token, token};
use crate::served::{Served, wants_fresh};
use crate::{etag, failure};

/// Names that are asked for at once.
const PAGE: u32 = 1000;
/// What stays as it is in a key that is told in the encoding of URLs: unreserved characters (RFC 3986, 2.3) and `/`.
const IN_URLS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// When a bucket was made is not known, and several clients demand a time.
const MADE: Duration = Duration::ZERO;

/// The names that a client may see.
struct SeenNames<'a> {
    served: &'a Served,
    identity: &'a Identity,
    fresh: bool,
}

impl Names for SeenNames<'_> {
    async fn page(&self, path: &FsPath, token: Option<String>) -> Result<(Vec<DirEntry>, Option<String>), Failure> {
        let page = self.served.client.list(path, token, PAGE, self.fresh).await?;
        Ok((page.entries, page.next))
    }

    fn shows(&self, path: &FsPath) -> bool {
        self.served.rules.shows(self.identity, path)
    }

    fn order(&self, path: &FsPath) -> Option<Arc<Order>> {
        self.served.orders.of(path, Instant::now()).filter(|_| !self.fresh)
    }

    fn has_order(&self, path: &FsPath, order: Option<Order>) {
        self.served.orders.learned(path, order, Instant::now());
    }
}

/// A listing as both versions of the operation tell it.
struct ListPage {
    contents: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
    /// The last key, after which the next page begins.
    next: Option<String>,
}

/// How keys are written in an answer.
#[derive(Clone, Copy)]
pub(crate) enum Encoding {
    Plain,
    Url,
}

impl Encoding {
    pub(crate) fn of(asked: Option<&EncodingType>) -> Self {
        if asked.is_some_and(|asked| asked.as_str() == EncodingType::URL) { Self::Url } else { Self::Plain }
    }

    pub(crate) fn write(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Url => Cow::from(utf8_percent_encode(text, IN_URLS)).into_owned(),
        }
    }
}

impl ListPage {
    fn of(page: Page, encoding: Encoding) -> Self {
        let next = page.next().map(str::to_owned);
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for listed in page.listed {
            let key = Some(encoding.write(listed.key()));
            match listed {
                Listed::Prefix(_) => prefixes.push(CommonPrefix { prefix: key }),
                Listed::Object(_, attr) => contents.push(Object {
                    e_tag: attr.version().map(etag::of_version),
                    last_modified: etag::modified(&attr).or_else(|| Some(Timestamp::from(UNIX_EPOCH + MADE))),
                    size: i64::try_from(attr.size()).ok(),
                    key,
                    ..Object::default()
                }),
            }
        }
        Self { contents, prefixes, next }
    }

    fn count(&self) -> Option<i32> {
        i32::try_from(self.contents.len() + self.prefixes.len()).ok()
    }
}

pub(crate) fn invalid(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// How many keys are wanted, as the answer says it, too.
fn max_keys(asked: Option<i32>) -> S3Result<usize> {
    let asked = usize::try_from(asked.unwrap_or(i32::MAX)).map_err(|_| invalid("`max-keys` is negative"))?;
    Ok(asked.min(MAX_KEYS))
}

/// An empty delimiter is none, as Amazon has it.
pub(crate) fn delimiter(asked: Option<&String>) -> Option<String> {
    asked.filter(|delimiter| !delimiter.is_empty()).cloned()
}

impl Served {
    pub(crate) async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let caller = self.caller(&request)?;
        let (fresh, input) = (wants_fresh(&request.headers), request.input);
        let start = input.start_after.clone().unwrap_or_default();
        let after = match &input.continuation_token {
            Some(token) => {
                key_of_token(token).ok_or_else(|| invalid("the continuation token is none of this server"))?
            }
            None => start,
        };
        let max = max_keys(input.max_keys)?;
        let delimiter = delimiter(input.delimiter.as_ref());
        let query = Query { prefix: input.prefix.clone().unwrap_or_default(), delimiter, after, max };
        let encoding = Encoding::of(input.encoding_type.as_ref());
        let told = self.list(&caller, &input.bucket, &query, fresh, encoding).await?;
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: told.count(),
            is_truncated: Some(told.next.is_some()),
            next_continuation_token: told.next.as_deref().map(token),
            continuation_token: input.continuation_token,
            contents: Some(told.contents),
            common_prefixes: Some(told.prefixes),
            start_after: input.start_after.map(|key| encoding.write(&key)),
            prefix: input.prefix.map(|prefix| encoding.write(&prefix)),
            delimiter: query.delimiter.as_deref().map(|delimiter| encoding.write(delimiter)),
            encoding_type: input.encoding_type,
            max_keys: i32::try_from(max).ok(),
            name: Some(input.bucket),
            ..ListObjectsV2Output::default()
        }))
    }

    pub(crate) async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let caller = self.caller(&request)?;
        let (fresh, input) = (wants_fresh(&request.headers), request.input);
        let max = max_keys(input.max_keys)?;
        let delimiter = delimiter(input.delimiter.as_ref());
        let after = input.marker.clone().unwrap_or_default();
        let query = Query { prefix: input.prefix.clone().unwrap_or_default(), delimiter, after, max };
        let encoding = Encoding::of(input.encoding_type.as_ref());
        let told = self.list(&caller, &input.bucket, &query, fresh, encoding).await?;
        Ok(S3Response::new(ListObjectsOutput {
            is_truncated: Some(told.next.is_some()),
            next_marker: told.next.map(|key| encoding.write(&key)),
            contents: Some(told.contents),
            common_prefixes: Some(told.prefixes),
            marker: Some(encoding.write(&query.after)),
            prefix: input.prefix.map(|prefix| encoding.write(&prefix)),
            delimiter: query.delimiter.as_deref().map(|delimiter| encoding.write(delimiter)),
            encoding_type: input.encoding_type,
            max_keys: i32::try_from(max).ok(),
            name: Some(input.bucket),
            ..ListObjectsOutput::default()
        }))
    }

    async fn list(
        &self,
        caller: &Caller,
        bucket: &str,
        query: &Query,
        fresh: bool,
        encoding: Encoding,
    ) -> S3Result<ListPage> {
        let root = self.reach_bucket(caller, bucket, Permission::Read)?;
        let directory = query.prefix.rsplit_once('/').and_then(|(directory, _)| place(&root, directory));
        if let Some(directory) = directory {
            self.rules.permit(caller, &directory.path, Permission::Read)?;
        }
        let names = SeenNames { served: self, identity: &caller.identity, fresh };
        let page = listing::list(&names, &root, query).await.map_err(|failure| failure::told(&failure))?;
        if page.listed.is_empty() {
            self.check_bucket(bucket).await?;
        }
        Ok(ListPage::of(page, encoding))
    }

    pub(crate) async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let caller = self.caller(&request)?;
        let mut names: Vec<String> = match self.buckets.listed() {
            Some(names) => names.map(str::to_owned).collect(),
            None => self.names_at_the_top(&caller, wants_fresh(&request.headers)).await?,
        };
        let prefix = request.input.prefix;
        names.retain(|name| prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix)));
        let made = Timestamp::from(UNIX_EPOCH + MADE);
        let bucket = |name| Bucket { name: Some(name), creation_date: Some(made.clone()), ..Bucket::default() };
        let buckets = Some(names.into_iter().map(bucket).collect());
        Ok(S3Response::new(ListBucketsOutput { buckets, prefix, ..ListBucketsOutput::default() }))
    }

    /// The directories at the top of the namespace that can be buckets, in order. That they exist, everybody sees.
    async fn names_at_the_top(&self, caller: &Caller, fresh: bool) -> S3Result<Vec<String>> {
        let root = FsPath::root();
        self.rules.permit(caller, &root, Permission::Read)?;
        let (mut names, mut token) = (Vec::new(), None);
        loop {
            let page = self.client.list(&root, token, PAGE, fresh).await.map_err(|failure| failure::told(&failure))?;
            let directories = page.entries.into_iter().filter(|entry| entry.attr.version().is_none());
            let directories = directories.filter_map(|entry| String::from_utf8(entry.name.into_vec()).ok());
            names.extend(directories.filter(|name| is_bucket_name(name)));
            match page.next {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.see_bucket(&request, &request.input.bucket).await?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    /// Buckets are mounts, and nobody makes them here. Clients that make sure of theirs before they write (rclone) are
    /// told that it is there, as Amazon does.
    pub(crate) async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        match self.see_bucket(&request, &request.input.bucket).await {
            Ok(()) => Err(S3Error::with_message(S3ErrorCode::BucketAlreadyOwnedByYou, "the bucket is there")),
            Err(error) if *error.code() == S3ErrorCode::NoSuchBucket => {
                let message = "buckets are mounts, which `forebay mounts add` makes, or listed in `s3.buckets`";
                Err(S3Error::with_message(S3ErrorCode::NotImplemented, message))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.see_bucket(&request, &request.input.bucket).await?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    /// No bucket keeps versions, as far as is known here.
    pub(crate) async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.see_bucket(&request, &request.input.bucket).await?;
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    async fn see_bucket<T>(&self, request: &S3Request<T>, bucket: &str) -> S3Result<()> {
        let caller = self.caller(request)?;
        self.reach_bucket(&caller, bucket, Permission::Read)?;
        self.check_bucket(bucket).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_as_the_client_wants_to_read_them() {
        assert_eq!(Encoding::Url.write("a b/ü+&~.txt"), "a%20b/%C3%BC%2B%26~.txt");
        assert_eq!(Encoding::Plain.write("a b/ü"), "a b/ü");
        assert!(matches!(Encoding::of(Some(&EncodingType::from_static(EncodingType::URL))), Encoding::Url));
        assert!(matches!(Encoding::of(None), Encoding::Plain));
    }

    #[test]
    fn a_page_has_no_more_keys_than_were_asked_for_nor_than_there_may_be() {
        let of = |asked| max_keys(asked).ok();
        assert_eq!((of(None), of(Some(0)), of(Some(7)), of(Some(5000))), (Some(1000), Some(0), Some(7), Some(1000)));
        assert_eq!(of(Some(-1)), None);
        let of = |text: &str| delimiter(Some(&text.to_owned()));
        assert_eq!(
            (of("|").as_deref(), of("/").as_deref(), of(""), delimiter(None)),
            (Some("|"), Some("/"), None, None)
        );
    }
}
