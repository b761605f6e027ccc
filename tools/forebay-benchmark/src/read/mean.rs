//! The mean of a cell's rounds.

use crate::record::Cell;

/// Means over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// Time of a file.
    pub milliseconds_per_file: f64,
    /// Percent × seconds of the clients' processors.
    pub client: f64,
    /// And of the worker's.
    pub worker: f64,
}

impl Mean {
    pub(crate) fn of(cells: &[&Cell]) -> Self {
        let mean = |of: fn(&Cell) -> f64| mean(cells.iter().map(|cell| of(cell))).unwrap_or_default();
        Self {
            milliseconds_per_file: mean(|cell| cell.milliseconds_per_file),
            client: mean(|cell| cell.client_percent_seconds),
            worker: mean(|cell| cell.worker_percent_seconds),
        }
    }

    /// What both sides used of the processors.
    #[must_use]
    pub fn processors(&self) -> f64 {
        self.client + self.worker
    }
}

/// The mean; nothing of nothing.
#[must_use]
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!((mean([]), mean([1.0, 3.0])), (None, Some(2.0)));
    }
}
