//! Changes that meet faults, refusals and other writers.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use chrono::Utc;
use forebay_locks::Mutex;
use forebay_types::VersionTag;

use super::*;
use crate::S3Checksum;
use crate::conformance::all_verbs;

const PART: usize = 5 << 20;

fn some(length: usize) -> Bytes {
    DATA.expected(0..length as u64).into()
}

/// An origin whose server answers like this, without a second attempt.
fn canned(
    answer: impl Fn(&forebay_testkit::CannedRequest) -> CannedResponse + Send + Sync + 'static,
) -> (ObjectStoreOrigin, CannedServer) {
    let server = CannedServer::start(move |request| {
        if request.target.contains("list-type") {
            return CannedResponse::new(200, "<ListBucketResult></ListBucketResult>");
        }
        let mut response = answer(request);
        if request.method == "HEAD" {
            response.body.clear();
        }
        response
    });
    let server = server.unwrap();
    let origin = s3_origin(&server.url(), "s3://bucket", ("AK", "SK"), |options| options.max_attempts = 2);
    (origin, server)
}

fn attempts(origin: &ObjectStoreOrigin, operation: &str) -> u64 {
    let counts = origin.counts();
    let of = counts.operations.iter().find(|of| of.operation == operation).unwrap();
    of.outcomes.iter().map(|(_, count)| count).sum()
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_or_refused_is_made_again_and_comes_out_once() {
    let scene = scene(|_| {});
    let origin = &*scene.origin;
    let faults = [Fault::Reset { after: 0 }, Fault::Short { after: 0 }, Fault::Status(500), Fault::Status(503)];
    for (number, fault) in faults.into_iter().enumerate() {
        let lose = || scene.proxy.inject_changes(1, fault);
        lose();
        origin.put(b"d/put", some(1000)).await.unwrap();
        let new = format!("d/new {number}").into_bytes();
        lose();
        let attr = origin.create(&new, some(10)).await.unwrap();
        assert_eq!(origin.stat(&new).await.as_ref(), Ok(&attr), "{fault:?}");
        lose();
        let upload = origin.begin_upload(b"d/parts").await.unwrap();
        lose();
        let tags = [origin.upload_part(b"d/parts", &upload, 1, some(PART)).await.unwrap()];
        lose();
        let attr = origin.complete_upload(b"d/parts", &upload, PART as u64, &tags).await.unwrap();
        assert_eq!(origin.stat(b"d/parts").await.as_ref(), Ok(&attr), "{fault:?}");
        lose();
        assert_eq!(origin.copy(b"d/parts", b"d/copy").await.unwrap().size(), PART as u64);
        lose();
        origin.remove(b"d/copy").await.unwrap();
        assert_eq!(origin.stat(b"d/copy").await.unwrap_err().kind(), FailureKind::NotFound);
        lose();
        origin.make_directory(b"e").await.unwrap();
        lose();
        origin.remove_directory(b"e").await.unwrap();
        lose();
        origin.abort_upload(b"d/parts", &upload).await.unwrap();
    }
    assert_eq!(origin.counts().uploaded, 4 * (1000 + 10 + PART as u64));
    assert_eq!((attempts(origin, "part"), attempts(origin, "copy"), origin.counts().errors), (8, 8, 0));
    // Those that were begun twice, the first answer having been lost.
    assert_eq!(scene.server.uploads(), ["bucket/d/parts", "bucket/d/parts"]);
}

#[tokio::test]
async fn the_server_checks_of_uploads_what_is_configured() {
    for (checksum, has_crc) in [(S3Checksum::Auto, false), (S3Checksum::Sha256, false), (S3Checksum::Crc64Nvme, true)] {
        let scene = scene(|options| options.s3.checksum = checksum);
        let (origin, bytes) = (&*scene.origin, some(PART));
        origin.put(b"d/put", some(1000)).await.unwrap();
        let upload = origin.begin_upload(b"d/parts").await.unwrap();
        let tag = origin.upload_part(b"d/parts", &upload, 1, bytes.clone()).await.unwrap();
        assert_eq!(tag.contains("checksum_crc64nvme"), has_crc, "{tag}");
        let told = origin.list_parts(b"d/parts", &upload, 0, 10).await.unwrap();
        assert_eq!((told.parts.len(), &told.parts[0].tag), (1, &tag), "it is completed with what is told");
        let attr = origin.complete_upload(b"d/parts", &upload, PART as u64, &[tag]).await.unwrap();
        assert_eq!(attr.size(), PART as u64);

        let (seen, sees) = (Arc::new(Mutex::new(Vec::new())), checksum);
        let server = CannedServer::start({
            let seen = Arc::clone(&seen);
            move |request| {
                let headers =
                    ["x-amz-content-sha256", "x-amz-checksum-crc64nvme"].map(|name| request.header(name).to_owned());
                seen.lock().push((request.method.clone(), headers));
                match request.target.contains("list-type") {
                    true => CannedResponse::new(200, "<ListBucketResult></ListBucketResult>"),
                    false => CannedResponse::new(if request.method == "PUT" { 400 } else { 404 }, ""),
                }
            }
        });
        let server = server.unwrap();
        let origin = s3_origin(&server.url(), "s3://bucket", ("AK", "SK"), |options| options.s3.checksum = sees);
        origin.put(b"file", Bytes::from_static(b"123456789")).await.unwrap_err();
        // The published check value of this CRC: ae8b14860a799888.
        let crc = if has_crc { "rosUhgp5mIg=" } else { "" };
        let sha = if has_crc {
            "UNSIGNED-PAYLOAD"
        } else {
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
        };
        let put = seen.lock().iter().find(|(method, _)| method == "PUT").cloned().unwrap().1;
        assert_eq!(put, [sha, crc]);
    }
}

#[tokio::test]
async fn an_upload_may_take_longer_than_the_longest_silence_of_a_read() {
    let scene = scene(|options| {
        options.stall_timeout = Duration::from_secs(2);
        options.max_attempts = 1;
    });
    let upload = scene.origin.begin_upload(b"slow").await.unwrap();
    scene.proxy.set_latency(Duration::from_secs(4));
    scene.origin.upload_part(b"slow", &upload, 1, some(10)).await.unwrap();
    assert!(scene.origin.stat(b"object").await.is_err(), "a read is given up");
}

#[tokio::test]
async fn whether_a_completion_came_out_whose_answer_was_lost_is_told_by_its_mark_or_by_all_there_is() {
    let (now, old) = (Utc::now(), Utc::now() - Duration::from_secs(3600));
    // The mark in the object's metadata, the object's tag, size and time, whether an answer was lost, whether it is ours.
    let cases = [
        ("ours", "\"x-1\"", 10, old, false, true),
        ("ours", "\"x\"", 10, old, true, true),
        ("ours", "\"x-1\"", 11, now, true, false),
        ("another's", "\"x-1\"", 10, now, true, false),
        ("", "\"x-1\"", 10, now, true, true),
        ("", "\"x-1\"", 10, now, false, false),
        ("", "\"x-2\"", 10, now, true, false),
        ("", "\"x-11\"", 10, now, true, false),
        ("", "\"x-1\"", 10, old, true, false),
        ("", "\"x-1\"", 11, now, true, false),
    ];
    for (mark, etag, size, time, lost, expected) in cases {
        let begun = Arc::new(Mutex::new(String::new()));
        let completions = AtomicU64::new(0);
        let seen = Arc::clone(&begun);
        let (origin, _server) = canned(move |request| match &*request.method {
            "POST" if request.target.ends_with("uploads=") => {
                *seen.lock() = request.header("x-amz-meta-forebay-upload").to_owned();
                let body = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
                CannedResponse::new(200, body)
            }
            "PUT" => CannedResponse::new(200, "").with("etag", "\"part\""),
            "POST" if lost && completions.fetch_add(1, Ordering::Relaxed) == 0 => CannedResponse::new(500, ""),
            "POST" => CannedResponse::s3_error(404, "NoSuchUpload", "gone"),
            _ => {
                let mark = if mark == "ours" { seen.lock().clone() } else { mark.to_owned() };
                let response = CannedResponse::new(200, "").with("etag", etag).with("content-length", size.to_string());
                let response = response.with("last-modified", time.format("%a, %d %b %Y %H:%M:%S GMT").to_string());
                if mark.is_empty() { response } else { response.with("x-amz-meta-forebay-upload", mark) }
            }
        });
        let upload = origin.begin_upload(b"f").await.unwrap();
        assert_eq!(begun.lock().len(), 16);
        let tags = [origin.upload_part(b"f", &upload, 1, some(10)).await.unwrap()];
        let completed = origin.complete_upload(b"f", &upload, 10, &tags).await;
        let case = format!("{mark} {etag} {size} {time} {lost}");
        match completed {
            Ok(attr) => assert!(expected && attr.size() == 10, "{case}: {attr:?}"),
            Err(failure) => assert!(!expected && failure.kind() == FailureKind::NotFound, "{case}: {failure}"),
        }
    }
}

#[tokio::test]
async fn who_made_a_file_where_there_was_none_is_told_by_its_mark_when_an_answer_was_lost() {
    // The mark of what is there, whether an answer was lost, whether it is ours.
    let cases = [("ours", true, true), ("another's", true, false), ("", true, false), ("ours", false, false)];
    for (mark, lost, expected) in cases {
        let (marked, puts) = (Mutex::new(String::new()), AtomicU64::new(0));
        let (origin, _server) = canned(move |request| match &*request.method {
            "PUT" => {
                assert_eq!(request.header("if-none-match"), "*");
                *marked.lock() = request.header("x-amz-meta-forebay-upload").to_owned();
                match lost && puts.fetch_add(1, Ordering::Relaxed) == 0 {
                    true => CannedResponse::new(500, ""),
                    false => CannedResponse::s3_error(412, "PreconditionFailed", "it is there"),
                }
            }
            _ => {
                let mark = if mark == "ours" { marked.lock().clone() } else { mark.to_owned() };
                let head = CannedResponse::new(200, "").with("etag", "\"1\"").with("content-length", "10");
                let head = head.with("last-modified", "Mon, 06 May 2024 07:08:09 GMT");
                if mark.is_empty() { head } else { head.with("x-amz-meta-forebay-upload", mark) }
            }
        });
        match origin.create(b"f", some(10)).await {
            Ok(attr) => assert!(expected && attr.size() == 10, "{mark} {lost}: {attr:?}"),
            Err(failure) => assert!(!expected && failure.kind() == FailureKind::Exists, "{mark} {lost}: {failure}"),
        }
    }
}

#[tokio::test]
async fn another_writers_version_is_not_given_out_as_ours() {
    let (origin, _server) = canned(|request| match &*request.method {
        "PUT" => CannedResponse::new(200, "").with("etag", "\"ours\""),
        _ => {
            let head = CannedResponse::new(200, "").with("etag", "\"theirs\"").with("content-length", "99");
            head.with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
        }
    });
    let before = Utc::now().timestamp() * 1_000_000_000;
    let attr = origin.put(b"f", some(10)).await.unwrap();
    let version = attr.version().unwrap();
    assert_eq!((version.size, &version.tag), (10, &VersionTag::Etag("\"ours\"".into())));
    assert!(attr.modified_nanos >= before && attr.modified_nanos % 1_000_000_000 == 0);
}

#[tokio::test]
async fn a_file_that_was_written_is_written_though_it_may_not_be_read() {
    let (origin, _server) = canned(|request| match &*request.method {
        "PUT" => CannedResponse::new(200, "").with("etag", "\"1\""),
        _ => CannedResponse::s3_error(403, "AccessDenied", "no"),
    });
    assert_eq!(origin.put(b"f", some(10)).await.unwrap().size(), 10);
}

#[tokio::test]
async fn a_file_of_another_length_than_was_written_is_corrupt() {
    let (origin, _server) = canned(|request| match &*request.method {
        "PUT" => CannedResponse::new(200, "").with("etag", "\"1\""),
        _ => {
            let head = CannedResponse::new(200, "").with("etag", "\"1\"").with("content-length", "9");
            head.with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
        }
    });
    assert_eq!(origin.put(b"f", some(10)).await.unwrap_err().kind(), FailureKind::Corrupt);
}

#[tokio::test]
async fn each_refusal_of_a_change_says_what_to_do() {
    let error = CannedResponse::s3_error;
    let cases = [
        (error(403, "AccessDenied", "no"), FailureKind::PermissionDenied, "s3:PutObject, s3:DeleteObject"),
        (error(400, "EntityTooLarge", "big"), FailureKind::TooLarge, "larger than the origin takes"),
        (CannedResponse::new(413, ""), FailureKind::TooLarge, "status 413"),
        (error(403, "QuotaExceeded", "full"), FailureKind::NoSpace, "make room"),
        (error(507, "XMinioStorageFull", "full"), FailureKind::NoSpace, "make room"),
        (error(400, "KeyTooLongError", "long"), FailureKind::NameTooLong, "too long"),
        (error(405, "MethodNotAllowed", "no"), FailureKind::ReadOnly, "takes no changes"),
        (error(404, "NoSuchBucket", "none"), FailureKind::InvalidArgument, "there is no bucket"),
        (error(409, "OperationAborted", "busy"), FailureKind::Unavailable, "at this moment"),
        (error(409, "ObjectParentIsFile", "file"), FailureKind::NotADirectory, "is a file"),
        (error(409, "ExistingObjectIsDirectory", "dir"), FailureKind::IsADirectory, "is a directory"),
        // Begun with 200, and then it went wrong.
        (error(200, "InternalError", "oops"), FailureKind::Unavailable, "oops"),
        (error(200, "SlowDown", "slow"), FailureKind::Unavailable, "fewer requests"),
        (error(200, "AccessDenied", "no"), FailureKind::PermissionDenied, "s3:PutObject"),
    ];
    for (response, kind, part) in cases {
        let shown = String::from_utf8_lossy(&response.body).into_owned();
        let (origin, _server) = canned(move |request| match &*request.method {
            "HEAD" => {
                let head = CannedResponse::new(200, "").with("etag", "\"1\"").with("content-length", "10");
                head.with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
            }
            _ => response.clone(),
        });
        let tags = ["a:part".to_owned()];
        for (verb, result) in [
            ("put", origin.put(b"f", some(10)).await.map(drop)),
            ("complete", origin.complete_upload(b"f", "mark:1", 10, &tags).await.map(drop)),
            ("copy", origin.copy(b"f", b"g").await.map(drop)),
            ("remove", origin.remove(b"f").await),
        ] {
            let failure = result.unwrap_err();
            assert_eq!(failure.kind(), kind, "{verb}, {shown}: {failure}");
            assert!(failure.message().contains(part), "{verb}, {shown}: `{part}` is not in: {failure}");
            assert!(failure.message().contains("s3://bucket/"), "names the file: {failure}");
        }
    }
}

#[tokio::test]
async fn parts_that_are_too_small_are_named() {
    let scene = scene(|_| {});
    let upload = scene.origin.begin_upload(b"small").await.unwrap();
    let mut tags = Vec::new();
    for number in [1, 2] {
        tags.push(scene.origin.upload_part(b"small", &upload, number, some(10)).await.unwrap());
    }
    let failure = scene.origin.complete_upload(b"small", &upload, 20, &tags).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::InvalidArgument);
    assert!(failure.message().contains("EntityTooSmall"), "{failure}");
}

#[tokio::test]
async fn what_no_key_can_be_is_refused_before_anything_is_asked() {
    let (origin, server) = canned(|request| panic!("{request:?}"));
    for path in [&b"new\nline"[..], b"\xff", b"a/\x7f"] {
        for (verb, result) in all_verbs(&origin, path).await.into_iter().filter(|(verb, _)| *verb != "copy") {
            let failure = result.unwrap_err();
            assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{verb}: {failure}");
        }
    }
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn missing_credentials_are_named_when_something_is_to_be_changed() {
    let metadata = CannedServer::start(|_| CannedResponse::new(404, "")).unwrap();
    let bucket = FlatS3::start();
    let mut options = OriginOptions::default();
    options.s3.endpoint = Some(bucket.url());
    let variables = [("AWS_METADATA_ENDPOINT".to_owned(), metadata.url())].into();
    let url = url::Url::parse("s3://bucket").unwrap();
    let origin = ObjectStoreOrigin::new(&url, "s3://bucket", &options, &variables).unwrap();
    for result in [origin.put(b"x", some(1)).await.map(drop), origin.remove(b"x").await] {
        let failure = result.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
        assert!(failure.message().contains("no credentials"), "{failure}");
    }
    assert_eq!(bucket.requests(), 0);
}

#[tokio::test]
async fn an_object_too_large_for_the_origin_to_copy_is_copied_in_parts() {
    let scene = scene(|_| {});
    let keys = (scene.server.access_key(), scene.server.secret_key());
    let mut origin = s3_origin(&scene.proxy.url(), "s3://bucket", keys, |_| {});
    let whole = origin.put(b"from", some(2 * PART + 7)).await.unwrap();
    let version = whole.version().unwrap();
    origin.client.writer.as_mut().unwrap().largest_copy = 2 * PART as u64;
    let copies = origin.copy_in_parts(version, b"several parts", PART as u64).await.unwrap();
    assert!(matches!(&copies.version().unwrap().tag, VersionTag::Etag(tag) if tag.ends_with("-3\"")));
    for attr in [copies, origin.copy(b"from", b"one part").await.unwrap()] {
        let version = attr.version().unwrap();
        assert_eq!(version.size, 2 * PART as u64 + 7);
        read(&origin, version).await.unwrap();
    }
    assert_eq!(attempts(&origin, "copy"), 0);
    assert_eq!(origin.copy(b"object", b"small").await.unwrap().size(), SIZE);
    assert_eq!(attempts(&origin, "copy"), 1);

    origin.put(b"from", some(2 * PART + 8)).await.unwrap();
    let failure = origin.copy_in_parts(version, b"never", PART as u64).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged, "{failure}");
    assert!(scene.server.uploads().is_empty(), "it was given up");
    assert_eq!(origin.stat(b"never").await.unwrap_err().kind(), FailureKind::NotFound);
}

#[tokio::test]
async fn a_copy_in_parts_that_nobody_waits_for_any_more_leaves_nothing_at_the_origin() {
    let scene = scene(|_| {});
    let origin = &*scene.origin;
    let whole = origin.put(b"from", some(2 * PART)).await.unwrap();
    let version = whole.version().unwrap();
    // Its parts are asked for once it is begun, and they do not come.
    scene.proxy.inject_reads(100, Fault::Stall { after: 0 });
    tokio::select! {
        copied = origin.copy_in_parts(version, b"to", PART as u64) => panic!("without its parts: {copied:?}"),
        () = until("a part is asked for", || scene.proxy.counts().object_gets > 0) => {}
    }
    assert_eq!(scene.server.uploads(), ["bucket/to"], "what is to be given up in the background");
    until("the upload is given up", || scene.server.uploads().is_empty()).await;
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    waited.unwrap_or_else(|_| panic!("it does not happen: {what}"));
}
