//! Loading a model with the real `safetensors` package: seconds from an empty cache, from a warm one, and from a file that this
//! machine keeps whole; against the same file on tmpfs. Every byte of every tensor is compared.
//!
//! The package maps the file and copies each tensor out of the mapping, so this is what a program gets from `mmap(2)`. Each load is
//! a process of its own; what Python takes to start does not count.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use forebay_testkit::{DataSet, MountProcess};
use rustix::fs::OFlags;
use serde_json::{Value, json};

use crate::fixture::{BY_DAEMON, Fixture};
use crate::materialised;
use crate::peer::peers_directory;
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, percent, rate, seconds};
use crate::rounds::{self, Case, Sample};

/// The file.
const NAME: &str = "model.safetensors";
/// Tensors in it, as many as a small model has layers.
const TENSORS: u64 = 32;
/// What loads it.
const PROGRAM: &str = include_str!("../python/load_model.py");

/// Measures it.
///
/// # Errors
/// When a part does not start, a load fails or its bytes are wrong.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let Some(python) = python() else {
        progress
            .say("skipped: loading a model: no Python with the safetensors package; `scripts/peers.sh` installs one");
        return Ok(());
    };
    progress.say("Loading a model with safetensors");
    let python = &python;
    let reference = fixture.tmpfs().join(NAME);
    write_model(&reference, fixture.settings.size)?;
    std::fs::copy(&reference, fixture.bucket().join(NAME))?;
    let load = |path: &Path| load(python, path, &reference);

    let warm = fixture.up_at("model-warm", &BY_DAEMON)?;
    read_to_end(&warm.path().join(NAME), OFlags::empty())?;
    let kept = materialised::up(fixture, "model-kept", 2 * fixture.settings.size, &[])?;
    let off = materialised::missing(&kept)?;
    if let Some(reason) = &off {
        progress.say(&format!("skipped: loading a materialised model: {reason}"));
    } else {
        materialised::keep(fixture, &kept, NAME)?;
    }
    let cold = |more: &'static [&'static str]| {
        let mount = fixture.up_at("model-cold", &[more, &["-o", "worker.memory.prewarm=true"]].concat())?;
        // Its memory is taken before; so is what the server reads from the disk.
        fixture.take_bucket_into_page_cache()?;
        let sample = load(&mount.path().join(NAME));
        unmounted(mount, sample)
    };
    let dropped = |path: PathBuf| {
        let load = &load;
        move || {
            fixture.drop_page_cache()?;
            load(&path)
        }
    };
    let mut cases = vec![
        Case::new("tmpfs", dropped(reference.clone())),
        Case::new("cold", || cold(&[])),
        Case::new("warm", dropped(warm.path().join(NAME))),
    ];
    let mut names = vec!["tmpfs", "`forebay up`, cold", "`forebay up`, warm"];
    if off.is_none() {
        cases.push(Case::new("materialised", dropped(kept.path().join(NAME))));
        cases.push(Case::new("cold, the first open waits", || cold(FIRST_OPEN)));
        names.extend(["`forebay up`, materialised", "`forebay up`, cold, the first open waits for the whole file"]);
    }
    let outcomes = rounds::measure("model", cases, fixture.settings.repeat, progress, || ())?;
    warm.unmount()?;
    kept.unmount()?;
    fixture.remove(NAME)?;
    std::fs::remove_file(&reference)?;

    let text = format!(
        "`safetensors.numpy.load_file` ({}) of a model of {TENSORS} tensors and {} in all, each load by a new process, the page cache \
         empty before. All bytes were compared with those of the file on tmpfs, and were the same.",
        version(python)?,
        forebay_types::ByteSize::bytes(fixture.settings.size)
    );
    let mut table = Table::new("Loading a model", text, &["from", "seconds", "GB/s", "of tmpfs"]);
    for (name, outcome) in names.iter().zip(&outcomes) {
        let took = seconds(outcome.median(|sample| sample.extra));
        let of_tmpfs = outcomes.first().map_or(f64::NAN, |tmpfs| outcome.ratio(tmpfs, |sample| sample.rate));
        table.row(vec![(*name).to_owned(), took, rate(outcome), percent(of_tmpfs)]);
    }
    report.table(table);
    report.samples("model", outcomes);
    Ok(())
}

/// An open waits until the file is here.
const FIRST_OPEN: &[&str] = &[
    "-o",
    "client.local.size=8GiB",
    "-o",
    "client.local.first_open_size=8GiB",
    "-o",
    "client.local.first_open_wait=120s",
];

fn unmounted(mount: MountProcess, sample: anyhow::Result<Sample>) -> anyhow::Result<Sample> {
    let sample = sample?;
    mount.unmount()?;
    Ok(sample)
}

/// A Python that has the package.
fn python() -> Option<PathBuf> {
    let own = peers_directory().map(|directory| directory.join("python/bin/python"));
    own.into_iter().chain([PathBuf::from("python3")]).find(|python| version(python).is_ok())
}

fn version(python: &Path) -> anyhow::Result<String> {
    let output =
        Command::new(python).args(["-c", "import numpy, safetensors; print(safetensors.__version__)"]).output()?;
    ensure!(output.status.success(), "{} has no safetensors", python.display());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// One load.
fn load(python: &Path, model: &Path, reference: &Path) -> anyhow::Result<Sample> {
    let output = Command::new(python)
        .args(["-c", PROGRAM])
        .args([model, reference])
        .stdin(Stdio::null())
        .output()
        .context("cannot run Python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot load {}: {}", model.display(), said.trim());
    let result: Value = serde_json::from_slice(&output.stdout).context("what load_model.py says")?;
    ensure!(result["equal"] == Value::Bool(true), "{} was loaded with other bytes than it has", model.display());
    let (seconds, bytes) = (result["seconds"].as_f64(), result["bytes"].as_f64());
    let (seconds, bytes) = seconds.zip(bytes).context("load_model.py does not say how long it took")?;
    Ok(Sample { rate: bytes / seconds, extra: seconds, ..Sample::default() })
}

/// A file in the format of safetensors: the length of a JSON header as 8 bytes, the header, and the tensors one after the other.
fn write_model(path: &Path, size: u64) -> anyhow::Result<()> {
    let each = size / TENSORS / 4 * 4;
    let tensors = (0..TENSORS).map(|number| {
        let (start, end) = (number * each, (number + 1) * each);
        let tensor = json!({ "dtype": "F32", "shape": [each / 4], "data_offsets": [start, end] });
        (format!("layer.{number:02}.weight"), tensor)
    });
    let mut header = Value::Object(tensors.collect()).to_string();
    // The tensors begin at a multiple of eight.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let (data, mut tensor) = (DataSet::new(4), vec![0; usize::try_from(each)?]);
    for number in 0..TENSORS {
        data.fill(number * each, &mut tensor);
        file.write_all(&tensor)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_its_tensors_where_its_header_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        write_model(&path, 1 << 20).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        assert_eq!(header % 8, 0);
        let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        assert_eq!(tensors.as_object().unwrap().len() as u64, TENSORS);
        assert_eq!(tensors["layer.31.weight"]["data_offsets"][1], 1 << 20);
        let expected = DataSet::new(4).expected(0..1 << 20);
        assert!(bytes[8 + header..] == expected);
    }
}
