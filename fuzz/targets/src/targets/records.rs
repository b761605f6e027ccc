//! What the state of a cluster says.

use std::time::{Duration, Instant};

use forebay_cluster::records::clients::{ClientRecord, DeliveryRecord, MaterialiseRecord};
use forebay_cluster::records::members::WorkerRecord;
use forebay_cluster::records::mounts::{CredentialReference, MountRecord, is_secret};
use forebay_cluster::records::policies::PolicyRecord;
use forebay_coordinator::jobs::{Job, JobRecord, JobSpec, Limits, LoadSpec, Step};
use forebay_state::{decode_segment, encode_segment};
use forebay_types::{Failure, FailureKind, FsPath};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod cluster_records {
    use super::*;

    /// What it decodes is written, and reads as the same.
    macro_rules! comes_back {
        ($kind:ty, $bytes:expr) => {
            if let Ok(read) = <$kind>::decode($bytes) {
                assert_eq!(<$kind>::decode(&read.encode()), Ok(read));
            }
        };
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        let value = input.rest();
        match kind % 8 {
            0 => comes_back!(WorkerRecord, value),
            1 => mount(value),
            2 => policy(value),
            3 => comes_back!(ClientRecord, value),
            4 => comes_back!(MaterialiseRecord, value),
            5 => comes_back!(DeliveryRecord, value),
            6 => segment(value),
            _ => path(value),
        }
    }

    fn mount(value: &[u8]) {
        let Ok(record) = MountRecord::decode(value) else { return };
        assert!(FsPath::new(&record.path).is_ok());
        for (name, value) in &record.options {
            assert!(!is_secret(name) || CredentialReference::parse(value).is_some(), "a credential is stored in clear");
        }
        // A list that is not understood would let in nobody, and one that is passed over everybody.
        let listed = record.acl.as_ref().map(|acl| acl.list().expect("a record that is taken has a list that holds"));
        assert_eq!(record.access(), listed);
        assert_eq!(MountRecord::decode(&record.encode()), Ok(record));
    }

    fn policy(value: &[u8]) {
        let Ok(record) = PolicyRecord::decode(value) else { return };
        let (path, policy) = record.policy().expect("a record that is taken has a policy");
        assert_eq!(PolicyRecord::of(&path, &policy).policy(), Ok((path, policy)));
        assert_eq!(PolicyRecord::decode(&record.encode()), Ok(record));
    }

    /// A segment of a key, and a name that becomes one.
    fn segment(name: &[u8]) {
        assert_eq!(decode_segment(&encode_segment(name)).as_deref(), Some(name));
        if let Ok(segment) = str::from_utf8(name)
            && let Some(name) = decode_segment(segment)
        {
            assert_eq!(encode_segment(name), segment);
        }
    }

    fn path(text: &[u8]) {
        let Ok(path) = FsPath::new(text) else { return };
        assert_eq!(FsPath::new(path.as_bytes()).as_ref(), Ok(&path));
        assert!(path.as_bytes().starts_with(b"/") && (path.is_root() || !path.as_bytes().ends_with(b"/")));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |kind: u8, value: &str| Output::default().u8(kind).bytes(value).done();
        vec![
            (
                "worker",
                seed(
                    0,
                    r#"{"host":"node1","address":"node1:29999","http":"node1:29998","capacity":{"memory":1,"disk":2},"weight":1.5,"version":"0.1.0","state":"active","since":7}"#,
                ),
            ),
            (
                "mount",
                seed(1, r#"{"path":"/s3","origin":"s3://b/p","options":{"s3.access_key_id":"env:KEY","region":"eu"}}"#),
            ),
            (
                "mount_with_an_access_list",
                seed(1, r#"{"path":"/s3","origin":"s3://b","acl":{"read":["team-*"],"write":["loader"]}}"#),
            ),
            (
                "policy",
                seed(
                    2,
                    r#"{"path":"/s3/models","metadata_ttl":"5m","pin":true,"priority":"high","quota":"10GiB","replicas":2}"#,
                ),
            ),
            ("client", seed(3, r#"{"name":"node1:/mnt","capacity_bytes":7}"#)),
            ("materialise", seed(4, r#"{"job":"load-1","path":"/a"}"#)),
            ("delivery", seed(5, r#"{"files":3,"ready":2,"ready_bytes":9,"first":[["/a","no room"]],"ended":true}"#)),
            ("segment", seed(6, "%2Fs3%2Fgr%C3%BC%C3%9Fe")),
            ("path", seed(7, "/s3/a b/")),
        ]
    }
}

pub(super) mod jobs {
    use super::*;

    /// Most steps of a job that is taken up.
    const STEPS: usize = 64;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        let text = input.rest();
        if kind & 1 == 0 {
            if let Ok(spec) = serde_json::from_slice::<JobSpec>(text) {
                let written = serde_json::to_vec(&spec);
                if spec.check().is_ok() {
                    let written = written.expect("a right one can be written");
                    assert_eq!(serde_json::from_slice::<JobSpec>(&written).ok(), Some(spec));
                }
            }
        } else if let Ok(record) = JobRecord::decode(text) {
            assert_eq!(JobRecord::decode(&record.encode()).ok().as_ref(), Some(&record));
            take_up(record);
        }
    }

    /// Another coordinator goes on with it, and gets no answer but that there is nothing.
    fn take_up(record: JobRecord) {
        let now = Instant::now();
        let mut job = Job::new(record, Limits::default(), now);
        job.start("c2", 1_700_000_000_000);
        for step in 0..STEPS {
            let now = now + Duration::from_secs(step as u64);
            match job.next(now) {
                Step::Ask(id, _) => job.answer(now, id, Err(Failure::new(FailureKind::NotFound, "nothing"))),
                Step::Checkpoint => {
                    let written = job.record(1_700_000_000_001);
                    assert_eq!(JobRecord::decode(&written.encode()).ok(), Some(written));
                    job.written(now);
                }
                Step::Wait(_) => job.stop(),
                Step::Ended => break,
            }
            let report = job.report(now, 1_700_000_000_002);
            assert!(serde_json::to_string(&report).is_ok());
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let path = FsPath::new("/s3/a").expect("it is a path");
        let record = JobRecord::new("load-1".into(), JobSpec::Load(LoadSpec::new(path)), 7).encode();
        let seed = |kind: u8, value: &[u8]| Output::default().u8(kind).bytes(value).done();
        let load = br#"{"kind":"load","path":"/s3/a b","bandwidth":"1.5GiB","verify":true,"replicas":2}"#;
        vec![
            ("load", seed(0, load)),
            ("free", seed(0, br#"{"kind":"free","path":"/x","index_file":true}"#)),
            ("record", seed(1, &record)),
        ]
    }
}

pub(super) mod job_index {
    use super::*;
    use forebay_coordinator::fuzzing::index_file;

    /// A line that begins with so many bytes is too long for a path.
    const LONG: usize = 9000;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (flags, behind) = (input.u8(), input.u8());
        let sizes: Vec<usize> = (0..flags >> 4).map(|_| usize::from(input.u8())).collect();
        let index = if flags & 1 == 0 { "/s3/lists/a.txt" } else { "/a.txt" };
        let index = FsPath::new(index).expect("it is a path");
        let begins = vec![b'x'; if flags & 2 == 0 { 0 } else { LONG }];
        index_file(&index, &[&begins[..], input.rest()].concat(), &sizes, behind.into());
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |flags: u8, behind: u8, sizes: &[u8], text: &str| {
            Output::default().u8(flags | (sizes.len() as u8) << 4).u8(behind).bytes(sizes).bytes(text).done()
        };
        vec![
            ("paths", seed(0, 1, &[5, 1], "/s3/x\r\n\n# no\nb/c\n../d\nlast")),
            ("beside_the_root", seed(1, 0, &[3], "a/\n/\n//\nb")),
            ("too_long", seed(2, 0, &[200], "\nok\n")),
            ("codes", seed(0, 0, &[], "a/../\u{1b}[2J\n\r\r\n")),
        ]
    }
}
