//! The order of measurements, and what is made of them.
//!
//! Everything of a section is measured once in each round, what is compared side by side: A B C D, A B C D, … A machine
//! that slows down in the middle then slows all of them. The first round is the warm-up and does not count, unless it is the
//! only one. A number is the median over the rounds; a ratio is the median of the rounds' own ratios, each of two neighbours in
//! time.

use serde::Serialize;

use crate::progress::Progress;

/// What one measurement found.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Bytes a second.
    pub(crate) rate: f64,
    /// Operations a second.
    pub(crate) operations: f64,
    /// The mean latency of an operation, in µs.
    pub(crate) mean: f64,
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The 99.9th percentile, where a section has it.
    pub(crate) p999: f64,
    /// The longest, likewise.
    pub(crate) longest: f64,
    /// CPU time that the processes behind it used, in seconds for each GiB, and altogether where no bytes count.
    pub(crate) cpu: f64,
    /// CPU time that the program which read used, likewise.
    pub(crate) reader: f64,
    /// Something else, that the section knows.
    pub(crate) extra: f64,
}

/// Something that is measured again and again.
pub(crate) struct Case<'a> {
    name: String,
    measure: Box<dyn FnMut() -> anyhow::Result<Sample> + 'a>,
}

/// All that was measured of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// What it was.
    pub(crate) name: String,
    /// A sample for each round that counts.
    pub(crate) samples: Vec<Sample>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(name: impl Into<String>, measure: impl FnMut() -> anyhow::Result<Sample> + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

/// Measures `cases` in turn, once to warm up and then `repeat` times; without repetition the warm-up is what was measured. `warm` is
/// called when the warm-up is over.
///
/// # Errors
/// Whatever keeps a case from being measured.
pub(crate) fn measure(
    section: &str,
    mut cases: Vec<Case<'_>>,
    repeat: usize,
    progress: &Progress,
    mut warm: impl FnMut(),
) -> anyhow::Result<Vec<Outcome>> {
    let mut steps = progress.steps(section, cases.len() * (repeat + 1));
    let mut outcomes: Vec<Outcome> =
        cases.iter().map(|case| Outcome { name: case.name.clone(), samples: Vec::with_capacity(repeat) }).collect();
    for round in 0..=repeat {
        for (case, outcome) in cases.iter_mut().zip(&mut outcomes) {
            steps.begin(&case.name)?;
            let sample = (case.measure)()?;
            steps.end(&case.name, &format!("{:.2} GB/s, {:.1} k/s", sample.rate / 1e9, sample.operations / 1e3));
            if round > 0 || repeat == 0 {
                outcome.samples.push(sample);
            }
        }
        if round == 0 {
            warm();
        }
    }
    Ok(outcomes)
}

impl Outcome {
    /// The median of what `of` takes from a sample.
    pub(crate) fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of))
    }

    /// The median of the ratios to `other` in the same round.
    pub(crate) fn ratio(&self, other: &Self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.ratios(other, of))
    }

    /// Between which two of the ratios to `other` in the same round their median lies ([`confidence`]).
    pub(crate) fn ratio_within(&self, other: &Self, of: impl Fn(&Sample) -> f64) -> Option<(f64, f64)> {
        confidence(self.ratios(other, of))
    }

    fn ratios(&self, other: &Self, of: impl Fn(&Sample) -> f64) -> impl Iterator<Item = f64> {
        self.samples.iter().zip(&other.samples).map(move |(ours, theirs)| of(ours) / of(theirs))
    }

    /// What all samples together took for each GiB, of what `of` has for each GiB of one. It is for samples so short
    /// that the ticks of the processor's clock are too coarse for a single one; all are taken to have lasted as long.
    pub(crate) fn of_each_gib(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let taken: f64 = self.samples.iter().map(|sample| of(sample) * sample.rate).sum();
        taken / self.samples.iter().map(|sample| sample.rate).sum::<f64>()
    }

    /// How far the samples lie apart: half of what lies between least and most, relative to the median.
    pub(crate) fn spread(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let (least, most) = self
            .samples
            .iter()
            .map(&of)
            .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        (most - least) / 2.0 / self.median(of)
    }
}

/// The median; NaN of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Between which two of `values` the median lies of what they were drawn from, in 95 of 100 cases and whatever its
/// distribution: their ranks are the normal approximation of the binomial distribution, rounded outwards. Of too few
/// values there are no such two.
fn confidence(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    // Below 1 it becomes 0.
    let rank = (count / 2.0 - 0.98 * count.sqrt()).floor() as usize;
    (rank > 0).then(|| (values[rank - 1], values[values.len() - rank]))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::*;

    fn outcome(rates: &[f64]) -> Outcome {
        let samples = rates.iter().map(|rate| Sample { rate: *rate, ..Sample::default() }).collect();
        Outcome { name: String::new(), samples }
    }

    #[test]
    fn cases_are_measured_in_turn_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let case = |name: &'static str, rate: f64| {
            let order = &order;
            Case::new(name, move || {
                order.borrow_mut().push_str(name);
                Ok(Sample { rate: rate + order.borrow().len() as f64, ..Sample::default() })
            })
        };
        let progress = Progress::new(Arc::default());
        let cases = vec![case("a", 10.0), case("b", 20.0)];
        let outcomes = measure("test", cases, 3, &progress, || order.borrow_mut().push('|')).unwrap();
        assert_eq!(*order.borrow(), "ab|ababab");
        let rates = |outcome: &Outcome| outcome.samples.iter().map(|sample| sample.rate).collect::<Vec<_>>();
        assert_eq!(rates(&outcomes[0]), [14.0, 16.0, 18.0]);
        assert_eq!(rates(&outcomes[1]), [25.0, 27.0, 29.0]);
    }

    #[test]
    fn the_only_round_counts() {
        let progress = Progress::new(Arc::default());
        let mut measured = 0.0;
        let case = Case::new("a", || {
            measured += 1.0;
            Ok(Sample { rate: measured, ..Sample::default() })
        });
        let outcomes = measure("test", vec![case], 0, &progress, || ()).unwrap();
        assert_eq!((outcomes[0].samples.len(), outcomes[0].samples[0].rate), (1, 1.0));
    }

    #[test]
    fn an_interrupted_run_ends_before_the_next_measurement() {
        let progress = Progress::new(Arc::new(true.into()));
        let case = Case::new("never", || unreachable!());
        assert_eq!(measure("test", vec![case], 1, &progress, || ()).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn a_ratio_is_of_neighbours_in_time() {
        // The machine was twice as fast in the second round.
        let (ours, theirs) = (outcome(&[5.0, 10.0, 6.0]), outcome(&[10.0, 20.0, 10.0]));
        assert_eq!(ours.ratio(&theirs, |sample| sample.rate), 0.5);
        assert_eq!(ours.median(|sample| sample.rate), 6.0);
        assert!((ours.spread(|sample| sample.rate) - 2.5 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn the_median_is_told_between_the_values_of_two_ranks_and_of_few_not_at_all() {
        let first = |count: u32| (1..=count).rev().map(f64::from);
        // As tables of these ranks have them; of ten they have the second and the ninth.
        assert_eq!(confidence(first(50)), Some((18.0, 33.0)));
        assert_eq!(confidence(first(100)), Some((40.0, 61.0)));
        assert_eq!(confidence(first(10)), Some((1.0, 10.0)));
        assert_eq!((confidence(first(5)), confidence([])), (None, None));
        // The machine was faster in each round, and the ratio the same.
        let ours: Vec<f64> = first(50).map(|rate| 0.9 * rate).collect();
        let theirs: Vec<f64> = first(50).collect();
        let (low, high) = outcome(&ours).ratio_within(&outcome(&theirs), |sample| sample.rate).unwrap();
        assert!((low - 0.9).abs() < 1e-9 && (high - 0.9).abs() < 1e-9, "{low} to {high}");
    }

    #[test]
    fn what_each_gib_took_counts_the_bytes_of_each_sample() {
        let sample = |rate: f64, cpu: f64| Sample { rate, cpu, ..Sample::default() };
        let both = Outcome { name: String::new(), samples: vec![sample(3.0, 1.0), sample(1.0, 2.0)] };
        assert_eq!(both.of_each_gib(|sample| sample.cpu), 1.25);
        assert!(outcome(&[]).of_each_gib(|sample| sample.cpu).is_nan());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([7.0]), 7.0);
        assert!(median([]).is_nan());
    }
}
