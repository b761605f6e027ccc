//! `forebay fs checksum`: what `sha256sum` prints, read past the mount and several files at once.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use forebay_types::{Attr, FailureKind, FileVersion};
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Map, Value};
use sha2::Digest as _;

use crate::commands::fs::stream::chunks;
use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::commands::fs::walk::Walk;
use crate::exit::Failures;
use crate::output::{self, JsonArg};

/// Print checksums of files, and of all files below directories
///
/// The output has the format of sha256sum and similar programs: `sha256sum -c` and `b3sum -c` can read it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs checksum /mnt/data > data.sha256 && sha256sum -c data.sha256
  forebay fs checksum --algorithm blake3 --jobs 16 /mnt/data/shards")]
pub(crate) struct Args {
    /// Files or directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The checksum
    #[arg(short, long, value_enum, default_value_t = Algorithm::Sha256)]
    algorithm: Algorithm,
    /// Files read at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Algorithm {
    /// SHA-256
    Sha256,
    /// BLAKE3
    Blake3,
    /// CRC-32C (Castagnoli)
    Crc32c,
}

enum Hasher {
    Sha256(Box<sha2::Sha256>),
    Blake3(Box<blake3::Hasher>),
    Crc32c(Box<crc_fast::Digest>),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Box::default()),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
            Algorithm::Crc32c => Self::Crc32c(Box::new(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => drop(hasher.update(bytes)),
            Self::Crc32c(digest) => digest.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            Self::Blake3(hasher) => hasher.finalize().to_hex().to_string(),
            Self::Crc32c(digest) => format!("{:08x}", digest.finalize()),
        }
    }
}

/// Runs it.
///
/// # Errors
/// When a file is not there or cannot be read.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mut failures = Failures::default();
    let mut out = output::stdout();
    for path in &args.paths {
        let checksummed = async {
            let target = targets.find(path).await?;
            let attr = target.stat(false).await?;
            let checksums = files(Walk::new(target, attr)).map(|file| sum(file, args.algorithm));
            let mut checksums = std::pin::pin!(checksums.buffered(usize::from(args.jobs)));
            while let Some(sum) = checksums.next().await {
                match sum {
                    Ok((target, sum)) => print(&mut out, &args, &target.shown, &sum)?,
                    Err(error) => failures.tell(error)?,
                }
            }
            anyhow::Ok(())
        };
        if let Err(error) = checksummed.await {
            failures.tell(error)?;
        }
        out.flush()?;
    }
    targets.close().await;
    failures.finish()
}

/// The files of a walk, and the directories that could not be listed.
fn files(walk: Walk) -> impl Stream<Item = anyhow::Result<(Target, FileVersion)>> {
    stream::unfold(walk, |mut walk| async {
        loop {
            match walk.next().await {
                Ok(Some((target, Attr { kind: forebay_types::FileKind::File(version), .. }))) => {
                    return Some((Ok((target, version)), walk));
                }
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some((Err(error), walk)),
            }
        }
    })
}

async fn sum(file: anyhow::Result<(Target, FileVersion)>, algorithm: Algorithm) -> anyhow::Result<(Target, String)> {
    let (target, version) = file?;
    let sum = match hash(&target, version, algorithm).await {
        // What was remembered of the file was old; the workers know better now.
        Err(failure) if failure.kind() == FailureKind::VersionChanged => {
            let version = target.version().await?;
            hash(&target, version, algorithm).await
        }
        sum => sum,
    };
    Ok((target.clone(), sum.map_err(|failure| failure.context(target.shown()))?))
}

async fn hash(target: &Target, version: FileVersion, algorithm: Algorithm) -> Result<String, forebay_types::Failure> {
    let mut hasher = Hasher::new(algorithm);
    let size = version.size;
    let mut pieces = chunks(target.client.open(version), 0..size);
    while let Some(piece) = pieces.next().await {
        let (_, spans) = piece?;
        // Milliseconds of computing: not on a thread that answers are received on.
        let hashed = tokio::task::spawn_blocking(move || {
            spans.iter().for_each(|span| hasher.update(span));
            hasher
        });
        hasher = hashed.await.map_err(|error| {
            forebay_types::Failure::new(FailureKind::Internal, format!("computing a checksum failed: {error}"))
        })?;
    }
    Ok(hasher.finish())
}

fn print(out: &mut impl Write, args: &Args, path: &[u8], sum: &str) -> anyhow::Result<()> {
    if args.json.json {
        let mut object = Map::new();
        output::put_name(&mut object, "path", path);
        let algorithm = args.algorithm.to_possible_value().map(|value| value.get_name().to_owned());
        object.insert("algorithm".to_owned(), algorithm.into());
        object.insert("checksum".to_owned(), sum.into());
        return Ok(output::json_line(out, &Value::Object(object))?);
    }
    out.write_all(&line(path, sum))?;
    Ok(())
}

/// The line of GNU coreutils: a name with a newline, carriage return or backslash in it is escaped, and a backslash at the
/// start of the line says so.
fn line(path: &[u8], sum: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(sum.len() + path.len() + 4);
    if path.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r')) {
        line.push(b'\\');
    }
    line.extend_from_slice(sum.as_bytes());
    line.extend_from_slice(b"  ");
    for byte in path {
        match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(algorithm: Algorithm, pieces: &[&[u8]]) -> String {
        let mut hasher = Hasher::new(algorithm);
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    #[test]
    fn the_known_answers_come_out_whatever_the_pieces() {
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash_of(Algorithm::Sha256, &[b"a", b"bc"]), sha256);
        let blake3 = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
        assert_eq!(hash_of(Algorithm::Blake3, &[b"abc"]), blake3);
        assert_eq!(hash_of(Algorithm::Crc32c, &[b"1234", b"56789"]), "e3069283");
    }

    #[test]
    fn an_odd_name_is_escaped_as_coreutils_does() {
        assert_eq!(line(b"a b", "00"), b"00  a b\n");
        assert_eq!(line(b"a\nb\\", "00"), b"\\00  a\\nb\\\\\n");
    }
}
