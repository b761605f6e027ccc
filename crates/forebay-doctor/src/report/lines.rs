//! The lines that the parts of a report are made of.

/// Lines of a section: a name, and what is known of it.
pub(super) type Lines = Vec<(String, String)>;

/// The parts that are known, with commas between them.
pub(super) fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

pub(super) fn line(name: &str, text: impl Into<String>) -> (String, String) {
    (name.to_owned(), text.into())
}
