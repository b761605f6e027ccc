//! `make simulate`: what decides in Forebay, driven with 10,000 workers and a billion files.
//!
//! Placement, membership and jobs are state machines without I/O and without a clock (`forebay-cluster`,
//! `forebay-coordinator`), so they run here as they run in a cluster, only with time that passes as fast as they allow. All
//! randomness comes from one seed: the counts are the same on every machine. The times are this machine's, one core.
//!
//! * `placement.rs`: how evenly blocks are spread, how many move, and what looking up an owner costs;
//! * `membership.rs`: a day of a cluster: upgrades, deaths, flapping, a lost state store;
//! * `jobs.rs`: a load over all files, with a coordinator that dies on the way.

mod jobs;
mod membership;
mod memory;
mod placement;
mod table;

use std::path::PathBuf;

use clap::Parser;

use crate::table::Page;

/// Run what decides in Forebay at sizes that no machine here has.
#[derive(Debug, Parser)]
struct Arguments {
    /// Workers of the largest cluster
    #[arg(long, default_value_t = 10_000)]
    workers: usize,
    /// Files of the namespace
    #[arg(long, default_value_t = 1_000_000_000)]
    files: u64,
    /// Blocks that are placed to see how evenly: more take longer
    #[arg(long, default_value_t = 2_000_000)]
    blocks: u64,
    /// Files of the largest job that is driven, a power of ten: a file takes microseconds
    #[arg(long, default_value_t = 1_000_000)]
    job_files: u64,
    /// Where all randomness comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Put the tables into this Markdown file too, in the place of those that it has
    #[arg(long)]
    update: Option<PathBuf>,
}

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut page = Page::default();
    placement::simulate(&arguments, &mut page);
    membership::simulate(&arguments, &mut page);
    jobs::simulate(&arguments, &mut page)?;
    print!("{page}");
    match &arguments.update {
        Some(path) => page.update(path),
        None => Ok(()),
    }
}
