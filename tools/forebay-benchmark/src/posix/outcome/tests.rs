//! What fio 3.33 really printed, paths and names of machines replaced.

use proptest::prelude::*;

use super::*;

const SHARED: &str = include_str!("../recorded/one_machine_shared.json");
const DISTINCT: &str = include_str!("../recorded/one_machine_distinct.json");
const UNGROUPED: &str = include_str!("../recorded/one_machine_ungrouped.json");
const MISSING: &str = include_str!("../recorded/one_machine_failed.json");
const ONE_CLIENT: &str = include_str!("../recorded/one_client.json");
const TWO_CLIENTS: &str = include_str!("../recorded/two_clients.json");
const TWO_COUNTED: &str = include_str!("../recorded/two_clients_histograms.json");
const TWO_UNGROUPED: &str = include_str!("../recorded/two_clients_ungrouped.json");
const ONE_OF_TWO: &str = include_str!("../recorded/one_client_of_two.json");
const TWO_FAILED: &str = include_str!("../recorded/two_clients_failed.json");

fn read(text: &str, clients: u32) -> Outcome {
    outcome(text.as_bytes(), clients).unwrap()
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= expected.abs() * 1e-3, "{value} is not {expected}");
}

#[test]
fn one_group_is_taken_as_it_is() {
    let shared = read(SHARED, 1);
    near(shared.bytes_per_second, 9_046_455_880.0);
    near(shared.operations_per_second, 34_509.49);
    assert_eq!((shared.operations, shared.bytes), (34_544, 9_055_502_336));
    near(shared.seconds, 1.001);
    near(shared.latency.mean, 57.064);
    near(shared.latency.p50, 38.144);
    near(shared.latency.p99, 85.504);
    near(shared.latency.p999, 4079.616);
    near(shared.latency.max, 50_332.635);
    assert!(shared.clients.is_empty());
}

#[test]
fn fio_s_own_processor_time_is_of_all_its_jobs_at_once() {
    // Two jobs ran for a second each, and fio says 0.55 % + 67.9 % of each on average.
    near(read(SHARED, 1).cpu.fio, (0.55 + 67.9) * 2000.0 / 1001.0);
    near(read(UNGROUPED, 1).cpu.fio, (0.3 + 71.6) + (0.2997 + 42.957) * 1001.0 / 1002.0);
    let shared = read(SHARED, 1).cpu;
    assert!(shared.machine == 0.0 && read(ONE_CLIENT, 1).cpu == Cpu::default(), "that is for who runs it to say");
}

#[test]
fn the_sections_of_a_job_file_are_one_group() {
    let distinct = read(DISTINCT, 1);
    near(distinct.bytes_per_second, 8_247_191_656.0);
    assert_eq!(distinct.operations, 31_492);
}

#[test]
fn jobs_that_were_not_grouped_are_added_up_and_their_means_weighted() {
    let ungrouped = read(UNGROUPED, 1);
    near(ungrouped.bytes_per_second, 9_371_123_712.0);
    assert_eq!(ungrouped.operations, 8944);
    near(ungrouped.latency.mean, 196.269);
    // Without counts: the highest of both.
    near(ungrouped.latency.p99, 2899.968);
    near(ungrouped.latency.max, 93_681.324);
}

#[test]
fn clients_are_added_up_without_fio_s_own_sum_of_them() {
    assert!(TWO_CLIENTS.contains(ALL_CLIENTS));
    let both = read(TWO_CLIENTS, 2);
    near(both.bytes_per_second, 9_463_329_919.0);
    assert_eq!(both.operations, 36_208);
    near(both.latency.mean, 108.908);
    near(both.latency.p99, 3063.808);
    near(both.latency.max, 16_888.435);
    // Two servers of one machine are told from each other by their ports.
    let hosts: Vec<_> = both.clients.iter().map(|client| (client.host.as_str(), client.operations)).collect();
    assert_eq!(hosts, [("127.0.0.1:28765", 18_103), ("127.0.0.1:28766", 18_105)]);
    near(both.clients.iter().map(|client| client.bytes_per_second).sum(), both.bytes_per_second);
}

#[test]
fn percentiles_of_clients_are_of_what_all_of_them_counted_and_never_above_the_highest() {
    let both = read(TWO_COUNTED, 2);
    assert_eq!(both.operations, 36_955 + 36_915);
    // 61.7 and 60.7 µs, of as many operations each.
    near(both.latency.p99, 61.696);
    assert!(both.clients.iter().all(|client| client.latency.p99 <= client.latency.max));
    // fio's buckets go up to 8.09 ms, of which the middle is above everything that was counted.
    assert!(both.latency.p999 <= both.latency.max && both.latency.max < 8079.764, "{:?}", both.latency);
}

#[test]
fn a_client_with_several_entries_is_one_client() {
    let both = read(TWO_UNGROUPED, 2);
    assert_eq!((both.clients.len(), both.operations), (2, 33_032));
    near(both.latency.mean, 120.425);
    assert_eq!(both.clients[0].operations, 9159 + 7216);
}

#[test]
fn a_single_client_needs_no_sum() {
    let one = read(ONE_CLIENT, 1);
    assert_eq!((one.clients.len(), one.clients[0].host.as_str(), one.operations), (1, "127.0.0.1", 34_841));
}

#[test]
fn a_client_that_did_not_answer_is_an_error() {
    let error = outcome(ONE_OF_TWO.as_bytes(), 2).unwrap_err();
    assert_eq!(error, OutcomeError::Clients { asked: 2, answered: 1 });
    assert!(error.to_string().starts_with("1 of 2 clients answered; start `fio --server`"), "{error}");
}

#[test]
fn a_job_that_failed_is_an_error_with_its_reason_though_it_read_something() {
    let error = outcome(MISSING.as_bytes(), 1).unwrap_err().to_string();
    assert_eq!(error, "fio's job s failed: Invalid argument (os error 22)");
    assert!(TWO_FAILED.starts_with("<controller> fio: file"), "notes come first");
    let error = outcome(TWO_FAILED.as_bytes(), 2).unwrap_err().to_string();
    assert_eq!(error, "fio's job shared failed on 127.0.0.1: No such file or directory (os error 2)");
}

#[test]
fn notes_before_and_after_the_json_are_skipped_braces_and_all() {
    let plain = read(SHARED, 1);
    let note = "note: both iodepth >= 1 and synchronous I/O engine are selected, queue depth will be capped at 1\n";
    for text in [format!("{note}{SHARED}"), format!("{{odd}} {{\n{{\"an\": 1}}\n{SHARED}\n\n{{\"jobs\": 3}}")] {
        assert_eq!(read(&text, 1), plain);
    }
}

#[test]
fn what_is_no_json_is_told_by_its_first_line() {
    let error = outcome(b"\nvalue exceeds max length of 4096\nfio: failed parsing filename\n", 1).unwrap_err();
    assert_eq!(error.to_string(), "fio gave no result: value exceeds max length of 4096");
    assert_eq!(outcome(b"", 1).unwrap_err(), OutcomeError::NoResult("it printed nothing".into()));
    assert!(matches!(outcome(b"{\n\"jobs\": []\n}", 1), Err(OutcomeError::NothingRead)));
    assert!(matches!(outcome(&SHARED.as_bytes()[..4000], 1), Err(OutcomeError::NoResult(_))));
}

proptest! {
    #[test]
    fn nothing_that_it_could_be_given_is_too_much(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..6000) {
        let _ = outcome(&bytes, 1);
        let mut damaged = SHARED.as_bytes().to_vec();
        damaged.truncate(cut);
        damaged.extend(&bytes);
        let _ = outcome(&damaged, 2);
    }
}

#[test]
fn counts_that_no_number_holds_are_the_largest_one() {
    let entry = |host: &str| {
        format!(
            r#"{{"jobname":"read","hostname":"{host}","port":1,"error":0,"read":{{"io_bytes":{0},"bw_bytes":1.0,"iops":1.0,"runtime":1.0,
            "total_ios":{0},"clat_ns":{{"max":9.0,"mean":5.0,"percentile":{{}},"bins":{{"7":{0},"9":{0}}}}}}}}}"#,
            u64::MAX
        )
    };
    let counted = read(&format!("{{\"client_stats\":[{},{}]}}", entry("a"), entry("b")), 2);
    assert_eq!((counted.operations, counted.bytes), (u64::MAX, u64::MAX));
    assert_eq!(counted.latency.max, 0.009);
}
