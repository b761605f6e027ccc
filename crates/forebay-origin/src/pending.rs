//! Pages of the uploads that are under way, for origins that find their own in any order. Pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use forebay_types::{PendingUpload, UploadMarker, UploadPage};

/// A page that is being collected. No more uploads are kept than it has.
pub(crate) struct Collecting<'a> {
    prefix: &'a [u8],
    after: Option<&'a UploadMarker>,
    max: usize,
    /// By file and name, when each was begun: the first ones, and one that follows them.
    found: BTreeMap<(Vec<u8>, String), i64>,
}

impl<'a> Collecting<'a> {
    /// The page after `after` of at most `max` uploads of files whose paths start with `prefix`.
    pub(crate) fn new(prefix: &'a [u8], after: Option<&'a UploadMarker>, max: usize) -> Self {
        Self { prefix, after, max: max.max(1), found: BTreeMap::new() }
    }

    /// Takes one that was found, if it belongs to the page as far as is known.
    pub(crate) fn add(&mut self, path: &[u8], upload: &str, begun_nanos: i64) {
        let is_beyond = self.after.is_none_or(|after| is_beyond(path, upload, after));
        if is_beyond && path.starts_with(self.prefix) {
            self.found.insert((path.to_vec(), upload.to_owned()), begun_nanos);
        }
        if self.found.len() > self.max + 1 {
            self.found.pop_last();
        }
    }

    /// The page, when all were found.
    pub(crate) fn page(self) -> UploadPage {
        let has_more = self.found.len() > self.max;
        let pending = |((path, upload), begun_nanos)| PendingUpload { path, upload, begun_nanos };
        let uploads: Vec<PendingUpload> = self.found.into_iter().take(self.max).map(pending).collect();
        let last = uploads.last().filter(|_| has_more);
        let next = last.map(|last| UploadMarker { path: last.path.clone(), upload: last.upload.clone() });
        UploadPage { uploads, next }
    }
}

/// Whether an upload comes after a marker.
fn is_beyond(path: &[u8], upload: &str, marker: &UploadMarker) -> bool {
    match path.cmp(marker.path.as_slice()) {
        Ordering::Less => false,
        Ordering::Equal => !marker.upload.is_empty() && *upload > *marker.upload,
        Ordering::Greater => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPLOADS: [(&str, &str); 6] = [("b", "2"), ("a/c", "9"), ("b", "1"), ("a-b", "3"), ("a/b", "8"), ("c", "5")];

    fn page(prefix: &str, after: Option<(&str, &str)>, max: usize) -> (Vec<String>, bool) {
        let marker = after.map(|(path, upload)| UploadMarker { path: path.into(), upload: upload.to_owned() });
        let mut collecting = Collecting::new(prefix.as_bytes(), marker.as_ref(), max);
        for (path, upload) in UPLOADS {
            collecting.add(path.as_bytes(), upload, 7);
            assert!(collecting.found.len() <= max.max(1) + 1);
        }
        let page = collecting.page();
        let named = |pending: &PendingUpload| format!("{} {}", String::from_utf8_lossy(&pending.path), pending.upload);
        (page.uploads.iter().map(named).collect(), page.next.is_some())
    }

    #[test]
    fn a_page_has_the_first_uploads_in_whatever_order_they_are_found() {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = named(&["a-b 3", "a/b 8", "a/c 9", "b 1", "b 2", "c 5"]);
        assert_eq!(page("", None, 6), (all.clone(), false));
        assert_eq!(page("", None, 5), (all[..5].to_vec(), true));
        assert_eq!(page("", None, 0), (all[..1].to_vec(), true));
        assert_eq!(page("a/", None, 2), (all[1..3].to_vec(), false));
        assert_eq!(page("", Some(("b", "1")), 2), (all[4..].to_vec(), false));
        assert_eq!(page("", Some(("b", "")), 2), (all[5..].to_vec(), false), "all of one file are passed over");
        assert_eq!(page("", Some(("a0", "")), 9), (all[3..].to_vec(), false), "nothing need be there");
        assert_eq!(page("x", None, 9), (vec![], false));
    }
}
