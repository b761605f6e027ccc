//! Whether a matrix fits, before anything of it is begun.
//!
//! In a container the machine's memory is not ours: its control group's limit would end a worker in the middle of a run.

use forebay_benchmark::read::size;
use forebay_doctor::Root;
use forebay_doctor::facts::Memory;

use super::plan::{Plan, worker_memory};
use crate::exit::{Exit, Fault};

/// Whether there is room for the files, where that is ours to know.
///
/// # Errors
/// When there is none.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    if !plan.workers.is_empty() {
        return Ok(());
    }
    let fault = |needs: u64, where_: &str, has: u64| {
        let what = format!("the files of the largest size need {} {where_}, and there is {}", size(needs), size(has));
        Fault::new(Exit::Failed, what, "measure smaller ones with `--scale`, or name `--sizes`")
    };
    let bytes = plan.settings.max_bytes();
    let memory = worker_memory(bytes).as_u64();
    if let Some(available) = Memory::read(&Root::default()).obtainable_bytes().filter(|available| memory > *available) {
        return Err(fault(memory, "of a worker's memory", available).into());
    }
    let temporary = std::env::temp_dir();
    if let (None, Ok(space)) = (&plan.origin, rustix::fs::statvfs(&temporary)) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        // A file is staged before it is at the origin.
        let needs = bytes + plan.settings.sizes.iter().chain(&plan.settings.large).copied().max().unwrap_or_default();
        if needs > free {
            return Err(fault(needs, &format!("in {}", temporary.display()), free).into());
        }
    }
    Ok(())
}
