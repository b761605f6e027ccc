//! What each operation asks of whoever wants it. This is the whole table: an operation that is not in it does not compile.

use forebay_types::{Failure, FailureKind, Permission, Role};

use crate::op::{Flags, Op};

impl Op {
    /// What a caller must be permitted who asks for it with these `flags`; `None`: nothing but to be admitted.
    #[must_use]
    pub const fn permission(self, flags: Flags) -> Option<Permission> {
        match self {
            Self::Ping | Self::Paths => None,
            // All names are asked for again, by everybody: a client needs it to see its own changes.
            Self::Refresh if flags.contains(Flags::BELOW) => Some(Permission::Write),
            // The worker reads and checks the whole block, which jobs ask for.
            Self::Coverage if flags.contains(Flags::SCRUB) => Some(Permission::Manage),
            // What a fill brings, and a refresh looks at, the caller could have by reading.
            Self::Read | Self::Fill | Self::Stat | Self::List | Self::Coverage | Self::Refresh | Self::StatRead => {
                Some(Permission::Read)
            }
            // So is where a part of a file begins.
            Self::Part => Some(Permission::Read),
            // Who may not read has nothing to ask over such a connection.
            Self::Admit => Some(Permission::Read),
            Self::Change | Self::Upload => Some(Permission::Write),
            Self::Free => Some(Permission::Manage),
            Self::Adopt => Some(Permission::Replicate),
            // How much room there is where the caller may read, which a mount shows.
            Self::Stats if flags.contains(Flags::BELOW) => Some(Permission::Read),
            Self::Stats => Some(Permission::Observe),
        }
    }

    /// Why somebody of this role may not ask for it with these `flags`, if that is so.
    #[must_use]
    pub fn refusal(self, flags: Flags, role: Role) -> Option<Failure> {
        let permission = self.permission(flags).filter(|permission| !role.may(*permission))?;
        let message = format!(
            "a {role} may not {permission}, which `{}` asks for; `forebay key issue --role` makes a certificate for another role",
            self.variant(flags)
        );
        Some(Failure::new(FailureKind::PermissionDenied, message))
    }

    /// Its name, or what it is called with those of `flags` that make it ask for another permission.
    fn variant(self, flags: Flags) -> &'static str {
        match self {
            Self::Refresh if flags.contains(Flags::BELOW) => "refresh below",
            Self::Coverage if flags.contains(Flags::SCRUB) => "coverage checked",
            Self::Stats if flags.contains(Flags::BELOW) => "stats below",
            _ => self.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_this_table() {
        let page = include_str!("../../../docs/CLUSTER.md");
        let heads = Role::ALL.map(|role| format!(" {role} |")).concat();
        assert!(page.contains(&format!("| operation | asks for |{heads}")), "{heads}");
        let plain = (0..=u8::MAX).filter_map(Op::from_wire).map(|op| (op, Flags::default()));
        let variants = [(Op::Refresh, Flags::BELOW), (Op::Coverage, Flags::SCRUB), (Op::Stats, Flags::BELOW)];
        for (op, flags) in plain.chain(variants) {
            let permission = op.permission(flags);
            let asks_for = permission.map_or("admission", Permission::as_str);
            let may = |role: Role| permission.is_none_or(|permission| role.may(permission));
            let cells = Role::ALL.map(|role| if may(role) { " yes |" } else { " |" }).concat();
            let row = format!("| `{}` | {asks_for} |{cells}", op.variant(flags));
            assert!(page.contains(&row), "docs/CLUSTER.md lacks {row}");
        }
    }

    #[test]
    fn a_reader_changes_frees_and_plants_nothing() {
        let may_with = |role: Role, op: Op, flags| op.permission(flags).is_none_or(|permission| role.may(permission));
        let may = |role, op| may_with(role, op, Flags::default());
        for op in [Op::Change, Op::Upload, Op::Free, Op::Adopt, Op::Stats] {
            assert!(!may(Role::Reader, op), "{op:?}");
        }
        for op in [Op::Ping, Op::Paths, Op::Read, Op::Stat, Op::List] {
            assert!(may(Role::Reader, op), "{op:?}");
        }
        assert!(may(Role::Writer, Op::Upload) && !may(Role::Worker, Op::Upload));
        assert!(may(Role::Worker, Op::Adopt) && !may(Role::Admin, Op::Adopt));
        assert!(may(Role::Coordinator, Op::Free) && !may(Role::Metrics, Op::Read));
        assert!(may(Role::Reader, Op::Admit) && !may(Role::Metrics, Op::Admit));
        let (refresh, coverage) = ((Op::Refresh, Flags::BELOW), (Op::Coverage, Flags::SCRUB));
        for (op, flags) in [refresh, coverage] {
            assert!(may(Role::Reader, op) && !may_with(Role::Reader, op, flags), "{op:?}");
            assert!(may_with(Role::Reader, op, Flags::REVALIDATE), "{op:?}");
        }
        for role in [Role::Reader, Role::Writer] {
            assert!(may_with(role, Op::Stats, Flags::BELOW) && !may(role, Op::Stats), "{role}");
        }
        assert!(!may_with(Role::Metrics, Op::Stats, Flags::BELOW) && may(Role::Metrics, Op::Stats));
        assert!(may_with(Role::Writer, refresh.0, refresh.1) && may_with(Role::Coordinator, coverage.0, coverage.1));
    }
}
