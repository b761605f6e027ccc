//! The usual POSIX benchmark, word for word: the command lines of its guide, from the preparation of the data to the clean-up, on
//! a mount of a bucket. Only sizes, run times and the mountpoint are others.

use std::time::Duration;

use forebay_e2e::{Bucket, Mount, Setup, installed, script};

/// The guide's first run: 16 jobs write one file.
const DATA_PREP: &str = r#"
fio --ioengine=libaio --direct=1 --group_reporting --runtime=120 \
    --rw=write --bs=1M --numjobs=16 --size=100G \
    --filename=/mnt/alluxio/s3/testdata/100gb --name=data_prep
"#;

const MANY_FILES: &str = r#"
# Create 20 files of 5 GiB each
for i in $(seq -f "%02g" 0 19); do
  fio --ioengine=libaio --direct=1 --rw=write --bs=1M --numjobs=1 \
      --size=5G --filename=/mnt/alluxio/s3/testdata/file${i} \
      --name=prep_${i}
done
"#;

const MULTI_READ: &str = r#"
# Read across all 20 files
FILES=$(seq -f "/mnt/alluxio/s3/testdata/file%02g" 0 19 | paste -sd:)
fio --ioengine=libaio --direct=1 --group_reporting --runtime=60 \
    --rw=read --bs=1M --numjobs=64 --size=5G --readonly \
    --filename="$FILES" --name=multi_read
"#;

const SEQUENTIAL_READ: &str = r#"
fio --ioengine=libaio --direct=1 --group_reporting --runtime=60 \
    --rw=read --bs=1M --numjobs=32 --size=100G --readonly \
    --filename=/mnt/alluxio/s3/testdata/100gb --name=seq_read
"#;

const RANDOM_READ: &str = r#"
fio --ioengine=libaio --direct=1 --group_reporting --runtime=60 \
    --rw=randread --bs=4k --numjobs=32 --size=100G --readonly \
    --filename=/mnt/alluxio/s3/testdata/100gb --name=rand_read
"#;

const SCAN: &str = r#"
for j in 1 4 16 32 64 128; do
  echo "=== numjobs=$j ==="
  fio --ioengine=libaio --direct=1 --group_reporting --runtime=60 \
      --rw=read --bs=1M --numjobs=$j --size=100G --readonly \
      --filename=/mnt/alluxio/s3/testdata/100gb --name=scale_$j
done
"#;

const SHARED_FILES: &str = r#"
FILES=$(seq -f "/mnt/alluxio/s3/testdata/file%02g" 0 19 | paste -sd:)
fio --ioengine=io_uring --direct=1 --iodepth=1 --group_reporting \
    --runtime=60 --time_based --rw=read --bs=256k --readonly \
    --numjobs=256 --filename="$FILES" --name=shared
"#;

/// The guide's generator of the job file for the distinct-files pattern.
const DISTINCT_FILES: &str = r#"
num_files, nj = 20, 8
base_dir = "/mnt/alluxio/s3/testdata"
all_files = [f"{base_dir}/file{i:02d}" for i in range(num_files)]
for s in range(nj):
    files = ":".join(all_files[s::nj])        # round-robin stripe
    print(f"[section-{s}]\nioengine=io_uring\ndirect=1\niodepth=32")
    print(f"rw=read\nbs=256k\nnumjobs=1\nruntime=60\ntime_based")
    print(f"group_reporting\nfilename={files}\n")
"#;

const CLEAN_UP: &str = r#"
# Delete the test data through FUSE
rm /mnt/alluxio/s3/testdata/*
"#;

const MIB: u64 = 1 << 20;
const LARGE: u64 = 64 * MIB;
const SMALL: u64 = 6 * MIB;
const LIMIT: Duration = Duration::from_secs(600);

/// What is another here than in the guide.
fn fitted(command: &str, mount: &Mount) -> String {
    let mountpoint = mount.root().display().to_string();
    let replacements = [
        ("/mnt/alluxio", mountpoint.as_str()),
        ("--size=100G", "--size=64M"),
        ("--size=5G", "--size=6M"),
        ("--runtime=60", "--runtime=1"),
        ("runtime=60", "runtime=1"),
    ];
    replacements.iter().fold(command.to_owned(), |command, (theirs, ours)| command.replace(theirs, ours))
}

/// A mount with the guide's directory, and how to run its commands there.
struct Guide {
    mount: Mount,
    bucket: Bucket,
}

impl Guide {
    fn begin() -> Option<Self> {
        installed("fio")?;
        let bucket = Bucket::new();
        let mount = Setup::of(&bucket).memory("256MiB").up(&bucket);
        std::fs::create_dir_all(mount.path("s3/testdata")).unwrap();
        Some(Self { mount, bucket })
    }

    #[track_caller]
    fn run(&self, command: &str) -> String {
        script(&fitted(command, &self.mount), &[], LIMIT).text()
    }

    /// Asserts that the object is of this size, and holds what the mount shows of it.
    #[track_caller]
    fn assert_whole(&self, name: &str, size: u64) {
        let key = format!("s3/testdata/{name}");
        let object = self.bucket.object(&key);
        assert_eq!(object.len() as u64, size, "{key}");
        assert!(object.iter().any(|byte| *byte != 0), "{key} is nothing but zeros");
        assert!(std::fs::read(self.mount.path(&key)).unwrap() == object, "{key} reads as something else");
    }
}

#[test]
fn one_large_file_is_prepared_by_16_jobs_and_read_in_every_way_of_the_guide() {
    let Some(guide) = Guide::begin() else { return };
    guide.run(DATA_PREP);
    guide.assert_whole("100gb", LARGE);
    for command in [SEQUENTIAL_READ, RANDOM_READ, SCAN] {
        guide.run(command);
    }
    guide.run(CLEAN_UP);
    assert_eq!(guide.mount.path("s3/testdata").read_dir().unwrap().count(), 0);
    assert!(!guide.bucket.path_of("s3/testdata/100gb").exists());
    assert!(guide.bucket.server().uploads().is_empty() && guide.mount.staged().is_empty());
}

#[test]
fn twenty_files_are_prepared_and_read_shared_and_distinct() {
    let Some(guide) = Guide::begin() else { return };
    guide.run(MANY_FILES);
    for number in 0..20 {
        guide.assert_whole(&format!("file{number:02}"), SMALL);
    }
    guide.run(MULTI_READ);
    guide.run(SHARED_FILES);
    if installed("python3").is_some() {
        let jobs = guide.run(&format!("python3 - <<'GENERATOR'\n{DISTINCT_FILES}\nGENERATOR"));
        assert_eq!(jobs.matches("[section-").count(), 8);
        guide.run(&format!("fio --readonly - <<'JOBS'\n{jobs}\nJOBS"));
    }
    guide.run(CLEAN_UP);
    assert_eq!(guide.mount.path("s3/testdata").read_dir().unwrap().count(), 0);
}

#[test]
fn the_guides_commands_are_changed_in_sizes_times_and_place_alone() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).prepare_up(&bucket.url());
    for command in [DATA_PREP, MANY_FILES, MULTI_READ, SEQUENTIAL_READ, RANDOM_READ, SCAN, SHARED_FILES, DISTINCT_FILES]
    {
        let fitted = fitted(command, &mount);
        assert!(!fitted.contains("/mnt/alluxio") && !fitted.contains("=100G") && !fitted.contains("=5G"), "{fitted}");
        let differ =
            |a: &str, b: &str| a != b && !["size=", "runtime=", "/mnt/alluxio"].iter().any(|word| a.contains(word));
        let lines = command.lines().zip(fitted.lines());
        assert!(lines.filter(|(theirs, ours)| differ(theirs, ours)).count() == 0, "{fitted}");
    }
}
