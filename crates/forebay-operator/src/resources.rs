//! The three kinds as they are in the API server. `crds/` defines them to it, with descriptions and rules for who
//! writes them; a test holds the two together.

use std::collections::BTreeMap;

use forebay_coordinator::api::MountAcl;
use kube::api::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};

use crate::condition::Condition;

/// The group of the kinds, and of the labels and finalizers of the operator.
pub const GROUP: &str = "forebay.io";
/// The version of the kinds.
pub const VERSION: &str = "v1alpha1";

/// As whom the operator writes fields of objects; with the group, the finalizer by which an object waits for what goes
/// with it.
pub(crate) const MANAGER: &str = "forebay-operator";

/// An origin at a path of the namespace.
pub type ForebayMount = Object<MountSpec, MountStatus>;
/// Files to be loaded.
pub type ForebayLoad = Object<LoadSpec, LoadStatus>;
/// How what lies below a path is cached.
pub type ForebayPolicy = Object<PolicySpec, PolicyStatus>;

/// How the API server calls objects of `kind`.
#[must_use]
pub fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

/// What a mount is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountSpec {
    /// Where in the namespace of Forebay.
    pub path: String,
    /// The origin's URL, without credentials.
    pub origin: String,
    /// Options of the origin. Credentials are references: `env:NAME`, `file:/PATH` or `role`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Which clients may use it; without, all whose role may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<MountAcl>,
}

/// How a mount stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountStatus {
    /// The generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    pub conditions: Vec<Condition>,
}

/// What to load, and how: as `forebay job load` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadSpec {
    /// A file, a directory with all below it, or an index file; a path of the namespace of Forebay.
    pub path: String,
    /// `path` is a text file with a path on each line.
    pub index_file: bool,
    /// At most so many bytes a second from the origin, `500MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// Start to load before everything is listed.
    pub partial_listing: bool,
    /// Load again what the final check finds missing.
    pub verify: bool,
    /// Load listings and attributes, no bytes.
    pub metadata_only: bool,
    /// Ask first, and pass over files that are cached whole.
    pub skip_if_exists: bool,
    /// How many workers shall hold each block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// Have every mount that keeps files whole keep these, too.
    pub to_clients: bool,
    /// The object goes so long after its job has ended, in seconds; never if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
}

/// How far a load is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadStatus {
    /// The generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The job's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The hash of what the job was asked to do. Another one is another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// `WAITING`, `RUNNING`, `SUCCEEDED`, `FAILED` or `STOPPED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of what the job does now, 0 to 100; absent while the total is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Files that are loaded.
    pub files: u64,
    /// Bytes that are loaded.
    pub bytes: u64,
    /// All files; absent until they are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_files: Option<u64>,
    /// All bytes; absent until they are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Over the last 15 seconds.
    pub bytes_per_second: u64,
    /// Files that could not be loaded.
    pub failed_files: u64,
    /// Bytes that were loaded and evicted again meanwhile.
    pub evicted_bytes: u64,
    /// What a person should know, a sentence each.
    pub warnings: Vec<String>,
    /// When the job was first run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// `Accepted`, `Complete` and `Failed`.
    pub conditions: Vec<Condition>,
}

/// What is wished for below a path. What is left out is decided by the policy of the next shorter path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// A path of the namespace of Forebay.
    pub path: String,
    /// How long attributes and listings are believed, `5m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_ttl: Option<String>,
    /// Cached blocks stay until they are freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<bool>,
    /// Whose blocks are evicted first: `low`, `normal`, `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Most bytes that each worker caches of it, `100GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Bytes are served from the origin and never kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_cache: Option<bool>,
    /// What is there never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// How many workers hold each block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

/// How a policy stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The generation that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The policy as the coordinator took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<PolicySpec>,
    /// `Ready`.
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use yaml_rust2::{Yaml, YamlLoader};

    use super::*;

    fn definitions() -> Vec<Yaml> {
        YamlLoader::load_from_str(&crate::crds()).unwrap()
    }

    /// The properties of `part` of the kind.
    fn defined(kind: &str, part: &str) -> BTreeSet<String> {
        let definitions = definitions();
        let of_kind = |definition: &&Yaml| definition["spec"]["names"]["kind"].as_str() == Some(kind);
        let definition = definitions.iter().find(of_kind).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]["properties"];
        schema.as_hash().unwrap().keys().map(|key| key.as_str().unwrap().to_owned()).collect()
    }

    fn written<T: Serialize>(value: &T) -> BTreeSet<String> {
        serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    fn read<T: for<'a> Deserialize<'a>>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_definitions_have_the_fields_of_the_kinds_and_no_others() {
        let policy = json!({
            "path": "/s3", "metadataTtl": "5m", "pin": true, "priority": "high", "quota": "1GiB", "skipCache": false,
            "immutable": true, "replicas": 2,
        });
        let mount: MountSpec = read(json!({ "path": "/s3", "origin": "s3://b", "acl": { "read": ["a"] } }));
        let load: LoadSpec = read(json!({
            "path": "/s3", "bandwidth": "1MiB", "replicas": 2, "ttlSecondsAfterFinished": 60,
        }));
        let load_status = LoadStatus {
            observed_generation: Some(1),
            job: Some(String::new()),
            content_hash: Some(String::new()),
            state: Some(String::new()),
            percent: Some(1),
            total_files: Some(1),
            total_bytes: Some(1),
            start_time: Some(String::new()),
            completion_time: Some(String::new()),
            ..LoadStatus::default()
        };
        let policy: PolicySpec = read(policy);
        let policy_status =
            PolicyStatus { observed_generation: Some(1), applied: Some(policy.clone()), conditions: Vec::new() };
        let mount_status = MountStatus { observed_generation: Some(1), conditions: Vec::new() };
        for (kind, part, fields) in [
            ("ForebayMount", "spec", written(&mount)),
            ("ForebayMount", "status", written(&mount_status)),
            ("ForebayLoad", "spec", written(&load)),
            ("ForebayLoad", "status", written(&load_status)),
            ("ForebayPolicy", "spec", written(&policy)),
            ("ForebayPolicy", "status", written(&policy_status)),
        ] {
            assert_eq!(defined(kind, part), fields, "{kind}.{part}");
        }
    }

    #[test]
    fn the_definitions_are_of_the_group_and_version_that_is_asked_for() {
        let definitions = definitions();
        let plurals: Vec<_> = definitions.iter().map(|one| one["spec"]["names"]["plural"].as_str().unwrap()).collect();
        assert_eq!(plurals, ["forebaymounts", "forebayloads", "forebaypolicies"]);
        for definition in &definitions {
            let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
            assert_eq!(definition["metadata"]["name"].as_str(), Some(&*format!("{plural}.{GROUP}")));
            assert_eq!(definition["spec"]["group"].as_str(), Some(GROUP));
            assert_eq!(definition["spec"]["versions"][0]["name"].as_str(), Some(VERSION));
            assert_eq!(definition["spec"]["scope"].as_str(), Some("Namespaced"));
            let is_there = |field: &str| !definition["spec"]["versions"][0]["subresources"][field].is_badvalue();
            assert!(is_there("status"), "{plural}: a status that who may change the object cannot");
        }
    }

    #[test]
    fn a_status_of_another_release_is_read() {
        let status: LoadStatus = read(json!({ "job": "load-1", "later": 1 }));
        assert_eq!(status.job.as_deref(), Some("load-1"));
        assert_eq!(read::<MountStatus>(json!({})), MountStatus::default());
    }
}
