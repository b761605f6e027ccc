//! A real fio takes the commands that are made for it, and reads exactly what they say: cold steps read every byte of a job's
//! files once, so that what was read can be counted.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_benchmark::posix::{self, Engine, Settings, Sizes};
use forebay_benchmark::record::{Access, CacheState, Case, Layout, Outcome, Pattern};

const MIB: u64 = 1 << 20;

/// Whether there is a fio; if not, that is said.
fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        let _ = writeln!(std::io::stderr(), "skipped: fio is not installed (apt-get install fio)");
    }
    found
}

fn settings() -> Settings {
    Settings {
        engine: Engine::Psync,
        // Not every directory for temporary files takes direct reads.
        direct: false,
        runtime: Duration::from_secs(1),
        blocks: vec![256 << 10],
        distinct_depths: vec![4],
        sizes: Sizes { single_bytes: 2 * MIB, files: 3, file_bytes: MIB, small_files: 7, small_bytes: MIB },
        ..Settings::full()
    }
}

fn case(state: CacheState, layout: Layout, pattern: Pattern, access: Access, jobs: u32) -> Case {
    let settings = settings();
    Case {
        target: "here".into(),
        state,
        layout,
        pattern,
        access,
        block_bytes: settings.blocks_of(layout, access)[0],
        jobs,
        depth: settings.depths_of(pattern)[0],
        clients: 1,
        workers: 0,
    }
}

/// What fio prints.
fn fio(command: &posix::Command, scratch: &Path) -> Vec<u8> {
    let mut fio = Command::new("timeout");
    fio.args(["-k", "5", "60", "fio"]).args(&command.arguments).current_dir(scratch);
    if let Some(text) = &command.job_file {
        let path = scratch.join("job.fio");
        std::fs::write(&path, text).unwrap();
        fio.arg(path);
    }
    let output = fio.output().unwrap();
    assert!(output.status.success(), "{}: {}", command.line("job.fio"), String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn prepared(directory: &Path) {
    std::fs::create_dir_all(directory.join("small")).unwrap();
    for layout in [Layout::Single, Layout::Multiple, Layout::Small] {
        for command in posix::preparation(layout, directory, &settings(), |_| true).unwrap() {
            fio(&command, directory);
        }
        for file in settings().sizes.files(layout) {
            let length = std::fs::metadata(directory.join(&file.name)).unwrap().len();
            assert_eq!(length, file.bytes, "{}", file.name);
        }
    }
}

fn read(directory: &Path, case: &Case) -> Outcome {
    let mut settings = settings();
    if case.state == CacheState::Cold {
        // It reads every byte once, however slow the disk is.
        settings.runtime = Duration::from_secs(50);
    }
    let command = posix::command(case, directory, &settings, None).unwrap();
    posix::outcome(&fio(&command, directory), 1).unwrap()
}

#[test]
fn fio_writes_the_files_and_reads_them_as_the_patterns_say() {
    if !has_fio() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    // A directory that needs care: a colon separates paths, a space words.
    let directory = temporary.path().join("a:directory of 1");
    std::fs::create_dir(&directory).unwrap();
    prepared(&directory);
    let cold = |layout, pattern, access, jobs| {
        let case = case(CacheState::Cold, layout, pattern, access, jobs);
        read(&directory, &case).bytes / MIB
    };
    let (sequential, random) = (Access::Sequential, Access::Random);
    // All jobs read all files.
    assert_eq!(cold(Layout::Single, Pattern::Shared, sequential, 3), 3 * 2);
    assert_eq!(cold(Layout::Multiple, Pattern::Shared, sequential, 2), 2 * 3);
    assert_eq!(cold(Layout::Small, Pattern::Shared, random, 2), 2 * 7);
    // Files are dealt to jobs; or jobs to files, evenly: seven on three files are six.
    assert_eq!(cold(Layout::Multiple, Pattern::Distinct, sequential, 2), 3);
    assert_eq!(cold(Layout::Multiple, Pattern::Distinct, random, 7), 6);
    assert_eq!(cold(Layout::Small, Pattern::Distinct, sequential, 4), 7);
}

#[test]
fn a_warm_step_reads_for_as_long_as_it_was_told() {
    if !has_fio() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    prepared(directory.path());
    let outcome =
        read(directory.path(), &case(CacheState::Warm, Layout::Multiple, Pattern::Distinct, Access::Sequential, 2));
    assert!((0.9..5.0).contains(&outcome.seconds), "{outcome:?}");
    assert!(outcome.bytes > 3 * MIB && outcome.cpu.fio > 0.0, "{outcome:?}");
    let latency = outcome.latency;
    assert!(0.0 < latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.p999, "{latency:?}");
}
