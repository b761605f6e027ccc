//! Reads in place and through the HTTP client's buffers: the same bytes, the same checksums, the same failures.

use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_testkit::{CannedResponse, CannedServer, Fault};
use forebay_types::{FailureKind, FileVersion, SECTOR_SIZE, SectorChecksums, VersionTag};

use super::super::test_support::s3_origin;
use super::{DATA, SIZE, read, scene, version};
use crate::Origin;

fn hello() -> FileVersion {
    FileVersion {
        origin: "s3://bucket".into(),
        path: b"hello".as_slice().into(),
        size: 5,
        tag: VersionTag::Etag("\"e\"".into()),
    }
}

/// A server that gives this answer to each GET, and what the clients called themselves.
fn server(answer: impl Fn() -> CannedResponse + Send + Sync + 'static) -> (CannedServer, Arc<Mutex<Vec<String>>>) {
    let agents: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&agents);
    let server = CannedServer::start(move |request| {
        seen.lock().push(request.header("user-agent").to_owned());
        answer().with("etag", "\"e\"").with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
    });
    (server.unwrap(), agents)
}

fn partial(body: &str) -> CannedResponse {
    CannedResponse::new(206, body).with("content-range", "bytes 0-4/5")
}

#[tokio::test]
async fn objects_are_read_in_place_unless_that_is_switched_off() {
    let (server, agents) = server(|| partial("hello"));
    for in_place in [true, false] {
        let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |options| options.in_place = in_place);
        let mut into = [0; 5];
        let checksums = origin.read_checksummed(&hello(), 0..5, &mut into).await.unwrap();
        assert_eq!((&into, checksums), (b"hello", SectorChecksums::of(b"hello")));
        let agent = agents.lock().pop().unwrap();
        assert_eq!(agent.starts_with("forebay/"), in_place, "{agent}");
    }
}

#[tokio::test]
async fn a_body_of_another_length_is_no_answer() {
    for in_place in [true, false] {
        for (body, said) in [("hell", "4 bytes came of 5"), ("hello!", "more bytes came than the 5")] {
            let (server, _) = server(move || partial(body));
            let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |options| {
                (options.in_place, options.max_attempts) = (in_place, 1);
            });
            let failure = origin.read(&hello(), 0..5, &mut [0; 5]).await.unwrap_err();
            assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
            assert!(failure.message().contains(said), "{in_place}: {failure}");
        }
    }
}

#[tokio::test]
async fn a_server_that_knows_no_ranges_is_named() {
    for in_place in [true, false] {
        let (server, _) = server(|| CannedResponse::new(200, "hello"));
        let origin = s3_origin(&server.url(), "s3://bucket", ("a", "s"), |options| options.in_place = in_place);
        let failure = origin.read(&hello(), 0..5, &mut [0; 5]).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Unsupported, "{failure}");
        assert!(failure.message().contains("does not serve ranges"), "{failure}");
    }
}

#[tokio::test]
async fn the_checksums_are_those_of_the_bytes_wherever_a_read_begins() {
    for in_place in [true, false] {
        let scene = scene(|options| options.in_place = in_place);
        let version = version(&scene.origin).await;
        let sector = u64::from(SECTOR_SIZE);
        for range in [0..SIZE, 0..1, sector..3 * sector, 7..SIZE - 1, SIZE - sector..SIZE] {
            let mut into = vec![0; usize::try_from(range.end - range.start).unwrap()];
            let checksums = scene.origin.read_checksummed(&version, range.clone(), &mut into).await.unwrap();
            assert_eq!(DATA.first_difference(range.start, &into), None);
            assert!(checksums == SectorChecksums::of(&into), "{range:?}");
        }
    }
}

#[tokio::test]
async fn reads_through_the_http_client_are_tried_again_too() {
    let scene = scene(|options| {
        (options.in_place, options.max_attempts) = (false, 8);
        options.stall_timeout = Duration::from_secs(1);
    });
    let version = version(&scene.origin).await;
    for fault in [
        Fault::Short { after: 100_000 },
        Fault::Reset { after: 1 << 20 },
        Fault::Status(503),
        Fault::Stall { after: 1000 },
    ] {
        scene.proxy.inject_reads(1, fault);
        read(&scene.origin, &version).await.unwrap_or_else(|failure| panic!("{fault:?}: {failure}"));
    }
}
