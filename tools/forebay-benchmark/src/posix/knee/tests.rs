use proptest::prelude::*;

use super::*;
use crate::posix::testing::{case, machine, step, sweep};

fn found(steps: &[Step], machine: &Machine) -> Option<Knee> {
    knee(&points(steps, &case(0)), &case(0), machine)
}

fn quiet() -> Machine {
    Machine { network: None, disk_bytes_per_second: None, ..machine() }
}

/// c servers, each of 1 GB/s: what n jobs get of them, and how long they wait then.
fn saturating(servers: u32, jobs: &[u32]) -> Vec<Step> {
    let point = |jobs: &u32| {
        let (jobs, servers) = (f64::from(*jobs), f64::from(servers));
        (jobs as u32, jobs.min(servers), 100.0 * (jobs / servers).max(1.0))
    };
    sweep(&case(0), &jobs.iter().map(point).collect::<Vec<_>>())
}

#[test]
fn the_published_sweep_has_its_knee_where_the_bandwidth_stops_and_not_at_more() {
    // 2101, 9519 and 8089 MiB/s with 1, 32 and 128 jobs; the latencies that follow from them for blocks of 1 MiB.
    let steps = sweep(&case(0), &[(1, 2.2, 600.0), (32, 9.98, 4000.0), (128, 8.48, 19000.0)]);
    let knee = found(&steps, &machine()).unwrap();
    assert_eq!((knee.jobs, knee.reason), (32, Reason::Disk));
    let network =
        Machine { network: Some(crate::record::Link { name: "ens5".into(), bits_per_second: 90e9 }), ..machine() };
    let knee = found(&steps, &network).unwrap();
    assert_eq!(knee.reason, Reason::Network);
    assert_eq!(
        knee.text,
        "32 jobs are the knee: 10 GB/s, p99 4.0 ms. 128 jobs give 15 % less, and p99 is 4.8 times as long. The network is \
         full: 89 % of ens5 (90 Gb/s)."
    );
}

#[test]
fn p99_that_leaps_while_the_bandwidth_still_creeps_up_is_past_the_knee() {
    let steps =
        sweep(&case(0), &[(1, 1.0, 100.0), (2, 1.9, 120.0), (4, 3.5, 150.0), (8, 4.0, 900.0), (16, 4.1, 2500.0)]);
    assert_eq!(found(&steps, &quiet()).unwrap().jobs, 4);
}

#[test]
fn a_small_p99_that_trebles_while_all_scales_is_no_knee() {
    let steps = sweep(&case(0), &[(1, 1.0, 10.0), (2, 1.9, 35.0), (4, 3.7, 40.0), (8, 3.7, 85.0)]);
    assert_eq!(found(&steps, &quiet()).unwrap().jobs, 4);
}

#[test]
fn a_wait_that_only_the_mean_shows_counts_as_well() {
    let mut steps = sweep(&case(0), &[(1, 10.0, 40.0), (2, 16.0, 40.0), (4, 17.2, 39.0), (8, 18.4, 39.0)]);
    let means = [20.0, 30.0, 60.0, 110.0];
    steps.iter_mut().zip(means).for_each(|(step, mean)| step.outcome.latency.mean = mean);
    let knee = found(&steps, &quiet()).unwrap();
    assert_eq!(knee.jobs, 2);
    assert!(knee.text.contains("8 jobs give 15 % more, and the mean is 3.7 times as long"), "{}", knee.text);
}

#[test]
fn one_bad_point_in_between_is_no_knee() {
    let steps = sweep(&case(0), &[(1, 1.0, 100.0), (2, 0.9, 400.0), (4, 3.6, 120.0), (8, 7.0, 130.0)]);
    assert_eq!(found(&steps, &quiet()), None);
}

#[test]
fn there_is_no_knee_while_the_last_point_is_the_best() {
    assert_eq!(found(&saturating(16, &[1, 2, 4, 8, 16]), &quiet()), None);
    assert_eq!(found(&saturating(16, &[4]), &quiet()), None);
    assert_eq!(found(&[], &quiet()), None);
}

#[test]
fn a_sweep_ends_two_points_past_the_knee_and_never_within_a_number_of_jobs() {
    let steps = saturating(4, &[1, 2, 4, 8, 16]);
    assert!(!is_past(&steps[..4], &case(16)));
    assert!(is_past(&steps, &case(32)));
    // The rounds of 16 that follow the first one are still made.
    assert!(!is_past(&steps, &case(16)));
    assert!(!is_past(&saturating(64, &[1, 2, 4, 8, 16]), &case(32)));
    assert!(!is_past(&steps, &Case { target: "other".into(), ..case(32) }));
}

#[test]
fn rounds_count_with_their_median() {
    let rounds = [(1.0, 100.0), (9.0, 9000.0), (1.2, 110.0)];
    let steps: Vec<_> = rounds.iter().map(|(rate, p99)| step(case(1), *rate, *p99)).collect();
    let points = points(&steps, &case(0));
    assert_eq!((points.len(), points[0].bytes_per_second, points[0].p99), (1, 1.2e9, 110.0));
}

#[test]
fn what_is_full_is_read_off_the_knee_and_what_follows() {
    let cpu = |machine: f64, fio: f64| {
        let mut steps = saturating(4, &[1, 2, 4, 8]);
        steps.iter_mut().for_each(|step| step.outcome.cpu = Cpu { machine, fio, ..Cpu::default() });
        found(&steps, &quiet()).unwrap()
    };
    assert_eq!(cpu(780.0, 100.0).reason, Reason::Processors);
    let mut crowded = saturating(4, &[1, 2, 4, 8]);
    crowded.iter_mut().for_each(|step| step.outcome.cpu = Cpu { machine: 780.0, others: 390.0, ..Cpu::default() });
    let text = found(&crowded, &quiet()).unwrap().text;
    assert!(text.ends_with("The processors are full: 98 %, 50 % of it with what other programs do."), "{text}");
    assert_eq!(cpu(780.0, 500.0).reason, Reason::Readers);
    assert_eq!(cpu(500.0, 395.0).reason, Reason::Readers);
    let waiting = cpu(300.0, 100.0);
    assert_eq!(waiting.reason, Reason::FileSystem);
    assert!(waiting.text.contains("Nothing is full (the processors are 38 % busy)"), "{}", waiting.text);
}

#[test]
fn several_clients_have_a_card_each_and_several_workers_a_disk_each() {
    let topology = Case { clients: 4, workers: 2, ..case(0) };
    let reason = |rate: f64| {
        let steps = sweep(&topology, &[(1, rate, 100.0), (2, rate, 200.0)]);
        knee(&points(&steps, &topology), &topology, &machine()).unwrap().reason
    };
    assert_eq!(reason(45.0), Reason::Network);
    assert_eq!(reason(18.0), Reason::Disk);
    assert_eq!(reason(30.0), Reason::FileSystem);
}

#[test]
fn more_than_the_card_carries_came_another_way() {
    let steps = sweep(&case(0), &[(1, 40.0, 100.0), (2, 40.0, 200.0)]);
    let machine = Machine { disk_bytes_per_second: None, ..machine() };
    let knee = found(&steps, &machine).unwrap();
    assert_eq!(knee.reason, Reason::FileSystem);
    assert!(knee.text.contains("much of it did not cross the network"), "{}", knee.text);
}

proptest! {
    #[test]
    fn so_many_jobs_as_there_are_servers_are_the_knee(power in 0_u32..8, noise in prop::collection::vec(0.97_f64..1.03, 20)) {
        let servers = 1 << power;
        let mut steps = saturating(servers, &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        for (step, noise) in steps.iter_mut().zip(noise.chunks(2)) {
            step.outcome.bytes_per_second *= noise[0].min(1.0);
            step.outcome.latency.p99 *= noise[1];
            step.outcome.latency.mean *= noise[1];
        }
        let knee = found(&steps, &quiet()).unwrap();
        prop_assert_eq!(knee.jobs, servers);
    }

    #[test]
    fn the_knee_is_a_point_and_stays_one_when_the_sweep_is_cut_past_it(
        figures in prop::collection::vec((0.001_f64..100.0, 1.0_f64..1e6), 1..10),
    ) {
        let jobs = (0..).map(|power| 1_u32 << power);
        let all: Vec<_> = figures.iter().zip(jobs).map(|((rate, p99), jobs)| (jobs, *rate, *p99)).collect();
        let steps = sweep(&case(0), &all);
        if let Some(knee) = found(&steps, &machine()) {
            let at = steps.iter().position(|step| step.case.jobs == knee.jobs).unwrap();
            prop_assert!(at + 1 < steps.len());
            let cut = found(&steps[..at + 2], &machine()).unwrap();
            prop_assert_eq!(cut.jobs, knee.jobs);
        }
    }
}

#[test]
fn a_knee_is_shown_by_more_than_rounds_differ_and_only_then_ends_a_sweep() {
    let rounds = |spread: f64| -> Vec<Step> {
        let all = [1.0 - spread, 1.0, 1.0 + spread].map(|factor| {
            let mut steps = saturating(4, &[1, 2, 4, 8, 16]);
            for step in &mut steps {
                step.outcome.bytes_per_second *= factor;
                step.outcome.latency.p99 /= factor;
                step.outcome.latency.mean /= factor;
            }
            steps
        });
        all.concat()
    };
    let certainty = |steps: &[Step]| found(steps, &quiet()).unwrap().certainty;
    assert_eq!((certainty(&rounds(0.02)), is_past(&rounds(0.02), &case(32))), (Certainty::Shown, true));
    assert_eq!((certainty(&rounds(0.4)), is_past(&rounds(0.4), &case(32))), (Certainty::WithinSpread, false));
    let once = saturating(4, &[1, 2, 4, 8, 16]);
    assert_eq!((certainty(&once), is_past(&once, &case(32))), (Certainty::OneRound, true));
}
