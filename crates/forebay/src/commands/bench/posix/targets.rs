//! The directories that are measured, and what is known of the mounts that they are on.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_benchmark::posix::Cache;
use forebay_benchmark::posix::run::{AnyCache, Measure, MountPoint};
use forebay_benchmark::record::Target;
use forebay_config::Loaded;
use tokio::runtime::Handle;

use super::cache::Coordinated;
use super::mounted::Mounted;
use crate::exit::{Exit, Fault};
use forebay_node::state::{self, RunState};

/// The kind of file system that a Forebay mount is.
const FOREBAY: &str = "fuse.forebay";

/// What is measured, the directory of interest first, how many workers serve it (0 where that is not known), and where they
/// are.
pub(super) struct Targets {
    pub(super) measures: Vec<Measure>,
    pub(super) workers: u32,
    pub(super) addresses: Vec<String>,
}

/// What knows of caches.
pub(super) struct Caches<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) coordinator: Option<&'a str>,
    pub(super) cold_command: Option<&'a str>,
    pub(super) runtime: Handle,
}

impl Targets {
    /// # Errors
    /// When a directory is not there, or one is named twice.
    pub(super) fn find(directory: &Path, against: &[PathBuf], caches: &Caches<'_>) -> anyhow::Result<Self> {
        let mut found = Self { measures: Vec::new(), workers: 0, addresses: Vec::new() };
        for (number, path) in std::iter::once(directory).chain(against.iter().map(PathBuf::as_path)).enumerate() {
            let place = path.canonicalize().map_err(|error| {
                let what = format!("{} cannot be measured: {error}", path.display());
                Fault::new(Exit::NotFound, what, "create it, or name a directory that is there")
            })?;
            let mount = MountPoint::around(&place).with_context(|| format!("{} is on no mount", place.display()))?;
            let shown =
                place.to_str().with_context(|| format!("{} is no text, and fio takes none", place.display()))?;
            if found.measures.iter().any(|measure| measure.target.path == shown) {
                let what = format!("{shown} is named twice");
                return Err(Fault::new(Exit::Usage, what, "name each directory once").into());
            }
            let (cache, workers, addresses) = caches.of(&mount, &place, number == 0)?;
            if number == 0 {
                (found.workers, found.addresses) = (workers, addresses);
            }
            let target = Target {
                name: found.name_for(&place, &mount),
                path: shown.to_owned(),
                file_system: mount.kind,
                cache: cache.describe(),
                cold_is_memory: cache.cold_is_memory(),
            };
            found.measures.push(Measure { target, cache });
        }
        Ok(found)
    }

    /// `forebay`, or the last part of the path; with a number, where another has that name.
    fn name_for(&self, place: &Path, mount: &MountPoint) -> String {
        let last = place.file_name().map_or("root".into(), |name| name.to_string_lossy());
        let name = if mount.kind == FOREBAY { "forebay".to_owned() } else { last.into_owned() };
        let taken = |name: &str| self.measures.iter().any(|measure| measure.target.name == name);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(name)
    }
}

impl Caches<'_> {
    /// The cache of a mount, of which `place` is measured, its workers, and where those are as this machine knows it. `named`:
    /// whether `--coordinator` is about this one.
    fn of(&self, mount: &MountPoint, place: &Path, named: bool) -> anyhow::Result<(Box<dyn Cache>, u32, Vec<String>)> {
        let any = || AnyCache::new(mount.clone(), self.cold_command.map(str::to_owned));
        if mount.kind != FOREBAY {
            return Ok((Box::new(any()), 0, Vec::new()));
        }
        let state = state::all().into_iter().find(|state| Path::new(&state.mountpoint) == mount.at);
        let mut addresses = state.as_ref().map_or_else(Vec::new, |state| state.workers.clone());
        let with_workers = |inner: Box<dyn Cache>| -> Box<dyn Cache> {
            Box::new(Mounted::new(inner, (mount.at.clone(), place), state.as_ref(), self.loaded, &self.runtime))
        };
        let Some(address) = self.coordinator_of(state.as_ref(), named) else {
            let next = "name it with --coordinator, or measure the warm state only: --states warm";
            let reason =
                format!("no coordinator is known that would empty the cache of {}; {next}", mount.at.display());
            return Ok((with_workers(Box::new(any().because(reason))), addresses.len() as u32, addresses));
        };
        let cache = Coordinated::new(mount.at.clone(), address, &self.loaded.config, self.runtime.clone())?;
        // Now rather than after the data has been written.
        let workers = cache.workers()?;
        let count = u32::try_from(workers.len()).unwrap_or(u32::MAX);
        addresses.extend(workers);
        Ok((with_workers(Box::new(cache)), count, addresses))
    }

    /// The one that was named, that of the mount's own process, or that of the configuration. (That of another mount on this
    /// machine would empty another cache.)
    fn coordinator_of(&self, state: Option<&RunState>, named: bool) -> Option<String> {
        let said = self.coordinator.filter(|_| named).map(str::to_owned);
        let of_process = || state.and_then(|state| state.coordinator.clone());
        let configured = || {
            let host = self.loaded.config.coordinator_hostname.as_ref()?.to_string();
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Some(format!("{host}:{}", self.loaded.config.coordinator_port))
        };
        said.or_else(of_process).or_else(configured)
    }
}

/// The mountpoint of the only mount on this machine: what is measured when no directory is named.
///
/// # Errors
/// When there is none, or more than one.
pub(super) fn only_mount() -> anyhow::Result<PathBuf> {
    let mounts = state::all();
    let next = "name the directory to measure, as in `forebay bench posix /mnt/data`";
    match &mounts[..] {
        [mount] => Ok(PathBuf::from(&mount.mountpoint)),
        [] => Err(Fault::new(Exit::Usage, "no forebay mount is on this machine", next).into()),
        several => {
            let names: Vec<_> = several.iter().map(|mount| mount.mountpoint.as_str()).collect();
            let what = format!("several mounts are on this machine: {}", names.join(", "));
            Err(Fault::new(Exit::Usage, what, next).into())
        }
    }
}
