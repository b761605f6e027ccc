//! Metrics before they are text: families of samples that differ in their labels.
//!
//! A name says all: `forebay_origin_received_bytes_total` is a counter of bytes. So kind and unit are read off the name
//! where they must agree with it, and [`Family::fault`] tells what is wrong with one, by the rules that Prometheus and
//! OpenMetrics give for names; the tests of the crates that collect families ask it of each.

use crate::latency::LatencySnapshot;

/// What a metric may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, as long as the process lives. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations, in buckets. Its name ends in `_seconds`.
    Histogram,
}

impl Kind {
    /// Its name, as after `# TYPE`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What is counted, where it is not things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A share between 0 and 1.
    Ratio,
}

impl Unit {
    const ALL: [Self; 3] = [Self::Bytes, Self::Seconds, Self::Ratio];

    /// As names end.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Ratio => "ratio",
        }
    }
}

/// What a sample says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Latency(Box<LatencySnapshot>),
}

/// One series: labels and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values, in the order that they were given in.
    pub labels: Vec<(&'static str, String)>,
    /// What it says.
    pub value: Value,
}

/// All samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The whole name.
    pub name: &'static str,
    /// What it is, in a sentence without its full stop.
    pub help: &'static str,
    /// What it may do.
    pub kind: Kind,
    /// The series.
    pub samples: Vec<Sample>,
}

impl Family {
    /// The unit that its name ends in.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        let base = self.name.strip_suffix("_total").unwrap_or(self.name);
        let last = base.rsplit('_').next()?;
        Unit::ALL.into_iter().find(|unit| unit.name() == last)
    }

    /// Its name without unit and `_total`, as the encoder wants it.
    pub(crate) fn stem(&self) -> &'static str {
        let base = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            _ => self.name,
        };
        let Some(unit) = self.unit() else { return base };
        base.strip_suffix(unit.name()).and_then(|stem| stem.strip_suffix('_')).unwrap_or(base)
    }

    /// What is wrong with its name, help or samples.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let Self { name, help, kind, samples } = self;
        let plain = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_lowercase())
                && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                && !text.contains("__")
                && !text.ends_with('_')
        };
        // A base unit is written out, and what holds a total of one names it right before `_total`.
        let words: Vec<&str> = name.strip_suffix("_total").unwrap_or(name).split('_').collect();
        let scaled =
            ["ms", "us", "ns", "millis", "nanos", "micros", "milliseconds", "kb", "mb", "kib", "mib", "percent"];
        let (last, before) = words.split_last()?;
        if !plain(name) {
            return Some(format!("{name}: a name has small letters, digits and single underscores"));
        }
        if !(name.starts_with("forebay_") || name.starts_with("process_")) {
            return Some(format!("{name}: a name begins with forebay_, or with process_ as everybody's do"));
        }
        if words.iter().any(|word| scaled.contains(word)) || ["byte", "second"].contains(last) {
            return Some(format!("{name}: units are bytes, seconds and ratio"));
        }
        if before.iter().any(|word| Unit::ALL.iter().any(|unit| unit.name() == *word)) {
            return Some(format!("{name}: the unit comes last"));
        }
        if (*kind == Kind::Counter) != name.ends_with("_total") {
            return Some(format!("{name}: counters, and nothing else, end in _total"));
        }
        if *kind == Kind::Histogram && self.unit() != Some(Unit::Seconds) {
            return Some(format!("{name}: a histogram is of seconds"));
        }
        if ["_count", "_sum", "_bucket", "_created"].iter().any(|suffix| name.ends_with(suffix)) {
            return Some(format!("{name}: ends like a part of a histogram"));
        }
        if help.is_empty() || help.ends_with('.') || help.contains('\n') || !help.starts_with(char::is_uppercase) {
            return Some(format!("{name}: its help is not a sentence without its full stop: `{help}`"));
        }
        let label = samples.iter().flat_map(|sample| &sample.labels).find(|(label, _)| !plain(label) || *label == "le");
        if let Some((label, _)) = label {
            return Some(format!("{name}: `{label}` is no name for a label"));
        }
        let names = |sample: &Sample| sample.labels.iter().map(|(label, _)| *label).collect::<Vec<_>>();
        let first = samples.first().map(names);
        if samples.iter().any(|sample| Some(names(sample)) != first) {
            return Some(format!("{name}: its series differ in the names of their labels"));
        }
        let fits = |sample: &Sample| match &sample.value {
            Value::Number(number) => *kind != Kind::Histogram && (*kind == Kind::Gauge || *number >= 0.0),
            Value::Latency(_) => *kind == Kind::Histogram,
        };
        (!samples.iter().all(fits)).then(|| format!("{name}: a sample is not of a {}", kind.name()))
    }
}

/// What a scrape has gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Families(Vec<Family>);

/// A family that is being filled.
#[derive(Debug)]
pub struct FamilyMut<'a>(&'a mut Family);

impl Families {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter `name`, which ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> FamilyMut<'_> {
        self.family(name, help, Kind::Counter)
    }

    /// The gauge `name`.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> FamilyMut<'_> {
        self.family(name, help, Kind::Gauge)
    }

    /// The histogram `name`, which ends in `_seconds`.
    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> FamilyMut<'_> {
        self.family(name, help, Kind::Histogram)
    }

    /// In the order in which they were first named.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.0.iter()
    }

    /// The family of this name; several components may fill one.
    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> FamilyMut<'_> {
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.0.push(Family { name, help, kind, samples: Vec::new() });
            self.0.len() - 1
        });
        FamilyMut(&mut self.0[at])
    }
}

impl FamilyMut<'_> {
    /// A series with `labels`; one that is there already is added to.
    pub fn add<const N: usize>(self, labels: [(&'static str, &str); N], number: impl Number) -> Self {
        self.put(labels, Value::Number(number.number()))
    }

    /// A series of a histogram with `labels`; one that is there already is added to.
    pub fn record<const N: usize>(self, labels: [(&'static str, &str); N], latency: &LatencySnapshot) -> Self {
        self.put(labels, Value::Latency(Box::new(latency.clone())))
    }

    fn put<const N: usize>(self, labels: [(&'static str, &str); N], value: Value) -> Self {
        let labels: Vec<_> = labels.into_iter().map(|(label, value)| (label, value.to_owned())).collect();
        let there = self.0.samples.iter_mut().find(|sample| sample.labels == labels);
        match there.map(|sample| &mut sample.value) {
            None => self.0.samples.push(Sample { labels, value }),
            Some(Value::Number(sum)) => {
                if let Value::Number(number) = value {
                    *sum += number;
                }
            }
            Some(Value::Latency(sum)) => {
                if let Value::Latency(latency) = value {
                    **sum = sum.and(&latency);
                }
            }
        }
        self
    }
}

/// What a sample may be made of.
pub trait Number {
    /// As Prometheus takes it: beyond 2^53 it is rounded.
    fn number(self) -> f64;
}

impl Number for u64 {
    fn number(self) -> f64 {
        self as f64
    }
}

impl Number for usize {
    fn number(self) -> f64 {
        self as f64
    }
}

impl Number for f64 {
    fn number(self) -> f64 {
        self
    }
}

impl Number for bool {
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }
}

/// A source of metrics: at a scrape it reads its counters and adds what they say.
pub trait Collect: Send + Sync + 'static {
    /// Adds what there is now.
    fn collect(&self, families: &mut Families);
}

impl<F: Fn(&mut Families) + Send + Sync + 'static> Collect for F {
    fn collect(&self, families: &mut Families) {
        self(families);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &'static str, kind: Kind) -> Family {
        Family { name, help: "What it is", kind, samples: Vec::new() }
    }

    #[test]
    fn a_name_says_unit_and_stem() {
        let of = |name, kind| {
            let family = family(name, kind);
            (family.unit(), family.stem())
        };
        assert_eq!(of("forebay_read_bytes_total", Kind::Counter), (Some(Unit::Bytes), "forebay_read"));
        assert_eq!(of("forebay_requests_total", Kind::Counter), (None, "forebay_requests"));
        assert_eq!(of("forebay_wait_seconds", Kind::Histogram), (Some(Unit::Seconds), "forebay_wait"));
        assert_eq!(of("forebay_inodes", Kind::Gauge), (None, "forebay_inodes"));
    }

    #[test]
    fn good_names_have_no_fault_and_bad_ones_are_told_what_it_is() {
        for (name, kind) in [
            ("forebay_read_bytes_total", Kind::Counter),
            ("process_cpu_seconds_total", Kind::Counter),
            ("forebay_store_used_bytes", Kind::Gauge),
            ("forebay_fuse_operation_duration_seconds", Kind::Histogram),
        ] {
            assert_eq!(family(name, kind).fault(), None);
        }
        for (name, kind, says) in [
            ("forebay_read_bytes", Kind::Counter, "_total"),
            ("forebay_inodes_total", Kind::Gauge, "_total"),
            ("forebay_Reads_total", Kind::Counter, "small letters"),
            ("forebay__reads_total", Kind::Counter, "small letters"),
            ("reads_total", Kind::Counter, "begins"),
            ("forebay_wait_ms", Kind::Gauge, "units"),
            ("forebay_bytes_read_total", Kind::Counter, "last"),
            ("forebay_wait", Kind::Histogram, "seconds"),
            ("forebay_request_count", Kind::Gauge, "part of a histogram"),
        ] {
            let fault = family(name, kind).fault().unwrap_or_default();
            assert!(fault.contains(says), "{name}: {fault}");
        }
        let nameless = Family { help: "", ..family("forebay_inodes", Kind::Gauge) };
        assert!(nameless.fault().unwrap().contains("help"));
        let mut uneven = Families::new();
        uneven.gauge("forebay_inodes", "What it is").add([("a", "1")], 1u64).add([("b", "1")], 1u64);
        assert!(uneven.iter().next().unwrap().fault().unwrap().contains("differ"));
    }

    #[test]
    fn what_two_components_say_of_one_series_is_added() {
        let mut families = Families::new();
        families.counter("forebay_reads_total", "Reads").add([("op", "read")], 1u64);
        families.counter("forebay_reads_total", "Reads").add([("op", "read")], 2u64).add([("op", "list")], 5u64);
        let samples = &families.iter().next().unwrap().samples;
        assert_eq!(
            samples.iter().map(|sample| &sample.value).collect::<Vec<_>>(),
            [&Value::Number(3.0), &Value::Number(5.0)]
        );
        assert_eq!(families.iter().count(), 1);
    }
}
