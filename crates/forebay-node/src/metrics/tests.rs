//! Every metric there is: its name, its place in the documentation, and what uses it in `deploy/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use forebay_metrics::Kind;
use yaml_rust2::{Yaml, YamlLoader};

use super::*;
use crate::report::sample::everything;

fn families(scale: u64) -> Families {
    let mut families = Families::new();
    build_info(&mut families);
    collect_refused(&mut families);
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
