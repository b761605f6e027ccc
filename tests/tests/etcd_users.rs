//! A cluster in an etcd with users, made by what `forebay etcd grants` prints: what processes do is granted to them, and no more.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, GetOptions, Permission, PermissionType};
use forebay_e2e::{Cluster, Setup, Tree, eventually, finish, forebay};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Does what the commands say. The password of each user is its name.
async fn carry_out(client: &mut Client, commands: &str) {
    for line in commands.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["etcdctl", "role", "add", role] => {
                client.role_add(role).await.unwrap();
            }
            ["etcdctl", "role", "grant-permission", "--prefix", role, access, keys] => {
                let access = match access {
                    "read" => PermissionType::Read,
                    "write" => PermissionType::Write,
                    "readwrite" => PermissionType::Readwrite,
                    other => panic!("etcdctl knows no {other}"),
                };
                let permission = Permission::new(access, keys).with_prefix();
                client.role_grant_permission(role, permission).await.unwrap();
            }
            ["etcdctl", "user", "add", user] => {
                client.user_add(user, user, None).await.unwrap();
            }
            ["etcdctl", "user", "grant-role", user, role] => {
                client.user_grant_role(user, role).await.unwrap();
            }
            [] | ["#", ..] => {}
            _ => panic!("what is {line}?"),
        }
    }
}

/// Has etcd ask for users from now on; `root` is one, with that password.
async fn enable(client: &mut Client) {
    client.user_add("root", "root", None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
}

/// Started as the user of this role.
fn as_user(setup: Setup, passwords: &Path, role: &str) -> Setup {
    let user = format!("forebay-{role}");
    let file = passwords.join(role);
    std::fs::write(&file, format!("{user}\n")).unwrap();
    let settings = [format!("cluster.etcd.user={user}"), format!("cluster.etcd.password_file={}", file.display())];
    settings.iter().fold(setup, |setup, setting| setup.option(setting))
}

#[test]
fn a_cluster_runs_with_the_grants_that_are_printed_and_no_role_does_more() {
    let Some(cluster) = Cluster::start(1) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let commands = finish(forebay(&[]).args(["etcd", "grants"]), SOON).succeeded().text();
    runtime.block_on(async {
        let mut client = cluster.etcd.client(None).await.unwrap();
        carry_out(&mut client, &commands).await;
        enable(&mut client).await;
    });
    let passwords = tempfile::tempdir().unwrap();
    let user = |setup: Setup, role: &str| as_user(setup, passwords.path(), role);

    let tree = Tree::of_equal_files(3, MIB + 5);
    tree.put_into(&cluster.bucket, "");
    let coordinator = user(cluster.setup(), "coordinator").coordinator();
    let second = user(cluster.setup(), "coordinator").coordinator();
    let worker = user(cluster.setup().memory("128MiB"), "worker").member("w1");
    coordinator.wait_for_active(&["w1"]);
    coordinator.add_mount(&cluster, "/s3");
    worker.wait_for("/s3");
    let room = cluster.setup().options(&["client.memory.size=8MiB", "client.local.size=64MiB"]);
    let mount = user(room, "mount").mount_cluster();
    tree.verify(&mount.path("s3"));
    let _ = coordinator.ask(&["policy", "set", "/s3", "--metadata-ttl", "5s"]).succeeded();
    // Where the kernel passes files through, the mount keeps them, and reports.
    let keeps = mount.own_stats()["local"]["on"] == true;
    let more: &[&str] = if keeps { &["--to-clients"] } else { &[] };
    for asked in [&coordinator, &second] {
        let (code, report) = asked.job("load", "/s3", more);
        assert_eq!((code, &report["state"]), (0, &json!("SUCCEEDED")), "{report}");
    }
    let _ = coordinator.ask(&["cluster", "drain", "w1", "--no-wait"]);
    let _ = coordinator.ask(&["cluster", "undrain", "w1"]);
    eventually("the worker stays", SOON, || coordinator.member("w1").is_some_and(|member| member["state"] == "active"));

    let keys = runtime.block_on(async {
        let mut root = cluster.etcd.client(Some(("root", "root"))).await.unwrap();
        let all = root.get("/", Some(GetOptions::new().with_prefix().with_keys_only())).await.unwrap();
        all.kvs().iter().map(|entry| String::from_utf8_lossy(entry.key()).into_owned()).collect::<Vec<_>>()
    });
    for written in ["workers/", "joins/", "leader", "coordinators/", "jobs/", "mounts/", "last-mount", "policies/"] {
        let written = format!("/forebay/forebay/{written}");
        assert!(keys.iter().any(|key| key.starts_with(&written)), "nobody wrote {written}: {keys:?}");
    }
    for log in [coordinator.log_text(), second.log_text(), worker.log_text(), mount.log_text()] {
        assert!(!log.contains("permission denied"), "{log}");
    }

    runtime.block_on(async {
        for (role, keys) in [
            ("worker", "mounts/%2Fevil policies/%2Fs3 leader jobs/x drains/w2 hot/x clients/x last-mount"),
            ("mount", "mounts/%2Fevil workers/default/evil leader jobs/x drains/w1 joins/w1 materialise/x"),
            ("coordinator", "workers/default/evil joins/w1 clients/x"),
        ] {
            let name = format!("forebay-{role}");
            let mut client = cluster.etcd.client(Some((&*name, &*name))).await.unwrap();
            for key in keys.split(' ') {
                let refused = client.put(format!("/forebay/forebay/{key}"), "{}", None).await.unwrap_err();
                assert!(refused.to_string().contains("permission denied"), "{role} {key}: {refused}");
            }
            let refused = client.put("/forebay/other/mounts/%2Fevil", "{}", None).await.unwrap_err();
            assert!(refused.to_string().contains("permission denied"), "{role}: {refused}");
        }
    });
}
