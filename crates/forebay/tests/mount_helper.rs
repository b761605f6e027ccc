//! `mount-helper` as mount(8) calls it, through `mount.forebay` as packages have it.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Fixture, Ran, eventually, forebay, is_mounted, ran, succeed};

/// `mount.forebay` of the packages, with the program under test in the place of the installed one.
fn mount(fixture: &Fixture, source: &str, options: &str) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/mount.forebay");
    let text = std::fs::read_to_string(script).unwrap().replace("/usr/bin/forebay", env!("CARGO_BIN_EXE_forebay"));
    let own = format!("{},{}", fixture.log_setting(), fixture.staging_setting());
    let mut command = Command::new("sh");
    // Without the settings of whoever runs the tests.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.args(["-c", &text, "mount.forebay", source]).arg(fixture.mountpoint());
    ran(command.args(["-o", &format!("{options},{own}")]).output().unwrap())
}

#[test]
fn a_line_of_fstab_mounts_in_the_background_and_umount_ends_it() {
    let fixture = Fixture::new();
    let options = "rw,nosuid,nofail,_netdev,x-systemd.automount,memory=64MiB";
    let ran = mount(&fixture, &format!("file://{}", fixture.source().display()), options);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", fixture.log());
    fixture.assert_mounted_files_are_right();
    std::fs::write(fixture.mountpoint().join("new"), b"x").unwrap();
    assert_eq!(std::fs::read(fixture.source().join("new")).unwrap(), b"x");
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    eventually("the mount is gone", || !is_mounted(&fixture.mountpoint()));
}

#[test]
fn workers_are_mounted_read_only_with_variables_of_a_file() {
    let mut fixture = Fixture::new();
    let (_, address) = fixture.worker(&[]);
    let variables = fixture.path("mount.env");
    std::fs::write(&variables, format!("# where\nFOREBAY_CLUSTER_WORKERS=\"{address}\"\n")).unwrap();
    let ran = mount(&fixture, "forebay", &format!("ro,environment={}", variables.display()));
    assert_eq!(ran.code, 0, "{ran:?}\n{}", fixture.log());
    fixture.assert_mounted_files_are_right();
    let refused = std::fs::write(fixture.mountpoint().join("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
}

/// 1 is for what was asked wrongly, 32 for a mount that failed: mount(8).
#[test]
fn mount_gets_the_exit_codes_that_it_knows() {
    let fixture = Fixture::new();
    let wrong = mount(&fixture, "s3://bucket", "noexec");
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.err.contains("`noexec`") && wrong.err.contains("next: "), "{wrong:?}");
    std::fs::remove_dir(fixture.mountpoint()).unwrap();
    let failed = mount(&fixture, &format!("file://{}", fixture.source().display()), "memory=64MiB");
    assert_eq!(failed.code, 32, "{failed:?}");
    assert!(!is_mounted(&fixture.mountpoint()));
}

#[test]
fn only_checking_mounts_nothing_and_says_what_would_be_run() {
    let fixture = Fixture::new();
    let mut command = forebay();
    command.args(["mount-helper", "s3://bucket/a", "/mnt/data", "-f", "-v", "-o", "ro,memory=8GiB"]);
    let ran = ran(command.output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("forebay up --read-only --memory=8GiB -- s3://bucket/a /mnt/data"), "{ran:?}");
    assert!(!is_mounted(&fixture.mountpoint()));
}
