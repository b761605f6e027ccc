//! `forebay fs location`: which workers own each block of a file, and what of it they hold.

use std::io::Write;
use std::path::PathBuf;

use forebay_client::{BlockLocation, Client};
use forebay_types::{BlockKey, BlockLayout, ByteSize, FileId, SectorRange};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::commands::fs::target::{Targets, WorkersArgs};
use crate::output::{self, JsonArg};

/// Blocks that are asked about at once.
const AT_ONCE: usize = 16;

/// Show where the blocks of a file are
///
/// For each block the command shows the worker that owns it, and every other worker that holds some of it. For each
/// worker it shows what that worker holds in memory and on disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs location /mnt/data/model.safetensors
  forebay fs location --json /mnt/data/f | jq -r 'select(.state != \"cached\").block'")]
pub(crate) struct Args {
    /// A file
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When the file is not there.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let target = targets.find(&args.path).await?;
    let attr = target.stat(false).await?;
    let (version, replicas) = (target.version().await?, attr.replicas);
    let (file, layout) = (version.id(), target.client.layout(version.size));
    let mut out = output::stdout();
    // Rows are printed as they come, so columns are as wide as they can become.
    let topology = target.client.topology();
    let workers = topology.ring.members().iter().chain(&topology.leaving);
    let worker_width = workers.map(|member| member.name.chars().count()).chain(["WORKER".len()]).max().unwrap_or(0);
    if !args.json.json {
        heading(&mut out, worker_width)?;
    }
    let asks = (0..layout.blocks()).map(|index| locate(&target.client, file, index, replicas));
    let mut answers = stream::iter(asks).buffered(AT_ONCE);
    while let Some((index, locations)) = answers.next().await {
        for location in locations.iter().filter(|location| is_worth_a_row(location)) {
            let row = Row { index, layout, location };
            if args.json.json { output::json_line(&mut out, &row.json())? } else { row.print(&mut out, worker_width)? }
        }
    }
    out.flush()?;
    drop(answers);
    targets.close().await;
    Ok(())
}

async fn locate(client: &Client, file: FileId, index: u64, replicas: u8) -> (u64, Vec<BlockLocation>) {
    (index, client.locate(BlockKey { file, index }, replicas).await)
}

/// The owner always; others when they hold something.
fn is_worth_a_row(location: &BlockLocation) -> bool {
    let holds =
        |coverage: &forebay_transport::message::CoverageReply| !coverage.memory.is_empty() || !coverage.disk.is_empty();
    location.owner || location.coverage.as_ref().is_ok_and(holds)
}

fn heading(out: &mut impl Write, worker_width: usize) -> std::io::Result<()> {
    let (block, offset, length, worker) = ("BLOCK", "OFFSET", "LENGTH", "WORKER");
    writeln!(
        out,
        "{block:>7}  {offset:>14}  {length:>9}  {worker:<worker_width$}  OWNER  STATE    MEMORY     DISK       RANGES"
    )
}

/// What one worker holds of one block.
struct Row<'a> {
    index: u64,
    layout: BlockLayout,
    location: &'a BlockLocation,
}

impl Row<'_> {
    fn offset(&self) -> u64 {
        self.index * u64::from(self.layout.block_size())
    }

    fn length(&self) -> u32 {
        self.layout.block_len(self.index)
    }

    /// `cached` when all of the block is there, in whatever tier.
    fn state(&self) -> &'static str {
        let Ok(coverage) = &self.location.coverage else { return "unknown" };
        let held = || coverage.memory.iter().chain(&coverage.disk).copied();
        match SectorRange::new(0, self.layout.sectors(self.index)) {
            Some(whole) if whole.without(held()).is_empty() => "cached",
            _ if held().next().is_some() => "partial",
            _ => "none",
        }
    }

    /// The byte ranges in the block that these sectors hold, those that touch as one.
    fn ranges(&self, sectors: &[SectorRange]) -> Vec<(u32, u32)> {
        let mut sectors = sectors.to_vec();
        sectors.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for range in sectors {
            let start = range.byte_offset();
            let end = start + range.byte_len(self.length());
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end)),
            }
        }
        ranges
    }

    /// `all`, `-`, or how much.
    fn tier(&self, sectors: &[SectorRange]) -> String {
        match self.ranges(sectors).iter().map(|(start, end)| end - start).sum::<u32>() {
            0 => "-".to_owned(),
            held if held == self.length() => "all".to_owned(),
            held => size(held),
        }
    }

    /// Which parts of the block a tier holds that holds only some.
    fn parts(&self, tier: &str, sectors: &[SectorRange]) -> Option<String> {
        let ranges = self.ranges(sectors);
        let is_partial = !ranges.is_empty() && ranges != [(0, self.length())];
        let listed: Vec<String> =
            ranges.iter().map(|(start, end)| format!("{}-{}", size(*start), size(*end))).collect();
        is_partial.then(|| format!("{tier} {}", listed.join(",")))
    }

    /// Everything that has no end to its width comes last.
    fn print(&self, out: &mut impl Write, worker_width: usize) -> std::io::Result<()> {
        let (memory, disk, ranges) = match &self.location.coverage {
            Ok(coverage) => {
                let parts = [self.parts("memory", &coverage.memory), self.parts("disk", &coverage.disk)];
                let ranges = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
                (self.tier(&coverage.memory), self.tier(&coverage.disk), ranges)
            }
            Err(failure) => ("?".to_owned(), "?".to_owned(), failure.to_string()),
        };
        let length = size(self.length());
        let owner = if self.location.owner { "owner" } else { "-" };
        let (index, offset, worker, state) = (self.index, self.offset(), &self.location.worker, self.state());
        let row = format!(
            "{index:>7}  {offset:>14}  {length:>9}  {worker:<worker_width$}  {owner:<5}  {state:<7}  {memory:<9}  {disk:<9}  {ranges}"
        );
        writeln!(out, "{}", row.trim_end())
    }

    fn json(&self) -> Value {
        let ranges = |sectors: &[SectorRange]| {
            let object = |(start, end): (u32, u32)| json!({ "offset": start, "length": end - start });
            self.ranges(sectors).into_iter().map(object).collect::<Vec<_>>()
        };
        let mut row = json!({
            "block": self.index,
            "offset": self.offset(),
            "length": self.length(),
            "worker": &*self.location.worker,
            "owner": self.location.owner,
            "state": self.state(),
        });
        match &self.location.coverage {
            Ok(coverage) => {
                row["memory"] = ranges(&coverage.memory).into();
                row["disk"] = ranges(&coverage.disk).into();
            }
            Err(failure) => row["error"] = failure.message().into(),
        }
        row
    }
}

fn size(bytes: u32) -> String {
    ByteSize::bytes(u64::from(bytes)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::message::CoverageReply;
    use forebay_types::{Failure, FailureKind, MAX_BLOCK_SIZE, SECTOR_SIZE};

    fn location(memory: &[(u32, u32)], disk: &[(u32, u32)]) -> BlockLocation {
        let ranges =
            |pairs: &[(u32, u32)]| pairs.iter().map(|(start, end)| SectorRange::new(*start, *end).unwrap()).collect();
        let coverage = Ok(CoverageReply { memory: ranges(memory), disk: ranges(disk) });
        BlockLocation { worker: "w:1".into(), owner: true, coverage }
    }

    #[test]
    fn a_block_is_cached_when_the_tiers_together_hold_all_of_it() {
        // Three sectors, the last one short.
        let layout = BlockLayout::new(u64::from(SECTOR_SIZE) * 2 + 5, MAX_BLOCK_SIZE);
        let state = |location: &BlockLocation| Row { index: 0, layout, location }.state();
        assert_eq!(state(&location(&[(0, 2)], &[(2, 3)])), "cached");
        assert_eq!(state(&location(&[(0, 2)], &[])), "partial");
        assert_eq!(state(&location(&[], &[])), "none");
        let failure = Failure::new(FailureKind::Unavailable, "gone");
        assert_eq!(state(&BlockLocation { coverage: Err(failure), ..location(&[], &[]) }), "unknown");
    }

    #[test]
    fn columns_stand_below_their_headings_whatever_is_held_by_whom() {
        let layout = BlockLayout::new(u64::from(SECTOR_SIZE) * 40, MAX_BLOCK_SIZE);
        let scattered: Vec<(u32, u32)> = (0..20).map(|at| (2 * at, 2 * at + 1)).collect();
        let named = |worker: &str, location: BlockLocation| BlockLocation { worker: worker.into(), ..location };
        let failure = Err(Failure::new(FailureKind::Unavailable, "a worker that does not answer, for a long reason"));
        let locations = [
            named("a-worker-with-a-long-name.example.org:29999", location(&scattered, &[])),
            named("w:1", location(&[(0, 40)], &[(0, 40)])),
            named("w:2", location(&[], &scattered)),
            named("w:3", BlockLocation { coverage: failure, ..location(&[], &[]) }),
        ];
        let width = locations.iter().map(|location| location.worker.len()).max().unwrap();
        let mut out = Vec::new();
        heading(&mut out, width).unwrap();
        for location in &locations {
            Row { index: 0, layout, location }.print(&mut out, width).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let heading = text.lines().next().unwrap();
        let columns: Vec<usize> =
            ["WORKER", "OWNER", "STATE", "MEMORY", "DISK", "RANGES"].map(|name| heading.find(name).unwrap()).to_vec();
        for row in text.lines().skip(1) {
            for at in columns.iter().filter(|at| **at < row.len()) {
                let (before, after) = (row.as_bytes()[at - 2..*at].to_vec(), row.as_bytes()[*at]);
                assert!(before == b"  " && after != b' ', "{at}: {text}");
            }
        }
        assert!(text.contains("w:1") && text.contains("all        all"), "{text}");
        assert!(text.contains("640KiB") && text.contains("memory 0B-32KiB,64KiB-96KiB"), "{text}");
        assert!(text.contains("for a long reason"), "{text}");
    }
}
