//! libucp: which one is there, and what it makes of this machine.
//!
//! UCX loads a module for each family of transports, and skips one whose libraries are missing without a word. So the
//! files beside libucp are compared with what this process has mapped after UCX has looked for devices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forebay_ucx::{Library, Resource};
use serde::{Deserialize, Serialize};

use crate::root::Root;

/// libucp, and what it offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ucx {
    /// The file.
    pub path: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Why it cannot be used, and what to do about it.
    pub error: Option<String>,
    /// The names of its transports, each once.
    pub transports: Vec<String>,
    /// Every transport over every device: `rc_mlx5/mlx5_0:1`.
    pub resources: Vec<String>,
    /// Those among them whose bytes the card moves.
    pub rdma: Vec<String>,
    /// The transport modules beside it.
    pub modules: Vec<UcxModule>,
    /// The libibverbs that it uses.
    pub verbs_library: Option<String>,
    /// The release of rdma-core which that is of.
    pub rdma_core: Option<u32>,
    /// Variables that change what it does.
    pub environment: BTreeMap<String, String>,
}

/// A transport module of UCX.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UcxModule {
    /// Its name: `ib`, `rdmacm`, `cma`, …
    pub name: String,
    /// Whether it was loaded: one whose libraries are missing is not.
    pub is_loaded: bool,
}

impl Ucx {
    /// Loads libucp, the file `library` if one is given, and asks it for devices. To be called while the process has one
    /// thread, see [`Library::load`].
    #[must_use]
    pub fn find(library: Option<&Path>) -> Self {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("UCX_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        let environment = environment.collect();
        let library = match Library::load(library) {
            Ok(library) => library,
            Err(error) => return Self { error: Some(error.to_string()), environment, ..Self::default() },
        };
        let resources = library.transports();
        let mapped = Root::default().text("proc/self/maps").unwrap_or_default();
        let folder = library.path().parent().unwrap_or(Path::new("/")).join("ucx");
        let verbs_library = mapped_library(&mapped, "libibverbs");
        let found = Self {
            path: Some(library.path().display().to_string()),
            version: Some(library.version().to_string()),
            error: resources.as_ref().err().map(ToString::to_string),
            modules: UcxModule::all(&Root::default().names(folder), &mapped),
            rdma_core: verbs_library.as_deref().and_then(rdma_core),
            verbs_library,
            environment,
            ..Self::default()
        };
        found.offering(&resources.unwrap_or_default())
    }

    /// The same with what it found.
    #[must_use]
    pub fn offering(self, resources: &[Resource]) -> Self {
        let names: BTreeSet<_> = resources.iter().map(|resource| resource.transport.clone()).collect();
        let rdma = resources.iter().filter(|resource| resource.is_rdma());
        Self {
            transports: names.into_iter().collect(),
            rdma: rdma.map(ToString::to_string).collect(),
            resources: resources.iter().map(ToString::to_string).collect(),
            ..self
        }
    }

    /// The module called `name`.
    #[must_use]
    pub fn module(&self, name: &str) -> Option<&UcxModule> {
        self.modules.iter().find(|module| module.name == name)
    }

    /// Its major and minor version.
    #[must_use]
    pub fn release(&self) -> Option<(u32, u32)> {
        let mut numbers = self.version.as_deref()?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// One line of it.
    #[must_use]
    pub fn summary(&self) -> String {
        match (&self.error, &self.version, &self.path) {
            (None, Some(version), Some(path)) => {
                let rdma = if self.rdma.is_empty() { "no RDMA device here" } else { "RDMA" };
                format!("{version} ({path}): {}; {rdma}", self.transports.join(", "))
            }
            (error, ..) => error.clone().unwrap_or_else(|| "not looked for".to_owned()),
        }
    }
}

impl UcxModule {
    /// The modules among `files`; `mapped` is the process's table of mappings.
    fn all(files: &[String], mapped: &str) -> Vec<Self> {
        let name = |file: &String| {
            let name = file.strip_prefix("libuct_")?.split(['.', '-']).next()?;
            Some(name.to_owned()).filter(|name| !name.is_empty())
        };
        let names: BTreeSet<String> = files.iter().filter_map(name).collect();
        let is_loaded = |name: &str| ['.', '-'].iter().any(|end| mapped.contains(&format!("/libuct_{name}{end}")));
        names.into_iter().map(|name| Self { is_loaded: is_loaded(&name), name }).collect()
    }
}

/// The library called `name` among the mapped files; the drivers of `libibverbs` lie in a folder of that name.
pub(super) fn mapped_library(mapped: &str, name: &str) -> Option<String> {
    let paths = mapped.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let names = ['.', '-'].map(|end| format!("/{name}{end}"));
    paths.into_iter().find(|path| names.iter().any(|name| path.contains(name.as_str()))).map(str::to_owned)
}

/// The release in `libibverbs.so.1.14.44.0`, which rdma-core builds into its libraries' names.
pub(super) fn rdma_core(library: &str) -> Option<u32> {
    library.rsplit_once(".so.")?.1.split('.').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_there_and_not_mapped_did_not_load() {
        let files =
            ["libuct_ib.so.0", "libuct_ib.so.0.0.0", "libuct_rdmacm-1f2e.so.0", "libucx_perftest.so", "libuct_"];
        let mapped = "7f00-7f01 r-xp 0 fe:00 1  /usr/lib/ucx/libuct_ib.so.0.0.0\n\
                      7f02-7f03 r-xp 0 fe:00 2  /usr/lib/libibverbs/libmlx5-rdmav34.so\n\
                      7f04-7f05 r-xp 0 fe:00 3  /usr/lib/libibverbs.so.1.14.44.0";
        let modules = UcxModule::all(&files.map(str::to_owned), mapped);
        let found: Vec<_> = modules.iter().map(|module| (module.name.as_str(), module.is_loaded)).collect();
        assert_eq!(found, [("ib", true), ("rdmacm", false)]);
        let library = mapped_library(mapped, "libibverbs").unwrap();
        assert_eq!((library.as_str(), rdma_core(&library)), ("/usr/lib/libibverbs.so.1.14.44.0", Some(44)));
        assert_eq!((rdma_core("/usr/lib/libibverbs.so.1"), mapped_library("", "libibverbs")), (None, None));
    }
}
