//! What happened to some keys, joined: each key once, as it is in the end.

use std::collections::BTreeMap;

use crate::{Entry, Revision, Update};

/// Collects changes in the order of their revisions.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    keys: BTreeMap<String, Option<Entry>>,
}

impl Changes {
    pub(crate) fn put(&mut self, entry: Entry) {
        self.keys.insert(entry.key.clone(), Some(entry));
    }

    pub(crate) fn delete(&mut self, key: String) {
        self.keys.insert(key, None);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// All of it as one update, complete up to `revision`.
    pub(crate) fn into_update(self, revision: Revision) -> Update {
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for (key, entry) in self.keys {
            match entry {
                Some(entry) => puts.push(entry),
                None => deletes.push(key),
            }
        }
        Update::Changed { puts, deletes, revision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_changed_often_appears_once_as_it_is_in_the_end() {
        let entry = |key: &str, revision| Entry {
            key: key.to_owned(),
            value: format!("{key}{revision}").into(),
            revision: Revision(revision),
        };
        let mut changes = Changes::default();
        assert!(changes.is_empty());
        changes.put(entry("a", 1));
        changes.delete("b".to_owned());
        changes.put(entry("a", 2));
        changes.put(entry("b", 3));
        changes.delete("a".to_owned());
        let expected =
            Update::Changed { puts: vec![entry("b", 3)], deletes: vec!["a".to_owned()], revision: Revision(5) };
        assert_eq!(changes.into_update(Revision(5)), expected);
    }
}
