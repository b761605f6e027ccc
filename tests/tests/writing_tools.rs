//! The tools that people copy trees with, on a mount: what goes in is at the origin, byte for byte, and comes out again.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::{Mount, TwoMounts, installed, script};
use forebay_testkit::DataSet;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(600);
const MIB: u64 = 1 << 20;

/// Files of all sizes and names, in directories, one of which is empty.
fn tree() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let files = [
        ("empty", 0),
        ("one byte", 1),
        ("größe-数据-🦀", 4097),
        ("deep/er/and/deeper/sectors", 100_000),
        ("deep/block", 4 * MIB),
        ("deep/parts", 21 * MIB + 5),
        ("a+b&c=d%20e?f#g;h/quote'\"s [x]*", 5000),
    ];
    for (seed, (name, size)) in files.into_iter().enumerate() {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        DataSet::new(300 + seed as u64).write_file(&path, size).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    for number in 0..60 {
        std::fs::create_dir_all(directory.path().join("wide")).unwrap();
        std::fs::write(directory.path().join(format!("wide/{number:03}")), format!("{number}\n")).unwrap();
    }
    std::fs::create_dir(directory.path().join("nothing")).unwrap();
    directory
}

/// Every file below `root` with its bytes, and every directory.
fn contents(root: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let bytes =
                (!path.is_dir()).then(|| std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}")));
            if bytes.is_none() {
                left.push(path);
            }
            found.insert(name, bytes);
        }
    }
    found
}

/// Asserts that two trees have the same names and bytes.
#[track_caller]
fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (contents(expected), contents(found));
    let differ = |name: &&String| expected.get(*name) != found.get(*name);
    let names: Vec<&String> = expected.keys().chain(found.keys()).filter(differ).collect();
    assert!(names.is_empty(), "these differ: {names:?}");
}

/// Copies a tree into a mount and out of it again by the commands `copy_in` and `copy_out`, which have $SOURCE, $MOUNT and $OUT.
fn copy_both_ways(settings: &[&str], source: &TempDir, copy_in: &str, copy_out: &str) {
    let mounts = TwoMounts::new(settings);
    let out = tempfile::tempdir().unwrap();
    let variables = |mount: &Mount| {
        let text = |path: &Path| path.display().to_string();
        [("SOURCE", text(source.path())), ("MOUNT", text(&mount.root())), ("OUT", text(out.path()))]
    };
    script(copy_in, &variables(&mounts.near), LIMIT);
    assert_same(source.path(), &mounts.near.path("tree"));
    assert_same(source.path(), &mounts.far.path("tree"));
    assert_same(source.path(), &mounts.bucket.path_of("tree"));
    script(copy_out, &variables(&mounts.far), LIMIT);
    assert_same(source.path(), &out.path().join("tree"));
    assert!(mounts.bucket.server().uploads().is_empty(), "{:?}", mounts.bucket.server().uploads());
    assert_eq!(mounts.near.staged(), [] as [serde_json::Value; 0]);
}

#[test]
fn tar_unpacks_into_a_mount_and_packs_from_it() {
    if installed("tar").is_none() {
        return;
    }
    let copy_in = r#"mkdir "$MOUNT/tree" && tar -C "$SOURCE" -c . | tar -C "$MOUNT/tree" -x"#;
    let copy_out = r#"mkdir "$OUT/tree" && tar -C "$MOUNT/tree" -c . | tar -C "$OUT/tree" -x"#;
    copy_both_ways(&[], &tree(), copy_in, copy_out);
}

#[test]
fn cp_copies_a_tree_into_a_mount_and_out_of_it() {
    let copy_in = r#"cp -a "$SOURCE" "$MOUNT/tree""#;
    let copy_out = r#"cp -a "$MOUNT/tree" "$OUT/tree""#;
    copy_both_ways(&["posix.ignore_mode=true"], &tree(), copy_in, copy_out);
}

#[test]
fn rsync_copies_a_tree_into_a_mount_and_out_of_it_and_finds_nothing_to_do_the_second_time() {
    if installed("rsync").is_none() {
        return;
    }
    let copy_in = r#"
        rsync -a "$SOURCE/" "$MOUNT/tree/"
        test -z "$(rsync -rc --out-format=%n "$SOURCE/" "$MOUNT/tree/" | grep -v '/$' || true)""#;
    let copy_out = r#"rsync -a "$MOUNT/tree/" "$OUT/tree/""#;
    copy_both_ways(&["posix.ignore_mode=true"], &tree(), copy_in, copy_out);
}

#[test]
fn modes_that_cannot_be_kept_are_an_error_unless_they_are_to_be_ignored() {
    let source = tempfile::tempdir().unwrap();
    let program = source.path().join("program");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mounts = TwoMounts::new(&[]);
    let copy = r#"
        if cp -a "$PROGRAM" "$MOUNT/program" 2>"$SAID"; then exit 1; fi
        grep -q 'Operation not permitted' "$SAID"
        cmp "$PROGRAM" "$MOUNT/program""#;
    let variables = [
        ("PROGRAM", program.display().to_string()),
        ("MOUNT", mounts.near.root().display().to_string()),
        ("SAID", source.path().join("said").display().to_string()),
    ];
    script(copy, &variables, LIMIT);
    let ignoring = TwoMounts::new(&["posix.ignore_mode=true"]);
    let variables = [("PROGRAM", program.display().to_string()), ("MOUNT", ignoring.near.root().display().to_string())];
    script(r#"cp -a "$PROGRAM" "$MOUNT/program""#, &variables, LIMIT);
    let mode = ignoring.near.path("program").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn a_repository_is_cloned_into_a_mount_used_there_and_right_on_another_mount() {
    if installed("git").is_none() {
        return;
    }
    let mounts = TwoMounts::new(&[]);
    let home = tempfile::tempdir().unwrap();
    let variables =
        |mount: &Mount| [("HOME", home.path().display().to_string()), ("MOUNT", mount.root().display().to_string())];
    let clone = r#"
        git config --global init.defaultBranch main
        git init -q "$HOME/work" && cd "$HOME/work"
        git config user.name test && git config user.email test@example.org
        for commit in $(seq 5); do
            mkdir -p "dir$commit"
            for file in $(seq 40); do echo "$commit $file" > "dir$commit/file$file"; done
            head -c 300000 /dev/urandom > "dir$commit/binary"
            git add -A && git commit -q -m "commit $commit"
        done
        git tag v1
        git clone -q --bare "$HOME/work" "$HOME/bare.git"
        git clone -q "$HOME/bare.git" "$MOUNT/clone"
        cd "$MOUNT/clone"
        git fsck --full --strict
        test -z "$(git status --porcelain)"
        diff -r --exclude=.git "$HOME/work" "$MOUNT/clone"
        git config user.name test && git config user.email test@example.org
        echo more > "dir1/more" && git rm -q -r dir2 && git add -A && git commit -q -m 'on the mount'
        git gc -q
        git fsck --full --strict
        git push -q origin HEAD:refs/heads/from-the-mount"#;
    script(&format!("export GIT_CONFIG_GLOBAL=$HOME/gitconfig\n{clone}"), &variables(&mounts.near), LIMIT);
    let look = r#"
        cd "$MOUNT/clone"
        git fsck --full --strict
        test "$(git log --oneline | wc -l)" = 6
        test ! -e dir2 && test "$(cat dir1/more)" = more
        git log -1 --format=%H > "$HOME/seen"
        git -C "$HOME/bare.git" rev-parse from-the-mount | cmp - "$HOME/seen""#;
    script(&format!("export GIT_CONFIG_GLOBAL=$HOME/gitconfig\n{look}"), &variables(&mounts.far), LIMIT);
}

#[test]
fn a_database_is_read_from_a_mount_and_written_there() {
    if installed("sqlite3").is_none() {
        return;
    }
    let mounts = TwoMounts::new(&[]);
    let home = tempfile::tempdir().unwrap();
    let make = r#"
        sqlite3 "$HOME/db" "create table t (id integer primary key, text);
            with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
                insert into t select i, hex(randomblob(20)) from n;
            create index texts on t (text);"
        cp "$HOME/db" "$MOUNT/db"
        sqlite3 "$MOUNT/made-here" "create table t (i); begin; insert into t values (1), (2); commit; insert into t values (3);""#;
    let variables =
        |mount: &Mount| [("HOME", home.path().display().to_string()), ("MOUNT", mount.root().display().to_string())];
    script(make, &variables(&mounts.near), LIMIT);
    let query = r#"
        for db in db made-here; do test "$(sqlite3 "$MOUNT/$db" 'pragma integrity_check')" = ok; done
        test "$(sqlite3 "file:$MOUNT/db?mode=ro" 'select count(*), sum(id) from t')" = '20000|200010000'
        test "$(sqlite3 "$MOUNT/db" 'select text from t where id = 777')" = "$(sqlite3 "$HOME/db" 'select text from t where id = 777')"
        test "$(sqlite3 "$MOUNT/made-here" 'select sum(i) from t')" = 6"#;
    for mount in [&mounts.near, &mounts.far] {
        script(query, &variables(mount), LIMIT);
    }
}
