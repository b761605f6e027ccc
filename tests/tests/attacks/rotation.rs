//! Keys and certificates are replaced while files are read, and files that are half written lie there meanwhile: no
//! read fails.

use forebay_e2e::reading::read_while;
use forebay_e2e::{Bucket, LISTENS_OVER_UCX, Mount, Setup, Tree, Worker, eventually, has_ucx};

use crate::{Keys, SOON, put, run, set};

/// More than the mount keeps, so that its worker is asked all the time.
const SIZE: u64 = 24 << 20;
/// Reads that have to come back right after each step.
const READS: u64 = 50;
/// How a process says that it goes on with what it had.
const KEPT: &str = "previous ones stay in use";
/// And that it has something new.
const TAKEN: &str = "changed, and are in use";

/// A worker, and a mount that reads from it.
struct Scene {
    mount: Mount,
    worker: Worker,
    tree: Tree,
    keys: Keys,
    _bucket: Bucket,
}

impl Scene {
    fn new(keys: Keys, of_worker: &[String], of_mount: &[String]) -> Self {
        let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, SIZE));
        tree.put_into(&bucket, "");
        let worker = set(Setup::of(&bucket), of_worker).worker(&bucket);
        let mount = set(Setup::without_origin().option("client.memory.size=8MiB"), of_mount).mount([&worker]);
        Self { mount, worker, tree, keys, _bucket: bucket }
    }

    /// Does one step after the other while files are read, and waits for each until both logs have its words.
    fn assert_reads_go_on(&self, steps: &[(&dyn Fn(), &str)]) {
        let logs = || [self.worker.log_text(), self.mount.log_text()];
        read_while(&self.mount.root(), self.tree.file("file00"), 2, |progress| {
            progress.reads_on(READS);
            for &(step, words) in steps {
                let said = || logs().map(|log| log.matches(words).count());
                let before = said();
                step();
                eventually(words, SOON, || said().iter().zip(before).all(|(now, before)| *now > before));
                progress.reads_on(READS);
            }
        });
    }

    /// Whether a command that proves this is let in.
    fn lets_in(&self, settings: &[String]) -> bool {
        run(&["fs", "ls", "/", "--workers", &self.worker.address().to_string()], settings).code == Some(0)
    }
}

fn with(settings: &[String], more: &[&str]) -> Vec<String> {
    settings.iter().cloned().chain(more.iter().map(|setting| (*setting).to_owned())).collect()
}

/// Replaces the certificates of a worker and a mount with these settings while that reads.
fn replace_certificates(worker: &[&str], mount: &[&str]) -> Scene {
    let keys = Keys::new();
    let (of_worker, of_mount) = (keys.issue("worker", "worker"), keys.issue("reader", "mount"));
    let _ = (keys.issue("worker", "next-worker"), keys.issue("reader", "next-mount"));
    let scene = Scene::new(keys, &with(&of_worker, worker), &with(&of_mount, mount));
    assert!(scene.lets_in(&of_mount));
    let place = |name: &str, portion: fn(&[u8]) -> &[u8]| {
        for process in ["worker", "mount"] {
            let next = std::fs::read(scene.keys.path(&format!("next-{process}")).join(name)).unwrap();
            put(&scene.keys.path(process).join(name), portion(&next));
        }
    };
    scene.assert_reads_go_on(&[
        (&|| place("tls.crt", |bytes| &bytes[..bytes.len() / 2]), KEPT),
        (&|| place("tls.crt", |bytes| bytes), "are no pair"),
        (&|| place("tls.key", |bytes| bytes), TAKEN),
    ]);
    assert!(scene.lets_in(&of_mount));
    scene
}

#[test]
fn certificates_are_replaced_under_load_over_tcp_without_a_read_error() {
    let off = ["network.shared_memory=off"];
    drop(replace_certificates(&off, &off));
}

#[test]
fn certificates_are_replaced_under_load_over_ucx_without_a_read_error() {
    if !has_ucx() {
        return;
    }
    let [off, enabled, transports, ..] = LISTENS_OVER_UCX;
    let size = ["initial_size=8MiB", "max_size=8MiB", "prewarm_size=0B"];
    let [initial, most, none] = size.map(|size| format!("network.rdma.data.buffer_pool.{size}"));
    let never = "network.rdma.data.fallback=never";
    let scene = replace_certificates(&LISTENS_OVER_UCX, &[off, enabled, transports, never, &initial, &most, &none]);
    let log = scene.mount.log_text();
    assert!(log.contains("RDMA client connected") && !log.contains("RDMA failed"), "{log}");
}

#[test]
fn certificates_are_replaced_under_load_through_shared_memory_without_a_read_error() {
    let place = tempfile::tempdir().unwrap();
    let sockets = format!("network.shared_memory_dir={}", place.path().join("sockets").display());
    let on = "network.shared_memory=on";
    let scene = replace_certificates(&[on, &sockets, "worker.memory.prewarm=false"], &[on, &sockets]);
    let seen = scene.mount.own_stats()["window"]["bytes"].as_u64();
    assert!(seen.is_some_and(|bytes| bytes > 0), "{seen:?}");
}

/// In the steps of the guide: the new key is believed everywhere before anybody proves anything with it.
#[test]
fn a_key_is_replaced_under_load_without_a_read_error() {
    let (keys, next, former) = (Keys::new(), Keys::new(), Keys::new());
    let (old, new) = (keys.text("cluster.key"), next.text("cluster.key"));
    put(&former.key(), old.as_bytes());
    let settings = with(&keys.settings(), &["network.shared_memory=off"]);
    let scene = Scene::new(keys, &settings, &settings);
    assert!(scene.lets_in(&former.settings()) && !scene.lets_in(&next.settings()));
    let write = |text: &str| put(&scene.keys.key(), text.as_bytes());
    scene.assert_reads_go_on(&[
        (&|| write(&old[..old.len() / 2]), KEPT),
        (&|| write(&format!("{old}{new}")), TAKEN),
        (&|| write(&format!("{new}{old}")), TAKEN),
        (&|| write(&new), TAKEN),
    ]);
    assert!(scene.lets_in(&next.settings()) && !scene.lets_in(&former.settings()));
}
