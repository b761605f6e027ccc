//! How a rule says what it found.

use crate::record::{Finding, Level};

pub(super) fn finding(rule: &str, level: Level, text: String) -> Finding {
    Finding { rule: rule.to_owned(), level, text, next: None }
}

/// Adds what to do.
pub(super) trait Next {
    fn next(self, next: impl Into<String>) -> Self;
}

impl Next for Finding {
    fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}
