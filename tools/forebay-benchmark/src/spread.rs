//! What was measured more than once: the middle of the rounds, and how far apart they were.
//!
//! Rounds are few (three, as a rule), so that there is no deviation to be reckoned with: what is known is the lowest and the highest. Two
//! figures differ if even those of their rounds that are next to one another do, and by [`NOTICEABLE`] in the middle; of one
//! round each nothing is known. As many digits of a figure are written as its rounds have in common, three at most and two at least.

use crate::median;

/// Ratios nearer to one than this are one, however well they repeat: two mounts of the same differ by as much.
pub const NOTICEABLE: f64 = 0.05;
/// Digits of what was measured once.
const DIGITS_OF_ONE: usize = 2;
/// No more digits than these: no benchmark of a machine that does anything else has more.
const MAX_DIGITS: usize = 3;

/// A figure of some rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The median.
    pub middle: f64,
    /// The lowest of all rounds.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// How many there were.
    pub rounds: usize,
}

/// How a ratio is to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// More than one, in every round.
    More,
    /// Less.
    Less,
    /// Within what rounds of the same differ by.
    Same,
    /// One round of one side at least: it cannot be known.
    Unknown,
}

impl Spread {
    /// Of these rounds; what is not finite does not count. None of nothing.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Self { middle: median(values.iter().copied())?, low, high, rounds: values.len() })
    }

    /// Of one round.
    #[must_use]
    pub fn once(value: f64) -> Self {
        Self { middle: value, low: value, high: value, rounds: 1 }
    }

    /// Half of what lies between the lowest and the highest, as a part of the median. None of one round.
    #[must_use]
    pub fn part(&self) -> Option<f64> {
        let part = (self.high - self.low) / 2.0 / self.middle.abs();
        (self.rounds > 1 && part.is_finite()).then_some(part)
    }

    /// How often `base` it is, of rounds that were not made in turn: from the lowest by the highest to the highest by the lowest.
    #[must_use]
    pub fn over(&self, base: &Self) -> Option<Self> {
        let ratio = |one: f64, other: f64| Some(one / other).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
        Some(Self {
            middle: ratio(self.middle, base.middle)?,
            low: ratio(self.low, base.high)?,
            high: ratio(self.high, base.low)?,
            rounds: self.rounds.min(base.rounds),
        })
    }

    /// This, as a ratio.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.middle {
            _ if self.rounds < 2 => Verdict::Unknown,
            middle if self.low > 1.0 && middle >= 1.0 + NOTICEABLE => Verdict::More,
            middle if self.high < 1.0 && middle <= 1.0 - NOTICEABLE => Verdict::Less,
            _ => Verdict::Same,
        }
    }

    /// How many digits of it are known.
    #[must_use]
    pub fn digits(&self) -> usize {
        let Some(part) = self.part() else { return DIGITS_OF_ONE };
        if part <= 0.0 {
            return MAX_DIGITS;
        }
        // Down to the first digit in which rounds differ.
        let place = |value: f64| value.abs().log10().floor();
        let known = place(self.middle) - place(self.middle * part) + 1.0;
        (known.max(0.0) as usize).clamp(DIGITS_OF_ONE, MAX_DIGITS)
    }

    /// The median times `factor`, in as many digits as are known.
    #[must_use]
    pub fn written(&self, factor: f64) -> String {
        written(self.middle * factor, self.digits())
    }
}

/// So many significant digits, without an exponent: `0.0123`, `1.2`, `120`. A dash for what is no number.
#[must_use]
pub fn written(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // Rounded first: 9.996 has two digits before the point, not one.
    let behind = digits.max(1) - 1;
    let rounded = format!("{value:.behind$e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let places = usize::try_from(behind as i32 - exponent).unwrap_or(0).min(9);
    let value: f64 = rounded.parse().unwrap_or(value);
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Spread {
        Spread::of(values.iter().copied()).unwrap()
    }

    #[test]
    fn rounds_have_a_middle_and_two_ends() {
        let spread = of(&[9.0, 10.0, f64::NAN, 12.0]);
        assert_eq!((spread.middle, spread.low, spread.high, spread.rounds), (10.0, 9.0, 12.0, 3));
        assert_eq!(spread.part(), Some(0.15));
        assert_eq!((of(&[9.0]).part(), Spread::of([f64::INFINITY])), (None, None));
    }

    #[test]
    fn as_many_digits_are_written_as_rounds_have_in_common() {
        assert_eq!(of(&[9.52, 9.51, 9.53]).written(1.0), "9.52");
        assert_eq!(of(&[9.52, 9.2, 9.8]).written(1.0), "9.5");
        assert_eq!(of(&[14.2, 11.0, 16.0]).written(1.0), "14");
        assert_eq!(of(&[9.52]).written(1.0), "9.5", "of one round nobody knows");
        assert_eq!(of(&[1.02, 1.0, 1.04]).written(1.0), "1.02");
        assert_eq!(of(&[1234.0, 1234.0]).written(1e-3), "1.23");
        assert_eq!(
            [(1234.4, 3), (1234.4, 2), (0.01234, 3), (99.96, 3)].map(|(value, digits)| written(value, digits)),
            ["1230", "1200", "0.0123", "100"]
        );
        assert_eq!([0.0, f64::NAN].map(|value| written(value, 3)), ["0", "-"]);
    }

    #[test]
    fn a_ratio_is_judged_by_the_rounds_of_both_sides() {
        let verdict = |one: &[f64], other: &[f64]| of(one).over(&of(other)).unwrap().verdict();
        assert_eq!(verdict(&[2.0, 2.1, 1.9], &[1.0, 1.1, 0.9]), Verdict::More);
        assert_eq!(verdict(&[1.0, 1.1, 0.9], &[2.0, 2.1, 1.9]), Verdict::Less);
        // Twice as fast in the middle, and one round of each says otherwise.
        assert_eq!(verdict(&[2.0, 2.1, 0.9], &[1.0, 1.1, 0.9]), Verdict::Same);
        assert_eq!(verdict(&[1.02, 1.021, 1.022], &[1.0, 1.001, 0.999]), Verdict::Same, "it repeats, and is nothing");
        assert_eq!(verdict(&[2.0], &[1.0, 1.1, 0.9]), Verdict::Unknown);
        assert_eq!(of(&[1.0]).over(&of(&[0.0])), None);
    }
}
