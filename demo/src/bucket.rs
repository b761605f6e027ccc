//! The data set: what a bucket of a training job looks like, in small, with the names that trip file systems.

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use forebay_testkit::{DataSet, S3Process};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, WriteMultipart};

use crate::progress;

/// The bucket's name.
pub(crate) const NAME: &str = "forebay-demo";

/// An object of the bucket.
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) size: u64,
    seed: u64,
}

/// An object that was uploaded, and the checksum of its source.
pub(crate) struct Uploaded {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) checksum: blake3::Hash,
}

/// Objects that are uploaded at once.
const UPLOADS: usize = 8;
/// Bytes that are made and sent at a time.
const PART: u64 = 8 << 20;

/// One file of `large` bytes, `small` files of about 100 KiB, some between, and some odd ones.
pub(crate) fn plan(large: u64, small: u64) -> Vec<Object> {
    let named = |key: &str, size| (key.to_owned(), size);
    let mut objects = vec![
        named("checkpoints/model-00001.safetensors", large),
        named("empty", 0),
        named("one byte", 1),
        named("notes/a name with spaces.txt", 12_345),
        named("notes/Übermut, 詩, ☃.txt", 54_321),
        named("notes/a block exactly.bin", 4 << 20),
        named("notes/a block and a byte.bin", (4 << 20) + 1),
    ];
    objects.extend((0..16).map(|number| (format!("shards/{number:05}.tar"), (4 << 20) + number * 123_457)));
    objects.extend((0..small).map(|number| {
        let size = 60_000 + number.wrapping_mul(2_654_435_761) % 80_000;
        (format!("images/{:03}/{number:06}.jpg", number / 100), size)
    }));
    objects.into_iter().zip(1..).map(|((key, size), seed)| Object { key, size, seed }).collect()
}

/// How many bytes in all.
pub(crate) fn bytes(objects: &[Object]) -> u64 {
    objects.iter().map(|object| object.size).sum()
}

/// Puts the objects into the bucket.
pub(crate) async fn upload(server: &S3Process, objects: Vec<Object>) -> anyhow::Result<Vec<Uploaded>> {
    let store = AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_bucket_name(NAME)
        .with_region("us-east-1")
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .with_allow_http(true)
        .build()?;
    let store = Arc::new(store);
    let bar = progress::bar(bytes(&objects));
    let uploads = objects.into_iter().map(|object| {
        let (store, bar) = (Arc::clone(&store), bar.clone());
        async move {
            let key = object.key.clone();
            put(&store, object, &bar).await.with_context(|| format!("cannot upload {key}"))
        }
    });
    let uploaded = futures::stream::iter(uploads).buffered(UPLOADS).try_collect().await?;
    bar.finish_and_clear();
    Ok(uploaded)
}

async fn put(store: &AmazonS3, object: Object, bar: &indicatif::ProgressBar) -> anyhow::Result<Uploaded> {
    let Object { key, size, seed } = object;
    let (contents, path) = (DataSet::new(seed), Path::parse(&key)?);
    let mut hasher = blake3::Hasher::new();
    if size <= PART {
        let bytes = contents.expected(0..size);
        hasher.update(&bytes);
        store.put(&path, Bytes::from(bytes).into()).await?;
        bar.inc(size);
    } else {
        let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&path).await?, PART as usize);
        let mut at = 0;
        while at < size {
            let end = (at + PART).min(size);
            let part = tokio::task::spawn_blocking(move || contents.expected(at..end)).await?;
            hasher.update(&part);
            upload.wait_for_capacity(2).await?;
            upload.put(part.into());
            bar.inc(end - at);
            at = end;
        }
        upload.finish().await?;
    }
    Ok(Uploaded { key, size, checksum: hasher.finalize() })
}
