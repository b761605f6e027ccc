//! A mount as people write it and are told of it: in a coordinator's configuration, and through the REST interface.

use std::collections::BTreeMap;

use forebay_cluster::records::mounts::{AclRecord, MountRecord};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A path of the namespace and the origin behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Where in the namespace.
    #[schema(example = "/s3")]
    pub path: String,
    /// The origin's URL, without credentials.
    #[schema(example = "s3://bucket/prefix")]
    pub origin: String,
    /// Options of the origin. Credentials are references: `env:NAME`, `file:/PATH` or `role`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Which clients may use it; without, all whose role may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<MountAcl>,
}

/// Which clients may use a mount, by the names of their identities. One that ends in `*` stands for all that begin like
/// it, and `*` for all who prove who they are. Admins, workers and coordinators are on every list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountAcl {
    /// Those who may read.
    #[serde(default)]
    pub read: Vec<String>,
    /// Those who may read and change files.
    #[serde(default)]
    pub write: Vec<String>,
}

impl From<MountRecord> for Mount {
    fn from(MountRecord { path, origin, options, acl }: MountRecord) -> Self {
        Self { path, origin, options, acl: acl.map(|AclRecord { read, write }| MountAcl { read, write }) }
    }
}

impl From<MountAcl> for AclRecord {
    fn from(MountAcl { read, write }: MountAcl) -> Self {
        Self { read, write }
    }
}
