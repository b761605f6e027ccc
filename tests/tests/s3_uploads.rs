//! Uploads in parts over S3, as whoever goes on with them sees them, and parts of objects by their number.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_e2e::{S3Scene, assert_s3_refused, at, eventually, ruled_out_by_mode, s3_status};
use object_store::aws::AmazonS3;
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::signer::Method;
use object_store::{MultipartUpload as _, ObjectStoreExt as _, PutPayload};

const SOON: Duration = Duration::from_secs(60);
/// The shortest part but the last one that object stores take.
const PART: usize = 5 << 20;
const PLAIN: &str = "its clients speak plain text, and know no authority of the cluster";

/// The bytes of a part: one letter.
fn letters(letter: u8, count: usize) -> PutPayload {
    PutPayload::from(vec![letter; count])
}

/// The texts of all elements of this name, in order.
fn texts(answer: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let rest = answer.split(open.as_str()).skip(1);
    let texts = rest.map(|rest| rest.split(close.as_str()).next().unwrap_or_default());
    texts.map(|text| text.replace("&quot;", "\"").replace("&amp;", "&")).collect()
}

/// The only one.
#[track_caller]
fn text(answer: &str, name: &str) -> String {
    let texts = texts(answer, name);
    assert_eq!(texts.len(), 1, "{name} in {answer}");
    texts[0].clone()
}

/// An answer that is none of errors.
#[track_caller]
fn good(answer: String) -> String {
    assert_eq!(s3_status(&answer), 200, "{answer}");
    answer
}

fn parts(scene: &S3Scene, client: &AmazonS3, upload: &str, query: &[(&str, &str)]) -> String {
    scene.query(client, Method::GET, "d/parts", &[&[("uploadId", upload)][..], query].concat())
}

fn uploads(scene: &S3Scene, client: &AmazonS3, query: &[(&str, &str)]) -> String {
    scene.query(client, Method::GET, "", &[&[("uploads", "")][..], query].concat())
}

/// A client that may read, once that is known.
fn reader(scene: &S3Scene) -> AmazonS3 {
    scene.bucket.put_text("k", "open");
    let client = scene.client_of(&scene.keys.add("reader", "team-a"));
    eventually("the new key is known", SOON, || scene.run(client.head(&at("k"))).is_ok());
    client
}

#[test]
fn an_upload_is_gone_on_with_by_what_is_told_of_its_parts() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let (client, path) = (scene.client(), at("d/parts"));
    let upload = scene.run(client.create_multipart(&path)).unwrap();
    let nothing = good(parts(&scene, &client, &upload, &[]));
    assert_eq!((texts(&nothing, "PartNumber").len(), text(&nothing, "IsTruncated").as_str()), (0, "false"));
    let put = |index: usize, letter, count| {
        let sent = scene.run(client.put_part(&path, &upload, index, letters(letter, count)));
        sent.unwrap().content_id
    };
    let third = put(2, b'c', 3);
    let (first, _, second) = (put(0, b'a', PART), put(1, b'x', 10), put(1, b'b', PART));

    let all = good(parts(&scene, &client, &upload, &[]));
    assert_eq!(texts(&all, "PartNumber"), ["1", "2", "3"]);
    assert_eq!(texts(&all, "ETag"), [first, second, third.clone()], "as they were told when they were sent");
    assert_eq!(texts(&all, "Size"), [PART.to_string(), PART.to_string(), "3".to_owned()]);
    assert_eq!(texts(&all, "LastModified").len(), 3, "{all}");
    for (name, expected) in [
        ("Bucket", S3Scene::BUCKET),
        ("Key", "d/parts"),
        ("UploadId", upload.as_str()),
        ("IsTruncated", "false"),
        ("MaxParts", "1000"),
        ("PartNumberMarker", "0"),
        ("NextPartNumberMarker", "3"),
    ] {
        assert_eq!(text(&all, name), expected, "{name}");
    }
    let some = good(parts(&scene, &client, &upload, &[("max-parts", "2")]));
    assert_eq!((texts(&some, "PartNumber"), text(&some, "IsTruncated")), (vec!["1".into(), "2".into()], "true".into()));
    assert_eq!(text(&some, "NextPartNumberMarker"), "2");
    let rest = good(parts(&scene, &client, &upload, &[("max-parts", "2"), ("part-number-marker", "2")]));
    assert_eq!((texts(&rest, "ETag"), text(&rest, "IsTruncated")), (vec![third], "false".into()));
    for wrong in [("max-parts", "-1"), ("part-number-marker", "-1")] {
        assert_s3_refused(&parts(&scene, &client, &upload, &[wrong]), 400, "InvalidArgument");
    }

    // A part that another program sends to the store itself is one of them.
    let (_, at_origin) = upload.split_once(':').expect("what the origin calls it");
    let sent = scene.run(scene.origin().put_part(&path, &at_origin.to_owned(), 2, letters(b'd', 4)));
    sent.unwrap();
    let tags = texts(&good(parts(&scene, &client, &upload, &[])), "ETag");
    let listed = tags.into_iter().map(|content_id| PartId { content_id }).collect();
    scene.run(client.complete_multipart(&path, &upload, listed)).unwrap();
    let whole = [vec![b'a'; PART], vec![b'b'; PART], vec![b'd'; 4]].concat();
    assert!(scene.bucket.object("d/parts") == whole && scene.read("d/parts") == whole);
    assert_s3_refused(&parts(&scene, &client, &upload, &[]), 404, "NoSuchUpload");
}

#[test]
fn of_uploads_only_who_may_write_is_told() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let (client, reader) = (scene.client(), reader(&scene));
    let upload = scene.run(client.create_multipart(&at("d/parts"))).unwrap();
    assert_s3_refused(&parts(&scene, &reader, &upload, &[]), 403, "AccessDenied");
    assert_s3_refused(&uploads(&scene, &reader, &[]), 403, "AccessDenied");
    assert_s3_refused(&parts(&scene, &client, "1:none", &[]), 404, "NoSuchUpload");
    let other = scene.query(&client, Method::GET, "d/other", &[("uploadId", upload.as_str())]);
    assert_s3_refused(&other, 404, "NoSuchUpload");
    assert_eq!(texts(&good(parts(&scene, &client, &upload, &[])), "PartNumber").len(), 0);
    scene.run(client.abort_multipart(&at("d/parts"), &upload)).unwrap();
    assert_s3_refused(&parts(&scene, &client, &upload, &[]), 404, "NoSuchUpload");
}

#[test]
fn uploads_under_way_are_told_in_pages_and_given_up_by_what_they_are_called_there() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let client = scene.client();
    let list = |query: &[(&str, &str)]| good(uploads(&scene, &client, query));
    assert_eq!((texts(&list(&[]), "Key").len(), text(&list(&[]), "IsTruncated").as_str()), (0, "false"));
    let keys = ["a", "d/x", "d/x", "d/y", "e f&g"];
    for key in keys {
        scene.run(client.create_multipart(&at(key))).unwrap();
    }
    // One that another program began at the store itself.
    scene.run(scene.origin().create_multipart(&at("d/z"))).unwrap();
    let keys = [&keys[..4], &["d/z"], &keys[4..]].concat();

    let all = list(&[]);
    assert_eq!(texts(&all, "Key"), keys);
    assert_eq!((texts(&all, "Initiated").len(), text(&all, "MaxUploads").as_str()), (6, "1000"), "{all}");
    let ids = texts(&all, "UploadId");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 6, "{ids:?}");
    assert_eq!(texts(&list(&[("encoding-type", "url")]), "Key").last().unwrap(), "e%20f%26g");
    assert_eq!(texts(&list(&[("prefix", "d/x")]), "Key"), ["d/x", "d/x"]);
    assert_eq!(texts(&list(&[("prefix", "d/")]), "Key"), ["d/x", "d/x", "d/y", "d/z"]);
    assert_eq!(texts(&list(&[("prefix", "none/x")]), "Key").len(), 0);
    let grouped = list(&[("delimiter", "/")]);
    assert_eq!((texts(&grouped, "Key"), text(&grouped, "Prefix")), (vec!["a".into(), "e f&g".into()], "d/".into()));

    for (most, delimiter) in [("1", ""), ("2", ""), ("5", ""), ("1", "/"), ("2", "/")] {
        let (mut found, mut marker) = (Vec::new(), (String::new(), String::new()));
        loop {
            let (key, upload) = (marker.0.as_str(), marker.1.as_str());
            let after = [("key-marker", key), ("upload-id-marker", upload)];
            let page = list(&[&[("max-uploads", most), ("delimiter", delimiter)][..], &after[..]].concat());
            found.extend(texts(&page, "UploadId"));
            found.extend(texts(&page, "Prefix"));
            if text(&page, "IsTruncated") == "false" {
                break;
            }
            marker = (text(&page, "NextKeyMarker"), texts(&page, "NextUploadIdMarker").pop().unwrap_or_default());
        }
        match delimiter {
            "" => assert_eq!(found, ids, "in pages of {most}"),
            _ => assert_eq!(found, [ids[0].as_str(), "d/", &ids[5]], "in pages of {most}"),
        }
    }
    let none = list(&[("max-uploads", "0")]);
    assert_eq!((texts(&none, "Key").len(), text(&none, "IsTruncated").as_str()), (0, "false"));
    assert_s3_refused(&uploads(&scene, &client, &[("max-uploads", "-1")]), 400, "InvalidArgument");

    for (key, id) in texts(&all, "Key").iter().zip(&ids) {
        scene.run(client.abort_multipart(&at(key), id)).unwrap();
    }
    assert_eq!((texts(&list(&[]), "Key").len(), scene.bucket.server().uploads().len()), (0, 0));
}

#[test]
fn a_part_of_an_object_is_read_by_its_number() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    // What is remembered is believed for long.
    let scene = S3Scene::with(&["metadata.ttl=1h"]);
    let client = scene.client();
    scene.run(async {
        let mut upload = client.put_multipart(&at("k")).await.unwrap();
        for (letter, count) in [(b'a', PART), (b'b', PART + 1), (b'c', 2)] {
            upload.put_part(letters(letter, count)).await.unwrap();
        }
        upload.complete().await.unwrap();
    });
    let tag = scene.run(scene.origin().head(&at("k"))).unwrap().e_tag.unwrap();
    if !tag.contains("-3") {
        return eprintln!("the file system keeps no extended attributes, and so the origin nothing of parts");
    }
    let of = |method, number: &str| scene.query(&client, method, "k", &[("partNumber", number)]);
    let (second, end, size) = (PART, 2 * PART + 1, 2 * PART + 3);
    for (number, letter, start, end) in [("1", "a", 0, second), ("2", "b", second, end), ("3", "c", end, size)] {
        for method in [Method::GET, Method::HEAD] {
            let answer = of(method.clone(), number);
            let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
            assert_eq!(s3_status(&answer), 206, "{method} {number}: {head}");
            for line in [
                format!("content-range: bytes {start}-{}/{size}", end - 1),
                format!("content-length: {}", end - start),
                "x-amz-mp-parts-count: 3".to_owned(),
            ] {
                assert!(head.lines().any(|told| told == line), "{method} {number}: {line} is not in {head}");
            }
            let expected = if method == Method::GET { letter.repeat(end - start) } else { String::new() };
            assert!(body == expected, "{method} {number}: {} bytes", body.len());
        }
    }
    assert_s3_refused(&of(Method::GET, "4"), 416, "InvalidPartNumber");
    assert_s3_refused(&of(Method::GET, "0"), 400, "InvalidArgument");
    assert_s3_refused(&of(Method::GET, "10001"), 400, "InvalidArgument");
    assert_eq!(s3_status(&of(Method::HEAD, "4")), 416);

    // It is another one meanwhile, of one part.
    scene.bucket.put_text("k", "open");
    let answer = of(Method::GET, "1");
    assert!(s3_status(&answer) == 206 && answer.ends_with("\r\n\r\nopen"), "{answer}");
    assert!(answer.contains("content-range: bytes 0-3/4\r\n") && !answer.contains("parts-count"), "{answer}");
    assert_s3_refused(&of(Method::GET, "2"), 416, "InvalidPartNumber");
}
