//! `forebay bench read`: lists of files on any file system, and the matrix with workers and mounts of its own: what is measured,
//! what is left behind, and what becomes of a run that is cut off, of one that is killed, and of files that are in its way.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_e2e::{
    Bucket, Finished, Setup, UCX_ON_LOOPBACK, ended, eventually, finish, forebay, has_ucx, signal, terminal,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// No run in these tests takes longer, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Mounts of tests need little memory for UCX.
const SMALL_POOL: [&str; 6] = [
    "-o",
    "network.rdma.data.buffer_pool.initial_size=8MiB",
    "-o",
    "network.rdma.data.buffer_pool.prewarm_size=0B",
    "-o",
    "network.rdma.data.buffer_pool.max_size=64MiB",
];

/// A directory in which a run has its temporary files, and one for its results.
struct Place {
    temporary: TempDir,
    results: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = || tempfile::tempdir().expect("a directory");
        Self { temporary: directory(), results: directory() }
    }

    fn output(&self) -> PathBuf {
        self.results.path().join("run")
    }

    /// A matrix with small files.
    fn matrix(&self, arguments: &[&str]) -> Command {
        let mut command = bench(arguments);
        command.args(SMALL_POOL).arg("--output").arg(self.output()).env("TMPDIR", self.temporary.path());
        command
    }

    fn record(&self) -> Value {
        let text = std::fs::read(self.output().join("record.json")).expect("a record");
        serde_json::from_slice(&text).expect("a record that is whole")
    }

    fn cells(&self) -> Vec<Value> {
        self.record()["cells"].as_array().expect("cells").clone()
    }

    /// Neither files nor mounts nor processes.
    fn assert_nothing_is_left(&self) {
        let left: Vec<_> =
            std::fs::read_dir(self.temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let below = self.temporary.path().to_str().unwrap();
        assert!(!mounts.contains(below), "{mounts}");
        assert_eq!(self.processes(), Vec::<u32>::new());
    }

    /// Those of a run: itself, which names its results, and what it starts, which is named by its temporary files. What it has forked
    /// and what has not yet become the other program looks like itself, and has its lock.
    fn processes(&self) -> Vec<u32> {
        [&self.temporary, &self.results].into_iter().flat_map(|directory| processes_of(directory.path())).collect()
    }
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = forebay(&[]);
    command.envs([UCX_ON_LOOPBACK]).args(["bench", "read"]).args(arguments);
    command
}

/// Processes that were started with something of `directory` on their command line.
fn processes_of(directory: &Path) -> Vec<u32> {
    let below = directory.to_str().unwrap().as_bytes();
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(below.len()).any(|part| part == below) && !ended(*pid)
    };
    all.filter(names).collect()
}

fn rules(record: &Value) -> Vec<String> {
    let findings = record["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

fn json_lines(finished: &Finished) -> Vec<Value> {
    finished.text().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn lists_of_files_are_written_read_and_checked_wherever_they_are_and_the_ratio_is_told() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (at, against) = (here.path().to_str().unwrap(), there.path().to_str().unwrap());
    let files = ["--files", "a,b,c", "--size", "300001", "--against", against];
    let _ = finish(bench(&[at, "--write", "a,b,c", "--size", "300001", "--against", against]).args(["--json"]), LIMIT)
        .succeeded();
    let read = finish(bench(&[at]).args(files).args(["--check", "--clients", "2", "--repeat", "2", "--json"]), LIMIT);
    let lines = json_lines(&read.succeeded());
    let reads: Vec<&Value> = lines.iter().filter(|line| line["operation"] == "read").collect();
    // Files × clients × rounds × places.
    assert_eq!(reads.len(), 3 * 2 * 2 * 2);
    assert!(reads.iter().all(|line| line["checked"] == true && line["bytes"] == 300_001), "{reads:?}");
    let compared = lines.last().unwrap();
    assert!(compared["operation"] == "compare" && compared["ratio"].as_f64() > Some(0.0), "{compared}");

    let text = finish(bench(&[at]).args(files), LIMIT).succeeded().text();
    assert_eq!(text.lines().filter(|line| line.starts_with("read ")).count(), 3 * 2 * 2, "{text}");
    assert!(text.contains("mean ") && text.contains("percent × seconds"), "{text}");
    assert!(text.contains(&format!("times as long in {at} as in {against}")), "{text}");

    // What it has written it writes again, in any size, and what others have written it does not.
    let written =
        |more: &[&str]| finish(bench(&[at, "--write", "a", "--size", "7", "--against", against]).args(more), LIMIT);
    let _ = written(&[]).succeeded();
    let precious = there.path().join("a");
    std::fs::write(&precious, "precious").unwrap();
    written(&[]).failed(6, &[precious.to_str().unwrap(), "is there", "next: ", "--overwrite"]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    let _ = written(&["--overwrite"]).succeeded();
    assert_eq!(std::fs::metadata(&precious).unwrap().len(), 7);

    // Absolute names need no directory, and nothing else to compare with.
    let absolute = here.path().join("a");
    let _ = finish(&mut bench(&["--files", absolute.to_str().unwrap(), "--check"]), LIMIT).succeeded();
    let both = ["--files", absolute.to_str().unwrap(), "--against", against];
    finish(&mut bench(&both), LIMIT).failed(2, &["absolute", "next: "]);
}

#[test]
fn all_files_are_checked_and_each_wrong_byte_is_shown_with_what_belongs_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let _ = finish(&mut bench(&[at, "--write", "a,b,c", "--size", "100KB"]), LIMIT).succeeded();
    let spoil = |name: &str, offsets: &[usize]| {
        let path = directory.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        offsets.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&path, &bytes).unwrap();
        (bytes[offsets[0]], bytes[offsets[0]] ^ 1)
    };
    let (got, expected) = spoil("a", &[77_777]);
    spoil("c", &(0..100_000).step_by(10).collect::<Vec<_>>());
    let check = |more: &[&str]| finish(bench(&[at, "--files", "a,b,c", "--check", "--clients", "2"]).args(more), LIMIT);
    let (a, c) = (
        format!("offset 77777: got 0x{got:02x}, expected 0x{expected:02x}"),
        "and 9992 more, the last at offset 99990",
    );
    check(&[]).failed(1, &["2 of 3 files are not", "a is wrong from byte 77777", &a, "c is wrong from byte 0", c]);
    check(&["--size", "1MB"]).failed(1, &["3 of 3 files", "100000 bytes where 1000000 were expected", &a, c]);
    let text = check(&[]).text();
    let lines = |end: &str| text.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!((lines("  not as written"), lines("  as written")), (4, 2), "{text}");
    let told = json_lines(&check(&["--json"]));
    assert_eq!(told.len(), 6);
    assert_eq!(told[0]["differences"]["shown"][0]["offset"], 77_777);
    assert_eq!(
        (&told[0]["differences"]["shown"][0]["got"], &told[2]["differences"]["bytes"]),
        (&got.into(), &10_000.into())
    );
    assert_eq!(told[1]["differences"]["bytes"], 0);
}

#[test]
fn a_wrong_byte_another_size_and_a_missing_file_end_it_with_the_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let _ = finish(&mut bench(&[at, "--write", "a", "--size", "100KB"]), LIMIT).succeeded();
    let path = directory.path().join("a");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[77_777] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    finish(&mut bench(&[at, "--files", "a", "--check"]), LIMIT).failed(1, &["a is wrong from byte 77777"]);
    let _ = finish(&mut bench(&[at, "--files", "a"]), LIMIT).succeeded();
    finish(&mut bench(&[at, "--files", "a", "--size", "1MB"]), LIMIT).failed(1, &["100000 bytes", "1000000"]);
    finish(&mut bench(&[at, "--files", "none"]), LIMIT).failed(3, &["cannot read", "none"]);
    finish(&mut bench(&[at, "--write", "a"]), LIMIT).failed(2, &["--size"]);
    finish(&mut bench(&[at]), LIMIT).failed(2, &["no files are named"]);
    finish(&mut bench(&["--files", "a", "--buffer", "5000"]), LIMIT).failed(2, &["4KiB"]);
}

#[test]
fn the_matrix_is_measured_over_tcp_and_ucx_in_turn_and_leaves_nothing_behind_and_goes_on_where_it_was_cut_off() {
    let place = Place::new();
    let other = tempfile::tempdir().unwrap();
    let ucx = has_ucx();
    let ways = if ucx { 3 } else { 2 };
    let mut arguments = vec!["--sizes", "200KB,1MB", "--clients", "1,2", "--file-counts", "1,3", "--check"];
    arguments.extend(["--against", other.path().to_str().unwrap()]);
    if !ucx {
        arguments.extend(["--transports", "tcp"]);
    }
    let run = || finish(&mut place.matrix(&arguments), LIMIT);
    let finished = run().succeeded();
    place.assert_nothing_is_left();
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "the files in the other file system");
    let record = place.record();
    assert_eq!((&record["benchmark"], &record["finished"]), (&Value::from("read"), &Value::from(true)));
    let cells = place.cells();
    // Sizes × clients × files × rounds.
    assert_eq!(cells.len(), 2 * 2 * 2 * 2 * ways);
    for (index, cell) in cells.iter().enumerate() {
        assert!(cell["milliseconds_per_file"].as_f64() > Some(0.0) && cell["checked"] == true, "{cell}");
        let carried = cell["carried_by"].as_str().unwrap();
        match cell["transport"].as_str().unwrap() {
            "tcp" => assert_eq!(carried, "tcp"),
            "ucx" => assert!(carried.starts_with("ucx (") && !carried.contains('%'), "{cell}"),
            _ => assert_eq!(cell["worker_percent_seconds"], 0.0, "nobody's worker: {cell}"),
        }
        // What is compared are neighbours in time.
        let first = &cells[index - index % ways];
        for of in ["clients", "files", "file_bytes", "round"] {
            assert_eq!(first[of], cell[of], "{cells:?}");
        }
    }
    let told = rules(&record);
    assert!(told.contains(&"against".to_owned()) && told.contains(&"bytes".to_owned()), "{told:?}");
    if ucx {
        for rule in ["single-client", "several-clients-cpu", "larger-files", "many-files", "carried-by"] {
            assert!(told.contains(&rule.to_owned()), "no {rule} in {told:?}");
        }
    }
    assert!(!told.contains(&"not-warm".to_owned()), "{record}");
    // What the finding `bytes` says, the table says too, and each cell; small as these are, their processor time counts for little.
    let text = finished.text();
    assert!(text.contains("all, before and in the time measured") && !text.contains("  no\n"), "{text}");
    assert!(cells.iter().all(|cell| cell["compared"] == "while"), "{cells:?}");
    let html = std::fs::read_to_string(place.output().join("report.html")).unwrap();
    for cell in &cells {
        assert_eq!(
            cell["origin_bytes"].is_null(),
            !["tcp", "ucx"].contains(&cell["transport"].as_str().unwrap()),
            "{cell}"
        );
        for reason in cell["not_counted"].as_array().into_iter().flatten() {
            assert!(
                text.contains(reason.as_str().unwrap()) && html.contains(reason.as_str().unwrap()),
                "{reason}: {text}"
            );
        }
    }
    for file in ["report.html", "cells.csv", "run.log"] {
        assert!(place.output().join(file).is_file(), "{file}");
    }
    assert!(finished.text().contains("report.html"), "{}", finished.text());

    // The same command has nothing left to do; one with other settings is refused.
    let again = run().succeeded();
    assert!(again.stderr.contains("going on with the run"), "{}", again.stderr);
    assert_eq!(place.cells(), cells);
    finish(place.matrix(&arguments).args(["--repeat", "3"]), LIMIT)
        .failed(2, &["repeat was `2` and is `3` now", "--output"]);

    // Cut off in the middle of the last round: what is left of it is measured anew, and nothing else.
    let mut cut = place.record();
    cut["finished"] = Value::from(false);
    cut["cells"].as_array_mut().unwrap().pop();
    std::fs::write(place.output().join("record.json"), cut.to_string()).unwrap();
    let _ = run().succeeded();
    // What does not count follows from all rounds, as findings do, and is reckoned anew.
    let measured = |mut cells: Vec<Value>| {
        for cell in &mut cells {
            cell.as_object_mut().unwrap().remove("not_counted");
        }
        cells
    };
    let (now, cells, whole) = (measured(place.cells()), measured(cells.clone()), cells.len() - ways);
    assert_eq!((now.len(), &now[..whole]), (cells.len(), &cells[..whole]));
    place.assert_nothing_is_left();
}

#[test]
fn an_interrupted_run_ends_its_processes_takes_its_mounts_away_and_keeps_what_it_measured() {
    let place = Place::new();
    let arguments =
        ["--sizes", "2MB", "--clients", "2", "--file-counts", "5", "--repeat", "500", "--transports", "tcp"];
    let mut run = place.matrix(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let measured = || place.output().join("record.json").exists() && !place.cells().is_empty();
    eventually("something is measured", LIMIT, measured);
    // A terminal that is lost ends nothing.
    signal(run.id(), Signal::HUP);
    let before = place.cells().len();
    eventually("it goes on", LIMIT, || place.cells().len() > before + 1);
    signal(run.id(), Signal::INT);
    eventually("it ends", LIMIT, || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    place.assert_nothing_is_left();
    assert_eq!(place.record()["finished"], false);
    assert!(!place.cells().is_empty());
    // The lock is given back with the process; the report is of what there is.
    for file in ["report.html", "cells.csv", "run.log"] {
        assert!(place.output().join(file).is_file(), "{file}");
    }
    assert!(!place.output().join("made.json").exists());
    assert!(rules(&place.record()).contains(&"bytes".to_owned()));
}

#[test]
fn a_run_that_is_killed_takes_its_processes_along_and_the_next_removes_what_it_left() {
    let (place, other, origin) = (Place::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}", origin.path().display());
    let mut arguments = vec!["--sizes", "100KB", "--clients", "1", "--file-counts", "1", "--repeat", "12"];
    arguments.extend(["--transports", "tcp", "--origin", &url, "--against", other.path().to_str().unwrap()]);
    let left = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
    let mut run = place.matrix(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let measured = || place.output().join("record.json").exists() && !place.cells().is_empty();
    eventually("something is measured", LIMIT, measured);
    signal(run.id(), Signal::KILL);
    let _ = run.wait().unwrap();
    eventually("its processes end", LIMIT, || place.processes().is_empty());
    assert_eq!([left(place.temporary.path()), left(other.path()), left(origin.path())], [1, 1, 1]);
    assert!(place.output().join("made.json").exists());
    // What is not of a run stays, and is said.
    let precious = std::fs::read_dir(other.path()).unwrap().next().unwrap().unwrap().path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    finish(&mut place.matrix(&arguments), LIMIT).failed(1, &["cannot remove", other.path().to_str().unwrap()]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    std::fs::remove_file(&precious).unwrap();
    let _ = finish(&mut place.matrix(&arguments), LIMIT).succeeded();
    place.assert_nothing_is_left();
    assert_eq!([left(other.path()), left(origin.path())], [0, 0]);
    assert!(!place.output().join("made.json").exists());
    assert_eq!(place.cells().len(), 12 * 2);
}

#[test]
fn a_run_whose_terminal_is_lost_comes_to_its_end() {
    let place = Place::new();
    let arguments =
        ["--sizes", "100KB", "--clients", "1", "--file-counts", "1", "--repeat", "8", "--transports", "tcp"];
    let (master, terminal) = terminal();
    let (stdout, stderr) = (terminal.try_clone().unwrap(), terminal);
    let mut run = place.matrix(&arguments).stdout(stdout).stderr(stderr).spawn().unwrap();
    let measured = || place.output().join("record.json").exists() && !place.cells().is_empty();
    eventually("something is measured", LIMIT, measured);
    drop(master);
    signal(run.id(), Signal::HUP);
    eventually("it ends", LIMIT, || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(place.record()["finished"], true);
    place.assert_nothing_is_left();
}

#[test]
fn workers_that_have_no_room_for_the_files_are_known_not_to_be_warm() {
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).memory("16MiB").worker(&bucket);
    let place = Place::new();
    let workers = worker.address().to_string();
    let arguments = ["--sizes", "16MB", "--clients", "1", "--file-counts", "2", "--repeat", "1", "--workers", &workers];
    let text = finish(place.matrix(&arguments).args(["--transports", "tcp"]), LIMIT).succeeded().text();
    let record = place.record();
    assert!(rules(&record).contains(&"not-warm".to_owned()), "{record}");
    assert!(record["findings"].to_string().contains("somebody else"), "{record}");
    // Which was cold is said beside it, and that bytes were compared before.
    let cells = place.cells();
    let why = |cell: &Value| cell["not_counted"].to_string().contains("came from the origin meanwhile");
    assert!(cells.iter().any(why), "{cells:?}");
    assert!(cells.iter().all(|cell| cell["compared"] == "before" && cell["checked"] == false), "{cells:?}");
    assert!(
        text.contains("came from the origin meanwhile") && text.contains("all, before they were measured"),
        "{text}"
    );
}

#[test]
fn workers_that_exist_are_read_with_their_processor_time_and_have_no_file_more_than_before() {
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).worker(&bucket);
    let place = Place::new();
    let workers = worker.address().to_string();
    let arguments =
        ["--sizes", "16MB", "--clients", "1", "--file-counts", "4", "--workers", &workers, "--transports", "tcp"];
    let _ = finish(&mut place.matrix(&arguments), LIMIT).succeeded();
    let cells = place.cells();
    assert_eq!(cells.len(), 2);
    assert!(cells.iter().any(|cell| cell["worker_percent_seconds"].as_f64() > Some(0.0)), "{cells:?}");
    let listed = worker.ask(&["fs", "ls", "/"]).succeeded();
    assert_eq!(listed.text(), "", "files of the benchmark are left");
    place.assert_nothing_is_left();
}

#[test]
fn without_libucp_tcp_alone_is_measured_and_that_is_said() {
    let place = Place::new();
    let arguments =
        ["--sizes", "100KB", "--clients", "1", "--file-counts", "1", "-o", "ucx.library=/nonexistent/libucp.so.0"];
    let finished = finish(&mut place.matrix(&arguments), LIMIT).succeeded();
    assert!(finished.stderr.contains("UCX is not measured"), "{}", finished.stderr);
    assert!(place.cells().iter().all(|cell| cell["transport"] == "tcp"), "{:?}", place.cells());
    assert!(rules(&place.record()).contains(&"no-ucx".to_owned()));
    let only = ["--transports", "ucx", "-o", "ucx.library=/nonexistent/libucp.so.0"];
    finish(&mut place.matrix(&only), LIMIT).failed(1, &["only UCX", "--transports tcp"]);
}

#[test]
fn a_dry_run_says_what_would_be_measured_and_a_matrix_that_does_not_fit_is_refused() {
    let place = Place::new();
    let told =
        finish(&mut place.matrix(&["--dry-run", "--scale", "1", "--transports", "tcp"]), LIMIT).succeeded().text();
    assert!(told.contains("files of    50 MB: clients × files 1×1, 1×20, 4×1, 4×20"), "{told}");
    assert!(told.contains("files of    40 GB: clients × files 1×1\n"), "{told}");
    assert!(told.contains("46 measurements read "), "{told}");
    assert!(!place.output().exists());
    let huge = ["--sizes", "1PiB", "--transports", "tcp"];
    finish(&mut place.matrix(&huge), LIMIT).failed(1, &["need", "--scale"]);
}
