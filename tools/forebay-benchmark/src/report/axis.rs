//! Axes: from values to places, and which values are named. Pure.

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scale {
    /// Evenly, zero among them.
    #[default]
    Linear,
    /// Equal ratios have equal lengths. Values that are not positive have no place.
    Log,
}

impl Scale {
    /// The values that have a place, in order.
    fn usable(self, values: &[f64]) -> Vec<f64> {
        let has_place = |value: &f64| value.is_finite() && (self == Self::Linear || *value > 0.0);
        let mut values: Vec<f64> = values.iter().copied().filter(has_place).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// How many values are named on an axis, about.
const MARKS: f64 = 5.0;

/// Below this many powers of ten, those alone would name too few values.
const FEW_DECADES: f64 = 2.2;

/// An axis: the values at its ends, and those that are named.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    pub(super) marks: Vec<f64>,
}

impl Axis {
    /// An axis that holds `values`, with round values at its ends.
    pub(super) fn around(values: &[f64], scale: Scale) -> Self {
        let values = scale.usable(values);
        let marks = match (scale, values.first(), values.last()) {
            (Scale::Linear, Some(low), Some(high)) => linear_marks(low.min(0.0), high.max(0.0)),
            (Scale::Log, Some(low), Some(high)) => log_marks(*low, *high),
            _ => return Self { scale: Scale::Linear, from: 0.0, to: 1.0, marks: vec![0.0, 1.0] },
        };
        Self { scale, from: marks[0], to: marks[marks.len() - 1], marks }
    }

    /// An axis whose named values are those that were measured, with a little room at both ends.
    pub(super) fn at(values: &[f64], scale: Scale) -> Self {
        let mut marks = scale.usable(values);
        marks.dedup();
        let (Some(first), Some(last)) = (marks.first().copied(), marks.last().copied()) else {
            return Self::around(&[], Scale::Linear);
        };
        let room = |from: f64, to: f64| if to > from { (to - from) * 0.03 } else { 0.5 };
        let (from, to) = match scale {
            Scale::Linear => (first - room(first, last), last + room(first, last)),
            Scale::Log => {
                let room = room(first.ln(), last.ln());
                ((first.ln() - room).exp(), (last.ln() + room).exp())
            }
        };
        Self { scale, from, to, marks }
    }

    /// Where `value` is: 0 at the beginning, 1 at the end. None where it has no place.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log if value > 0.0 => (value / self.from).ln() / (self.to / self.from).ln(),
            Scale::Log => return None,
        };
        place.is_finite().then_some(place)
    }
}

/// From `low` or a little less to `high` or a little more, in steps of 1, 2 or 5 times a power of ten. Zero is one of them.
fn linear_marks(low: f64, high: f64) -> Vec<f64> {
    if high <= low {
        return vec![0.0, 1.0];
    }
    let rough = (high - low) / MARKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough * 0.999).unwrap_or(10.0) * power;
    let (first, last) = ((low / step + 1e-9).floor() as i32, (high / step - 1e-9).ceil() as i32);
    (first..=last).map(|n| f64::from(n) * step).collect()
}

/// Powers of ten; with 2 and 5 between them where there are few.
fn log_marks(low: f64, high: f64) -> Vec<f64> {
    let within: &[f64] = if (high / low).log10() < FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let all: Vec<f64> = powers.flat_map(|power| within.iter().map(move |step| step * 10f64.powi(power))).collect();
    let first = all.iter().rposition(|mark| *mark <= low * 1.000_001).unwrap_or(0);
    let last = all.iter().position(|mark| *mark >= high * 0.999_999).unwrap_or(all.len() - 1);
    // All of one value: an axis of no length has no places.
    let (first, last) =
        if first < last { (first, last) } else { (first.saturating_sub(1), (last + 1).min(all.len() - 1)) };
    all[first..=last].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(marks: &[f64], expected: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs();
        assert!(marks.len() == expected.len() && marks.iter().zip(expected).all(near), "{marks:?} is not {expected:?}");
    }

    #[test]
    fn marks_are_round_numbers_that_hold_all_values() {
        about(&Axis::around(&[3.0, 14.2], Scale::Linear).marks, &[0.0, 5.0, 10.0, 15.0]);
        about(&Axis::around(&[0.1], Scale::Linear).marks, &[0.0, 0.02, 0.04, 0.06, 0.08, 0.1]);
        about(&Axis::around(&[-13.0, 49.0], Scale::Linear).marks, &[-20.0, 0.0, 20.0, 40.0, 60.0]);
        about(&Axis::around(&[85.0, 8934.0], Scale::Log).marks, &[50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
        about(&Axis::around(&[10.0, 20_000.0], Scale::Log).marks, &[10.0, 100.0, 1e3, 1e4, 1e5]);
    }

    #[test]
    fn places_go_from_zero_to_one() {
        let axis = Axis::around(&[5.0, 10.0], Scale::Linear);
        assert_eq!((axis.place(0.0), axis.place(5.0), axis.place(10.0)), (Some(0.0), Some(0.5), Some(1.0)));
        let axis = Axis::around(&[1.0, 1e4], Scale::Log);
        assert!((axis.place(100.0).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(axis.place(0.0), None);
    }

    #[test]
    fn one_value_or_none_has_an_axis_as_well() {
        for scale in [Scale::Linear, Scale::Log] {
            for values in [&[][..], &[7.0], &[100.0, 100.0], &[0.0], &[f64::NAN]] {
                for axis in [Axis::around(values, scale), Axis::at(values, scale)] {
                    assert!(axis.to > axis.from && !axis.marks.is_empty(), "{axis:?}");
                }
            }
            let place = Axis::at(&[7.0], scale).place(7.0).unwrap();
            assert!((place - 0.5).abs() < 1e-9, "{place}");
        }
    }

    #[test]
    fn what_was_measured_is_what_is_named() {
        let axis = Axis::at(&[4.0, 1.0, 2.0, 2.0], Scale::Log);
        assert_eq!(axis.marks, [1.0, 2.0, 4.0]);
        let (first, middle) = (axis.place(1.0).unwrap(), axis.place(2.0).unwrap());
        assert!(first > 0.0 && first < 0.05 && (middle - 0.5).abs() < 1e-9);
    }
}
