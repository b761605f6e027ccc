//! Listing a directory of ten thousand names, with and without their attributes, through Forebay and through the file systems of
//! others. All are mounted at once, and take turns; what the page cache has of directories is dropped before each listing. The first
//! listing of each, which asks the store, is timed once.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::ensure;

use crate::fixture::Fixture;
use crate::peer::{self, Mounted, Ours, Place};
use crate::progress::Progress;
use crate::report::{Report, Table, number, times};
use crate::rounds::{self, Case, Outcome, Sample};

/// How long Forebay may take for all names, in µs.
const TARGET: f64 = 6_000.0;
/// The directory in the bucket.
const DIRECTORY: &str = "names";
/// Bytes of a file: nobody reads them.
const SIZE: u64 = 64;
/// Listings in a measurement.
const LISTINGS: u32 = 5;

/// Whether a listing looks at each file, as `ls -l` does.
#[derive(Clone, Copy)]
enum Look {
    Names,
    Attributes,
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a listing is not whole.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let files: usize = if fixture.settings.quick { 100 } else { 10_000 };
    progress.say(&format!("Listing {files} names"));
    let keys: Vec<String> = (0..files).map(|number| format!("{DIRECTORY}/{number:05}.txt")).collect();
    let on_tmpfs = fixture.tmpfs().join(DIRECTORY);
    std::fs::create_dir_all(&on_tmpfs)?;
    for (key, seed) in keys.iter().zip(20_000..) {
        fixture.put(key, seed, SIZE)?;
        std::fs::copy(fixture.bucket().join(key), fixture.tmpfs().join(key))?;
    }
    let mut peers = peer::installed(&[Ours::Default]);
    let mut mounts = Vec::new();
    peers.retain(|peer| {
        let place = Place::new(fixture, peer.name());
        match peer.prepare(&place, &keys).and_then(|()| peer.start(&place)) {
            Ok(mount) => {
                mounts.push(mount);
                true
            }
            Err(error) => {
                progress.say(&format!("skipped: {}: {error:#}", peer.name()));
                false
            }
        }
    });
    let places = mounts.iter().map(|mount| mount.path().join(DIRECTORY)).chain([on_tmpfs.clone()]);
    let places: Vec<PathBuf> = places.collect();
    let names: Vec<&str> = peers.iter().map(|peer| peer.name()).chain(["tmpfs"]).collect();
    let first = places.iter().map(|place| timed(files, || list(place, Look::Attributes)));
    let first = first.collect::<anyhow::Result<Vec<f64>>>()?;
    let cases =
        [(Look::Names, "names"), (Look::Attributes, "names and attributes")].into_iter().flat_map(|(look, what)| {
            names.iter().zip(&places).map(move |(name, place)| {
                Case::new(format!("{name}, {what}"), move || {
                    let mut took = 0.0;
                    for _ in 0..LISTINGS {
                        fixture.drop_page_cache()?;
                        took += timed(files, || list(place, look))?;
                    }
                    let mean = took / f64::from(LISTINGS);
                    Ok(Sample { operations: files as f64 / mean, mean: mean * 1e6, ..Sample::default() })
                })
            })
        });
    let outcomes = rounds::measure("listing", cases.collect(), fixture.settings.repeat, progress, || ())?;
    mounts.into_iter().try_for_each(Mounted::end)?;
    peers.iter().try_for_each(|peer| peer.clean(&Place::new(fixture, peer.name())))?;
    fixture.remove(DIRECTORY)?;
    std::fs::remove_dir_all(&on_tmpfs)?;
    tabulate(files, &names, &first, &outcomes, report);
    report.samples("listing", outcomes);
    Ok(())
}

/// How many files a directory has.
fn list(directory: &Path, look: Look) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if let Look::Attributes = look {
            ensure!(entry.metadata()?.len() == SIZE, "{} has another size", entry.path().display());
        }
        count += 1;
    }
    Ok(count)
}

/// How many seconds a listing took, if it is whole.
fn timed(files: usize, list: impl FnOnce() -> anyhow::Result<usize>) -> anyhow::Result<f64> {
    let began = Instant::now();
    let found = list()?;
    let took = began.elapsed().as_secs_f64();
    ensure!(found == files, "{found} of {files} names were listed");
    Ok(took)
}

fn tabulate(files: usize, names: &[&str], first: &[f64], outcomes: &[Outcome], report: &mut Report) {
    let text = format!(
        "One reader lists a directory of {files} files: their names, and their names with the attributes of each. The page cache is \
         dropped before each listing. `first`: the first listing after mounting, with attributes, which was timed once. \
         `ahead`: Forebay against this one."
    );
    let header = ["file system", "names ms", "ahead", "with attributes ms", "ahead", "first ms"];
    let mut table = Table::new("Listing", text, &header);
    let (of_names, of_attributes) = outcomes.split_at(outcomes.len() / 2);
    let (Some(our_names), Some(our_attributes)) = (of_names.first(), of_attributes.first()) else { return };
    let milliseconds = |of: &Outcome| number(of.median(|sample| sample.mean) / 1e3, 1, "");
    let ahead = |ours: &Outcome, theirs: &Outcome| times(ours.ratio(theirs, |sample| sample.operations), 2);
    for ((name, first), (names, attributes)) in names.iter().zip(first).zip(of_names.iter().zip(of_attributes)) {
        table.row(vec![
            (*name).to_owned(),
            milliseconds(names),
            ahead(our_names, names),
            milliseconds(attributes),
            ahead(our_attributes, attributes),
            number(first * 1e3, 0, ""),
        ]);
    }
    report.table(table);
    let took = our_names.median(|sample| sample.mean);
    report.time_target(&format!("listing {files} names"), TARGET, took);
}
