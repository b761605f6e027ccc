//! What users do, and what they must get.
//!
//! Each operation is a task of a mount's process, and everything that it is answered is held against the history of the objects
//! ([`crate::model`]):
//!
//! * bytes are those of the version that the handle has, all that were asked for, whatever else happens;
//! * what a name is said to be, it was at some time since `metadata.ttl` before the question, and not before the last change of this
//!   mount that was acknowledged;
//! * an operation ends within its deadline;
//! * it fails only where something that it needs was in trouble.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, OpenFile};
use forebay_types::{Failure, FailureKind, FileVersion, FsPath};
use rand::Rng;

use crate::cluster::{self, Settings};
use crate::faults::Fault;
use crate::kernel::{self, Process};
use crate::origin::{self, Object};
use crate::{content, faults, model};

/// What there is to be read: directories of files on each origin.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    /// Each origin's number, and where it is mounted.
    pub(crate) mounts: Vec<(usize, String)>,
    pub(crate) directories: u32,
    pub(crate) files: u32,
    pub(crate) largest: u64,
    pub(crate) workers: Vec<usize>,
    pub(crate) clients: Vec<usize>,
    pub(crate) settings: Settings,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) stats: u64,
    pub(crate) lists: u64,
    pub(crate) changes: u64,
    pub(crate) replaced: u64,
    pub(crate) stale: u64,
    pub(crate) excused: u64,
}

#[derive(Default)]
struct State {
    counts: Counts,
    next: u64,
    /// Changes that were acknowledged to a mount: when each took effect.
    own: HashMap<(Process, usize, Vec<u8>), Duration>,
    handles: BTreeMap<Process, Vec<Arc<OpenFile>>>,
    under_way: BTreeMap<u64, (Process, Duration)>,
    /// Mounts to which a worker has answered: before that, none is waited for.
    answered: BTreeSet<Process>,
    /// From when on nothing may fail, whatever it needs.
    strict_since: Option<Duration>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn state<T>(with: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(with)
}

/// What was done so far.
pub(crate) fn counts() -> Counts {
    state(|state| state.counts)
}

/// Since when the operation has been under way that has been for longest, of a mount that lives.
pub(crate) fn oldest() -> Option<Duration> {
    let all = state(|state| state.under_way.values().copied().collect::<Vec<_>>());
    all.into_iter().filter(|(process, _)| kernel::is_alive(*process)).map(|(_, since)| since).min()
}

/// Whether nothing that begins from now on may fail.
pub(crate) fn be_strict(strict: bool) {
    state(|state| state.strict_since = strict.then(kernel::now));
}

/// A mount's process is gone, and what it had.
pub(crate) fn gone(node: usize) {
    let handles = state(|state| {
        state.own.retain(|(process, ..), _| process.node != node);
        let gone: Vec<Process> = state.handles.keys().filter(|process| process.node == node).copied().collect();
        gone.iter().filter_map(|process| state.handles.remove(process)).collect::<Vec<_>>()
    });
    drop(handles);
}

/// A file that nobody has had before.
pub(crate) fn new_object(ground: &Ground) -> Object {
    let number = state(|state| {
        state.next += 1;
        state.next
    });
    // Short ones have their number's beginning only.
    let size = kernel::chance(|random| match random.random_range(0..20) {
        0 => 0,
        1 => random.random_range(8..100),
        2..14 => random.random_range(100..=64 << 10),
        14..18 => random.random_range(64 << 10..=512 << 10),
        _ => random.random_range(512 << 10..=ground.largest),
    });
    let number = if size == 0 { 0 } else { number };
    Object { number, size }
}

/// A file of the ground: its origin, its path there, and where it shows.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) origin: usize,
    pub(crate) below: Vec<u8>,
    pub(crate) shown: FsPath,
}

impl Ground {
    /// One of its files.
    pub(crate) fn any(&self) -> Place {
        let (directory, file, mount) = kernel::chance(|random| {
            (
                random.random_range(0..self.directories),
                random.random_range(0..self.files),
                random.random_range(0..self.mounts.len()),
            )
        });
        self.place(mount, directory, file)
    }

    pub(crate) fn place(&self, mount: usize, directory: u32, file: u32) -> Place {
        let (origin, at) = &self.mounts[mount];
        let below = format!("d{directory}/f{file}");
        let shown = FsPath::new(format!("{at}/{below}")).expect("a path");
        Place { origin: *origin, below: below.into_bytes(), shown }
    }

    /// Objects as they are at first: most are there.
    pub(crate) fn sow(&self) {
        for mount in 0..self.mounts.len() {
            for directory in 0..self.directories {
                for file in 0..self.files {
                    let place = self.place(mount, directory, file);
                    let object = (!kernel::once_in(5)).then(|| new_object(self));
                    origin::set(place.origin, &place.below, object);
                }
            }
        }
    }

    /// Somebody else changes an object.
    pub(crate) fn replace_any(&self) {
        let place = self.any();
        let object = (!kernel::once_in(6)).then(|| new_object(self));
        kernel::note(format!("{} is replaced: {object:x?}", place.shown));
        origin::set(place.origin, &place.below, object);
        state(|state| state.counts.replaced += 1);
    }

    /// Something is done on one of the mounts.
    pub(crate) fn operate(self: &Arc<Self>) {
        let node = kernel::chance(|random| self.clients[random.random_range(0..self.clients.len())]);
        let Some((process, client)) = cluster::client(node) else { return };
        let (ground, kind) = (Arc::clone(self), kernel::chance(|random| random.random_range(0..100)));
        state(|state| state.counts.operations += 1);
        let operation = Operation { ground, process, client };
        kernel::after_at(process, Duration::ZERO, move || {
            tokio::spawn(async move {
                let _under_way = UnderWay::begin();
                match kind {
                    0..35 => operation.read().await,
                    35..60 => operation.read_on().await,
                    60..70 => operation.look().await,
                    70..78 => operation.list().await,
                    78..90 => operation.put().await,
                    90..94 => operation.remove().await,
                    94..97 => operation.rename().await,
                    _ => operation.upload().await,
                }
            });
        });
    }
}

struct UnderWay(u64);

impl UnderWay {
    fn begin() -> Self {
        let (process, now) = (kernel::current(), kernel::now());
        Self(state(|state| {
            let number = state.counts.operations + state.under_way.keys().next_back().copied().unwrap_or(0);
            state.under_way.insert(number, (process, now));
            number
        }))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        state(|state| state.under_way.remove(&self.0));
    }
}

/// One operation on one mount.
struct Operation {
    ground: Arc<Ground>,
    process: Process,
    client: Client,
}

/// A call of the client, and when it began.
struct Asked {
    at: Duration,
    ring: Vec<usize>,
}

impl Operation {
    fn asked(&self) -> Asked {
        Asked { at: kernel::now(), ring: self.ring() }
    }

    /// The workers that the mount knows to own blocks.
    fn ring(&self) -> Vec<usize> {
        let topology = self.client.topology();
        let is_in = |node: &&usize| topology.ring.position(&cluster::worker_name(**node)).is_some();
        self.ground.workers.iter().filter(is_in).copied().collect()
    }

    /// What the answer says of the deadline.
    fn on_time(&self, asked: &Asked, limit: Duration, what: impl FnOnce() -> String) {
        let took = kernel::now() - asked.at;
        let stopped = || faults::since(asked.at).contains(&Fault::Process(self.process.node));
        let is_strict = state(|state| state.strict_since).is_some_and(|since| asked.at >= since);
        let limit = if is_strict { Duration::from_secs(10) } else { limit };
        if took > limit + Duration::from_secs(1) && !stopped() {
            kernel::violated("deadlines", format!("{} took {took:?}, and may take {limit:?}", what()));
        }
    }

    /// Somebody got this error: there must have been no worker that could have answered.
    fn failed(&self, asked: &Asked, origin: usize, failure: &Failure, what: impl FnOnce() -> String) {
        let what = what();
        kernel::note(format!("{what}: {failure}"));
        state(|state| state.counts.excused += 1);
        let took = kernel::now() - asked.at;
        if state(|state| state.strict_since).is_some_and(|since| asked.at >= since) {
            return kernel::violated(
                "it heals",
                format!("{what} failed after {took:?}, and nothing is wrong: {failure}"),
            );
        }
        // Connections that break need a moment to be made again.
        let troubles = faults::since(asked.at.saturating_sub(Duration::from_secs(2)));
        if troubles.contains(&Fault::Mount) || troubles.contains(&Fault::Process(self.process.node)) {
            return;
        }
        let (me, store) = (self.process.node, origin::node(origin));
        let touches_origin = |worker: usize| {
            troubles.iter().any(|fault| match fault {
                Fault::Origin(number) => *number == origin,
                Fault::Cut(from, to) => [(worker, store), (store, worker)].contains(&(*from, *to)),
                _ => false,
            })
        };
        let touches = |worker: usize| {
            troubles.iter().any(|fault| match fault {
                Fault::Process(node) => *node == worker,
                Fault::Cut(from, to) => [(worker, me), (me, worker)].contains(&(*from, *to)),
                Fault::Breaks => true,
                _ => false,
            })
        };
        // While no worker can be reached a question waits for one, for as long as it may take.
        let only_silent = troubles.iter().all(|fault| !matches!(fault, Fault::Origin(_) | Fault::Breaks))
            && !self.ground.workers.iter().any(|worker| touches_origin(*worker));
        let waits = self.ground.settings.request_timeout.saturating_sub(Duration::from_secs(4));
        let is_known = state(|state| state.answered.contains(&self.process));
        // One that answers that it does not know yet is not waited for.
        let is_answer = failure.message().contains("has not been told yet");
        if only_silent && is_known && !is_answer && took < waits {
            kernel::violated("an outage is waited for", format!("{what} failed after {took:?}: {failure}"));
        }
        // Who asks several workers that wait for their origin in vain has no time left for one that need not.
        let behind = self.ground.workers.iter().filter(|worker| touches_origin(**worker)).count();
        let ring_now = self.ring();
        let well = asked
            .ring
            .iter()
            .find(|worker| ring_now.contains(worker) && !touches(**worker) && !touches_origin(**worker));
        if let Some(well) = well
            && behind <= 1
        {
            let worker = cluster::worker_name(*well);
            kernel::violated(
                "failure is local",
                format!("{what} failed after {took:?}, and {worker} was well: {failure}"),
            );
        }
    }

    /// What the client says that a name is, if it says anything.
    async fn stat(&self, place: &Place, revalidate: bool) -> Option<Option<(FileVersion, u8)>> {
        let asked = self.asked();
        let answer = self.client.stat(&place.shown, revalidate).await;
        state(|state| state.counts.stats += 1);
        let timeout = self.ground.settings.request_timeout;
        self.on_time(&asked, timeout, || format!("stat of {}", place.shown));
        if answer.is_ok() {
            state(|state| state.answered.insert(self.process));
        }
        let found = match answer {
            Ok(reply) => {
                let Some(version) = reply.attr.version().cloned() else {
                    kernel::violated("names", format!("{} is said to be a directory", place.shown));
                    return None;
                };
                Some((version, reply.attr.replicas, reply.valid_for))
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {
                // Nobody may say so who knows of no mount.
                if failure.message().contains("no mount")
                    && !faults::since(asked.at.saturating_sub(Duration::from_secs(60))).contains(&Fault::Mount)
                {
                    kernel::violated("names", format!("{}: {failure}", place.shown));
                }
                None
            }
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, || format!("stat of {}", place.shown));
                return None;
            }
        };
        let object = found.as_ref().and_then(|(version, ..)| origin::object_of(version));
        let ttl = if revalidate { Duration::ZERO } else { self.ground.settings.metadata_ttl };
        self.is_fresh(place, object, &asked, ttl);
        if let Some((.., valid_for)) = &found
            && *valid_for > self.ground.settings.metadata_ttl
        {
            kernel::violated("freshness", format!("{} is believed for {valid_for:?}", place.shown));
        }
        Some(found.map(|(version, replicas, _)| (version, replicas)))
    }

    /// What a name is said to be, it was a moment ago.
    fn is_fresh(&self, place: &Place, object: Option<Object>, asked: &Asked, ttl: Duration) {
        let oldest = asked.at.saturating_sub(ttl);
        let own = state(|state| state.own.get(&(self.process, place.origin, place.below.clone())).copied());
        // A change that was acknowledged later than the question was asked may not be seen by it.
        let since = own.filter(|own| *own <= asked.at).map_or(oldest, |own| own.max(oldest));
        if model::was(place.origin, &place.below, object, since, kernel::now()) {
            return;
        }
        let was = model::between(place.origin, &place.below, oldest.saturating_sub(ttl), kernel::now());
        let why = if own.is_some_and(|own| since == own) { "own changes are seen" } else { "freshness" };
        let shown = &place.shown;
        let [since, asked] = [since, asked.at].map(|at| kernel::clock(at.as_nanos() as u64));
        kernel::violated(
            why,
            format!("{shown} asked for at {asked} is said to be {object:x?}, which it was not since {since}: {was:x?}"),
        );
    }

    /// Looks a file up and opens it, and reads some of it or all.
    async fn read(&self) {
        let place = self.ground.any();
        let Some(Some((version, replicas))) = self.stat(&place, false).await else { return };
        let file = self.client.open_replicated(version, replicas);
        if self.read_some(&place, &file).await == Some(FailureKind::VersionChanged) {
            // As a mount does: it was replaced, so what is it now?
            let Some(Some((version, replicas))) = self.stat(&place, true).await else { return };
            let file = self.client.open_replicated(version, replicas);
            self.read_some(&place, &file).await;
            return;
        }
        if kernel::once_in(3) {
            let dropped = state(|state| {
                let handles = state.handles.entry(self.process).or_default();
                handles.push(file);
                (handles.len() > 12).then(|| handles.remove(0))
            });
            drop(dropped);
        }
    }

    /// Reads on in a file that has been open for a while.
    async fn read_on(&self) {
        let file = state(|state| {
            let handles = state.handles.get(&self.process)?;
            (!handles.is_empty()).then(|| handles.clone())
        });
        let Some(handles) = file else { return };
        let file = &handles[kernel::chance(|random| random.random_range(0..handles.len()))];
        let version = file.version();
        let Some(origin) = origin::with_url(&version.origin) else { return };
        let at = self.ground.mounts.iter().find(|(number, _)| *number == origin).map_or("", |(_, at)| at);
        let shown = format!("{at}/{}", String::from_utf8_lossy(&version.path));
        let Ok(shown) = FsPath::new(shown) else { return };
        let place = Place { origin, below: version.path.to_vec(), shown };
        self.read_some(&place, file).await;
    }

    /// Reads some of a file, and looks at every byte. The kind of failure, if it fails.
    async fn read_some(&self, place: &Place, file: &Arc<OpenFile>) -> Option<FailureKind> {
        let size = file.version().size;
        let whole = kernel::once_in(3);
        let step: u64 = kernel::chance(|random| 1 << random.random_range(9..21));
        let mut offset = if whole { 0 } else { kernel::chance(|random| random.random_range(0..=size)) };
        let times = if whole { u64::MAX } else { kernel::chance(|random| random.random_range(1..4)) };
        for _ in 0..times {
            let length = u32::try_from(step).unwrap_or(u32::MAX);
            let read = self.read_once(place, file, offset, length).await;
            let read = match read {
                Ok(read) => read,
                Err(kind) => return Some(kind),
            };
            offset += read;
            if read == 0 || offset >= size {
                break;
            }
        }
        None
    }

    async fn read_once(
        &self,
        place: &Place,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u32,
    ) -> Result<u64, FailureKind> {
        let (version, asked) = (file.version().clone(), self.asked());
        let what = || format!("read of {length} bytes at {offset} of {} ({:?})", place.shown, version.tag);
        let answer = match file.try_read(offset, length) {
            Some(spans) => Ok(spans),
            None => file.read(offset, length).await,
        };
        state(|state| state.counts.reads += 1);
        self.on_time(&asked, self.ground.settings.request_timeout * 2, what);
        let object = origin::object_of(&version);
        let spans = match answer {
            Ok(spans) => spans,
            Err(failure) if failure.kind() == FailureKind::VersionChanged => {
                state(|state| state.counts.stale += 1);
                let was = model::between(place.origin, &place.below, Duration::ZERO, kernel::now());
                if was.iter().all(|(_, was)| *was == object) {
                    kernel::violated(
                        "failure is local",
                        format!("{} failed, and it was never replaced: {failure}", what()),
                    );
                }
                return Err(failure.kind());
            }
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, what);
                return Err(failure.kind());
            }
        };
        let Some(object) = object else {
            kernel::violated("one version", format!("{} is a version that never was", what()));
            return Err(FailureKind::Corrupt);
        };
        let mut at = offset;
        for span in &spans {
            if let Some(wrong) = content::first_difference(object.number, at, span) {
                kernel::violated("right bytes", format!("{}: byte {wrong} is wrong", what()));
                return Err(FailureKind::Corrupt);
            }
            at += span.len() as u64;
        }
        let read = at - offset;
        let expected = u64::from(length).min(version.size.saturating_sub(offset));
        if read != expected {
            kernel::violated("whole reads", format!("{}: {read} bytes came, {expected} are there", what()));
        }
        state(|state| state.counts.bytes += read);
        Ok(read)
    }

    async fn look(&self) {
        let place = self.ground.any();
        let revalidate = kernel::once_in(4);
        self.stat(&place, revalidate).await;
    }

    async fn list(&self) {
        let place = self.ground.any();
        let directory = place.shown.parent();
        let asked = self.asked();
        let answer = self.client.list(&directory, None, 1000, kernel::once_in(4)).await;
        state(|state| state.counts.lists += 1);
        self.on_time(&asked, self.ground.settings.request_timeout, || format!("listing of {directory}"));
        let reply = match answer {
            Ok(reply) => reply,
            // It goes with the last of its files.
            Err(failure) if failure.kind() == FailureKind::NotFound => return,
            Err(failure) => return self.failed(&asked, place.origin, &failure, || format!("listing of {directory}")),
        };
        let ttl = self.ground.settings.metadata_ttl;
        let mut listed: BTreeMap<Vec<u8>, Object> = BTreeMap::new();
        for entry in &reply.entries {
            if let Some(object) = entry.attr.version().and_then(origin::object_of) {
                listed.insert(entry.name.to_vec(), object);
            }
        }
        let parent = place.below.split(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        for file in 0..self.ground.files {
            let name = format!("f{file}").into_bytes();
            let below = [&parent[..], b"/", &name].concat();
            let Ok(shown) = directory.join(&name) else { continue };
            let place = Place { origin: place.origin, below, shown };
            self.is_fresh(&place, listed.get(&name).copied(), &asked, ttl);
        }
    }

    /// A change was acknowledged that made `place` this: from when on it was.
    fn acknowledged(&self, place: &Place, object: Option<Object>, asked: &Asked) {
        state(|state| state.counts.changes += 1);
        let Some(at) = model::became(place.origin, &place.below, object, asked.at) else {
            return kernel::violated(
                "acknowledged is durable",
                format!("{} was never {object:x?} since it was said to be", place.shown),
            );
        };
        let key = (self.process, place.origin, place.below.clone());
        state(|state| {
            let known = state.own.entry(key).or_default();
            *known = at.max(*known);
        });
    }

    async fn put(&self) {
        let place = self.ground.any();
        let object = new_object(&self.ground);
        let asked = self.asked();
        let answer = self.client.put(&place.shown, content::whole(object.number, object.size).into()).await;
        self.on_time(&asked, self.ground.settings.change_timeout + Duration::from_secs(5), || {
            format!("put of {}", place.shown)
        });
        match answer {
            Ok(attr) => {
                if attr.version().and_then(origin::object_of) != Some(object) {
                    kernel::violated("acknowledged is durable", format!("{} is said to be {attr:?}", place.shown));
                }
                self.acknowledged(&place, Some(object), &asked);
            }
            Err(failure) => self.failed(&asked, place.origin, &failure, || format!("put of {}", place.shown)),
        }
    }

    async fn remove(&self) {
        let place = self.ground.any();
        self.remove_at(&place).await;
    }

    async fn remove_at(&self, place: &Place) {
        let asked = self.asked();
        let answer = self.client.remove(&place.shown).await;
        self.on_time(&asked, self.ground.settings.change_timeout + Duration::from_secs(5), || {
            format!("removal of {}", place.shown)
        });
        match answer {
            Ok(()) => self.acknowledged(place, None, &asked),
            Err(failure) => self.failed(&asked, place.origin, &failure, || format!("removal of {}", place.shown)),
        }
    }

    /// As `rename(2)` does it: a copy, and the old name goes.
    async fn rename(&self) {
        let (from, to) = (self.ground.any(), self.ground.any());
        if from.origin != to.origin || from.below == to.below {
            return;
        }
        let asked = self.asked();
        match self.client.copy(&from.shown, &to.shown).await {
            Ok(attr) => {
                let object = attr.version().and_then(origin::object_of);
                self.acknowledged(&to, object, &asked);
                self.remove_at(&from).await;
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {}
            Err(failure) => self.failed(&asked, to.origin, &failure, || format!("copy to {}", to.shown)),
        }
    }

    /// A file in parts, which come in any order.
    async fn upload(&self) {
        let place = self.ground.any();
        let mut object = new_object(&self.ground);
        object.size = object.size.max(16);
        object.number = object.number.max(1);
        let bytes = bytes::Bytes::from(content::whole(object.number, object.size));
        let asked = self.asked();
        let what = || format!("upload of {}", place.shown);
        let upload = match self.client.begin_upload(&place.shown).await {
            Ok(upload) => upload,
            Err(failure) => return self.failed(&asked, place.origin, &failure, what),
        };
        let parts = kernel::chance(|random| random.random_range(1..5));
        let size = (bytes.len() / parts).max(1);
        let sent = bytes.chunks(size).zip(1..).map(|(part, number)| {
            let part = bytes.slice_ref(part);
            self.client.upload_part(&place.shown, &upload, number, part)
        });
        let tags = match futures::future::try_join_all(sent).await {
            Ok(tags) => tags,
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, what);
                let _ = self.client.abort_upload(&place.shown, &upload).await;
                return;
            }
        };
        let asked = self.asked();
        match self.client.complete_upload(&place.shown, &upload, object.size, &tags).await {
            Ok(_) => self.acknowledged(&place, Some(object), &asked),
            Err(failure) => self.failed(&asked, place.origin, &failure, what),
        }
    }
}
