//! Reports of one run by each library, side by side. Pure.

use crate::options::Kind;
use crate::report::Report;

/// A column: what it is called, and what was measured by it.
pub type Column<'a> = (&'a str, &'a Report);

/// The tables of latency and bandwidth, with a column for each report, and how many times the first one's figure the others' are.
#[must_use]
pub fn table(columns: &[Column<'_>]) -> String {
    let latency = rows(columns, |report| {
        report.latency.iter().map(|test| ((test.kind, test.bytes), test.latency.p50_us)).collect()
    });
    let bandwidth = rows(columns, |report| {
        report.bandwidth.iter().map(|test| ((test.kind, test.bytes), test.bandwidth.gbps)).collect()
    });
    let mut lines = Vec::new();
    for (title, rows) in [("Latency, P50 [usec]", latency), ("Bandwidth [Gbps]", bandwidth)] {
        if rows.is_empty() {
            continue;
        }
        let names: String = columns.iter().map(|(name, _)| format!(" {name:>12}")).collect();
        let ratios: String =
            columns.iter().skip(1).map(|(name, _)| format!(" {:>14}", ratio_name(columns, name))).collect();
        lines.push(format!("--- {title} ---\n#kind  #bytes    {names}{ratios}"));
        lines.extend(rows.into_iter().map(|((kind, bytes), figures)| {
            let shown: String = figures.iter().map(|figure| format!(" {:>12}", hundredths(*figure))).collect();
            let ratios: String =
                figures.iter().skip(1).map(|other| format!(" {:>14}", hundredths(ratio(*other, figures[0])))).collect();
            format!("{kind:<6} {bytes:<10}{shown}{ratios}")
        }));
    }
    lines.join("\n")
}

fn ratio_name(columns: &[Column<'_>], name: &str) -> String {
    format!("{name}/{}", columns.first().map_or("", |(first, _)| first))
}

type Test = (Kind, u64);

/// The tests of the first report in their order, each with the figures of all.
fn rows(columns: &[Column<'_>], figures: impl Fn(&Report) -> Vec<(Test, f64)>) -> Vec<(Test, Vec<Option<f64>>)> {
    let all: Vec<_> = columns.iter().map(|(_, report)| figures(report)).collect();
    let tests = all.first().map(|first| first.iter().map(|(test, _)| *test).collect::<Vec<_>>());
    let of = |test: Test| {
        all.iter().map(|figures| figures.iter().find(|(known, _)| *known == test).map(|(_, figure)| *figure)).collect()
    };
    tests.unwrap_or_default().into_iter().map(|test| (test, of(test))).collect()
}

fn ratio(other: Option<f64>, first: Option<f64>) -> Option<f64> {
    let (other, first) = (other?, first?);
    (first > 0.0).then_some(other / first)
}

fn hundredths(figure: Option<f64>) -> String {
    figure.map_or_else(|| "—".to_owned(), |figure| format!("{figure:.2}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::{Case, TransportChoice};
    use crate::report::{LatencyResult, ServerReport};
    use crate::statistics::Latency;

    fn report(micros: &[(u64, u64)]) -> Report {
        let latency = micros.iter().map(|(bytes, micros)| LatencyResult {
            kind: Kind::Read,
            bytes: *bytes,
            latency: Latency::of(vec![Duration::from_micros(*micros)]),
        });
        Report {
            version: "0",
            started: String::new(),
            transport: TransportChoice::Ucx,
            server: ServerReport { address: String::new(), version: String::new(), delay_us: 0 },
            ucx: None,
            verbs: None,
            case: Case::Latency,
            duration_seconds: 1.0,
            verified: Vec::new(),
            latency: latency.collect(),
            bandwidth: Vec::new(),
        }
    }

    #[test]
    fn each_test_has_a_row_with_all_figures_and_how_many_times_the_first_they_are() {
        let (verbs, ucx) = (report(&[(64, 2), (4096, 10)]), report(&[(64, 3)]));
        let text = table(&[("verbs", &verbs), ("ucx", &ucx)]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["#kind", "#bytes", "verbs", "ucx", "ucx/verbs"]);
        assert_eq!(rows[2], ["READ", "64", "2.00", "3.00", "1.50"]);
        assert_eq!(rows[3], ["READ", "4096", "10.00", "—", "—"]);
        assert_eq!(rows.len(), 4, "nothing was measured of bandwidth: {text}");
        assert_eq!(table(&[]), "");
    }
}
