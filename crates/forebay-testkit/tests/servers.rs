//! The servers of this crate, used by an independent S3 client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_testkit::{DataSet, Fault, FaultProxy, S3Server};
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    Attribute, BackoffConfig, Error, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, RetryConfig,
};
use tempfile::TempDir;

fn server() -> (S3Server, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let server = S3Server::start(directory.path()).unwrap();
    server.create_bucket("bucket").unwrap();
    (server, directory)
}

fn client(endpoint: &str, server: &S3Server, max_retries: usize) -> Arc<dyn ObjectStore> {
    let retry = RetryConfig {
        max_retries,
        retry_timeout: Duration::from_secs(20),
        backoff: BackoffConfig { init_backoff: Duration::from_millis(10), ..BackoffConfig::default() },
    };
    let builder = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name("bucket")
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .with_retry(retry)
        .with_disable_bulk_delete(true)
        .with_allow_http(true);
    Arc::new(builder.build().unwrap())
}

#[tokio::test]
async fn what_is_put_comes_back_in_ranges_with_one_entity_tag_everywhere() {
    let (server, _directory) = server();
    let store = client(&server.url(), &server, 0);
    let data = DataSet::new(1);
    let key = Path::from(format!("{}/{}/name with ü", "long".repeat(50), "longer".repeat(40)));
    let put = store.put(&key, PutPayload::from(data.expected(0..3_000_000))).await.unwrap();
    let head = store.head(&key).await.unwrap();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&head.e_tag, &listed[0].e_tag), (&put.e_tag, &put.e_tag));
    assert_eq!(head.last_modified, listed[0].last_modified);
    let bytes = store.get_range(&key, 1_234_567..2_345_678).await.unwrap();
    assert_eq!(data.first_difference(1_234_567, &bytes), None);
    assert!(matches!(store.get_range(&key, 4_000_000..4_000_001).await, Err(Error::Generic { .. })));
}

#[tokio::test]
async fn a_condition_on_the_entity_tag_is_kept() {
    let (server, _directory) = server();
    let store = client(&server.url(), &server, 0);
    let key = Path::from("a");
    let first = store.put(&key, PutPayload::from_static(b"same bytes")).await.unwrap().e_tag;
    let second = store.put(&key, PutPayload::from_static(b"same bytes")).await.unwrap().e_tag;
    assert_ne!(first, second, "each put is another version");
    let old = GetOptions::new().with_if_match(first);
    assert!(matches!(store.get_opts(&key, old).await, Err(Error::Precondition { .. })));
    let new = GetOptions::new().with_if_match(second.clone());
    store.get_opts(&key, new).await.unwrap();
    let unchanged = GetOptions::new().with_if_none_match(second);
    assert!(matches!(store.get_opts(&key, unchanged).await, Err(Error::NotModified { .. })));
}

/// The files of the server's own directory that are no buckets.
fn drafts(directory: &TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
}

#[tokio::test]
async fn an_upload_in_parts_is_one_object() {
    let (server, directory) = server();
    let store = client(&server.url(), &server, 0);
    let key = Path::from("dir/parts");
    let data = DataSet::new(2);
    let part = 5 << 20;
    let mut upload = store.put_multipart(&key).await.unwrap();
    for index in 0..3 {
        upload.put_part(PutPayload::from(data.expected(index * part..(index + 1) * part))).await.unwrap();
    }
    assert_eq!((server.uploads(), drafts(&directory)), (vec!["bucket/dir/parts".to_owned()], 3));
    assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
    let completed = upload.complete().await.unwrap();
    let bytes = store.get(&key).await.unwrap().bytes().await.unwrap();
    assert_eq!(bytes.len() as u64, 3 * part);
    assert_eq!(data.first_difference(0, &bytes), None);
    assert!(completed.e_tag.as_ref().unwrap().ends_with("-3\""), "{completed:?}");
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!((&store.head(&key).await.unwrap().e_tag, &listed[0].e_tag), (&completed.e_tag, &completed.e_tag));
    assert_eq!((server.uploads().len(), drafts(&directory)), (0, 0));
}

#[tokio::test]
async fn an_upload_has_the_parts_that_were_sent_last_and_in_the_order_of_the_list() {
    let (server, directory) = server();
    let builder = AmazonS3Builder::new().with_endpoint(server.url()).with_bucket_name("bucket").with_allow_http(true);
    let builder = builder.with_access_key_id(server.access_key()).with_secret_access_key(server.secret_key());
    let store = builder.with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }).build().unwrap();
    let key = Path::from("a");
    let attributes = [(Attribute::Metadata("Mark".into()), "x y")].into_iter().collect();
    let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
    let id = store.create_multipart_opts(&key, options).await.unwrap();
    let put = |number, byte: u8, length| store.put_part(&key, &id, number, vec![byte; length].into());
    let last = put(1, b'z', 3).await.unwrap();
    let first = put(0, b'a', 5 << 20).await.unwrap();
    let again = put(0, b'b', 5 << 20).await.unwrap();
    assert_eq!(drafts(&directory), 2);
    for (parts, code) in [
        (vec![first, last.clone()], "InvalidPart"),
        (vec![last.clone(), again.clone()], "InvalidPart"),
        (vec![again.clone(), last.clone(), last.clone()], "InvalidPart"),
    ] {
        let error = store.complete_multipart(&key, &id, parts).await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
    }
    store.complete_multipart(&key, &id, vec![again, last]).await.unwrap();
    let object = store.get(&key).await.unwrap();
    assert_eq!(object.attributes.get(&Attribute::Metadata("mark".into())).unwrap().as_ref(), "x y");
    let bytes = object.bytes().await.unwrap();
    assert_eq!((bytes.len(), bytes[0], &bytes[5 << 20..]), ((5 << 20) + 3, b'b', &b"zzz"[..]));
    for gone in [put(0, b'a', 1).await.map(drop), store.abort_multipart(&key, &id).await] {
        assert!(gone.unwrap_err().to_string().contains("NoSuchUpload"));
    }

    let id = store.create_multipart(&key).await.unwrap();
    let put = |number| store.put_part(&key, &id, number, PutPayload::from_static(b"too small"));
    let parts = vec![put(0).await.unwrap(), put(1).await.unwrap()];
    let error = store.complete_multipart(&key, &id, parts).await.unwrap_err();
    assert!(error.to_string().contains("EntityTooSmall"), "{error}");
    store.abort_multipart(&key, &id).await.unwrap();
    assert_eq!((server.uploads().len(), drafts(&directory)), (0, 0));
    assert_eq!(store.head(&key).await.unwrap().size, (5 << 20) + 3, "the object is as it was");
}

#[tokio::test]
async fn what_may_only_be_made_anew_does_not_replace() {
    let (server, _directory) = server();
    let store = client(&server.url(), &server, 0);
    let key = Path::from("a");
    let only_new = || PutOptions::from(PutMode::Create);
    store.put_opts(&key, PutPayload::from_static(b"1"), only_new()).await.unwrap();
    let again = store.put_opts(&key, PutPayload::from_static(b"2"), only_new()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
}

#[tokio::test]
async fn a_marker_that_somebody_put_stays_when_the_last_object_goes() {
    let (server, directory) = server();
    let store = client(&server.url(), &server, 0);
    // The client's paths end in a slash only so.
    let marker = Path::from("x/y").join("");
    store.put(&marker, PutPayload::default()).await.unwrap();
    let below = Path::from("x/y/z");
    store.put(&below, PutPayload::from_static(b"1")).await.unwrap();
    assert_eq!(store.head(&marker).await.unwrap().size, 0);
    assert!(store.head(&Path::from("x").join("")).await.is_err(), "an implied directory is no object");
    store.delete(&below).await.unwrap();
    assert!(directory.path().join("bucket/x/y").is_dir());
    store.put(&below, PutPayload::from_static(b"1")).await.unwrap();
    store.delete(&marker).await.unwrap();
    store.delete(&below).await.unwrap();
    assert!(!directory.path().join("bucket/x").exists());
}

#[tokio::test]
async fn deleting_the_last_object_of_a_directory_deletes_the_directory() {
    let (server, _directory) = server();
    let store = client(&server.url(), &server, 0);
    for key in ["x/y/z", "keep/a"] {
        store.put(&Path::from(key), PutPayload::from_static(b"1")).await.unwrap();
    }
    store.delete(&Path::from("x/y/z")).await.unwrap();
    let top = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.common_prefixes, [Path::from("keep")]);
}

#[tokio::test]
async fn requests_without_the_right_key_are_refused() {
    let (server, _directory) = server();
    let builder = AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_bucket_name("bucket")
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_allow_http(true);
    let anonymous = builder.clone().with_skip_signature(true).build().unwrap();
    let wrong = builder.with_access_key_id(server.access_key()).with_secret_access_key("wrong").build().unwrap();
    for store in [anonymous, wrong] {
        assert!(matches!(store.head(&Path::from("a")).await, Err(Error::PermissionDenied { .. })));
    }
}

#[tokio::test]
async fn the_proxy_passes_breaks_and_counts() {
    let (server, directory) = server();
    let data = DataSet::new(5);
    data.write_file(&directory.path().join("bucket/object"), 1 << 20).unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let store = client(&proxy.url(), &server, 0);
    let key = Path::from("object");
    let get = || async { store.get_range(&key, 0..1 << 20).await };

    assert_eq!(data.first_difference(0, &get().await.unwrap()), None);
    for fault in [Fault::Status(500), Fault::Short { after: 1000 }, Fault::Reset { after: 1000 }] {
        proxy.inject_reads(1, fault);
        assert!(get().await.is_err(), "{fault:?}");
        assert_eq!(data.first_difference(0, &get().await.unwrap()), None, "after {fault:?}");
    }
    store.head(&key).await.unwrap();
    let counts = proxy.counts();
    assert_eq!((counts.object_gets, counts.requests["HEAD"], counts.unbounded_gets), (7, 1, 0));

    proxy.inject_reads(1, Fault::Stall { after: 1000 });
    let stalled = tokio::spawn({
        let (store, key) = (Arc::clone(&store), key.clone());
        async move { store.get_range(&key, 0..1 << 20).await }
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while proxy.counts().bytes < counts.bytes + 1000 {
        assert!(Instant::now() < deadline, "the body never started");
        tokio::task::yield_now().await;
    }
    assert!(!stalled.is_finished());
    // The release has to come after the stall, which follows the last byte that passed.
    while !stalled.is_finished() {
        assert!(Instant::now() < deadline, "the body never went on");
        proxy.release();
        tokio::task::yield_now().await;
    }
    assert_eq!(data.first_difference(0, &stalled.await.unwrap().unwrap()), None);

    proxy.stop();
    assert!(get().await.is_err());
    proxy.resume().unwrap();
    assert_eq!(data.first_difference(0, &get().await.unwrap()), None);
}

#[tokio::test]
async fn the_server_in_a_process_of_its_own_serves_and_ends_when_asked() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("made");
    let mut process = Command::new(env!("CARGO_BIN_EXE_forebay-testkit-s3"))
        .args(["--dir", root.to_str().unwrap(), "--bucket", "bucket", "--access-key", "AK", "--secret-key", "SK"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("listening on ").unwrap();
    let builder = AmazonS3Builder::new().with_endpoint(url).with_bucket_name("bucket").with_allow_http(true);
    let store = builder.with_access_key_id("AK").with_secret_access_key("SK").build().unwrap();
    store.put(&Path::from("a"), PutPayload::from_static(b"1")).await.unwrap();
    assert_eq!(std::fs::read(root.join("bucket/a")).unwrap(), b"1");
    assert!(Command::new("kill").arg(process.id().to_string()).status().unwrap().success());
    assert!(process.wait().unwrap().success());
}
