//! Roles, and what each may do.

use std::fmt;
use std::str::FromStr;

/// What a process, or the user of one, is to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Reads files: a mount, a Python client, `forebay fs`.
    Reader,
    /// Reads files and changes them.
    Writer,
    /// Adds mounts, sets policies, runs jobs; and all that a writer may.
    Admin,
    /// A cache node.
    Worker,
    /// Runs jobs, and answers REST.
    Coordinator,
    /// Collects metrics.
    Metrics,
}

/// What an operation asks of the one that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// To read names, attributes and bytes.
    Read,
    /// To change files and directories.
    Write,
    /// To load, free and verify what workers hold, by jobs too, and to see the cluster: members, mounts, policies, jobs.
    Manage,
    /// To do what workers do among each other: adopt runs, tell of changes.
    Replicate,
    /// To change the cluster: mounts, policies, drains.
    Administer,
    /// To see metrics and counters, which name no file.
    Observe,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Manage, Self::Replicate, Self::Administer, Self::Observe];

    /// As messages and documents write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Manage => "manage",
            Self::Replicate => "replicate",
            Self::Administer => "administer",
            Self::Observe => "observe",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Reader, Self::Writer, Self::Admin, Self::Worker, Self::Coordinator, Self::Metrics];

    /// As names of identities, options and documents write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Admin => "admin",
            Self::Worker => "worker",
            Self::Coordinator => "coordinator",
            Self::Metrics => "metrics",
        }
    }

    /// Whether one of this role may do what asks for `permission`. This is the whole table.
    #[must_use]
    pub const fn may(self, permission: Permission) -> bool {
        use Permission::{Administer, Manage, Observe, Read, Replicate, Write};
        match self {
            Self::Reader => matches!(permission, Read),
            Self::Writer => matches!(permission, Read | Write),
            Self::Admin => matches!(permission, Read | Write | Manage | Administer | Observe),
            Self::Worker => matches!(permission, Read | Replicate | Observe),
            Self::Coordinator => matches!(permission, Read | Manage | Observe),
            Self::Metrics => matches!(permission, Observe),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much is shown of a text that names no role, in characters.
const MAX_SHOWN: usize = 64;

/// A text that names no role. It may be a stranger's, so what is shown of it is short and on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role: reader, writer, admin, worker, coordinator, metrics")]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownRole(text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_as_it_is_written() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().unwrap_err().to_string().contains("`root` is no role"));
        assert!("Reader".parse::<Role>().is_err());
    }

    #[test]
    fn who_reads_changes_nothing_and_who_measures_reads_nothing() {
        let granted = |role: Role| Permission::ALL.into_iter().filter(move |&it| role.may(it)).collect::<Vec<_>>();
        assert_eq!(granted(Role::Reader), [Permission::Read]);
        assert_eq!(granted(Role::Metrics), [Permission::Observe]);
        let who = |permission| Role::ALL.into_iter().filter(move |role| role.may(permission)).collect::<Vec<_>>();
        assert_eq!(who(Permission::Write), [Role::Writer, Role::Admin]);
        assert_eq!(who(Permission::Replicate), [Role::Worker]);
        assert_eq!(who(Permission::Administer), [Role::Admin]);
    }
}
