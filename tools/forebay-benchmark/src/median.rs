//! The median, of everything that is measured more than once.

/// The middle one; of an even number, the mean of both in the middle. What is not finite does not count. None of nothing.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => None,
        0 => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([7.0])), (Some(2.0), Some(7.0)));
        assert_eq!(median([4.0, 1.0, f64::NAN]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
