//! `forebay csi` in namespaces of its own, called as the kubelet calls it: real mounts, kills, and what a pod sees.

mod node;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use forebay_e2e::{can_survive, eventually};
use forebay_testkit::DataSet;
use tonic::Code;

use crate::node::{DRIVER, GROUP, Node, SOON, refused, target};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_is_mounted_once_for_all_pods_and_outlives_the_driver() {
    let Some(mut node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    let (data, size) = (DataSet::new(7), 9 * MIB + 777);
    node.bucket.put("big", data, size);

    refused(node.publish(1, false), Code::FailedPrecondition);
    for _ in 0..2 {
        node.stage().unwrap();
        node.publish(1, false).unwrap();
        node.publish(2, true).unwrap();
    }
    assert_eq!(node.daemons(), 1, "one for the node");
    let [one, two, three] = [1, 2, 3].map(|pod| node.text(&target(pod)));
    for pod in [&one, &two] {
        assert_eq!(node.shell(&format!("cat {pod}/hello")).succeeded().text(), "from the bucket");
        assert_eq!(node.shell(&format!("stat -c %g {pod}/hello")).succeeded().text().trim(), GROUP.to_string());
    }
    let _ = node.shell(&format!("echo written > {one}/new && cat {two}/new")).succeeded();
    let written = node.shell(&format!("echo written > {two}/other"));
    assert!(written.code != Some(0) && written.stderr.contains("Read-only file system"), "{written:?}");
    refused(node.publish(2, false), Code::AlreadyExists);
    let stats = node.stats(1).unwrap();
    assert!(!stats.volume_condition.unwrap().abnormal && stats.usage.len() == 2);

    // No command line and no log has what is secret.
    let secret = node.bucket.server().secret_key().to_owned();
    let logs = node.path(DRIVER).join("logs");
    let found = node.shell(&format!("cat /proc/[0-9]*/cmdline; cat {}/*; true", logs.display())).succeeded();
    assert!(found.text().contains("--background-child") && !found.text().contains(&secret));

    // A pod that has a file open goes on, whatever becomes of the driver.
    let (go, read) = (node.directory.path().join("go"), node.directory.path().join("read"));
    let script = format!(
        "exec 3< {one}/big > {}; dd bs=1000 count=1 <&3 2> /dev/null; \
         until [ -e {} ]; do sleep 0.01; done; exec cat <&3",
        read.display(),
        go.display()
    );
    let mut reader = node.container().start(Command::new("sh").args(["-c", &script]));
    eventually("the pod reads", SOON, || read.metadata().is_ok_and(|read| read.len() == 1000));
    node.kill();
    assert_eq!(node.shell(&format!("cat {one}/hello")).succeeded().text(), "from the bucket");
    node.start();
    std::fs::write(&go, "").unwrap();
    assert!(reader.wait().unwrap().success());
    let bytes = std::fs::read(&read).unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));

    // The next driver has what the one before left.
    node.stage().unwrap();
    node.publish(3, true).unwrap();
    assert_eq!(node.shell(&format!("cat {three}/new")).succeeded().text(), "written\n");
    assert_eq!(node.daemons(), 1);
    refused(node.unstage(), Code::FailedPrecondition);
    for _ in 0..2 {
        (1..=3).for_each(|pod| node.unpublish("volume", pod).unwrap());
    }
    for _ in 0..2 {
        node.unstage().unwrap();
    }
    assert!(!node.is_mounted() && node.daemons() == 0);
    assert!(!node.path(&target(1)).exists(), "the place of a pod goes with its volume");
    assert_eq!(node.bucket.object("new"), b"written\n");
}

#[test]
fn a_daemon_that_dies_is_told_of_and_what_it_left_is_taken_away() {
    let Some(node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    node.stage().unwrap();
    node.publish(1, false).unwrap();
    node.kill_daemons();
    eventually("the mount is dead", SOON, || node.stats(1).is_ok_and(|stats| stats.volume_condition.unwrap().abnormal));
    refused(node.publish(2, false), Code::FailedPrecondition);
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted());
    node.stage().unwrap();
    node.publish(1, false).unwrap();
    let hello = node.text(&target(1));
    assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
    // Dead, and asked for again without having been taken away.
    node.unpublish("volume", 1).unwrap();
    node.kill_daemons();
    eventually("it has ended", SOON, || node.daemons() == 0);
    node.stage().unwrap();
    node.publish(1, true).unwrap();
    assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
}

#[test]
fn what_a_pod_has_open_goes_on_when_daemon_and_driver_are_killed_and_started_again() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    let (data, size) = (DataSet::new(8), 9 * MIB + 777);
    node.bucket.put("big", data, size);
    node.start_keepers();
    node.stage().unwrap();
    node.publish(1, true).unwrap();

    // Around the page cache, so that each round asks the daemon.
    let at = |name: &str| node.directory.path().join(name);
    let (big, round, read) = (format!("{}/big", node.text(&target(1))), at("round"), at("read"));
    let script = format!(
        "exec 3< {big} > {}; for round in 1 2 3; do until [ -e {1}.$round ]; do sleep 0.01; done; \
         dd bs=1M count=3 iflag=direct,fullblock <&3 || exit 1; done; exec cat <&3",
        read.display(),
        round.display()
    );
    let go = |number: u64| std::fs::write(round.with_extension(number.to_string()), "").unwrap();
    let has = |count: u64| read.metadata().is_ok_and(|read| read.len() >= count * 3 * MIB);
    let mut reader = node.container().start(Command::new("sh").args(["-c", &script]));
    go(1);
    eventually("the pod reads", SOON, || has(1));
    node.kill_daemons();
    go(2);
    eventually("a daemon that the driver has started answers", SOON, || has(2));
    // As a container ends.
    node.kill();
    node.kill_daemons();
    go(3);
    eventually("no daemon is left", SOON, || node.daemons() == 0);
    assert!(!has(3), "nobody can have answered");
    node.start();
    eventually("a daemon that the next driver has started answers", SOON, || has(3));
    assert!(reader.wait().unwrap().success());
    let bytes = std::fs::read(&read).unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));

    assert!(!node.stats(1).unwrap().volume_condition.unwrap().abnormal);
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
    eventually("who starts keepers is left alone", SOON, || node.keepers() == 1);
}

#[test]
fn what_a_pod_reads_and_writes_goes_on_when_the_drivers_pod_is_replaced() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    let (data, size) = (DataSet::new(9), 9 * MIB + 777);
    node.bucket.put("big", data, size);
    node.start_keepers();
    node.stage().unwrap();
    node.publish(1, false).unwrap();

    let at = |name: &str| node.directory.path().join(name);
    let (read, wrote, go, closed) = (at("read"), at("wrote"), at("go"), at("closed"));
    let root = node.text(&target(1));
    let script = format!(
        "exec 3< {root}/big 4> {root}/new > {}; echo before >&4; dd bs=1M count=3 iflag=direct,fullblock <&3 || exit 1; \
         touch {}; until [ -e {} ]; do sleep 0.01; done; echo after >&4 || exit 1; cat <&3 || exit 1; \
         exec 4>&- && touch {}",
        read.display(),
        wrote.display(),
        go.display(),
        closed.display()
    );
    let mut pod = node.container().start(Command::new("sh").args(["-c", &script]));
    eventually("the pod has written", SOON, || wrote.exists());
    // Twice: what was taken over is given away again.
    for _ in 0..2 {
        let before = node.daemon_pids();
        node.replace();
        eventually("another process serves", SOON, || {
            let now = node.daemon_pids();
            now.len() == 1 && now.is_disjoint(&before)
        });
        // Not only does it run: it answers.
        assert_eq!(node.shell(&format!("cat {root}/new")).succeeded().text(), "before\n");
    }
    std::fs::write(&go, "").unwrap();
    assert!(pod.wait().unwrap().success() && closed.exists());
    let bytes = std::fs::read(&read).unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None));
    assert_eq!(node.bucket.object("new"), b"before\nafter\n");
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn a_volume_whose_secret_has_changed_goes_on_with_what_is_in_it_now() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    node.start_keepers();
    let mut secrets = node.secrets(false);
    node.publish_inline(1, secrets.clone()).unwrap();
    let before = node.daemon_pids();
    // As the kubelet comes again and again (`requiresRepublish`).
    node.publish_inline(1, secrets.clone()).unwrap();
    assert_eq!(node.daemon_pids(), before, "nothing has changed");
    let hello = format!("{}/hello", node.text(&target(1)));
    let (go, read) = (node.directory.path().join("go"), node.directory.path().join("read"));
    let script = format!(
        "exec 3< {hello} > {}; until [ -e {} ]; do sleep 0.01; done; exec cat <&3",
        read.display(),
        go.display()
    );
    let mut reader = node.container().start(Command::new("sh").args(["-c", &script]));
    eventually("the pod has it open", SOON, || read.exists());
    secrets.insert("AWS_DEFAULT_REGION".to_owned(), "eu-west-1".to_owned());
    node.publish_inline(1, secrets.clone()).unwrap();
    let after = node.daemon_pids();
    assert!(after.len() == 1 && after.is_disjoint(&before), "{before:?} {after:?}");
    let has_it = format!("grep -qz '^AWS_DEFAULT_REGION=eu-west-1$' /proc/{}/environ", after.first().unwrap());
    let _ = node.shell(&has_it).succeeded();
    std::fs::write(&go, "").unwrap();
    assert!(reader.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&read).unwrap(), "from the bucket");
    node.publish_inline(1, secrets).unwrap();
    assert_eq!(node.daemon_pids(), after);
    node.unpublish("csi-1", 1).unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn daemons_whose_keepers_have_ended_ask_the_next_pod_for_others() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    node.start_keepers();
    node.stage().unwrap();
    node.publish(1, true).unwrap();
    assert_eq!(node.keepers(), 2, "one, and who starts it");
    node.kill_keepers();
    let hello = format!("{}/hello", node.text(&target(1)));
    assert_eq!(node.shell(&format!("cat {hello}")).succeeded().text(), "from the bucket");
    assert_eq!(node.keepers(), 0, "a daemon starts none that would end with its own container");
    node.start_host();
    // Not only is it there, it has been given the mount.
    let is_kept = format!("grep -q '^fuse.kept.renewed 1$' {}/.stats", node.text(&target(1)));
    eventually("a keeper has the mount again", SOON, || node.shell(&is_kept).code == Some(0));
    assert_eq!(node.keepers(), 2);
    // It has what the one before had: whoever waits for the next daemon gets an answer.
    node.kill_daemons();
    assert_eq!(node.shell(&format!("cat {hello}")).succeeded().text(), "from the bucket");
    node.unpublish("volume", 1).unwrap();
    node.unstage().unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn where_keepers_are_to_be_and_are_not_nothing_is_mounted() {
    if !can_survive() {
        return;
    }
    let Some(mut node) = Node::new() else { return };
    node.start_keepers();
    node.kill_keepers();
    // Its socket is there.
    refused(node.stage(), Code::Unavailable);
    std::fs::remove_file(node.private("keepers.sock")).unwrap();
    refused(node.stage(), Code::Unavailable);
    assert!(!node.is_mounted() && node.daemons() == 0);
}

#[test]
fn a_pod_mounts_with_its_own_credentials_what_an_admin_lets_it() {
    let Some(node) = Node::new() else { return };
    node.bucket.put_text("hello", "from the bucket");
    refused(node.publish_inline(1, HashMap::new()), Code::PermissionDenied);
    refused(node.publish_inline(1, node.secrets(true)), Code::PermissionDenied);
    for _ in 0..2 {
        node.publish_inline(1, node.secrets(false)).unwrap();
        node.publish_inline(2, node.secrets(false)).unwrap();
    }
    assert_eq!(node.daemons(), 2, "one for each");
    for pod in [1, 2] {
        let hello = node.text(&target(pod));
        assert_eq!(node.shell(&format!("cat {hello}/hello")).succeeded().text(), "from the bucket");
    }
    for _ in 0..2 {
        node.unpublish("csi-1", 1).unwrap();
    }
    assert_eq!(node.daemons(), 1);
    node.unpublish("csi-2", 2).unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
    assert_eq!(node.logs(), 0);
}

/// The kubelet binds parts of a volume for containers that want a `subPath`, and was killed before it took one away.
#[test]
fn a_volume_of_a_pod_ends_with_the_pod_also_where_a_part_of_it_was_left() {
    let Some(node) = Node::new() else { return };
    node.bucket.put_text("part/hello", "from the bucket");
    node.publish_inline(1, node.secrets(false)).unwrap();
    let (mounted, left) = (node.text(&target(1)), node.text("pods/1/volume-subpaths/data/main/0"));
    let _ = node.shell(&format!("mkdir -p {left} && mount --bind {mounted}/part {left}")).succeeded();
    assert_eq!(node.shell(&format!("cat {left}/hello")).succeeded().text(), "from the bucket");
    node.unpublish("csi-1", 1).unwrap();
    assert!(!node.is_mounted() && node.daemons() == 0);
    assert_eq!(node.logs(), 0);
}

#[test]
fn a_link_in_the_kubelets_directory_leads_nowhere() {
    let Some(node) = Node::new() else { return };
    let outside = node.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::remove_dir(node.path("pods/1")).unwrap();
    std::os::unix::fs::symlink(&outside, node.path("pods/1")).unwrap();
    node.stage().unwrap();
    refused(node.publish(1, false), Code::InvalidArgument);
    refused(node.publish_inline(1, node.secrets(false)), Code::InvalidArgument);
    assert!(Path::new(&outside).read_dir().unwrap().next().is_none());
    node.unstage().unwrap();
}
