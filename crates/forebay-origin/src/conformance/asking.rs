//! Questions to an origin whose answers the suite goes on with: what has no answer, or one that cannot be, fails the suite here.

use std::collections::BTreeMap;

use forebay_types::{Attr, Failure, FailureKind, FileVersion, SectorChecksums};

use crate::Origin;

pub(super) async fn stat(origin: &dyn Origin, path: &str) -> Attr {
    origin.stat(path.as_bytes()).await.unwrap_or_else(|failure| panic!("stat of `{path}`: {failure}"))
}

pub(super) async fn assert_not_found(origin: &dyn Origin, path: &str) {
    let failure = origin.stat(path.as_bytes()).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NotFound, "stat of `{path}`: {failure}");
}

pub(super) async fn read(origin: &dyn Origin, version: &FileVersion, start: u64, end: u64) -> Result<Vec<u8>, Failure> {
    let mut into = vec![0xa5; (end - start) as usize];
    origin.read(version, start..end, &mut into).await?;
    let mut again = vec![0x5a; into.len()];
    let checksums = origin.read_checksummed(version, start..end, &mut again).await?;
    assert!(again == into && checksums == SectorChecksums::of(&into), "bytes {start}..{end} and their checksums");
    Ok(into)
}

pub(super) async fn list_all(origin: &dyn Origin, path: &str, max: usize) -> BTreeMap<String, Attr> {
    let mut all = BTreeMap::new();
    let mut token = None;
    loop {
        let page = origin.list(path.as_bytes(), token.as_deref(), max).await;
        let page = page.unwrap_or_else(|failure| panic!("list of `{path}`: {failure}"));
        assert!(page.entries.len() <= max, "a page of `{path}` has more than {max} entries");
        for entry in page.entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            assert!(all.insert(name.clone(), entry.attr).is_none(), "`{name}` comes twice in `{path}`");
        }
        match page.next {
            Some(next) => token = Some(next),
            None => return all,
        }
    }
}

pub(super) fn file(attr: &Attr) -> FileVersion {
    attr.version().cloned().unwrap_or_else(|| panic!("a directory, not a file"))
}

pub(super) fn is_directory(attr: &Attr) -> bool {
    attr.version().is_none()
}
