//! What each operation asks of who wants it, where somebody has to prove who it is. This is the whole table: what is not in it is
//! an admin's alone, and fails a test.
//!
//! Reading asks for `Manage`, which admins and coordinators have: paths, origins and names of files are not for those
//! who may see counters alone. Jobs ask for it, too: they load and free, as a coordinator may, and one that does not lead passes them
//! on in its own name when it has judged who asked.

use forebay_metrics::Operation;
use forebay_types::Permission::{Administer, Manage, Observe};

/// A method, a path, and what it asks for.
pub(crate) static OPERATIONS: [Operation; 24] = [
    // The page itself holds nothing: what it shows, it asks for.
    ("GET", "/", None),
    ("GET", "/forebay.css", None),
    ("GET", "/forebay.js", None),
    ("GET", "/healthz", Some(Observe)),
    ("GET", "/readyz", Some(Observe)),
    // Pages that its process adds.
    ("GET", "/metrics", Some(Observe)),
    ("GET", "/stats", Some(Observe)),
    ("GET", "/api/v1/openapi.json", Some(Manage)),
    ("GET", "/api/v1/jobs", Some(Manage)),
    ("POST", "/api/v1/jobs", Some(Manage)),
    ("GET", "/api/v1/jobs/{id}", Some(Manage)),
    ("POST", "/api/v1/jobs/{id}/stop", Some(Manage)),
    ("GET", "/api/v1/mounts", Some(Manage)),
    ("POST", "/api/v1/mounts", Some(Administer)),
    ("DELETE", "/api/v1/mounts", Some(Administer)),
    ("GET", "/api/v1/policies", Some(Manage)),
    ("PUT", "/api/v1/policies", Some(Administer)),
    ("DELETE", "/api/v1/policies", Some(Administer)),
    ("GET", "/api/v1/cluster", Some(Manage)),
    ("PUT", "/api/v1/cluster/drains/{worker}", Some(Administer)),
    ("DELETE", "/api/v1/cluster/drains/{worker}", Some(Administer)),
    ("GET", "/api/v1/stats", Some(Manage)),
    ("GET", "/api/v1/series", Some(Manage)),
    ("GET", "/api/v1/version", Some(Manage)),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_has_every_operation_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(&crate::api::openapi_json()).unwrap();
        let mut served = BTreeSet::new();
        for (path, verbs) in document["paths"].as_object().unwrap() {
            served.extend(verbs.as_object().unwrap().keys().map(|verb| (verb.to_uppercase(), path.clone())));
        }
        // What the document does not describe: itself, the page, and the pages of the process.
        let others = ["/", "/forebay.css", "/forebay.js", "/metrics", "/stats", "/api/v1/openapi.json"];
        served.extend(others.map(|path| ("GET".to_owned(), path.to_owned())));
        let known: BTreeSet<_> =
            OPERATIONS.iter().map(|(verb, path, _)| ((*verb).to_owned(), (*path).to_owned())).collect();
        assert_eq!(known, served);
        assert_eq!(known.len(), OPERATIONS.len(), "one is there twice");
    }

    #[test]
    fn who_changes_what_is_mounted_or_how_it_is_cached_is_an_admin() {
        use forebay_types::Role;
        for (verb, path, permission) in &OPERATIONS {
            let may = |role: Role| permission.is_none_or(|permission| role.may(permission));
            let is_job = path.starts_with("/api/v1/jobs");
            let roles: Vec<_> = Role::ALL.into_iter().filter(|role| may(*role)).collect();
            match (*verb, permission) {
                (_, None) => assert!(!path.contains("api"), "{path}"),
                ("GET", Some(Observe)) => assert!(!path.contains("api") && !may(Role::Reader), "{path}"),
                ("GET", _) => assert_eq!(roles, [Role::Admin, Role::Coordinator], "{path}"),
                _ if is_job => assert_eq!(roles, [Role::Admin, Role::Coordinator], "{verb} {path}"),
                _ => assert_eq!(roles, [Role::Admin], "{verb} {path}"),
            }
        }
    }
}
