//! A mount as people write it and are told of it: in a coordinator's configuration, and through the REST interface.

use std::collections::BTreeMap;

use forebay_cluster::records::mounts::MountRecord;
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
}

impl From<MountRecord> for Mount {
    fn from(MountRecord { path, origin, options }: MountRecord) -> Self {
        Self { path, origin, options }
    }
}
