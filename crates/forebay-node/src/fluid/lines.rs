//! Command lines of this program for the parts of a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::runtime_config::{Component, Level, RuntimeConfig, bytes};
use crate::error::{Exit, Fault};

/// Where workers listen, if their options do not say otherwise.
const WORKER_PORT: &str = "29999";
/// Where coordinators listen, if their options do not say otherwise.
const COORDINATOR_PORT: &str = "19999";
/// With this option workers find each other through etcd.
const ETCD: &str = "cluster.etcd.endpoints";
/// Of a volume, where Fluid does not say. What is beyond an emptyDir's quota has its pod evicted.
const SHARE_OF_DISK: f64 = 0.9;
/// The variables that a data set may set for a worker: where it finds credentials, and nothing that loads code.
const CREDENTIALS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
/// What names of pods may take on a command line: Linux takes no argument of 128 KiB, and the option is in it, too.
const MAX_NAMES: u64 = 127 << 10;

/// A command line, and the files whose content goes into its environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The words behind the name of the program.
    pub words: Vec<String>,
    /// Variables and the files that have their values.
    secrets: BTreeMap<String, PathBuf>,
}

impl Line {
    fn new(words: &[&str]) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), secrets: BTreeMap::new() }
    }

    fn set(&mut self, key: &str, value: &str) {
        self.words.extend(["-o".to_owned(), format!("{key}={value}")]);
    }

    fn set_all<'a>(&mut self, options: impl IntoIterator<Item = (&'a String, &'a String)>) {
        options.into_iter().for_each(|(key, value)| self.set(key, value));
    }

    /// The variables whose values are in files.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str)
    }

    /// The command, with what the files hold.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn command(&self, program: &Path) -> Result<Command, Fault> {
        let mut command = Command::new(program);
        command.args(&self.words);
        for (name, file) in &self.secrets {
            let value = std::fs::read_to_string(file).map_err(|error| {
                let next = "name a Secret that is there in the `encryptOptions` of the Dataset";
                Fault::new(Exit::Usage, format!("cannot read {name} from {}: {error}", file.display()), next)
            })?;
            command.env(name, value.trim_end_matches('\n'));
        }
        Ok(command)
    }
}

/// For people: a word a line, and no secret.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, file) in &self.secrets {
            writeln!(f, "{name}=$(<{})", file.display())?;
        }
        writeln!(f, "forebay {}", self.words.join("\n    "))
    }
}

/// The coordinator of a runtime.
///
/// # Errors
/// When several would each have a state of their own, or the options contradict each other.
pub fn coordinator(config: &RuntimeConfig) -> Result<Line, Fault> {
    let master = part(config.master.as_ref(), "master")?;
    if master.replicas > 1 && !master.options.contains_key(ETCD) {
        let next = format!("set `master.replicas: 1`, or `{ETCD}` in the options of the CacheRuntime");
        return Err(Fault::new(Exit::Usage, "several coordinators need an etcd", next));
    }
    let mut line = Line::new(&["coordinator"]);
    set_mounts(&mut line, config)?;
    set_workers(&mut line, config, &master.options)?;
    let names = std::iter::once(master.service.name.clone()).chain(pods(master, "")?);
    line.set("network.http.hosts", &names.collect::<Vec<_>>().join(","));
    line.set_all(&master.options);
    Ok(line)
}

/// Where the coordinator of a runtime is, `HOST:PORT`.
///
/// # Errors
/// When there is none.
pub fn coordinator_address(config: &RuntimeConfig) -> Result<String, Fault> {
    let master = part(config.master.as_ref(), "master")?;
    let port = master.options.get("coordinator.port").map_or(COORDINATOR_PORT, String::as_str);
    Ok(format!("{}:{port}", master.service.name))
}

/// A worker of a runtime.
///
/// # Errors
/// When its store or its credentials make no sense, or the mounts of the data set contradict each other.
pub fn worker(config: &RuntimeConfig) -> Result<Line, Fault> {
    let worker = part(config.worker.as_ref(), "worker")?;
    let mut line = Line::new(&["worker"]);
    set_mounts(&mut line, config)?;
    let store = Store::of(&worker.tiered_store_levels)?;
    // Without any level it caches as much as a worker does that nobody told.
    if !worker.tiered_store_levels.is_empty() {
        line.set("worker.memory.size", &format!("{}B", store.memory));
    }
    if !store.disks.is_empty() {
        line.set("worker.disks", &store.disks.join(","));
    }
    line.set_all(&worker.options);
    for mount in &config.mounts {
        for (name, file) in &mount.encrypt_options {
            if !CREDENTIALS.iter().any(|prefix| name.starts_with(prefix)) {
                let next =
                    "call it as the variable that has it, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, GOOGLE_…, AZURE_…";
                return Err(Fault::new(Exit::Usage, format!("encryptOption `{name}` is no credential"), next));
            }
            let known = line.secrets.insert(name.clone(), file.clone());
            if known.is_some_and(|known| known != *file) {
                return Err(contradiction(&format!("encryptOption `{name}`")));
            }
        }
    }
    Ok(line)
}

/// A mount of a runtime.
///
/// # Errors
/// When it would cache on a disk, or mount nowhere.
pub fn mount(config: &RuntimeConfig) -> Result<Line, Fault> {
    let client = part(config.client.as_ref(), "client")?;
    let mut line = Line::new(&["mount", "--foreground"]);
    if config.access_modes.iter().all(|mode| mode == "ReadOnlyMany") {
        line.words.push("--read-only".to_owned());
    }
    set_workers(&mut line, config, &client.options)?;
    if !client.tiered_store_levels.is_empty() {
        let store = Store::of(&client.tiered_store_levels)?;
        if !store.disks.is_empty() {
            let next = "give the client a level of `processMemory`, and the disks to the workers";
            return Err(Fault::new(Exit::Usage, "a client caches in memory only", next));
        }
        line.set("client.memory.size", &format!("{}B", store.memory));
    }
    line.set_all(&client.options);
    line.words.extend(["--".to_owned(), config.target_path.clone()]);
    Ok(line)
}

/// The jobs of a DataLoad: `paths` and `replicas` are separated by colons.
///
/// # Errors
/// When there is nothing to load.
pub fn loads(paths: &str, replicas: &str, coordinator: &str) -> Result<Vec<Line>, Fault> {
    let mut replicas = replicas.split(':');
    let mut lines = Vec::new();
    for path in paths.split(':').filter(|path| !path.is_empty()) {
        let mut line = Line::new(&["job", "load", "--path", path, "--submit", "--watch", "--coordinator", coordinator]);
        // One is what Fluid says for what a person does not.
        if let Some(replicas) = replicas.next().filter(|replicas| !matches!(*replicas, "" | "1")) {
            line.words.extend(["--replicas".to_owned(), replicas.to_owned()]);
        }
        lines.push(line);
    }
    if lines.is_empty() {
        let next = "name paths in `target` of the DataLoad; / is all of the data set";
        return Err(Fault::new(Exit::Usage, "the DataLoad names no path", next));
    }
    Ok(lines)
}

fn part<'a>(component: Option<&'a Component>, name: &str) -> Result<&'a Component, Fault> {
    component.ok_or_else(|| {
        let next = format!("the CacheRuntime must not have `{name}.disabled: true`");
        Fault::new(Exit::Usage, format!("the runtime has no {name}"), next)
    })
}

fn contradiction(what: &str) -> Fault {
    let next = "give both mounts the same, or make a data set of each";
    Fault::new(Exit::Usage, format!("two mounts of the data set have a different {what}"), next)
}

/// What the data set shows, and the options of all its mounts, which are those of the process.
fn set_mounts(line: &mut Line, config: &RuntimeConfig) -> Result<(), Fault> {
    let path = |path: &str| if path.is_empty() { "/".to_owned() } else { path.to_owned() };
    let mounts = config.mounts.iter().map(|mount| format!("{}={}", path(&mount.path), mount.mount_point));
    line.set("mounts", &mounts.collect::<Vec<_>>().join(","));
    let mut options: BTreeMap<&String, &String> = BTreeMap::new();
    for (key, value) in config.mounts.iter().flat_map(|mount| &mount.options) {
        if options.insert(key, value).is_some_and(|known| known != value) {
            return Err(contradiction(&format!("option `{key}`")));
        }
    }
    line.set_all(options);
    Ok(())
}

/// The workers, by the names of their pods.
fn set_workers(line: &mut Line, config: &RuntimeConfig, own: &BTreeMap<String, String>) -> Result<(), Fault> {
    if own.contains_key(ETCD) {
        return Ok(());
    }
    let worker = part(config.worker.as_ref(), "worker")?;
    let port = worker.options.get("worker.rpc.port").map_or(WORKER_PORT, String::as_str);
    line.set("cluster.workers", &pods(worker, &format!(":{port}"))?.join(","));
    Ok(())
}

/// The names of a part's pods, with something behind each.
fn pods(part: &Component, behind: &str) -> Result<Vec<String>, Fault> {
    let (name, service) = (&part.name, &part.service.name);
    // With a dash, a number, a dot and a comma.
    let each = (name.len() + service.len() + behind.len() + 13) as u64;
    if each.saturating_mul(part.replicas.into()) > MAX_NAMES {
        let next = format!("have fewer of them, or set `{ETCD}` in the options of the CacheRuntime");
        let what = format!("the names of {} pods do not fit into a command line", part.replicas);
        return Err(Fault::new(Exit::Usage, what, next));
    }
    Ok((0..part.replicas).map(|replica| format!("{name}-{replica}.{service}{behind}")).collect())
}

/// Where a part caches.
#[derive(Debug, Default, PartialEq, Eq)]
struct Store {
    /// Bytes.
    memory: u64,
    /// As `worker.disks` has them.
    disks: Vec<String>,
}

impl Store {
    fn of(levels: &[Level]) -> Result<Self, Fault> {
        let mut store = Self::default();
        for (number, level) in levels.iter().enumerate() {
            let wrong = |what: &str| {
                let next = "write quotas as 100Gi, and `high` as 0.9";
                Fault::new(Exit::Usage, format!("tieredStore level {number}: {what}"), next)
            };
            let high = match level.high.as_str() {
                "" => SHARE_OF_DISK,
                high => {
                    let high = high.parse::<f64>().ok().filter(|high| *high > 0.0 && *high <= 1.0);
                    high.ok_or_else(|| wrong("`high` is no share"))?
                }
            };
            for (path, quota) in level.mount_paths.iter().zip(&level.quotas) {
                let size = bytes(quota).ok_or_else(|| wrong(&format!("`{quota}` is no size")))?;
                if level.medium_type == "MEM" {
                    let memory = store.memory.checked_add(size);
                    store.memory = memory.ok_or_else(|| wrong("no machine has so much memory"))?;
                } else {
                    // Below the volume, whose root belongs to somebody else.
                    store.disks.push(format!(
                        "{}/forebay:{}B",
                        path.trim_end_matches('/'),
                        (size as f64 * high) as u64
                    ));
                }
            }
        }
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn config(change: impl FnOnce(&mut RuntimeConfig)) -> RuntimeConfig {
        let mut config = RuntimeConfig::parse(include_str!("golden/s3.json")).unwrap();
        change(&mut config);
        config
    }

    fn refusal(made: Result<Line, Fault>) -> String {
        made.unwrap_err().to_string()
    }

    /// What Fluid writes, and what becomes of it.
    #[test]
    fn every_part_of_a_runtime_becomes_the_commands_that_are_expected() {
        let golden = [
            ("s3", include_str!("golden/s3.json"), include_str!("golden/s3.txt")),
            ("etcd", include_str!("golden/etcd.json"), include_str!("golden/etcd.txt")),
        ];
        for (name, written, expected) in golden {
            let config = RuntimeConfig::parse(written).unwrap();
            let lines = [coordinator(&config), worker(&config), mount(&config)].map(Result::unwrap);
            let told: String = lines.iter().map(Line::to_string).collect();
            assert_eq!(told, expected, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        let two = config(|config| config.master.as_mut().unwrap().replicas = 2);
        assert!(refusal(coordinator(&two)).contains("etcd"));
        let none = config(|config| config.worker = None);
        assert_eq!(refusal(worker(&none)), "the runtime has no worker");
        let disk = config(|config| {
            let levels = &mut config.worker.as_mut().unwrap().tiered_store_levels;
            config.client.as_mut().unwrap().tiered_store_levels = std::mem::take(levels);
        });
        assert!(refusal(mount(&disk)).contains("memory only"));
        let share = config(|config| config.worker.as_mut().unwrap().tiered_store_levels[0].high = "90%".into());
        assert!(refusal(worker(&share)).contains("level 0: `high`"));
        let size = config(|config| config.worker.as_mut().unwrap().tiered_store_levels[0].quotas = vec!["much".into()]);
        assert!(refusal(worker(&size)).contains("`much` is no size"));
        let memory = config(|config| {
            let level = &mut config.worker.as_mut().unwrap().tiered_store_levels[0];
            level.mount_paths = vec!["/dev/shm".to_owned(); 2];
            level.quotas = vec!["10Ei".to_owned(); 2];
        });
        assert!(refusal(worker(&memory)).contains("level 0: no machine"));
        assert!(loads("", "", "c:1").is_err());
    }

    /// Linux would take no such command line, and its names would need hundreds of gigabytes first.
    #[test]
    fn so_many_workers_that_no_command_line_names_them_are_refused() {
        let many = |replicas| config(|config| config.worker.as_mut().unwrap().replicas = replicas);
        for refused in [2_000_000, u32::MAX] {
            for made in [coordinator(&many(refused)), mount(&many(refused))] {
                assert!(refusal(made).contains(&format!("{refused} pods do not fit")));
            }
        }
        let line = mount(&many(1_000)).unwrap();
        assert!(line.words.iter().any(|word| word.ends_with("-999.svc-imagenet-worker:29999")));
        assert!(line.words.iter().all(|word| word.len() < 128 << 10));
    }

    #[test]
    fn a_data_set_sets_credentials_and_no_other_variable() {
        for name in ["LD_PRELOAD", "PATH", "FOREBAY_CONFIG"] {
            let config = config(|config| {
                config.mounts[0].encrypt_options.insert(name.into(), "/etc/fluid/secrets/s/k".into());
            });
            assert!(refusal(worker(&config)).contains(name));
        }
    }

    #[test]
    fn mounts_of_one_data_set_have_the_same_options() {
        let other = |change: fn(&mut super::super::runtime_config::DatasetMount)| {
            config(|config| {
                let mut second = RuntimeConfig::parse(include_str!("golden/s3.json")).unwrap().mounts.remove(0);
                second.path = "/second".into();
                change(&mut second);
                config.mounts.push(second);
            })
        };
        assert!(worker(&other(|_| ())).is_ok());
        let region = other(|mount| drop(mount.options.insert("origin.s3.region".into(), "eu".into())));
        assert!(refusal(worker(&region)).contains("origin.s3.region"));
        let key = other(|mount| drop(mount.encrypt_options.insert("AWS_ACCESS_KEY_ID".into(), "/other".into())));
        assert!(refusal(worker(&key)).contains("AWS_ACCESS_KEY_ID"));
    }

    #[test]
    fn no_secret_is_in_a_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, "the-secret\n").unwrap();
        let config = config(|config| {
            config.mounts[0].encrypt_options = [("AWS_SECRET_ACCESS_KEY".to_owned(), file)].into();
        });
        let line = worker(&config).unwrap();
        let command = line.command(Path::new("/bin/forebay")).unwrap();
        assert!(!line.to_string().contains("the-secret"));
        assert!(command.get_args().all(|word| !word.to_string_lossy().contains("the-secret")));
        let variables: Vec<_> = command.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
        assert_eq!(variables, [(OsStr::new("AWS_SECRET_ACCESS_KEY"), OsStr::new("the-secret"))]);
        std::fs::remove_dir_all(directory.path()).unwrap();
        assert!(line.command(Path::new("/bin/forebay")).is_err());
    }
}
