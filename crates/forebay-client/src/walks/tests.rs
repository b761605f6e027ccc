use std::ops::Range;

use forebay_types::{Attr, DirEntry, VersionTag};
use proptest::prelude::*;

use super::*;

const BYTES: u64 = 100 << 10;
const MS: Duration = Duration::from_millis(1);
const LIMITS: Limits = Limits { budget: 64 << 20, small: 256 << 10 };

fn version(directory: &str, at: u64, etag: &str) -> FileVersion {
    let path = format!("{directory}/{at:06}.jpg").into_bytes().into();
    FileVersion { origin: "s3://b".into(), path, size: BYTES, tag: VersionTag::Etag(etag.into()) }
}

/// A page of the files `range` of `/s3/DIRECTORY`; the token of the next one is where it starts.
fn page(directory: &str, range: Range<u64>, count: u64) -> Arc<Page> {
    let entry = |at: u64| {
        let attr = Attr::file(version(directory, at, "1"));
        DirEntry { name: format!("{at:06}.jpg").into_bytes().into(), attr }
    };
    let next = (range.end < count).then(|| range.end.to_string());
    Arc::new(Page::new(FsPath::new(format!("/s3/{directory}")).unwrap(), range.map(entry).collect(), next))
}

/// A client's walks, and what they had fetched.
#[derive(Default)]
struct Run {
    walks: Walks,
    now: Duration,
    fetched: Vec<String>,
    wanted: Vec<String>,
    outcome: Outcome,
    most: u64,
}

impl Run {
    fn list(&mut self, directory: &str, range: Range<u64>, count: u64) {
        let token = (range.start > 0).then(|| range.start.to_string());
        let page = page(directory, range, count);
        let wanted = self.walks.listed(token.as_deref(), &page, 1000, self.now, LIMITS, &|_| false);
        self.take(wanted);
    }

    fn list_all(&mut self, directory: &str, count: u64) {
        (0..count.div_ceil(1000)).for_each(|at| self.list(directory, at * 1000..count.min((at + 1) * 1000), count));
    }

    fn open(&mut self, directory: &str, at: u64) {
        self.now += MS;
        let wanted = self.walks.opened(&version(directory, at, "1"), self.now, LIMITS, &|_| false);
        self.take(wanted);
    }

    fn take(&mut self, wanted: Wanted) {
        let path =
            |guess: &Guess| String::from_utf8_lossy(&guess.name().entry().attr.version().unwrap().path).into_owned();
        self.fetched.extend(wanted.fetch.iter().map(path));
        self.wanted.extend(wanted.list.map(|next| format!("{} {}", next.directory, next.token)));
        self.outcome += wanted.outcome;
        self.most = self.most.max(self.walks.outstanding());
    }

    fn names(&self) -> usize {
        self.walks.directories.values().map(Directory::names).sum()
    }
}

#[test]
fn a_directory_that_was_listed_is_walked_across_its_pages() {
    let mut run = Run::default();
    run.list_all("d", 2500);
    assert!(run.fetched.is_empty(), "who lists does not open yet");
    (0..2500).for_each(|at| run.open("d", at));
    let expected: Vec<_> = (3..2500).map(|at| format!("d/{at:06}.jpg")).collect();
    assert_eq!(run.fetched, expected);
    assert_eq!((run.outcome, run.wanted.len()), (Outcome { used: 2497, wasted: 0 }, 0));
}

#[test]
fn what_was_not_listed_is_not_guessed() {
    let mut run = Run::default();
    run.list_all("d", 100);
    (0..100).for_each(|at| run.open("e", at));
    (200..300).for_each(|at| run.open("d", at));
    assert!(run.fetched.is_empty());
}

#[test]
fn a_directory_of_more_names_than_are_kept_is_listed_on_as_its_walk_comes_there() {
    const COUNT: u64 = 100_000;
    let mut run = Run::default();
    run.list_all("d", COUNT);
    assert_eq!(run.names(), MAX_NAMES_OF_ONE);
    for at in 0..COUNT {
        run.open("d", at);
        for wanted in std::mem::take(&mut run.wanted) {
            let start: u64 = wanted.strip_prefix("/s3/d ").unwrap().parse().unwrap();
            run.list("d", start..COUNT.min(start + 1000), COUNT);
        }
        assert!(run.names() <= MAX_NAMES_OF_ONE);
    }
    assert_eq!(run.outcome, Outcome { used: COUNT - 3, wasted: 0 });
}

#[test]
fn a_page_that_could_not_be_listed_is_asked_for_again_and_not_twice_at_once() {
    let mut run = Run::default();
    run.list("d", 0..1000, 2000);
    (0..1000).for_each(|at| run.open("d", at));
    assert_eq!(run.wanted, ["/s3/d 1000"]);
    run.walks.not_listed(&FsPath::new("/s3/d").unwrap());
    run.open("d", 999);
    assert_eq!(run.wanted, ["/s3/d 1000", "/s3/d 1000"]);
}

#[test]
fn directories_share_one_budget() {
    let mut run = Run::default();
    for directory in 0..10 {
        run.list_all(&directory.to_string(), 1000);
    }
    for at in 0..1000 {
        (0..10).for_each(|directory| run.open(&directory.to_string(), at));
    }
    assert!(run.most <= LIMITS.budget, "{}", run.most);
    assert!(run.outcome.used > 9_900 && run.outcome.wasted == 0, "{:?}", run.outcome);
}

#[test]
fn after_one_directory_the_one_beside_it_is_fetched_as_it_is_listed() {
    let mut run = Run::default();
    run.list_all("data/1", 100);
    (0..100).for_each(|at| run.open("data/1", at));
    let before = run.fetched.len();
    run.list_all("data/2", 100);
    assert_eq!(run.fetched[before..], [0, 1, 2, 3].map(|at| format!("data/2/{at:06}.jpg")));
    (0..100).for_each(|at| run.open("data/2", at));
    assert_eq!(run.outcome, Outcome { used: 197, wasted: 0 });
    // The same one once more, where something has changed.
    let before = run.fetched.len();
    run.list_all("data/2", 99);
    assert_eq!(run.fetched.len(), before + 4);
}

#[test]
fn a_program_that_lists_a_tree_has_little_fetched_in_vain() {
    let mut run = Run::default();
    run.list_all("data/1", 100);
    (0..100).for_each(|at| run.open("data/1", at));
    let before = run.fetched.len();
    for directory in 2..1000 {
        run.now += 100 * MS;
        run.list_all(&format!("data/{directory}"), 100);
    }
    assert_eq!(run.fetched.len() - before, 2 * 4);
    run.now += Duration::from_secs(60);
    run.open("data/1", 0);
    assert_eq!((run.walks.outstanding(), run.outcome.wasted), (0, 8));
}

#[test]
fn few_names_are_kept_and_those_that_are_walked_longest() {
    let mut run = Run::default();
    run.list_all("walked", 1000);
    for directory in 0..200 {
        run.open("walked", directory);
        run.list_all(&format!("d{directory}"), 1000);
        assert!(run.names() <= MAX_NAMES && run.walks.directories.len() <= MAX_DIRECTORIES);
    }
    assert!(run.walks.places.len() <= MAX_DIRECTORIES);
    assert!(run.outcome.used > 190, "{:?}", run.outcome);
}

#[test]
fn what_is_in_memory_is_not_fetched_and_what_has_changed_is_wrong() {
    let mut run = Run::default();
    run.list_all("d", 100);
    for at in 0..3 {
        let wanted =
            run.walks.opened(&version("d", at, "1"), MS, LIMITS, &|name| !name.entry().name.starts_with(b"000004"));
        run.take(wanted);
    }
    assert_eq!(run.fetched, ["d/000004.jpg"]);
    let directory = FsPath::new("/s3/d").unwrap();
    let outcome = run.walks.fetched(&directory, Place { walk: 0, position: 4 }, None, MS);
    assert_eq!((outcome, run.walks.outstanding()), (Outcome { used: 0, wasted: 1 }, 0));
    // A file that was replaced since the listing is still the file at its place.
    let before = run.walks.turn;
    run.walks.opened(&version("d", 3, "2"), MS, LIMITS, &|_| false);
    assert_eq!(run.walks.directories[&directory].walks[0].1.places().next(), Some(4));
    assert_eq!(run.walks.turn, before + 1);
}

/// The number of an inode, as far as a walk can tell: a hash.
fn number(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[test]
fn files_in_the_order_of_their_inode_numbers_are_a_walk_once_the_mount_has_told_the_numbers() {
    for tells in [true, false] {
        let mut run = Run::default();
        for start in [0, 1000] {
            let page = page("d", start..start + 1000, 2000);
            let token = (start > 0).then(|| start.to_string());
            let wanted = run.walks.listed(token.as_deref(), &page, 1000, run.now, LIMITS, &|_| false);
            run.take(wanted);
            if tells {
                for (at, name) in (start..).zip(page.names()) {
                    name.number(|| number(at));
                }
            }
        }
        let mut order: Vec<u64> = (0..2000).collect();
        order.sort_by_key(|at| number(*at));
        order.iter().for_each(|at| run.open("d", *at));
        // What was guessed by the other order, at first.
        assert!(run.outcome.wasted <= 60, "{tells}: {:?}", run.outcome);
        let expected = if tells { 1800..2000 } else { 0..60 };
        assert!(expected.contains(&run.outcome.used), "{tells}: {:?}", run.outcome);
    }
}

proptest! {
    #[test]
    fn whatever_is_listed_and_opened_names_and_bytes_are_bounded(
        steps in prop::collection::vec((0u8..40, 0u64..3000, any::<bool>()), 1..300),
    ) {
        let mut run = Run::default();
        let mut places = [0; 40];
        for (directory, at, lists) in steps {
            let name = format!("{}/{directory}", directory % 3);
            if lists {
                run.list_all(&name, 1 + at);
            }
            let place = &mut places[usize::from(directory)];
            (0..20).for_each(|step| run.open(&name, *place + step));
            *place = (*place + 20) % 3000;
            prop_assert!(run.most <= LIMITS.budget);
            prop_assert!(run.names() <= MAX_NAMES + 3000 && run.walks.directories.len() <= MAX_DIRECTORIES);
            prop_assert!(run.outcome.used + run.outcome.wasted <= run.fetched.len() as u64);
        }
    }
}
