//! What security costs over TCP: warm reads from real workers, one in plain text (`security.mode=off`), one whose ends
//! prove who they are (`network.tcp.security=auth`) and one that encrypts (`encrypt`), each with a client of its own;
//! and how long many connections at once take to be admitted.
//!
//! After the handshake `auth` has the path of plain text, so what is looked for is smaller than what this machine does
//! to a measurement of a second. The turns are short and many, each ratio is of neighbours in time, and the table says
//! between which two ratios their median is certain. Two processes of one kind differ, too, as by where their memory
//! lies: a second worker in plain text shows by how much.
//!
//! * `security/cluster.rs`: the key, and what follows from it for workers and clients;
//! * `security/link.rs`: a worker with its client, and a turn of reads;
//! * `security/admissions.rs`: connections that come at once.

mod admissions;
mod cluster;
mod link;

use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_types::{ByteSize, TcpSecurity};
use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::progress::Progress;
use crate::report::{Report, Table, fine_percent, fine_percents, latency, rate, seconds};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::settings::Settings;

use admissions::Admissions;
use cluster::Cluster;
use link::Link;

/// How a worker and its client go on, and what that is called. The first is what the others are compared with.
const WAYS: [(&str, Option<TcpSecurity>); 4] = [
    ("plain", None),
    ("`auth`", Some(TcpSecurity::Auth)),
    ("`encrypt`", Some(TcpSecurity::Encrypt)),
    ("plain again", None),
];
/// Bytes of a read, with their name, and how many are under way at once.
const READS: [(u32, &str, usize); 7] = [
    (4 << 10, "4 KiB", 1),
    (4 << 10, "4 KiB", 32),
    (64 << 10, "64 KiB", 1),
    (64 << 10, "64 KiB", 8),
    (1 << 20, "1 MiB", 1),
    (1 << 20, "1 MiB", 4),
    (4 << 20, "4 MiB", 8),
];
/// How long one turn reads at most.
const TURN: Duration = Duration::from_millis(200);
/// What `auth` is to reach of plain text.
const AUTH_TARGET: f64 = 0.98;
/// What `encrypt` is to reach of it, where client and worker share two processors.
const ENCRYPT_TARGET: f64 = 0.45;

/// Measures it.
///
/// # Errors
/// When a part does not start or a call fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress.say("Over TCP in plain text, with proofs, and encrypted");
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64)))?;
    let cluster = Cluster::create(fixture.tmpfs().join("cluster.key"))?;
    let links = WAYS.iter().map(|(_, level)| Link::start(fixture, runtime, &pool, &cluster, *level));
    let links = links.collect::<anyhow::Result<Vec<_>>>()?;
    let (turns, time) = turns(fixture.settings);
    let reads = fixture.settings.chosen(&READS);
    let pool = &pool;
    let cases = reads.iter().flat_map(|(size, name, depth)| {
        WAYS.iter().zip(&links).map(move |((way, _), link)| {
            let reads = move || link.turn(runtime, pool, *size, *depth, time);
            Case::new(format!("{way}, {name}, {depth} at once"), reads)
        })
    });
    let mut outcomes = rounds::measure("security", cases.collect(), turns, progress, || ())?;
    let rows: Vec<_> = reads.iter().zip(outcomes.chunks_exact(WAYS.len())).collect();
    targets(&rows, report);
    report.table(table(&rows, turns.max(1), time));
    if let [plain, _, encrypted, _] = &links[..] {
        let admissions = Admissions { runtime, pool, cluster: &cluster, plain, encrypted };
        outcomes.extend(admissions.measure(fixture.settings, progress, report)?);
    }
    links.into_iter().try_for_each(|link| link.close(runtime))?;
    report.samples("security", outcomes);
    Ok(())
}

/// How many turns of each kind count, and how long one is: together as long as the measurements of other sections.
fn turns(settings: Settings) -> (usize, Duration) {
    let time = settings.time.min(TURN);
    // Not a number where no time was asked for, and then 0.
    let of_one = settings.time.div_duration_f64(time).round() as usize;
    (settings.repeat * of_one.max(1), time)
}

/// What was measured of a kind of reads: each of [`WAYS`].
type Row<'a> = (&'a (u32, &'static str, usize), &'a [Outcome]);

fn targets(rows: &[Row], report: &mut Report) {
    for ((_, name, depth), of) in rows {
        let [plain, auth, encrypt, _] = *of else { continue };
        for (way, outcome, goal) in [("auth", auth, AUTH_TARGET), ("encrypt", encrypt, ENCRYPT_TARGET)] {
            let what = format!("TCP with `{way}`, {name}, {depth} at once");
            report.ratio_target(&what, "plain text", goal, outcome.ratio(plain, |sample| sample.rate));
        }
    }
}

fn table(rows: &[Row], turns: usize, time: Duration) -> Table {
    let header = [
        "read",
        "at once",
        "over",
        "GB/s",
        "of plain",
        "certain",
        "p50/p99 µs",
        "CPU s/GiB",
        "worker CPU s/GiB",
        "client CPU s/GiB",
    ];
    let text = format!(
        "Reads of what a worker has in memory, by a client in another process, over loopback and 4 connections. Turns \
         of each row: {turns}, of {} ms, in turn with those of the other rows. `of plain`: the median of the ratios to \
         plain text in the same round; `certain`: between these two it lies, in 95 of 100 such runs. `plain again`: a \
         second worker in plain text, which shows what two equal ones differ by. CPU is of all turns together: of both \
         ends, of the worker, and of the client.",
        time.as_millis()
    );
    let mut table = Table::new("Security of TCP", text, &header);
    for ((_, name, depth), of) in rows {
        let Some(plain) = of.first() else { continue };
        for (at, ((way, _), outcome)) in WAYS.iter().zip(*of).enumerate() {
            let [of_plain, certain] = if at == 0 { [String::new(), String::new()] } else { compared(outcome, plain) };
            let cells = [(*name).to_owned(), depth.to_string(), (*way).to_owned(), rate(outcome), of_plain, certain];
            let used: [fn(&Sample) -> f64; 3] = [|of| of.cpu + of.reader, |of| of.cpu, |of| of.reader];
            let used = used.map(|used| seconds(outcome.of_each_gib(used)));
            table.row(cells.into_iter().chain([latency(outcome)]).chain(used).collect());
        }
    }
    table
}

/// What an outcome reached of plain text, and how certain that is.
fn compared(outcome: &Outcome, plain: &Outcome) -> [String; 2] {
    let rate = |sample: &Sample| sample.rate;
    [fine_percent(outcome.ratio(plain, rate)), fine_percents(outcome.ratio_within(plain, rate))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns_of(repeat: usize, time: Duration) -> (usize, Duration) {
        turns(Settings { quick: false, repeat, size: 0, time })
    }

    #[test]
    fn turns_are_short_and_take_as_long_as_what_was_asked_for() {
        let seconds = Duration::from_secs;
        assert_eq!(turns_of(5, seconds(2)), (50, TURN));
        assert_eq!(turns_of(5, seconds(1)), (25, TURN));
        // A quick run has one turn, which is its warm-up, and a shorter one.
        assert_eq!(turns_of(0, Duration::from_millis(50)), (0, Duration::from_millis(50)));
        assert_eq!(turns_of(3, Duration::ZERO), (3, Duration::ZERO));
    }

    #[test]
    fn auth_and_encrypt_are_compared_with_plain_text_of_the_same_turn() {
        let outcome = |rates: [f64; 2], cpu: f64| {
            let sample = |rate| Sample { rate, cpu, reader: 1.0, ..Sample::default() };
            Outcome { name: String::new(), samples: rates.map(sample).into() }
        };
        // The machine was twice as fast in the second turn.
        let of = [
            outcome([1e9, 2e9], 1.0),
            outcome([0.99e9, 1.98e9], 1.5),
            outcome([0.5e9, 1e9], 3.0),
            outcome([1e9; 2], 1.0),
        ];
        let text = format!("{:?}", table(&[(&READS[0], &of[..])], 2, TURN));
        for cell in [r#""99.0 %", "—""#, r#""50.0 %", "—""#, r#""4.00", "3.00", "1.00""#, r#""2.50", "1.50", "1.00""#]
        {
            assert!(text.contains(cell), "{cell} is missing in {text}");
        }
        // Nobody read.
        let of = of.map(|outcome| Outcome { samples: Vec::new(), ..outcome });
        assert!(!format!("{:?}", table(&[(&READS[0], &of[..])], 1, TURN)).contains("NaN"));
    }
}
