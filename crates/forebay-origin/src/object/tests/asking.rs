//! What a server tells of uploads: how it is asked, and what of its answers is believed.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_locks::Mutex;
use forebay_types::{FilePart, PartPage, UploadMarker, VersionTag};

use super::*;

/// An origin whose server answers like this.
fn canned(
    answer: impl Fn(&forebay_testkit::CannedRequest) -> CannedResponse + Send + Sync + 'static,
) -> (ObjectStoreOrigin, CannedServer) {
    let server = CannedServer::start(answer).unwrap();
    let origin =
        s3_origin(&server.url(), "s3://bucket/some%20prefix", ("AK", "SK"), |options| options.max_attempts = 2);
    (origin, server)
}

/// One whose server answers with this list.
fn telling(xml: &str) -> (ObjectStoreOrigin, CannedServer) {
    let xml = xml.to_owned();
    canned(move |_| CannedResponse::new(200, xml.clone()))
}

async fn parts(origin: &ObjectStoreOrigin) -> Result<PartPage, Failure> {
    origin.list_parts(b"f", "mark:1", 1, 10).await
}

#[tokio::test]
async fn a_server_is_asked_for_parts_and_uploads_of_the_very_key_by_a_url_that_is_signed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let targets = Arc::clone(&seen);
    let (origin, _server) = canned(move |request| {
        targets.lock().push((request.method.clone(), request.target.clone()));
        CannedResponse::s3_error(404, "NoSuchUpload", "gone")
    });
    let marker = UploadMarker { path: b"a/b".to_vec(), upload: "mark:i:d".to_owned() };
    for failure in [
        origin.list_parts("a b+c&d/ü".as_bytes(), "mark:i:d/1", 3, 5000).await.unwrap_err(),
        origin.list_uploads(b"a/", Some(&marker), 7).await.unwrap_err(),
        origin.list_uploads(b"", None, 7).await.unwrap_err(),
    ] {
        assert_eq!(failure.kind(), FailureKind::NotFound, "{failure}");
    }
    let seen = seen.lock().clone();
    let expected = [
        "/bucket/some%20prefix/a%20b%2Bc%26d/%C3%BC?uploadId=i%3Ad%2F1&max-parts=1000&part-number-marker=3&X-Amz-",
        "/bucket/?uploads=&prefix=some%20prefix%2Fa%2F&max-uploads=7&key-marker=some%20prefix%2Fa%2Fb&upload-id-marker=i%3Ad&",
        "/bucket/?uploads=&prefix=some%20prefix%2F&max-uploads=7&X-Amz-",
    ];
    assert_eq!(seen.len(), expected.len(), "each was asked for once: {seen:?}");
    for ((method, target), expected) in seen.iter().zip(expected) {
        assert!(method == "GET" && target.starts_with(expected), "{target}");
        assert!(target.contains("&X-Amz-Signature="), "{target}");
    }
}

#[tokio::test]
async fn of_an_answer_that_makes_no_sense_nothing_is_believed() {
    let part = |number: u32| format!("<Part><PartNumber>{number}</PartNumber><ETag>\"e\"</ETag><Size>5</Size></Part>");
    let list = |inside: &str| format!("<ListPartsResult>{inside}</ListPartsResult>");
    let more = "<IsTruncated>true</IsTruncated>";
    for xml in [
        String::new(),
        "<html>a web page</html>".to_owned(),
        "<ListMultipartUploadsResult></ListMultipartUploadsResult>".to_owned(),
        list(&[part(3), part(2)].concat()),
        list(&[part(3), part(3)].concat()),
        list("<Part><PartNumber>3</PartNumber><ETag>\"e\"</ETag></Part>"),
        // There are more, and which ones are to be asked for next?
        list(more),
        list(&[more, &part(1)].concat()),
    ] {
        let failure = parts(&telling(&xml).0).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Unavailable, "{xml}: {failure}");
        assert!(failure.message().contains("s3://bucket/some%20prefix/f"), "{failure}");
    }
    // One that does not look at what it is asked for tells too much, and nothing wrong.
    let (origin, _server) = telling(&list(&(1..20).map(part).collect::<String>()));
    let page = parts(&origin).await.unwrap();
    assert_eq!(page.parts.iter().map(|part| part.number).collect::<Vec<_>>(), (2..12).collect::<Vec<_>>());
    assert!(page.has_more);
    assert_eq!((&*page.parts[0].tag, page.parts[0].size, page.parts[0].modified_nanos), ("5:\"e\"", 5, 0));

    let upload = "<Upload><Key>some prefix/f</Key><UploadId>1</UploadId></Upload>";
    let list = |inside: &str| format!("<ListMultipartUploadsResult>{inside}</ListMultipartUploadsResult>");
    let marker = |key: &str| format!("<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>");
    let after = UploadMarker { path: b"f".to_vec(), upload: ":1".to_owned() };
    for xml in [
        "<ListPartsResult></ListPartsResult>".to_owned(),
        list(more),
        list(&[more, upload].concat()),
        list(&[more, upload, &marker("some prefix/f")].concat()),
        list(&[more, upload, &marker("another prefix/g")].concat()),
    ] {
        let failure = telling(&xml).0.list_uploads(b"", Some(&after), 10).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Unavailable, "{xml}: {failure}");
    }
    // What no file can be called, and what lies elsewhere, is left out.
    let named = |key: &str| format!("<Upload><Key>{key}</Key><UploadId>{key}</UploadId></Upload>");
    let keys = ["some prefix/a//b", "some prefix/..", "some prefix/", "elsewhere", "some prefix/c d"];
    let (origin, _server) = telling(&list(&[more, &keys.map(named).concat(), &marker("some prefix/x//")].concat()));
    let page = origin.list_uploads(b"", Some(&after), 10).await.unwrap();
    let found: Vec<_> = page.uploads.iter().map(|pending| (&*pending.path, &*pending.upload)).collect();
    assert_eq!(found, [(&b"c d"[..], ":some prefix/c d")]);
    assert_eq!(page.next, Some(UploadMarker { path: b"x//".to_vec(), upload: ":1".to_owned() }));
}

#[tokio::test]
async fn a_refusal_says_what_is_to_be_done_and_a_hiccup_is_asked_again() {
    let error = CannedResponse::s3_error;
    for (response, kind, part) in [
        (error(404, "NoSuchUpload", "gone"), FailureKind::NotFound, "no such upload"),
        (error(501, "NotImplemented", "no"), FailureKind::Unsupported, "does not tell"),
        (CannedResponse::new(405, ""), FailureKind::Unsupported, "does not tell"),
        (error(403, "AccessDenied", "no"), FailureKind::PermissionDenied, "s3:ListMultipartUploadParts"),
        (error(403, "InvalidAccessKeyId", "no"), FailureKind::PermissionDenied, "is unknown to"),
        (error(404, "NoSuchBucket", "no"), FailureKind::InvalidArgument, "there is no bucket"),
    ] {
        let (origin, server) = canned(move |_| response.clone());
        for failure in [parts(&origin).await.map(drop), origin.list_uploads(b"f", None, 1).await.map(drop)] {
            let failure = failure.unwrap_err();
            assert_eq!(failure.kind(), kind, "{failure}");
            assert!(failure.message().contains(part), "`{part}` is not in: {failure}");
        }
        assert_eq!(server.requests(), 2);
    }
    let asked = AtomicU64::new(0);
    let (origin, _server) = canned(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => CannedResponse::new(503, ""),
        _ => CannedResponse::new(200, "<ListPartsResult></ListPartsResult>"),
    });
    assert_eq!(parts(&origin).await, Ok(PartPage::default()));
}

#[tokio::test]
async fn an_upload_that_is_told_without_its_mark_is_the_same_one() {
    let scene = scene(|_| {});
    let upload = scene.origin.begin_upload(b"d/parts").await.unwrap();
    let told = async |origin: &ObjectStoreOrigin| {
        let mut page = origin.list_uploads(b"d/", None, 10).await.unwrap();
        assert_eq!((page.uploads.len(), page.next), (1, None));
        page.uploads.remove(0).upload
    };
    assert_eq!(told(&scene.origin).await, upload, "who began it knows its mark");
    let keys = (scene.server.access_key(), scene.server.secret_key());
    let another = s3_origin(&scene.proxy.url(), "s3://bucket", keys, |_| {});
    let unmarked = told(&another).await;
    assert!(unmarked.starts_with(':') && upload.ends_with(&unmarked), "{unmarked} of {upload}");
    let bytes = DATA.expected(0..10);
    let tag = [another.upload_part(b"d/parts", &unmarked, 1, bytes.into()).await.unwrap()];
    assert_eq!(scene.origin.list_parts(b"d/parts", &upload, 0, 10).await.unwrap().parts[0].tag, tag[0]);
    // The answer to the first of these is lost: what is there has its size, its number of parts and its time.
    scene.proxy.inject_changes(1, Fault::Reset { after: 0 });
    let attr = another.complete_upload(b"d/parts", &unmarked, 10, &tag).await.unwrap();
    assert_eq!(scene.origin.stat(b"d/parts").await, Ok(attr));
}

#[tokio::test]
async fn where_a_part_lies_is_told_of_the_version_that_is_asked_about() {
    const PART: u64 = 5 << 20;
    let scene = scene(|_| {});
    let origin = &*scene.origin;
    let upload = origin.begin_upload(b"d/a b+c").await.unwrap();
    let mut tags = Vec::new();
    for (number, length) in [(1, PART), (2, PART + 1), (3, 7)] {
        let bytes = DATA.expected(0..length).into();
        tags.push(origin.upload_part(b"d/a b+c", &upload, number, bytes).await.unwrap());
    }
    let size = 2 * PART + 8;
    let attr = origin.complete_upload(b"d/a b+c", &upload, size, &tags).await.unwrap();
    let version = attr.version().unwrap();
    for (number, range) in [(1, 0..PART), (2, PART..2 * PART + 1), (3, 2 * PART + 1..size)] {
        assert_eq!(origin.part(version, number).await, Ok(Some(FilePart { range, count: 3 })));
    }
    assert_eq!(origin.part(version, 4).await, Ok(None));
    let elsewhere = FileVersion { origin: "s3://other".into(), ..version.clone() };
    for (version, number) in [(version, 0), (version, 10_001), (&elsewhere, 1)] {
        assert_eq!(origin.part(version, number).await.unwrap_err().kind(), FailureKind::InvalidArgument, "{number}");
    }
    origin.put(b"d/a b+c", DATA.expected(0..10).into()).await.unwrap();
    assert_eq!(origin.part(version, 1).await.unwrap_err().kind(), FailureKind::VersionChanged);
    origin.remove(b"d/a b+c").await.unwrap();
    assert_eq!(origin.part(version, 1).await.unwrap_err().kind(), FailureKind::VersionChanged);

    // A server that passes over the number has told nothing; and of what has no entity tag, nobody is asked.
    let (origin, server) = canned(|request| {
        assert_eq!((&*request.method, request.header("if-match")), ("HEAD", "\"abc-3\""));
        assert!(request.target.starts_with("/bucket/some%20prefix/f?partNumber=2&X-Amz-"), "{}", request.target);
        CannedResponse::new(200, "").with("etag", "\"abc-3\"").with("content-length", "25")
    });
    let tag = VersionTag::Etag("\"abc-3\"".into());
    let version = FileVersion { origin: origin.url().clone(), path: b"f"[..].into(), size: 25, tag };
    assert_eq!(origin.part(&version, 2).await.unwrap_err().kind(), FailureKind::Unsupported);
    let untagged = FileVersion { tag: VersionTag::Modified { nanos: 5, inode: 0 }, ..version };
    assert_eq!(origin.part(&untagged, 2).await.unwrap_err().kind(), FailureKind::Unsupported);
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn who_does_not_sign_is_not_told_of_uploads() {
    let server = CannedServer::start(|request| panic!("{request:?}")).unwrap();
    let origin = s3_origin(&server.url(), "s3://bucket", ("", ""), |options| options.s3.anonymous = true);
    for failure in [parts(&origin).await.map(drop), origin.list_uploads(b"", None, 1).await.map(drop)] {
        assert_eq!(failure.unwrap_err().kind(), FailureKind::Unsupported);
    }
}
