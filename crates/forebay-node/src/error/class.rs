//! The class of each error of the parts: the exit code for scripts, and where its remedy begins.

use std::error::Error;
use std::io;

use forebay_coordinator::{ApiError, CoordinatorError};
use forebay_fuse::MountError;
use forebay_materialise::LocalError;
use forebay_memory::PoolError;
use forebay_origin::OriginError;
use forebay_shm::WindowError;
use forebay_staging::StagingError;
use forebay_state::StateError;
use forebay_store::StoreError;
use forebay_tcp::TcpError;
use forebay_worker::NamespaceError;

use super::exit::Exit;

/// How an error is shown to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorClass {
    /// The code to end with.
    pub(super) exit: Exit,
    /// What stands between what failed and what to do; the last one counts.
    pub(super) separator: &'static str,
}

/// The class of an error of one of the parts; `None` for other errors.
pub(super) fn of(cause: &(dyn Error + 'static)) -> Option<ErrorClass> {
    if let Some(error) = cause.downcast_ref() {
        return Some(of_mount(error));
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(of_api(error));
    }
    if let Some(error) = cause.downcast_ref::<StateError>() {
        let separator = if matches!(error, StateError::NotOurs(_)) { "; " } else { ": " };
        return Some(ErrorClass { exit: of_state(error), separator });
    }
    if let Some(CoordinatorError::Listen { .. }) = cause.downcast_ref::<CoordinatorError>() {
        return Some(ErrorClass { exit: Exit::Busy, separator: ": " });
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(of_staging(error));
    }
    if let Some(WindowError::NotOurs(_)) = cause.downcast_ref::<WindowError>() {
        return Some(ErrorClass { exit: Exit::Denied, separator: "; " });
    }
    let store = cause.downcast_ref().map(of_store);
    let tcp = || cause.downcast_ref().map(of_tcp);
    let origin = || cause.downcast_ref().map(of_origin);
    let settings = || (cause.is::<NamespaceError>() || cause.is::<PoolError>()).then_some(Exit::Usage);
    let exit = store.or_else(tcp).or_else(origin).or_else(settings)?;
    Some(ErrorClass { exit, separator: "; " })
}

fn of_mount(error: &MountError) -> ErrorClass {
    let exit = match error {
        MountError::Staging(error) => return of_staging(error),
        MountError::Local(error) => return of_local(error),
        MountError::NoMountpoint(_) | MountError::NotMounted(_) => Exit::NotFound,
        MountError::NotADirectory(_) | MountError::NotForebay { .. } => Exit::Usage,
        MountError::AlreadyMounted { .. } | MountError::Busy(_) => Exit::Busy,
        MountError::NoPermission { .. } | MountError::AllowOther => Exit::Denied,
        MountError::NoAnswer(_) | MountError::NotTaken(_) => Exit::Unavailable,
        _ => Exit::Failed,
    };
    let separator = match error {
        MountError::NoPermission { .. }
        | MountError::Fusermount { .. }
        | MountError::NoUring(_)
        | MountError::NotKept(_)
        | MountError::NotTaken(_)
        | MountError::Session { .. }
        | MountError::Io { .. } => "; ",
        _ => ": ",
    };
    ErrorClass { exit, separator }
}

fn of_local(error: &LocalError) -> ErrorClass {
    let exit = match error {
        LocalError::InUse(_) => Exit::Busy,
        LocalError::NotOurs { .. } => Exit::Denied,
        LocalError::NoSize => Exit::Usage,
        LocalError::Io { cause, .. } => match cause.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::PermissionDenied => Exit::Denied,
            _ => Exit::Failed,
        },
    };
    ErrorClass { exit, separator: if matches!(error, LocalError::InUse(_)) { ": " } else { "; " } }
}

fn of_api(error: &ApiError) -> ErrorClass {
    let exit = match error {
        error if error.is_unavailable() => Exit::Unavailable,
        error if error.is_not_found() => Exit::NotFound,
        ApiError::Refused { status: 409, .. } => Exit::Busy,
        ApiError::Denied { .. } | ApiError::Refused { status: 401 | 403, .. } => Exit::Denied,
        ApiError::Address(_) | ApiError::Refused { status: 400..500, .. } => Exit::Usage,
        _ => Exit::Failed,
    };
    ErrorClass { exit, separator: ": " }
}

fn of_state(error: &StateError) -> Exit {
    match error {
        error if error.is_unavailable() => Exit::Unavailable,
        StateError::InUse { .. } => Exit::Busy,
        StateError::Refused { .. } | StateError::NotOurs(_) => Exit::Denied,
        StateError::Options { .. } => Exit::Usage,
        StateError::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => Exit::Denied,
        _ => Exit::Failed,
    }
}

fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::InUse { .. } => Exit::Busy,
        StoreError::Silent { .. } => Exit::Unavailable,
        StoreError::NoParent { .. } => Exit::NotFound,
        StoreError::NotOurs(_) => Exit::Denied,
        StoreError::Io { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => Exit::Denied,
        StoreError::Io { .. } | StoreError::NoSpace { .. } | StoreError::NoUring { .. } => Exit::Failed,
        _ => Exit::Usage,
    }
}

fn of_staging(error: &StagingError) -> ErrorClass {
    match error {
        StagingError::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => {
            ErrorClass { exit: Exit::Denied, separator: "; " }
        }
        StagingError::NotOurs(_) => ErrorClass { exit: Exit::Denied, separator: "; " },
        StagingError::Io { .. } => ErrorClass { exit: Exit::Failed, separator: "; " },
        StagingError::PartSize(_) | StagingError::Memory(_) | StagingError::Size { .. } => {
            ErrorClass { exit: Exit::Usage, separator: ": " }
        }
    }
}

fn of_tcp(error: &TcpError) -> Exit {
    match error {
        TcpError::AddressInUse { .. } => Exit::Busy,
        TcpError::Listen { .. } | TcpError::Threads(_) => Exit::Failed,
    }
}

fn of_origin(error: &OriginError) -> Exit {
    match error {
        OriginError::Directory { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::PermissionDenied => Exit::Denied,
            _ => Exit::Usage,
        },
        _ => Exit::Usage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::UserError;

    fn user_error(error: impl Error + Send + Sync + 'static) -> (Exit, String, Option<String>) {
        let UserError { exit, what, next } = UserError::from(&anyhow::Error::new(error));
        (exit, what, next)
    }

    #[test]
    fn a_mount_that_cannot_be_served_as_it_was_asked_for_says_what_to_do() {
        let (exit, what, next) = user_error(MountError::NoUring("io_uring is forbidden here".into()));
        assert_eq!((exit, &*what), (Exit::Failed, "fuse.io is uring, but io_uring is forbidden here"));
        assert!(next.unwrap().contains("fuse.io = \"auto\""));
    }

    #[test]
    fn a_place_for_materialised_files_that_will_not_do_says_what_to_do() {
        let (exit, what, next) = user_error(MountError::Local(LocalError::InUse("/var/local".into())));
        assert_eq!((exit, &*what), (Exit::Busy, "/var/local is in use by another mount"));
        assert!(next.unwrap().contains("client.local.dir"));
        let not_ours = LocalError::NotOurs { path: "/tmp".into(), why: "others may write to it".into() };
        let (exit, _, next) = user_error(MountError::Local(not_ours));
        assert!(exit == Exit::Denied && next.unwrap().contains("chmod 0700"));
        let cause = io::Error::from(io::ErrorKind::PermissionDenied);
        let refused = LocalError::Io { action: "open", path: "/var/local".into(), cause };
        assert_eq!(user_error(MountError::Local(refused)).0, Exit::Denied);
        assert_eq!(user_error(MountError::Local(LocalError::NoSize)).0, Exit::Usage);
    }

    #[test]
    fn what_is_not_this_users_alone_is_denied_and_says_how_to_change_that() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        let (exit, what, next) = user_error(forebay_staging::staged(&link).unwrap_err());
        assert!(exit == Exit::Denied && what.ends_with("it is a symbolic link"), "{what}");
        assert!(next.unwrap().contains("readlink -f"));
    }
}
