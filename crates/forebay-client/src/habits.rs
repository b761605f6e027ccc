//! Whether the files of a directory are likely to be opened once it is listed. Pure.
//!
//! A program that walks a tree lists a directory and opens what it listed, and then the same of the next one. So where
//! one directory was walked ([`crate::walk`]), the first files of the others beside it are fetched with their names,
//! before the first open. One directory at a time: until one was opened after all, or was not, no other is expected to
//! be. So a program that only lists is soon left alone, however many directories it lists.

use std::collections::VecDeque;

use forebay_types::FsPath;

use crate::walk::Endings;

/// Directories whose children were walked, and that are remembered.
const KNOWN: usize = 64;
/// So many that are listed and not opened after all end it.
const CREDIT: u32 = 2;

/// What is known of the children of one directory.
#[derive(Debug)]
struct Habit {
    parent: FsPath,
    credit: u32,
    endings: Endings,
    /// The child that is expected to be opened.
    expected: Option<FsPath>,
}

/// What is known of all, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Habits(VecDeque<Habit>);

impl Habits {
    /// The files of `directory` are opened in order, those with these endings.
    pub(crate) fn walked(&mut self, directory: &FsPath, endings: &Endings) {
        let parent = directory.parent();
        let known = self.0.iter().position(|habit| habit.parent == parent).and_then(|at| self.0.remove(at));
        let expected = known.and_then(|habit| habit.expected);
        self.0.push_front(Habit { parent, credit: CREDIT, endings: endings.clone(), expected });
        self.0.truncate(KNOWN);
    }

    /// `directory` is listed: the endings of the files that are expected to be opened, if any are. [`Habits::settle`]
    /// has to say what came of it.
    pub(crate) fn expect(&mut self, directory: &FsPath) -> Option<Endings> {
        let habit = self.of(directory)?;
        if habit.credit == 0 || habit.expected.is_some() {
            return None;
        }
        habit.expected = Some(directory.clone());
        Some(habit.endings.clone())
    }

    /// What was expected of `directory` came true, or did not.
    pub(crate) fn settle(&mut self, directory: &FsPath, came_true: bool) {
        let Some(habit) = self.of(directory).filter(|habit| habit.expected.as_ref() == Some(directory)) else { return };
        habit.expected = None;
        habit.credit = if came_true { CREDIT } else { habit.credit.saturating_sub(1) };
    }

    fn of(&mut self, directory: &FsPath) -> Option<&mut Habit> {
        let parent = directory.parent();
        self.0.iter_mut().find(|habit| habit.parent == parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn a_directory_beside_one_that_was_walked_is_expected_to_be_one_at_a_time() {
        let mut habits = Habits::default();
        assert!(habits.expect(&path("/s3/data/1")).is_none());
        habits.walked(&path("/s3/data/1"), &Endings::default());
        assert!(habits.expect(&path("/s3/other/1")).is_none());
        assert!(habits.expect(&path("/s3/data/2")).is_some());
        assert!(habits.expect(&path("/s3/data/3")).is_none(), "it is not known yet what becomes of the other");
        habits.settle(&path("/s3/data/3"), false);
        assert!(habits.expect(&path("/s3/data/3")).is_none());
        habits.settle(&path("/s3/data/2"), true);
        assert!(habits.expect(&path("/s3/data/3")).is_some());
    }

    #[test]
    fn who_only_lists_is_left_alone_until_a_directory_is_walked_again() {
        let mut habits = Habits::default();
        habits.walked(&path("/s3/data/1"), &Endings::default());
        let expected = (2..100).filter(|at| {
            let directory = path(&format!("/s3/data/{at}"));
            let is_expected = habits.expect(&directory).is_some();
            habits.settle(&directory, false);
            is_expected
        });
        assert_eq!(expected.count(), CREDIT as usize);
        habits.walked(&path("/s3/data/1"), &Endings::default());
        assert!(habits.expect(&path("/s3/data/2")).is_some());
    }

    #[test]
    fn few_are_remembered() {
        let mut habits = Habits::default();
        (0..1000).for_each(|at| habits.walked(&path(&format!("/s3/{at}/d")), &Endings::default()));
        assert_eq!(habits.0.len(), KNOWN);
        assert!(habits.expect(&path("/s3/999/e")).is_some() && habits.expect(&path("/s3/1/e")).is_none());
    }
}
