//! Whether figures of a run are good enough to be shown to others: steps of half a minute, and rounds enough to know
//! how far they are from one another. A run of less is called quick, wherever its figures stand.

use std::collections::BTreeMap;

/// Steps from here on are as long as others' are: the tail of a distribution needs its time.
pub const LONG_ENOUGH: u64 = 30;
/// Rounds from here on have a middle and two ends.
pub const ROUNDS_ENOUGH: u32 = 3;

/// What settings leave to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quality {
    /// A step's seconds, where that is said.
    seconds: Option<u64>,
    /// Rounds, where that is said.
    rounds: Option<u32>,
}

impl Quality {
    /// Of settings as a record has them.
    #[must_use]
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let value = |name: &str| settings.get(name).map(String::as_str);
        let seconds = value("runtime").and_then(|time| time.strip_suffix('s')?.parse().ok());
        // Of whole files, where no step has a time, rounds are the study's affair.
        Self { seconds, rounds: seconds.and(value("repeat")).and_then(|rounds| rounds.parse().ok()) }
    }

    /// What to mark figures with: `quick`, `one round`; nothing where they can be shown as they are.
    #[must_use]
    pub fn mark(self) -> Option<String> {
        match (self.seconds, self.rounds) {
            (Some(seconds), _) if seconds < LONG_ENOUGH => Some("quick".to_owned()),
            (_, Some(rounds)) if rounds < ROUNDS_ENOUGH => Some(told(rounds)),
            _ => None,
        }
    }

    /// The same in sentences, with what to do.
    #[must_use]
    pub fn warning(self) -> Option<(String, String)> {
        let short = self.seconds.filter(|seconds| *seconds < LONG_ENOUGH);
        let few = self.rounds.filter(|rounds| *rounds < ROUNDS_ENOUGH);
        let what = match (short, few) {
            (None, None) => return None,
            (Some(seconds), Some(rounds)) => format!("Steps of {seconds} s, {} each", told(rounds)),
            (Some(seconds), None) => format!("Steps of {seconds} s"),
            (None, Some(1)) => "One round of each step".to_owned(),
            (None, Some(rounds)) => format!("{rounds} rounds of each step"),
        };
        let text = match short {
            Some(_) => {
                format!("This is a quick run. {what}: figures show orders of magnitude, and are none to publish.")
            }
            None => format!("{what}: how far two runs of the same are apart is hardly known."),
        };
        let next = format!(
            "Of figures to show, steps take {LONG_ENOUGH} s or more and rounds are {ROUNDS_ENOUGH}: `--runtime 60s --repeat 3`."
        );
        Some((text, next))
    }
}

fn told(rounds: u32) -> String {
    if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::Settings;

    #[test]
    fn the_quick_plan_says_so_and_what_is_long_and_repeated_says_nothing() {
        let quick = Quality::of(&Settings::quick().named());
        assert_eq!(quick.mark().as_deref(), Some("quick"));
        let (text, next) = quick.warning().unwrap();
        assert!(
            text.starts_with("This is a quick run. Steps of 2 s, one round each: figures show orders of magnitude"),
            "{text}"
        );
        assert!(next.contains("`--runtime 60s --repeat 3`"), "{next}");
        for plan in [Settings::full(), Settings::reference()] {
            assert_eq!((Quality::of(&plan.named()).mark(), Quality::of(&plan.named()).warning()), (None, None));
        }
        let once = Quality::of(&Settings { repeat: 1, ..Settings::full() }.named());
        assert_eq!(once.mark().as_deref(), Some("one round"));
        assert!(once.warning().unwrap().0.starts_with("One round of each step"));
        let twice = Quality::of(&Settings { repeat: 2, ..Settings::full() }.named());
        assert_eq!(twice.mark().as_deref(), Some("2 rounds"));
        assert_eq!(Quality::of(&BTreeMap::from([("repeat".to_owned(), "1".to_owned())])).mark(), None);
    }
}
