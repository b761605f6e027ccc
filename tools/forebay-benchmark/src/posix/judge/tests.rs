use super::*;
use crate::posix::testing::{case, record, step, sweep};
use crate::record::{Access, CacheState, Case, Layout, Pattern, Step};

/// A sweep that saturates at 8 jobs and 5.8 GB/s.
const SATURATES: [(u32, f64, f64); 5] =
    [(1, 1.0, 100.0), (2, 2.0, 105.0), (4, 3.9, 110.0), (8, 5.8, 150.0), (16, 5.9, 320.0)];

fn of(record: &Record, rule: &str) -> Vec<Finding> {
    findings(record).into_iter().filter(|finding| finding.rule == rule).collect()
}

#[track_caller]
fn only(record: &Record, rule: &str) -> Finding {
    let mut found = of(record, rule);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn a_tail_of_more_than_ten_times_the_mean_is_warned_of() {
    let mut steps = sweep(&case(0), &SATURATES);
    assert_eq!(only(&record(&["forebay"], steps.clone()), "tail").level, Level::Good);
    steps[2].outcome.latency.mean = 10.0;
    let found = only(&record(&["forebay"], steps.clone()), "tail");
    assert_eq!(found.level, Level::Warn);
    assert_eq!(
        found.text,
        "forebay, warm, multiple files, shared, sequential, 256 KiB, 1W/1C with 4 jobs: p99 is 110 µs, 11 times the mean of 10 µs."
    );
    assert!(found.next.unwrap().contains("forebay_origin_received_bytes_total"));
    // Of few operations p99 is no more than one of them.
    steps[2].outcome.operations = 900;
    assert_eq!(only(&record(&["forebay"], steps.clone()), "tail").level, Level::Good);
    steps[2].outcome.operations = 1000;
    steps.iter_mut().for_each(|step| step.case.state = CacheState::Cold);
    assert_eq!(only(&record(&["forebay"], steps), "tail").level, Level::Info);
}

#[test]
fn warm_that_is_not_ten_times_cold_may_have_missed() {
    let cold = Case { state: CacheState::Cold, ..case(0) };
    let with = |rate: f64| {
        // With 16 jobs the others' misses make cold reads look warm: the fewest jobs are what counts.
        let cold = sweep(&cold, &[(1, rate, 1000.0), (16, 5.9, 1000.0)]);
        only(&record(&["forebay"], [sweep(&case(0), &SATURATES), cold].concat()), "cold-warm")
    };
    assert_eq!(with(0.05).level, Level::Good);
    assert_eq!(with(0.01).level, Level::Info);
    let found = with(0.2);
    assert_eq!(found.level, Level::Warn);
    assert!(
        found.text.contains("with 1 job: 1.0 GB/s; cold 200 MB/s. Warm is 5.0 times as fast; 10 to 50"),
        "{}",
        found.text
    );
    let next = found.next.unwrap();
    for counter in
        ["forebay_client_read_bytes_total", "forebay_worker_served_bytes_total", "forebay_origin_received_bytes_total"]
    {
        assert!(next.contains(counter), "{next}");
    }
}

#[test]
fn of_cold_sweeps_only_steps_count_in_which_each_byte_is_read_once() {
    let cold = Case { state: CacheState::Cold, ..case(0) };
    let distinct = Case { pattern: Pattern::Distinct, depth: 32, ..cold.clone() };
    // 8 jobs that share wait for the origin once, and are counted eight times; of 20 files, 40 jobs read each twice.
    let steps = [
        sweep(&cold, &[(1, 0.1, 100.0), (8, 0.8, 100.0)]),
        sweep(&distinct, &[(1, 0.1, 100.0), (20, 0.3, 200.0), (40, 0.6, 200.0)]),
    ];
    let other: Vec<Step> = steps
        .concat()
        .into_iter()
        .map(|step| Step { case: Case { target: "other".into(), ..step.case }, ..step })
        .collect();
    let record = record(&["forebay", "other"], [steps.concat(), other].concat());
    assert!(only(&record, "headline").text.starts_with("Highest cold sequential: 300 MB/s with 20 jobs"));
    assert!(only(&record, "against").text.contains("all of 3 cases"));
    let knees = of(&record, "knee");
    assert!(knees.len() == 2 && knees.iter().all(|knee| knee.text.contains("distinct")), "{knees:?}");
    assert_eq!(only(&record, "cold").level, Level::Info);
    let clients = Case { clients: 2, ..cold };
    let found = of(&self::record(&["forebay"], sweep(&clients, &[(1, 0.2, 100.0)])), "cold");
    assert!(found.len() == 1 && found[0].text.starts_with("All of 2 clients"), "{found:?}");
}

#[test]
fn a_knee_is_told_with_what_is_full_and_what_to_do() {
    let found = only(&record(&["forebay"], sweep(&case(0), &SATURATES)), "knee");
    // 47 % of the card, 59 % of the disk, 38 % of the processors: it waits for itself.
    assert_eq!(found.level, Level::Warn);
    assert!(found.text.contains("8 jobs are the knee: 5.8 GB/s, p99 150 µs. 16 jobs give 2 % more"), "{}", found.text);
    assert!(found.next.unwrap().contains("--files"));
    let fast: Vec<_> = SATURATES.iter().map(|(jobs, rate, p99)| (*jobs, rate * 2.0, *p99)).collect();
    let mut full = record(&["forebay"], sweep(&case(0), &fast));
    full.machine.disk_bytes_per_second = None;
    let found = only(&full, "knee");
    assert_eq!(found.level, Level::Good);
    assert!(found.text.ends_with("The network is full: 94 % of ib0 (100 Gb/s)."), "{}", found.text);
}

#[test]
fn a_sweep_that_still_grows_says_how_to_go_on() {
    let found = only(&record(&["forebay"], sweep(&case(0), &SATURATES[..4])), "knee");
    assert_eq!(found.next.as_deref(), Some("Go on: `--numjobs 16,32`."));
}

#[test]
fn more_jobs_that_give_nothing_at_all_are_warned_of() {
    let steps = sweep(&case(0), &[(1, 2.0, 100.0), (2, 2.0, 200.0), (4, 2.0, 400.0)]);
    let found = only(&record(&["forebay"], steps), "flat");
    assert_eq!(found.level, Level::Warn);
    assert!(found.text.contains("1 job is the knee: 2.0 GB/s, p99 100 µs. 4 jobs give the same"), "{}", found.text);
}

#[test]
fn fewer_files_than_jobs_are_warned_of_and_rounding_is_told() {
    let many: Vec<_> = [8, 32, 64].map(|jobs| (jobs, 1.0, 100.0)).into();
    let distinct = Case { pattern: Pattern::Distinct, depth: 32, ..case(0) };
    let ran: Vec<_> = [8, 20, 60].map(|jobs| (jobs, 1.0, 100.0)).into();
    let mut record = record(&["forebay"], [sweep(&case(0), &many), sweep(&distinct, &ran)].concat());
    record.settings.insert("numjobs".to_owned(), "8,32,64".to_owned());
    let found = only(&record, "files");
    assert!(found.level == Level::Warn && found.text.starts_with("64 jobs shared 20 files"), "{found:?}");
    assert_eq!(found.next.as_deref(), Some("`--files 64` gives each a file at a time."));
    assert!(only(&record, "rounding").text.ends_with("it ran 32 as 20, 64 as 60."));
}

#[test]
fn large_blocks_are_warned_of() {
    let large = Case { block_bytes: 4 << 20, ..case(0) };
    let found = only(&record(&["forebay"], sweep(&large, &SATURATES)), "block");
    assert!(found.level == Level::Warn && found.text.starts_with("Blocks of 4 MiB are over 1 MiB"), "{found:?}");
    assert_eq!(of(&record(&["forebay"], sweep(&case(0), &SATURATES)), "block"), []);
}

#[test]
fn a_gigabyte_costs_what_the_machine_did_besides_fio() {
    let found = only(&record(&["forebay"], vec![step(case(4), 2.0, 100.0)]), "cpu");
    assert!(
        found.text.contains("2.0 GB/s cost 125 % of a processor for each GB/s, besides fio's own 25 %"),
        "{}",
        found.text
    );
}

#[test]
fn a_client_s_part_of_its_card_is_held_against_what_is_usual() {
    let with = |rate: f64, workers: u32| {
        let steps = vec![step(Case { workers, ..case(4) }, rate, 100.0)];
        only(&record(&["forebay"], steps), "network")
    };
    assert_eq!(with(7.5, 1).level, Level::Good);
    let less = with(5.0, 1);
    assert_eq!(less.level, Level::Warn);
    assert!(
        less.text.contains("5.0 GB/s, is 40 % of ib0 (100 Gb/s)") && less.text.contains("55 % to 65 %"),
        "{}",
        less.text
    );
    assert_eq!(with(5.0, 0).level, Level::Info);
    assert!(with(20.0, 1).text.ends_with("came from this machine's own memory."));
    let mut unknown = record(&["forebay"], vec![step(case(4), 5.0, 100.0)]);
    unknown.machine.network = None;
    assert_eq!(of(&unknown, "network"), []);
}

#[test]
fn both_patterns_are_compared_and_the_higher_one_is_the_headline() {
    let distinct = Case { pattern: Pattern::Distinct, depth: 32, ..case(0) };
    let steps = [sweep(&case(0), &SATURATES), sweep(&distinct, &[(1, 4.0, 100.0), (8, 7.08, 400.0)])].concat();
    let record = record(&["forebay"], steps);
    let found = only(&record, "patterns");
    assert!(
        found.text.contains(
            "shared files peak at 5.9 GB/s with 16 jobs, files of their own at 7.1 GB/s with 8 jobs; files of \
                             their own give 20 % more"
        ),
        "{}",
        found.text
    );
    assert!(only(&record, "headline").text.starts_with("Highest warm sequential: 7.1 GB/s with 8 jobs"));
}

#[test]
fn random_reads_are_told_in_operations() {
    let random = Case { access: Access::Random, block_bytes: 4096, ..case(16) };
    let found = only(&record(&["forebay"], vec![step(random, 0.2871, 100.0)]), "headline");
    assert!(found.text.starts_with("Highest warm random: 70k operations/s with 16 jobs"), "{}", found.text);
}

#[test]
fn several_files_are_held_against_one() {
    let single = Case { layout: Layout::Single, block_bytes: 1 << 20, ..case(0) };
    let steps = [sweep(&single, &[(1, 2.0, 100.0), (32, 5.0, 200.0)]), sweep(&case(0), &[(32, 5.6, 100.0)])].concat();
    assert!(
        only(&record(&["forebay"], steps), "layouts")
            .text
            .contains("5.6 GB/s, a single one at 5.0 GB/s: the first give 12 % more")
    );
}

#[test]
fn ratios_are_of_the_cases_that_both_targets_have() {
    let other = Case { target: "other".into(), ..case(0) };
    let steps =
        [sweep(&case(0), &SATURATES), sweep(&other, &[(1, 0.5, 300.0), (2, 0.5, 500.0), (64, 9.0, 1.0)])].concat();
    let found = only(&record(&["forebay", "other"], steps), "against");
    assert_eq!(found.level, Level::Good);
    assert_eq!(
        found.text,
        "warm sequential, forebay against other: it reads 3.0 times as much (median of 2 cases, from 2.0 times as much to 4.0 times as \
         much), and its p99 is 73 % shorter."
    );
}

#[test]
fn rounds_that_differ_much_are_told() {
    let steps = vec![step(case(4), 1.0, 100.0), step(case(4), 2.0, 100.0), step(case(4), 2.1, 100.0)];
    let found = only(&record(&["forebay"], steps), "noise");
    assert!(found.text.contains("by up to 55 %") && found.text.contains("1.00 GB/s to 2.10 GB/s"), "{}", found.text);
    assert_eq!(of(&record(&["forebay"], vec![step(case(4), 1.0, 1.0), step(case(4), 1.1, 1.0)]), "noise"), []);
}

#[test]
fn topologies_in_one_record_are_scaled() {
    let three = Case { workers: 3, clients: 3, ..case(0) };
    let steps = [sweep(&case(0), &SATURATES), sweep(&three, &[(8, 16.7, 100.0)])].concat();
    let found = only(&record(&["forebay"], steps), "scaling");
    assert!(found.level == Level::Good && found.text.contains("3W/3C reach 17 GB/s, 94 %"), "{found:?}");
}

#[test]
fn an_unfinished_run_says_so() {
    let cut = Record { finished: false, ..record(&["forebay"], sweep(&case(0), &SATURATES)) };
    assert!(only(&cut, "unfinished").next.unwrap().contains("--output"));
    assert_eq!(of(&record(&["forebay"], Vec::new()), "unfinished"), []);
}

#[test]
fn a_record_of_nothing_or_of_another_benchmark_means_nothing() {
    assert_eq!(findings(&record(&["forebay"], Vec::new())), []);
    let read = Record { measured: Measured::Read { cells: Vec::new() }, ..record(&[], Vec::new()) };
    assert_eq!(findings(&read), []);
}

#[test]
fn every_rule_is_in_the_head_s_table_and_every_sentence_ends() {
    let head = include_str!("../judge.rs");
    let mut steps = sweep(&case(0), &SATURATES);
    for (name, state, pattern) in [
        ("forebay", CacheState::Cold, Pattern::Shared),
        ("other", CacheState::Warm, Pattern::Shared),
        ("forebay", CacheState::Warm, Pattern::Distinct),
    ] {
        let case = Case { target: name.into(), state, pattern, block_bytes: 2 << 20, ..case(0) };
        steps.extend(sweep(&case, &SATURATES));
    }
    let found = findings(&record(&["forebay", "other"], steps));
    assert!(found.len() > 10);
    for finding in found {
        assert!(head.contains(&format!("//! | `{}` |", finding.rule)), "{}", finding.rule);
        for sentence in [Some(&finding.text), finding.next.as_ref()].into_iter().flatten() {
            assert!(sentence.ends_with('.') && !sentence.contains("NaN") && !sentence.contains("inf "), "{sentence}");
        }
    }
}

#[test]
fn every_ratio_of_a_sentence_is_of_the_first_by_the_other() {
    let other = Case { target: "other".into(), ..case(0) };
    let told = |own: &[(u32, f64, f64)], theirs: &[(u32, f64, f64)]| {
        only(&record(&["forebay", "other"], [sweep(&case(0), own), sweep(&other, theirs)].concat()), "against").text
    };
    let mixed = told(&[(1, 1.4, 130.0)], &[(1, 1.0, 100.0)]);
    assert!(mixed.ends_with("it reads 40 % more (one case), and its p99 is 30 % longer."), "{mixed}");
    let slower = told(&[(1, 0.7, 100.0)], &[(1, 1.0, 100.0)]);
    assert!(slower.ends_with("it reads 30 % less (one case), and its p99 is the same."), "{slower}");
}

#[test]
fn what_read_for_less_than_a_second_is_flagged_and_no_headline() {
    let mut steps = sweep(&case(0), &[(1, 9.0, 100.0), (2, 2.0, 100.0)]);
    steps[0].outcome.seconds = 0.2;
    let flagged = record(&["forebay"], steps.clone());
    let found = only(&flagged, "short");
    assert!(
        found.level == Level::Warn
            && found.text.starts_with("1 of 2 steps read for less than a second, the shortest for 200 ms"),
        "{found:?}"
    );
    assert!(only(&flagged, "headline").text.starts_with("Highest warm sequential: 2.0 GB/s with 2 jobs"));
    steps[1].outcome.seconds = 0.3;
    assert!(only(&record(&["forebay"], steps), "headline").text.contains("9.0 GB/s"), "there is nothing else");
    assert_eq!(of(&record(&["forebay"], sweep(&case(0), &SATURATES)), "short"), []);
}

/// Rounds of the same: each `spread` apart from the one before.
fn rounds(spread: f64) -> Record {
    let round = |round: u32| {
        let factor = 1.0 + spread * (f64::from(round) - 1.0);
        let mut steps = sweep(&case(0), &SATURATES);
        for step in &mut steps {
            step.round = round;
            step.outcome.bytes_per_second *= factor;
            step.outcome.latency.p99 /= factor;
            step.outcome.latency.mean /= factor;
        }
        steps
    };
    record(&["forebay"], (0..3).flat_map(round).collect())
}

#[test]
fn a_knee_that_rounds_of_the_same_would_hide_is_not_told() {
    assert!(only(&rounds(0.01), "knee").text.contains("8 jobs are the knee: 5.80 GB/s, p99 150 µs."));
    let found = only(&rounds(0.4), "knee");
    assert!(
        found.level == Level::Info && found.text.contains("no knee can be told. By the medians 8 jobs would be it"),
        "{found:?}"
    );
    let headline = only(&rounds(0.1), "headline").text;
    assert!(
        headline.starts_with("Highest warm sequential: 5.9 GB/s") && headline.ends_with("; ±10 % of 3 rounds)."),
        "{headline}"
    );
}

#[test]
fn load_that_is_not_the_benchmark_s_is_told_and_not_charged_to_the_mount() {
    let mut steps = sweep(&case(0), &[(1, 2.0, 100.0), (2, 2.0, 100.0)]);
    assert_eq!(of(&record(&["forebay"], steps.clone()), "neighbours"), []);
    steps[0].outcome.cpu.others = 80.0;
    steps[1].outcome.cpu.stolen = 30.0;
    let flagged = record(&["forebay"], steps);
    let [others, stolen] = &of(&flagged, "neighbours")[..] else { panic!("{flagged:?}") };
    assert!(
        others.text.starts_with("During 1 step of 2 other programs went on")
            && others.text.ends_with("80 % of a processor.")
    );
    assert!(stolen.text.contains("hypervisor") && stolen.text.ends_with("30 % of a processor."), "{stolen:?}");
    // 300 % of a processor, less fio's 50 and the others' 80, for 2 GB/s.
    let cpu = |step: &Step| step.outcome.cpu.per_gigabyte(step.outcome.bytes_per_second);
    let Measured::Posix { steps, .. } = &flagged.measured else { panic!("of posix") };
    assert_eq!((cpu(&steps[0]), cpu(&steps[1])), (85.0, 125.0));
}
