//! The lines that a person reads. Pure.

use std::time::Duration;

use forebay_rdma::Resource;

use crate::options::Kind;
use crate::plan::Spread;
use crate::statistics::{Bandwidth, Latency, gbps};

const RULE: &str = "===============================================================";
/// The headings of perftest's tables.
pub(crate) const LATENCY_HEADINGS: &str = "#bytes     #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  \
                                           t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec]";
pub(crate) const BANDWIDTH_HEADINGS: &str =
    "#bytes     #iterations  BW peak[MiB/sec]  BW average[MiB/sec]  MsgRate[Mpps]";

/// A title between two rules.
pub(crate) fn banner(title: &str) -> String {
    let width = RULE.len();
    let line = format!("{title:^width$}");
    format!("{RULE}\n{}\n{RULE}", line.trim_end())
}

/// `--- TITLE ---`. Of operations that a card carries out by itself it is said that nothing is copied.
pub(crate) fn section(title: &str, how: &str, rdma: bool) -> String {
    let copies = if rdma { ", Zero-Copy" } else { "" };
    format!("--- {title} ({how}{copies}) ---")
}

/// How connections are used, where cards are.
pub(crate) const QUEUE_PAIRS: &str = "[INFO] Queue pairs: READ and WRITE have one for each thread, CACHE one for all; inline data: as UCX \
                                      chooses (UCX_RC_TX_MIN_INLINE, UCX_RC_RX_INLINE)";

/// What goes by verbs, and how.
pub(crate) fn verbs(device: &str) -> String {
    format!("[INFO] Verbs over {device}: READ and WRITE by a queue pair for each thread, CACHE by one for all")
}

/// What cannot be measured, and why.
pub(crate) const NO_WINDOWS: &str = "[WARN] No READ, WRITE and SEAL: a card has no memory windows of type 2. CACHE is measured; its \
                                     payload comes in messages if the client's card has none";

/// The card of a lane.
pub(crate) fn card(description: &str) -> String {
    format!("[INFO] Card {description}")
}

/// What UCX uses, and whether that is RDMA.
pub(crate) fn lanes(version: &str, lanes: &[Resource]) -> String {
    let names: Vec<_> = lanes.iter().map(ToString::to_string).collect();
    let used = if names.is_empty() { "no lane that it names".to_owned() } else { names.join(", ") };
    let mut text = format!("[INFO] UCX {version} over {used}");
    if !lanes.iter().any(Resource::is_rdma) {
        let what = if !lanes.is_empty() && lanes.iter().all(Resource::is_shared_memory) {
            "shared memory of one machine"
        } else {
            "software, by the processors of both sides"
        };
        text.push_str(&format!("\n[WARN] This is NOT RDMA: bytes are moved through {what}."));
    }
    text
}

/// A payload that was compared.
pub(crate) fn verified(kind: Kind, bytes: u64, transfers: u32) -> String {
    format!("[BASIC - {kind:<5}] Payload: {bytes:<7} Bytes | Verified byte for byte: {transfers} transfers")
}

/// A latency test of `wanted` operations, in two lines.
pub(crate) fn latency(kind: Kind, bytes: u64, latency: &Latency, (wanted, within): (usize, Duration)) -> String {
    let iterations = latency.iterations;
    let cut =
        if iterations < wanted { format!(" (of {wanted}, cut after {} sec)", within.as_secs()) } else { String::new() };
    let figures = [
        ("Min", Some(latency.min_us)),
        ("Avg", Some(latency.avg_us)),
        ("P50", Some(latency.p50_us)),
        ("P99", latency.p99_us),
        ("P99.9", latency.p999_us),
        ("Max", Some(latency.max_us)),
    ];
    let figure =
        |micros: &Option<f64>| micros.map_or_else(|| format!("{:>10}", "—"), |micros| format!("{micros:>7.1} us"));
    let figures: Vec<_> = figures.iter().map(|(name, micros)| format!("{name}: {}", figure(micros))).collect();
    format!(
        "[LATENCY - {kind:<5}] Payload: {bytes:<7} Bytes | Iterations: {iterations}{cut}\n  -> {}",
        figures.join(" | ")
    )
}

/// What a bandwidth test is about to do, in two lines.
pub(crate) fn bandwidth_begins(kind: Kind, bytes: u64, duration: Duration, spread: Spread) -> String {
    format!(
        "[BANDWIDTH - {kind:<5}] Payload: {bytes:<7} Bytes | Duration: {} sec\n  -> Config: threads={}, inFlightPerThread={}",
        duration.as_secs(),
        spread.jobs,
        spread.depth
    )
}

/// The last second.
pub(crate) fn live(ops_per_second: f64, bytes: u64) -> String {
    format!("  -> [Live] {ops_per_second:>8.0} ops/s | {:>7.2} Gbps", gbps(ops_per_second, bytes))
}

/// A bandwidth test's result.
pub(crate) fn bandwidth(bandwidth: &Bandwidth) -> String {
    format!(
        "  -> [Avg]  {:>8.0} ops/s | {:>7.2} Gbps | CPU seconds per GiB: client {:.3}, server {:.3}",
        bandwidth.ops_per_second,
        bandwidth.gbps,
        bandwidth.client_cpu_seconds_per_gib,
        bandwidth.server_cpu_seconds_per_gib
    )
}

/// A row of the latency table.
pub(crate) fn latency_row(bytes: u64, latency: &Latency) -> String {
    format!(
        "{bytes:<10} {:<12} {:<12.2} {:<12.2} {:<16.2} {:<12.2} {:<14.2} {:<21} {}",
        latency.iterations,
        latency.min_us,
        latency.max_us,
        latency.p50_us,
        latency.avg_us,
        latency.stdev_us,
        hundredths(latency.p99_us),
        hundredths(latency.p999_us)
    )
}

/// A figure of a table, if it is known.
fn hundredths(micros: Option<f64>) -> String {
    micros.map_or_else(|| "—".to_owned(), |micros| format!("{micros:.2}"))
}

/// A row of the bandwidth table.
pub(crate) fn bandwidth_row(bytes: u64, bandwidth: &Bandwidth) -> String {
    format!(
        "{bytes:<10} {:<12} {:<17.2} {:<20.2} {:.6}",
        bandwidth.operations,
        bandwidth.peak_mib_per_second,
        bandwidth.mib_per_second,
        bandwidth.ops_per_second / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Latency = Latency {
        iterations: 5000,
        min_us: 1.2,
        max_us: 6.2,
        avg_us: 1.8,
        stdev_us: 0.3,
        p50_us: 1.7,
        p99_us: Some(3.5),
        p999_us: Some(4.8),
    };

    #[test]
    fn a_latency_line_has_every_figure_in_its_place() {
        let text = latency(Kind::Write, 4096, &FIGURES, (5000, Duration::from_secs(10)));
        let expected = "[LATENCY - WRITE] Payload: 4096    Bytes | Iterations: 5000\n  -> Min:     1.2 us | Avg:     1.8 us | \
                        P50:     1.7 us | P99:     3.5 us | P99.9:     4.8 us | Max:     6.2 us";
        assert_eq!(text, expected);
        let few = Latency { iterations: 12, p99_us: None, p999_us: None, ..FIGURES };
        let cut = latency(Kind::Read, 1 << 20, &few, (5000, Duration::from_secs(3)));
        assert!(cut.ends_with("P99:          — | P99.9:          — | Max:     6.2 us"), "{cut}");
        assert!(
            cut.starts_with("[LATENCY - READ ] Payload: 1048576 Bytes | Iterations: 12 (of 5000, cut after 3 sec)\n")
        );
    }

    #[test]
    fn a_bandwidth_test_has_its_configuration_live_lines_and_a_result_with_processor_time() {
        let spread = Spread { jobs: 8, depth: 32 };
        assert_eq!(
            bandwidth_begins(Kind::Read, 4096, Duration::from_secs(10), spread),
            "[BANDWIDTH - READ ] Payload: 4096    Bytes | Duration: 10 sec\n  -> Config: threads=8, inFlightPerThread=32"
        );
        assert_eq!(live(1_280_000.0, 4096), "  -> [Live]  1280000 ops/s |   41.94 Gbps");
        let result = Bandwidth {
            ops_per_second: 18_880.0,
            gbps: 158.46,
            client_cpu_seconds_per_gib: 0.05,
            server_cpu_seconds_per_gib: 0.001,
            ..Bandwidth::default()
        };
        let expected = "  -> [Avg]     18880 ops/s |  158.46 Gbps | CPU seconds per GiB: client 0.050, server 0.001";
        assert_eq!(bandwidth(&result), expected);
    }

    #[test]
    fn the_rows_of_a_table_stand_below_their_headings() {
        let starts = |line: &str, gap: &str| {
            let columns = line.split(gap).filter(|column| !column.trim().is_empty());
            columns.map(|column| line.find(column.trim()).unwrap()).collect::<Vec<_>>()
        };
        let figures =
            Latency { iterations: 1234, min_us: 21.5, max_us: 99.25, avg_us: 35.125, p50_us: 33.0, ..FIGURES };
        let row = latency_row(8 << 20, &figures);
        assert_eq!(row.split_whitespace().collect::<Vec<_>>()[..4], ["8388608", "1234", "21.50", "99.25"]);
        let heading = LATENCY_HEADINGS.replace("% percentile", "%_percentile");
        assert_eq!(starts(&row, " "), starts(&heading, " "));
        let bandwidth =
            Bandwidth { operations: 77, mib_per_second: 4020.54, peak_mib_per_second: 4104.91, ..Bandwidth::default() };
        let heading = BANDWIDTH_HEADINGS.replace("BW ", "BW_");
        let row = bandwidth_row(1000, &Bandwidth { ops_per_second: 4_215_846.0, ..bandwidth });
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["1000", "77", "4104.91", "4020.54", "4.215846"]);
        assert_eq!(starts(&row, " "), starts(&heading, " "));
    }

    #[test]
    fn what_is_not_rdma_is_said_to_be_none() {
        let lane = |transport: &str| Resource { transport: transport.into(), device: "x".into() };
        assert_eq!(lanes("1.20.0", &[lane("rc_mlx5")]), "[INFO] UCX 1.20.0 over rc_mlx5/x");
        assert!(
            lanes("1.20.0", &[lane("posix"), lane("cma")]).contains("NOT RDMA: bytes are moved through shared memory")
        );
        assert!(lanes("1.20.0", &[lane("tcp"), lane("self")]).contains("NOT RDMA: bytes are moved through software"));
        assert!(lanes("1.20.0", &[]).contains("NOT RDMA"));
    }

    #[test]
    fn a_banner_is_in_the_middle() {
        let lines = banner("TITLE");
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], lines[2]);
        assert_eq!(lines[1].trim(), "TITLE");
        assert_eq!(lines[1].find("TITLE"), Some((RULE.len() - 5) / 2));
    }
}
