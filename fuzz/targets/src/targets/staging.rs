//! The staging directory of a mount, as a crash leaves it, and drafts in it that another process gives.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::{Pool, Spans};
use forebay_staging::{
    Base, Draft, Remote, RetryOptions, StagedState, Staging, StagingOptions, adopt, drop_staged, is_in, retry, staged,
};
use forebay_types::{Attr, ByteSize, Failure, FailureKind, FileVersion, FsPath, VersionTag};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::input::{Input, Output};
use crate::support::{block_on, folder, pool};
use crate::targets::Seed;

/// The name of the one draft.
const ID: &str = "0123456789";
/// No staged file is longer, so that a record of a long one is what is wrong.
const LONGEST: u64 = 64 << 10;
/// What an upload may need: whoever needs more is refused.
const MEMORY: ByteSize = ByteSize::mib(1);

thread_local! {
    static POOL: Pool = pool(ByteSize::mib(16));
}

pub(super) mod staging_journal {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let length = u64::from(input.u16()) % (LONGEST + 1);
        let record = input.rest();
        let dir = folder();
        let path = |extension: &str| dir.path().join(format!("{ID}.{extension}"));
        fs::write(path("json"), record).expect("it takes a file");
        if flags & 1 == 0 {
            let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            fs::write(path("data"), data).expect("it takes a file");
        }
        let found = look(dir.path());
        assert_eq!(look(dir.path()), found, "looking changes nothing");
        if flags & 2 == 0 {
            let remote = Arc::new(Origin::default());
            let answer = block_on(retry(
                dir.path(),
                ID,
                Arc::clone(&remote) as Arc<dyn Remote>,
                RetryOptions { memory: MEMORY, on_progress: None },
            ));
            let is_left = path("data").exists();
            match answer {
                Ok(attr) => {
                    assert!(!is_left, "what was uploaded is not staged any more");
                    let made = remote.made.lock().clone();
                    let (_, size) = made.expect("there is an object");
                    assert_eq!(attr.version().map(|version| version.size), Some(size));
                }
                Err(_) => assert_eq!(is_left, flags & 1 == 0, "what was not uploaded stays staged"),
            }
        }
        let _ = block_on(drop_staged(dir.path(), ID, None));
        assert!(look(dir.path()).is_empty() || flags & 1 != 0);
    }

    fn look(dir: &Path) -> Vec<(String, FsPath, u64, StagedState, Option<String>)> {
        let all = staged(dir).expect("the folder can be read");
        all.into_iter().map(|one| (one.id, one.path, one.size, one.state, one.obstacle)).collect()
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let tag = VersionTag::Etag("\"1\"".into());
        let base = FileVersion { origin: "s3://b".into(), path: b"a".as_slice().into(), size: 5000, tag }.encode();
        let base: String = base.iter().map(|byte| format!("{byte:02x}")).collect();
        let record = |size: u64, exact: bool, base: &str, staged: &str, gone: &str, upload: &str| {
            format!(
                "{{\"format\":1,\"path\":\"/a\",\"path_hex\":\"2f61\",\"owner\":\"/mnt\",\"pid\":1,\"started\":1,\
                 \"boot\":\"x\",\"host\":\"y\",\"since\":1700000000000,\"error\":null,\"size\":{size},\"base\":{base},\
                 \"base_limit\":0,\"exact\":{exact},\"staged\":{staged},\"zeros\":[],\"gone\":{gone},\
                 \"schedule\":[[2,4096],[9998,65536]],\"upload\":{upload}}}"
            )
        };
        let seed =
            |flags: u8, length: u16, record: String| Output::default().u8(flags).u16(length).bytes(record).done();
        let upload = "{\"path_hex\":\"2f61\",\"name\":\"u1\",\"parts\":[[1,4096,\"t1\"]]}";
        vec![
            ("small", seed(0, 100, record(100, true, "null", "[[0,100]]", "[]", "null"))),
            ("rough", seed(0, 9000, record(0, false, "null", "[]", "[]", "null"))),
            ("over_a_base", seed(0, 5000, record(5000, true, &format!("\"{base}\""), "[[0,10]]", "[]", "null"))),
            ("rough_over_a_base", seed(0, 50, record(50, false, &format!("\"{base}\""), "[]", "[]", "null"))),
            ("begun", seed(0, 9000, record(9000, true, "null", "[[4096,9000]]", "[[0,4096]]", upload))),
            ("beyond_its_parts", seed(0, 100, record(10_000_000_000, true, "null", "[[0,100]]", "[]", "null"))),
            ("no_data", seed(1, 0, record(5, true, "null", "[]", "[]", "null"))),
            ("no_record", seed(0, 5, "{".to_owned())),
        ]
    }
}

pub(super) mod staging_handing {
    use super::*;

    /// The bytes are another file's.
    const OTHER_BYTES: u8 = 1;
    /// It becomes this process's own.
    const OWN: u8 = 2;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let length = u64::from(input.u16()) % (LONGEST + 1);
        let (passed, record) = (input.piece(), input.rest());
        let above = folder();
        let dir = above.path().join("staging");
        let options = StagingOptions {
            dir: dir.clone(),
            size: ByteSize::gib(1),
            part_size: ByteSize::mib(5),
            memory: ByteSize::mib(64),
            timeout: Duration::ZERO,
            quiet: Duration::from_secs(3600),
            owner: "/mnt".to_owned(),
        };
        let runtime = block_on(async { Handle::current() });
        let staging = Staging::open(options, Arc::new(Origin::default()), runtime).expect("the folder takes files");
        let path = |extension: &str| dir.join(format!("{ID}.{extension}"));
        fs::write(path("json"), record).expect("it takes a file");
        fs::write(path("data"), (0..length).map(|at| at as u8).collect::<Vec<_>>()).expect("it takes a file");
        // Of the process that gives it.
        let given = File::options().read(true).write(true).open(path("data")).expect("it is there");
        given.lock().expect("nobody else has it");
        let bytes = match flags & OTHER_BYTES {
            0 => given.try_clone().expect("there are descriptors"),
            _ => File::open("/dev/null").expect("it is there"),
        };
        let bytes = OwnedFd::from(bytes);
        let here = is_in(&dir, passed, &bytes);
        match adopt(&staging, passed, bytes) {
            Ok(draft) => {
                assert!(here.is_ok() && flags & OTHER_BYTES == 0, "{here:?}");
                is_as_told(&draft, passed, record);
                let (is_dirty, is_own) = (draft.is_dirty(), flags & OWN != 0);
                if is_own {
                    draft.own();
                }
                drop(draft);
                assert!(is_own || fs::read(path("json")).is_ok_and(|left| left == record), "it may be another's again");
                assert!(path("data").exists() || (is_own && !is_dirty), "what was written is gone");
            }
            Err(failure) => assert_eq!(failure.kind(), FailureKind::Corrupt, "{failure}"),
        }
        block_on(staging.close());
    }

    /// What both said of it, each in its way.
    fn is_as_told(draft: &Draft, passed: &[u8], record: &[u8]) {
        let read = |text: &[u8]| serde_json::from_slice::<Value>(text);
        // What nobody looks for may be a number that is too large for all others.
        let (Ok(passed), Ok(record)) = (read(passed), read(record)) else { return };
        let path: String = draft.path().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        // With an upper or a lower case, and with a slash at its end or without.
        let said = record["path_hex"].as_str().unwrap_or_default().to_ascii_lowercase();
        assert!(said.strip_prefix(&path).is_some_and(|rest| ["", "2f"].contains(&rest)), "{said}");
        assert_eq!(record["size"].as_u64(), Some(draft.size()));
        // By names, or one after the other.
        let told = |name: &str, at: usize| {
            let value = if passed.is_array() { &passed[at] } else { &passed[name] };
            value.as_bool()
        };
        assert_eq!(told("dirty", 1), Some(draft.is_dirty()));
        assert_eq!(told("new", 2), Some(draft.is_new()));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let tag = VersionTag::Etag("\"1\"".into());
        let version = FileVersion { origin: "s3://b".into(), path: b"a".as_slice().into(), size: 5000, tag }.encode();
        let version: String = version.iter().map(|byte| format!("{byte:02x}")).collect();
        let passed = |id: &str, dirty: bool, base: &str, attr: &str| {
            format!(
                "{{\"id\":\"{id}\",\"dirty\":{dirty},\"new\":false,\"modified\":-5,\"base\":{base},\
                 \"attr\":{attr}}}"
            )
        };
        let record = |size: u64, staged: &str, schedule: &str, upload: &str| {
            format!(
                "{{\"format\":1,\"path\":\"/a\",\"path_hex\":\"2f61\",\"owner\":\"/mnt\",\"pid\":1,\"started\":1,\
                 \"boot\":\"x\",\"host\":\"y\",\"since\":1700000000000,\"error\":null,\"size\":{size},\"base\":null,\
                 \"base_limit\":0,\"exact\":true,\"staged\":{staged},\"zeros\":[],\"gone\":[],\
                 \"schedule\":{schedule},\"upload\":{upload}}}"
            )
        };
        let seed = |flags: u8, passed: &str, record: String| {
            Output::default().u8(flags).u16(9000).piece(passed).bytes(record).done()
        };
        let upload = "{\"path_hex\":\"2f61\",\"name\":\"u1\",\"parts\":[[1,4096,\"t1\"]]}";
        let steps = "[[2,4096],[9998,65536]]";
        let (dirty, whole) = (passed(ID, true, "null", "null"), || record(9000, "[[0,9000]]", steps, "null"));
        let attr = format!("{{\"version\":\"{version}\",\"modified_nanos\":7,\"replicas\":2,\"writable\":true}}");
        let synced = passed(ID, false, &format!("\"{version}\""), &attr);
        vec![
            ("dirty", seed(0, &dirty, whole())),
            ("dirty_and_own", seed(OWN, &dirty, whole())),
            ("synced_and_own", seed(OWN, &synced, whole())),
            ("begun", seed(0, &dirty, record(9000, "[[0,4096]]", steps, upload))),
            ("other_bytes", seed(OTHER_BYTES, &dirty, whole())),
            ("elsewhere", seed(0, &passed("../0123456789", true, "null", "null"), whole())),
            ("no_version", seed(0, &passed(ID, false, "\"0\"", "null"), whole())),
            ("many_parts", seed(0, &dirty, record(4_000_000_000, "[[0,4000000000]]", "[[4000000000,1]]", "null"))),
        ]
    }
}

/// An origin that takes everything and keeps no bytes.
#[derive(Default)]
struct Origin {
    numbers: AtomicU64,
    /// Of each upload, the length of each part.
    uploads: Mutex<HashMap<String, HashMap<String, u64>>>,
    made: Mutex<Option<(FsPath, u64)>>,
}

impl Origin {
    fn make(&self, path: &FsPath, size: u64) -> Attr {
        *self.made.lock() = Some((path.clone(), size));
        let tag = VersionTag::Etag("\"made\"".into());
        Attr::file(FileVersion { origin: "s3://b".into(), path: path.as_bytes()[1..].into(), size, tag })
    }
}

#[async_trait::async_trait]
impl Remote for Origin {
    async fn put(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure> {
        Ok(self.make(path, bytes.len() as u64))
    }

    async fn begin(&self, _path: &FsPath) -> Result<String, Failure> {
        let name = format!("upload-{}", self.numbers.fetch_add(1, Ordering::Relaxed));
        self.uploads.lock().insert(name.clone(), HashMap::new());
        Ok(name)
    }

    async fn part(&self, _path: &FsPath, upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        let mut uploads = self.uploads.lock();
        let gone = || Failure::new(FailureKind::NotFound, format!("there is no upload {upload}"));
        let tag = format!("{number}-{}", self.numbers.fetch_add(1, Ordering::Relaxed));
        uploads.get_mut(upload).ok_or_else(gone)?.insert(tag.clone(), bytes.len() as u64);
        Ok(tag)
    }

    async fn complete(&self, path: &FsPath, upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        let invalid = |what: &str| Failure::new(FailureKind::InvalidArgument, what.to_owned());
        let uploads = self.uploads.lock();
        let known = uploads.get(upload).ok_or_else(|| invalid("no such upload"))?;
        let lengths: Option<Vec<u64>> = parts.iter().map(|tag| known.get(tag).copied()).collect();
        let total: u64 = lengths.ok_or_else(|| invalid("no such part"))?.iter().sum();
        assert_eq!(total, size, "the parts make up the file");
        Ok(self.make(path, size))
    }

    async fn abort(&self, _path: &FsPath, upload: &str) -> Result<(), Failure> {
        self.uploads.lock().remove(upload);
        Ok(())
    }

    fn open(&self, version: FileVersion) -> Arc<dyn Base> {
        Arc::new(Zeros(version))
    }
}

/// A version of nothing but zeros.
struct Zeros(FileVersion);

#[async_trait::async_trait]
impl Base for Zeros {
    fn version(&self) -> &FileVersion {
        &self.0
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Spans, Failure> {
        let length = u64::from(length).min(self.0.size.saturating_sub(offset));
        let mut span = POOL
            .with(|pool| pool.try_alloc(length as usize))
            .ok_or_else(|| Failure::new(FailureKind::OutOfResources, "more than a block"))?;
        span.fill(0);
        Ok(Spans::from_iter([span.freeze()]))
    }
}
