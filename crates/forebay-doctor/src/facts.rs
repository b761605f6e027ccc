//! What is known of a machine. These types are also the `facts` of the JSON document: fields are added, not renamed.

mod clock;
mod configuration;
mod fuse;
mod interfaces;
mod listeners;
mod memory;
mod modules;
mod origin;
mod rdma;
mod system;
mod ucx;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use clock::Clock;
pub use configuration::{Configuration, Setting};
pub use fuse::{Fuse, Fusermount};
pub use interfaces::{Address, Interface};
pub use listeners::{Listener, Owner};
pub use memory::{Limit, Memory};
pub use modules::{Module, PciCard};
pub use origin::OriginProbe;
pub use rdma::{Device, DeviceKind, Gid, Port, Rdma};
pub use system::System;
pub use ucx::{Ucx, UcxModule};

use crate::root::Root;

/// What the machine is and has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The kernel, the processors, and what this process may do.
    pub system: System,
    /// Kernel modules that matter, and are loaded or built in.
    pub modules: Vec<Module>,
    /// Cards on the PCI bus that can do RDMA, whether the kernel drives them or not.
    pub pci_cards: Vec<PciCard>,
    /// RDMA devices.
    pub rdma: Rdma,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// libucp.
    pub ucx: Ucx,
    /// Memory and its limits.
    pub memory: Memory,
    /// What a mount needs.
    pub fuse: Fuse,
    /// Who listens on the ports that the configuration names.
    pub listeners: Vec<Listener>,
    /// The clock.
    pub clock: Clock,
    /// What each origin answered.
    pub origins: Vec<OriginProbe>,
    /// The configuration.
    pub configuration: Configuration,
}

/// What no file tells.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Addresses, each with its interface; see [`Address::of_this_machine`].
    pub addresses: Vec<(String, Address)>,
    /// See [`Ucx::find`].
    pub ucx: Ucx,
    /// See [`Clock::read`].
    pub clock: Clock,
    /// What each origin answered.
    pub origins: Vec<OriginProbe>,
    /// The configuration.
    pub configuration: Configuration,
    /// The folders of `$PATH`.
    pub search_path: Vec<PathBuf>,
    /// The ports that are looked for among those that are listened on.
    pub ports: Vec<u16>,
}

impl Facts {
    /// Reads what there is below `root`.
    #[must_use]
    pub fn gather(root: &Root, outside: Outside) -> Self {
        let interfaces = Interface::read_all(root, &outside.addresses);
        Self {
            system: System::read(root, &outside.search_path),
            modules: Module::read_all(root),
            pci_cards: PciCard::read_all(root),
            rdma: Rdma::read(root),
            interfaces,
            ucx: outside.ucx,
            memory: Memory::read(root),
            fuse: Fuse::read(root, &outside.search_path),
            listeners: Listener::read_all(root, &outside.ports),
            clock: outside.clock,
            origins: outside.origins,
            configuration: outside.configuration,
        }
    }

    /// The interface called `name`.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The module called `name`, loaded or built in.
    #[must_use]
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.iter().find(|module| module.name == name)
    }
}
