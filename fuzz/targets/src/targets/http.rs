//! The REST interface of a coordinator.

use forebay_coordinator::fuzzing::Rest;
use forebay_state::{FileOptions, FileStore};
use std::sync::Arc;

use crate::input::{Input, Output};
use crate::support::{block_on, folder};
use crate::targets::Seed;

pub(super) mod rest {
    use super::*;

    /// Most requests of an input.
    const MAX: usize = 8;

    const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "PATCH"];
    /// Where requests go. One that is not here begins with 255.
    const PLACES: [&str; 16] = [
        "/api/v1/jobs",
        "/api/v1/jobs/load-1",
        "/api/v1/jobs/load-1/stop",
        "/api/v1/mounts",
        "/api/v1/policies",
        "/api/v1/cluster",
        "/api/v1/cluster/drains/w1",
        "/api/v1/cluster/drains/%2F",
        "/api/v1/stats",
        "/api/v1/series",
        "/api/v1/version",
        "/api/v1/openapi.json",
        "/healthz",
        "/readyz",
        "/",
        "/api/v1/cluster/drains/w1%20",
    ];

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let dir = folder();
        block_on(async {
            let store = FileStore::open(dir.path(), FileOptions::default()).await.expect("a new store is made");
            let rest = Rest::new(Arc::new(store));
            for _ in 0..MAX {
                if input.is_empty() {
                    break;
                }
                let (flags, place) = (input.u8(), usize::from(input.u8()));
                let method = METHODS[usize::from(flags & 7) % METHODS.len()];
                let (uri, body) = (input.piece(), input.piece());
                let uri = String::from_utf8_lossy(uri);
                // What follows the place: a query.
                let uri = PLACES.get(place).map_or_else(|| uri.to_string(), |place| format!("{place}{uri}"));
                let content_type = if flags & 8 == 0 { "application/json" } else { "text/plain" };
                let Some((status, answer)) = rest.ask(method, &uri, content_type, body).await else { continue };
                assert!((200..600).contains(&status) && status != 500, "{method} {uri} is answered with {status}");
                // Whoever asks whether it is ready wants the answer to that.
                if status >= 400 && !uri.starts_with("/readyz") {
                    let fault: serde_json::Value = serde_json::from_slice(&answer).expect("a fault says so in JSON");
                    assert!(fault["error"]["code"].is_string() && fault["error"]["message"].is_string(), "{fault}");
                }
            }
            rest.check().await;
        });
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let ask = |output: Output, method: u8, place: usize, query: &str, body: &str| {
            output.u8(method).u8(place as u8).piece(query).piece(body)
        };
        let jobs = ask(Output::default(), 1, 0, "", r#"{"kind":"load","path":"/s3/a","bandwidth":"1MiB"}"#);
        let jobs = ask(jobs, 0, 0, "?kind=load&state=running&path=/s3", "");
        let mount = ask(Output::default(), 1, 3, "", r#"{"path":"/s3","origin":"s3://b","options":{"region":"eu"}}"#);
        let mount = ask(ask(mount, 0, 3, "", ""), 3, 3, "?path=/s3", "");
        let policy = ask(Output::default(), 2, 4, "", r#"{"path":"/s3","metadata_ttl":"5m","pin":true}"#);
        let policy = ask(ask(policy, 0, 4, "", ""), 3, 4, "?path=/s3", "");
        let looks =
            [5, 8, 9, 10, 12, 13, 14].iter().fold(Output::default(), |output, place| ask(output, 0, *place, "", ""));
        let odd = ask(Output::default(), 9, 255, "/api/v1/nothing%00", "x");
        vec![
            ("jobs", jobs.done()),
            ("mounts", mount.done()),
            ("policies", policy.done()),
            ("looks", looks.done()),
            ("odd", odd.done()),
        ]
    }
}
