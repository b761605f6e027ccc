//! Ten thousand images: every file of a training set read by eight readers, once from the bucket and then again and again from the
//! cache, through Forebay and through the file systems of others.
//!
//! Each is mounted anew for each round, alone, so that nothing is in its cache; mounting is not timed. Between the readings
//! the page cache is dropped: what is warm is the file system's own cache. Forebay takes part three times: as it comes, with its memory
//! taken from the kernel before, as `forebay worker` does at its start, and with nothing materialised. As it comes, the sixth open of
//! a small file materialises it where memory is spare: so a later reading is measured, too. Plain GETs of the same objects, with no
//! file system at all, are the bound of every cold reading: nothing that fetches each file once can be faster.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::runtime::Runtime;

use crate::fixture::{Fixture, SMALL_SIZE};
use crate::gets::Source;
use crate::peer::{self, Mounted, Ours, Peer, Place};
use crate::process::cpu_seconds;
use crate::progress::Progress;
use crate::reading::{READERS, read_each};
use crate::report::{Report, Table, seconds, times, with_spread};
use crate::rounds::{self, Case, Outcome, Sample};

/// What Forebay is to reach of the best of the others.
const TARGET: f64 = 3.0;
/// The directory of the files in the bucket.
const DIRECTORY: &str = "images";
/// Directories below it.
const DIRECTORIES: usize = 10;
/// Readings of each file system that are measured.
const READINGS: usize = 3;
/// Those of Forebay before the last one, which are not, and time for what they leave to do.
const BETWEEN: usize = 7;
const SETTLES: Duration = Duration::from_secs(2);
/// What a mount may need of memory: its cache, and the page cache.
const NEEDS: u64 = 2;

/// Measures it.
///
/// # Errors
/// When a part does not start or a read fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    let files: usize = if fixture.settings.quick { 40 } else { 10_000 };
    progress.say(&format!("{files} small files, cold and warm"));
    let bytes = files as u64 * SMALL_SIZE;
    let keys: Vec<String> =
        (0..files).map(|number| format!("{DIRECTORY}/{:02}/{number:05}.jpg", number % DIRECTORIES)).collect();
    for (key, seed) in keys.iter().zip(10_000..) {
        fixture.put(key, seed, SMALL_SIZE)?;
    }
    let mut peers = peer::installed(&[Ours::Sized(bytes), Ours::SizedPrewarmed(bytes), Ours::SizedDaemon(bytes)]);
    let tried = |peer: &dyn Peer| {
        let place = Place::new(fixture, peer.name());
        peer.prepare(&place, &keys)?;
        peer.start(&place)?.end()
    };
    peers.retain(|peer| match tried(&**peer) {
        Ok(()) => true,
        Err(error) => {
            progress.say(&format!("skipped: {}: {error:#}", peer.name()));
            false
        }
    });
    let mounted: Vec<RefCell<Option<Mounted>>> = peers.iter().map(|_| RefCell::default()).collect();
    let source = &Source::new(fixture, &fixture.server)?;
    let (peers_ref, keys_ref) = (&peers, &keys);
    let cases = peers_ref.iter().zip(&mounted).flat_map(|(peer, mounted)| {
        let cold = move || {
            // It is not the server's disk that is measured.
            fixture.take_bucket_into_page_cache()?;
            Fixture::back_memory(NEEDS * bytes)?;
            let mount = peer.start(&Place::new(fixture, peer.name()))?;
            let sample = read(&mount, keys_ref)?;
            mounted.replace(Some(mount));
            Ok(sample)
        };
        let again = move || {
            fixture.drop_page_cache()?;
            let mount = mounted.take().context("nothing is mounted")?;
            anyhow::Ok((read(&mount, keys_ref)?, mount))
        };
        let second = move || {
            let (sample, mount) = again()?;
            mounted.replace(Some(mount));
            Ok(sample)
        };
        let later = move || {
            let between = if is_ours(&**peer) { BETWEEN } else { 0 };
            for _ in 0..between {
                let (_, mount) = again()?;
                mounted.replace(Some(mount));
            }
            std::thread::sleep(SETTLES);
            let (sample, mount) = again()?;
            mount.end()?;
            Ok(sample)
        };
        let name = |when: &str| format!("{}, {when}", peer.name());
        [Case::new(name("cold"), cold), Case::new(name("warm"), second), Case::new(name("later"), later)]
    });
    let plain = Case::new("plain GETs", move || {
        fixture.take_bucket_into_page_cache()?;
        get(runtime, source, keys_ref)
    });
    let cases = cases.chain([plain]).collect();
    let outcomes = rounds::measure("small", cases, fixture.settings.repeat, progress, || ())?;
    fixture.remove(DIRECTORY)?;
    peers.iter().try_for_each(|peer| peer.clean(&Place::new(fixture, peer.name())))?;
    tabulate(files, peers_ref, &outcomes, report);
    report.samples("small", outcomes);
    Ok(())
}

fn is_ours(peer: &dyn Peer) -> bool {
    peer.name().starts_with("Forebay")
}

fn read(mount: &Mounted, keys: &[String]) -> anyhow::Result<Sample> {
    timed(keys, || mount.cpu(), || read_each(mount.path(), keys))
}

/// Without a file system; the processor time is this program's.
fn get(runtime: &Runtime, source: &Source, keys: &[String]) -> anyhow::Result<Sample> {
    timed(keys, || cpu_seconds(std::process::id()), || runtime.block_on(source.get_files(keys)))
}

fn timed(
    keys: &[String],
    cpu: impl Fn() -> anyhow::Result<f64>,
    read: impl FnOnce() -> anyhow::Result<u64>,
) -> anyhow::Result<Sample> {
    let (before, began) = (cpu()?, Instant::now());
    let bytes = read()?;
    let took = began.elapsed().as_secs_f64();
    ensure!(bytes == keys.len() as u64 * SMALL_SIZE, "small files had {bytes} bytes in all");
    let cpu = (cpu()? - before) / (bytes as f64 / f64::from(1 << 30));
    Ok(Sample { rate: bytes as f64 / took, operations: keys.len() as f64 / took, cpu, ..Sample::default() })
}

fn tabulate(files: usize, peers: &[Box<dyn Peer>], outcomes: &[Outcome], report: &mut Report) {
    let text = format!(
        "{files} files of {} KiB in {DIRECTORIES} directories, each opened, read to its end and closed once, by {READERS} readers: from \
         a file system that was just mounted, again when the page cache was dropped (`warm`), and 2 s later (`later`; Forebay after {BETWEEN} \
         other readings, the page cache dropped before each). `prewarmed`: its cache's memory was taken from the kernel before. `by its daemon`: with \
         `client.local.size=0`; as it comes, a small file is materialised at its sixth open if there is memory to spare. `plain GETs`: each \
         object got once, {READERS} at once, its bytes thrown away, with no file system at all. `ahead`: Forebay as it comes against this one.",
        SMALL_SIZE >> 10
    );
    let header = [
        "file system",
        "cold files/s",
        "ahead",
        "warm files/s",
        "ahead",
        "later files/s",
        "ahead",
        "cold CPU s/GiB",
        "warm CPU s/GiB",
        "later CPU s/GiB",
    ];
    let mut table = Table::new("Small files", text, &header);
    let readings = outcomes.chunks_exact(READINGS);
    let plain = readings.remainder().first();
    let readings: Vec<&[Outcome]> = readings.collect();
    let Some([our_cold, our_warm, our_later]) = readings.first() else { return };
    let files_a_second = |sample: &Sample| sample.operations;
    let a_second = |of: &Outcome| with_spread(of.median(files_a_second), 0, of.spread(files_a_second));
    let ahead = |ours: &Outcome, theirs: &Outcome| times(ours.ratio(theirs, files_a_second), 2);
    for (peer, of) in peers.iter().zip(&readings) {
        let [cold, warm, later] = of else { continue };
        table.row(vec![
            peer.name().to_owned(),
            a_second(cold),
            ahead(our_cold, cold),
            a_second(warm),
            ahead(our_warm, warm),
            a_second(later),
            ahead(our_later, later),
            seconds(cold.median(|sample| sample.cpu)),
            seconds(warm.median(|sample| sample.cpu)),
            seconds(later.median(|sample| sample.cpu)),
        ]);
    }
    if let Some(plain) = plain {
        let cpu = seconds(plain.median(|sample| sample.cpu));
        let (name, none) = ("plain GETs".to_owned(), String::new);
        let of_all =
            [name, a_second(plain), ahead(our_cold, plain), none(), none(), none(), none(), cpu, none(), none()];
        table.row(of_all.into());
    }
    report.table(table);
    let others = || peers.iter().zip(&readings).filter(|(peer, _)| !is_ours(&***peer));
    let other = |way: Ours| peers.iter().zip(&readings).find(|(peer, _)| peer.name() == way.name()).map(|(_, of)| *of);
    let prewarmed = other(Ours::SizedPrewarmed(0)).and_then(|of| Some(("cold, prewarmed", of.first()?, 0)));
    let by_daemon = other(Ours::SizedDaemon(0)).and_then(|of| Some(("warm, by its daemon", of.get(1)?, 1)));
    let as_it_comes = [("cold", our_cold, 0), ("warm", our_warm, 1), ("later", our_later, 2)];
    for (when, ours, at) in as_it_comes.into_iter().chain(prewarmed).chain(by_daemon) {
        let best = others().filter_map(|(peer, of)| Some((peer.name(), of.get(at)?)));
        let best = best.max_by(|(_, a), (_, b)| a.median(files_a_second).total_cmp(&b.median(files_a_second)));
        if let Some((name, best)) = best {
            let ratio = ours.ratio(best, files_a_second);
            let of_what = format!("{name}, the best of the others");
            report.ratio_target(&format!("small files, {when}"), &of_what, TARGET, ratio);
        }
    }
}
