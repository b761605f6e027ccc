//! The matrix: measured one cell after the other, and what becomes of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use forebay_benchmark::posix::run::{default_output, machine};
use forebay_benchmark::read::counted::judge;
use forebay_benchmark::read::{self as reading, Batch, KeepError, Kept, Step, against, conclusions, size};
use forebay_benchmark::record::{FORMAT, Finding, Level, Measured, Record};
use forebay_benchmark::report;
use forebay_config::Loaded;
use forebay_doctor::Root;
use forebay_doctor::facts::Rdma;
use forebay_node::rdma::cards::Machine;
use forebay_rdma::verbs::VerbsLibrary;
use forebay_rdma::{Library, Provider};

use super::super::posix::terminal::Terminal;
use super::args::{Args, TransportArg};
use super::cells::Cells;
use super::plan::{By, Plan, plan, worker_memory};
use super::process::Children;
use super::progress::Bar;
use super::room;
use super::site::{Options, Site};
use crate::exit::{Exit, Fault};
use crate::output;
use crate::signals::Signals;
use crate::{logging, runtime};

/// How long a run that was interrupted may take to clean up before its processes are killed.
const END_WITHIN: Duration = Duration::from_secs(30);
/// Runs it.
///
/// # Errors
/// When a part does not start, or a file cannot be read or is wrong.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let loaded = args.config.load([])?;
    logging::start_quiet(&loaded.config)?;
    // While the process has one thread, as UCX wants it.
    let without_ucx = Library::load(loaded.config.ucx_library.as_deref()).err().map(|error| error.to_string());
    let without_verbs = || match VerbsLibrary::load() {
        Err(error) => Some(error.to_string()),
        Ok(_) => Machine::look(&Root::default())
            .and_then(|machine| machine.data_cards_by(&loaded.config, Provider::Verbs))
            .err()
            .map(|error| format!("{error:#}")),
    };
    let is_asked = |transport| args.matrix.transports.contains(&transport);
    let missing_ucx = without_ucx.filter(|_| is_asked(TransportArg::Ucx));
    let missing_verbs = is_asked(TransportArg::Verbs).then(without_verbs).flatten();
    let missing: Vec<_> = missing_ucx
        .clone()
        .map(|why| (TransportArg::Ucx, why))
        .into_iter()
        .chain(missing_verbs.map(|why| (TransportArg::Verbs, why)))
        .collect();
    for (transport, why) in &missing {
        let what = if *transport == TransportArg::Verbs { "verbs are" } else { "UCX is" };
        output::say(&format!("{what} not measured: {why}"));
    }
    let plan = plan(args, &missing)?;
    let batches = reading::plan(&plan.settings, plan.ways.len());
    let missing = missing_ucx;
    if args.matrix.dry_run {
        return tell(&plan, &batches);
    }
    room::check(&plan)?;
    let directory = args.matrix.output.clone().unwrap_or_else(default_output);
    let kept = Kept::open(&directory, fresh(args, &loaded, &plan)).map_err(cannot_keep)?;
    runtime::block_on(supervise(args, loaded, plan, batches, kept, missing))
}

fn cannot_keep(error: KeepError) -> anyhow::Error {
    let (exit, next) = match &error {
        // Its cause says what it is.
        KeepError::Io { .. } => return error.into(),
        KeepError::InUse(_) => (Exit::Busy, "wait for it, or name another directory with `--output`"),
        KeepError::Record(_) | KeepError::Foreign { .. } => (Exit::Usage, "name another directory with `--output`"),
        KeepError::Other { .. } => {
            (Exit::Usage, "name another directory with `--output`, or give the settings that it was begun with")
        }
    };
    Fault::new(exit, error.to_string(), next).into()
}

/// Prints what would be done.
fn tell(plan: &Plan, batches: &[Batch]) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let names: Vec<&str> = plan.ways.iter().map(|way| way.name.as_str()).collect();
    writeln!(out, "over {}, {} rounds:", names.join(" and "), plan.settings.repeat)?;
    for batch in batches {
        let mut shapes: Vec<String> = Vec::new();
        for step in &batch.steps {
            let shape = format!("{}×{}", step.clients, step.files);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        writeln!(out, "  files of {:>8}: clients × files {}", size(batch.file_bytes), shapes.join(", "))?;
    }
    let steps: usize = batches.iter().map(|batch| batch.steps.len()).sum();
    let bytes = |batch: &Batch| batch.steps.iter().map(move |step| step_bytes(batch, step)).sum::<u64>();
    let all: u64 = batches.iter().map(bytes).sum();
    let most = plan.settings.max_bytes();
    writeln!(out, "{steps} measurements read {} in all; {} of files at a time", size(all), size(most))?;
    if plan.workers.is_empty() {
        writeln!(out, "a worker with {} of memory is started", worker_memory(most))?;
    }
    Ok(out.flush()?)
}

fn step_bytes(batch: &Batch, step: &Step) -> u64 {
    batch.file_bytes.saturating_mul(u64::from(step.clients) * u64::from(step.files))
}

/// A record of nothing yet.
fn fresh(args: &Args, loaded: &Loaded, plan: &Plan) -> Record {
    let list = |numbers: &[u32]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let sizes = |sizes: &[u64]| sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut settings = BTreeMap::from([
        ("clients".to_owned(), list(&plan.settings.clients)),
        ("file-counts".to_owned(), list(&plan.settings.files)),
        ("sizes".to_owned(), sizes(&plan.settings.sizes)),
        ("large-sizes".to_owned(), sizes(&plan.settings.large)),
        ("repeat".to_owned(), plan.settings.repeat.to_string()),
        ("ways".to_owned(), plan.ways.iter().map(|way| way.name.clone()).collect::<Vec<_>>().join(",")),
        ("buffer".to_owned(), args.buffer.to_string()),
        ("buffered".to_owned(), args.buffered.to_string()),
        ("check".to_owned(), args.check.to_string()),
    ]);
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
    let against: Vec<String> = args.against.iter().map(absolute).collect();
    let more = [
        ("origin", plan.origin.clone()),
        ("workers", (!plan.workers.is_empty()).then(|| plan.workers.join(","))),
        // Where a run that was killed has left files.
        ("below", (!plan.workers.is_empty()).then(|| plan.below.display().to_string())),
        ("against", (!against.is_empty()).then(|| against.join(","))),
    ];
    settings.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    for row in loaded.show().into_iter().filter(|row| matches!(row.origin, forebay_config::Origin::Flag { .. })) {
        settings.insert(format!("-o {}", row.key), row.value.unwrap_or_default());
    }
    Record {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        begun: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        finished: false,
        machine: machine(),
        settings,
        measured: Measured::Read { cells: Vec::new() },
        findings: Vec::new(),
    }
}

/// Runs the matrix on a thread of its own. A signal ends the matrix in order; the loss of the terminal is no such
/// signal.
async fn supervise(
    args: &Args,
    loaded: Loaded,
    plan: Plan,
    batches: Vec<Batch>,
    kept: Kept,
    missing: Option<String>,
) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let (stop, children, terminal) = (Arc::new(AtomicBool::new(false)), Arc::new(Children::default()), Terminal::now());
    let mut running = tokio::task::spawn_blocking({
        let (stop, children) = (Arc::clone(&stop), Arc::clone(&children));
        move || measure(&loaded, &plan, &batches, kept, missing.as_deref(), (stop, children))
    });
    let mut interrupted = None;
    let done = loop {
        let patience = async {
            match interrupted {
                Some(_) => tokio::time::sleep(END_WITHIN).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = &mut running => break done.context("the benchmark panicked")?,
            signal = signals.next() => match signal {
                "SIGHUP" => terminal.leave(),
                signal if interrupted.is_none() => {
                    interrupted = Some(signal);
                    stop.store(true, Ordering::Relaxed);
                }
                _ => children.kill(),
            },
            () = patience => children.kill(),
        }
    };
    let kept = match (done, interrupted) {
        (Ok(kept), _) => kept,
        (Err(_), Some(signal)) => return Err(Fault::interrupted(signal).into()),
        (Err(error), None) => return Err(error),
    };
    let mut out = output::stdout();
    if args.json.json {
        output::json_line(&mut out, &serde_json::to_value(&kept.record)?)?;
    } else {
        write!(out, "{}", report::text(&kept.record))?;
        writeln!(out, "\n{}", kept.directory().join("report.html").display())?;
    }
    Ok(out.flush()?)
}

/// Measures what is left to be, and writes the report: also of what there is when that fails or is interrupted.
fn measure(
    loaded: &Loaded,
    plan: &Plan,
    batches: &[Batch],
    kept: Kept,
    missing: Option<&str>,
    (stop, children): (Arc<AtomicBool>, Arc<Children>),
) -> anyhow::Result<Kept> {
    let has_card = Rdma::read(&Root::default()).ports().any(|(_, port)| port.is_active());
    let site = Options { loaded, workers: plan.workers.clone(), has_card, children, stop: Arc::clone(&stop) };
    let bar = Bar::new(batches.iter().map(|batch| batch.steps.len()).sum());
    let mut cells = Cells { site: Site::new(site)?, plan, kept, stop, bar, files_are_left: false };
    if cells.kept.resumed {
        output::say(&format!("going on with the run in {}", cells.kept.directory().display()));
    }
    cells.keep_whole_rounds();
    let begun = cells.begin();
    let measured = begun.and_then(|()| batches.iter().try_for_each(|batch| cells.measure(batch)));
    cells.bar.end();
    let mut kept = cells.end()?;
    if matches!(&kept.record.measured, Measured::Read { cells } if cells.is_empty()) {
        return measured.map(|()| kept);
    }
    findings(&mut kept.record, plan, missing);
    kept.record.finished = measured.is_ok();
    kept.save()?;
    kept.put("report.html", report::html(&kept.record).as_bytes())?;
    kept.put("cells.csv", report::csv(&kept.record).as_bytes())?;
    match measured {
        Ok(()) => {
            kept.log("finished");
            Ok(kept)
        }
        Err(error) => {
            kept.log(&format!("ended early: {error:#}"));
            let directory = kept.directory().display();
            output::say(&format!("what was measured is in {directory}; `--output {directory}` goes on with it"));
            Err(error)
        }
    }
}

/// What it means, after what was found on the way.
fn findings(record: &mut Record, plan: &Plan, missing: Option<&str>) {
    let Measured::Read { cells } = &mut record.measured else { return };
    judge(cells, "tcp");
    // The study's conclusions are about RDMA, whichever library it goes by.
    let has = |name: &str| plan.ways.iter().any(|way| way.name == name);
    let rdma = if has("verbs") && !has("ucx") { "verbs" } else { "ucx" };
    let mut found = conclusions(cells, "tcp", rdma);
    if has("verbs") && has("ucx") {
        found.extend(against(cells, "verbs", "ucx"));
    }
    for way in plan.ways.iter().filter(|way| matches!(way.by, By::Directory(_))) {
        found.extend(["tcp", "ucx", "verbs"].iter().filter_map(|ours| against(cells, ours, &way.name)));
    }
    found.extend(missing.map(|why| without_ucx(why, has("verbs"))));
    found.push(Finding {
        rule: "bytes".to_owned(),
        level: Level::Good,
        text:
            "Every byte of every file was compared with what was written, over each transport, before it was measured."
                .to_owned(),
        next: None,
    });
    record.findings.extend(found);
}

/// UCX is not here: without verbs, too, there is no RDMA to draw conclusions about.
fn without_ucx(why: &str, has_verbs: bool) -> Finding {
    let untested = if has_verbs { "" } else { ", and none of the study's conclusions can be tested" };
    Finding {
        rule: "no-ucx".to_owned(),
        level: Level::Info,
        text: format!("UCX was not measured{untested}: {why}."),
        next: Some("install libucp: `apt-get install libucx0` or `dnf install ucx`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ucx_conclusions_are_drawn_of_verbs() {
        assert_eq!(without_ucx("no libucp", true).text, "UCX was not measured: no libucp.");
        assert!(without_ucx("no libucp", false).text.contains("none of the study's conclusions can be tested"));
    }
}
