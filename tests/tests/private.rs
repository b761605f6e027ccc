//! What a worker and a mount keep is their user's alone: nobody else of the machine lists it, reads it, or puts
//! something in its place, from another container neither. A container whose root is the worker's user sees the memory of
//! a worker that demands proof with a certificate alone.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{
    Bucket, Container, Mount, Outcome, STRANGER, Setup, Tree, UCX_ON_LOOPBACK, Worker, as_stranger, attempts,
    eventually, finish, forebay, intrude, intrude_from_container, intruder, is_root, reading, skipped,
};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4 << 20;

/// A place that all users can enter, so that what is kept from them is so by its own directory.
fn open_to_all() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    place
}

/// A directory in it as an earlier version would have made it.
fn made(place: &Path, name: &str) -> PathBuf {
    let path = place.join(name);
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Whether another user gets anything of `path`: a list, bytes, or an answer other than that it is forbidden.
fn is_open_to_others(path: &Path) -> Option<bool> {
    let path = path.to_owned();
    as_stranger(move || {
        let denied = |error: Option<std::io::Error>| error.is_some_and(|it| it.kind() == ErrorKind::PermissionDenied);
        // A socket of packets refuses streams in other words, once one gets there.
        let tries = [path.read_dir().err(), File::open(&path).err(), UnixStream::connect(&path).err()];
        !tries.into_iter().all(denied)
    })
}

fn wait_until_seen(mount: &Mount) {
    let file = reading::DirectFile::open(&mount.path("file00")).unwrap();
    eventually("the mount sees the worker's memory", SOON, || {
        (0..2).for_each(|block| drop(file.read_at(block * BLOCK, 4096).unwrap()));
        mount.own_stats()["window"]["workers"][0]["state"] == "open"
    });
}

/// A worker and a mount, and what they keep.
struct Scene {
    // In this order: it is closed, unmounted and ended.
    _written: File,
    mount: Mount,
    worker: Worker,
    bucket: Bucket,
    /// Of slabs, of the worker's socket, and of what is staged. There is something in each.
    directories: [PathBuf; 3],
    _place: tempfile::TempDir,
}

impl Scene {
    /// `None`, said, where we may not become another user.
    fn start() -> Option<Self> {
        let place = open_to_all();
        assert!(is_open_to_others(place.path())?, "the place itself is open");
        let [disk, sockets, staging] = ["disk", "sockets", "staging"].map(|name| made(place.path(), name));
        let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 2 * BLOCK));
        tree.put_into(&bucket, "");
        let directory = format!("network.shared_memory_dir={}", sockets.display());
        let sharing = ["network.shared_memory=on", directory.as_str()];
        let setup = Setup::of(&bucket).disk(&disk, "64MiB").options(&sharing).option("worker.memory.prewarm=false");
        let worker = setup.worker(&bucket);
        let setup = Setup::without_origin().option("client.memory.size=8MiB").options(&sharing);
        let mount = setup.option(&format!("write.staging_dir={}", staging.display())).mount([&worker]);
        wait_until_seen(&mount);
        let mut written = File::create(mount.path("written")).unwrap();
        written.write_all(b"not yet uploaded").unwrap();
        eventually("it is staged", SOON, || !entries(&staging).is_empty());
        let directories = [disk, sockets, staging];
        Some(Self { _written: written, mount, worker, bucket, directories, _place: place })
    }
}

#[test]
fn another_user_can_neither_list_nor_open_slabs_sockets_and_what_is_staged() {
    let Some(scene) = Scene::start() else { return };
    for directory in &scene.directories {
        assert_eq!(directory.metadata().unwrap().mode() & 0o7777, 0o700, "{}", directory.display());
        let kept = entries(directory);
        assert!(!kept.is_empty());
        for path in kept.iter().chain([directory]) {
            assert_eq!(is_open_to_others(path), Some(false), "{}", path.display());
            assert_eq!(path.metadata().unwrap().mode() & 0o077, 0, "{}", path.display());
        }
    }
}

#[test]
fn a_link_or_another_users_directory_in_the_place_of_a_slab_stops_the_start_in_words() {
    let (bucket, place) = (Bucket::new(), tempfile::tempdir().unwrap());
    let disk = made(place.path(), "disk");
    let precious = place.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    symlink(&precious, disk.join("slab")).unwrap();
    let refused = Setup::of(&bucket).disk(&disk, "8MiB").prepare_up(&bucket.url()).start();
    let slab = disk.join("slab").display().to_string();
    refused.failed(5, &[&slab, "it is a symbolic link", "next: ", "readlink -f"]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");

    if !is_root() {
        return skipped("only root gives a directory to another user");
    }
    std::fs::remove_file(disk.join("slab")).unwrap();
    std::os::unix::fs::chown(&disk, Some(STRANGER), None).unwrap();
    let refused = Setup::of(&bucket).disk(&disk, "8MiB").prepare_up(&bucket.url()).start();
    refused.failed(5, &[disk.to_str().unwrap(), "belongs to user 65534", "next: ", "chown -R 0"]);
    let staging = format!("write.staging_dir={}", disk.display());
    let refused = Setup::of(&bucket).option(&staging).prepare_up(&bucket.url()).start();
    refused.failed(5, &[disk.to_str().unwrap(), "belongs to user 65534", "next: ", "chown -R 0"]);
}

#[test]
fn root_of_another_container_gets_nothing_of_what_a_worker_and_mounts_have() {
    let Some(scene) = Scene::start() else { return };
    let up = Setup::of(&scene.bucket).up(&scene.bucket);
    let sockets = up.sockets();
    let of_up = sockets[0].parent().unwrap().to_owned();
    let directories: Vec<PathBuf> = scene.directories.iter().cloned().chain([of_up]).collect();
    let kept = scene.directories.iter().flat_map(|directory| entries(directory)).chain(sockets);
    let paths = directories.iter().cloned().chain(kept).map(|path| format!("path:{}", path.display()));
    let pids = [scene.worker.pid(), scene.mount.pid(), up.pid()];
    let processes = pids.map(|pid| format!("process:{pid}"));
    let mut tries: Vec<String> = paths.chain(processes).collect();
    tries.push(format!("port:{}", scene.worker.address()));

    // The tries are good ones: whose things they are gets them. Not all systems let even it look into processes.
    for attempt in intrude(&tries).iter().filter(|attempt| !attempt.what.starts_with("process:")) {
        assert_ne!(attempt.outcome, Outcome::Refused, "{attempt:?}");
    }
    tries.extend(directories.iter().map(|directory| format!("bind:{}", directory.display())));
    tries.extend(pids.map(|pid| format!("trace:{pid}")));
    for sees_processes in [true, false] {
        let Some(attempts) = intrude_from_container(&tries, sees_processes) else { return };
        assert!(attempts.len() >= tries.len(), "{attempts:#?}");
        let let_in: Vec<_> = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Refused).collect();
        assert!(let_in.is_empty(), "{let_in:#?}");
    }
}

/// Has `forebay key` make the key of a cluster, and a reader's certificate by it: the settings of those who have them.
fn credentials(key: &Path, reader: &Path) -> [Vec<String>; 2] {
    let made = finish(forebay(&[]).args(["key", "create"]), SOON).succeeded().text();
    std::fs::write(key, made).unwrap();
    std::fs::set_permissions(key, Permissions::from_mode(0o600)).unwrap();
    let key = format!("security.key_file={}", key.display());
    let issue = ["key", "issue", "--role", "reader", "--client", "team-a", "-o", &key, "--output"];
    let _ = finish(forebay(&[]).args(issue).arg(reader), SOON).succeeded();
    let files = [("cert_file", "tls.crt"), ("cert_key_file", "tls.key"), ("ca_file", "ca.crt")];
    let files = files.map(|(key, name)| format!("security.{key}={}", reader.join(name).display()));
    [vec!["security.mode=key".to_owned(), key], [vec!["security.mode=mtls".to_owned()], files.to_vec()].concat()]
}

/// On the host's network, and as the host's root: nothing keeps it from the socket.
#[test]
fn a_privileged_container_with_the_directory_of_a_workers_socket_sees_memory_with_a_certificate_alone() {
    if !is_root() {
        return skipped("only root has a privileged container");
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 4 * BLOCK));
    tree.put_into(&bucket, "");
    // What the container does not see, and what it does.
    let (hidden, given) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [theirs, root, run] = ["sockets", "mnt", "run"].map(|name| made(given.path(), name));
    let [key, reader] = credentials(&hidden.path().join("cluster.key"), &given.path().join("reader"));
    let sockets = hidden.path().join("sockets");
    let sharing = |directory: &Path| {
        let directory = format!("network.shared_memory_dir={}", directory.display());
        vec!["network.shared_memory=on".to_owned(), directory]
    };
    let start = |security: &[String]| {
        let setup = Setup::of(&bucket).option("worker.memory.prewarm=false");
        let settings = [sharing(&sockets), security.to_vec()].concat();
        settings.iter().fold(setup, |setup, setting| setup.option(setting)).worker(&bucket)
    };
    let off = ["security.mode=off".to_owned()];
    let (open, closed) = (start(&off), start(&key));

    let [shown, sockets_there] = [hidden.path(), theirs.as_path()].map(Path::display);
    let prepare = format!("mount --bind {} {sockets_there}; mount -t tmpfs none {shown}", sockets.display());
    let container = match Container::privileged(&prepare) {
        Ok(container) => container,
        Err(reason) => return skipped(&format!("there can be no privileged container here: {reason}")),
    };
    let key_there = container.run(Command::new("cat").arg(hidden.path().join("cluster.key")));
    assert_ne!(key_there.code, Some(0), "it has no key");

    // In plain text, at the sockets of both.
    let looked = |worker: &Worker| {
        let (address, kept) = (format!("{}@", worker.address()), entries(&sockets));
        let mut names = kept.iter().filter_map(|path| path.file_name()?.to_str());
        let socket = names.find(|name| name.starts_with(&address) && name.ends_with(".sock"));
        let window = format!("window:{}", theirs.join(socket.expect("the worker's socket")).display());
        attempts(container.run(&intruder(&[window]))).remove(0)
    };
    let (of_open, of_closed) = (looked(&open), looked(&closed));
    assert_eq!(of_open.outcome, Outcome::Got, "whoever is root has it where nothing is to be proved: {of_open:?}");
    assert_eq!(of_closed.outcome, Outcome::Refused, "{of_closed:?}");

    let address = closed.address().to_string();
    let there = |words: &[&str], settings: &[String]| {
        let mut command = forebay(&[("FOREBAY_RUN_DIR", run.display().to_string())]);
        let settings = settings.iter().flat_map(|setting| ["-o", setting]);
        container.run(command.envs([UCX_ON_LOOPBACK]).args(words).arg(&root).args(settings))
    };
    let mount = |security: &[String]| {
        let log = format!("log.file={}", given.path().join("log").display());
        let usual = ["client.memory.size=8MiB".to_owned(), "write.mode=none".to_owned(), log];
        let settings = [&sharing(&theirs)[..], &usual, security].concat();
        there(&["mount", "--json", "--workers", &address], &settings)
    };
    let refused = mount(&off);
    assert!(refused.code != Some(0) && refused.stderr.contains("it speaks TLS only"), "{refused:?}");

    let _ = mount(&reader).succeeded();
    let (file, path) = (tree.file("file00"), root.join("file00"));
    let read = container.run(Command::new("cat").arg(&path)).succeeded().stdout;
    assert!(read.len() as u64 == file.size && file.data.first_difference(0, &read).is_none());
    let input = format!("if={}", path.display());
    eventually("the mount sees the worker's memory", SOON, || {
        let direct = [input.as_str(), "of=/dev/null", "bs=1M", "iflag=direct", "status=none"];
        let _ = container.run(Command::new("dd").args(direct)).succeeded();
        let asked = there(&["stats", "--all", "--json"], &reader).text();
        let own: Option<Value> = asked.lines().last().and_then(|line| serde_json::from_str(line).ok());
        own.is_some_and(|own| own["window"]["workers"][0]["state"] == "open")
    });
    drop(container);
    eventually("what ended with its container sees nothing", SOON, || closed.counter("/window/connections") == 0);
}
