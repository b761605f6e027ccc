//! The options of a mount that a hand-over cannot change: the kernel was told of them, or has cached what came of them for as long as
//! it likes.

use serde::{Deserialize, Serialize};

/// What must be the same before and after a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Where the mount is.
    pub mountpoint: String,
    /// What is shown there: an origin, or a cluster.
    pub namespace: String,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Whether other users may use it.
    pub allow_other: bool,
    /// Owner of every file.
    pub uid: u32,
    /// Group of every file.
    pub gid: u32,
    /// Permissions of every file.
    pub file_mode: u16,
    /// Permissions of every directory.
    pub directory_mode: u16,
    /// The largest read, in bytes.
    pub max_read: u64,
    /// Read-ahead and asynchronous direct requests that may be under way.
    pub max_background: u16,
    /// Whether files may be passed through.
    pub passthrough: bool,
}

/// An option that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{name} is {was}, and would be {now}")]
pub struct Difference {
    /// Its key in the configuration, or what it is.
    pub name: String,
    /// What it is in the daemon that runs.
    pub was: String,
    /// What it would be.
    pub now: String,
}

impl Identity {
    /// What would change if `next` took over.
    #[must_use]
    pub fn differences(&self, next: &Self) -> Vec<Difference> {
        let octal = |mode: u16| format!("{mode:#05o}");
        let compared = [
            ("the mountpoint", self.mountpoint.clone(), next.mountpoint.clone()),
            ("what is mounted", self.namespace.clone(), next.namespace.clone()),
            ("--read-only", self.read_only.to_string(), next.read_only.to_string()),
            ("fuse.allow_other", self.allow_other.to_string(), next.allow_other.to_string()),
            ("posix.uid", self.uid.to_string(), next.uid.to_string()),
            ("posix.gid", self.gid.to_string(), next.gid.to_string()),
            ("posix.file_mode", octal(self.file_mode), octal(next.file_mode)),
            ("posix.dir_mode", octal(self.directory_mode), octal(next.directory_mode)),
            ("fuse.max_read", self.max_read.to_string(), next.max_read.to_string()),
            ("fuse.max_background", self.max_background.to_string(), next.max_background.to_string()),
            ("whether client.local.size is set", self.passthrough.to_string(), next.passthrough.to_string()),
        ];
        let changed = compared.into_iter().filter(|(_, was, now)| was != now);
        changed.map(|(name, was, now)| Difference { name: name.to_owned(), was, now }).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn identity() -> Identity {
        Identity {
            mountpoint: "/mnt/data".to_owned(),
            namespace: "s3://bucket".to_owned(),
            read_only: false,
            allow_other: true,
            uid: 0,
            gid: 0,
            file_mode: 0o644,
            directory_mode: 0o755,
            max_read: 512 << 10,
            max_background: 256,
            passthrough: false,
        }
    }

    #[test]
    fn each_option_that_differs_is_named_with_what_it_was_and_would_be() {
        let was = identity();
        assert_eq!(was.differences(&was), []);
        let next = Identity { file_mode: 0o600, namespace: "s3://other".to_owned(), ..identity() };
        let told: Vec<_> = was.differences(&next).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            ["what is mounted is s3://bucket, and would be s3://other", "posix.file_mode is 0o644, and would be 0o600"]
        );
    }
}
