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
/// For each block: the worker that owns it, and every other one that holds some of it, each with what it holds in memory
/// and on disk.
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
    if !args.json.json {
        heading(&mut out)?;
    }
    let asks = (0..layout.blocks()).map(|index| locate(&target.client, file, index, replicas));
    let mut answers = stream::iter(asks).buffered(AT_ONCE);
    while let Some((index, locations)) = answers.next().await {
        for location in locations.iter().filter(|location| is_worth_a_row(location)) {
            let row = Row { index, layout, location };
            if args.json.json { output::json_line(&mut out, &row.json())? } else { row.print(&mut out)? }
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

fn heading(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:>7}  {:>14}  {:>8}  {:<21}  {:<5}  {:<7}  {:<18}  DISK",
        "BLOCK", "OFFSET", "LENGTH", "WORKER", "OWNER", "STATE", "MEMORY"
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

    /// `all`, `-`, or how much and which ranges.
    fn tier(&self, sectors: &[SectorRange]) -> String {
        let ranges = self.ranges(sectors);
        if ranges == [(0, self.length())] {
            return "all".to_owned();
        }
        let size = |bytes: u32| ByteSize::bytes(u64::from(bytes)).to_string();
        let listed: Vec<String> =
            ranges.iter().map(|(start, end)| format!("{}-{}", size(*start), size(*end))).collect();
        if listed.is_empty() { "-".to_owned() } else { listed.join(",") }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (memory, disk) = match &self.location.coverage {
            Ok(coverage) => (self.tier(&coverage.memory), self.tier(&coverage.disk)),
            Err(failure) => (failure.to_string(), String::new()),
        };
        let length = ByteSize::bytes(u64::from(self.length())).to_string();
        let owner = if self.location.owner { "owner" } else { "-" };
        let (index, offset, worker, state) = (self.index, self.offset(), &self.location.worker, self.state());
        let row = format!(
            "{index:>7}  {offset:>14}  {length:>8}  {worker:<21}  {owner:<5}  {state:<7}  {memory:<18}  {disk}"
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
    fn a_tier_is_all_or_the_ranges_that_it_holds() {
        let layout = BlockLayout::new(u64::from(SECTOR_SIZE) * 4, MAX_BLOCK_SIZE);
        let location = location(&[(0, 1), (1, 2), (3, 4)], &[(0, 4)]);
        let row = Row { index: 0, layout, location: &location };
        let coverage = location.coverage.as_ref().unwrap();
        assert_eq!(row.tier(&coverage.memory), "0B-64KiB,96KiB-128KiB");
        assert_eq!(row.tier(&coverage.disk), "all");
        assert_eq!(row.tier(&[]), "-");
    }
}
