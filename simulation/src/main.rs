//! `make simulate`: what decides in Forebay, driven with 10,000 workers and a billion files.
//!
//! Placement, membership and jobs are state machines without I/O and without a clock (`forebay-cluster`,
//! `forebay-coordinator`), so they run here as they run in a cluster, only with time that passes as fast as they allow. All
//! randomness comes from one seed: the counts are the same on every machine. The times are this machine's, one core.
//!
//! * `placement.rs`: how evenly blocks are spread, how many move, and what looking up an owner costs;
//! * `membership.rs`: a day of a cluster: upgrades, deaths, flapping, a lost state store;
//! * `jobs.rs`: a load over all files, with a coordinator that dies on the way.

mod arguments;
mod jobs;
mod membership;
mod memory;
mod placement;
mod table;

use clap::Parser;

use crate::arguments::Arguments;
use crate::table::Page;

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
