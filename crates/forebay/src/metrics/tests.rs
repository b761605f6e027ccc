//! Every metric there is: its name, its place in the documentation, and who uses it in `deploy/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_metrics::{Kind, LatencyHistogram, ProcessStats};
use serde_json::json;
use yaml_rust2::{Yaml, YamlLoader};

use super::*;

/// A report of everything that any role has, `scale` times.
pub(crate) fn everything(scale: u64) -> Value {
    let latency = LatencyHistogram::new();
    (0..scale).for_each(|_| latency.record(Duration::from_micros(100)));
    let numbers = |names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), json!(scale))).collect::<serde_json::Map<_, _>>().into()
    };
    let memory = numbers(&["capacity", "used", "runs_evicted", "corrupt_sectors", "waits", "failures"]);
    let calls = json!({ "failures": scale, "bytes_received": 4096 * scale, "latency": latency });
    let origin = |operation: &str| json!({ "operation": operation, "outcomes": [["ok", scale], ["failed", 0]], "latency": latency });
    let mut worker = numbers(&[
        "failures",
        "bytes_memory",
        "bytes_disk",
        "bytes_origin",
        "bytes_peers",
        "bytes_uploaded",
        "fetches",
    ]);
    worker["requests"] = json!({ "read": scale, "stat": scale, "change": scale, "upload": scale });
    let node = json!({
        "worker": worker,
        "store": { "blocks": scale, "memory": memory, "disks": [{ "dir": "/d", "used": scale, "degraded": false }] },
        "origins": [{ "path": "/", "counts": {
            "bytes": 4096 * scale, "uploaded": 2048 * scale, "retries": scale,
            "operations": [origin("read"), origin("put"), origin("part"), origin("remove")],
        } }],
        "requests": { "read": latency, "stat": latency },
        "connections": 1,
        "window": { "servers": 1, "connections": 2, "pinned_bytes": 4096 },
        "zero_copy": { "bytes": 1048576, "copied": 3, "lost_bytes": 0 },
        "rdma": { "listeners": [{
            "card": "mlx5_0:1", "bytes_sent": 4096 * scale, "bytes_received": 64 * scale, "replies": scale,
            "requests": scale, "latency": latency,
        }] },
    });
    let mut client = numbers(&[
        "local_memory",
        "buffered",
        "worker_memory",
        "worker_disk",
        "origin",
        "failovers",
        "outages",
        "direct_requests",
        "uploads",
        "uploaded",
        "changes",
    ]);
    client["data"] = calls.clone();
    client["metadata"] = calls;
    let traffic = json!({ "bytes_received": 4096 * scale, "latency": latency });
    json!({
        "process": ProcessStats { cpu_seconds: scale as f64, resident_bytes: 1 << 30, ..ProcessStats::default() },
        "fuse": {
            "operations": { "read": latency, "lookup": latency }, "failures": { "ESTALE": scale },
            "read_bytes": 4096 * scale, "read_hits": scale, "read_misses": scale, "written_bytes": 1024 * scale, "inodes": 3,
            "io": { "mode": "uring", "threads": 2, "queues": 2, "depth": 64, "passthrough": true, "requests": scale, "submits": scale },
        },
        "staging": {
            "drafts": { "open": 3, "dirty": 2, "failed": 1 },
            "space": { "size": 1 << 30, "used": 4096, "failed": 1, "writers_waiting": 1 },
            "uploads": numbers(&["bytes_in_flight", "completed", "aborted", "puts", "parts", "bytes", "failures"]),
        },
        "local": {
            "on": true, "capacity_bytes": 1u64 << 40, "huge_bytes": 1 << 30, "files": { "ready": 3, "pinned": 1 },
            "bytes": { "ready": 1 << 30, "filling": 1 << 20 }, "handles": { "passed": 3 * scale, "served": scale },
            "opens": { "waited": scale }, "fills": { "done": scale, "bytes": 4096 * scale, "seconds_sum": scale },
        },
        "client": client,
        "buffers": memory,
        "coordinator": { "leads": true, "jobs": { "RUNNING": 1 }, "bytes_per_second": 5.0, "failures": 1 },
        "cluster": { "members": [{ "name": "node1" }], "last_known": { "seconds": 3 } },
        "rdma": {
            "paths": { "rdma": traffic, "tcp": traffic, "fell_back": scale },
            "workers": [{ "worker": "node1:29999", "data": [{ "rdma": true, "up": true }, { "rdma": false, "up": true }] }],
            "cards": [{ "card": "mlx5_1:1", "registered_bytes": 1 }],
        },
        "window": {
            "reads": scale, "bytes": 4096 * scale, "workers": [{ "worker": "node1:29999", "state": "open", "why": null }],
        },
        "node": node,
    })
}

fn families(scale: u64) -> Families {
    let mut families = Families::new();
    build_info(&mut families);
    collect(&Report::of(&everything(scale)).unwrap(), &mut families);
    families
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_name_help_and_label_keeps_the_rules() {
    let families = families(1);
    let faults: Vec<String> = families.iter().filter_map(forebay_metrics::Family::fault).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(families.iter().all(|family| !family.samples.is_empty()), "a report of everything fills every family");
}

#[test]
fn no_counter_decreases_while_its_process_counts() {
    let (before, after) = (families(1), families(2));
    for (before, after) in before.iter().zip(after.iter()) {
        assert_eq!(before.name, after.name);
        for (earlier, later) in before.samples.iter().zip(&after.samples).filter(|_| before.kind != Kind::Gauge) {
            assert_eq!(earlier.labels, later.labels);
            let number = |sample: &forebay_metrics::Sample| match &sample.value {
                forebay_metrics::Value::Number(number) => *number,
                forebay_metrics::Value::Latency(latency) => latency.count() as f64,
            };
            assert!(number(later) >= number(earlier), "{}", before.name);
        }
    }
}

#[test]
fn what_is_exported_is_what_prometheus_reads() {
    let site = site(Readiness::new(), || everything(1));
    drop(site);
    let registry = Registry::new().with(|families: &mut Families| {
        collect(&Report::of(&everything(1)).unwrap(), families);
    });
    let text = registry.text().unwrap();
    for line in [
        "forebay_worker_served_bytes_total{source=\"disk\"} 1.0",
        "forebay_origin_requests_total{operation=\"read\",outcome=\"ok\"} 1.0",
        "forebay_fuse_operation_duration_seconds_bucket{le=\"0.000131072\",operation=\"read\"} 1",
        "forebay_client_paths_up{worker=\"node1:29999\",transport=\"rdma\"} 1.0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    // A file that no metric's series may outgrow.
    assert!(text.lines().count() < 2000);
}

/// The table of metrics in the documentation, which `FOREBAY_BLESS=1` renews.
#[test]
fn every_metric_is_documented() {
    let mut table = String::from("| metric | type | labels | what it is |\n| --- | --- | --- | --- |\n");
    for family in families(1).iter() {
        let labels: Vec<_> = family.samples[0].labels.iter().map(|(label, _)| format!("`{label}`")).collect();
        let row = format!("| `{}` | {} | {} | {} |\n", family.name, family.kind.name(), labels.join(", "), family.help);
        table.push_str(&row);
    }
    let path = root().join("docs/OBSERVABILITY.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- metrics: made by a test -->\n\n", "\n<!-- end of metrics -->");
    let (head, rest) = page.split_once(begin).expect("the page has a place for the table");
    let (_, tail) = rest.split_once(end).expect("the place has an end");
    let renewed = [head, begin, &table, end, tail].concat();
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, &renewed).unwrap();
    } else {
        assert!(
            page == renewed,
            "docs/OBSERVABILITY.md is not up to date: FOREBAY_BLESS=1 cargo test -p forebay renews it"
        );
    }
}

/// The names of metrics of ours in an expression of PromQL.
fn names_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("forebay_") || word.starts_with("process_")).map(str::to_owned).collect()
}

/// Asserts that each name is one that is exported, or a part of a histogram that is.
#[track_caller]
fn assert_exported(names: &BTreeSet<String>, place: &str) {
    let families = families(1);
    for name in names {
        let is_of = |family: &forebay_metrics::Family| match family.kind {
            Kind::Histogram => {
                ["_bucket", "_sum", "_count"].iter().any(|part| name.strip_suffix(part) == Some(family.name))
            }
            _ => family.name == name,
        };
        assert!(families.iter().any(is_of), "{place}: nothing exports {name}");
    }
}

#[test]
fn the_dashboard_shows_metrics_that_there_are() {
    let text = std::fs::read_to_string(root().join("deploy/grafana/forebay.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut expressions = 0;
    for query in queries {
        let expression = query["expr"].as_str().unwrap();
        let names = names_in(expression);
        assert!(!names.is_empty(), "{expression}");
        assert_exported(&names, expression);
        expressions += 1;
    }
    assert!(expressions >= 15, "only {expressions} queries");
    let mut ids = BTreeSet::new();
    assert!(panels.iter().all(|panel| ids.insert(panel["id"].as_u64().unwrap())), "two panels have one id");
}

#[test]
fn the_scrape_configuration_and_the_alerts_are_yaml_about_metrics_that_there_are() {
    let load = |file: &str| {
        let text = std::fs::read_to_string(root().join("deploy/prometheus").join(file)).unwrap();
        YamlLoader::load_from_str(&text).unwrap().remove(0)
    };
    let scrape = load("prometheus.yml");
    let jobs = scrape["scrape_configs"].as_vec().unwrap();
    assert!(jobs.iter().all(|job| job["job_name"].as_str().is_some()) && jobs.len() >= 3);
    assert_eq!(scrape["rule_files"][0].as_str(), Some("alerts.yml"));
    let alerts = load("alerts.yml");
    let groups = alerts["groups"].as_vec().unwrap();
    let rules: Vec<&Yaml> = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).collect();
    assert!(rules.len() >= 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let expression = rule["expr"].as_str().unwrap();
        assert_exported(&names_in(expression), name);
        assert!(rule["annotations"]["summary"].as_str().is_some(), "{name} says nothing to people");
    }
}
