//! The rows about materialised files.

mod support;

use forebay_doctor::facts::LocalDirectory;
use forebay_doctor::{Facts, Verdict};
use support::{config, facts, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

fn machine(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    facts.system.kernel = Some("6.9.0".to_owned());
    facts.system.may_administrate = true;
    facts.memory.total_bytes = Some(100 << 30);
    facts.local.shared_huge_pages = Some("never".to_owned());
    change(&mut facts);
    facts
}

#[test]
fn nothing_is_said_of_materialised_files_that_are_turned_off() {
    assert!(!is_there(&machine(|_| ()), &config(&["client.local.size=0"]), "fuse local"));
    assert_eq!(verdict(&machine(|_| ()), &config(&["client.local.size=1GiB"]), "fuse local"), Ok);
}

#[test]
fn where_nobody_set_anything_it_is_said_what_one_setting_would_gain() {
    let unset = config(&[]);
    assert_eq!(verdict(&machine(|_| ()), &unset, "fuse local"), Ok);
    let old = find(&machine(|facts| facts.system.kernel = Some("6.8.0".to_owned())), &unset, "fuse local");
    assert!(old.verdict == Info && old.remedy.unwrap().contains("6.9"));
    let without = find(&machine(|facts| facts.system.may_administrate = false), &unset, "fuse local");
    assert!(without.verdict == Info && without.what.contains("10 GB/s"), "{}", without.what);
    assert!(without.remedy.unwrap().contains("SYS_ADMIN"));
    let directory = config(&["client.local.dir=/mnt/a"]);
    let half = find(&machine(|_| ()), &directory, "fuse local");
    assert!(half.verdict == Warn && half.what.contains("client.local.size is not"), "{}", half.what);
}

#[test]
fn they_need_a_kernel_and_a_capability() {
    let config = config(&["client.local.size=1GiB"]);
    assert_eq!(verdict(&machine(|facts| facts.system.kernel = Some("6.8.0".to_owned())), &config, "fuse local"), Warn);
    let check = find(&machine(|facts| facts.system.may_administrate = false), &config, "fuse local");
    assert!(check.verdict == Warn && check.remedy.unwrap().contains("SYS_ADMIN"));
}

#[test]
fn memory_must_hold_them_and_the_workers_blocks() {
    let of = |settings: &[&str]| verdict(&machine(|_| ()), &config(settings), "memory local-memory");
    assert_eq!(of(&["client.local.size=50GiB"]), Ok);
    assert_eq!(of(&["client.local.size=90GiB"]), Warn);
    assert_eq!(of(&["client.local.size=101GiB"]), Fail);
    let huge = |choice: Option<&str>| {
        let facts = machine(|facts| facts.local.shared_huge_pages = choice.map(str::to_owned));
        verdict(&facts, &config(&["client.local.size=1GiB"]), "memory local-huge-pages")
    };
    assert_eq!((huge(Some("never")), huge(Some("deny")), huge(None)), (Ok, Warn, Info));
}

#[test]
fn a_directory_must_be_on_a_disk_of_this_machine() {
    let of = |change: fn(&mut LocalDirectory)| {
        let mut directory = LocalDirectory {
            path: "/mnt/a".into(),
            file_system: Some("xfs".to_owned()),
            free_bytes: Some(1 << 40),
            mode: Some(0o755),
            ..LocalDirectory::default()
        };
        change(&mut directory);
        let facts = machine(|facts| facts.local.directory = Some(directory));
        let config = config(&["client.local.size=1GiB", "client.local.dir=/mnt/a"]);
        verdict(&facts, &config, "fuse local-backend /mnt/a")
    };
    assert_eq!(of(|_| ()), Ok);
    assert_eq!(of(|directory| directory.file_system = Some("overlay".to_owned())), Fail);
    assert_eq!(of(|directory| directory.file_system = Some("nfs4".to_owned())), Warn);
    assert_eq!(of(|directory| directory.file_system = Some("fuse.sshfs".to_owned())), Warn);
    assert_eq!(of(|directory| directory.is_silent = true), Fail);
    assert_eq!(of(|directory| directory.file_system = Some("tmpfs".to_owned())), Warn);
    assert_eq!(of(|directory| directory.mode = Some(0o777)), Warn);
    assert_eq!(of(|directory| directory.mode = Some(0o1777)), Ok);
    assert_eq!(of(|directory| directory.free_bytes = Some(1)), Info);
    assert_eq!(
        of(|directory| {
            (directory.file_system, directory.huge) = (Some("tmpfs".to_owned()), Some("within_size".to_owned()));
        }),
        Ok
    );
}
