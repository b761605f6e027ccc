//! What a worker tells of uploads in parts, and of files that were made by them: what the origin says then, and nothing that it
//! remembers.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::*;
use forebay_origin::{FakeOrigin, ListPage, Origin, OriginCounts};
use forebay_transport::message::{Change, ChangeReply, PartReply, PartsReply, UploadRequest, UploadsReply};
use forebay_transport::{Op, Request};
use forebay_types::{
    Attr, Failure, FailureKind, FilePart, FileVersion, PartPage, PendingUpload, UploadMarker, UploadPage,
};
use forebay_worker::Worker;

async fn changes(worker: &Worker, change: Change) -> Result<bytes::Bytes, Failure> {
    Ok(ask(worker, Request::on_path(Op::Change, change.encode(), SECOND)).await?.body)
}

async fn begin(worker: &Worker, name: &str) -> String {
    let begun = changes(worker, Change::Begin { path: name.into() }).await.unwrap();
    ChangeReply::decode(&begun).unwrap().token
}

async fn send(worker: &Worker, name: &str, upload: &str, number: u32, length: usize) -> String {
    let part = Some((upload.to_owned(), number));
    let sent = UploadRequest { path: name.into(), part, only_new: false, bytes: pattern(length, 1).into() };
    ChangeReply::decode(&ask(worker, sent.request(SECOND)).await.unwrap().body).unwrap().token
}

async fn parts(worker: &Worker, name: &str, upload: &str, after: u32, max: u32) -> Result<PartPage, Failure> {
    let asked = Change::Parts { path: name.into(), upload: upload.to_owned(), after, max };
    Ok(PartsReply::decode(&changes(worker, asked).await?).unwrap().0)
}

async fn uploads(
    worker: &Worker,
    directory: &str,
    prefix: &str,
    after: Option<UploadMarker>,
    max: u32,
) -> Result<UploadPage, Failure> {
    let after = after.map(|after| (after.path, after.upload));
    let asked = Change::Uploads { path: directory.into(), prefix: prefix.into(), after, max };
    Ok(UploadsReply::decode(&changes(worker, asked).await?).unwrap().0)
}

fn named(page: &UploadPage) -> Vec<(String, &str)> {
    let name = |pending: &PendingUpload| String::from_utf8_lossy(&pending.path).into_owned();
    page.uploads.iter().map(|pending| (name(pending), pending.upload.as_str())).collect()
}

#[tokio::test]
async fn parts_are_told_in_pages_with_the_tags_by_which_an_upload_is_completed() {
    let origin = origin();
    let worker = worker(&origin).await;
    let upload = begin(&worker, "/s3/d/f").await;
    let mut tags = Vec::new();
    for number in 1..=3 {
        tags.push(send(&worker, "/s3/d/f", &upload, number, 10 * number as usize).await);
    }
    let told = async |after, max| {
        let page = parts(&worker, "/s3/d/f", &upload, after, max).await.unwrap();
        let found: Vec<_> = page.parts.into_iter().map(|part| (part.number, part.tag, part.size)).collect();
        (found, page.has_more)
    };
    let all: Vec<_> = (1..=3u32).zip(tags.clone()).map(|(number, tag)| (number, tag, 10 * u64::from(number))).collect();
    assert_eq!(told(0, 1000).await, (all.clone(), false));
    assert_eq!(told(0, 2).await, (all[..2].to_vec(), true));
    assert_eq!(told(2, 2).await, (all[2..].to_vec(), false));
    assert_eq!(told(0, 0).await, (all[..1].to_vec(), true), "one is asked for at least");
    let other = common::worker(&origin).await;
    let again = send(&other, "/s3/d/f", &upload, 2, 7).await;
    assert_eq!(told(1, 1).await, (vec![(2, again, 7)], true));
    for (name, upload, kind) in [
        ("/s3/d/f", "another", FailureKind::NotFound),
        ("/s3/d/g", &upload, FailureKind::NotFound),
        ("/s3/d/f", "", FailureKind::InvalidArgument),
    ] {
        assert_eq!(parts(&worker, name, upload, 0, 10).await.unwrap_err().kind(), kind, "{name} {upload}");
    }
}

#[tokio::test]
async fn uploads_are_told_by_their_paths_below_the_directory_that_is_asked_about() {
    let origin = origin();
    let worker = worker(&origin).await;
    let mut begun = Vec::new();
    for name in ["a", "d/a", "d/ab/c", "d/b", "d/b", "e"] {
        begun.push(begin(&worker, &format!("/s3/{name}")).await);
    }
    let of = |at: usize, name: &str| (name.to_owned(), &*begun[at]);
    let all = uploads(&worker, "/s3", "", None, 100).await.unwrap();
    assert_eq!((named(&all).len(), all.next.clone()), (6, None));
    let below = uploads(&worker, "/s3/d", "", None, 100).await.unwrap();
    assert_eq!(named(&below), [of(1, "a"), of(2, "ab/c"), of(3, "b"), of(4, "b")]);
    let some = uploads(&worker, "/s3/d", "a", None, 100).await.unwrap();
    assert_eq!(named(&some), [of(1, "a"), of(2, "ab/c")]);
    assert_eq!(named(&uploads(&worker, "/s3", "d/ab", None, 100).await.unwrap()), [of(2, "d/ab/c")]);
    assert_eq!(uploads(&worker, "/s3/none", "", None, 100).await, Ok(UploadPage::default()));
    // Each page ends below the same directory.
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = uploads(&worker, "/s3/d", "", after, 1).await.unwrap();
        found.extend(page.uploads);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, below.uploads);
    let passed = Some(UploadMarker { path: b"ab/c".to_vec(), upload: String::new() });
    let rest = uploads(&worker, "/s3/d", "", passed, 100).await.unwrap();
    assert_eq!(named(&rest), [of(3, "b"), of(4, "b")]);
}

#[tokio::test]
async fn uploads_of_several_mounts_are_asked_for_by_themselves_and_none_is_left_out_in_silence() {
    let (outer, inner) = (Arc::new(FakeOrigin::new("fake://outer")), Arc::new(FakeOrigin::new("fake://inner")));
    let worker = worker(&outer).await;
    worker.set_namespace(namespace(&[("/a", &outer), ("/a/in/ner", &inner)])).await;
    let (of_outer, of_inner) = (begin(&worker, "/a/f").await, begin(&worker, "/a/in/ner/f").await);
    for (directory, prefix) in [("/a", ""), ("/a", "in"), ("/a", "in/ner/f"), ("/a/in", ""), ("/", ""), ("/", "a/f")] {
        let refused = uploads(&worker, directory, prefix, None, 10).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Unsupported, "{directory} {prefix}: {refused}");
        assert!(refused.message().contains("mounts lie below"), "{refused}");
    }
    let found = uploads(&worker, "/a", "f", None, 10).await.unwrap();
    assert_eq!(named(&found), [("f".to_owned(), &*of_outer)]);
    let found = uploads(&worker, "/a/in/ner", "", None, 10).await.unwrap();
    assert_eq!(named(&found), [("f".to_owned(), &*of_inner)]);
    for (directory, prefix) in [("/", "b"), ("/a/in", "x"), ("/a", "inn")] {
        assert_eq!(
            uploads(&worker, directory, prefix, None, 10).await,
            Ok(UploadPage::default()),
            "{directory} {prefix}"
        );
    }
    assert_eq!(uploads(&worker, "/no/ne", "", None, 10).await.unwrap_err().kind(), FailureKind::NotFound);
    assert_eq!(uploads(&worker, "none", "", None, 10).await.unwrap_err().kind(), FailureKind::InvalidArgument);
}

/// An origin whose files have two parts of ten bytes.
struct InParts(FakeOrigin);

#[async_trait::async_trait]
impl Origin for InParts {
    fn url(&self) -> &Arc<str> {
        self.0.url()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.0.stat(path).await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        self.0.list(path, token, max).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        self.0.read(version, range, into).await
    }

    async fn part(&self, version: &FileVersion, number: u32) -> Result<Option<FilePart>, Failure> {
        if self.0.version(&*version.path).as_ref() != Some(version) {
            return Err(Failure::new(FailureKind::VersionChanged, "it was replaced"));
        }
        let end = 10 * u64::from(number);
        Ok((number <= 2).then(|| FilePart { range: end - 10..end, count: 2 }))
    }

    fn counts(&self) -> OriginCounts {
        Origin::counts(&self.0)
    }
}

#[tokio::test]
async fn where_a_part_lies_is_told_of_the_version_that_is_asked_about_and_of_no_other() {
    let origin = Arc::new(InParts(FakeOrigin::new("fake://parts")));
    let version = origin.0.put("f", pattern(20, 1));
    let worker = worker(&common::origin()).await;
    let mount = (path("/parts"), origin.clone() as Arc<dyn Origin>);
    worker.set_namespace(forebay_worker::Namespace::new([mount]).unwrap()).await;
    let part = async |version: &FileVersion, number| {
        let request = Request::on_block(Op::Part, block(version, 0), number, 0, SECOND);
        let answer = ask(&worker, request.with_body(version.encode().into())).await?;
        Ok::<_, Failure>(PartReply::decode(&answer.body).unwrap().0)
    };
    assert_eq!(stat(&worker, "/parts/f").await.unwrap().attr.version(), Some(&version));
    assert_eq!(part(&version, 1).await, Ok(Some(FilePart { range: 0..10, count: 2 })));
    assert_eq!(part(&version, 2).await, Ok(Some(FilePart { range: 10..20, count: 2 })));
    assert_eq!(part(&version, 3).await, Ok(None));
    for number in [0, 10_001, u32::MAX] {
        assert_eq!(part(&version, number).await.unwrap_err().kind(), FailureKind::InvalidArgument, "{number}");
    }
    let new = origin.0.put("f", pattern(20, 2));
    assert_eq!(part(&version, 1).await.unwrap_err().kind(), FailureKind::VersionChanged);
    assert_eq!(stat(&worker, "/parts/f").await.unwrap().attr.version(), Some(&new), "what was remembered is forgotten");
    assert_eq!(part(&new, 1).await, Ok(Some(FilePart { range: 0..10, count: 2 })));
    // Not of an origin that says nothing, nor of one that is not mounted.
    let silent = FakeOrigin::new("fake://silent");
    let of_silent = silent.put("f", pattern(20, 1));
    worker.set_namespace(namespace(&[("/silent", &Arc::new(silent))])).await;
    assert_eq!(part(&of_silent, 1).await.unwrap_err().kind(), FailureKind::Unsupported);
    assert_eq!(part(&new, 1).await.unwrap_err().kind(), FailureKind::Unavailable);
}
