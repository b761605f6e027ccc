//! When a thread may sleep where it is told of what comes only if it asks for that, as of the entries of a completion queue: it asks,
//! looks once more, and sleeps then. Pure; the model (`model/dozing.rs`) tries all orders.
//!
//! What it asked for is told once. So it asks anew after it slept, also when nothing was told in its time.

/// What to do before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask to be told of what comes from now on.
    Arm,
    /// Sleep until that is told, and take what was told.
    Sleep,
}

/// See above. At first nothing was asked for.
#[derive(Debug, Default)]
pub struct Dozing {
    is_armed: bool,
}

impl Dozing {
    /// A look has found nothing.
    #[must_use]
    pub fn found_nothing(&mut self) -> Step {
        self.is_armed = !self.is_armed;
        if self.is_armed { Step::Arm } else { Step::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_before_each_sleep_and_looks_in_between() {
        let mut dozing = Dozing::default();
        let steps: Vec<_> = std::iter::repeat_with(|| dozing.found_nothing()).take(4).collect();
        assert_eq!(steps, [Step::Arm, Step::Sleep, Step::Arm, Step::Sleep]);
    }
}
