//! What the S3 endpoint answers where others have a say in what is right: as Amazon does, or as near as directories let it.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_e2e::{
    Bucket, S3Key, S3Keys, S3Scene, Setup, assert_s3_refused, at, credentials, eventually, ruled_out_by_mode, s3_status,
};
use forebay_testkit::{DataSet, Fault};
use futures::StreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential, S3CopyIfNotExists};
use object_store::client::HttpRequest;
use object_store::multipart::MultipartStore as _;
use object_store::signer::Method;
use object_store::{
    Error, MultipartUpload as _, ObjectStore as _, ObjectStoreExt as _, PutMultipartOptions, PutPayload,
};

const SOON: Duration = Duration::from_secs(60);
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
    // The signature may hold it, as those of boto3 do.
    let (key, target) = (writer(&scene), format!("/{}/k", S3Scene::BUCKET));
    let signed = |method: Method, range: &str, sent: &str| {
        let headers = signed_headers(&scene, &key, (method.clone(), target.as_str()), &[("range", range)], "");
        let headers: Vec<String> = headers.iter().map(|line| line.replace(range, sent)).collect();
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        scene.ask(method.as_str(), &target, &headers, b"")
    };
    for range in ["bytes=2-1", "bytes=0-0,2-3", "lines=0-1"] {
        let answer = signed(Method::GET, range, range);
        assert_eq!(s3_status(&answer), 200, "{range}: {answer}");
        assert!(answer.ends_with("\r\n\r\nopen") && !answer.contains("content-range"), "{range}: {answer}");
        let answer = signed(Method::HEAD, range, range);
        assert_eq!(s3_status(&answer), 200, "{range}: {answer}");
        assert!(answer.contains("content-length: 4\r\n"), "{range}: {answer}");
    }
    let long = "bytes=1-99999999999999999999";
    let answer = signed(Method::GET, long, long);
    assert!(s3_status(&answer) == 206 && answer.ends_with("\r\n\r\npen"), "{answer}");
    assert_s3_refused(&signed(Method::GET, "bytes=2-1", "bytes=3-1"), 403, "SignatureDoesNotMatch");
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

/// A key that may write, once the endpoint knows it. It has to have the object `k`.
fn writer(scene: &S3Scene) -> S3Key {
    let key = scene.keys.add("writer", "another");
    let client = scene.client_of(&key);
    eventually("the new key is known", SOON, || scene.run(client.head(&at("k"))).is_ok());
    key
}

/// The headers of a request with this target and body that `key` signs: these, and those of the signature.
fn signed_headers(
    scene: &S3Scene,
    key: &S3Key,
    (method, target): (Method, &str),
    headers: &[(&'static str, &str)],
    body: &str,
) -> Vec<String> {
    let credential = AwsCredential { key_id: key.access.clone(), secret_key: key.secret.clone(), token: None };
    let mut request = HttpRequest::new(body.to_owned().into());
    *request.method_mut() = method;
    *request.uri_mut() = format!("http://{}{target}", scene.endpoint.address()).parse().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    AwsAuthorizer::new(&credential, "s3", "us-east-1").try_authorize(&mut request, None).unwrap();
    request.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

/// A client that sends one header of our choice with each copy, this condition, and takes 412 for a target that is there.
fn copying_if_match(tag: &str, endpoint: SocketAddr, key: &S3Key) -> AmazonS3 {
    let condition = S3CopyIfNotExists::Header("x-amz-copy-source-if-match".to_owned(), tag.to_owned());
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{endpoint}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(S3Scene::BUCKET)
        .with_access_key_id(&key.access)
        .with_secret_access_key(&key.secret)
        .with_copy_if_not_exists(condition)
        .build()
        .unwrap()
}

#[test]
fn a_copy_under_a_condition_has_the_bytes_that_met_it() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    // In two parts.
    let (first, second, size) = (DataSet::new(1), DataSet::new(2), 9 << 20);
    scene.bucket.put("k", first, size);
    let key = writer(&scene);
    let tag = scene.run(scene.client().head(&at("k"))).unwrap().e_tag.unwrap();
    let under = |tag: &str| copying_if_match(tag, scene.endpoint.address(), &key);
    let refused = scene.run(under("\"other\"").copy_if_not_exists(&at("k"), &at("none"))).unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused:?}");
    assert!(!scene.bucket.path_of("none").exists());
    let met = under(&tag);
    scene.run(met.copy_if_not_exists(&at("k"), &at("calm"))).unwrap();
    assert_eq!(scene.bucket.object("calm").len() as u64, size);
    assert_eq!(first.first_difference(0, &scene.bucket.object("calm")), None);

    // What was looked at is replaced before the origin does anything.
    let proxy = scene.bucket.proxy();
    let changes = || {
        let requests = proxy.counts().requests;
        ["PUT", "POST"].iter().filter_map(|method| requests.get(*method)).sum::<u64>()
    };
    let before = changes();
    proxy.inject_changes(1000, Fault::Status(503));
    let copied = scene.run(async {
        let (from, to) = (at("k"), at("copy"));
        let replaced = async {
            while changes() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            scene.bucket.put("k", second, size);
            proxy.heal();
        };
        tokio::join!(met.copy_if_not_exists(&from, &to), replaced).0
    });
    // What was cached of the old one may be evicted, and then there is nothing to copy.
    match copied {
        Ok(()) => assert_eq!(first.first_difference(0, &scene.bucket.object("copy")), None),
        Err(error) => assert!(!scene.bucket.path_of("copy").exists(), "{error:?}"),
    }
    let refused = scene.run(met.copy_if_not_exists(&at("k"), &at("late"))).unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused:?}");
    assert!(!scene.bucket.path_of("late").exists());
}

#[test]
fn a_copy_from_one_origin_to_another_is_read_and_sent_and_none_passes_for_its_source() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let (bucket, files, keys) = (Bucket::new(), tempfile::tempdir().unwrap(), S3Keys::new());
    // One directory by two URLs, which nobody is told.
    let (directory, same) = (files.path().join("directory"), files.path().join("same"));
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(&directory, &same).unwrap();
    let files = format!("/dir=file://{},/same=file://{}", directory.display(), same.display());
    let key = keys.add("writer", "me");
    let mounts = format!("mounts=/s3={url},/again={url},{files}", url = bucket.url());
    let worker = Setup::of(&bucket).option(&mounts).member("w1");
    let buckets = format!("s3.buckets={}=/", S3Scene::BUCKET);
    let endpoint = Setup::without_origin().option(&buckets).s3([&worker], &keys);
    let client = endpoint.client(S3Scene::BUCKET, &key);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let copy = |from: &str, to: &str| runtime.block_on(client.copy(&at(from), &at(to)));
    // In two parts.
    let (data, size) = (DataSet::new(1), 9 << 20);
    bucket.put("k", data, size);
    bucket.put("empty", data, 0);
    copy("s3/k", "dir/k").unwrap();
    copy("s3/empty", "dir/empty").unwrap();
    let found = std::fs::read(directory.join("k")).unwrap();
    assert_eq!((found.len() as u64, data.first_difference(0, &found)), (size, None));
    assert!(std::fs::read(directory.join("empty")).unwrap().is_empty());
    copy("dir/k", "s3/back").unwrap();
    assert!(bucket.object("back") == found);
    // Who moved it would delete the only one next.
    let refused = format!("{:?}", copy("dir/k", "same/k").unwrap_err());
    assert!(refused.contains("OperationAborted"), "{refused}");
    let copy_if_match = |from: &str, to: &str| {
        let tag = runtime.block_on(client.head(&at(from))).unwrap().e_tag.unwrap();
        let client = copying_if_match(&tag, endpoint.address(), &key);
        runtime.block_on(client.copy_if_not_exists(&at(from), &at(to)))
    };
    for (from, to) in [("dir/empty", "same/empty"), ("s3/k", "again/k")] {
        let refused = format!("{:?}", copy_if_match(from, to).unwrap_err());
        assert!(refused.contains("OperationAborted"), "{from}: {refused}");
    }
    copy_if_match("s3/back", "again/other").unwrap();
    assert!(std::fs::read(directory.join("k")).unwrap() == found);
    assert!(bucket.object("k") == found && bucket.object("other") == found);
}

#[test]
fn a_list_that_is_not_what_was_signed_is_refused_and_no_error_of_ours() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    for key in ["k", "1", "2"] {
        scene.bucket.put_text(key, "open");
    }
    let key = writer(&scene);
    let list = |key: &str| format!("<Delete><Object><Key>{key}</Key></Object></Delete>");
    let target = format!("/{}?delete", S3Scene::BUCKET);
    let sent = |signed: &str, body: &str, length: usize| {
        let mut headers = signed_headers(&scene, &key, (Method::POST, target.as_str()), &[], signed);
        headers.push(format!("content-length: {length}"));
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        scene.ask("POST", &target, &headers, body.as_bytes())
    };
    let (one, other) = (list("1"), list("2"));
    assert_s3_refused(&sent(&one, &other, other.len()), 403, "SignatureDoesNotMatch");
    assert_s3_refused(&sent(&one, &one, 3 << 20), 400, "MaxMessageLengthExceeded");
    let answer = sent(&one, &one, one.len());
    assert_eq!(s3_status(&answer), 200, "{answer}");
    assert!(scene.bucket.path_of("2").exists() && !scene.bucket.path_of("1").exists());
}

#[test]
fn a_plus_in_the_name_of_what_is_copied_is_a_space_as_amazon_reads_it() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    for (key, text) in [("k", "open"), ("a b", "with a space"), ("a+b", "with a plus"), ("c d", "with a space")] {
        scene.bucket.put_text(key, text);
    }
    let key = writer(&scene);
    let copied = |from: &str, target: &str| {
        let source = format!("/{}/{from}", S3Scene::BUCKET);
        let source = [("x-amz-copy-source", source.as_str())];
        let headers = signed_headers(&scene, &key, (Method::PUT, target), &source, "");
        let headers: Vec<&str> = headers.iter().map(String::as_str).chain(["content-length: 0"]).collect();
        scene.ask("PUT", target, &headers, b"")
    };
    let target = format!("/{}/copy", S3Scene::BUCKET);
    for (from, text) in [("a+b", "with a space"), ("a%20b", "with a space"), ("a%2Bb", "with a plus")] {
        let answer = copied(from, &target);
        assert_eq!(s3_status(&answer), 200, "{from}: {answer}");
        assert_eq!(scene.bucket.object("copy"), text.as_bytes(), "{from}");
    }
    let (client, path) = (scene.client(), at("parts"));
    let upload = scene.run(client.create_multipart(&path)).unwrap();
    let part = format!("/{}/parts?partNumber=1&uploadId={upload}", S3Scene::BUCKET);
    let answer = copied("c+d", &part);
    assert_eq!(s3_status(&answer), 200, "{answer}");
    assert_s3_refused(&copied("c%2Bd", &part), 404, "NoSuchKey");
    scene.run(client.abort_multipart(&path, &upload)).unwrap();
}

#[test]
fn an_object_is_copied_from_a_bucket_whose_name_amazons_have_not() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::with(&["s3.buckets=sets=/,my_data=/,Data=/,s3=/"]);
    for (key, text) in [("k", "open"), ("a b", "with a space"), ("secret", "hush")] {
        scene.bucket.put_text(key, text);
    }
    let key = writer(&scene);
    let copied = |key: &S3Key, target: &str, signed: &str, sent: &str| {
        let source = [("x-amz-copy-source", signed)];
        let headers = signed_headers(&scene, key, (Method::PUT, target), &source, "");
        let headers: Vec<String> = headers.iter().map(|line| line.replace(signed, sent)).collect();
        let headers: Vec<&str> = headers.iter().map(String::as_str).chain(["content-length: 0"]).collect();
        scene.ask("PUT", target, &headers, b"")
    };
    let target = format!("/{}/copy", S3Scene::BUCKET);
    for (source, text) in
        [("/my_data/k", "open"), ("Data/a+b", "with a space"), ("/s3/k", "open"), ("my_data%2Fa%20b", "with a space")]
    {
        let answer = copied(&key, &target, source, source);
        assert_eq!(s3_status(&answer), 200, "{source}: {answer}");
        assert!(answer.contains("<CopyObjectResult"), "{source}: {answer}");
        assert_eq!(scene.bucket.object("copy"), text.as_bytes(), "{source}");
    }
    let (client, path) = (scene.client(), at("parts"));
    let upload = scene.run(client.create_multipart(&path)).unwrap();
    let part = format!("/{}/parts?partNumber=1&uploadId={upload}", S3Scene::BUCKET);
    let answer = copied(&key, &part, "/my_data/k", "/my_data/k");
    assert!(s3_status(&answer) == 200 && answer.contains("<CopyPartResult"), "{answer}");
    assert_s3_refused(&copied(&key, &part, "/my_data/none", "/my_data/none"), 404, "NoSuchKey");
    scene.run(client.abort_multipart(&path, &upload)).unwrap();

    // Only what was signed, and for who may.
    assert_s3_refused(&copied(&key, &target, "/my_data/k", "/my_data/secret"), 403, "SignatureDoesNotMatch");
    assert_s3_refused(&copied(&key, &target, "/sets/k", "/my_data/secret"), 403, "SignatureDoesNotMatch");
    assert_s3_refused(&copied(&key, &target, "/my_other/k", "/my_other/k"), 404, "NoSuchBucket");
    let reader = scene.keys.add("reader", "team-a");
    let client = scene.client_of(&reader);
    eventually("the new key is known", SOON, || scene.run(client.head(&at("k"))).is_ok());
    assert_s3_refused(&copied(&reader, &target, "/my_data/k", "/my_data/k"), 403, "AccessDenied");
    assert_eq!(scene.bucket.object("copy"), b"with a space");
}

#[test]
fn who_writes_to_a_bucket_that_is_not_there_is_told_so() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let (bucket, keys) = (Bucket::new(), S3Keys::new());
    let key = keys.add("writer", "me");
    let worker = Setup::of(&bucket).option(&format!("mounts=/data={}", bucket.url())).member("w1");
    let endpoint = Setup::without_origin().s3([&worker], &keys);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (there, none, path) = (endpoint.client("data", &key), endpoint.client("none", &key), at("k"));
    runtime.block_on(there.put(&path, PutPayload::from("x"))).unwrap();
    let refused = [
        format!("{:?}", runtime.block_on(none.put(&path, PutPayload::from("x"))).unwrap_err()),
        format!("{:?}", runtime.block_on(none.create_multipart(&path)).unwrap_err()),
        format!("{:?}", runtime.block_on(none.get(&path)).map(|_| ()).unwrap_err()),
    ];
    assert!(refused.iter().all(|refused| refused.contains("NoSuchBucket")), "{refused:?}");
}

#[test]
fn an_upload_with_a_short_part_before_the_last_is_refused_as_its_origin_refuses_it() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let (client, path) = (scene.client(), at("parts"));
    let refused = scene.run(async {
        let mut upload = client.put_multipart(&path).await.unwrap();
        for part in ["one", "two"] {
            upload.put_part(PutPayload::from(part)).await.unwrap();
        }
        let refused = upload.complete().await.unwrap_err();
        upload.abort().await.unwrap();
        refused
    });
    let refused = format!("{refused:?}");
    assert!(refused.contains("<Code>EntityTooSmall</Code>"), "{refused}");
    assert!(!scene.bucket.path_of("parts").exists());
}

#[test]
fn a_listing_tells_the_delimiter_that_it_has() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    for key in ["k", "a|b"] {
        scene.bucket.put_text(key, "open");
    }
    let key = writer(&scene);
    let listed = |query: &str| {
        let target = format!("/{}?{query}", S3Scene::BUCKET);
        let headers = signed_headers(&scene, &key, (Method::GET, target.as_str()), &[], "");
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let answer = scene.ask("GET", &target, &headers, b"");
        assert_eq!(s3_status(&answer), 200, "{query}: {answer}");
        answer
    };
    for version in ["", "&list-type=2"] {
        let all = listed(&format!("delimiter={version}"));
        assert!(all.contains("<Key>a|b</Key>") && !all.contains("Delimiter>"), "an empty one is none: {all}");
        let some = listed(&format!("delimiter=%7C{version}"));
        assert!(some.contains("<Delimiter>|</Delimiter>") && some.contains("<Prefix>a|</Prefix>"), "{some}");
    }
}
