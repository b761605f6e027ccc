//! What goes wrong, and for how long.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::members::DRAINS;
use forebay_cluster::records::mounts::MountRecord;
use forebay_cluster::records::policies::PolicyRecord;
use forebay_state::{Transaction, encode_segment};
use rand::Rng;

use crate::cluster::{self, WorkerSite};
use crate::faults::Fault;
use crate::workload::{self, Dataset};
use crate::{coordinator, disk, etcd, faults, kernel, net, origin};

/// From this second of each hour on nothing new goes wrong, and from that on all is well again: nothing lasts for longer than a
/// minute and a half, a worker that is ended has a minute to do so, and then it takes the longest of the product's own times to find
/// out, which is the pause of 30 s before a worker that failed is asked again.
pub(crate) const CALM_FROM: u64 = 3000;
pub(crate) const WELL_FROM: u64 = 3300;

/// How long a disk that hung may have to answer in time before it is used again.
const COMES_BACK: Duration = Duration::from_secs(60);

/// What makes things go wrong.
pub(crate) struct Nemesis {
    dataset: Arc<Dataset>,
    sites: Vec<WorkerSite>,
    coordinators: Vec<usize>,
    /// The machine of the cluster's state.
    state: usize,
    /// Whether it goes on.
    going: Rc<Cell<bool>>,
}

impl Nemesis {
    /// Things go wrong from now on.
    pub(crate) fn begin(
        dataset: Arc<Dataset>,
        sites: Vec<WorkerSite>,
        coordinators: Vec<usize>,
        state: usize,
        going: &Rc<Cell<bool>>,
    ) {
        Rc::new(Self { dataset, sites, coordinators, state, going: Rc::clone(going) }).go_on();
    }

    fn go_on(self: Rc<Self>) {
        let pause = kernel::chance(|random| -> f64 { -random.random_range(f64::EPSILON..1.0).ln() * 90.0 });
        kernel::after(Duration::from_secs_f64(pause), move || {
            if !self.going.get() {
                return;
            }
            // At times all is well, so that it can be seen to heal.
            let is_calm = kernel::now().as_secs() % 3600 > CALM_FROM;
            if !is_calm {
                self.strike();
            }
            self.go_on();
        });
    }

    fn any_site(&self) -> WorkerSite {
        kernel::chance(|random| self.sites[random.random_range(0..self.sites.len())])
    }

    fn any_client(&self) -> usize {
        kernel::chance(|random| self.dataset.clients[random.random_range(0..self.dataset.clients.len())])
    }

    fn any_coordinator(&self) -> usize {
        kernel::chance(|random| self.coordinators[random.random_range(0..self.coordinators.len())])
    }

    fn any_origin(&self) -> usize {
        kernel::chance(|random| self.dataset.mounts[random.random_range(0..self.dataset.mounts.len())].0)
    }

    fn strike(self: &Rc<Self>) {
        let lasts = match kernel::once_in(3) {
            true => kernel::between(Duration::from_millis(100), Duration::from_secs(5)),
            false => kernel::between(Duration::from_secs(5), Duration::from_secs(90)),
        };
        match kernel::chance(|random| random.random_range(0..24)) {
            0 => self.kill_worker(lasts, false),
            1 => self.kill_worker(lasts, true),
            2 => self.stop(self.any_site().node, lasts),
            3 => self.end_worker(lasts),
            4 => self.kill_client(lasts),
            5 => self.stop(self.any_client(), lasts),
            6 => {
                let others: Vec<usize> =
                    self.dataset.clients.iter().copied().chain(self.sites.iter().map(|site| site.node)).collect();
                let other = kernel::chance(|random| others[random.random_range(0..others.len())]);
                self.cut(self.any_site().node, other, lasts);
            }
            7 => {
                let other = match kernel::chance(|random| random.random_range(0..4)) {
                    0 => self.any_client(),
                    1 => self.any_coordinator(),
                    _ => self.any_site().node,
                };
                self.cut(other, self.state, lasts);
            }
            8 => self.cut(self.any_site().node, origin::node(self.any_origin()), lasts),
            9 => {
                kernel::note("nemesis: etcd is away");
                let fault = faults::begins(Fault::State);
                etcd::away(true);
                kernel::after(lasts, move || {
                    etcd::away(false);
                    faults::ends(fault);
                    kernel::note("nemesis: etcd is back");
                });
            }
            10 => {
                kernel::note("nemesis: etcd changes its leader, or compacts");
                if kernel::once_in(2) { etcd::change_leader() } else { etcd::compact_now() }
            }
            11 | 12 => _ = self.trouble_origin(lasts),
            13..=15 => self.trouble_disk(lasts),
            16 => self.kill_writer(lasts),
            17 | 18 => {
                kernel::note("nemesis: connections break");
                let fault = faults::begins(Fault::Breaks);
                let often = kernel::once_in(2);
                net::break_once_in(kernel::chance(|random| random.random_range(if often { 2..6 } else { 6..60 })));
                kernel::after(lasts, move || {
                    net::break_once_in(0);
                    faults::ends(fault);
                });
            }
            19 => self.kill_coordinator(lasts),
            20 => self.stop(self.any_coordinator(), lasts),
            21 => self.drain(lasts * 3),
            22 => self.change_policies(),
            _ => {
                let node = if kernel::once_in(3) { self.any_client() } else { self.any_site().node };
                let hours: f64 = kernel::chance(|random| random.random_range(-48.0..48.0));
                kernel::note(format!("nemesis: the clock of node {node} is off by {hours:.2} h"));
                kernel::skew(node, (hours * 3.6e12) as i64);
            }
        }
    }

    fn kill_worker(self: &Rc<Self>, lasts: Duration, off: bool) {
        self.kill_worker_at(self.any_site(), lasts, off);
    }

    /// A worker is killed while its disk is so slow that something is likely being written.
    fn kill_writer(self: &Rc<Self>, lasts: Duration) {
        let site = self.any_site();
        let Some(number) = site.disk else { return };
        kernel::note(format!(
            "nemesis: disk {number} hardly moves, and the worker of node {} will be killed",
            site.node
        ));
        let fault = faults::begins(Fault::Disk(number));
        disk::trouble(number, disk::Trouble { slower: 2000, ..disk::Trouble::default() });
        let this = Rc::clone(self);
        kernel::after(kernel::between(Duration::from_secs(1), Duration::from_secs(20)), move || {
            disk::trouble(number, disk::Trouble::default());
            // What has begun takes its time.
            kernel::after(Duration::from_secs(5), move || faults::ends(fault));
            this.kill_worker_at(site, lasts, kernel::once_in(2));
        });
    }

    fn kill_worker_at(self: &Rc<Self>, site: WorkerSite, lasts: Duration, off: bool) {
        if kernel::process_at(site.node).is_none() {
            return;
        }
        kernel::note(format!("nemesis: the worker of node {} is killed, power off: {off}", site.node));
        let fault = faults::begins(Fault::Process(site.node));
        cluster::kill(site.node, off);
        if off {
            site.disk.into_iter().for_each(disk::power_fails);
        }
        let settings = self.dataset.settings;
        kernel::after(lasts, move || {
            net::on(site.node);
            cluster::start_worker(site, settings, fault);
        });
    }

    /// A worker is asked to end; half of the time while it waits for an origin, and of that half of the time while a mount looks at
    /// all of that origin's names, so that directories are being listed.
    fn end_worker(self: &Rc<Self>, lasts: Duration) {
        let site = self.any_site();
        if kernel::once_in(2) {
            return self.end_worker_at(site, lasts);
        }
        let origin = self.trouble_origin(Duration::from_secs(60));
        let this = Rc::clone(self);
        kernel::after(kernel::between(Duration::from_secs(1), Duration::from_secs(30)), move || {
            if kernel::once_in(2) {
                return this.end_worker_at(site, lasts);
            }
            workload::look_at_all(&this.dataset, origin);
            let listing = kernel::between(Duration::from_millis(100), Duration::from_secs(10));
            kernel::after(listing, move || this.end_worker_at(site, lasts));
        });
    }

    fn end_worker_at(self: &Rc<Self>, site: WorkerSite, lasts: Duration) {
        let Some(process) = kernel::process_at(site.node).filter(|_| !kernel::is_stopped(site.node)) else { return };
        kernel::note(format!("nemesis: the worker of node {} is ended", site.node));
        let fault = faults::begins(Fault::Process(site.node));
        cluster::end_worker(site.node);
        let this = Rc::clone(self);
        // It has its time to end; then it is killed.
        kernel::after(lasts + Duration::from_secs(60), move || {
            // If another fault killed it meanwhile, that one starts it.
            if !kernel::is_alive(process) {
                return faults::ends(fault);
            }
            cluster::kill(site.node, false);
            cluster::start_worker(site, this.dataset.settings, fault);
        });
    }

    fn kill_client(self: &Rc<Self>, lasts: Duration) {
        let node = self.any_client();
        if kernel::process_at(node).is_none() {
            return;
        }
        kernel::note(format!("nemesis: the mount of node {node} is killed"));
        let fault = faults::begins(Fault::Process(node));
        workload::gone(node);
        cluster::kill(node, false);
        let settings = self.dataset.settings;
        kernel::after(lasts, move || cluster::start_client(node, settings, fault));
    }

    fn kill_coordinator(self: &Rc<Self>, lasts: Duration) {
        let node = self.any_coordinator();
        if kernel::process_at(node).is_none() {
            return;
        }
        kernel::note(format!("nemesis: the coordinator of node {node} is killed"));
        let fault = faults::begins(Fault::Process(node));
        coordinator::gone(node);
        cluster::kill(node, false);
        let settings = self.dataset.settings;
        kernel::after(lasts, move || coordinator::start(node, settings, fault));
    }

    /// A worker is asked to leave, and asked back.
    fn drain(self: &Rc<Self>, lasts: Duration) {
        let node = self.any_site().node;
        // One at a time: when all leave, no worker owns anything.
        if faults::now().iter().any(|fault| matches!(fault, Fault::Drain(_))) {
            return;
        }
        kernel::note(format!("nemesis: the worker of node {node} is to leave"));
        let fault = faults::begins(Fault::Drain(node));
        let key = format!("{DRAINS}{}", encode_segment(cluster::worker_name(node)));
        etcd::fresh(&Transaction::new().put(&key, ""));
        kernel::after(lasts.min(Duration::from_secs(150)), move || {
            kernel::note(format!("nemesis: the worker of node {node} is to stay"));
            etcd::fresh(&Transaction::new().delete(&key));
            faults::ends(fault);
        });
    }

    /// Mounts and policies that nothing depends on come and go.
    fn change_policies(self: &Rc<Self>) {
        let place = self.dataset.any();
        let path = place.shown.parent();
        let key = PolicyRecord::key(&encode_segment(path.as_bytes()));
        kernel::note(format!("nemesis: policies of {path} and mounts change"));
        let record = PolicyRecord {
            path: path.to_string(),
            replicas: kernel::chance(|random| random.random_bool(0.7).then(|| random.random_range(1..4))),
            priority: kernel::chance(|random| random.random_bool(0.3).then(|| "high".to_owned())),
            quota: kernel::chance(|random| random.random_bool(0.3).then(|| "2MiB".to_owned())),
            ..PolicyRecord::default()
        };
        let change = Transaction::new();
        etcd::fresh(&if kernel::once_in(3) { change.delete(key) } else { change.put(key, record.encode()) });
        let other = MountRecord {
            path: "/c".to_owned(),
            origin: "s3://b".to_owned(),
            options: std::collections::BTreeMap::new(),
            acl: None,
        };
        let (key, change) = (MountRecord::key(&encode_segment(&other.path)), Transaction::new());
        etcd::fresh(&if kernel::once_in(2) { change.delete(key) } else { change.put(key, other.encode()) });
    }

    fn stop(self: &Rc<Self>, node: usize, lasts: Duration) {
        let Some(process) = kernel::process_at(node).filter(|_| !kernel::is_stopped(node)) else { return };
        kernel::note(format!("nemesis: the process of node {node} stands still for {lasts:?}"));
        let fault = faults::begins(Fault::Process(node));
        kernel::stop(node, true);
        kernel::after(lasts, move || {
            if kernel::is_alive(process) {
                kernel::stop(node, false);
                kernel::note(format!("nemesis: the process of node {node} goes on"));
            }
            // What it has missed it needs a moment for.
            kernel::after(Duration::from_secs(2), move || faults::ends(fault));
        });
    }

    fn cut(self: &Rc<Self>, one: usize, other: usize, lasts: Duration) {
        if one == other {
            return;
        }
        let ways = match kernel::chance(|random| random.random_range(0..4)) {
            0 => vec![(one, other)],
            1 => vec![(other, one)],
            _ => vec![(one, other), (other, one)],
        };
        for (from, to) in ways {
            if !net::reaches(from, to) {
                continue;
            }
            kernel::note(format!("nemesis: node {from} does not reach node {to} for {lasts:?}"));
            let fault = faults::begins(Fault::Cut(from, to));
            net::cut(from, to, true);
            let is_origin = self.dataset.mounts.iter().any(|(number, _)| [from, to].contains(&origin::node(*number)));
            kernel::after(lasts, move || {
                net::cut(from, to, false);
                // A request to an origin whose answer was lost waits for it until its deadline.
                let known = if is_origin { origin::DEADLINE } else { Duration::ZERO };
                kernel::after(known, move || faults::ends(fault));
            });
        }
    }

    /// An origin fails, is slow or silent: which one.
    fn trouble_origin(self: &Rc<Self>, lasts: Duration) -> usize {
        let number = self.any_origin();
        let trouble = kernel::chance(|random| match random.random_range(0..4) {
            0 => origin::Trouble { silent: true, ..origin::Trouble::default() },
            1 => origin::Trouble { fails: random.random_range(1..10), ..origin::Trouble::default() },
            2 => origin::Trouble { truncates: random.random_range(1..10), ..origin::Trouble::default() },
            _ => origin::Trouble { slower: random.random_range(5..60), ..origin::Trouble::default() },
        });
        kernel::note(format!("nemesis: origin {number} has {trouble:?} for {lasts:?}"));
        let fault = faults::begins(Fault::Origin(number));
        origin::trouble(number, trouble);
        kernel::after(lasts, move || {
            origin::trouble(number, origin::Trouble::default());
            // A request whose answer was lost waits for it until its deadline.
            kernel::after(origin::DEADLINE, move || faults::ends(fault));
        });
        number
    }

    fn trouble_disk(self: &Rc<Self>, lasts: Duration) {
        let Some(number) = self.any_site().disk else { return };
        if kernel::once_in(4) {
            kernel::note(format!("nemesis: disk {number} rots"));
            return disk::rot(number);
        }
        // Where nobody gives up waiting for it, readers would do nothing else.
        if !self.dataset.settings.disk_read_timeout.is_zero() && kernel::once_in(3) {
            return self.hang_disk(number, lasts);
        }
        let trouble = kernel::chance(|random| match random.random_range(0..6) {
            0 => disk::Trouble { reads_fail: true, ..disk::Trouble::default() },
            1 => disk::Trouble { writes_fail: true, ..disk::Trouble::default() },
            2 => disk::Trouble { full: true, ..disk::Trouble::default() },
            3 => disk::Trouble { slower: random.random_range(10..500), ..disk::Trouble::default() },
            _ => disk::Trouble { lies: random.random_range(1..6), ..disk::Trouble::default() },
        });
        kernel::note(format!("nemesis: disk {number} has {trouble:?} for {lasts:?}"));
        let fault = faults::begins(Fault::Disk(number));
        disk::trouble(number, trouble);
        kernel::after(lasts, move || {
            disk::trouble(number, disk::Trouble::default());
            faults::ends(fault);
        });
    }

    /// A disk says nothing for a while, and then goes on with what it was asked; one time of three, its worker is killed meanwhile, and
    /// has to start on it.
    fn hang_disk(self: &Rc<Self>, number: usize, lasts: Duration) {
        kernel::note(format!("nemesis: disk {number} hangs for {lasts:?}"));
        let fault = faults::begins(Fault::Disk(number));
        disk::trouble(number, disk::Trouble { hangs_until: kernel::now() + lasts, ..disk::Trouble::default() });
        // Then it has to answer for a while before it is used again.
        kernel::after(lasts + COMES_BACK, move || faults::ends(fault));
        if !kernel::once_in(3) {
            return;
        }
        let Some(site) = self.sites.iter().copied().find(|site| site.disk == Some(number)) else { return };
        let this = Rc::clone(self);
        let (when, off) = (kernel::between(Duration::ZERO, lasts), kernel::once_in(2));
        kernel::after(when, move || this.kill_worker_at(site, Duration::from_secs(1), off));
    }
}
