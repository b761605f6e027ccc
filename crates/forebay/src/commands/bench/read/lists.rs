//! Lists of files on any mount: ReadTest's `write` and `read`.
//!
//! What differs from what was written ends it, once all files of all places were read: with the time of each is told what differs
//! in it, and all of that again in the error.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use forebay_benchmark::median;
use forebay_benchmark::read::differences::WrongFiles;
use forebay_benchmark::read::files::{self, Buffer, FileError, Reading};
use forebay_benchmark::read::processor::used;
use forebay_benchmark::read::statistics::mean;
use forebay_benchmark::read::{How, Together, milliseconds, size, together};
use serde_json::json;

use super::args::Args;
use crate::exit::{Exit, Fault};
use crate::output;

/// Writes and reads them.
///
/// # Errors
/// When a file cannot be written or read, or is wrong.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let here = args.directory.clone().unwrap_or_default();
    let places: Vec<PathBuf> = std::iter::once(here).chain(args.against.iter().cloned()).collect();
    if let Some(absolute) = args.write.iter().chain(&args.files).find(|file| file.is_absolute() && places.len() > 1) {
        let next = "name the files below DIRECTORY, so that they can be found below PATH as well";
        let what = format!("--against and the absolute path {}", absolute.display());
        return Err(Fault::new(Exit::Usage, what, next).into());
    }
    let clients = match args.clients[..] {
        [] => 1,
        [clients] => clients,
        _ => {
            let next = "run it once for each";
            return Err(Fault::new(Exit::Usage, "--files with several numbers of clients", next).into());
        }
    };
    write(args, &places)?;
    read(args, &places, clients)
}

fn write(args: &Args, places: &[PathBuf]) -> anyhow::Result<()> {
    let bytes = args.size.unwrap_or_default().as_u64();
    let (mut buffer, stop) = (Buffer::new(args.how().buffer), AtomicBool::new(false));
    for place in places {
        for file in &args.write {
            let path = place.join(file);
            let took = files::write(&path, bytes, args.overwrite, &mut buffer, &stop).map_err(cannot_write)?;
            let mut out = output::stdout();
            if args.json.json {
                let line = json!({
                    "operation": "write", "file": path.display().to_string(), "bytes": bytes,
                    "nanoseconds": took.as_nanos() as u64,
                });
                output::json_line(&mut out, &line)?;
            } else {
                writeln!(out, "wrote {}", line(&path, bytes, took.as_secs_f64()))?;
            }
            out.flush()?;
        }
    }
    Ok(())
}

fn cannot_write(error: FileError) -> anyhow::Error {
    match &error {
        FileError::Exists(_) => {
            let next = "write files of other names, or over whatever is there with `--overwrite`";
            Fault::new(Exit::Busy, error.to_string(), next).into()
        }
        _ => error.into(),
    }
}

/// `PATH   50 MB   12.3 ms   4.07 GB/s`.
fn line(path: &Path, bytes: u64, seconds: f64) -> String {
    let rate = bytes as f64 / seconds.max(1e-9) / 1e9;
    format!("{}  {}  {}  {rate:.2} GB/s", path.display(), size(bytes), milliseconds(seconds * 1e3))
}

fn read(args: &Args, places: &[PathBuf], clients: u32) -> anyhow::Result<()> {
    if args.files.is_empty() {
        return Ok(());
    }
    let repeat = args.repeat.map_or(if places.len() > 1 { 2 } else { 1 }, std::num::NonZeroU32::get);
    let expected = args.size.map(forebay_types::ByteSize::as_u64);
    let (how, stop) = (args.how(), AtomicBool::new(false));
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); places.len()];
    for round in 0..repeat {
        let mut wrong = WrongFiles::default();
        // Neighbours in time are compared; every other round goes backwards.
        let mut order: Vec<usize> = (0..places.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let list: Vec<PathBuf> = args.files.iter().map(|file| places[index].join(file)).collect();
            let lists = vec![list; clients as usize];
            let (read, before, after) = together(&lists, expected, how, &stop, || used(std::process::id()))?;
            let percent_seconds = before.until(after) * 100.0;
            print(args, &lists[0], &read, how, round, percent_seconds)?;
            times[index].push(read.milliseconds_per_file());
            wrong.files += lists[0].len();
            wrong.wrong.extend(read.right(&lists).err().into_iter().flat_map(|found| found.wrong));
        }
        // How long it takes to read the wrong bytes is of no interest.
        if !wrong.wrong.is_empty() {
            return Err(wrong.into());
        }
    }
    compare(args, places, &times)
}

/// How the first place did beside the others, from rounds that follow each other.
fn compare(args: &Args, places: &[PathBuf], times: &[Vec<f64>]) -> anyhow::Result<()> {
    let (Some((here, others)), Some((ours, times))) = (places.split_first(), times.split_first()) else {
        return Ok(());
    };
    let mut out = output::stdout();
    for (place, theirs) in others.iter().zip(times) {
        let ratio = median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs)).unwrap_or_default();
        let of = |times: &[f64]| mean(times.iter().copied()).unwrap_or_default();
        let (here, place) = (shown(here), shown(place));
        if args.json.json {
            let line = json!({
                "operation": "compare", "directory": here, "against": place, "ratio": ratio,
                "milliseconds_per_file": of(ours), "against_milliseconds_per_file": of(theirs),
            });
            output::json_line(&mut out, &line)?;
        } else {
            let (ours, theirs) = (milliseconds(of(ours)), milliseconds(of(theirs)));
            writeln!(out, "a file took {ratio:.2} times as long in {here} as in {place}: {ours} against {theirs}")?;
        }
    }
    Ok(out.flush()?)
}

fn shown(place: &Path) -> String {
    if place.as_os_str().is_empty() { ".".to_owned() } else { place.display().to_string() }
}

fn print(
    args: &Args,
    list: &[PathBuf],
    read: &Together,
    how: How,
    round: u32,
    percent_seconds: f64,
) -> anyhow::Result<()> {
    let mut out = output::stdout();
    for (client, readings) in read.clients.iter().enumerate() {
        for (path, Reading { took, bytes, direct, differences }) in list.iter().zip(readings) {
            if args.json.json {
                let mut line = json!({
                    "operation": "read", "file": path.display().to_string(), "bytes": bytes, "nanoseconds": took.as_nanos() as u64,
                    "client": client, "round": round, "checked": how.check, "direct": direct,
                });
                if how.check {
                    line["differences"] = serde_json::to_value(differences)?;
                }
                output::json_line(&mut out, &line)?;
            } else {
                let checked = match (how.check, differences.is_none()) {
                    (true, true) => "  as written",
                    (true, false) => "  not as written",
                    (false, _) => "",
                };
                writeln!(out, "read {}{checked}", line(path, *bytes, took.as_secs_f64()))?;
            }
        }
    }
    if !args.json.json {
        let cached =
            if how.direct && !read.is_direct() { "; this file system reads through the page cache only" } else { "" };
        let files = read.clients.iter().map(Vec::len).sum::<usize>();
        writeln!(
            out,
            "mean {} a file, {files} files in {:.3} s, {percent_seconds:.1} percent × seconds of this program{cached}",
            milliseconds(read.milliseconds_per_file()),
            read.took.as_secs_f64()
        )?;
    }
    Ok(out.flush()?)
}
