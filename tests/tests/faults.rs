//! What goes wrong between a cache and its object store: a reader gets the right bytes, or an error that says what to do,
//! in a time that is bounded.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_e2e::mapping::Mapping;
use forebay_e2e::reading::{self, DirectFile, read_while};
use forebay_e2e::{Bucket, Mount, Setup, Tree, Worker, eventually};
use forebay_testkit::{CannedRequest, CannedResponse, CannedServer, DataSet, Fault};
use rustix::io::Errno;

/// When something does not happen: many times what it takes.
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// Attempts that are given up soon, and not soon enough that a busy machine has each of them given up.
const IMPATIENT: [&str; 4] = [
    "origin.request_timeout=2s",
    "origin.connect_timeout=2s",
    "origin.retry.deadline=50s",
    "origin.retry.max_attempts=20",
];

fn errno_of(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn a_server_that_stops_and_returns_costs_readers_time_and_no_error() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 64 * MIB);
    tree.put_into(&bucket, "");
    // Refused connections fail at once, so that the deadline and not the number of attempts is to be the bound.
    let mount = Setup::of(&bucket).options(&IMPATIENT).option("origin.retry.max_attempts=100").up(&bucket);
    let file = tree.file("file00");
    read_while(&mount.root(), file, 4, |progress| {
        for _ in 0..3 {
            let target = progress.reads() + 20;
            eventually("readers go on", SOON, || progress.reads() >= target);
            bucket.proxy().stop();
            // The readers run out of what is cached, and wait.
            let gone = Instant::now();
            eventually("the server was gone for a while", SOON, || gone.elapsed() > Duration::from_millis(500));
            bucket.proxy().resume().unwrap();
        }
        let target = progress.reads() + 20;
        eventually("readers go on", SOON, || progress.reads() >= target);
    });
    reading::verify(&mount.path("file00"), file.data, file.size);
}

#[test]
fn answers_that_stall_break_or_refuse_are_asked_for_again() {
    let bucket = Bucket::new();
    let faults = [
        ("a stall", 2, Fault::Stall { after: 1000 }),
        ("a stall before the first byte", 1, Fault::Stall { after: 0 }),
        ("internal errors", 3, Fault::Status(500)),
        ("a burst of SlowDown", 4, Fault::Status(503)),
        ("too many requests", 2, Fault::Status(429)),
        ("short bodies", 3, Fault::Short { after: 40_000 }),
        ("resets", 3, Fault::Reset { after: 70_000 }),
        ("resets at once", 2, Fault::Reset { after: 0 }),
    ];
    let tree = Tree::of_equal_files(faults.len(), 3 * MIB + 5);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
    tree.verify_names(&mount.root());
    for (file, (what, count, fault)) in tree.files.iter().zip(faults) {
        bucket.proxy().inject_reads(count, fault);
        let started = Instant::now();
        reading::verify(&mount.path(&file.path), file.data, file.size);
        assert!(started.elapsed() < SOON, "{what}: {:?}", started.elapsed());
        bucket.proxy().heal();
    }
    assert_eq!(mount.counter("/worker/failures"), 0);
}

#[test]
fn a_listing_and_a_stat_are_asked_for_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(10, 100);
    tree.put_into(&bucket, "");
    for fault in [Fault::Status(500), Fault::Status(503), Fault::Reset { after: 0 }, Fault::Short { after: 100 }] {
        bucket.proxy().inject(2, fault);
        let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
        bucket.proxy().inject(2, fault);
        tree.verify_names(&mount.root());
        tree.verify(&mount.root());
        bucket.proxy().heal();
    }
}

#[test]
fn an_origin_that_stays_broken_is_an_error_in_time_and_only_for_as_long_as_it_is() {
    let bucket = Bucket::new();
    let faults = [Fault::Status(500), Fault::Status(503), Fault::Stall { after: 100 }, Fault::Short { after: 100 }];
    // A file for each: what the kernel still asks for when a read has failed arrives once the origin is well.
    let tree = Tree::of_equal_files(faults.len(), MIB);
    tree.put_into(&bucket, "");
    // Several attempts: on a busy machine one of a bucket that is well may take too long.
    let bounds = ["origin.request_timeout=3s", "origin.connect_timeout=3s", "origin.retry.deadline=12s"];
    let mount = Setup::of(&bucket).options(&bounds).up(&bucket);
    for (index, fault) in faults.into_iter().enumerate() {
        let path = mount.path(&format!("file{index:02}"));
        assert_eq!(path.metadata().unwrap().len(), MIB);
        bucket.proxy().inject_reads(1000, fault);
        let started = Instant::now();
        let error = reading::read_error(&path);
        assert!(started.elapsed() < SOON, "{fault:?}: {error} after {:?}", started.elapsed());
        assert!(matches!(errno_of(&error), Some(Errno::IO | Errno::TIMEDOUT)), "{fault:?}: {error}");
        bucket.proxy().heal();
    }
    tree.verify(&mount.root());
    assert!(mount.log_text().contains("file00"), "the log names the file: {}", mount.log_text());
}

#[test]
fn a_refused_object_is_a_permission_error() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, MIB);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).up(&bucket);
    let path = mount.path("file00");
    assert_eq!(path.metadata().unwrap().len(), MIB);
    bucket.proxy().inject_reads(1000, Fault::Status(403));
    let error = reading::read_error(&path);
    assert_eq!(errno_of(&error), Some(Errno::ACCESS), "{error}");
    bucket.proxy().heal();
    let file = tree.file("file00");
    reading::verify(&path, file.data, file.size);
}

const OLD: DataSet = DataSet::new(71);
const NEW: DataSet = DataSet::new(72);
const SIZE: u64 = 64 * MIB;

/// A bucket with one object, and a mount that reads ahead little, so that the far end of it is not cached.
struct OneObject {
    mount: Mount,
    /// Of its own process, or within the mount's.
    _worker: Option<Worker>,
    bucket: Bucket,
}

impl OneObject {
    /// By `forebay up`, and by `forebay mount` of a worker.
    fn mounted_both_ways() -> [Self; 2] {
        Self::mounted_both_ways_with(&[])
    }

    /// The same with more `options`.
    fn mounted_both_ways_with(options: &[&str]) -> [Self; 2] {
        let little = ["client.prefetch.max_part_number=1", "origin.max_get_size=256KiB", "fuse.read_ahead=128KiB"];
        [true, false].map(|in_one_process| {
            let bucket = Bucket::new();
            bucket.put("object", OLD, SIZE);
            let setup = Setup::of(&bucket).options(&little).options(options);
            if in_one_process {
                return Self { mount: setup.up(&bucket), _worker: None, bucket };
            }
            let worker = setup.worker(&bucket);
            let mount = Setup::of_user().options(&little).options(options).mount([&worker]);
            Self { mount, _worker: Some(worker), bucket }
        })
    }

    fn path(&self) -> PathBuf {
        self.mount.path("object")
    }
}

/// Reads the whole object piece by piece: all of what can be read must be of the old version. The first error, which there must be.
fn read_old_version(read: impl FnMut(u64, usize) -> std::io::Result<Vec<u8>>) -> std::io::Error {
    read_what_is_left(read).expect("the far end was not cached, so it cannot be read any more")
}

/// The same where all of it may be cached: the first error.
fn read_what_is_left(mut read: impl FnMut(u64, usize) -> std::io::Result<Vec<u8>>) -> Option<std::io::Error> {
    let mut first = None;
    for offset in (0..SIZE).step_by(MIB as usize) {
        match read(offset, 64 << 10) {
            Ok(bytes) => {
                assert_eq!(bytes.len(), 64 << 10);
                assert_eq!(OLD.first_difference(offset, &bytes), None, "not the bytes of the version that was opened");
            }
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    first
}

fn verify_new_version(path: &Path, size: u64) {
    eventually("a new open finds the new version", SOON, || path.metadata().unwrap().len() == size);
    reading::verify(path, NEW, size);
    reading::verify_direct(path, NEW, size);
    let mapping = Mapping::of(path, size as usize).unwrap();
    let bytes = mapping.read(0..(2 * MIB) as usize).unwrap();
    assert_eq!(NEW.first_difference(0, &bytes), None);
}

#[test]
fn a_direct_reader_of_an_object_that_is_replaced_sees_one_version_or_estale() {
    for case in OneObject::mounted_both_ways() {
        let open = DirectFile::open(&case.path()).unwrap();
        assert_eq!(OLD.first_difference(0, &open.read_at(0, 64 << 10).unwrap()), None);
        case.bucket.put("object", NEW, SIZE);
        let error = read_old_version(|offset, length| open.read_at(offset, length));
        assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
        verify_new_version(&case.path(), SIZE);
        let error = read_old_version(|offset, length| open.read_at(offset, length));
        assert_eq!(errno_of(&error), Some(Errno::STALE), "the old handle stays with its version: {error}");
    }
}

#[test]
fn a_buffered_reader_of_an_object_that_is_replaced_sees_one_version_or_estale() {
    for case in OneObject::mounted_both_ways() {
        let open = File::open(case.path()).unwrap();
        let read = |offset: u64, length: usize| {
            let mut bytes = vec![0; length];
            open.read_exact_at(&mut bytes, offset).map(|()| bytes)
        };
        // Part of it lies in the kernel's page cache when it is replaced.
        assert_eq!(OLD.first_difference(0, &read(0, 1 << 20).unwrap()), None);
        case.bucket.put("object", NEW, SIZE);
        let error = read_old_version(read);
        assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
        verify_new_version(&case.path(), SIZE);
    }
}

#[test]
fn a_mapping_of_an_object_that_is_replaced_shows_one_version_or_faults() {
    let served = OneObject::mounted_both_ways_with(&["client.local.size=0"]).map(|case| (case, false));
    // What is mapped is fetched as a whole, and may be there before it is replaced.
    let materialised = OneObject::mounted_both_ways_with(&["metadata.ttl=5s"]).map(|case| (case, true));
    for (case, may_be_whole) in served.into_iter().chain(materialised) {
        let mapping = Mapping::of(&case.path(), SIZE as usize).unwrap();
        assert_eq!(OLD.first_difference(0, &mapping.read(0..1 << 20).unwrap()), None);
        case.bucket.put("object", NEW, SIZE);
        let error = read_what_is_left(|offset, length| mapping.read(offset as usize..offset as usize + length));
        let is_right = error.as_ref().map_or(may_be_whole, |error| errno_of(error) == Some(Errno::FAULT));
        assert!(is_right, "materialised: {may_be_whole}; {error:?}");
        if error.is_none() {
            // Nothing but its age tells that it was replaced.
            let start = || reading::read_at(&case.path(), 0, 4096);
            let is_new = || start().is_ok_and(|bytes| NEW.first_difference(0, &bytes).is_none());
            eventually("a new open finds the new version", SOON, is_new);
        }
        verify_new_version(&case.path(), SIZE);
        let first = mapping.read(0..4096);
        assert!(first.is_err() || first.is_ok_and(|bytes| OLD.first_difference(0, &bytes).is_none()));
    }
}

#[test]
fn an_object_that_is_replaced_by_a_shorter_or_longer_one_is_estale_and_then_the_new_one() {
    for size in [0, 100, SIZE / 2 + 1, SIZE + MIB] {
        for case in OneObject::mounted_both_ways() {
            let open = DirectFile::open(&case.path()).unwrap();
            open.read_at(0, 64 << 10).unwrap();
            case.bucket.put("object", NEW, size);
            let error = read_old_version(|offset, length| open.read_at(offset, length));
            assert_eq!(errno_of(&error), Some(Errno::STALE), "{size}: {error}");
            eventually("the new size shows", SOON, || case.path().metadata().unwrap().len() == size);
            reading::verify(&case.path(), NEW, size);
        }
    }
}

#[test]
fn an_object_that_is_deleted_while_it_is_open_is_estale_and_then_gone() {
    for case in OneObject::mounted_both_ways() {
        let open = DirectFile::open(&case.path()).unwrap();
        open.read_at(0, 64 << 10).unwrap();
        case.bucket.remove("object");
        let error = read_old_version(|offset, length| open.read_at(offset, length));
        assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
        eventually("it is gone", SOON, || !case.path().exists());
        assert_eq!(File::open(case.path()).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
}

#[test]
fn readers_while_an_object_is_replaced_again_and_again_never_see_a_mix() {
    let bucket = Bucket::new();
    let size = 2 * MIB;
    let version = |number: u64| DataSet::new(5000 + number);
    bucket.put("object", version(0), size);
    let mount = Setup::of(&bucket).option("metadata.ttl=0").up(&bucket);
    let path = mount.path("object");
    let (mut seen, mut refused) = (std::collections::BTreeSet::new(), 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..60 {
                bucket.put("object", version(number), size);
                std::thread::yield_now();
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        loop {
            let last = done.load(std::sync::atomic::Ordering::Acquire);
            match std::fs::read(&path) {
                Ok(bytes) => {
                    assert_eq!(bytes.len() as u64, size);
                    let whole = (0..60).find(|number| version(*number).first_difference(0, &bytes[..64]).is_none());
                    let number = whole.expect("the start of some version");
                    assert_eq!(
                        version(number).first_difference(0, &bytes),
                        None,
                        "a mix of version {number} and another"
                    );
                    seen.insert(number);
                    if last {
                        break;
                    }
                }
                Err(error) => {
                    assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
                    refused += 1;
                    assert!(refused < 10_000, "nothing but ESTALE");
                }
            }
        }
    });
    assert!(seen.contains(&59), "after the last change, the last version is read: {seen:?}");
}

fn fails(setup: Setup, url: &str, code: i32, words: &[&str]) {
    let mut mount = setup.option("origin.retry.deadline=15s").prepare_up(url);
    let finished = mount.start();
    finished.failed(code, words);
    assert!(finished.stderr.contains("next: "), "it says what to do: {}", finished.stderr);
    assert!(finished.took < SOON, "{:?}", finished.took);
    assert!(!forebay_e2e::is_mounted(&mount.root()));
}

#[test]
fn up_says_what_is_wrong_with_the_bucket_or_the_credentials() {
    let bucket = Bucket::new();
    let endpoint = bucket.proxy().url();
    fails(Setup::of(&bucket), "s3://no-such-bucket", 2, &["s3://no-such-bucket", "no bucket", &endpoint]);
    let wrong_secret = Setup::of(&bucket).variable("AWS_SECRET_ACCESS_KEY", "wrong");
    fails(wrong_secret, &bucket.url(), 5, &["secret key", "AWS_ACCESS_KEY_ID"]);
    let wrong_key = Setup::of(&bucket).variable("AWS_ACCESS_KEY_ID", "nobody");
    fails(wrong_key, &bucket.url(), 5, &["access denied", "AWS_ACCESS_KEY_ID", "s3:ListBucket"]);
    // A port that nothing listens on stands for an instance without a role.
    let no_keys = Setup::default()
        .variable("AWS_ENDPOINT_URL", &endpoint)
        .variable("AWS_REGION", "us-east-1")
        .variable("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    fails(no_keys, &bucket.url(), 5, &["no credentials", "AWS_ACCESS_KEY_ID"]);
}

#[test]
fn up_says_which_region_the_bucket_is_in_and_that_the_clock_is_off() {
    let bucket = Bucket::new();
    let against = |answer: fn(&CannedRequest) -> CannedResponse, code: i32, words: &[&str]| {
        let server = CannedServer::start(answer).unwrap();
        fails(Setup::of(&bucket).variable("AWS_ENDPOINT_URL", &server.url()), "s3://data", code, words);
        assert!(server.requests() > 0);
    };
    let elsewhere = |_: &CannedRequest| {
        CannedResponse::s3_error(301, "PermanentRedirect", "use the other endpoint")
            .with("x-amz-bucket-region", "eu-west-3")
    };
    against(elsewhere, 2, &["eu-west-3", "us-east-1"]);
    let skewed = |_: &CannedRequest| {
        CannedResponse::s3_error(403, "RequestTimeTooSkewed", "too large a difference")
            .with("date", "Thu, 01 Jan 2032 00:00:00 GMT")
    };
    against(skewed, 5, &["clock", "2032"]);
    let denied = |_: &CannedRequest| CannedResponse::s3_error(403, "AccessDenied", "no");
    against(denied, 5, &["access denied", "s3:ListBucket"]);
    let unknown = |_: &CannedRequest| CannedResponse::s3_error(403, "InvalidAccessKeyId", "no such key");
    against(unknown, 5, &["access key", "is unknown to http://127.0.0.1"]);
    let nonsense = |_: &CannedRequest| CannedResponse::new(200, "<html>a web page</html>");
    against(nonsense, 4, &["s3://data"]);
}

#[test]
fn up_says_that_nobody_listens_at_the_endpoint() {
    let bucket = Bucket::new();
    let nobody = Setup::of(&bucket).variable("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    fails(nobody, "s3://data", 4, &["cannot connect", "http://127.0.0.1:1"]);
}
