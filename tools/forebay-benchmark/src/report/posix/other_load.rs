//! What the machine did that was neither reading nor serving: other programs, and what a hypervisor gave to other machines meanwhile. It
//! is not charged to the mount, and says which steps to mistrust.

use crate::median;
use crate::record::{Cpu, Step};
use crate::report::document::{Cell, Section, Table};
use crate::report::plot::{Kind, Line, Plot};
use crate::report::units::{Unit, percent};

/// A figure of a step.
type Figure = fn(&Cpu) -> f64;

/// What is shown of a step.
const SHOWN: [(&str, Figure); 2] =
    [("other programs on this machine", |cpu| cpu.others), ("taken by the hypervisor for others", |cpu| cpu.stolen)];

/// A line for each kind of load over the steps, in the order in which they were measured.
pub(super) fn section(steps: &[Step]) -> Section {
    let known: Vec<(f64, &Cpu)> = (1..)
        .map(f64::from)
        .zip(steps.iter().map(|step| &step.outcome.cpu))
        .filter(|(_, cpu)| cpu.machine > 0.0)
        .collect();
    let mut table = Table::new("", &["percent of a processor", "median", "highest", "of what the machine did"]);
    let mut lines = Vec::new();
    for (number, (name, figure)) in SHOWN.into_iter().enumerate() {
        let all = || known.iter().map(|(_, cpu)| figure(cpu));
        let (Some(middle), Some(highest)) = (median(all()), all().reduce(f64::max)) else { continue };
        let busy: f64 = known.iter().map(|(_, cpu)| cpu.machine).sum();
        let part = percent(all().sum::<f64>() / busy);
        let figures = [format!("{middle:.0} %"), format!("{highest:.0} %"), part];
        table.row([vec![Cell::words(name)], figures.map(Cell::written).to_vec()].concat());
        let points = known.iter().map(|(step, cpu)| (*step, figure(cpu))).collect();
        lines.push(Line { name: name.to_owned(), colour: number, shape: number, points, ..Line::default() });
    }
    let plot = Plot {
        title: "Load that is not the benchmark's".to_owned(),
        along: "step".to_owned(),
        x: Kind::linear(Unit::Number),
        y: Kind::linear(Unit::Percent),
        lines,
        ..Plot::default()
    };
    let words = "What other programs did before each step, while nobody read, and went on with; and what the hypervisor ran of other \
                 machines on these processors meanwhile. Neither is charged to the mount. load.csv beside this page has every second.";
    // Shown where there was any to speak of.
    let section = Section::new("Other load").says(words).table(table);
    if known.iter().any(|(_, cpu)| cpu.others >= 1.0 || cpu.stolen >= 1.0) { section.plot(plot) } else { section }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Measured, Outcome};
    use crate::report::testing;

    #[test]
    fn other_load_is_shown_by_step_with_its_part_of_everything() {
        let Measured::Posix { mut steps, .. } = testing::posix().measured else { panic!("of posix") };
        steps.truncate(4);
        assert!(section(&steps).plots.is_empty(), "there was none");
        for (number, step) in steps.iter_mut().enumerate() {
            step.outcome.cpu = Cpu { machine: 200.0, fio: 50.0, others: 10.0 * number as f64, stolen: 0.0 };
        }
        let shown = section(&steps);
        let row: Vec<&str> = shown.tables[0].rows[0].iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(row, ["other programs on this machine", "15 %", "30 %", "7.5 %"]);
        assert_eq!(shown.plots[0].lines[0].points, [(1.0, 0.0), (2.0, 10.0), (3.0, 20.0), (4.0, 30.0)]);
        steps.iter_mut().for_each(|step| step.outcome = Outcome::default());
        assert!(section(&steps).is_empty(), "of other machines nothing is known");
    }
}
