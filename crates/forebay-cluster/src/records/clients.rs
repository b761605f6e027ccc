//! Mounts that keep files whole for their machine, and what jobs ask of them.
//!
//! A mount is no member: no process can call it. It says that it is there, watches for requests to materialise files,
//! and reports. What it writes is under a lease of its own, so that what a mount that died had promised is promised no
//! more.

use serde::{Deserialize, Serialize};

/// Under which key prefix the mounts that take requests are: `clients/NAME`, the name as one segment.
pub const CLIENTS: &str = "clients/";
/// Under which key prefix requests to materialise files are: `materialise/JOB`.
pub const MATERIALISE_REQUESTS: &str = "materialise/";
/// Under which key prefix mounts report: `deliveries/JOB/NAME`.
pub const DELIVERIES: &str = "deliveries/";

/// A mount that takes requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// Which one: machine and mountpoint.
    pub name: String,
    /// The room that it has for whole files, in bytes.
    pub capacity_bytes: u64,
}

/// What every mount is to keep whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaterialiseRecord {
    /// The job that it is for.
    pub job: String,
    /// A file, or a directory with all below it; a path of the namespace.
    pub path: String,
}

/// How far a mount is with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryRecord {
    /// Files that it has found so far.
    pub files: u64,
    /// Files that it has whole.
    pub ready: u64,
    /// Their bytes.
    pub ready_bytes: u64,
    /// Files that it has no room for.
    pub no_room: u64,
    /// Files that it could not have for another reason.
    pub failed: u64,
    /// The first of both, with the reason.
    pub first: Vec<(String, String)>,
    /// Why it gave up, if it did.
    pub error: Option<String>,
    /// Whether nothing more will come.
    pub ended: bool,
}

macro_rules! kept {
    ($record:ty) => {
        impl $record {
            /// As it is kept.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                // It has only names as keys and no value that refuses.
                serde_json::to_vec(self).unwrap_or_default()
            }

            /// The reverse.
            ///
            /// # Errors
            /// What is wrong with it.
            pub fn decode(value: &[u8]) -> Result<Self, String> {
                serde_json::from_slice(value).map_err(|error| error.to_string())
            }
        }
    };
}

kept!(ClientRecord);
kept!(MaterialiseRecord);
kept!(DeliveryRecord);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_what_they_write_and_pass_over_what_they_do_not_know() {
        let client = ClientRecord { name: "node1:/mnt".into(), capacity_bytes: 7 };
        assert_eq!(ClientRecord::decode(&client.encode()), Ok(client));
        let request = MaterialiseRecord { job: "load-1".into(), path: "/a".into() };
        assert_eq!(MaterialiseRecord::decode(&request.encode()), Ok(request));
        let delivery = DeliveryRecord::decode(br#"{"ready":2,"ended":true,"colour":"blue"}"#).unwrap();
        assert_eq!((delivery.ready, delivery.ended, delivery.error), (2, true, None));
        assert!(DeliveryRecord::decode(b"[").is_err());
    }
}
