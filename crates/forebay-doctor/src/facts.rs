//! What is known of a machine. These types are also the `facts` of the JSON document: fields are added, not renamed.

mod addresses;
mod boot;
mod clock;
mod cm_ids;
mod configuration;
mod connections;
mod container;
mod control_groups;
mod counters;
mod ethtool;
mod first_look;
mod flow_control;
mod fuse;
mod gids;
mod interfaces;
mod listeners;
mod local;
mod lock_limits;
mod memory;
mod modules;
mod namespaces;
mod origin;
mod pci_way;
mod pcie;
mod peer;
mod processes;
mod processor_limit;
mod propagation;
mod rdma;
mod recording;
mod route;
mod security;
mod services;
mod system;
mod ucx;
mod units;
mod verbs;
mod verbs_libraries;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use addresses::{Address, Standing};
pub use boot::Boot;
pub use clock::Clock;
pub use cm_ids::RdmaListener;
pub use configuration::{Configuration, Setting};
pub use connections::Connections;
pub use container::{Container, Pod};
pub use ethtool::DriverInfo;
pub use first_look::FirstLook;
pub use flow_control::FlowControl;
pub use fuse::{Fuse, Fusermount};
pub use gids::address_of_gid;
pub use interfaces::Interface;
pub use listeners::{Listener, Owner};
pub use local::{Local, LocalDirectory};
pub use lock_limits::LockLimit;
pub use memory::{Limit, Memory};
pub use modules::{Module, PciCard};
pub use namespaces::Namespaces;
pub use origin::{OriginProbe, seconds_of_date};
pub use pcie::PcieLink;
pub use peer::{
    PeerBandwidth, PeerLatency, PeerListener, PeerMeasured, PeerOperation, PeerPort, PeerProbe, PeerWorker, Reached,
};
pub use processes::Process;
pub use processor_limit::ProcessorLimit;
pub use propagation::{Mounted, MountsSeen, Propagation};
pub use rdma::{Device, DeviceKind, Gid, Port, Rdma};
pub use recording::Recording;
pub use route::{PathMtu, Route};
pub use security::{Certificate, Obstacle, Refusal, Security};
pub use services::{CoordinatorProbe, EtcdProbe, MountProbe, WindowProbe, micros};
pub use system::System;
pub use ucx::{Ucx, UcxModule};
pub use units::{Unit, Units};
pub(crate) use verbs::INSTALL_VERBS;
pub use verbs::VerbsDevice;
pub use verbs_libraries::VerbsLibraries;

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
    /// Which library verbs need and do not find, and why.
    #[serde(default)]
    pub verbs_missing: Option<String>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// libucp.
    pub ucx: Ucx,
    /// Memory and its limits.
    pub memory: Memory,
    /// The container or pod that this is, and what it may do there.
    #[serde(default)]
    pub container: Container,
    /// Units of systemd that start Forebay.
    #[serde(default)]
    pub units: Units,
    /// Processes of Forebay that run.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// How much what will run a worker or a mount may lock.
    #[serde(default)]
    pub lock_limits: Vec<LockLimit>,
    /// What a mount needs.
    pub fuse: Fuse,
    /// What materialised files would lie on.
    #[serde(default)]
    pub local: Local,
    /// The processes that listen on the ports that the configuration names.
    pub listeners: Vec<Listener>,
    /// The listeners of rdma_cm.
    pub rdma_listeners: Vec<RdmaListener>,
    /// Connections that are open on those ports.
    pub connections: Vec<Connections>,
    /// What the next boot brings back.
    pub boot: Boot,
    /// The clock.
    pub clock: Clock,
    /// What each origin answered.
    pub origins: Vec<OriginProbe>,
    /// What each member of etcd answered.
    pub etcd: Vec<EtcdProbe>,
    /// What the coordinators answered.
    pub coordinators: Vec<CoordinatorProbe>,
    /// Mounts of Forebay.
    pub mounts: Vec<MountProbe>,
    /// Who its processes prove to be, if their files were opened.
    #[serde(default)]
    pub security: Option<Security>,
    /// Other hosts, as they were asked and measured.
    pub peers: Vec<PeerProbe>,
    /// The configuration.
    pub configuration: Configuration,
    /// How long before these the counters of ports were looked at first, in milliseconds.
    #[serde(default)]
    pub faults_over_ms: Option<u64>,
    /// Whose these are, when they are not of this machine.
    #[serde(default)]
    pub recording: Option<Recording>,
}

/// What no file tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outside {
    /// Addresses, each with its interface; see [`Address::of_this_machine`].
    pub addresses: Vec<(String, Address)>,
    /// What drivers say of themselves, each with its interface; see [`DriverInfo::of_this_machine`].
    pub drivers: Vec<(String, DriverInfo)>,
    /// How interfaces keep packets from being lost; see [`FlowControl::of_this_machine`].
    pub flow_controls: Vec<(String, FlowControl)>,
    /// What libibverbs says; see [`VerbsDevice::of_this_machine`].
    pub verbs: Vec<VerbsDevice>,
    /// See [`VerbsDevice::missing_library`].
    pub verbs_missing: Option<String>,
    /// The listeners of rdma_cm; see [`RdmaListener::of_this_machine`].
    pub rdma_listeners: Vec<RdmaListener>,
    /// See [`Ucx::find`].
    pub ucx: Ucx,
    /// See [`Clock::read`].
    pub clock: Clock,
    /// What each origin answered.
    pub origins: Vec<OriginProbe>,
    /// What each member of etcd answered.
    pub etcd: Vec<EtcdProbe>,
    /// What the coordinators answered.
    pub coordinators: Vec<CoordinatorProbe>,
    /// Mounts of Forebay.
    pub mounts: Vec<MountProbe>,
    /// What systemd told of its units.
    pub units: Units,
    /// What became of opening the files of identities.
    pub security: Option<Security>,
    /// Other hosts, as they were asked and measured.
    pub peers: Vec<PeerProbe>,
    /// The configuration.
    pub configuration: Configuration,
    /// The folders of `$PATH`.
    pub search_path: Vec<PathBuf>,
    /// The ports that are looked for among those that are listened on.
    pub ports: Vec<u16>,
    /// The directory that the configuration names for materialised files.
    pub local_dir: Option<PathBuf>,
    /// The user who called sudo.
    pub login: Option<String>,
    /// What ports had counted at first.
    pub first_look: Option<FirstLook>,
    /// Which recorded tree is looked at.
    #[serde(skip)]
    pub recording: Option<Recording>,
}

impl Facts {
    /// Reads what there is below `root`.
    #[must_use]
    pub fn gather(root: &Root, outside: Outside) -> Self {
        let interfaces = Interface::read_all(root, &outside.addresses, &outside.drivers, &outside.flow_controls);
        let ipoib: Vec<String> =
            interfaces.iter().filter(|found| found.is_ipoib).map(|found| found.name.clone()).collect();
        Self {
            system: System::read(root, &outside.search_path),
            modules: Module::read_all(root),
            pci_cards: PciCard::read_all(root),
            verbs_missing: outside.verbs_missing,
            rdma: Rdma::read(root).with_verbs(&outside.verbs).since(outside.first_look.as_ref()),
            boot: Boot::read(root, &ipoib, &["ib_ipoib"]),
            interfaces,
            ucx: outside.ucx,
            memory: Memory::read(root),
            container: Container::read(root),
            units: outside.units,
            processes: Process::read_all(root),
            lock_limits: LockLimit::read_all(root, outside.login.as_deref()),
            fuse: Fuse::read(root, &outside.search_path),
            local: Local::read(root, outside.local_dir.as_deref()),
            listeners: Listener::read_all(root, &outside.ports),
            rdma_listeners: outside.rdma_listeners,
            connections: Connections::read_all(root, &outside.ports),
            clock: outside.clock,
            origins: outside.origins,
            etcd: outside.etcd,
            coordinators: outside.coordinators,
            mounts: outside.mounts,
            security: outside.security,
            peers: outside.peers,
            configuration: outside.configuration,
            faults_over_ms: outside.first_look.map(|first| first.ms_before),
            recording: outside.recording,
        }
    }

    /// Whether addresses of interfaces are known: those of a tree that was put together by hand are not.
    #[must_use]
    pub fn are_addresses_known(&self) -> bool {
        let has_answers = self.recording.as_ref().is_none_or(Recording::has_answers);
        has_answers || self.interfaces.iter().any(|interface| !interface.addresses.is_empty())
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
