//! Configuration, from wherever it comes.

use forebay_config::import::{Import, alluxio_properties, juicefs_mount};
use forebay_config::{Config, ConfigErrors, KEYS, Loaded, Origin, Sources, example_toml};
use forebay_identity::Scope;
use forebay_node::fluid::{self, Line, RuntimeConfig};
use forebay_types::{ByteSize, Role, format_duration, parse_duration};

use crate::input::{Input, Output};
use crate::targets::Seed;

/// What is set, as a file: the lines of `conf show` that are not of defaults. Those say the same each time, and reading 200 of them
/// takes a hundred times as long as most inputs.
fn as_file(loaded: &Loaded) -> String {
    let set = KEYS.iter().filter(|key| loaded.origin(key.name) != Origin::Default);
    set.filter_map(|key| Some(format!("{} = {}\n", key.name, key.value_toml(&loaded.config)?))).collect()
}

/// What is shown of a configuration is one that says the same.
fn shows_itself(loaded: &Loaded) {
    let file = as_file(loaded);
    match Config::load(&Sources::new().text("shown.toml", file.clone())) {
        Ok(again) => {
            assert_eq!(as_file(&again), file);
            assert!(again.config == loaded.config, "what is shown is not all that is set:\n{file}");
        }
        Err(errors) => unreachable!("{errors}\n{file}"),
    }
}

/// Problems are told, each in some words.
fn are_told(errors: &ConfigErrors) {
    assert!(!errors.problems().is_empty());
    assert!(errors.problems().iter().all(|problem| !problem.to_string().is_empty()));
}

pub(super) mod config {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pairs = input.u8() % 4;
        let mut variables = Vec::new();
        for _ in 0..pairs {
            let (name, value) = (text(input.piece()), text(input.piece()));
            variables.push((format!("FOREBAY_{name}"), value));
        }
        let flags: Vec<String> = (0..input.u8() % 4).map(|_| text(input.piece())).collect();
        let sources = Sources::new().text("fuzz.toml", text(input.rest())).environment(variables).flags(flags);
        match Config::load(&sources) {
            Ok(loaded) => {
                let again = Config::load(&sources).expect("it loads again");
                assert_eq!(as_file(&again), as_file(&loaded), "two readings are one");
                shows_itself(&loaded);
            }
            Err(errors) => are_told(&errors),
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let file = "[worker]\nmemory.size = \"16GiB\"\ndisks = [\"/nvme/forebay:500GiB\"]\n\n[client]\n\
                    origin.direct = true\nlocal.size = \"1GiB\"\n";
        let settings = Output::default().u8(1).piece("WORKER_MEMORY_SIZE").piece("2GiB").u8(1).piece("mounts=/=s3://b");
        let bad = "[worker]\nmemory.sise = 3\n[[[\n";
        vec![
            ("file", Output::default().u8(0).u8(0).bytes(file).done()),
            ("everywhere", settings.bytes(file).done()),
            ("bad", Output::default().u8(0).u8(0).bytes(bad).done()),
            ("some_of_the_example", Output::default().u8(0).u8(0).bytes(example()).done()),
        ]
    }

    /// The settings of the example, without what is said about them.
    fn example() -> String {
        let example = example_toml();
        let lines =
            example.lines().map(|line| line.strip_prefix('#').filter(|line| line.contains(" = ")).unwrap_or(line));
        let settings = lines.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with(' '));
        settings.map(|line| format!("{line}\n")).take(60).collect()
    }
}

pub(super) mod quantities {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let Ok(text) = str::from_utf8(bytes) else { return };
        if let Ok(size) = text.parse::<ByteSize>() {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        if let Ok(duration) = parse_duration(text) {
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let texts = [("size", "1.5GiB"), ("bytes", "4096"), ("decimal", "2 kb"), ("time", "1.5h"), ("micro", "250µs")];
        texts.into_iter().map(|(name, text)| (name, text.as_bytes().to_vec())).collect()
    }
}

pub(super) mod listed_workers {
    use super::*;

    const KEY: &str = "cluster.workers";

    fn workers(text: &str) -> Result<Loaded, ConfigErrors> {
        Config::load(&Sources::new().flags([format!("{KEY}={text}")]))
    }

    pub(crate) fn run(bytes: &[u8]) {
        let Ok(text) = str::from_utf8(bytes) else { return };
        let loaded = match workers(text) {
            Ok(loaded) => loaded,
            Err(errors) => return are_told(&errors),
        };
        shows_itself(&loaded);
        let scope = Scope::new("forebay", "prod").expect("both are names");
        let listed = &loaded.config.cluster_workers;
        for (at, worker) in listed.iter().enumerate() {
            assert!(worker.address.port > 0 && !worker.address.host.as_str().is_empty());
            // A name that no certificate can show would be waited for in vain.
            let fits = worker.name.as_ref().is_none_or(|name| scope.identity(Role::Worker, name).is_ok());
            assert!(fits, "{worker} has a name that is none of an identity");
            assert!(listed[..at].iter().all(|other| other.address != worker.address), "{worker} is listed twice");
            let alone = workers(&worker.to_string()).expect("what is written of one is one");
            assert_eq!(alone.config.cluster_workers, std::slice::from_ref(worker));
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let texts = [
            ("plain", "node1:29999,10.0.0.2:29999"),
            ("named", "w1=node1:29999, Rack_2.node-2 = [fd00::1]:29999"),
            ("array", "[\"w1=node1:29999\", \"node2:1\"]"),
            ("twice", "w1=node1:29999,w2=node1:29999"),
            ("no_name", "..=node1:29999"),
        ];
        texts.into_iter().map(|(name, text)| (name, text.as_bytes().to_vec())).collect()
    }
}

/// What becomes of a configuration of another system is one of ours.
fn is_ours(import: Result<Import, ConfigErrors>) {
    match import {
        Ok(import) => match Config::load(&Sources::new().text("imported.toml", import.toml.clone())) {
            Ok(loaded) => shows_itself(&loaded),
            Err(errors) => unreachable!("{errors}\n{}", import.toml),
        },
        Err(errors) => are_told(&errors),
    }
}

pub(super) mod import_alluxio {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        is_ours(alluxio_properties("alluxio-site.properties", bytes));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let site = "# a site\nalluxio.dora.client.ufs.root=s3://bucket/data\nalluxio.worker.page.store.sizes=500GB\n\
                    alluxio.worker.page.store.dirs=/mnt/nvme0\nalluxio.worker.rpc.port : 29999\n\
                    s3a.accessKeyId=AKIA\nalluxio.user.metadata.cache.expiration.time 10min\nsome.other\\\n  .thing=1\n";
        let latin = b"alluxio.worker.hostname=gr\xfc\xdfe\naws.region=\\u0065u\n".to_vec();
        vec![("site", site.as_bytes().to_vec()), ("latin1", latin)]
    }
}

pub(super) mod import_juicefs {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        if let Ok(text) = str::from_utf8(bytes) {
            is_ours(juicefs_mount("mount.sh", text));
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let command = "#!/bin/sh\njuicefs mount redis://localhost /mnt/jfs --cache-dir /nvme/jfs:/nvme2 \\\n  --cache-size 102400 \
                       --attr-cache=1s -o allow_other,ro -d 'a b'\n";
        let fstab = "redis://localhost:6379/1 /jfs juicefs _netdev,max-uploads=50,writeback,cache-size=204800 0 0\n";
        vec![("command", command.into()), ("fstab", fstab.into())]
    }
}

pub(super) mod fluid_runtime {
    use super::*;

    /// The longest argument that Linux takes, with the zero behind it.
    const MAX_ARGUMENT: usize = 128 << 10;

    /// What variables may be called. Written down once more: what is tried is judged by it.
    const CREDENTIALS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

    /// What a pod of each part runs, or why it runs nothing.
    fn lines(text: &str) -> Option<[Result<Line, String>; 3]> {
        let config = RuntimeConfig::parse(text).ok()?;
        let made = [fluid::coordinator(&config), fluid::worker(&config), fluid::mount(&config)];
        Some(made.map(|line| line.map_err(|fault| fault.to_string())))
    }

    /// What a command line sets. Each word of it is one that the program expects there, whatever Fluid has written.
    fn settings(line: &Line) -> Vec<&str> {
        let mut words = line.words.iter().map(String::as_str);
        let is_mount = match words.next() {
            Some("coordinator" | "worker") => false,
            Some("mount") => {
                assert_eq!(words.next(), Some("--foreground"));
                true
            }
            other => unreachable!("{other:?} is no part of a runtime"),
        };
        let mut settings = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "-o" => settings.push(words.next().expect("a setting")),
                "--read-only" if is_mount => assert!(settings.is_empty(), "it comes before all settings"),
                "--" if is_mount => {
                    assert!(words.next().is_some() && words.next().is_none(), "the directory is the last word");
                    return settings;
                }
                other => unreachable!("{other:?} is no option of ours"),
            }
        }
        assert!(!is_mount, "it mounts nowhere");
        settings
    }

    pub(crate) fn run(bytes: &[u8]) {
        let Ok(text) = str::from_utf8(bytes) else { return };
        let Some(made) = lines(text) else { return };
        assert_eq!(lines(text).as_ref(), Some(&made), "two readings are one");
        for line in made {
            let line = match line {
                Ok(line) => line,
                Err(refusal) => {
                    assert!(!refusal.is_empty());
                    continue;
                }
            };
            // What else is long is long in the file, too: a size of three letters has 21 digits.
            assert!(line.words.iter().all(|word| word.len() < MAX_ARGUMENT + 8 * bytes.len()));
            let is_credential = |name: &str| CREDENTIALS.iter().any(|prefix| name.starts_with(prefix));
            assert!(line.secrets().all(is_credential), "a variable that is no credential: {line}");
            if let Err(errors) = Config::load(&Sources::new().flags(settings(&line))) {
                are_told(&errors);
            }
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let bucket = r#"{"mounts": [{"mountPoint": "s3://imagenet/train", "name": "imagenet", "path": "/imagenet",
            "options": {"origin.s3.region": "us-east-1"},
            "encryptOptions": {"AWS_ACCESS_KEY_ID": "/etc/fluid/secrets/minio/access-key"}}],
            "accessModes": ["ReadOnlyMany"], "targetPath": "/runtime-mnt/cache/default/imagenet/cache-fuse",
            "master": {"enabled": true, "name": "imagenet-master", "options": {"security.mode": "key"}, "replicas": 1,
            "service": {"name": "svc-imagenet-master"}}, "worker": {"name": "imagenet-worker", "replicas": 2,
            "options": {"worker.rpc.port": "29990"}, "service": {"name": "svc-imagenet-worker"}, "tieredStoreLevels": [
            {"mountPaths": ["/dev/shm"], "mediumType": "MEM", "quotas": ["4Gi"]},
            {"mountPaths": ["/a", "/b"], "mediumType": "HDD", "quotas": ["100Gi", "1.5T"], "high": "0.5"}]},
            "client": {"name": "imagenet-client", "options": {"posix.gid": "100"}, "service": {"name": ""}}}"#;
        let etcd = r#"{"master": {"name": "m", "replicas": 2, "options": {"cluster.etcd.endpoints": "http://etcd1"},
            "service": {"name": "s"}}, "worker": {"name": "w", "replicas": 3}, "client": {"tieredStoreLevels":
            [{"mountPaths": ["/dev/shm"], "mediumType": "MEM", "quotas": ["512Mi"]}]}, "targetPath": "--help"}"#;
        let crowd = r#"{"worker": {"name": "w", "replicas": 4294967295, "service": {"name": "s"}}, "client": {},
            "master": {"replicas": 4294967295, "options": {"cluster.etcd.endpoints": "e"}}, "targetPath": "/mnt"}"#;
        let memory = r#"{"worker": {"tieredStoreLevels": [{"mountPaths": ["/a", "/b"], "mediumType": "MEM",
            "quotas": ["10Ei", "10Ei"]}]}}"#;
        let preload = r#"{"worker": {}, "mounts": [{"encryptOptions": {"LD_PRELOAD": "/etc/fluid/secrets/s/k"}}]}"#;
        let texts = [("bucket", bucket), ("etcd", etcd), ("crowd", crowd), ("memory", memory), ("preload", preload)];
        texts.into_iter().map(|(name, text)| (name, text.as_bytes().to_vec())).collect()
    }
}
