//! A page of the uploads that are under way, as a client asks for it, made of pages of an origin. Pure.
//!
//! A worker is asked about a directory: the one that holds all keys that start with the prefix. What it tells is below that
//! directory, in the order of keys, and what a delimiter groups is grouped here.

use forebay_types::{PendingUpload, UploadMarker};

/// What a client asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) prefix: String,
    pub(crate) delimiter: Option<String>,
    /// The keys after this one, and of itself the uploads after the next one, if that is named.
    pub(crate) key_marker: String,
    pub(crate) upload_marker: String,
    /// Uploads and common prefixes, together.
    pub(crate) max: usize,
}

/// Where in a directory the uploads begin that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Beginning,
    After(UploadMarker),
    /// Beyond all of them.
    End,
}

impl Asked {
    /// The key of the directory that holds all keys with the prefix, which is empty or ends in `/`, and what their names there
    /// start with.
    pub(crate) fn directory(&self) -> (&str, &str) {
        self.prefix.split_at(self.prefix.rfind('/').map_or(0, |slash| slash + 1))
    }

    /// Where to begin in that directory.
    pub(crate) fn start(&self) -> Start {
        let (directory, _) = self.directory();
        match self.key_marker.strip_prefix(directory) {
            Some("") => Start::Beginning,
            Some(name) => Start::After(UploadMarker { path: name.into(), upload: self.upload_marker.clone() }),
            None if *self.key_marker < *directory => Start::Beginning,
            None => Start::End,
        }
    }
}

/// An upload, with its whole key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) key: String,
    pub(crate) upload: String,
    pub(crate) begun_nanos: i64,
}

/// The page, while it is collected.
#[derive(Debug)]
pub(crate) struct Collected<'a> {
    asked: &'a Asked,
    pub(crate) uploads: Vec<Pending>,
    pub(crate) prefixes: Vec<String>,
    /// The last key or common prefix in it, and the upload, if it is one.
    last: (String, String),
}

impl<'a> Collected<'a> {
    pub(crate) fn new(asked: &'a Asked) -> Self {
        let last = (asked.key_marker.clone(), asked.upload_marker.clone());
        Self { asked, uploads: Vec::new(), prefixes: Vec::new(), last }
    }

    /// Takes the next upload in the directory; `false` if there is no room for it.
    pub(crate) fn take(&mut self, PendingUpload { path, upload, begun_nanos }: PendingUpload) -> bool {
        // Keys are text, and of what is none, nobody could be told.
        let Ok(name) = String::from_utf8(path) else { return true };
        let key = format!("{}{name}", self.asked.directory().0);
        let group = self.group(&key);
        let is_told = |group: &String| self.prefixes.contains(group) || *group == self.asked.key_marker;
        if group.as_ref().is_some_and(is_told) {
            return true;
        }
        if self.uploads.len() + self.prefixes.len() >= self.asked.max {
            return false;
        }
        match group {
            Some(group) => {
                self.last = (group.clone(), String::new());
                self.prefixes.push(group);
            }
            None => {
                self.last = (key.clone(), upload.clone());
                self.uploads.push(Pending { key, upload, begun_nanos });
            }
        }
        true
    }

    /// The markers of the page that follows this one, when it is full.
    pub(crate) fn end(&self) -> (String, String) {
        self.last.clone()
    }

    /// The markers of the page that follows what has been looked at, up to this place in the directory.
    pub(crate) fn looked_until(&self, UploadMarker { path, upload }: UploadMarker) -> (String, String) {
        (format!("{}{}", self.asked.directory().0, String::from_utf8_lossy(&path)), upload)
    }

    /// The common prefix of a key, if it is told by that.
    fn group(&self, key: &str) -> Option<String> {
        let (delimiter, start) = (self.asked.delimiter.as_deref()?, self.asked.prefix.len());
        let at = key.get(start..)?.find(delimiter)?;
        Some(key[..start + at + delimiter.len()].to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(prefix: &str, delimiter: &str, (key, upload): (&str, &str), max: usize) -> Asked {
        let delimiter = Some(delimiter).filter(|delimiter| !delimiter.is_empty()).map(str::to_owned);
        Asked {
            prefix: prefix.to_owned(),
            delimiter,
            key_marker: key.to_owned(),
            upload_marker: upload.to_owned(),
            max,
        }
    }

    #[test]
    fn a_prefix_is_a_directory_and_what_names_in_it_start_with() {
        for (prefix, directory, start) in [
            ("", "", ""),
            ("a", "", "a"),
            ("a/", "a/", ""),
            ("a/b/c", "a/b/", "c"),
            ("/", "/", ""),
            ("a//b", "a//", "b"),
        ] {
            assert_eq!(asked(prefix, "", ("", ""), 1).directory(), (directory, start), "{prefix}");
        }
    }

    #[test]
    fn a_marker_is_a_place_in_the_directory_or_before_or_behind_all_of_it() {
        let after =
            |path: &str, upload: &str| Start::After(UploadMarker { path: path.into(), upload: upload.to_owned() });
        for (prefix, marker, start) in [
            ("", ("", ""), Start::Beginning),
            ("", ("", "u"), Start::Beginning),
            ("", ("a/b", ""), after("a/b", "")),
            ("a/", ("a/b", "u"), after("b", "u")),
            ("a/b", ("a/", "u"), Start::Beginning),
            ("a/b", ("a", ""), Start::Beginning),
            ("b/", ("a/c", ""), Start::Beginning),
            ("b/", ("b0", ""), Start::End),
            ("b/", ("c", "u"), Start::End),
        ] {
            assert_eq!(asked(prefix, "", marker, 1).start(), start, "{prefix} {marker:?}");
        }
    }

    const NAMES: [(&str, &str); 6] = [("a", "1"), ("b/x", "2"), ("b/x", "3"), ("b/y", "4"), ("c/d/e", "5"), ("f", "6")];

    /// What is told of the uploads that follow the marker, and where the next page begins if it is full.
    fn page(asked: &Asked) -> (Vec<String>, Option<(String, String)>) {
        let mut collected = Collected::new(asked);
        let (key, upload) = (asked.key_marker.as_str(), asked.upload_marker.as_str());
        let is_beyond = |name: &str, id: &str| name > key || (name == key && !upload.is_empty() && id > upload);
        let mut beyond = NAMES.into_iter().filter(|(name, id)| is_beyond(name, id));
        let pending =
            |(name, id): (&str, &str)| PendingUpload { path: name.into(), upload: id.to_owned(), begun_nanos: 7 };
        let is_full = beyond.any(|found| !collected.take(pending(found)));
        let told = collected.uploads.iter().map(|pending| format!("{} {}", pending.key, pending.upload));
        let told = told.chain(collected.prefixes.iter().cloned()).collect();
        (told, is_full.then(|| collected.end()))
    }

    #[test]
    fn uploads_are_told_in_pages_and_grouped_by_a_delimiter() {
        let (told, next) = page(&asked("", "", ("", ""), 6));
        assert_eq!((told.len(), next), (6, None));
        for (delimiter, expected) in [
            ("", vec!["a 1", "b/x 2", "b/x 3", "b/y 4", "c/d/e 5", "f 6"]),
            ("/", vec!["a 1", "f 6", "b/", "c/"]),
            ("/x", vec!["a 1", "b/y 4", "c/d/e 5", "f 6", "b/x"]),
        ] {
            assert_eq!(
                page(&asked("", delimiter, ("", ""), 9)),
                (expected.iter().map(ToString::to_string).collect(), None)
            );
            for max in 1..7 {
                let (mut found, mut marker) = (Vec::new(), (String::new(), String::new()));
                loop {
                    let (told, next) = page(&asked("", delimiter, (&marker.0, &marker.1), max));
                    assert!(told.len() == max || (next.is_none() && told.len() < max), "{told:?}");
                    found.extend(told);
                    let Some(next) = next else { break };
                    marker = next;
                }
                found.sort_unstable();
                let mut sorted: Vec<String> = expected.iter().map(ToString::to_string).collect();
                sorted.sort_unstable();
                assert_eq!(found, sorted, "pages of {max}, by {delimiter:?}");
            }
        }
    }

    #[test]
    fn keys_are_whole_and_what_is_no_text_is_left_out() {
        let asked = asked("d/b", "/", ("", ""), 9);
        let mut collected = Collected::new(&asked);
        for path in [&b"b"[..], b"b\xff", b"bc/d", b"bc/e"] {
            let pending = PendingUpload { path: path.to_vec(), upload: "u".to_owned(), begun_nanos: 7 };
            assert!(collected.take(pending));
        }
        let pending = Pending { key: "d/b".to_owned(), upload: "u".to_owned(), begun_nanos: 7 };
        assert_eq!((&collected.uploads[..], &collected.prefixes[..]), (&[pending][..], &["d/bc/".to_owned()][..]));
        let place = UploadMarker { path: b"bc/x".to_vec(), upload: "u".to_owned() };
        assert_eq!(collected.looked_until(place), ("d/bc/x".to_owned(), "u".to_owned()));
    }
}
