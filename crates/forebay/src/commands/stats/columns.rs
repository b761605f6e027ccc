//! What is shown of an interval: pure, from two sets of reports to numbers.
//!
//! A number is of all processes that report together. It is unknown, and not zero, where none of them counts it.

use std::time::Duration;

use forebay_metrics::LatencySnapshot;
use serde_json::{Map, Value, json};

use super::counts::{
    answers, buffers, evicted, fuse, gets, listeners, lists, meta, one_sided, passed, puts, rdma_read, rdma_received,
    rdma_write, read, received, remote, removals, retries, s3, s3_requests, sent, striping,
};
use forebay_node::report::Report;

/// A group of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Usage,
    Fuse,
    Meta,
    Cache,
    RemoteCache,
    Rdma,
    Object,
    S3,
    Local,
    Hedge,
    Ahead,
}

impl Section {
    /// The letters of all of them.
    pub(super) const LETTERS: &'static str = "ufmcreoslha";

    /// The one with this letter.
    pub(super) fn of(letter: char) -> Option<Self> {
        let all = [
            Self::Usage,
            Self::Fuse,
            Self::Meta,
            Self::Cache,
            Self::RemoteCache,
            Self::Rdma,
            Self::Object,
            Self::S3,
            Self::Local,
            Self::Hedge,
            Self::Ahead,
        ];
        all.into_iter().find(|section| section.letter() == letter)
    }

    /// Its letter.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Usage => 'u',
            Self::Fuse => 'f',
            Self::Meta => 'm',
            Self::Cache => 'c',
            Self::RemoteCache => 'r',
            Self::Rdma => 'e',
            Self::Object => 'o',
            Self::S3 => 's',
            Self::Local => 'l',
            Self::Hedge => 'h',
            Self::Ahead => 'a',
        }
    }

    /// Its name in a heading where there is little room.
    pub(super) fn short(self) -> &'static str {
        match self {
            Self::RemoteCache => "remote",
            Self::Object => "obj",
            section => section.name(),
        }
    }

    /// Its name in the heading and in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Fuse => "fuse",
            Self::Meta => "meta",
            Self::Cache => "cache",
            Self::RemoteCache => "remotecache",
            Self::Rdma => "rdma",
            Self::Object => "object",
            Self::S3 => "s3",
            Self::Local => "local",
            Self::Hedge => "hedge",
            Self::Ahead => "ahead",
        }
    }
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A share of one CPU, or of all bytes, in percent.
    Percent,
    /// Bytes, or bytes a second.
    Bytes,
    /// Things a second.
    Count,
    /// Milliseconds.
    Millis,
}

/// A column.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) format: Format,
    /// From which verbosity on it is shown.
    level: u8,
    value: fn(&Interval<'_>) -> Option<f64>,
}

impl Column {
    /// What it shows; `None` is unknown.
    pub(super) fn value(&self, interval: &Interval<'_>) -> Option<f64> {
        (self.value)(interval)
    }

    /// Its name where there is room for four letters.
    pub(super) fn short(&self) -> &'static str {
        match self.name {
            "write" => "writ",
            "evict" => "evct",
            "window" => "wind",
            "w_ops" => "wops",
            "r_ops" => "rops",
            "r_lat" => "rlat",
            "r_p99" => "rp99",
            "get_c" => "gets",
            "put_c" => "puts",
            "del_c" => "dels",
            "list_c" => "list",
            "retry" => "rtry",
            "pass%" => "pas%",
            "wasted" => "wast",
            "avoided" => "avoi",
            "striped" => "stri",
            "again" => "agai",
            "one_sided" => "1sid",
            name => name,
        }
    }

    /// Whether it is a share of what another column of its section counts.
    pub(super) fn is_share(&self) -> bool {
        self.name.ends_with('%')
    }
}

const fn column(
    section: Section,
    name: &'static str,
    format: Format,
    level: u8,
    value: fn(&Interval<'_>) -> Option<f64>,
) -> Column {
    Column { section, name, format, level, value }
}

/// All of them, in their order.
const COLUMNS: [Column; 64] = {
    use Format::{Bytes, Count, Millis, Percent};
    use Section::{Ahead, Cache, Fuse, Hedge, Local, Meta, Object, Rdma, RemoteCache, S3, Usage};
    [
        column(Usage, "cpu", Percent, 0, |i| Some(100.0 * i.rate(|r| Some(r.process?.cpu_seconds))?)),
        column(Usage, "mem", Bytes, 0, |i| i.gauge(|r| Some(r.process?.resident_bytes as f64))),
        column(Usage, "buf", Bytes, 0, |i| i.gauge(buffers)),
        column(Fuse, "ops", Count, 0, |i| i.per_second(&i.latency(fuse)?)),
        column(Fuse, "lat", Millis, 0, |i| i.mean(&i.latency(fuse)?)),
        column(Fuse, "p99", Millis, 1, |i| i.p99(&i.latency(fuse)?)),
        column(Fuse, "ring", Count, 1, |i| i.rate(|r| Some(r.fuse.as_ref()?.io.as_ref()?.requests as f64))),
        column(Fuse, "read", Bytes, 0, |i| i.rate(|r| Some(r.fuse.as_ref()?.read_bytes as f64))),
        column(Fuse, "write", Bytes, 0, |i| i.rate(|r| Some(r.fuse.as_ref()?.written_bytes as f64))),
        column(Meta, "ops", Count, 0, |i| i.per_second(&i.latency(meta)?)),
        column(Meta, "lat", Millis, 0, |i| i.mean(&i.latency(meta)?)),
        column(Meta, "p99", Millis, 1, |i| i.p99(&i.latency(meta)?)),
        column(Cache, "hit", Bytes, 0, |i| i.rate(|r| Some(read(r)?.0))),
        column(Cache, "hit%", Percent, 0, |i| i.share(read)),
        column(Cache, "evict", Count, 1, |i| i.rate(evicted)),
        column(RemoteCache, "recv", Bytes, 0, |i| i.rate(|r| Some(r.client.as_ref()?.data.bytes_received as f64))),
        column(RemoteCache, "window", Bytes, 1, |i| i.rate(|r| Some(r.window.as_ref()?.bytes? as f64))),
        column(RemoteCache, "ops", Count, 0, |i| i.per_second(&i.latency(remote)?)),
        column(RemoteCache, "lat", Millis, 0, |i| i.mean(&i.latency(remote)?)),
        column(RemoteCache, "p99", Millis, 1, |i| i.p99(&i.latency(remote)?)),
        column(RemoteCache, "fail", Count, 1, |i| i.rate(|r| Some(r.client.as_ref()?.data.failures as f64))),
        column(Rdma, "write", Bytes, 0, |i| i.rate(|r| listeners(r, |listener| listener.bytes_sent))),
        column(Rdma, "read", Bytes, 0, |i| i.rate(|r| listeners(r, |listener| listener.bytes_received))),
        column(Rdma, "w_ops", Count, 0, |i| i.rate(|r| listeners(r, |listener| listener.replies))),
        column(Rdma, "lat", Millis, 0, |i| i.mean(&i.latency(rdma_write)?)),
        column(Rdma, "p99", Millis, 1, |i| i.p99(&i.latency(rdma_write)?)),
        column(Rdma, "recv", Bytes, 0, |i| i.rate(rdma_received)),
        column(Rdma, "r_ops", Count, 1, |i| i.per_second(&i.latency(rdma_read)?)),
        column(Rdma, "r_lat", Millis, 1, |i| i.mean(&i.latency(rdma_read)?)),
        column(Rdma, "r_p99", Millis, 1, |i| i.p99(&i.latency(rdma_read)?)),
        column(Rdma, "striped", Count, 1, |i| i.rate(|r| striping(r, |striping| striping.reads))),
        column(Rdma, "again", Count, 1, |i| i.rate(|r| striping(r, |striping| striping.late + striping.failed))),
        column(Rdma, "one_sided", Count, 1, |i| i.rate(one_sided)),
        column(Object, "get", Bytes, 0, |i| i.rate(received)),
        column(Object, "get_c", Count, 0, |i| i.per_second(&i.latency(gets)?)),
        column(Object, "lat", Millis, 0, |i| i.mean(&i.latency(gets)?)),
        column(Object, "p99", Millis, 1, |i| i.p99(&i.latency(gets)?)),
        column(Object, "list_c", Count, 1, |i| i.per_second(&i.latency(lists)?)),
        column(Object, "retry", Count, 1, |i| i.rate(retries)),
        column(Object, "put", Bytes, 0, |i| i.rate(sent)),
        column(Object, "put_c", Count, 1, |i| i.per_second(&i.latency(puts)?)),
        column(Object, "del_c", Count, 0, |i| i.per_second(&i.latency(removals)?)),
        column(S3, "ops", Count, 0, |i| i.per_second(&i.latency(s3_requests)?)),
        column(S3, "lat", Millis, 0, |i| i.mean(&i.latency(s3_requests)?)),
        column(S3, "p99", Millis, 1, |i| i.p99(&i.latency(s3_requests)?)),
        column(S3, "sent", Bytes, 0, |i| i.rate(|r| s3(r, |endpoint| endpoint.sent_bytes))),
        column(S3, "recv", Bytes, 0, |i| i.rate(|r| s3(r, |endpoint| endpoint.received_bytes))),
        column(S3, "4xx", Count, 1, |i| i.rate(|r| s3(r, |endpoint| answers(endpoint, "4xx")))),
        column(S3, "5xx", Count, 0, |i| i.rate(|r| s3(r, |endpoint| answers(endpoint, "5xx")))),
        column(S3, "open", Count, 1, |i| i.gauge(|r| s3(r, |endpoint| endpoint.under_way))),
        column(S3, "mem", Bytes, 1, |i| i.gauge(|r| s3(r, |endpoint| endpoint.memory_bytes))),
        column(Local, "held", Bytes, 0, |i| i.gauge(|r| Some(*r.local.as_ref()?.bytes.get("ready")? as f64))),
        column(Local, "fill", Bytes, 0, |i| i.rate(|r| Some(r.local.as_ref()?.fills.bytes as f64))),
        column(Local, "open", Count, 0, |i| i.rate(|r| Some(passed(r)?.1))),
        column(Local, "pass%", Percent, 0, |i| i.share(passed)),
        column(Local, "evict", Count, 1, |i| i.rate(|r| Some(r.local.as_ref()?.evictions as f64))),
        column(Hedge, "sent", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.hedges_sent as f64))),
        column(Hedge, "won", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.hedges_won as f64))),
        column(Hedge, "wasted", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.hedges_wasted as f64))),
        column(Hedge, "avoided", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.avoided_reads as f64))),
        column(Ahead, "fetch", Bytes, 0, |i| i.rate(|r| Some(r.client.as_ref()?.prefetched as f64))),
        column(Ahead, "files", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.files_ahead as f64))),
        column(Ahead, "used", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.files_ahead_used as f64))),
        column(Ahead, "wasted", Count, 0, |i| i.rate(|r| Some(r.client.as_ref()?.files_ahead_wasted as f64))),
    ]
};

/// The columns of these sections at this verbosity.
pub(super) fn chosen(sections: &[Section], verbosity: u8) -> Vec<Column> {
    let of = |section: &Section| {
        let section = *section;
        COLUMNS.into_iter().filter(move |column| column.section == section && column.level <= verbosity)
    };
    sections.iter().flat_map(of).collect()
}

/// Two reports of each process, and the time between them.
pub(super) struct Interval<'a> {
    pairs: Vec<(&'a Report, &'a Report)>,
    seconds: f64,
}

impl<'a> Interval<'a> {
    /// Of those that reported at both ends.
    pub(super) fn new(before: &'a [(String, Report)], after: &'a [(String, Report)], length: Duration) -> Self {
        let earlier = |name: &str| before.iter().find(|(other, _)| other == name).map(|(_, report)| report);
        let pairs = after.iter().filter_map(|(name, report)| Some((earlier(name)?, report))).collect();
        Self { pairs, seconds: length.as_secs_f64().max(f64::EPSILON) }
    }

    /// All that was ever counted, as if it were of one second.
    pub(super) fn since_start(after: &'a [(String, Report)], nothing: &'a Report) -> Self {
        Self { pairs: after.iter().map(|(_, report)| (nothing, report)).collect(), seconds: 1.0 }
    }

    /// The sum of a gauge at the end.
    fn gauge(&self, value: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        self.pairs.iter().filter_map(|(_, after)| value(after)).reduce(|sum, value| sum + value)
    }

    /// How fast a counter grew. That of a process that was started anew began at zero.
    fn rate(&self, counter: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        let grown = |(before, after): &(&Report, &Report)| {
            let (before, after) = (counter(before).unwrap_or(0.0), counter(after)?);
            Some(if after >= before { after - before } else { after })
        };
        let all = self.pairs.iter().filter_map(grown).reduce(|sum, grown| sum + grown)?;
        Some(all / self.seconds)
    }

    /// How much, in percent, of what a second counter grew by a first one did. Of nothing there is no part.
    fn share(&self, counters: impl Fn(&Report) -> Option<(f64, f64)>) -> Option<f64> {
        let grown = |(before, after): &(&Report, &Report)| {
            let ((part, all), (part_now, all_now)) = (counters(before).unwrap_or_default(), counters(after)?);
            // They are of one process: if it was started anew, both began at zero.
            let is_same = part_now >= part && all_now >= all;
            Some(if is_same { (part_now - part, all_now - all) } else { (part_now, all_now) })
        };
        let grown = self.pairs.iter().filter_map(grown);
        let (part, all) = grown.fold((0.0, 0.0), |sum, (part, all)| (sum.0 + part, sum.1 + all));
        // Counters are not read at one moment: a read may be in the one and not in the other yet.
        (all > 0.0).then(|| (100.0 * part / all).min(100.0))
    }

    /// The durations of the interval.
    fn latency(&self, of: impl Fn(&Report) -> Option<LatencySnapshot>) -> Option<LatencySnapshot> {
        let between = |(before, after): &(&Report, &Report)| Some(of(after)?.since(&of(before).unwrap_or_default()));
        self.pairs.iter().filter_map(between).reduce(|sum, latency| sum.and(&latency))
    }

    fn per_second(&self, latency: &LatencySnapshot) -> Option<f64> {
        Some(latency.count() as f64 / self.seconds)
    }

    fn mean(&self, latency: &LatencySnapshot) -> Option<f64> {
        Some(latency.mean().map_or(0.0, millis))
    }

    fn p99(&self, latency: &LatencySnapshot) -> Option<f64> {
        Some(latency.quantile(0.99).map_or(0.0, millis))
    }
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// What is known of a column, for callers that have to leave some out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    /// No process counts it.
    Nowhere,
    /// Nothing of it ever happened.
    Never,
    /// There is something to show.
    Ever,
}

/// What is known of these columns, when processes report `now`.
pub(super) fn counted(columns: &[Column], now: &[(String, Report)]) -> Vec<Counted> {
    let nothing = Report::default();
    let ever = Interval::since_start(now, &nothing);
    let of = |column: &Column| match column.value(&ever) {
        None => Counted::Nowhere,
        Some(0.0) => Counted::Never,
        Some(_) => Counted::Ever,
    };
    let own: Vec<Counted> = columns.iter().map(of).collect();
    let of_section = |section| {
        columns.iter().zip(&own).filter(|(column, _)| column.section == section).map(|(_, counted)| *counted).max()
    };
    // A share is of what its section counts, and unknown while that is nothing.
    let of = |(column, own): (&Column, &Counted)| match column.is_share() {
        true => of_section(column.section).unwrap_or(*own),
        false => *own,
    };
    columns.iter().zip(&own).map(of).collect()
}

/// The interval as an object: a member for each section, the unknown left out.
pub(super) fn json(columns: &[Column], interval: &Interval<'_>, time: &str) -> Value {
    let mut object = Map::new();
    object.insert("time".to_owned(), json!(time));
    object.insert("seconds".to_owned(), json!(interval.seconds));
    for column in columns {
        let section = object.entry(column.section.name()).or_insert_with(|| json!({}));
        if let Some(value) = column.value(interval) {
            section[column.name] = json!(value);
        }
    }
    Value::Object(object)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use forebay_node::report::sample::everything;

    pub(crate) fn reports(of: Value) -> Vec<(String, Report)> {
        vec![("a".to_owned(), Report::of(&of).unwrap())]
    }

    fn shown(before: Value, after: Value) -> Value {
        let (before, after) = (reports(before), reports(after));
        let sections: Vec<Section> = Section::LETTERS.chars().filter_map(Section::of).collect();
        json(&chosen(&sections, 1), &Interval::new(&before, &after, Duration::from_secs(2)), "now")
    }

    #[test]
    fn a_row_is_the_difference_of_two_reports_by_the_second() {
        let row = shown(everything(10), everything(30));
        let number =
            |pointer: &str| row.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {row}"));
        for (pointer, expected) in [
            ("/usage/cpu", 1000.0),
            ("/usage/mem", f64::from(1 << 30)),
            // Two operations, ten more of each a second.
            ("/fuse/ops", 20.0),
            ("/fuse/lat", 0.1),
            ("/fuse/read", 40960.0),
            ("/fuse/write", 10240.0),
            ("/meta/ops", 10.0),
            ("/cache/hit", 40.0),
            ("/cache/hit%", 80.0),
            ("/remotecache/recv", 40960.0),
            ("/remotecache/window", 40960.0),
            ("/remotecache/ops", 10.0),
            ("/hedge/sent", 10.0),
            ("/hedge/avoided", 10.0),
            ("/ahead/files", 10.0),
            ("/ahead/wasted", 10.0),
            ("/rdma/write", 40960.0),
            ("/rdma/read", 640.0),
            ("/rdma/w_ops", 10.0),
            ("/rdma/lat", 0.1),
            ("/rdma/recv", 40960.0),
            ("/rdma/striped", 10.0),
            ("/rdma/again", 20.0),
            ("/rdma/one_sided", 10.0),
            ("/object/get", 40960.0),
            ("/object/get_c", 10.0),
            ("/object/put", 20480.0),
            ("/object/put_c", 20.0),
            ("/object/del_c", 10.0),
            ("/s3/ops", 10.0),
            ("/s3/lat", 0.1),
            ("/s3/sent", 40960.0),
            ("/s3/recv", 10240.0),
            ("/s3/4xx", 10.0),
            ("/s3/5xx", 0.0),
            ("/s3/open", 1.0),
            ("/s3/mem", 65536.0),
        ] {
            assert!((number(pointer) - expected).abs() < 1e-9, "{pointer} is {}, not {expected}", number(pointer));
        }
        assert!((0.1..0.1125).contains(&number("/fuse/p99")), "{row}");
        assert_eq!(row["seconds"], 2.0);
    }

    #[test]
    fn what_is_not_counted_is_unknown_and_what_did_not_happen_is_zero() {
        let worker = || json!({ "worker": {}, "process": {} });
        let row = shown(worker(), worker());
        assert_eq!(row["fuse"], json!({}));
        assert_eq!(row["object"]["get_c"], 0.0);
        assert_eq!(row["object"]["lat"], 0.0);
        let mount = || json!({ "client": { "origin": 7 }, "fuse": {} });
        let row = shown(mount(), mount());
        assert_eq!(row["object"], json!({ "get": 0.0 }));
    }

    #[test]
    fn the_share_of_hits_is_of_all_that_was_read_and_never_more_than_all() {
        let mount = |scale: u64| {
            let mut report = everything(scale);
            report["node"] = Value::Null;
            report["client"]["local_memory"] = json!(1024 * scale);
            report
        };
        // Of 4096 bytes read 1025 were here; what was fetched ahead of them is not counted once more.
        let hits = |before: Value, after: Value| shown(before, after)["cache"]["hit%"].clone();
        assert!((hits(mount(10), mount(30)).as_f64().unwrap() - 100.0 * 1025.0 / 4096.0).abs() < 1e-9);
        // It was started anew between, and has read more since than it had before, from elsewhere.
        let mut anew = mount(5);
        anew["fuse"]["read_bytes"] = json!(1 << 30);
        assert!(hits(mount(10), anew).as_f64().unwrap() < 1.0);
        let mut ahead = mount(30);
        ahead["client"]["local_memory"] = json!(1u64 << 40);
        assert_eq!(hits(mount(10), ahead), 100.0);
        assert_eq!(hits(mount(10), mount(10)), Value::Null, "of nothing there is no part");
        // The only worker is in the mount's process: its disks are here.
        assert_eq!(hits(everything(10), everything(30)), 80.0);
        let mut worker = everything(30)["node"].take();
        worker["worker"]["bytes_peers"] = json!(60);
        assert_eq!(hits(json!({ "worker": {} }), worker), 40.0);
    }

    #[test]
    fn processes_add_up_and_one_that_was_started_anew_counts_from_zero() {
        let two = |first: Value, second: Value| {
            let named = |name: &str, of: &Value| (name.to_owned(), Report::of(of).unwrap());
            vec![named("a", &first), named("b", &second)]
        };
        let before = two(everything(10), everything(10));
        let after = two(everything(12), everything(4));
        let interval = Interval::new(&before, &after, Duration::from_secs(1));
        let read = COLUMNS.iter().find(|column| column.section == Section::Fuse && column.name == "read").unwrap();
        assert_eq!(read.value(&interval), Some(6.0 * 4096.0));
        // A part that is there only at the end is left out: all that it ever did was not done now.
        let interval = Interval::new(&before[..1], &after, Duration::from_secs(1));
        assert_eq!(read.value(&interval), Some(2.0 * 4096.0));
    }

    #[test]
    fn the_rdma_section_has_what_it_is_known_for_at_any_verbosity() {
        let names: Vec<_> = chosen(&[Section::Rdma], 0).iter().map(|column| column.name).collect();
        assert_eq!(names, ["write", "read", "w_ops", "lat", "recv"]);
    }
}
