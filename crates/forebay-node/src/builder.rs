//! What a node is to run, and whether this machine and its configuration allow it.

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::{Config, Loaded, Origin, SecurityMode, Sources};
use forebay_store::Prewarm;
use forebay_types::{FuseIo, TcpSecurity};
use tokio_util::sync::CancellationToken;

use crate::binding::{self, Part};
use crate::error::{Exit, Fault, UserError};
use crate::exposure::{self, Listeners};
use crate::keeping::KeeperProgram;
use crate::memory::{self, Takes};
use crate::node::Node;
use crate::page::Page;
use crate::plan::Plan;
use crate::rdma;
use crate::start;

/// What is to run in this process, and with which configuration. Made by [`Node::builder`].
///
/// Of [`worker`](Self::worker), [`client`](Self::client), [`mount`](Self::mount), [`s3`](Self::s3) and
/// [`coordinator`](Self::coordinator) any may be together. They find each other, and those of other processes, by
/// `cluster.etcd.endpoints`, or by `cluster.workers`.
/// [`standalone`](Self::standalone) is a cluster of its own.
#[derive(Debug, Default)]
pub struct NodeBuilder {
    settings: Vec<String>,
    loaded: Option<Loaded>,
    worker: bool,
    client: bool,
    coordinator: bool,
    s3: bool,
    standalone: Option<String>,
    state_in_memory: bool,
    page: Page,
    mountpoint: Option<PathBuf>,
    replaces: Option<Duration>,
    keeper: Option<KeeperProgram>,
    log: Option<PathBuf>,
    cancelled: CancellationToken,
    is_checked: bool,
}

/// That nothing goes in plain text where that is not wanted.
fn check_security(config: &Config) -> Result<(), Fault> {
    if !config.security_require_encryption {
        return Ok(());
    }
    let accepts_plain = config.security_accept.contains(&SecurityMode::Off);
    let (what, next) = if config.network_rdma_data_one_sided {
        let next = "set `network.rdma.data.one_sided` to false, and RDMA's `enabled` too";
        ("with `network.rdma.data.one_sided` whoever has a worker's keys reads its memory in plain text", next)
    } else if rdma::is_wanted(config) {
        let next = "set `network.rdma.data.enabled` and `network.rdma.metadata.enabled` to false";
        ("over RDMA nothing is encrypted", next)
    } else if config.security_mode == SecurityMode::Off || accepts_plain {
        (
            "whoever proves nothing is talked to in plain text",
            "set `security.mode`, and take `off` out of `security.accept`",
        )
    } else if config.network_tcp_security == TcpSecurity::Auth {
        ("with `network.tcp.security=auth` bytes go in plain text", "set it to `encrypt`")
    } else {
        return Ok(());
    };
    let next = format!("{next}; or set `security.require_encryption=false`");
    Err(Fault::new(Exit::Usage, format!("{what}, and `security.require_encryption` asks for that"), next))
}

/// That a mount which is to outlive a crash can.
fn check_survival(config: &Config) -> Result<(), Fault> {
    if !config.fuse_survive_crash || config.fuse_io != FuseIo::Uring {
        return Ok(());
    }
    let what = "a mount over io_uring cannot outlive a crash of its process: rings end with it";
    Err(Fault::new(Exit::Usage, what, "set `fuse.io=device`, or `fuse.survive_crash=false`"))
}

impl Node {
    /// A node that runs nothing yet, with the defaults of the configuration.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }
}

impl NodeBuilder {
    /// The configuration, from its sources. Without it, defaults and [`Self::setting`]s are; the environment and files count only here.
    #[must_use]
    pub fn config(mut self, loaded: Loaded) -> Self {
        self.loaded = Some(loaded);
        self
    }

    /// Sets a key of the configuration, as in `worker.memory.size=64GiB`. Not together with [`Self::config`].
    #[must_use]
    pub fn setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Runs a worker: it caches what `mounts` and the cluster show, and serves it where `worker.*` says.
    #[must_use]
    pub fn worker(mut self) -> Self {
        self.worker = true;
        self
    }

    /// Has a client of the workers, for [`Node::client`]; a mount has one anyway.
    #[must_use]
    pub fn client(mut self) -> Self {
        self.client = true;
        self
    }

    /// Mounts what the workers serve at this existing directory.
    #[must_use]
    pub fn mount(mut self, mountpoint: impl Into<PathBuf>) -> Self {
        self.mountpoint = Some(mountpoint.into());
        self
    }

    /// Takes the mount over from the process that serves it, if there is one: what is open there stays open. Waits for files that
    /// are open for writing, for as long as `patience`.
    #[must_use]
    pub fn replacing(mut self, patience: Duration) -> Self {
        self.replaces = Some(patience);
        self
    }

    /// With `fuse.survive_crash`, has a process of `forebay keeper` keep the mount over a crash of this process, unless the service manager
    /// does; and takes over what such a process has, in any case. Without this, [`Node::stop`] unmounts.
    #[must_use]
    pub fn keeper(mut self, program: KeeperProgram) -> Self {
        self.keeper = Some(program);
        self
    }

    /// Runs a coordinator: jobs, the REST interface and the web page.
    #[must_use]
    pub fn coordinator(mut self) -> Self {
        self.coordinator = true;
        self
    }

    /// Serves what the workers serve to S3 clients, at `s3.bind.host` and `s3.port`, to those who sign with a key of
    /// `s3.credentials_file`. Where `s3.port` is set, a worker without a mount and what [stands alone](Self::standalone) do so anyway.
    #[must_use]
    pub fn s3(mut self) -> Self {
        self.s3 = true;
        self
    }

    /// Runs a worker of the origin at this URL, a client of it and a coordinator for the user of this process alone. They listen at
    /// no port: with a [mount](Self::mount), commands reach them over Unix sockets that only this user and root may connect to;
    /// without, they are reached through [`Node::client`] and [`Self::web`].
    #[must_use]
    pub fn standalone(mut self, origin: impl Into<String>) -> Self {
        self.standalone = Some(origin.into());
        self
    }

    /// With [`Self::standalone`] and without a mount: what the coordinator keeps is in memory and ends with the node, whatever
    /// `coordinator.state_dir` says. So no directory is made, and however the process ends, it leaves none.
    #[must_use]
    pub fn state_in_memory(mut self) -> Self {
        self.state_in_memory = true;
        self
    }

    /// With [`Self::standalone`]: serves REST, the web page and metrics at ports of the loopback interface, to those who have
    /// the token in the URL that [`NodeAddresses::page`](crate::NodeAddresses::page) and
    /// [`MountSummary::page`](crate::MountSummary::page) say. Without `port` it is `coordinator.port`, or a free one if that is
    /// taken.
    #[must_use]
    pub fn web(mut self, port: Option<u16>) -> Self {
        self.page = port.map_or(Page::AnyPort, Page::Port);
        self
    }

    /// Where the process logs: commands that look for the mount tell it.
    #[must_use]
    pub fn logs_to(mut self, log: Option<PathBuf>) -> Self {
        self.log = log;
        self
    }

    /// Gives up starting once this token is cancelled: what was started is ended in order.
    #[must_use]
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancelled = token;
        self
    }

    /// Checks what can be checked without starting anything: the configuration, that it names workers or origins, interfaces, and
    /// memory. [`Self::start`] does so, too; a program that goes to the background wants to know before.
    ///
    /// # Errors
    /// What is wrong, with the setting that is about it.
    pub fn check(&mut self) -> Result<(), UserError> {
        self.check_all().map_err(|error| UserError::from(&error))
    }

    fn check_all(&mut self) -> anyhow::Result<()> {
        if self.is_checked {
            return Ok(());
        }
        let mut loaded = self.take_loaded()?;
        let may_have_s3 = self.standalone.is_some() || (self.worker && self.mountpoint.is_none());
        self.s3 |= may_have_s3 && loaded.config.s3_port.is_some();
        // It reads as a client does.
        self.client |= self.s3 && self.standalone.is_none();
        if self.standalone.is_none() {
            self.check_what_is_named(&loaded.config)?;
        }
        check_security(&loaded.config)?;
        check_survival(&loaded.config)?;
        binding::check(&loaded.config, self.listening_parts())?;
        // What the process that is replaced has is free when it is needed.
        let parts = if self.replaces.is_some() { memory::Parts::default() } else { self.memory_of(&loaded) };
        memory::check(&mut loaded, parts)?;
        exposure::check(&loaded, self.listeners())?;
        (self.loaded, self.is_checked) = (Some(loaded), true);
        Ok(())
    }

    /// The configuration; from now on, it is the caller's.
    fn take_loaded(&mut self) -> anyhow::Result<Loaded> {
        match self.loaded.take() {
            Some(_) if !self.settings.is_empty() => {
                let next = "put the settings among the sources of the configuration, as `Sources::flags`";
                Err(Fault::new(Exit::Usage, "settings beside a whole configuration", next).into())
            }
            Some(loaded) => Ok(loaded),
            None => Ok(Config::load(&Sources::new().flags(std::mem::take(&mut self.settings)))?),
        }
    }

    /// That something is to run, and that there is something to read.
    fn check_what_is_named(&self, config: &Config) -> Result<(), Fault> {
        let in_cluster = !config.cluster_etcd_endpoints.is_empty();
        let reads = self.mountpoint.is_some() || self.client;
        if !(reads || self.worker || self.coordinator) {
            let next = "ask for a worker, a client, a mount or a coordinator, or for `standalone` with an origin";
            return Err(Fault::new(Exit::Usage, "the node has nothing to run", next));
        }
        if reads && !in_cluster && config.cluster_workers.is_empty() && !(self.worker && self.mountpoint.is_none()) {
            let next = "name them with `--workers HOST:PORT,...` or as `cluster.workers`, or their cluster with `--etcd URL`; \
                        to mount an origin without workers, use `forebay up ORIGIN MOUNTPOINT`";
            return Err(Fault::new(Exit::Usage, "no workers are named", next));
        }
        if self.worker && config.mounts.is_empty() && !in_cluster {
            let what = if self.mountpoint.is_some() { "mount" } else { "worker" };
            let next = "name one in `forebay.toml` or with `-o mounts=/=s3://bucket/prefix`, the same on all nodes of the group, or the \
                        cluster with `--etcd`";
            return Err(Fault::new(Exit::Usage, format!("the {what} has no origin to cache: `mounts` is empty"), next));
        }
        Ok(())
    }

    /// What listens or connects from an address of the configuration. What stands alone does neither, and a coordinator checks its own.
    fn listening_parts(&self) -> &'static [Part] {
        let client = self.mountpoint.is_some() || self.client;
        match (self.standalone.is_some(), client, self.worker) {
            (false, true, true) => &[Part::Client, Part::Worker],
            (false, true, false) => &[Part::Client],
            (false, false, true) => &[Part::Worker],
            (true, _, _) | (false, false, false) => &[],
        }
    }

    /// What of it listens where the configuration says: what stands alone stays on this machine.
    fn listeners(&self) -> Listeners {
        if self.standalone.is_some() {
            return Listeners { s3: self.s3, ..Listeners::default() };
        }
        // An endpoint without a worker has pages as a mount has.
        let mount = self.mountpoint.is_some() || (self.s3 && !self.worker);
        Listeners { worker: self.worker, coordinator: self.coordinator, mount, s3: self.s3 }
    }

    fn memory_of(&self, loaded: &Loaded) -> memory::Parts {
        match &self.standalone {
            Some(_) => {
                let takes = match prewarm_alone(loaded) {
                    Prewarm::AtStart => Takes::AtStart,
                    Prewarm::OnceUsed | Prewarm::AsFilled => Takes::AsUsed,
                };
                memory::Parts { worker: Some(takes), client: false }
            }
            None => memory::Parts {
                worker: self.worker.then(|| Takes::of_shared(loaded)),
                client: self.mountpoint.is_some() || self.client,
            },
        }
    }

    /// Loads the library for RDMA if it is going to be needed, and logs the settings that act on nothing. Call it while
    /// the process has one thread: only then can UCX be told to leave `malloc` alone. Without this call, a node loads
    /// the library later.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn load_early(&mut self) -> Result<(), UserError> {
        self.check()?;
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let moves_data = self.worker || self.mountpoint.is_some() || self.client;
        if self.standalone.is_some() || moves_data {
            rdma::say_which_are_idle(loaded, self.standalone.is_some());
        }
        if self.standalone.is_none() && moves_data {
            rdma::load_early(&loaded.config);
        }
        Ok(())
    }

    /// Starts all of it. Returns when the worker listens, the mount answers, and the coordinator of a standalone node leads; a node that
    /// cannot be ends what it has started. [`Node::ready`] waits for what depends on others.
    ///
    /// # Errors
    /// What is wrong, with its remedy; `Interrupted` when it was cancelled.
    pub async fn start(mut self) -> Result<Node, UserError> {
        self.check()?;
        let loaded = self.take_loaded().map_err(|error| UserError::from(&error))?;
        let plan = Plan {
            prewarm_alone: prewarm_alone(&loaded),
            loaded,
            worker: self.worker,
            client: self.client,
            coordinator: self.coordinator,
            s3: self.s3,
            standalone: self.standalone,
            state_in_memory: self.state_in_memory,
            page: self.page,
            mountpoint: self.mountpoint,
            replaces: self.replaces,
            keeper: self.keeper,
            log: self.log,
        };
        start::start(plan, &self.cancelled).await.map_err(|error| UserError::from(&error))
    }
}

/// On a machine that does other work, no memory is taken before it is known that it is needed, unless the configuration says otherwise.
fn prewarm_alone(loaded: &Loaded) -> Prewarm {
    let is_set = loaded.origin("worker.memory.prewarm") != Origin::Default;
    match is_set.then_some(loaded.config.worker_memory_prewarm) {
        Some(true) => Prewarm::AtStart,
        Some(false) => Prewarm::AsFilled,
        None => Prewarm::OnceUsed,
    }
}
