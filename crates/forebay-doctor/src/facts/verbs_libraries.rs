//! libibverbs and librdmacm: which ones are there, and the devices that they see.

use forebay_verbs_sys::{CM_SONAME, SONAME};

use crate::facts::rdma::Rdma;
use crate::facts::ucx::{mapped_library, rdma_core};
use crate::facts::verbs::{INSTALL_VERBS, VerbsDevice, missing};
use crate::root::Root;

/// What verbs need, without UCX.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsLibraries {
    /// The file of libibverbs.
    pub libibverbs: Option<String>,
    /// That of librdmacm.
    pub librdmacm: Option<String>,
    /// The release of rdma-core which they are of, where the file's name tells it.
    pub rdma_core: Option<u32>,
    /// Why they cannot be used, and what to do about it.
    pub error: Option<String>,
    /// The names of the devices that they open.
    pub devices: Vec<String>,
    /// Those of the kernel's devices that they do not.
    pub unopened: Vec<String>,
}

impl VerbsLibraries {
    /// Loads both, and asks for devices. After `Ucx::find`, which wants to come first.
    #[must_use]
    pub fn find() -> Self {
        if let Some(missing) = missing() {
            let error = format!("cannot load {missing}; {INSTALL_VERBS}");
            return Self { error: Some(error), ..Self::default() };
        }
        let rdma = Rdma::read(&Root::default());
        let opened = VerbsDevice::of_this_machine(&rdma);
        let mapped = Root::default().text("proc/self/maps").unwrap_or_default();
        Self::default().mapped(&mapped).seeing(&rdma, &opened)
    }

    /// The same with the files that `mapped`, the process's table of mappings, has.
    fn mapped(self, mapped: &str) -> Self {
        let libibverbs = mapped_library(mapped, "libibverbs");
        let librdmacm = mapped_library(mapped, "librdmacm");
        Self { rdma_core: libibverbs.as_deref().and_then(rdma_core), libibverbs, librdmacm, ..self }
    }

    /// The same with the kernel's devices, of which these were `opened`.
    fn seeing(self, rdma: &Rdma, opened: &[VerbsDevice]) -> Self {
        let names = rdma.devices.iter().map(|device| device.name.clone());
        let is_open = |name: &String| opened.iter().any(|device| device.name == *name);
        let (devices, unopened): (Vec<_>, Vec<_>) = names.partition(is_open);
        Self { devices, unopened, ..self }
    }

    /// One line of it.
    #[must_use]
    pub fn summary(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let release = self.rdma_core.map(|release| format!(" {release}")).unwrap_or_default();
        let libibverbs = self.libibverbs.as_deref().unwrap_or(SONAME);
        let librdmacm = self.librdmacm.as_deref().unwrap_or(CM_SONAME);
        let unopened = self.unopened.iter().map(|name| format!("{name} (cannot be opened)"));
        let devices: Vec<String> = self.devices.iter().cloned().chain(unopened).collect();
        let devices = if devices.is_empty() { "no RDMA device here".to_owned() } else { devices.join(", ") };
        format!("rdma-core{release} ({libibverbs}, {librdmacm}): {devices}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::rdma::Device;

    #[test]
    fn a_line_names_libraries_and_devices_and_those_that_do_not_open() {
        let mapped = "7f00-7f01 r-xp 0 fe:00 1  /usr/lib/ucx/libuct_rdmacm.so.0.0.0\n\
                      7f02-7f03 r-xp 0 fe:00 2  /usr/lib/librdmacm.so.1.3.44.0\n\
                      7f04-7f05 r-xp 0 fe:00 3  /usr/lib/libibverbs.so.1.14.44.0";
        let device = |name: &str| Device { name: name.to_owned(), ..Device::default() };
        let rdma = Rdma { devices: vec![device("mlx5_0"), device("mlx5_1")], ..Rdma::default() };
        let opened = VerbsDevice { name: "mlx5_0".to_owned(), ..VerbsDevice::default() };
        let found = VerbsLibraries::default().mapped(mapped);
        let libraries = "rdma-core 44 (/usr/lib/libibverbs.so.1.14.44.0, /usr/lib/librdmacm.so.1.3.44.0)";
        assert_eq!(found.summary(), format!("{libraries}: no RDMA device here"));
        let found = found.seeing(&rdma, &[opened]);
        assert_eq!(found.summary(), format!("{libraries}: mlx5_0, mlx5_1 (cannot be opened)"));
        let unnamed = VerbsLibraries::default().summary();
        assert_eq!(unnamed, "rdma-core (libibverbs.so.1, librdmacm.so.1): no RDMA device here");
    }

    #[test]
    fn libraries_are_there_or_it_says_how_to_get_them() {
        let found = VerbsLibraries::find();
        match &found.error {
            Some(error) => assert!(error.starts_with("cannot load lib") && error.ends_with(INSTALL_VERBS), "{error}"),
            None => assert!(found.libibverbs.is_some() && found.librdmacm.is_some(), "{found:?}"),
        }
    }
}
