//! What each operation asks of whoever wants it. This is the whole table: an operation that is not in it does not compile.

use forebay_types::{Failure, FailureKind, Permission, Role};

use crate::traits::Op;

impl Op {
    /// What a caller must be permitted; `None`: nothing but to be admitted.
    #[must_use]
    pub const fn permission(self) -> Option<Permission> {
        match self {
            Self::Ping | Self::Paths => None,
            // What a fill brings, and a refresh looks at, the caller could have by reading.
            Self::Read | Self::Fill | Self::Stat | Self::List | Self::Coverage | Self::Refresh | Self::StatRead => {
                Some(Permission::Read)
            }
            // Who may not read has nothing to ask over such a connection.
            Self::Admit => Some(Permission::Read),
            Self::Change | Self::Upload => Some(Permission::Write),
            Self::Free => Some(Permission::Manage),
            Self::Adopt => Some(Permission::Replicate),
            Self::Stats => Some(Permission::Observe),
        }
    }

    /// Why somebody of this role may not ask for it, if that is so.
    #[must_use]
    pub fn refusal(self, role: Role) -> Option<Failure> {
        let permission = self.permission().filter(|permission| !role.may(*permission))?;
        let message = format!(
            "a {role} may not {permission}, which `{}` asks for; `forebay key issue --role` makes a certificate for another role",
            self.name()
        );
        Some(Failure::new(FailureKind::PermissionDenied, message))
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
        for op in (0..=u8::MAX).filter_map(Op::from_wire) {
            let permission = op.permission();
            let asks_for = permission.map_or("admission", Permission::as_str);
            let may = |role: Role| permission.is_none_or(|permission| role.may(permission));
            let cells = Role::ALL.map(|role| if may(role) { " yes |" } else { " |" }).concat();
            let row = format!("| `{}` | {asks_for} |{cells}", op.name());
            assert!(page.contains(&row), "docs/CLUSTER.md lacks {row}");
        }
    }

    #[test]
    fn a_reader_changes_frees_and_plants_nothing() {
        let may = |role: Role, op: Op| op.permission().is_none_or(|permission| role.may(permission));
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
    }
}
