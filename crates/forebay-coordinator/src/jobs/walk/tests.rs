//! Walks over trees of any shape, interrupted anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_types::VersionTag;
use proptest::prelude::*;

use super::*;

/// Directories with the names in them; what has no names is a file.
type Tree = BTreeMap<FsPath, Vec<Vec<u8>>>;

fn root() -> FsPath {
    FsPath::new("/r").unwrap()
}

fn tree_of(files: &[Vec<Vec<u8>>]) -> Tree {
    let mut tree = Tree::from([(root(), Vec::new())]);
    for file in files {
        let mut at = root();
        for name in file {
            let names = tree.entry(at.clone()).or_default();
            if let Err(place) = names.binary_search(name) {
                names.insert(place, name.clone());
            }
            at = at.join(name).unwrap();
        }
    }
    tree
}

fn attr(tree: &Tree, path: &FsPath) -> Attr {
    if tree.contains_key(path) {
        return Attr::directory();
    }
    let tag = VersionTag::Modified { nanos: 0, inode: 0 };
    Attr::file(FileVersion { origin: "o".into(), path: path.as_bytes().into(), size: 1, tag })
}

fn answer(walk: &mut Walk, tree: &Tree, ask: Ask) {
    match ask {
        Ask::Stat { path, end } => walk.attributes(end, Ok(attr(tree, &path))),
        Ask::List { directory, token } => {
            let names = &tree[&directory];
            let start = token.map_or(0, |token| token.parse().unwrap());
            let end = names.len().min(start + 3);
            let entry = |name: &Vec<u8>| {
                let attr = attr(tree, &directory.join(name).unwrap());
                DirEntry { name: name.as_slice().into(), attr }
            };
            let entries = names[start..end].iter().map(entry).collect();
            let next = (end < names.len()).then(|| end.to_string());
            walk.listed(Ok(ListReply { entries, next, valid_for: Duration::ZERO }));
        }
        other => panic!("{other:?}"),
    }
}

/// What a walk comes by from here on, each with the cursor after it.
fn rest(mut walk: Walk, tree: &Tree) -> Vec<(FsPath, bool, Cursor)> {
    let mut found = Vec::new();
    loop {
        match walk.next() {
            Next::End => return found,
            Next::Item(Item { path, found: what, place }) => {
                let is_file = match what {
                    Found::File { .. } => true,
                    Found::Directory => false,
                    Found::Failed(failure) => panic!("{failure}"),
                };
                found.push((path, is_file, place.cursor()));
            }
            Next::Ask(ask) => answer(&mut walk, tree, ask),
            other => panic!("{other:?}"),
        }
        let held = walk.frames.iter().filter(|frame| matches!(frame.entries, Entries::Here(_))).count();
        assert!(held <= PAGES_HELD, "{held} pages are held");
    }
}

fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let name = prop::collection::vec(prop_oneof![Just(b'a'), Just(b'%'), Just(0xff), b'b'..=b'd'], 1..3);
    prop::collection::vec(name, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_walk_comes_by_every_file_once_and_can_go_on_from_anywhere(files in prop::collection::vec(names(), 0..40)) {
        let tree = tree_of(&files);
        let all = rest(Walk::new(&root(), false), &tree);
        let expected: usize = tree.iter()
            .map(|(path, names)| names.iter().filter(|name| !tree.contains_key(&path.join(name).unwrap())).count())
            .sum();
        prop_assert_eq!(all.iter().filter(|(_, is_file, _)| *is_file).count(), expected);
        prop_assert_eq!(all.len() - expected, tree.len());
        for (at, (_, _, cursor)) in all.iter().enumerate() {
            let kept = serde_json::from_str(&serde_json::to_string(cursor).unwrap()).unwrap();
            let (resumed, place) = Walk::resume(&root(), false, &kept).unwrap();
            prop_assert_eq!(&place.cursor(), cursor);
            prop_assert_eq!(&rest(resumed, &tree)[..], &all[at + 1..]);
        }
    }
}

#[test]
fn a_name_that_went_away_costs_no_other_name() {
    let file = |name: &str| vec![name.as_bytes().to_vec()];
    let tree = tree_of(&["a", "b", "c"].map(file));
    let all = rest(Walk::new(&root(), false), &tree);
    let after_b = &all[1].2;
    let (resumed, _) = Walk::resume(&root(), false, after_b).unwrap();
    let without_a = rest(resumed, &tree_of(&["b", "c"].map(file)));
    assert_eq!(without_a[0].0, root().join(b"c").unwrap());
}

#[test]
fn a_very_deep_tree_is_no_trouble() {
    let mut tree = Tree::new();
    let mut at = root();
    for _ in 0..1000 {
        tree.insert(at.clone(), vec![b"d".to_vec()]);
        at = at.join(b"d").unwrap();
    }
    let all = rest(Walk::new(&root(), false), &tree);
    assert_eq!(all.len(), 1001);
    // What is kept of a place grows with its path, not with the square of it.
    let largest = all.iter().map(|(_, _, cursor)| serde_json::to_string(cursor).unwrap().len()).max().unwrap();
    assert!(largest < 40_000, "{largest} bytes");
}
