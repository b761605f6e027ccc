//! The document of the REST interface is checked in.

use std::collections::BTreeSet;
use std::path::Path;

use forebay_coordinator::api::openapi_json;

#[test]
fn the_openapi_document_is_up_to_date() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"));
    let document = openapi_json();
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == document,
        "docs/openapi.json differs from what is served: \
         renew it with `FOREBAY_BLESS=1 cargo test -p forebay-coordinator --test openapi`"
    );
}

#[test]
fn every_operation_is_described() {
    let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut operations = BTreeSet::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with("/api/v1/") || path.ends_with("z"), "{path}");
        for (verb, operation) in verbs.as_object().unwrap() {
            let described = operation["summary"].is_string() && operation["responses"].is_object();
            assert!(described, "{verb} {path}");
            let id = operation["operationId"].as_str().unwrap();
            assert!(operations.insert(id.to_owned()), "two operations are called {id}");
        }
    }
    assert!(operations.len() >= 18, "{operations:?}");
}
