//! A bucket as a directory: every name and byte of it, what a read costs the origin, what the metadata cache believes and
//! for how long, and that nothing can be written.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use forebay_e2e::mapping::Mapping;
use forebay_e2e::reading::{self, DirectFile};
use forebay_e2e::{BUCKET, Bucket, Setup, Tree, TreeFile, eventually, finish, is_long_run, resident, skipped, upload};
use forebay_testkit::{DataSet, VersityGw};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::fs::StatVfsMountFlags;

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(90);

/// Everything that holds of any mounted tree.
fn verify_mounted(root: &Path, tree: &Tree) {
    tree.verify_names(root);
    tree.verify(root);
    verify_with_tools(root, tree);
    let large = tree.file("sizes/large");
    reading::verify_random_ranges(root, large, 300, 300 << 10, 1);
    for size in ["00000000", "00000001", "00004097", "00032769", "04194305", "large"] {
        let file = tree.file(&format!("sizes/{size}"));
        reading::verify_direct(&root.join(&file.path), file.data, file.size);
    }
    verify_mapped(root, large);
}

fn verify_with_tools(root: &Path, tree: &Tree) {
    let run = |program: &str, arguments: &[&str]| {
        finish(Command::new(program).args(arguments).current_dir(root), LONG).succeeded().text()
    };
    let found = run("find", &[".", "-type", "f", "-printf", "%s\n"]);
    let sizes: Vec<u64> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes.len(), tree.files.len());
    assert_eq!(sizes.iter().sum::<u64>(), tree.files.iter().map(|file| file.size).sum::<u64>());
    let listed = run("ls", &["-lR", "wide"]);
    assert_eq!(listed.lines().filter(|line| line.starts_with("-rw-r--r--")).count(), 1100, "{listed}");

    let copies = tempfile::tempdir().unwrap();
    run("cp", &["-r", ".", copies.path().to_str().unwrap()]);
    tree.verify_names(copies.path());
    tree.verify(copies.path());
    let large = tree.file("sizes/large");
    let sum = |path: &str| run("sha256sum", &[path]).split_whitespace().next().unwrap().to_owned();
    assert_eq!(sum("sizes/large"), sum(copies.path().join("sizes/large").to_str().unwrap()));
    let cat = finish(Command::new("cat").arg(root.join("sizes/large")), LONG).succeeded();
    assert_eq!(cat.stdout.len() as u64, large.size);
    assert_eq!(large.data.first_difference(0, &cat.stdout), None);
}

fn verify_mapped(root: &Path, file: &TreeFile) {
    let path = root.join(&file.path);
    reading::forget_pages(&path);
    let mapping = Mapping::of(&path, file.size as usize).unwrap();
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..100 {
        let start = random.random_range(0..file.size as usize);
        let end = (start + random.random_range(1..20_000)).min(file.size as usize);
        let bytes = mapping.read(start..end).unwrap();
        assert_eq!(file.data.first_difference(start as u64, &bytes), None, "{start}..{end}");
    }
}

#[test]
fn every_file_below_a_prefix_is_there_with_its_bytes() {
    let bucket = Bucket::new();
    let tree = Tree::of_all_kinds();
    tree.put_into(&bucket, "train/set 1/");
    // What a prefix must not show.
    bucket.put("train/set 10/other", DataSet::new(1), 10);
    bucket.put("top", DataSet::new(2), 10);
    let mount = Setup::of(&bucket).up_url(&format!("{}/train/set 1", bucket.url()));
    verify_mounted(&mount.root(), &tree);
    assert_eq!(bucket.proxy().counts().unbounded_gets, 0, "every GET has an end");
}

#[test]
fn every_file_of_a_versitygw_bucket_is_there_with_its_bytes() {
    let Some(server) = VersityGw::start() else {
        return skipped("versitygw: it is not installed, or does not start here");
    };
    server.create_bucket("data").unwrap();
    let tree = Tree::of_all_kinds();
    upload(&tree, &server.url(), "data", server.access_key(), server.secret_key());
    let mount = Setup::default()
        .memory("128MiB")
        .variable("AWS_ENDPOINT_URL", &server.url())
        .variable("AWS_REGION", "us-east-1")
        .variable("AWS_ACCESS_KEY_ID", server.access_key())
        .variable("AWS_SECRET_ACCESS_KEY", server.secret_key())
        .up_url("s3://data");
    verify_mounted(&mount.root(), &tree);
}

#[test]
fn a_file_is_fetched_once_and_in_full_and_then_never_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, (30 << 20) + 17);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).up(&bucket);
    let file = tree.file("file00");
    let path = mount.path("file00");
    let before = bucket.proxy().counts();
    reading::verify(&path, file.data, file.size);
    let after = bucket.proxy().counts();
    let fetched = after.bytes - before.bytes;
    assert!(fetched < file.size + (64 << 10), "{fetched} bytes were fetched for a file of {}", file.size);
    assert!(after.object_gets > before.object_gets);
    reading::verify_direct(&path, file.data, file.size);
    reading::forget_pages(&path);
    reading::verify(&path, file.data, file.size);
    assert_eq!(bucket.gets(), after.object_gets, "what is cached is not fetched again");
    assert_eq!(after.unbounded_gets, 0);
}

#[test]
fn a_random_reader_fetches_little_more_than_it_reads() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 64 << 20);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).up(&bucket);
    let file = tree.file("file00");
    let path = mount.path("file00");
    let open = DirectFile::open(&path).unwrap();
    let before = bucket.proxy().counts();
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..100 {
        let offset = random.random_range(0..file.size / 4096) * 4096;
        open.verify(&path, file.data, file.size, offset, 4096);
    }
    let after = bucket.proxy().counts();
    // `origin.min_get_size` is 64 KiB; a read that lies across its grid takes two.
    let fetched = after.bytes - before.bytes;
    assert!(fetched <= 100 * (128 << 10), "{fetched} bytes were fetched for 100 reads of 4 KiB");
}

#[test]
fn readers_of_one_missing_range_share_one_get() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 32 << 20);
    tree.put_into(&bucket, "");
    // So many opens would be reason enough to fetch all of it.
    let mount = Setup::of(&bucket).served_by_the_mount().up(&bucket);
    let file = tree.file("file00");
    let path = mount.path("file00");
    // The size is known, so that only the reads below ask the origin anything.
    assert_eq!(std::fs::metadata(&path).unwrap().len(), file.size);
    let before = bucket.gets();
    bucket.proxy().set_latency(Duration::from_millis(500));
    let start = Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let open = DirectFile::open(&path).unwrap();
                start.wait();
                open.verify(&path, file.data, file.size, 20 << 20, 32 << 10);
            });
        }
    });
    assert_eq!(bucket.gets() - before, 1);
}

#[test]
fn what_changes_in_the_bucket_shows_after_the_metadata_ttl() {
    let bucket = Bucket::new();
    bucket.put("dir/stays", DataSet::new(1), 10);
    bucket.put("dir/changes", DataSet::new(2), 1000);
    bucket.put("dir/goes", DataSet::new(3), 10);
    let mount = Setup::of(&bucket).option("metadata.ttl=1s").up(&bucket);
    let names = || {
        let entries = std::fs::read_dir(mount.path("dir")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["changes", "goes", "stays"]);
    assert!(!mount.path("dir/comes").exists());
    reading::verify(&mount.path("dir/changes"), DataSet::new(2), 1000);

    bucket.put("dir/comes", DataSet::new(4), 5);
    bucket.put("dir/changes", DataSet::new(5), 70_000);
    bucket.remove("dir/goes");
    eventually("the new object shows", SOON, || mount.path("dir/comes").exists());
    eventually("the removed object is gone", SOON, || !mount.path("dir/goes").exists());
    eventually("the new size shows", SOON, || mount.path("dir/changes").metadata().unwrap().len() == 70_000);
    eventually("the listing is the new one", SOON, || names() == ["changes", "comes", "stays"]);
    reading::verify(&mount.path("dir/comes"), DataSet::new(4), 5);
    reading::verify(&mount.path("dir/changes"), DataSet::new(5), 70_000);
}

#[test]
fn what_changes_in_the_bucket_shows_at_once_when_the_metadata_ttl_is_zero() {
    let bucket = Bucket::new();
    bucket.put("dir/changes", DataSet::new(1), 1000);
    let mount = Setup::of(&bucket).option("metadata.ttl=0").up(&bucket);
    for round in 0..5 {
        let (data, size) = (DataSet::new(100 + round), 2000 + round * 31);
        bucket.put("dir/changes", data, size);
        assert_eq!(mount.path("dir/changes").metadata().unwrap().len(), size);
        reading::verify(&mount.path("dir/changes"), data, size);
        let comes = mount.path(&format!("dir/comes-{round}"));
        assert!(!comes.exists());
        bucket.put(&format!("dir/comes-{round}"), data, size);
        reading::verify(&comes, data, size);
        assert_eq!(std::fs::read_dir(mount.path("dir")).unwrap().count(), 2);
        bucket.remove(&format!("dir/comes-{round}"));
        assert!(!comes.exists());
        assert_eq!(std::fs::read_dir(mount.path("dir")).unwrap().count(), 1);
    }
}

#[test]
fn within_the_metadata_ttl_nothing_is_asked_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(20, 5000);
    tree.put_into(&bucket, "d/");
    let mount = Setup::of(&bucket).up(&bucket);
    let look = || {
        tree.verify_names(&mount.path("d"));
        tree.verify(&mount.path("d"));
        assert!(!mount.path("d/missing").exists());
    };
    look();
    let requests = bucket.requests();
    look();
    assert_eq!(bucket.requests(), requests);
}

#[test]
fn the_inode_number_of_a_file_stays() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(50, 100);
    tree.put_into(&bucket, "d/");
    let mount = Setup::of(&bucket).option("metadata.ttl=200ms").up(&bucket);
    let numbers = || -> Vec<u64> {
        tree.files.iter().map(|file| mount.path("d").join(&file.path).metadata().unwrap().ino()).collect()
    };
    let listed = || -> Vec<u64> {
        let text = finish(Command::new("ls").arg("-i1").arg(mount.path("d")), SOON).succeeded().text();
        text.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
    };
    let first = numbers();
    assert_eq!(listed(), first, "the same whether listed or looked up");
    let requests = bucket.requests();
    eventually("the origin is asked again", SOON, || {
        assert_eq!(numbers(), first);
        bucket.requests() > requests
    });
    assert_eq!(listed(), first);
    let mut unique = first.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), first.len(), "each file has its own");
}

#[test]
fn nothing_can_be_changed_in_a_mount_that_is_read_only() {
    let bucket = Bucket::new();
    bucket.put("dir/file", DataSet::new(1), 1000);
    let mount = Setup::of(&bucket).flag("--read-only").up(&bucket);
    let (file, new) = (mount.path("dir/file"), mount.path("dir/new"));
    let attempts: [(&str, io::Result<()>); 9] = [
        ("create", File::create(&new).map(drop)),
        ("write", File::options().write(true).open(&file).map(drop)),
        ("append", File::options().append(true).open(&file).map(drop)),
        ("mkdir", std::fs::create_dir(&new)),
        ("unlink", std::fs::remove_file(&file)),
        ("rename", std::fs::rename(&file, &new)),
        ("link", std::fs::hard_link(&file, &new)),
        ("symlink", std::os::unix::fs::symlink("file", &new)),
        ("chmod", std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))),
    ];
    for (what, attempt) in attempts {
        let error = attempt.expect_err(what);
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
    }
    for command in ["touch dir/file", "touch dir/new", "truncate -s 0 dir/file", "rm -f dir/file", "rmdir dir"] {
        let mut words = command.split(' ');
        let finished = finish(Command::new(words.next().unwrap()).args(words).current_dir(mount.root()), SOON);
        assert!(
            finished.code != Some(0) && finished.stderr.contains("Read-only file system"),
            "{command}: {finished:?}"
        );
    }
    reading::verify(&file, DataSet::new(1), 1000);
}

#[test]
fn df_and_statfs_answer() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).up(&bucket);
    let read_only = Setup::of(&bucket).flag("--read-only").up(&bucket);
    assert!(rustix::fs::statvfs(read_only.root()).unwrap().f_flag.contains(StatVfsMountFlags::RDONLY));
    let stat = rustix::fs::statvfs(mount.root()).unwrap();
    assert!(!stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    assert!(stat.f_bsize > 0 && stat.f_blocks > 0 && stat.f_namemax >= 255);
    let df = finish(Command::new("df").arg(mount.root()), SOON).succeeded().text();
    assert!(df.contains(&bucket.url()), "{df}");
}

#[test]
fn a_directory_of_a_million_names_is_listed_in_bounded_memory() {
    const NAMES: u64 = 1_000_000;
    if !is_long_run() {
        return;
    }
    let bucket = Bucket::new();
    bucket.put("wide/0", DataSet::new(1), 0);
    let first = bucket.server().directory().join(BUCKET).join("wide");
    for number in 1..NAMES {
        File::create(first.join(number.to_string())).unwrap();
    }
    let worker = Setup::of(&bucket).option("metadata.cache_entries=10000").worker(&bucket);
    let mount = Setup::without_origin().mount([&worker]);
    let before = resident(worker.pid());
    let names = std::fs::read_dir(mount.path("wide")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut seen = vec![false; NAMES as usize];
    for name in names {
        let number: usize = name.to_str().unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true), "{number} is listed twice");
    }
    assert!(seen.into_iter().all(|seen| seen));
    let after = resident(worker.pid());
    println!("resident before and after: worker {before} {after}, mount {}", resident(mount.pid()));
    assert!(after < before + (64 << 20), "the worker went from {before} to {after} bytes");
    // What the kernel holds of the directory, the mount must hold as well: its inodes.
    assert!(resident(mount.pid()) < 1 << 30);
}

#[test]
fn an_empty_bucket_is_an_empty_directory() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).up(&bucket);
    assert_eq!(std::fs::read_dir(mount.root()).unwrap().count(), 0);
    let error = File::open(mount.path("nothing")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let started = Instant::now();
    assert!(!mount.path(&"n".repeat(256)).exists());
    assert!(started.elapsed() < SOON);
}
