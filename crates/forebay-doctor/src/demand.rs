//! The memory that a process takes by its configuration, and whether it can be had.
//!
//! A process that takes more than its control group allows is killed without a word. So it is refused while the user
//! can still be told why: by `forebay doctor` beforehand, and by `forebay worker`, `mount` and `up` before they take
//! any of it.

use forebay_config::Config;
use forebay_types::ByteSize;

use crate::facts::Memory;
use crate::text::size;

/// The most that a client's registered buffers may take.
pub const BUFFERS_MAX_SIZE: &str = "network.rdma.data.buffer_pool.max_size";
/// What they take at start.
pub const BUFFERS_INITIAL: &str = "network.rdma.data.buffer_pool.initial_size";
const WORKER: &str = "worker.memory.size";
const CLIENT: &str = "client.memory.size";

/// Memory that a setting asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The setting.
    pub key: &'static str,
    /// How much.
    pub size: ByteSize,
    /// When it is taken.
    pub taken: Taken,
    /// Whether reserved huge pages are taken for it where there are enough. Those are set aside, and no limit counts
    /// them.
    pub huge_pages: bool,
}

/// When memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of it, when the process starts.
    AtStart,
    /// Bit by bit.
    AsUsed,
    /// It may never be: how far something may grow. It must be possible by itself, and is not added to the rest.
    Perhaps,
}

/// Memory that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What is asked for, and what there is.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What a worker takes. `at_start`: it has the kernel back all of its memory at once, or registers it.
#[must_use]
pub fn of_worker(config: &Config, at_start: bool) -> Demand {
    Demand {
        key: WORKER,
        size: config.worker_memory_size,
        taken: if at_start { Taken::AtStart } else { Taken::AsUsed },
        huge_pages: config.worker_memory_huge_pages,
    }
}

/// What a mount takes for what it reads. `limited`: the user set how far its registered buffers may grow; the default
/// gives way to what the machine has.
#[must_use]
pub fn of_client(config: &Config, limited: bool) -> Vec<Demand> {
    let huge_pages = config.worker_memory_huge_pages;
    if !config.network_rdma_data_enabled {
        return vec![Demand { key: CLIENT, size: config.client_memory_size, taken: Taken::AsUsed, huge_pages }];
    }
    let (initial, most) =
        (config.network_rdma_data_buffer_pool_initial_size, config.network_rdma_data_buffer_pool_max_size);
    let initial = Demand { key: BUFFERS_INITIAL, size: initial, taken: Taken::AtStart, huge_pages };
    let most = Demand { key: BUFFERS_MAX_SIZE, size: most, taken: Taken::Perhaps, huge_pages };
    std::iter::once(initial).chain(limited.then_some(most)).collect()
}

/// What of `demands`, which are those of one process, cannot be had. Nothing, as far as that is not known.
#[must_use]
pub fn shortage(memory: &Memory, demands: &[Demand]) -> Option<Shortage> {
    let usable = memory.ordinary_bytes()?;
    let there_is = if memory.limit_bytes == Some(usable) { "its limit here is" } else { "the machine has" };
    let limit = if memory.limit_bytes.is_some() { ", or raise the limit of the container or the service" } else { "" };
    let too_large = demands.iter().find(|demand| demand.taken == Taken::Perhaps && demand.size.as_u64() > usable);
    if let Some(most) = too_large {
        return Some(Shortage {
            what: format!("{}, and {there_is} {}", listed(&[most]), size(usable)),
            remedy: format!("lower {}{limit}", most.key),
        });
    }
    let mut huge = memory.usable_huge_bytes();
    let mut ordinary: Vec<&Demand> = Vec::new();
    for demand in demands.iter().filter(|demand| demand.taken != Taken::Perhaps) {
        match huge.checked_sub(demand.size.as_u64()).filter(|_| demand.huge_pages) {
            Some(left) => huge = left,
            None => ordinary.push(demand),
        }
    }
    if sum(&ordinary) > usable {
        return Some(Shortage {
            what: format!("{}, and {there_is} {}", listed(&ordinary), size(usable)),
            remedy: format!("lower {}{limit}", keys(&ordinary)),
        });
    }
    let at_start: Vec<&Demand> = ordinary.into_iter().filter(|demand| demand.taken == Taken::AtStart).collect();
    let obtainable = memory.obtainable_bytes().filter(|obtainable| sum(&at_start) > *obtainable)?;
    Some(Shortage {
        what: format!("{}, taken at start, and {} of memory can be had now", listed(&at_start), size(obtainable)),
        remedy: format!("free memory, or lower {}{limit}", keys(&at_start)),
    })
}

fn sum(demands: &[&Demand]) -> u64 {
    demands.iter().fold(0, |sum, demand| sum.saturating_add(demand.size.as_u64()))
}

/// `a is 1GiB`, or `a is 1GiB and b is 2GiB, which is 3 GiB`.
fn listed(demands: &[&Demand]) -> String {
    let each: Vec<_> = demands.iter().map(|demand| format!("{} is {}", demand.key, demand.size)).collect();
    let together = if demands.len() > 1 { format!(", which is {}", size(sum(demands))) } else { String::new() };
    format!("{}{together}", each.join(" and "))
}

fn keys(demands: &[&Demand]) -> String {
    demands.iter().map(|demand| demand.key).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn demand(key: &'static str, gib: u64, taken: Taken) -> Demand {
        Demand { key, size: ByteSize::gib(gib), taken, huge_pages: true }
    }

    fn machine(gib: u64) -> Memory {
        Memory { total_bytes: Some(gib * GIB), available_bytes: Some(gib * GIB), ..Memory::default() }
    }

    #[test]
    fn what_one_process_takes_is_added_up_and_must_fit_into_its_limit() {
        let (worker, client) = (demand("worker", 2, Taken::AsUsed), demand("client", 1, Taken::AsUsed));
        assert_eq!(shortage(&machine(3), &[worker, client]), None);
        let limited = Memory { limit_bytes: Some(2 * GIB), ..machine(64) };
        assert_eq!(shortage(&limited, &[worker]), None);
        let Shortage { what, remedy } = shortage(&limited, &[worker, client]).unwrap();
        assert_eq!(what, "worker is 2GiB and client is 1GiB, which is 3 GiB, and its limit here is 2 GiB");
        assert_eq!(remedy, "lower worker or client, or raise the limit of the container or the service");
        let Shortage { what, remedy } = shortage(&machine(1), &[worker]).unwrap();
        assert_eq!((&*what, &*remedy), ("worker is 2GiB, and the machine has 1 GiB", "lower worker"));
        assert_eq!(shortage(&Memory::default(), &[worker]), None, "nothing is known");
    }

    #[test]
    fn what_is_taken_at_start_must_be_there_then() {
        let half_used = Memory { available_bytes: Some(2 * GIB), ..machine(4) };
        assert_eq!(shortage(&half_used, &[demand("worker", 3, Taken::AsUsed)]), None);
        assert_eq!(shortage(&half_used, &[demand("worker", 2, Taken::AtStart)]), None);
        let Shortage { what, .. } = shortage(&half_used, &[demand("worker", 3, Taken::AtStart)]).unwrap();
        assert_eq!(what, "worker is 3GiB, taken at start, and 2 GiB of memory can be had now");
        let in_group = Memory { limit_bytes: Some(3 * GIB), left_bytes: Some(GIB), ..machine(64) };
        assert!(shortage(&in_group, &[demand("worker", 2, Taken::AtStart)]).is_some());
    }

    #[test]
    fn how_far_something_may_grow_is_looked_at_by_itself() {
        let (initial, most) = (demand("initial", 1, Taken::AtStart), demand("most", 8, Taken::Perhaps));
        assert_eq!(shortage(&machine(8), &[initial, most]), None);
        let Shortage { what, .. } = shortage(&machine(4), &[initial, most]).unwrap();
        assert_eq!(what, "most is 8GiB, and the machine has 4 GiB");
    }

    #[test]
    fn reserved_huge_pages_are_beside_all_limits_and_are_taken_by_nobody_else() {
        let worker = demand("worker", 6, Taken::AtStart);
        let reserved = Memory {
            huge_total_bytes: 6 * GIB,
            huge_free_bytes: 6 * GIB,
            available_bytes: Some(GIB),
            limit_bytes: Some(GIB),
            ..machine(8)
        };
        assert_eq!(shortage(&reserved, &[worker]), None);
        assert!(shortage(&reserved, &[worker, demand("client", 2, Taken::AsUsed)]).is_some());
        let not_given = Memory { huge_limit_bytes: Some(0), ..reserved.clone() };
        assert!(shortage(&not_given, &[worker]).is_some(), "its container was given none");
        let without = Demand { huge_pages: false, ..worker };
        assert!(shortage(&Memory { limit_bytes: None, ..reserved }, &[without]).is_some());
    }
}
