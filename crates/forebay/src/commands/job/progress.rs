//! How far a job is, for people: a report of a few lines, and a live bar.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use forebay_coordinator::ApiClient;
use forebay_coordinator::jobs::{FileCounts, JobReport, JobState, Pass};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::away::Away;
use crate::output;

/// How often a job is asked for.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Follows a job to its end; with `json`, a line for each answer and no bar. The last answer.
///
/// # Errors
/// When the coordinator is away for long.
pub(super) async fn follow(client: &ApiClient, mut job: JobReport, json: bool) -> anyhow::Result<JobReport> {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {percent:>3}% {msg}") {
        bar.set_style(style);
    }
    let mut away = Away::default();
    while !job.state.is_final() {
        if json {
            let mut out = output::stdout();
            output::json_line(&mut out, &serde_json::to_value(&job)?)?;
            out.flush()?;
        } else {
            bar.set_prefix(pass_of(&job));
            bar.set_length(1000);
            bar.set_position((job.progress.percent.unwrap_or(0.0) * 10.0) as u64);
            bar.set_message(line_of(&job));
        }
        tokio::time::sleep(ASK_EVERY).await;
        match client.job(&job.id).await {
            Ok(answer) => {
                away.answered();
                job = answer;
            }
            Err(error) if away.is_borne(&error, Instant::now()) => {
                bar.set_message(format!("waiting for the coordinator: {error}"));
            }
            Err(error) => {
                bar.abandon();
                return Err(error.into());
            }
        }
    }
    bar.finish_and_clear();
    Ok(job)
}

fn pass_of(job: &JobReport) -> String {
    match (job.state, job.pass) {
        (JobState::Waiting, _) => "waiting".to_owned(),
        (_, Pass::Count) => "listing".to_owned(),
        (_, Pass::Work) => format!("{}ing", job.spec.kind().as_str()),
        (_, Pass::Audit(0)) => "checking".to_owned(),
        (_, Pass::Audit(again)) => format!("checking ({})", again + 1),
        (_, Pass::Clients) => "keeping".to_owned(),
    }
}

/// What changes all the time, in one line.
fn line_of(job: &JobReport) -> String {
    let progress = &job.progress;
    if let (Pass::Clients, Some(delivery)) = (job.pass, &job.delivery) {
        return format!(
            "{} on mounts, {} of {} mounts done",
            counts_text(delivery.kept),
            delivery.ended,
            delivery.mounts
        );
    }
    let behind = if matches!(job.pass, Pass::Audit(_)) { progress.audited } else { progress.done };
    let mut line = match progress.total {
        Some(total) if job.pass != Pass::Count => format!("{} of {}", counts_text(behind), counts_text(total)),
        _ => format!("{}, listed {}", counts_text(behind), counts_text(progress.listed)),
    };
    line += &format!(", {}/s", size(progress.bytes_per_second as u64));
    if let Some(eta) = progress.eta_seconds {
        line += &format!(", {} left", humantime::format_duration(Duration::from_secs(eta)));
    }
    if job.failures.count > 0 {
        line += &format!(", {} failed", job.failures.count);
    }
    line
}

fn counts_text(counts: FileCounts) -> String {
    format!("{} files {}", counts.files, size(counts.bytes))
}

fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// Prints what there is to say of a job; with `verbose`, with the paths.
///
/// # Errors
/// When it cannot be written.
pub(super) fn print(out: &mut impl Write, job: &JobReport, verbose: bool) -> io::Result<()> {
    let progress = &job.progress;
    writeln!(out, "job {}: {} {}", job.id, job.spec.kind().as_str(), job.spec.path())?;
    match progress.percent.filter(|_| job.state == JobState::Running) {
        Some(percent) => writeln!(out, "  state      {}, {} {percent:.1}%", job.state.as_str(), pass_of(job))?,
        None => writeln!(out, "  state      {}", job.state.as_str())?,
    }
    let total = progress.total.map_or_else(|| format!("{} so far", counts_text(progress.listed)), counts_text);
    writeln!(out, "  total      {total}")?;
    writeln!(out, "  done       {}", counts_text(progress.done))?;
    let fields = [("skipped", progress.skipped), ("checked", progress.audited), ("repaired", progress.repaired)];
    for (named, counted) in fields.into_iter().filter(|(_, counted)| *counted != FileCounts::default()) {
        writeln!(out, "  {named:<10} {}", counts_text(counted))?;
    }
    if let Some(delivery) = &job.delivery {
        writeln!(
            out,
            "  kept       {} by {} of {} mounts",
            counts_text(delivery.kept),
            delivery.ended,
            delivery.mounts
        )?;
        if delivery.no_room > 0 {
            writeln!(out, "  no room    {} files", delivery.no_room)?;
        }
    }
    if progress.fetched_bytes + progress.cached_bytes > 0 {
        let (fetched, cached) = (size(progress.fetched_bytes), size(progress.cached_bytes));
        writeln!(out, "  bytes      {fetched} fetched, {cached} cached before")?;
    }
    if progress.freed_bytes > 0 {
        writeln!(out, "  freed      {}", size(progress.freed_bytes))?;
    }
    if !job.state.is_final() {
        let rate = size(progress.bytes_per_second as u64);
        writeln!(out, "  rate       {rate}/s, {:.1} files/s", progress.files_per_second)?;
        if let Some(eta) = progress.eta_seconds {
            writeln!(out, "  left       {}", humantime::format_duration(Duration::from_secs(eta)))?;
        }
    } else if let (Some(started), Some(finished)) = (job.started_ms, job.finished_ms) {
        let took = Duration::from_millis(finished.saturating_sub(started));
        writeln!(out, "  took       {}", humantime::format_duration(took))?;
    }
    if job.failures.count > 0 {
        writeln!(out, "  failed     {}", job.failures.count)?;
        for cause in &job.failures.causes {
            writeln!(out, "    {} × {}: {}", cause.count, cause.kind, cause.told())?;
            // Of one text what they have in common is all.
            for variant in cause.variants.iter().filter(|_| verbose && cause.variants.len() > 1) {
                writeln!(out, "      {variant}")?;
            }
            let shown = if verbose { cause.first_paths.len() } else { 1 };
            for path in cause.first_paths.iter().take(shown) {
                writeln!(out, "      {path}")?;
            }
        }
    }
    if verbose && job.evicted.bytes > 0 {
        writeln!(out, "  evicted    {} files {}", job.evicted.files, size(job.evicted.bytes))?;
        for path in &job.evicted.first_paths {
            writeln!(out, "      {path}")?;
        }
    }
    for warning in &job.warnings {
        writeln!(out, "  warning: {warning}")?;
    }
    Ok(())
}
