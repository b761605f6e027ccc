//! The study's four conclusions, held against what was measured here.
//!
//! | rule | the study, 40 Gb/s InfiniBand against TCP |
//! | --- | --- |
//! | `single-client` | a single client reads a remote file up to 50 % faster |
//! | `several-clients-cpu` | several clients at once use up to 50 % less of the processors of both ends |
//! | `larger-files` | the larger the file the larger the gain, since an RDMA connection takes longer to make |
//! | `many-files` | and so it is with many files, since connections are used again |
//!
//! `up to` is the best cell. That alone would be luck, so the first two hold only where the median of all cells points the same
//! way, and the first where that cell's rounds agree. (Not the mean: a small file can lose any multiple of its time, and gain no
//! more than all of it.) The other two are of trends: they hold where two of three comparisons, or more than half of the rows,
//! say so. What the first file pays for that later ones do not is solved from the times with one file and with many.
//!
//! Three more say what all of that is worth: `carried-by` where UCX had no RDMA, `noise` where rounds differ widely, and
//! `against` for another file system.

use std::collections::BTreeMap;

use super::statistics::{Pair, pairs};
use super::units::{milliseconds, size};
use crate::median;
use crate::record::{Cell, Finding, Level};

/// A best cell that is better by less is none.
const NOTABLE: f64 = 0.05;
/// A difference of a trend below this is none.
const TREND: f64 = 0.01;
/// Rounds that lie farther apart than this hide what is to be seen.
const NOISY: f64 = 0.25;

/// What the cells say of `other`, such as `ucx`, against `base`, such as `tcp`. Nothing where they were not measured together.
#[must_use]
pub fn conclusions(cells: &[Cell], base: &str, other: &str) -> Vec<Finding> {
    let pairs = pairs(cells, base, other);
    if pairs.is_empty() {
        return Vec::new();
    }
    let carried = carried(cells, other);
    let ways = Ways { base, other, is_rdma: carried.is_rdma };
    let findings = [
        single_client(&pairs, &ways),
        several_clients(&pairs, &ways),
        larger_files(&pairs, &ways),
        many_files(&pairs, &ways),
        carried.finding(other),
        noise(&pairs),
    ];
    findings.into_iter().flatten().collect()
}

/// How Forebay, by the way `ours`, does beside another file system.
#[must_use]
pub fn against(cells: &[Cell], ours: &str, theirs: &str) -> Option<Finding> {
    let pairs = pairs(cells, theirs, ours);
    let ratio = |pair: &Pair| pair.other.milliseconds_per_file / pair.base.milliseconds_per_file;
    let typical = median(pairs.iter().map(ratio))?;
    let best = pairs.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let worst = pairs.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let text = format!(
        "A file took {typical:.2} times as long through Forebay ({ours}) as in {theirs}, the median of {} cells: from {:.2} ({}) to \
         {:.2} ({}).",
        pairs.len(),
        ratio(best),
        cell(best),
        ratio(worst),
        cell(worst)
    );
    let level = if typical <= 1.0 { Level::Good } else { Level::Info };
    Some(Finding { rule: "against".to_owned(), level, text, next: None })
}

/// What is compared.
struct Ways<'a> {
    base: &'a str,
    other: &'a str,
    is_rdma: bool,
}

impl Ways<'_> {
    /// A conclusion of the study that holds here, or not.
    fn finding(&self, rule: &str, holds: bool, what: &str, study: &str) -> Option<Finding> {
        let verdict = if holds { "holds here" } else { "does not hold here" };
        let (level, next) = match (holds, self.is_rdma) {
            (true, _) => (Level::Good, None),
            // Without a card there is nothing to mend.
            (false, false) => (Level::Info, None),
            (false, true) => {
                let next = "`forebay doctor` says what may hold RDMA up; `forebay bench rdma` measures the link alone";
                (Level::Warn, Some(next.to_owned()))
            }
        };
        let text = format!("{what} The study's conclusion, {study}, {verdict}.");
        Some(Finding { rule: rule.to_owned(), level, text, next })
    }
}

fn single_client(pairs: &[Pair], ways: &Ways<'_>) -> Option<Finding> {
    let pairs: Vec<&Pair> = pairs.iter().filter(|pair| pair.clients == 1).collect();
    let best = fastest(&pairs)?;
    let typical = median(pairs.iter().map(|pair| pair.faster()))?;
    let what = format!(
        "One client read a file at best {} over {} than over {} ({}: {} against {}); the median of {} is {}.",
        gain(best.faster(), "faster", "slower"),
        ways.other,
        ways.base,
        cell(best),
        milliseconds(best.other.milliseconds_per_file),
        milliseconds(best.base.milliseconds_per_file),
        count(pairs.len(), "cell"),
        gain(typical, "faster", "slower"),
    );
    let holds = best.agreed && best.faster() >= NOTABLE && typical > 0.0;
    ways.finding("single-client", holds, &what, "up to 50 % faster for a single client")
}

fn several_clients(pairs: &[Pair], ways: &Ways<'_>) -> Option<Finding> {
    let several: Vec<&Pair> = pairs.iter().filter(|pair| pair.clients > 1).collect();
    let pairs: Vec<&Pair> = several.iter().filter(|pair| pair.has_processors()).copied().collect();
    if pairs.is_empty() {
        let is_known = several.iter().any(|pair| (pair.base.processors() + pair.other.processors()).is_finite());
        let (why, next) = match is_known {
            true => ("all was over too soon", "measure larger files: --scale"),
            false => ("the workers did not say what they used", "`forebay stats --workers HOST:PORT --all` says why"),
        };
        let text = format!("What several clients use of the processors cannot be told: {why}.");
        let next = Some(next.to_owned());
        let finding = Finding { rule: "several-clients-cpu".to_owned(), level: Level::Info, text, next };
        return (!several.is_empty()).then_some(finding);
    }
    let best = most(pairs.iter().copied(), Pair::cheaper)?;
    let typical = median(pairs.iter().map(|pair| pair.cheaper()))?;
    let what = format!(
        "Several clients and the worker used at best {} of the processors over {} than over {} ({}: {:.0} against {:.0} percent × \
         seconds); the median of {} is {}.",
        gain(best.cheaper(), "less", "more"),
        ways.other,
        ways.base,
        cell(best),
        best.other.processors(),
        best.base.processors(),
        count(pairs.len(), "cell"),
        gain(typical, "less", "more"),
    );
    let holds = best.cheaper() >= NOTABLE && typical > 0.0;
    ways.finding("several-clients-cpu", holds, &what, "up to 50 % less with several clients")
}

fn larger_files(pairs: &[Pair], ways: &Ways<'_>) -> Option<Finding> {
    let mut rows: BTreeMap<(u32, u32), Vec<&Pair>> = BTreeMap::new();
    for pair in pairs {
        // In order of their sizes, as all pairs are.
        rows.entry((pair.clients, pair.files)).or_default().push(pair);
    }
    rows.retain(|_, row| row.len() > 1);
    let (mut grown, mut compared) = (0, 0);
    for row in rows.values() {
        for (index, smaller) in row.iter().enumerate() {
            let larger = &row[index + 1..];
            compared += larger.len();
            grown += larger.iter().filter(|larger| larger.faster() > smaller.faster()).count();
        }
    }
    let ends = |of: fn(&[&Pair]) -> Option<f64>| median(rows.values().filter_map(|row| of(row)));
    let first = ends(|row| row.first().map(|pair| pair.faster()))?;
    let last = ends(|row| row.last().map(|pair| pair.faster()))?;
    let what = format!(
        "From the smallest to the largest files {} went from {} to {}, the median of {}; of {} of a size with a larger one {grown} show \
         the larger gain with the larger files.",
        ways.other,
        gain(first, "faster", "slower"),
        gain(last, "faster", "slower"),
        count(rows.len(), "row"),
        count(compared, "comparison"),
    );
    let holds = last - first > TREND && grown * 3 >= compared * 2;
    ways.finding("larger-files", holds, &what, "a gain that grows with the size of files")
}

fn many_files(pairs: &[Pair], ways: &Ways<'_>) -> Option<Finding> {
    let mut rows: BTreeMap<(u32, u64), Vec<&Pair>> = BTreeMap::new();
    for pair in pairs {
        // In order of their numbers of files, as all pairs are.
        rows.entry((pair.clients, pair.file_bytes)).or_default().push(pair);
    }
    let ends = rows.into_values().filter_map(|row| Some((*row.first()?, *row.last()?)));
    let rows: Vec<(&Pair, &Pair)> = ends.filter(|(few, many)| few.files < many.files).collect();
    let grown = rows.iter().filter(|(few, many)| many.faster() > few.faster()).count();
    let of_few = median(rows.iter().map(|(few, _)| few.faster()))?;
    let of_many = median(rows.iter().map(|(_, many)| many.faster()))?;
    let (few, many) = rows.first().map(|(few, many)| (few.files, many.files))?;
    let first_file = |time: fn(&Pair) -> f64| {
        // `few · T(few) = first + few · t`, and the same for `many`: what is left is what only the first file pays for.
        let extra = |(few, many): &(&Pair, &Pair)| {
            (time(few) - time(many)) / (1.0 / f64::from(few.files) - 1.0 / f64::from(many.files))
        };
        median(rows.iter().map(extra)).unwrap_or_default().max(0.0)
    };
    let what = format!(
        "With {} in place of {few}, {} went from {} to {}, the median of {}, and gained in {grown} of them; what only the first file \
         pays for, connecting included, is {} over {} and {} over {}.",
        count(many as usize, "file"),
        ways.other,
        gain(of_few, "faster", "slower"),
        gain(of_many, "faster", "slower"),
        count(rows.len(), "row"),
        milliseconds(first_file(|pair| pair.other.milliseconds_per_file)),
        ways.other,
        milliseconds(first_file(|pair| pair.base.milliseconds_per_file)),
        ways.base,
    );
    let holds = of_many - of_few > TREND && grown * 2 > rows.len();
    ways.finding(
        "many-files",
        holds,
        &what,
        "a gain that grows with the number of files, as connections are used again",
    )
}

fn noise(pairs: &[Pair]) -> Option<Finding> {
    let typical = median(pairs.iter().filter_map(|pair| pair.spread))?;
    (typical > NOISY).then(|| Finding {
        rule: "noise".to_owned(),
        level: Level::Warn,
        text: format!(
            "The rounds of a cell lie {:.0} % apart (the median): smaller differences say little.",
            typical * 100.0
        ),
        next: Some("use a quieter machine, larger files (--scale) or more rounds (--repeat)".to_owned()),
    })
}

/// What a way went over.
struct Carried {
    is_rdma: bool,
    over: Vec<String>,
}

fn carried(cells: &[Cell], way: &str) -> Carried {
    // UCX's names of what a card does by itself, as in `forebay_ucx::Resource::is_rdma`.
    const RDMA: [&str; 5] = ["rc_", "dc_", "ud_", "srd", "gga_"];
    let mut over: Vec<String> =
        cells.iter().filter(|cell| cell.transport == way).map(|cell| cell.carried_by.clone()).collect();
    over.sort();
    over.dedup();
    let is_rdma = over.iter().any(|over| RDMA.iter().any(|name| over.contains(name)));
    Carried { is_rdma, over }
}

impl Carried {
    fn finding(&self, way: &str) -> Option<Finding> {
        (!self.is_rdma && way == "ucx").then(|| Finding {
            rule: "carried-by".to_owned(),
            level: Level::Info,
            text: format!(
                "There was no RDMA: what was asked of {way} went over {}. That says what the transport costs, and nothing of what a card \
                 gives.",
                self.over.join(" or ")
            ),
            next: Some(
                "run it where `forebay doctor` shows an active card, with workers on another host: --workers HOST:PORT"
                    .to_owned(),
            ),
        })
    }
}

/// The fastest, of those whose rounds agree where there are such.
fn fastest<'a>(pairs: &[&'a Pair]) -> Option<&'a Pair> {
    let agreed = pairs.iter().copied().filter(|pair| pair.agreed);
    most(agreed, Pair::faster).or_else(|| most(pairs.iter().copied(), Pair::faster))
}

fn most<'a>(pairs: impl Iterator<Item = &'a Pair>, of: fn(&Pair) -> f64) -> Option<&'a Pair> {
    pairs.max_by(|a, b| of(a).total_cmp(&of(b)))
}

/// `20 files of 50 MB, 4 clients`.
fn cell(pair: &Pair) -> String {
    let files = count(pair.files as usize, "file");
    let clients = if pair.clients == 1 { String::new() } else { format!(", {} clients", pair.clients) };
    format!("{files} of {}{clients}", size(pair.file_bytes))
}

/// `1 file`, `20 files`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `12 % faster`, `3 % slower`.
fn gain(gain: f64, more: &str, less: &str) -> String {
    format!("{:.0} % {}", gain.abs() * 100.0, if gain >= 0.0 { more } else { less })
}

#[cfg(test)]
mod tests {
    use super::super::statistics::tests::cell as plain;
    use super::*;

    /// Both ways of a cell, two rounds each.
    fn measured(clients: u32, files: u32, megabytes: u64, tcp: f64, ucx: f64) -> Vec<Cell> {
        let shaped = |transport, milliseconds, round| Cell {
            clients,
            files,
            file_bytes: megabytes * 1_000_000,
            round,
            ..plain(transport, milliseconds)
        };
        vec![shaped("tcp", tcp, 0), shaped("ucx", ucx, 0), shaped("ucx", ucx, 1), shaped("tcp", tcp, 1)]
    }

    fn of<'a>(findings: &'a [Finding], rule: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.rule == rule).unwrap_or_else(|| panic!("no {rule} in {findings:?}"))
    }

    #[test]
    fn a_machine_like_that_of_the_study_comes_to_its_conclusions() {
        // Connecting costs 1 ms over TCP and 4 over UCX, a megabyte 1 ms and 0.5 ms.
        let time = |connect: f64, per_megabyte: f64, files: u32, megabytes: u64| {
            connect / f64::from(files) + per_megabyte * megabytes as f64
        };
        let mut cells = Vec::new();
        for clients in [1, 4] {
            for files in [1, 20] {
                for megabytes in [5, 10, 50, 100] {
                    let (tcp, ucx) = (time(1.0, 1.0, files, megabytes), time(4.0, 0.5, files, megabytes));
                    cells.extend(measured(clients, files, megabytes, tcp, ucx));
                }
            }
        }
        let findings = conclusions(&cells, "tcp", "ucx");
        for rule in ["single-client", "several-clients-cpu", "larger-files", "many-files"] {
            let finding = of(&findings, rule);
            assert_eq!(finding.level, Level::Good, "{finding:?}");
            assert!(finding.text.ends_with("holds here."), "{finding:?}");
        }
        let single = of(&findings, "single-client");
        assert!(
            single.text.contains("50 % faster over ucx than over tcp (20 files of 100 MB: 50.2 ms against 100 ms)"),
            "{single:?}"
        );
        let many = of(&findings, "many-files");
        assert!(many.text.contains("is 4.00 ms over ucx and 1.00 ms over tcp"), "{many:?}");
        let larger = of(&findings, "larger-files");
        assert!(larger.text.contains("of 24 comparisons of a size with a larger one 24 show"), "{larger:?}");
        let carried = of(&findings, "carried-by");
        assert!(carried.text.contains("ucx (posix, cma)") && carried.next.is_some(), "{carried:?}");
        assert_eq!(findings.len(), 5);
    }

    #[test]
    fn where_the_other_way_is_slower_no_conclusion_holds_and_with_rdma_that_is_a_warning() {
        let mut cells = Vec::new();
        for (clients, files, megabytes, ucx) in [(1, 1, 5, 11.0), (1, 1, 10, 13.0), (1, 20, 5, 12.0), (4, 1, 5, 14.0)] {
            cells.extend(measured(clients, files, megabytes, 10.0, ucx));
        }
        let findings = conclusions(&cells, "tcp", "ucx");
        for finding in findings.iter().filter(|finding| finding.rule != "carried-by") {
            assert!(finding.text.ends_with("does not hold here.") && finding.level == Level::Info, "{finding:?}");
        }
        assert!(of(&findings, "single-client").text.contains("at best 10 % slower"), "{findings:?}");
        for cell in cells.iter_mut().filter(|cell| cell.transport == "ucx") {
            cell.carried_by = "ucx (rc_mlx5)".to_owned();
        }
        let findings = conclusions(&cells, "tcp", "ucx");
        assert_eq!(findings.len(), 4);
        assert!(findings.iter().all(|finding| finding.level == Level::Warn && finding.next.is_some()), "{findings:?}");
    }

    #[test]
    fn processor_time_of_an_instant_is_not_judged_and_noise_is_told() {
        let mut cells = measured(4, 1, 1, 1.0, 0.5);
        cells[0].milliseconds_per_file = 3.0;
        let findings = conclusions(&cells, "tcp", "ucx");
        assert!(of(&findings, "several-clients-cpu").text.contains("too soon"), "{findings:?}");
        assert!(of(&findings, "noise").text.contains("100 % apart"), "{findings:?}");
        cells[0].worker_percent_seconds = f64::NAN;
        let findings = conclusions(&cells, "tcp", "ucx");
        assert!(of(&findings, "several-clients-cpu").text.contains("did not say"), "{findings:?}");
        assert_eq!(conclusions(&cells, "tcp", "none"), []);
    }

    #[test]
    fn a_best_cell_whose_rounds_contradict_each_other_proves_nothing() {
        let mut cells = measured(1, 1, 1, 10.0, 5.0);
        cells[2].milliseconds_per_file = 12.0;
        let findings = conclusions(&cells, "tcp", "ucx");
        assert!(of(&findings, "single-client").text.ends_with("does not hold here."), "{findings:?}");
    }

    #[test]
    fn another_file_system_is_compared_by_ratios() {
        let mut cells = measured(1, 1, 1, 10.0, 5.0);
        cells.extend([0, 1].map(|round| Cell { round, ..plain("juicefs", 20.0) }));
        let finding = against(&cells, "ucx", "juicefs").unwrap();
        assert!(finding.text.contains("0.25 times as long through Forebay (ucx) as in juicefs"), "{finding:?}");
        assert_eq!(finding.level, Level::Good);
        assert_eq!(against(&cells, "ucx", "rclone"), None);
    }
}
