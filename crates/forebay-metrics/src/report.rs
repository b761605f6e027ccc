//! All counters of a process as one JSON object, and the same as lines for people.

use std::time::Duration;

use serde_json::Value;

use crate::latency::LatencySnapshot;

/// The numbers of `report`, each with its name: `fuse.read_bytes`, `store.disks.0.used`. Latencies are shown as what can be said
/// of them, in microseconds, and not as buckets. What is unknown is left out.
#[must_use]
pub fn lines(report: &Value) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    below(report, "", &mut lines);
    lines
}

fn below(value: &Value, prefix: &str, lines: &mut Vec<(String, String)>) {
    let name = |part: &str| if prefix.is_empty() { part.to_owned() } else { format!("{prefix}.{part}") };
    match value {
        Value::Object(fields) if fields.contains_key("buckets") => match serde_json::from_value(value.clone()) {
            Ok(latency) => lines.extend(said(&latency).map(|(part, value)| (name(part), value))),
            Err(_) => fields.iter().for_each(|(part, value)| below(value, &name(part), lines)),
        },
        Value::Object(fields) => fields.iter().for_each(|(part, value)| below(value, &name(part), lines)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| below(value, &name(&at.to_string()), lines));
        }
        Value::Null => {}
        value => lines.push((prefix.to_owned(), value.to_string())),
    }
}

fn said(latency: &LatencySnapshot) -> impl Iterator<Item = (&'static str, String)> {
    let micros = |took: Option<Duration>| took.map(|took| format!("{:.1}", took.as_secs_f64() * 1e6));
    let said = [
        ("count", Some(latency.count().to_string())),
        ("mean_us", micros(latency.mean())),
        ("p50_us", micros(latency.quantile(0.5))),
        ("p99_us", micros(latency.quantile(0.99))),
        ("p999_us", micros(latency.quantile(0.999))),
    ];
    said.into_iter().filter_map(|(part, value)| Some((part, value?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::latency::LatencyHistogram;

    #[test]
    fn every_number_has_a_line_and_a_latency_is_said_in_words() {
        let histogram = LatencyHistogram::new();
        histogram.record(Duration::from_micros(8));
        let report = json!({
            "fuse": { "read_bytes": 5, "read": histogram, "list": LatencyHistogram::new() },
            "disks": [{ "dir": "/a" }, null],
        });
        let lines: Vec<String> = lines(&report).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        let expected = [
            "disks.0.dir \"/a\"",
            "fuse.list.count 0",
            "fuse.read.count 1",
            "fuse.read.mean_us 8.0",
            "fuse.read.p50_us 8.2",
            "fuse.read.p99_us 8.2",
            "fuse.read.p999_us 8.2",
            "fuse.read_bytes 5",
        ];
        assert_eq!(lines, expected);
    }
}
