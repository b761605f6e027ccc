//! How a node that starts comes to its mountpoint: nobody has it, another process serves the mount until this one can, or one has
//! left it behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_fuse::{Mount, Survival};
use forebay_handover::{Held, Keeps, Order};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::error::{Exit, Fault};
use crate::giving_up::unless_cancelled;
use crate::handover::Running;
use crate::keeping::{self, Found, Left};
use crate::mounted::{self, Offer};
use crate::mountpoint::{self, Place};
use crate::plan::Plan;

/// How often a mount that is served is tried to be claimed.
const CLAIMED_EVERY: Duration = Duration::from_secs(1);

/// The mountpoint that a plan names, and who served it before.
pub(crate) struct Takeover<'a> {
    plan: &'a Plan,
    cancelled: &'a CancellationToken,
    /// As the kernel names it.
    mountpoint: Option<PathBuf>,
    before: Before,
    /// Who keeps the mount over a crash of this process.
    keeper: Option<Arc<dyn Keeps>>,
}

/// Who served the mount before this process.
#[derive(Default)]
enum Before {
    /// There was none, or it is not to be taken over.
    #[default]
    Nobody,
    /// This process does, until this one is ready.
    Running(Running),
    /// This process has all that one had, and nobody serves the mount.
    Released(Box<Held>),
    /// It has died, or has left the mount, and this process has what was kept.
    Died(Box<Left>),
}

impl<'a> Takeover<'a> {
    /// Nothing is claimed yet.
    pub(crate) fn new(plan: &'a Plan, cancelled: &'a CancellationToken) -> Self {
        Self { plan, cancelled, mountpoint: None, before: Before::Nobody, keeper: None }
    }

    /// Claims the mountpoint, if there is one, unless the process that has it is to be replaced when this one is ready.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(crate) async fn claim(&mut self) -> anyhow::Result<Option<Place>> {
        let plan = self.plan;
        let Some(mountpoint) = &plan.mountpoint else { return Ok(None) };
        self.before = self.served_before(mountpoint).await?;
        let place = match (&self.before, &self.mountpoint) {
            (Before::Running(_), _) => None,
            (Before::Released(_), Some(mountpoint)) => Some(Place::inherit(mountpoint.clone())?),
            (Before::Died(_), Some(mountpoint)) => Some(Place::recover(mountpoint.clone())?),
            _ => Some(Place::take(mountpoint)?),
        };
        if let Some(place) = &place {
            self.mountpoint = Some(place.mountpoint().to_owned());
        }
        Ok(place)
    }

    /// Where it mounts, as the kernel names it. Known once it was claimed.
    pub(crate) fn mountpoint(&self) -> Option<&Path> {
        self.mountpoint.as_deref()
    }

    /// Who keeps the mount over a crash of this process. Known once it is mounted.
    pub(crate) fn keeper(&self) -> Option<&Arc<dyn Keeps>> {
        self.keeper.as_ref()
    }

    /// The process that serves `mountpoint`, if it is to be replaced; it has let go of it where that goes first. Or what is left of one that
    /// has died.
    async fn served_before(&mut self, mountpoint: &Path) -> anyhow::Result<Before> {
        let plan = self.plan;
        if plan.keeper.is_none() && plan.replaces.is_none() {
            return Ok(Before::Nobody);
        }
        let mountpoint = mountpoint::resolve(mountpoint)?;
        mountpoint::is_apart(&mountpoint, &plan.loaded.config)?;
        if let Some(left) = self.kept(&mountpoint).await? {
            self.mountpoint = Some(mountpoint);
            return Ok(Before::Died(Box::new(left)));
        }
        let Some(patience) = plan.replaces else { return Ok(Before::Nobody) };
        let Some(running) = Running::find(&mountpoint)? else { return Ok(Before::Nobody) };
        let identity = mounted::identity(&mountpoint, &plan.namespace(), &plan.loaded);
        self.mountpoint = Some(mountpoint);
        match plan.order() {
            Order::ServeFirst => Ok(Before::Running(running)),
            order @ Order::ReleaseFirst => {
                let taking = running.take(identity, order, patience, mounted::staging(&plan.loaded.config)?);
                Ok(Before::Released(Box::new(unless_cancelled(self.cancelled, taking).await?)))
            }
        }
    }

    /// Finds who keeps the mount, and what is left of a process that has died.
    async fn kept(&mut self, mountpoint: &Path) -> anyhow::Result<Option<Left>> {
        let plan = self.plan;
        let Some(program) = plan.keeper.clone() else { return Ok(None) };
        let identity = mounted::identity(mountpoint, &plan.namespace(), &plan.loaded);
        let how = (plan.loaded.config.fuse_survive_crash, plan.replaces.is_none());
        let found = keeping::find(mountpoint, program, how, identity).await?;
        let Some(Found { keeper, left }) = found else { return Ok(None) };
        self.keeper = Some(keeper);
        Ok(left)
    }

    /// How the mount outlives a crash of this process, if it is to. The mountpoint is this process's, or soon will be.
    async fn survival(&mut self, mountpoint: &Path) -> anyhow::Result<Option<Survival>> {
        let plan = self.plan;
        let is_wanted = plan.loaded.config.fuse_survive_crash;
        if !is_wanted && matches!(self.before, Before::Died(_)) {
            return Ok(None);
        }
        if is_wanted && self.keeper.is_none() {
            let unnamed =
                || Fault::without_remedy(Exit::Usage, "no program is named to keep the mount: `NodeBuilder::keeper`");
            let program = plan.keeper.clone().ok_or_else(unnamed)?;
            self.keeper = Some(keeping::start(mountpoint, program).await?);
        }
        let identity = || mounted::identity(mountpoint, &plan.namespace(), &plan.loaded);
        Ok(self.keeper.clone().map(|keeper| Survival { keeper, identity: identity() }))
    }

    /// A mount of its own, or the one that another process serves or served; with the claim of the mountpoint, if that was not to be had
    /// before.
    ///
    /// # Errors
    /// When there is no mount, or starting is given up before there is one.
    pub(crate) async fn mount(&mut self, mountpoint: &Path, offer: &Offer) -> anyhow::Result<(Mount, Option<Place>)> {
        let (plan, cancelled) = (self.plan, self.cancelled);
        let loaded = &plan.loaded;
        let survival = self.survival(mountpoint).await?;
        // It is kept no more.
        let released = if survival.is_none() { self.keeper.take() } else { None };
        let mount = match std::mem::take(&mut self.before) {
            // What is mounted is published, and then ended in order.
            Before::Nobody => unless_cancelled(cancelled, mounted::mount(mountpoint, offer, loaded, survival)).await,
            Before::Died(left) => {
                let successor = mounted::prepare(mountpoint, offer, loaded, survival);
                mounted::recover(unless_cancelled(cancelled, successor).await?, *left, released).await
            }
            Before::Released(held) => {
                let successor = mounted::prepare(mountpoint, offer, loaded, survival);
                let successor = unless_cancelled(cancelled, successor).await?;
                mounted::succeed(successor, *held).await
            }
            Before::Running(running) => {
                let successor = mounted::prepare(mountpoint, offer, loaded, survival);
                let successor = unless_cancelled(cancelled, successor).await?;
                let identity = mounted::identity(mountpoint, &plan.namespace(), loaded);
                let (patience, staging) = (plan.replaces.unwrap_or_default(), mounted::staging(&loaded.config)?);
                let taking = running.take(identity, Order::ServeFirst, patience, staging);
                let held = unless_cancelled(cancelled, taking).await?;
                let mount = mounted::succeed(successor, held).await?;
                return Ok((mount, Some(unless_cancelled(cancelled, claim_served(mountpoint)).await?)));
            }
        };
        Ok((mount?, None))
    }
}

/// Claims `mountpoint`, whose mount this process serves already. Programs read from it: that the process before still has the claim
/// is no reason to take it away, and so is waited for.
async fn claim_served(mountpoint: &Path) -> anyhow::Result<Place> {
    let mut is_told = false;
    loop {
        match Place::inherit(mountpoint.to_owned()) {
            Ok(place) => return Ok(place),
            Err(error) if !is_told => {
                warn!(error = format!("{error:#}"), "the mount is served, and commands find it when it can be claimed");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(CLAIMED_EVERY).await;
    }
}
