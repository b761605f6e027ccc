//! What a look at the certificate files means. No files and no clock: [`super::renewal`] looks, and does what this decides.

/// Looks in a row that must find what cannot be used, before it counts: files that are written one after the other do not go
/// together for a moment.
const LOOKS_BEFORE_REFUSAL: u32 = 2;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen<P> {
    /// Nothing.
    Nothing,
    /// What the files hold now is to be used from now on: [`Rotation::used`].
    Renewed,
    /// It cannot be used, for this reason, and what was used before stays in use. It is told once.
    Refused(P),
}

/// Files `T` over time, or problems `P` with them.
#[derive(Debug)]
pub(super) struct Rotation<T, P> {
    used: T,
    /// Looks in a row that found a problem.
    problems: u32,
    /// The problem that was told last, while there is one.
    told: Option<P>,
}

impl<T: PartialEq, P: Clone + PartialEq> Rotation<T, P> {
    /// `used` is in use.
    pub(super) fn new(used: T) -> Self {
        Self { used, problems: 0, told: None }
    }

    /// What is in use: the last that could be.
    pub(super) fn used(&self) -> &T {
        &self.used
    }

    /// Whether the files hold something that was refused.
    pub(super) fn is_refusing(&self) -> bool {
        self.told.is_some()
    }

    /// Takes in what a look found.
    pub(super) fn look(&mut self, found: Result<T, P>) -> Seen<P> {
        match found {
            Ok(files) => {
                (self.problems, self.told) = (0, None);
                if files == self.used {
                    return Seen::Nothing;
                }
                self.used = files;
                Seen::Renewed
            }
            Err(problem) => {
                self.problems = self.problems.saturating_add(1);
                if self.problems < LOOKS_BEFORE_REFUSAL || self.told.as_ref() == Some(&problem) {
                    return Seen::Nothing;
                }
                self.told = Some(problem.clone());
                Seen::Refused(problem)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_used_once_and_a_broken_one_leaves_the_last_good_one_in_use() {
        let mut rotation: Rotation<u8, &str> = Rotation::new(1);
        assert_eq!(rotation.look(Ok(1)), Seen::Nothing);
        assert_eq!(rotation.look(Ok(2)), Seen::Renewed);
        assert_eq!((rotation.look(Ok(2)), rotation.used()), (Seen::Nothing, &2));

        assert_eq!(rotation.look(Err("mixed")), Seen::Nothing, "it may be half written");
        assert!(!rotation.is_refusing());
        assert_eq!(rotation.look(Err("mixed")), Seen::Refused("mixed"));
        assert_eq!(rotation.look(Err("mixed")), Seen::Nothing, "it is told once");
        assert_eq!(rotation.look(Err("gone")), Seen::Refused("gone"), "that is another problem");
        assert!(rotation.is_refusing() && rotation.used() == &2);
        assert_eq!(rotation.look(Ok(3)), Seen::Renewed);
        assert!(!rotation.is_refusing());
    }

    #[test]
    fn files_that_are_replaced_one_after_the_other_alarm_nobody() {
        let mut rotation: Rotation<u8, &str> = Rotation::new(1);
        for next in 2..9 {
            assert_eq!(rotation.look(Err("mixed")), Seen::Nothing);
            assert_eq!(rotation.look(Ok(next)), Seen::Renewed);
        }
        assert_eq!(rotation.look(Err("mixed")), Seen::Nothing);
        assert_eq!(rotation.look(Ok(8)), Seen::Nothing, "what was used is back");
        assert_eq!(rotation.look(Err("mixed")), Seen::Nothing);
    }
}
