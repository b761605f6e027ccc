//! Whether the configuration is right, and whether what it asks for makes sense together.

use std::time::Duration;

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict};
use crate::demand::{self, BUFFERS_MAX_SIZE as MAX_SIZE};
use crate::facts::Facts;
use crate::text::size;

/// An operation of a busy fabric takes seconds when packets are lost; its card tries again for about as long.
const MIN_OPERATION_TIME: Duration = Duration::from_secs(10);
/// Requests that the kernel has under way ahead of a reader; with fewer, a reader waits for each.
const MIN_BACKGROUND: u32 = 16;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = settings(facts);
    checks.extend(operation_time(config));
    checks.extend(buffer_pool(facts, config));
    checks.extend(background(config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Configuration, name, verdict, what)
}

fn operation_time(config: &Config) -> Option<Check> {
    const KEY: &str = "network.rdma.data.operation_timeout";
    let time = config.network_rdma_data_operation_timeout;
    config.network_rdma_data_enabled.then(|| match time < MIN_OPERATION_TIME {
        false => row("operation-timeout", Verdict::Ok, format!("{time:?}")).about(KEY),
        true => row("operation-timeout", Verdict::Warn, format!("{time:?} is less than a busy fabric may take"))
            .about(KEY)
            .remedy(format!("{KEY} = \"60s\"; if operations take so long, see the rows port-state and faults")),
    })
}

/// Registered buffers: what prefetch wants for two streams, and what the machine has.
fn buffer_pool(facts: &Facts, config: &Config) -> Vec<Check> {
    if !config.network_rdma_data_enabled {
        return Vec::new();
    }
    let most = config.network_rdma_data_buffer_pool_max_size.as_u64();
    let ahead = u64::from(config.prefetch_parts_far());
    let wanted = config.block_size.as_u64().saturating_mul(ahead.saturating_mul(2).max(2));
    let what = format!("{} of buffers, and prefetch for two readers takes {}", size(most), size(wanted));
    let pool = match most < wanted {
        false => row("buffer-pool", Verdict::Ok, what).about(MAX_SIZE),
        true => row("buffer-pool", Verdict::Warn, format!("{what}: it will shrink, and readers wait"))
            .about(MAX_SIZE)
            .remedy(format!(
                "raise {MAX_SIZE} (16GiB for 16 blocks ahead), or lower client.prefetch.far_part_number or \
                 client.prefetch.max_part_number"
            )),
    };
    let limited = facts.configuration.settings.iter().any(|setting| setting.key == MAX_SIZE);
    let memory = demand::shortage(&facts.memory, &demand::of_client(config, limited));
    let memory = memory.map(|shortage| {
        row("buffer-pool", Verdict::Fail, shortage.what).about("network.rdma.data.buffer_pool").remedy(shortage.remedy)
    });
    std::iter::once(pool).chain(memory).collect()
}

fn background(config: &Config) -> Option<Check> {
    let requests = config.fuse_max_background;
    (requests < MIN_BACKGROUND).then(|| {
        row(
            "max-background",
            Verdict::Warn,
            format!("the kernel may have {requests} requests under way ahead of readers"),
        )
        .about("fuse.max_background")
        .remedy("fuse.max_background = 64")
    })
}

fn settings(facts: &Facts) -> Vec<Check> {
    const REMEDY: &str = "correct it; `forebay conf show` lists every key and where its value comes from; until then all \
                          other verdicts are on the defaults";
    let configuration = &facts.configuration;
    let check = |verdict, what: String| row("settings", verdict, what);
    if configuration.problems.is_empty() {
        let count = configuration.settings.len();
        return vec![check(Verdict::Ok, format!("good, {count} not at their defaults"))];
    }
    configuration.problems.iter().map(|problem| check(Verdict::Fail, problem.clone()).remedy(REMEDY)).collect()
}
