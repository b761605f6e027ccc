//! Families as the text that Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;

use crate::family::{Collect, Families, Family, Kind, Unit, Value};
use crate::latency::{BOUNDS_NANOS, LatencySnapshot};

/// The content type of [`Registry::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All collectors.
#[derive(Default)]
pub struct Registry {
    collectors: Vec<Box<dyn Collect>>,
}

impl Registry {
    /// One without collectors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with `collector`.
    #[must_use]
    pub fn with(mut self, collector: impl Collect) -> Self {
        self.collectors.push(Box::new(collector));
        self
    }

    /// What all of them say now.
    #[must_use]
    pub fn gather(&self) -> Families {
        let mut families = Families::new();
        self.collectors.iter().for_each(|collector| collector.collect(&mut families));
        families
    }

    /// The same as text, of [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// None that a string gives: it is the encoder's type.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = registry::Registry::default();
        registry.register_collector(Box::new(Gathered(self.gather())));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// One scrape.
#[derive(Debug)]
struct Gathered(Families);

impl Collector for Gathered {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().filter(|family| !family.samples.is_empty()).try_for_each(|family| encode(family, &mut encoder))
    }
}

fn encode(family: &Family, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let unit = family.unit().map(|unit| match unit {
        Unit::Bytes => registry::Unit::Bytes,
        Unit::Seconds => registry::Unit::Seconds,
        Unit::Ratio => registry::Unit::Other(unit.name().to_owned()),
    });
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut encoder = encoder.encode_descriptor(family.stem(), family.help, unit.as_ref(), kind)?;
    for sample in &family.samples {
        // Without labels there is no family to the encoder: it would write `{}`.
        if sample.labels.is_empty() {
            encode_value(family.kind, &sample.value, &mut encoder)?;
        } else {
            encode_value(family.kind, &sample.value, &mut encoder.encode_family(&sample.labels)?)?;
        }
    }
    Ok(())
}

fn encode_value(kind: Kind, value: &Value, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Number(number)) => encoder.encode_counter::<NoLabelSet, _, f64>(number, None),
        (_, Value::Number(number)) => encoder.encode_gauge(number),
        (_, Value::Latency(latency)) => encode_latency(latency, encoder),
    }
}

fn encode_latency(latency: &LatencySnapshot, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    let bounds = BOUNDS_NANOS.iter().map(|nanos| *nanos as f64 / 1e9).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(latency.per_bound()).collect();
    encoder.encode_histogram::<NoLabelSet>(latency.total().as_secs_f64(), latency.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::latency::LatencyHistogram;

    #[test]
    fn families_are_written_with_their_whole_names() {
        let histogram = LatencyHistogram::new();
        histogram.record(Duration::from_micros(3));
        histogram.record(Duration::from_secs(100));
        let latency = histogram.snapshot();
        let registry = Registry::new().with(move |families: &mut Families| {
            families
                .counter("forebay_worker_served_bytes_total", "Bytes served")
                .add([("source", "memory")], 4096u64)
                .add([("source", "a\"b\\")], 1u64);
            families.gauge("forebay_inodes", "Inodes").add([], 7u64);
            families.gauge("forebay_never_set", "Without samples");
            families.histogram("forebay_wait_seconds", "Waits").record([("op", "read")], &latency);
        });
        let text = registry.text().unwrap();
        for line in [
            "# HELP forebay_worker_served_bytes Bytes served",
            "# TYPE forebay_worker_served_bytes counter",
            "# UNIT forebay_worker_served_bytes bytes",
            "forebay_worker_served_bytes_total{source=\"memory\"} 4096.0",
            "forebay_worker_served_bytes_total{source=\"a\\\"b\\\\\"} 1.0",
            "forebay_inodes 7.0",
            "forebay_wait_seconds_count{op=\"read\"} 2",
            "forebay_wait_seconds_bucket{le=\"0.000002048\",op=\"read\"} 0",
            "forebay_wait_seconds_bucket{le=\"0.000004096\",op=\"read\"} 1",
            "forebay_wait_seconds_bucket{le=\"+Inf\",op=\"read\"} 2",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains("forebay_never_set"));
    }
}
