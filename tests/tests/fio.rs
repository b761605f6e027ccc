//! The reading half of the usual POSIX benchmark, at a size that fits here: sequential and random reads, the scan over
//! the number of jobs, many files, and the two patterns of sharing them.

use std::fmt::Write as _;

use forebay_e2e::{Bucket, Fio, Mount, Setup, Tree, Worker};

const MIB: u64 = 1 << 20;
/// Files of the multi-file runs.
const FILES: usize = 8;

/// One large file and several smaller ones.
fn data_set() -> (Bucket, Tree) {
    let bucket = Bucket::new();
    let mut tree = Tree::of_equal_files(FILES, 16 * MIB);
    tree.add("large", 64 * MIB);
    tree.put_into(&bucket, "testdata/");
    (bucket, tree)
}

struct Bench {
    fio: Fio,
    mount: Mount,
    _workers: Vec<Worker>,
    tree: Tree,
    _bucket: Bucket,
}

impl Bench {
    fn up() -> Option<Self> {
        let fio = Fio::find()?;
        let (bucket, tree) = data_set();
        let mount = Setup::of(&bucket).memory("256MiB").up(&bucket);
        Some(Self { fio, mount, _workers: Vec::new(), tree, _bucket: bucket })
    }

    fn over_tcp() -> Option<Self> {
        let fio = Fio::find()?;
        let (bucket, tree) = data_set();
        let workers: Vec<Worker> = (0..2).map(|_| Setup::of(&bucket).worker(&bucket)).collect();
        let mount = Setup::without_origin().mount(&workers);
        Some(Self { fio, mount, _workers: workers, tree, _bucket: bucket })
    }

    fn large(&self) -> String {
        format!("--filename={}", self.mount.path("testdata/large").display())
    }

    fn files(&self) -> Vec<String> {
        (0..FILES).map(|at| self.mount.path(&format!("testdata/file{at:02}")).display().to_string()).collect()
    }

    /// A run on the large file, as the benchmark's guide has it but for size and time.
    fn run(&self, rw: &str, bs: &str, jobs: usize) {
        let (rw, bs, jobs) = (format!("--rw={rw}"), format!("--bs={bs}"), format!("--numjobs={jobs}"));
        let fixed = ["--ioengine=libaio", "--direct=1", "--group_reporting", "--runtime=1", "--size=64M", "--readonly"];
        let chosen = [rw.as_str(), &bs, &jobs, &self.large(), "--name=run"];
        self.fio.read(&[&fixed[..], &chosen[..]].concat());
    }

    fn shared_files(&self, jobs: usize) {
        let filename = format!("--filename={}", self.files().join(":"));
        let jobs = format!("--numjobs={jobs}");
        self.fio.read(&[
            "--ioengine=io_uring",
            "--direct=1",
            "--iodepth=1",
            "--group_reporting",
            "--runtime=1",
            "--time_based",
            "--rw=read",
            "--bs=256k",
            "--readonly",
            &jobs,
            &filename,
            "--name=shared",
        ]);
    }

    fn distinct_files(&self, jobs: usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("distinct.fio");
        std::fs::write(&path, distinct_sections(&self.files(), jobs)).unwrap();
        self.fio.read(&["--readonly", path.to_str().unwrap()]);
    }
}

/// The job file of the distinct-files pattern. With no more jobs than files: a section for each job, the files dealt out
/// in turn. With more: a section for each file, the jobs divided among them.
fn distinct_sections(files: &[String], jobs: usize) -> String {
    let sections = jobs.min(files.len());
    let jobs_each = (jobs / files.len()).max(1);
    let mut text = String::new();
    for section in 0..sections {
        let own: Vec<&str> = files.iter().skip(section).step_by(sections).map(String::as_str).collect();
        write!(
            text,
            "[section-{section}]\nioengine=io_uring\ndirect=1\niodepth=32\nrw=read\nbs=256k\nnumjobs={jobs_each}\n\
             runtime=1\ntime_based\ngroup_reporting\nfilename={}\n\n",
            own.join(":")
        )
        .unwrap();
    }
    text
}

#[test]
fn sequential_and_random_reads_of_one_file_cold_and_warm() {
    let Some(bench) = Bench::up() else { return };
    for _ in 0..2 {
        bench.run("read", "1M", 32);
        bench.run("randread", "4k", 32);
    }
    bench.tree.verify(&bench.mount.path("testdata"));
}

#[test]
fn random_reads_of_a_file_that_is_not_cached() {
    let Some(bench) = Bench::up() else { return };
    bench.run("randread", "4k", 32);
    bench.tree.verify(&bench.mount.path("testdata"));
}

#[test]
fn the_scan_over_the_number_of_jobs() {
    let Some(bench) = Bench::up() else { return };
    for jobs in [1, 4, 16, 32] {
        bench.run("read", "1M", jobs);
    }
}

#[test]
fn many_files_by_a_list_of_names() {
    let Some(bench) = Bench::up() else { return };
    let filename = format!("--filename={}", bench.files().join(":"));
    let fixed = ["--ioengine=libaio", "--direct=1", "--group_reporting", "--runtime=1", "--rw=read", "--bs=1M"];
    let chosen = ["--numjobs=16", "--size=16M", "--readonly", &filename, "--name=multi_read"];
    bench.fio.read(&[&fixed[..], &chosen[..]].concat());
}

#[test]
fn shared_files_and_distinct_files() {
    let Some(bench) = Bench::up() else { return };
    bench.shared_files(32);
    // No more jobs than files, as many, and more.
    for jobs in [3, FILES, 2 * FILES] {
        bench.distinct_files(jobs);
    }
    bench.tree.verify(&bench.mount.path("testdata"));
}

#[test]
fn the_same_runs_over_tcp() {
    let Some(bench) = Bench::over_tcp() else { return };
    bench.run("read", "1M", 16);
    bench.run("randread", "4k", 16);
    bench.shared_files(16);
    bench.distinct_files(3);
    bench.tree.verify(&bench.mount.path("testdata"));
}

#[test]
fn the_job_file_gives_every_file_to_one_section_only() {
    let files: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    let names = |text: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("filename="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&distinct_sections(&files, 3)), ["f0:f3:f6", "f1:f4:f7", "f2:f5"]);
    assert_eq!(names(&distinct_sections(&files, 8)), files);
    let more = distinct_sections(&files, 24);
    assert_eq!(names(&more), files);
    assert_eq!(more.matches("numjobs=3\n").count(), 8);
}
