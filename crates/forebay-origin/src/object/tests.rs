//! Faults and refusals, over real sockets.

mod asking;
mod clouds;
mod reading;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_testkit::{CannedResponse, CannedServer, DataSet, Fault, FaultProxy, S3Server};
use forebay_types::{Failure, FailureKind, FileVersion};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::test_support::{FlatS3, s3_origin, s3_store};
use crate::{ListPage, ObjectStoreOrigin, Origin, OriginOptions};

const SIZE: u64 = 3 << 20;
const DATA: DataSet = DataSet::new(11);

/// A real S3 server with one object, behind a proxy, and an origin that goes through it.
struct Scene {
    proxy: FaultProxy,
    server: S3Server,
    origin: Arc<ObjectStoreOrigin>,
    _directory: tempfile::TempDir,
}

fn scene(tune: impl FnOnce(&mut OriginOptions)) -> Scene {
    let directory = tempfile::tempdir().unwrap();
    DATA.write_file(&directory.path().join("bucket/object"), SIZE).unwrap();
    let server = S3Server::start(directory.path()).unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let keys = (server.access_key(), server.secret_key());
    let origin = Arc::new(s3_origin(&proxy.url(), "s3://bucket", keys, tune));
    Scene { proxy, server, origin, _directory: directory }
}

async fn version(origin: &ObjectStoreOrigin) -> FileVersion {
    origin.stat(b"object").await.unwrap().version().unwrap().clone()
}

async fn read(origin: &ObjectStoreOrigin, version: &FileVersion) -> Result<(), Failure> {
    let mut into = vec![0; version.size as usize];
    origin.read(version, 0..version.size, &mut into).await?;
    assert_eq!(DATA.first_difference(0, &into), None);
    Ok(())
}

#[tokio::test]
async fn each_read_is_one_bounded_get() {
    let scene = scene(|_| {});
    let version = version(&scene.origin).await;
    let mut into = vec![0; 1000];
    for start in [0, 5, SIZE - 1000] {
        scene.origin.read(&version, start..start + 1000, &mut into).await.unwrap();
        assert_eq!(DATA.first_difference(start, &into), None);
    }
    let counts = scene.proxy.counts();
    assert_eq!((counts.object_gets, counts.unbounded_gets), (3, 0));
    assert_eq!(scene.origin.counts().bytes, 3000);
}

#[tokio::test]
async fn a_broken_or_refused_read_is_tried_again_until_it_is_right() {
    let scene = scene(|options| options.max_attempts = 8);
    let version = version(&scene.origin).await;
    for fault in [
        Fault::Short { after: 100_000 },
        Fault::Reset { after: 1 << 20 },
        Fault::Status(500),
        Fault::Status(502),
        Fault::Status(503),
        Fault::Status(429),
        Fault::Status(504),
    ] {
        let before = scene.origin.counts().retries;
        scene.proxy.inject_reads(2, fault);
        read(&scene.origin, &version).await.unwrap_or_else(|failure| panic!("{fault:?}: {failure}"));
        // A connection that is reset before the head was read may have been an old one: such a read is asked for again at once.
        let fewest = if matches!(fault, Fault::Reset { .. }) { 1 } else { 2 };
        let retries = scene.origin.counts().retries - before;
        assert!((fewest..=2).contains(&retries), "{fault:?}: {retries}");
    }
    assert!(scene.origin.counts().throttles >= 4);
}

#[tokio::test]
async fn a_read_that_never_succeeds_fails_after_its_attempts_and_names_the_object() {
    let scene = scene(|options| options.max_attempts = 3);
    let version = version(&scene.origin).await;
    scene.proxy.inject_reads(3, Fault::Short { after: 10 });
    let failure = read(&scene.origin, &version).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unavailable);
    assert!(failure.message().contains("s3://bucket/object") && failure.message().contains("3 attempts"), "{failure}");
    assert_eq!(scene.proxy.counts().object_gets, 3);
    read(&scene.origin, &version).await.unwrap();
}

#[tokio::test]
async fn a_stalled_body_is_given_up_and_asked_for_again() {
    let scene = scene(|options| options.stall_timeout = Duration::from_millis(300));
    let version = version(&scene.origin).await;
    scene.proxy.inject_reads(1, Fault::Stall { after: 1000 });
    read(&scene.origin, &version).await.unwrap();
    // On a machine that does a lot else the second may stall, too.
    assert!(scene.proxy.counts().object_gets >= 2);
}

#[tokio::test]
async fn a_body_that_trickles_is_bounded_by_the_request_timeout() {
    let scene = scene(|options| {
        options.request_timeout = Duration::from_millis(300);
        options.max_attempts = 1;
    });
    // What an object is may take longer than that.
    let keys = (scene.server.access_key(), scene.server.secret_key());
    let version = version(&s3_origin(&scene.proxy.url(), "s3://bucket", keys, |_| {})).await;
    scene.proxy.inject_reads(1, Fault::Stall { after: 0 });
    let failure = read(&scene.origin, &version).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::TimedOut, "{failure}");
}

#[tokio::test]
async fn a_server_that_stops_is_waited_for_and_not_longer_than_the_deadline() {
    let scene = scene(|options| {
        options.retry_deadline = Duration::from_secs(2);
        options.max_attempts = 100;
    });
    let keys = (scene.server.access_key(), scene.server.secret_key());
    // One that has time enough on a busy machine.
    let patient = Arc::new(s3_origin(&scene.proxy.url(), "s3://bucket", keys, |options| options.max_attempts = 100));
    let version = version(&patient).await;
    scene.proxy.stop();
    let started = Instant::now();
    let failure = read(&scene.origin, &version).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
    assert!(failure.message().contains("cannot connect to"), "{failure}");

    let retries = patient.counts().retries;
    let waiting = tokio::spawn({
        let origin = Arc::clone(&patient);
        async move { read(&origin, &version).await }
    });
    // One attempt at least has failed.
    while patient.counts().retries == retries {
        tokio::task::yield_now().await;
    }
    scene.proxy.resume().unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_object_replaced_in_the_middle_of_a_read_never_mixes() {
    let attempts = 1000;
    let scene = scene(|options| {
        options.stall_timeout = Duration::from_millis(300);
        options.max_attempts = attempts;
    });
    let old = version(&scene.origin).await;
    scene.proxy.inject_reads(attempts as usize, Fault::Stall { after: 1 << 20 });
    let reading = tokio::spawn({
        let (origin, old) = (Arc::clone(&scene.origin), old.clone());
        async move { read(&origin, &old).await }
    });
    while scene.proxy.counts().object_gets == 0 {
        tokio::task::yield_now().await;
    }
    let keys = (scene.server.access_key(), scene.server.secret_key());
    let store = s3_store(&scene.server.url(), "bucket", keys);
    let new_bytes = DataSet::new(99).expected(0..SIZE);
    store.put(&Path::from("object"), PutPayload::from(new_bytes)).await.unwrap();
    // Each attempt stalls until one finds the new version.
    let failure = reading.await.unwrap().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "{failure}");
    assert_ne!(version(&scene.origin).await, old);
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_allowed() {
    let scene = scene(|options| options.max_concurrency = 4);
    let version = version(&scene.origin).await;
    scene.proxy.set_latency(Duration::from_millis(50));
    let started = Instant::now();
    let reads = (0..16u64).map(|index| {
        let (origin, version) = (Arc::clone(&scene.origin), version.clone());
        async move { origin.read(&version, index..index + 1, &mut [0]).await }
    });
    futures::future::try_join_all(reads).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(50 * 16 / 4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_missing_bucket_is_named_and_is_not_a_missing_file() {
    let scene = scene(|_| {});
    let keys = (scene.server.access_key(), scene.server.secret_key());
    let origin = s3_origin(&scene.server.url(), "s3://nobucket", keys, |_| {});
    for failure in [origin.stat(b"").await, origin.stat(b"x").await].map(Result::unwrap_err) {
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{failure}");
        assert!(failure.message().contains("there is no bucket `nobucket`"), "{failure}");
    }
    assert_eq!(origin.list(b"", None, 10).await.unwrap_err().kind(), FailureKind::InvalidArgument);
}

#[tokio::test]
async fn wrong_keys_are_told_apart() {
    let scene = scene(|_| {});
    for (keys, expected) in
        [(("unknown", "x"), "unknown to"), ((scene.server.access_key(), "wrong"), "does not belong to the access key")]
    {
        let origin = s3_origin(&scene.server.url(), "s3://bucket", keys, |_| {});
        let failure = origin.stat(b"object").await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
        assert!(failure.message().contains(expected) || failure.message().contains("access denied"), "{failure}");
    }
}

/// The failure of a `stat` when the server answers every request like this.
async fn refusal(response: CannedResponse) -> Failure {
    let server = CannedServer::start(move |request| {
        // HEAD's answers have no body.
        let mut response = response.clone();
        if request.method == "HEAD" {
            response.body.clear();
        }
        response
    });
    let server = server.unwrap();
    let origin = s3_origin(&server.url(), "s3://bucket/p", ("AK", "SK"), |options| options.max_attempts = 1);
    let failure = origin.stat(b"object").await.unwrap_err();
    assert!(failure.message().contains("s3://bucket/p/object"), "names the URL: {failure}");
    assert!(server.requests() <= 2, "not tried again");
    failure
}

#[tokio::test]
async fn each_refusal_says_what_to_do() {
    let cases = [
        (
            CannedResponse::s3_error(403, "AccessDenied", "Access Denied"),
            FailureKind::PermissionDenied,
            &["s3:GetObject", "s3:ListBucket", "AWS_ACCESS_KEY_ID"][..],
        ),
        (
            CannedResponse::s3_error(403, "RequestTimeTooSkewed", "too large")
                .with("date", "Mon, 06 May 2024 07:08:09 GMT"),
            FailureKind::PermissionDenied,
            &["clock is off", "06 May 2024 07:08:09", "NTP"],
        ),
        (
            CannedResponse::s3_error(301, "PermanentRedirect", "use the endpoint")
                .with("x-amz-bucket-region", "eu-west-3"),
            FailureKind::InvalidArgument,
            &["region eu-west-3, not us-east-1", "AWS_REGION=eu-west-3"],
        ),
        (
            CannedResponse::new(
                400,
                "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting \
                 'ap-south-1'</Message><Region>ap-south-1</Region></Error>",
            ),
            FailureKind::InvalidArgument,
            &["ap-south-1"],
        ),
        (
            CannedResponse::s3_error(404, "NoSuchBucket", "none"),
            FailureKind::InvalidArgument,
            &["there is no bucket `bucket`", "check the name"],
        ),
        (CannedResponse::s3_error(403, "InvalidAccessKeyId", "none"), FailureKind::PermissionDenied, &["access key"]),
        (CannedResponse::s3_error(403, "SignatureDoesNotMatch", "no"), FailureKind::PermissionDenied, &["secret key"]),
        (
            CannedResponse::s3_error(400, "ExpiredToken", "old"),
            FailureKind::PermissionDenied,
            &["session token", "new one"],
        ),
        (
            CannedResponse::s3_error(503, "SlowDown", "slow"),
            FailureKind::Unavailable,
            &["fewer requests", "max_concurrency"],
        ),
        (CannedResponse::s3_error(500, "InternalError", "oops"), FailureKind::Unavailable, &["status 500", "oops"]),
        (CannedResponse::new(418, "<html>no xml"), FailureKind::InvalidArgument, &["status 418"]),
    ];
    for (response, kind, parts) in cases {
        let shown = String::from_utf8_lossy(&response.body).into_owned();
        let failure = refusal(response).await;
        assert_eq!(failure.kind(), kind, "{shown}: {failure}");
        for part in parts {
            assert!(failure.message().contains(part), "{shown}: `{part}` is not in: {failure}");
        }
    }
}

#[tokio::test]
async fn missing_credentials_are_named_before_anything_is_asked() {
    // An instance's role that refuses, as on a machine without one.
    let metadata = CannedServer::start(|_| CannedResponse::new(404, "")).unwrap();
    let bucket = FlatS3::start();
    let mut options = OriginOptions::default();
    options.s3.endpoint = Some(bucket.url());
    let variables = [("AWS_METADATA_ENDPOINT".to_owned(), metadata.url())].into();
    let url = url::Url::parse("s3://bucket").unwrap();
    let origin = ObjectStoreOrigin::new(&url, "s3://bucket", &options, &variables).unwrap();
    let failure = origin.stat(b"x").await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
    for part in ["s3://bucket", "no credentials", "AWS_ACCESS_KEY_ID", "anonymous"] {
        assert!(failure.message().contains(part), "{failure}");
    }
    assert_eq!(bucket.requests(), 0);
}

#[tokio::test]
async fn an_anonymous_origin_signs_nothing() {
    let server = CannedServer::start(|request| {
        assert_eq!(request.header("authorization"), "");
        CannedResponse::new(200, "<ListBucketResult></ListBucketResult>")
    });
    let server = server.unwrap();
    let origin = s3_origin(&server.url(), "s3://bucket", ("", ""), |options| options.s3.anonymous = true);
    assert!(origin.stat(b"").await.unwrap().version().is_none());
}

#[tokio::test]
async fn an_answer_of_another_range_size_or_tag_is_not_believed() {
    let answers = [
        ("bytes 0-9/10", "\"2\"", "0123456789", FailureKind::VersionChanged),
        ("bytes 0-9/11", "\"1\"", "0123456789", FailureKind::VersionChanged),
        ("bytes 1-10/10", "\"1\"", "0123456789", FailureKind::Unavailable),
        ("bytes 0-9/10", "\"1\"", "012345678", FailureKind::Unavailable),
        ("bytes 0-9/10", "\"1\"", "0123456789x", FailureKind::Unavailable),
    ];
    for (range, etag, body, kind) in answers {
        let server = CannedServer::start(move |_| {
            CannedResponse::new(206, body).with("content-range", range).with("etag", etag)
        });
        let server = server.unwrap();
        let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |options| options.max_attempts = 1);
        let tag = forebay_types::VersionTag::Etag("\"1\"".into());
        let version = FileVersion { origin: origin.url().clone(), path: b"o"[..].into(), size: 10, tag };
        let failure = origin.read(&version, 0..10, &mut [0; 10]).await.unwrap_err();
        assert_eq!(failure.kind(), kind, "{range} {etag} {body}: {failure}");
    }
}

#[tokio::test]
async fn keys_with_blanks_at_their_ends_and_odd_names_do_not_disturb_a_listing() {
    let server = FlatS3::start();
    for key in ["d/ leading", "d/trailing ", "d/a & <b>", "d//x", "d/../y", "d/."] {
        server.put(key, b"x");
    }
    let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |_| {});
    let page = origin.list(b"d", None, 100).await.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
    assert_eq!(names, [" leading", "a & <b>", "trailing "]);
}

#[tokio::test]
async fn a_million_keys_are_paged_with_one_page_in_memory() {
    let server = CannedServer::start(|request| {
        if request.method == "HEAD" {
            return CannedResponse::new(200, "").with("content-length", "1").with("etag", "\"e\"");
        }
        let url = url::Url::parse(&format!("http://h{}", request.target)).unwrap();
        let get = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        let start: u64 = get("continuation-token").map_or(0, |token| token.parse().unwrap());
        let max: u64 = get("max-keys").unwrap().parse().unwrap();
        let end = (start + max).min(1_000_000);
        let mut body = String::from("<ListBucketResult>");
        for number in start..end {
            body += &format!(
                "<Contents><Key>{number:07}</Key><Size>1</Size><ETag>\"e\"</ETag>\
                 <LastModified>2024-05-06T07:08:09.000Z</LastModified></Contents>"
            );
        }
        if end < 1_000_000 {
            body += &format!("<NextContinuationToken>{end}</NextContinuationToken>");
        }
        CannedResponse::new(200, body + "</ListBucketResult>")
    });
    let server = server.unwrap();
    let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |_| {});
    let (mut count, mut token, mut last) = (0, None, Vec::new());
    loop {
        let page = origin.list(b"", token.as_deref(), 1000).await.unwrap();
        assert!(page.entries.len() <= 1000);
        count += page.entries.len();
        if let Some(entry) = page.entries.last() {
            last = entry.name.to_vec();
        }
        token = page.next;
        match &token {
            Some(token) => assert!(token.len() < 1000, "the token stays small: {token}"),
            None => break,
        }
    }
    assert_eq!((count, &last[..]), (1_000_000, &b"0999999"[..]));
}

#[tokio::test]
async fn a_file_that_a_page_held_back_is_told_as_it_is_when_it_is_told() {
    let server = FlatS3::start();
    for key in ["d/a", "d/b", "d/c"] {
        server.put(key, b"x");
    }
    let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |_| {});
    let first = origin.list(b"d", None, 2).await.unwrap();
    assert_eq!(first.entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"a"], "the last one is held back");
    server.put("d/b", b"longer");
    let sizes =
        |page: ListPage| page.entries.iter().map(|entry| (entry.name.to_vec(), entry.attr.size())).collect::<Vec<_>>();
    let second = sizes(origin.list(b"d", first.next.as_deref(), 2).await.unwrap());
    assert_eq!(second, [(b"b".to_vec(), 6), (b"c".to_vec(), 1)]);
    server.delete("d/b");
    let second = sizes(origin.list(b"d", first.next.as_deref(), 2).await.unwrap());
    assert_eq!(second, [(b"c".to_vec(), 1)]);
    // What is asked for tells nobody what a file is.
    let forged = r#"{"after":null,"held":[{"key":"d/a","size":0,"etag":"\"old\"","modified_nanos":0},
        {"key":"d/none","size":9,"etag":null,"modified_nanos":0}]}"#;
    let told = sizes(origin.list(b"d", Some(forged), 9).await.unwrap());
    assert_eq!(told, [(b"a".to_vec(), 1)]);
}

#[tokio::test]
async fn a_plain_http_server_is_an_origin_of_files() {
    let server = CannedServer::start(|request| match (request.method.as_str(), request.target.as_str()) {
        ("HEAD", "/data/a%20b") => CannedResponse::new(200, "").with("content-length", "10").with("etag", "\"1\""),
        ("GET", "/data/a%20b") => {
            assert_eq!((request.header("range"), request.header("if-match")), ("bytes=2-4", "\"1\""));
            CannedResponse::new(206, "234").with("content-range", "bytes 2-4/10").with("etag", "\"1\"")
        }
        ("PROPFIND", _) => CannedResponse::new(405, ""),
        _ => CannedResponse::new(404, ""),
    });
    let server = server.unwrap();
    let url = format!("{}/data", server.url());
    let parsed = url::Url::parse(&url).unwrap();
    let options = OriginOptions { max_attempts: 1, ..OriginOptions::default() };
    let origin = ObjectStoreOrigin::new(&parsed, &url, &options, &Default::default()).unwrap();
    let attr = origin.stat(b"a b").await.unwrap();
    let mut into = [0; 3];
    origin.read(attr.version().unwrap(), 2..5, &mut into).await.unwrap();
    assert_eq!(&into, b"234");
    assert_eq!(origin.stat(b"missing").await.unwrap_err().kind(), FailureKind::NotFound);
    let failure = origin.list(b"", None, 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unsupported, "{failure}");
    assert!(origin.stat(b"").await.unwrap().version().is_none());
}
