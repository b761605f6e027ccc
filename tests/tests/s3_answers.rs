//! What the S3 endpoint answers where others have a say in what is right: as Amazon does, or as near as directories let it.

use std::time::Duration;

use forebay_e2e::{S3Keys, S3Scene, Setup, assert_s3_refused, at, credentials, ruled_out_by_mode, s3_status};
use forebay_testkit::{DataSet, Fault};
use futures::StreamExt as _;
use object_store::signer::Method;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMultipartOptions, PutPayload};

const PLAIN: &str = "its clients speak plain text, and know no authority of the cluster";

#[test]
fn ranges_are_answered_as_amazon_does() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put_text("k", "open");
    scene.bucket.put_text("empty", "");
    let (get, head) = (scene.signed(Method::GET, "k"), scene.signed(Method::HEAD, "k"));
    let of = |method: &str, target: &str, range: &str| scene.ask(method, target, &[&format!("range: {range}")], b"");
    for (range, part, bytes) in [
        ("bytes=1-2", "bytes 1-2/4", "pe"),
        ("bytes=1-99999999999999999999", "bytes 1-3/4", "pen"),
        ("bytes=-99999999999999999999", "bytes 0-3/4", "open"),
    ] {
        let answer = of("GET", &get, range);
        assert_eq!(s3_status(&answer), 206, "{range}: {answer}");
        assert!(answer.contains(&format!("content-range: {part}\r\n")), "{range}: {answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{bytes}")), "{range}: {answer}");
        let answer = of("HEAD", &head, range);
        assert_eq!(s3_status(&answer), 206, "{range}: {answer}");
        assert!(answer.contains(&format!("content-range: {part}\r\n")), "{range}: {answer}");
        assert!(answer.contains(&format!("content-length: {}\r\n", bytes.len())), "{range}: {answer}");
    }
    for range in ["bytes=4-", "bytes=-0", "bytes=18446744073709551615-", "bytes=99999999999999999999-"] {
        let answer = of("GET", &get, range);
        assert_s3_refused(&answer, 416, "InvalidRange");
        assert!(answer.contains("content-range: bytes */4\r\n"), "{range}: {answer}");
        let answer = of("HEAD", &head, range);
        assert_eq!(s3_status(&answer), 416, "{range}: {answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{range}: {answer}");
    }
    let empty = scene.signed(Method::GET, "empty");
    assert_s3_refused(&of("GET", &empty, "bytes=0-"), 416, "InvalidRange");
    for range in ["bytes=2-1", "bytes=0-0,2-3", "bytes=x-y", "lines=0-1"] {
        let answer = of("GET", &get, range);
        assert_eq!(s3_status(&answer), 200, "{range}: {answer}");
        assert!(answer.ends_with("\r\n\r\nopen") && !answer.contains("content-range"), "{range}: {answer}");
    }
}

#[test]
fn a_key_that_is_a_directory_of_others_is_not_written_and_is_said_to_be_in_the_way() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put_text("dir/k", "open");
    let put = scene.signed(Method::PUT, "dir");
    assert_s3_refused(&scene.ask("PUT", &put, &["content-length: 1"], b"x"), 409, "ExistingObjectIsDirectory");
    let (client, path) = (scene.client(), at("dir"));
    let begun = scene.run(client.put_multipart_opts(&path, PutMultipartOptions::default()));
    let refused = format!("{:?}", begun.map(|_| ()).unwrap_err());
    assert!(refused.contains("ExistingObjectIsDirectory"), "{refused}");
    assert_eq!(scene.read("dir/k"), b"open");
}

#[test]
fn a_key_below_an_object_cannot_be_where_there_are_directories() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let (files, keys) = (tempfile::tempdir().unwrap(), S3Keys::new());
    let key = keys.add("writer", "me");
    std::fs::write(files.path().join("k"), "open").unwrap();
    let port = forebay_testkit::ReservedPort::new().unwrap();
    let settings = [format!("s3.port={}", port.address().port()), credentials(&keys.path())];
    let settings = settings.each_ref().map(String::as_str);
    let url = format!("file://{}", files.path().display());
    let setup = Setup::default().memory("128MiB").options(&settings);
    let _mount = setup.up_url(&url);
    let client = object_store::aws::AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", port.address()))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name("data")
        .with_access_key_id(&key.access)
        .with_secret_access_key(&key.secret)
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(client.put(&at("k/below"), PutPayload::from("x"))).unwrap_err();
    let refused = format!("{refused:?}");
    assert!(refused.contains("ObjectParentIsFile"), "{refused}");
    assert_eq!(std::fs::read_to_string(files.path().join("k")).unwrap(), "open");
}

#[test]
fn the_first_bytes_of_a_cold_object_do_not_wait_for_those_that_follow() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    const FIRST: usize = 256 << 10;
    let scene = S3Scene::start();
    let (data, size, proxy) = (DataSet::new(3), 9 << 20, scene.bucket.proxy());
    scene.bucket.put("cold", data, size);
    // What the origin sends of all else stops there.
    proxy.inject_reads(1000, Fault::Stall { after: FIRST as u64 + 1 });
    let (client, path) = (scene.client(), at("cold"));
    let mut stream = scene.run(client.get(&path)).unwrap().into_stream();
    let mut bytes = Vec::new();
    while bytes.len() < FIRST {
        bytes.extend(scene.run(stream.next()).expect("more of it").unwrap());
    }
    proxy.heal();
    scene.run(async {
        loop {
            match tokio::time::timeout(Duration::from_secs(1), stream.next()).await {
                Ok(Some(more)) => bytes.extend(more.unwrap()),
                Ok(None) => break,
                // One may have come to where it stops after the others were let go.
                Err(_) => proxy.release(),
            }
        }
    });
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));
}
