//! Warm reads through Forebay and through the file systems of others, all of the same object from the same S3 server.
//!
//! All are mounted at once and each read goes through all of them in turn. Everything is warm in every cache, and the page cache is
//! empty before reads that it could answer. Forebay takes part twice: as it comes, where the kernel reads what is read twice by itself,
//! and with nothing materialised. The same reads of tmpfs stand beside them, and of a FUSE server that does nothing: as far as the
//! kernel lets a daemon be ahead of the others.

use std::time::Duration;

use crate::fio::{Access, Engine, Fio, count};
use crate::fixture::{Fixture, LARGE};
use crate::null::NullServer;
use crate::peer::{self, Mounted, Ours, Peer, Place};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, percent, rate, seconds, times};
use crate::rounds::{self, Outcome, Sample};
use crate::through::{Target, on_tmpfs};
use rustix::fs::OFlags;

/// What Forebay's daemon is to reach of the best of the others.
const AHEAD: f64 = 1.0;
/// The same where the kernel makes most of the difference; and Forebay as it comes, everywhere.
const FAR_AHEAD: f64 = 2.0;
/// What a daemon may use while nothing is read, as a share of one processor: a measurement beside it would count it.
const IDLE: f64 = 0.01;
/// How long they are watched for that.
const WATCH: Duration = Duration::from_secs(1);

/// What is read.
fn lines() -> [Fio; 8] {
    let (large, small) = (Fio::new(Access::Sequential), Fio::new(Access::Random));
    let programs = large.block(128 << 10);
    let [buffered, mapped] = [programs.buffered(), programs.mapped()];
    [large, large.jobs(4), small, small.jobs(4), buffered, buffered.jobs(4), mapped, mapped.jobs(4)]
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let mut peers = peer::installed(&[Ours::Default, Ours::Daemon]);
    progress.say(&format!("Forebay and {} on the same bucket", count(others(&peers), "other file system")));
    if others(&peers) == 0 {
        progress.say("skipped: no other file system is installed; `scripts/peers.sh` does it");
        return Ok(());
    }
    let mut mounts = Vec::new();
    peers.retain(|peer| match start(fixture, &**peer) {
        Ok(mount) => {
            mounts.push(mount);
            true
        }
        Err(error) => {
            progress.say(&format!("skipped: {}: {error:#}", peer.name()));
            false
        }
    });
    let targets: Vec<Target> = peers
        .iter()
        .zip(&mounts)
        .map(|(peer, mount)| Target::new(peer.name(), mount.path().join(LARGE), mount.pids()))
        .collect();
    for target in &targets {
        // Some fill their cache beside the first reader, and answer the second one from it.
        read_to_end(&target.file, OFlags::empty())?;
        fixture.drop_page_cache()?;
        read_to_end(&target.file, OFlags::empty())?;
    }
    let restless = restless(&peers, &mounts)?;
    let null = NullServer::start(fixture, &["device"], progress)?;
    let nothing: Vec<Target> = null.iter().flat_map(NullServer::targets).collect();
    let all: Vec<&Target> = targets.iter().chain(&nothing).collect();
    let all = &all;
    let cases = lines()
        .into_iter()
        .flat_map(|fio| all.iter().map(move |target| target.case(fixture, fio)).chain([on_tmpfs(fixture, fio)]));
    let outcomes = rounds::measure("peers", cases.collect(), fixture.settings.repeat, progress, || ())?;
    let in_a_row = all.len() + 1;
    drop(null);
    mounts.into_iter().try_for_each(Mounted::end)?;
    peers.iter().try_for_each(|peer| peer.clean(&Place::new(fixture, peer.name())))?;
    let rows: Vec<&[Outcome]> = outcomes.chunks_exact(in_a_row).collect();
    report.table(versions(&peers, &restless));
    report.table(speeds(&peers, &rows, report_of(fixture)));
    report.table(latencies(&peers, &rows));
    report.table(processors(&peers, &rows));
    targets_of(&peers, &rows, report);
    report.samples("peers", outcomes);
    Ok(())
}

fn is_ours(peer: &dyn Peer) -> bool {
    peer.name().starts_with("Forebay")
}

fn others(peers: &[Box<dyn Peer>]) -> u32 {
    peers.iter().map(|peer| u32::from(!is_ours(&**peer))).sum()
}

fn start(fixture: &Fixture, peer: &dyn Peer) -> anyhow::Result<Mounted> {
    let place = Place::new(fixture, peer.name());
    peer.prepare(&place, &[LARGE.to_owned()])?;
    peer.start(&place)
}

/// Those that work while nothing is asked of them.
fn restless(peers: &[Box<dyn Peer>], mounts: &[Mounted]) -> anyhow::Result<Vec<&'static str>> {
    let used = || mounts.iter().map(Mounted::cpu).collect::<anyhow::Result<Vec<_>>>();
    let before = used()?;
    std::thread::sleep(WATCH);
    let after = used()?;
    let used = after.iter().zip(&before).map(|(after, before)| (after - before) / WATCH.as_secs_f64());
    Ok(peers.iter().zip(used).filter(|(_, used)| *used > IDLE).map(|(peer, _)| peer.name()).collect())
}

fn report_of(fixture: &Fixture) -> String {
    let cache = if fixture.is_root { "empty" } else { "**not emptied, for only root may,**" };
    format!(
        "The same fio through each mount; all caches are warm, the page cache is {cache} before buffered and mapped reads. GB/s for \
         large reads, thousands a second for 4 KiB. `of tmpfs` and `ahead`: Forebay against tmpfs, and against the best of the \
         others, in the same round. `null server`: a FUSE server that copies from memory what it is asked for, and does nothing else, \
         over `/dev/fuse`; `null ahead`: that one against the best of the others. No daemon is further ahead, as long as it is asked."
    )
}

fn versions(peers: &[Box<dyn Peer>], restless: &[&str]) -> Table {
    let mut text = "Caches on disk lie on tmpfs. What is not in the table is not installed here.".to_owned();
    if !restless.is_empty() {
        text = format!("{text} Used processor time before the run while nobody read: {}.", restless.join(", "));
    }
    let mut table = Table::new("File systems that were compared", text, &["name", "version", "started with"]);
    for peer in peers {
        let version = peer.version().unwrap_or_default();
        table.row(vec![peer.name().to_owned(), version, peer.settings().to_owned()]);
    }
    table
}

/// A table with a column for each of them after the first, and `last` ones.
fn table_of(peers: &[Box<dyn Peer>], title: &str, text: String, last: &[&str]) -> Table {
    let names = peers.iter().map(|peer| peer.name());
    let header: Vec<&str> = std::iter::once("fio").chain(names).chain(last.iter().copied()).collect();
    Table::new(title, text, &header)
}

fn speeds(peers: &[Box<dyn Peer>], rows: &[&[Outcome]], text: String) -> Table {
    let has_null = rows.first().is_some_and(|of| null_of(peers, of).is_some());
    let first: &[&str] = if has_null { &["null server"] } else { &[] };
    let last: &[&str] = if has_null { &["null ahead"] } else { &[] };
    let between = ["tmpfs", "of tmpfs", "best of the others", "ahead"];
    let more = [first, &between, last].concat();
    let mut table = table_of(peers, "Against other file systems, warm", text, &more);
    for (fio, of) in lines().iter().zip(rows) {
        let shown = of.iter().map(if fio.access == Access::Sequential { rate } else { kilo });
        let of_tmpfs = match of {
            [ours, .., tmpfs] => percent(ours.ratio(tmpfs, |sample| sample.rate)),
            _ => String::new(),
        };
        let (name, ahead) = match (of.first(), best(peers, of, |sample| sample.rate)) {
            (Some(ours), Some((name, best))) => (name, times(ours.ratio(best, |sample| sample.rate), 2)),
            _ => ("", String::new()),
        };
        let others = best(peers, of, |sample| sample.rate);
        let null_ahead = null_of(peers, of).zip(others).map(|(null, (_, best))| times(null.ratio(best, |s| s.rate), 2));
        let last = [of_tmpfs, name.to_owned(), ahead].into_iter().chain(null_ahead);
        table.row(std::iter::once(fio.name()).chain(shown).chain(last).collect());
    }
    table
}

/// The FUSE server that does nothing: it stands between the file systems and tmpfs, where there is one.
fn null_of<'a>(peers: &[Box<dyn Peer>], of: &'a [Outcome]) -> Option<&'a Outcome> {
    of.get(peers.len()).filter(|_| of.len() > peers.len() + 1)
}

fn latencies(peers: &[Box<dyn Peer>], rows: &[&[Outcome]]) -> Table {
    let mut table = table_of(peers, "Against other file systems: p50/p99 µs", String::new(), &[]);
    for (fio, of) in lines().iter().zip(rows) {
        table.row(std::iter::once(fio.name()).chain(of.iter().take(peers.len()).map(latency)).collect());
    }
    table
}

fn processors(peers: &[Box<dyn Peer>], rows: &[&[Outcome]]) -> Table {
    let text = "Seconds of processor time that the daemons used for each GiB.".to_owned();
    let mut table = table_of(peers, "Against other file systems: processor time", text, &[]);
    for (fio, of) in lines().iter().zip(rows) {
        let used = of.iter().take(peers.len()).map(|outcome| seconds(outcome.median(|sample| sample.cpu)));
        table.row(std::iter::once(fio.name()).chain(used).collect());
    }
    table
}

/// The one of the others with the most of something.
fn best<'a>(
    peers: &[Box<dyn Peer>],
    of: &'a [Outcome],
    what: impl Fn(&Sample) -> f64 + Copy,
) -> Option<(&'static str, &'a Outcome)> {
    let others = peers.iter().zip(of).filter(|(peer, _)| !is_ours(&***peer));
    let best = others.max_by(|(_, a), (_, b)| a.median(what).total_cmp(&b.median(what)));
    best.map(|(peer, outcome)| (peer.name(), outcome))
}

fn targets_of(peers: &[Box<dyn Peer>], rows: &[&[Outcome]], report: &mut Report) {
    for (fio, of) in lines().iter().zip(rows) {
        let is_far = fio.engine == Engine::Mapped
            || fio.access == Access::Random
            || (fio.access == Access::Sequential && fio.direct && fio.jobs == 4);
        for (peer, ours) in peers.iter().zip(*of).filter(|(peer, _)| is_ours(&***peer)) {
            let goal = if is_far || peer.name() == Ours::Default.name() { FAR_AHEAD } else { AHEAD };
            let what = format!("{}, {}", peer.name(), fio.name());
            if let Some((name, best)) = best(peers, of, |sample| sample.rate) {
                report.ratio_target(
                    &what,
                    &format!("{name}, the best of the others"),
                    goal,
                    ours.ratio(best, |s| s.rate),
                );
            }
            // Less than a tick of the clock is counted as none.
            let counted = |(_, least): &(&str, &Outcome)| least.samples.iter().all(|sample| sample.cpu > 0.0);
            if let Some((name, least)) = best(peers, of, |sample| -sample.cpu).filter(counted) {
                let ratio = ours.ratio(least, |sample| sample.cpu);
                report.max_target(&format!("CPU of {what}"), &format!("{name}, the least of the others"), 1.0, ratio);
            }
        }
    }
}
