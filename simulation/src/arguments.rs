//! What is simulated, as asked for on the command line.

use std::path::PathBuf;

use clap::Parser;

/// Run what decides in Forebay at sizes that no machine here has.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Workers of the largest cluster
    #[arg(long, default_value_t = 10_000)]
    pub(crate) workers: usize,
    /// Files of the namespace
    #[arg(long, default_value_t = 1_000_000_000)]
    pub(crate) files: u64,
    /// Blocks that are placed to see how evenly: more take longer
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) blocks: u64,
    /// Files of the largest job that is driven, a power of ten: a file takes microseconds
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) job_files: u64,
    /// Where all randomness comes from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Put the tables into this Markdown file too, in the place of those that it has
    #[arg(long)]
    pub(crate) update: Option<PathBuf>,
}
