//! Against the published commands and the published generator of job files.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::posix::settings::Engine;

fn case(pattern: Pattern, jobs: u32) -> Case {
    Case {
        target: "forebay".into(),
        state: CacheState::Warm,
        layout: Layout::Multiple,
        pattern,
        access: Access::Sequential,
        block_bytes: 256 << 10,
        jobs,
        depth: if pattern == Pattern::Shared { 1 } else { 32 },
        clients: 1,
        workers: 1,
    }
}

fn made(case: &Case, directory: &str, settings: &Settings) -> Command {
    command(case, Path::new(directory), settings, None).unwrap()
}

/// A job file as fio understands it: sections with their options, in order.
fn parsed(job_file: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut sections: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for line in job_file.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            sections.push((name.to_owned(), BTreeMap::new()));
        } else {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            sections.last_mut().unwrap().1.insert(name.to_owned(), value.to_owned());
        }
    }
    sections
}

#[test]
fn the_shared_pattern_is_the_published_command() {
    let made = made(&case(Pattern::Shared, 256), "/mnt/forebay/s3/testdata", &Settings::full());
    assert_eq!(made.job_file, None);
    let files: Vec<_> = (0..20).map(|file| format!("/mnt/forebay/s3/testdata/file{file:02}")).collect();
    let expected = format!(
        "fio --readonly --output-format=json+ --eta=never --name=shared --ioengine=io_uring --direct=1 --iodepth=1 --rw=read \
         --bs=262144 --numjobs=256 --runtime=60 --time_based --group_reporting --filename={}",
        files.join(":")
    );
    assert_eq!(made.line("unused"), expected);
}

#[test]
fn the_distinct_pattern_with_fewer_jobs_than_files_is_the_published_generator_s() {
    // What the published generator prints for 20 files and 8 jobs, its block in bytes and its lines in our order.
    let mut expected = String::new();
    for section in 0..8 {
        let files: Vec<_> = (section..20).step_by(8).map(|file| format!("/mnt/forebay/file{file:02}")).collect();
        expected.push_str(&format!(
            "[section-{section}]\nioengine=io_uring\ndirect=1\niodepth=32\nrw=read\nbs=262144\nnumjobs=1\nruntime=60\n\
             time_based\ngroup_reporting\nfilename={}\n\n",
            files.join(":")
        ));
    }
    let made = made(&case(Pattern::Distinct, 8), "/mnt/forebay", &Settings::full());
    assert_eq!(made.job_file.as_deref(), Some(expected.as_str()));
    assert_eq!(made.line("/tmp/a job.fio"), "fio --readonly --output-format=json+ --eta=never '/tmp/a job.fio'");
}

#[test]
fn the_distinct_pattern_with_more_jobs_than_files_gives_each_file_a_group_of_its_own() {
    let made = made(&case(Pattern::Distinct, 64), "/mnt/forebay", &Settings::full());
    let sections = parsed(&made.job_file.unwrap());
    assert_eq!(sections.len(), 20);
    for (index, (name, options)) in sections.iter().enumerate() {
        assert_eq!(*name, format!("section-{index}"));
        assert_eq!((options["numjobs"].as_str(), options["iodepth"].as_str()), ("3", "32"));
        assert_eq!(options["filename"], format!("/mnt/forebay/file{index:02}"));
    }
    assert_eq!(running(&case(Pattern::Distinct, 64), &Settings::full().sizes), 60);
    assert_eq!(running(&case(Pattern::Distinct, 32), &Settings::full().sizes), 20);
    assert_eq!(running(&case(Pattern::Distinct, 20), &Settings::full().sizes), 20);
    assert_eq!(running(&case(Pattern::Shared, 64), &Settings::full().sizes), 64);
}

#[test]
fn what_is_cold_is_read_once() {
    let cold = Case { state: CacheState::Cold, access: Access::Random, ..case(Pattern::Shared, 4) };
    let line = made(&cold, "/mnt/forebay", &Settings::full()).line("");
    assert!(!line.contains("time_based") && line.contains("--rw=randread") && line.contains("--runtime=60"), "{line}");
}

#[test]
fn small_files_are_read_one_after_the_other() {
    let small = Case { layout: Layout::Small, ..case(Pattern::Shared, 4) };
    let line = made(&small, "/mnt/forebay", &Settings::full()).line("");
    assert!(line.contains("--openfiles=1 --file_service_type=sequential --filename=/mnt/forebay/small/000:"), "{line}");
}

#[test]
fn several_machines_get_the_job_in_a_file_and_their_addresses_from_one() {
    let hosts = Path::new("/tmp/hosts");
    let shared = case(Pattern::Shared, 4);
    let made = command(&shared, Path::new("/mnt/forebay"), &Settings::full(), Some(hosts)).unwrap();
    assert_eq!(made.arguments, ["--client=/tmp/hosts", "--readonly", "--output-format=json+", "--eta=never"]);
    let sections = parsed(&made.job_file.unwrap());
    assert_eq!((sections.len(), sections[0].0.as_str(), sections[0].1["numjobs"].as_str()), (1, "shared", "4"));
    assert!(sections[0].1.contains_key("time_based") && sections[0].1.contains_key("group_reporting"));
}

#[test]
fn files_are_written_whole_by_one_job_each() {
    let settings = Settings { engine: Engine::Libaio, ..Settings::full() };
    let single = preparation(Layout::Single, Path::new("/mnt/forebay"), &settings, |_| true).unwrap();
    let line = "fio --name=data_prep --ioengine=psync --direct=1 --rw=write --bs=1048576 --numjobs=1 --size=107374182400 \
                --create_on_open=1 --fallocate=none --fsync_on_close=1 --filename=/mnt/forebay/single";
    assert_eq!(single.iter().map(|command| command.line("")).collect::<Vec<_>>(), [line]);
    let multiple = preparation(Layout::Multiple, Path::new("/mnt/forebay"), &settings, |_| true).unwrap();
    assert_eq!(multiple.len(), 20);
    let last = multiple[19].line("");
    assert!(last.contains("--name=prep_19 ") && last.contains("--size=5368709120 "), "{last}");
    assert!(last.ends_with("--filename=/mnt/forebay/file19"), "{last}");
    let small = preparation(Layout::Small, Path::new("/mnt/forebay"), &settings, |_| true).unwrap();
    assert_eq!(small.len(), 1);
    let line = small[0].line("");
    assert!(line.contains("--size=104857600 ") && line.contains("--openfiles=1"), "{line}");
}

#[test]
fn colons_are_escaped_and_what_fio_cannot_be_told_is_refused() {
    let case = case(Pattern::Shared, 1);
    let settings = Settings { sizes: Sizes { files: 2, ..Settings::full().sizes }, ..Settings::full() };
    let line = made(&case, "/mnt/a:b c", &settings).line("");
    assert!(line.ends_with(r"'--filename=/mnt/a\:b c/file00:/mnt/a\:b c/file01'"), "{line}");
    for path in ["/mnt/a;b", "/mnt/a#b", "/mnt/$HOME", "/mnt/a\nb", r"/mnt/a\b", " /mnt"] {
        let refused = command(&case, Path::new(path), &settings, None).unwrap_err();
        assert!(matches!(&refused, JobError::Path(_)), "{path}: {refused}");
    }
}

#[test]
fn a_list_that_fio_would_not_take_is_written_as_names_below_a_directory() {
    let settings = Settings { sizes: Sizes { small_files: 1000, ..Settings::full().sizes }, ..Settings::full() };
    let case = Case { layout: Layout::Small, ..case(Pattern::Shared, 1) };
    let made = made(&case, "/mnt/forebay/a-directory", &settings);
    let option = |name: &str| made.arguments.iter().find_map(|argument| argument.strip_prefix(name)).unwrap();
    assert_eq!(option("--directory="), "/mnt/forebay/a-directory/small");
    let list = option("--filename=");
    assert!(list.starts_with("000:001:002:") && list.ends_with(":999") && list.len() < LONGEST_OPTION);
    let settings = Settings { sizes: Sizes { small_files: 2000, ..settings.sizes }, ..settings };
    let refused = command(&case, Path::new("/mnt/forebay"), &settings, None).unwrap_err().to_string();
    assert!(refused.contains("2000 files") && refused.contains("4096"), "{refused}");
}

proptest! {
    #[test]
    fn the_distinct_pattern_deals_every_file_once_and_runs_what_it_says(files in 1_u32..120, jobs in 1_u32..600) {
        let settings = Settings { sizes: Sizes { files, ..Settings::full().sizes }, ..Settings::full() };
        let case = case(Pattern::Distinct, jobs);
        let sections = parsed(&made(&case, "/d", &settings).job_file.unwrap());
        prop_assert_eq!(sections.len() as u32, jobs.min(files));
        let mut dealt: Vec<String> = sections
            .iter()
            .flat_map(|(_, options)| options["filename"].split(':').map(ToOwned::to_owned))
            .collect();
        dealt.sort_unstable();
        let all: Vec<_> = settings.sizes.files(Layout::Multiple).iter().map(|file| format!("/d/{}", file.name)).collect();
        prop_assert_eq!(dealt, all);
        let in_all: u32 = sections.iter().map(|(_, options)| options["numjobs"].parse::<u32>().unwrap()).sum();
        prop_assert_eq!(in_all, running(&case, &settings.sizes));
        prop_assert!(in_all <= jobs && in_all + files > jobs);
    }

    #[test]
    fn no_option_is_longer_than_fio_takes(
        files in 1_u32..900,
        jobs in 1_u32..64,
        directory in "/[a-z:]{1,200}",
        distinct: bool,
        small: bool,
    ) {
        let settings = Settings { sizes: Sizes { files, small_files: files, ..Settings::full().sizes }, ..Settings::full() };
        let pattern = if distinct { Pattern::Distinct } else { Pattern::Shared };
        let layout = if small { Layout::Small } else { Layout::Multiple };
        let case = Case { layout, ..case(pattern, jobs) };
        match command(&case, Path::new(&directory), &settings, None) {
            Ok(made) => {
                let lines = made.job_file.unwrap_or_default();
                let options = made.arguments.iter().map(String::as_str).chain(lines.lines());
                for (_, value) in options.filter_map(|option| option.split_once('=')) {
                    prop_assert!(value.len() < LONGEST_OPTION);
                }
            }
            Err(refused) => {
                let many = matches!(refused, JobError::TooManyFiles { .. });
                prop_assert!(many, "{}", refused);
            }
        }
    }
}
