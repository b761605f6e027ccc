//! The commands, a file each: what it takes, and what it does.

pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod conf;
pub(crate) mod coordinator;
pub(crate) mod csi;
pub(crate) mod doctor;
pub(crate) mod etcd;
pub(crate) mod fluid;
pub(crate) mod fs;
pub(crate) mod job;
pub(crate) mod keeper;
pub(crate) mod key;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod mounts;
pub(crate) mod operator;
pub(crate) mod policy;
pub(crate) mod profile;
pub(crate) mod s3;
pub(crate) mod stats;
pub(crate) mod umount;
pub(crate) mod up;
pub(crate) mod version;
pub(crate) mod worker;
