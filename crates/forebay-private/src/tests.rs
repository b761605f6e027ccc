use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode};

use super::*;

/// The user of those who are nobody in particular.
const STRANGER: u32 = 65_534;

/// Past the harness, which shows only what tests print that fail.
fn skipped(reason: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "skipped: {reason}");
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives it to another user. False, said, where we may not.
fn given_away(path: &Path) -> bool {
    let given = std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER));
    if let Err(error) = &given {
        skipped(format_args!("cannot give a file to another user: {error}"));
    }
    given.is_ok()
}

fn is_slab(name: &str) -> bool {
    name == "slab"
}

fn not_ours<T: std::fmt::Debug>(result: Result<T, PrivateError>) -> NotOurs {
    match result {
        Err(PrivateError::NotOurs(not_ours)) => not_ours,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_is_made_for_its_user_alone_and_so_are_its_files() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("cache");
    assert!(PrivateDirectory::open(&path, is_slab).unwrap_err().is_not_found());
    let directory = PrivateDirectory::make(&path, is_slab).unwrap();
    assert_eq!((mode(&path), directory.path()), (0o700, &*path));
    let mut file = directory.file("slab", Opening::New).unwrap();
    file.write_all(b"bytes").unwrap();
    assert_eq!(mode(&path.join("slab")), 0o600);
    directory.rename("slab", "other").unwrap();
    assert_eq!(directory.names().unwrap(), ["other"]);
    directory.remove("other").unwrap();
    assert!(directory.file("other", Opening::Existing).unwrap_err().is_not_found());

    let deep = parent.path().join("a/b");
    assert!(PrivateDirectory::make(&deep, is_slab).unwrap_err().is_not_found());
    PrivateDirectory::make_all(&deep, is_slab).unwrap();
    assert_eq!((mode(&deep), mode(&parent.path().join("a"))), (0o700, 0o700));
}

#[test]
fn what_an_earlier_version_made_for_all_to_read_is_closed_to_them() {
    let parent = tempfile::tempdir().unwrap();
    let (path, slab) = (parent.path().join("cache"), parent.path().join("cache/slab"));
    std::fs::create_dir(&path).unwrap();
    std::fs::create_dir(path.join("lost+found")).unwrap();
    std::fs::write(&slab, "bytes").unwrap();
    for wide in [0o755, 0o775, 0o1777, 0o701] {
        chmod(&path, wide);
        chmod(&slab, 0o664);
        let directory = PrivateDirectory::make(&path, is_slab).unwrap();
        let mut bytes = String::new();
        directory.file("slab", Opening::ReadOnly).unwrap().read_to_string(&mut bytes).unwrap();
        assert_eq!((mode(&path), mode(&slab), &*bytes), (0o700, 0o600, "bytes"), "{wide:o}");
    }
}

#[test]
fn a_directory_that_others_use_is_not_taken_from_them() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("theirs"), "").unwrap();
    chmod(directory.path(), 0o700);
    PrivateDirectory::open(directory.path(), is_slab).unwrap();
    for wide in [0o755, 0o1777] {
        chmod(directory.path(), wide);
        let refused = not_ours(PrivateDirectory::make(directory.path(), is_slab));
        assert!(refused.what.contains("`theirs`") && refused.remedy.contains("chmod 0700"), "{refused}");
        assert_eq!(mode(directory.path()), wide);
    }
}

#[test]
fn a_link_is_no_directory_and_no_file() {
    let parent = tempfile::tempdir().unwrap();
    let (theirs, link) = (parent.path().join("theirs"), parent.path().join("link"));
    std::fs::create_dir(&theirs).unwrap();
    symlink(&theirs, &link).unwrap();
    for path in [link.clone(), link.join("")] {
        assert!(not_ours(PrivateDirectory::make(&path, is_slab)).what.contains("symbolic link"));
        assert!(not_ours(PrivateDirectory::make_all(&path, is_slab)).remedy.contains("readlink -f"));
    }
    symlink(parent.path().join("missing"), parent.path().join("dangling")).unwrap();
    not_ours(PrivateDirectory::make(&parent.path().join("dangling"), is_slab));
    assert!(!parent.path().join("missing").exists());

    let (target, planted) = (parent.path().join("target"), theirs.join("slab"));
    std::fs::write(&target, "precious").unwrap();
    symlink(&target, &planted).unwrap();
    let directory = PrivateDirectory::make(&theirs, is_slab).unwrap();
    for opening in [Opening::Existing, Opening::ReadOnly, Opening::Direct, Opening::OrMade, Opening::Emptied] {
        not_ours(directory.file("slab", opening));
        not_ours(open_file(&planted, opening));
    }
    let exists = directory.file("slab", Opening::New).map(drop).map_err(io::Error::from);
    assert_eq!(exists.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!((std::fs::read(&target).unwrap(), mode(&target) & 0o600), (b"precious".to_vec(), 0o600));
}

#[test]
fn what_is_no_regular_file_or_has_a_second_name_is_refused_and_not_waited_for() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for name in ["pipe", "directory", "socket"] {
        for opening in [Opening::Existing, Opening::ReadOnly, Opening::Emptied] {
            assert!(not_ours(open_file(&at(name), opening)).what.contains("no regular file"), "{name} {opening:?}");
        }
    }
    std::fs::write(at("file"), "precious").unwrap();
    std::fs::hard_link(at("file"), at("slab")).unwrap();
    let refused = not_ours(open_file(&at("slab"), Opening::Emptied));
    assert!(refused.what.contains("2 names") && refused.remedy.contains("-samefile"), "{refused}");
    assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
    std::fs::remove_file(at("slab")).unwrap();
    open_file(&at("file"), Opening::Emptied).unwrap();
    assert_eq!(std::fs::read(at("file")).unwrap(), b"");
}

#[test]
fn what_belongs_to_another_user_is_refused_also_by_root() {
    let parent = tempfile::tempdir().unwrap();
    let (theirs, slab) = (parent.path().join("theirs"), parent.path().join("slab"));
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(&slab, "poison").unwrap();
    if !given_away(&theirs) || !given_away(&slab) {
        return;
    }
    chmod(&theirs, 0o777);
    let refused = not_ours(PrivateDirectory::make(&theirs, is_slab));
    assert!(refused.what.contains("user 65534") && refused.remedy.contains("chown -R 0 "), "{refused}");
    assert_eq!(mode(&theirs), 0o777, "it is left as it is");
    not_ours(PrivateDirectory::look(&theirs));
    let refused = not_ours(open_file(&slab, Opening::Emptied));
    assert!(refused.remedy.contains("`chown 0 "), "{refused}");
    assert_eq!(std::fs::read(&slab).unwrap(), b"poison");
    let denied = io::Error::from(PrivateError::from(refused));
    assert!(denied.kind() == io::ErrorKind::PermissionDenied && denied.to_string().contains("chown"), "{denied}");
}

/// Whether another user gets anything out of `program` with `path`; `None`, said, where we may not become one.
fn gets_in(program: &str, path: &Path) -> Option<bool> {
    let mut command = Command::new(program);
    command.arg(path).uid(STRANGER).gid(STRANGER).stdout(Stdio::piped()).stderr(Stdio::null());
    match command.output() {
        Ok(output) => Some(output.status.success() && !output.stdout.is_empty()),
        Err(error) => {
            skipped(format_args!("cannot run `{program}` as another user: {error}"));
            None
        }
    }
}

#[test]
fn another_user_can_neither_list_nor_read() {
    let parent = tempfile::tempdir().unwrap();
    // So that it is our directory that keeps them out.
    chmod(parent.path(), 0o755);
    let path = parent.path().join("cache");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("slab"), "bytes").unwrap();
    chmod(&path, 0o755);
    chmod(&path.join("slab"), 0o644);
    let Some(true) = gets_in("cat", &path.join("slab")) else {
        return skipped(format_args!("nobody else could read it before either"));
    };
    let directory = PrivateDirectory::make(&path, is_slab).unwrap();
    let file = directory.file("slab", Opening::Existing).unwrap();
    assert_eq!((gets_in("ls", &path), gets_in("cat", &path.join("slab"))), (Some(false), Some(false)));
    // Nor if they come to the directory another way.
    chmod(&path, 0o755);
    assert_eq!((gets_in("ls", &path), gets_in("cat", &path.join("slab"))), (Some(true), Some(false)));
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"bytes");
}

#[test]
fn an_open_file_waits_for_its_bytes_as_any_other_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for opening in [Opening::New, Opening::Existing, Opening::ReadOnly, Opening::OrMade, Opening::Emptied] {
        let flags = rustix::fs::fcntl_getfl(open_file(&path, opening).unwrap()).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{opening:?}: {flags:?}");
    }
}
