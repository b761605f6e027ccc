//! What makes things happen, in the order of simulated time: one thread, and in it as many runtimes as there are processes.
//!
//! A *node* is a process: a tokio runtime of its own, of one thread. It runs until it has nothing to do, and says when its next timer
//! is due ([`crate::interpose`]). When no node has anything to do, time moves on to the next timer or to the next *event*: something
//! that the world outside of nodes does, or that arrives at a node. So a simulated hour takes as long as what happens in it.
//!
//! To kill a node is to drop its runtime, with all tasks and all they own: nothing of a process outlives it but what the world holds
//! for it, as its disk. One that is stopped is not run, and what arrives for it waits. What passes between nodes passes as events, so
//! no task is ever woken by another runtime.
//!
//! Everything that chance decides comes from the seed, and what happens is written to a log whose hash tells two runs apart.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::{Builder, Runtime};

use crate::interpose::{self, RESTLESS, Wait};

/// Lines of the log that are kept to be shown.
const KEPT: usize = 400;

/// Something that is to happen.
pub(crate) type Action = Box<dyn FnOnce()>;

/// One of the processes that a node ever was: none that is killed is ever meant again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    pub(crate) node: usize,
    pub(crate) life: u32,
}

/// What must not happen, and did.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) at: u64,
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
}

struct Node {
    name: String,
    runtime: Option<Runtime>,
    alive: bool,
    life: u32,
    stopped: bool,
    inbox: VecDeque<Action>,
    timer: Option<u64>,
    skew: i64,
}

struct Event {
    at: u64,
    number: u64,
    to: Option<Process>,
    action: Action,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

struct Log {
    hasher: blake3::Hasher,
    lines: u64,
    last: VecDeque<String>,
    is_shown: bool,
}

struct Kernel {
    events: BinaryHeap<Event>,
    numbered: u64,
    nodes: Vec<Node>,
    ready: BTreeSet<usize>,
    running: Option<usize>,
    random: StdRng,
    log: Log,
    violation: Option<Violation>,
}

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
}

fn kernel<T>(with: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(|kernel| with(kernel.as_mut().expect("this thread simulates")))
}

/// This thread simulates what follows from `seed`.
pub(crate) fn begin(seed: u64, show_log: bool) {
    interpose::begin(seed);
    let log = Log { hasher: blake3::Hasher::new(), lines: 0, last: VecDeque::new(), is_shown: show_log };
    let kernel = Kernel {
        events: BinaryHeap::new(),
        numbered: 0,
        nodes: Vec::new(),
        ready: BTreeSet::new(),
        running: None,
        random: StdRng::seed_from_u64(seed),
        log,
        violation: None,
    };
    KERNEL.set(Some(kernel));
}

/// Whether this thread simulates, and may note something now.
pub(crate) fn is_begun() -> bool {
    KERNEL.try_with(|kernel| kernel.try_borrow_mut().is_ok_and(|kernel| kernel.is_some())).unwrap_or(false)
}

/// Since the beginning.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(interpose::now())
}

/// What chance decides.
pub(crate) fn chance<T>(decide: impl FnOnce(&mut StdRng) -> T) -> T {
    kernel(|kernel| decide(&mut kernel.random))
}

/// Whether something happens that happens once in so many times.
pub(crate) fn once_in(times: u32) -> bool {
    chance(|random| random.random_range(0..times) == 0)
}

/// Any time between two.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    chance(|random| random.random_range(least..=most))
}

/// Writes a line down.
pub(crate) fn note(line: impl AsRef<str>) {
    let line = line.as_ref();
    kernel(|kernel| {
        let (at, node) = (interpose::now(), kernel.running.map_or("world", |node| &kernel.nodes[node].name));
        let line = format!("{} {node:<7} {line}", clock(at));
        let log = &mut kernel.log;
        log.hasher.update(line.as_bytes());
        log.lines += 1;
        if log.is_shown {
            eprintln!("{line}");
        }
        if log.last.len() == KEPT {
            log.last.pop_front();
        }
        log.last.push_back(line);
    });
}

/// Something happened that is too small for a line, and tells two runs apart all the same.
pub(crate) fn detail(what: &'static str, one: u64, other: u64) {
    kernel(|kernel| {
        let log = &mut kernel.log;
        log.hasher.update(what.as_bytes());
        log.hasher.update(&interpose::now().to_le_bytes());
        log.hasher.update(&one.to_le_bytes());
        log.hasher.update(&other.to_le_bytes());
        if log.is_shown {
            eprintln!("{} - {what} {one} {other:x}", clock(interpose::now()));
        }
    });
}

/// Hours, minutes and seconds.
pub(crate) fn clock(nanos: u64) -> String {
    let micros = nanos / 1000;
    let seconds = micros / 1_000_000;
    format!("{}:{:02}:{:02}.{:06}", seconds / 3600, seconds / 60 % 60, seconds % 60, micros % 1_000_000)
}

/// An invariant does not hold. The first one that does not is what is told.
pub(crate) fn violated(invariant: &'static str, what: impl Into<String>) {
    let what = what.into();
    note(format!("VIOLATED {invariant}: {what}"));
    kernel(|kernel| {
        if kernel.violation.is_none() {
            kernel.violation = Some(Violation { at: interpose::now(), invariant, what });
        }
    });
}

/// The invariant that did not hold.
pub(crate) fn violation() -> Option<Violation> {
    kernel(|kernel| kernel.violation.clone())
}

/// How many lines there are, and what tells them from others.
pub(crate) fn fingerprint() -> (u64, String) {
    kernel(|kernel| (kernel.log.lines, kernel.log.hasher.finalize().to_hex()[..32].to_owned()))
}

/// The last lines.
pub(crate) fn last_lines() -> Vec<String> {
    kernel(|kernel| kernel.log.last.iter().cloned().collect())
}

/// Another node, which does not run yet.
pub(crate) fn add_node(name: impl Into<String>) -> usize {
    let node = Node {
        name: name.into(),
        runtime: None,
        alive: false,
        life: 0,
        stopped: false,
        inbox: VecDeque::new(),
        timer: None,
        skew: 0,
    };
    kernel(|kernel| {
        kernel.nodes.push(node);
        kernel.nodes.len() - 1
    })
}

/// A new process at a node that has none, which begins with `first`.
pub(crate) fn start(node: usize, first: impl FnOnce() + 'static) -> Process {
    assert!(process_at(node).is_none(), "node {node} has a process");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    kernel(|kernel| {
        let slot = &mut kernel.nodes[node];
        (slot.runtime, slot.alive) = (Some(runtime), true);
        slot.life += 1;
        slot.inbox.push_back(Box::new(first));
        let life = slot.life;
        kernel.ready.insert(node);
        Process { node, life }
    })
}

/// The process at a node ends at once.
pub(crate) fn kill(node: usize) {
    let (runtime, inbox) = kernel(|kernel| {
        let slot = &mut kernel.nodes[node];
        slot.life += 1;
        (slot.alive, slot.stopped) = (false, false);
        slot.timer = None;
        (slot.runtime.take(), std::mem::take(&mut slot.inbox))
    });
    // What is dropped may ask the kernel things.
    drop(inbox);
    drop(runtime);
    kernel(|kernel| kernel.ready.remove(&node));
}

/// The process at a node stands still, or goes on.
pub(crate) fn stop(node: usize, stopped: bool) {
    kernel(|kernel| {
        kernel.nodes[node].stopped = stopped;
        if !stopped {
            kernel.ready.insert(node);
        }
    });
}

/// The wall clock of a node is off by so many nanoseconds.
pub(crate) fn skew(node: usize, nanos: i64) {
    kernel(|kernel| kernel.nodes[node].skew = nanos);
}

/// Tasks of a node's process.
pub(crate) fn tasks(node: usize) -> usize {
    kernel(|kernel| kernel.nodes[node].runtime.as_ref().map_or(0, |runtime| runtime.metrics().num_alive_tasks()))
}

/// The process that runs.
pub(crate) fn current() -> Process {
    kernel(|kernel| {
        let node = kernel.running.expect("a node runs");
        Process { node, life: kernel.nodes[node].life }
    })
}

/// The process that is at a node now, if there is one.
pub(crate) fn process_at(node: usize) -> Option<Process> {
    kernel(|kernel| {
        let slot = &kernel.nodes[node];
        slot.alive.then_some(Process { node, life: slot.life })
    })
}

/// Whether this process lives, stopped or not.
pub(crate) fn is_alive(process: Process) -> bool {
    process_at(process.node) == Some(process)
}

/// Whether the process at a node stands still.
pub(crate) fn is_stopped(node: usize) -> bool {
    kernel(|kernel| kernel.nodes[node].stopped)
}

/// The world does this later.
pub(crate) fn after(time: Duration, action: impl FnOnce() + 'static) {
    push(time, None, Box::new(action));
}

/// This happens in a process later, if it lives then.
pub(crate) fn after_at(to: Process, time: Duration, action: impl FnOnce() + 'static) {
    push(time, Some(to), Box::new(action));
}

fn push(time: Duration, to: Option<Process>, action: Action) {
    kernel(|kernel| {
        kernel.numbered += 1;
        let (at, number) = (interpose::now() + time.as_nanos() as u64, kernel.numbered);
        kernel.events.push(Event { at, number, to, action });
    });
}

/// Lets happen what happens until `end`, or until an invariant does not hold.
pub(crate) fn run_until(end: Duration) {
    let end = end.as_nanos() as u64;
    while violation().is_none() {
        if let Some(node) = next_ready() {
            step(node);
            continue;
        }
        let Some(at) = next_time().filter(|at| *at <= end) else { break };
        interpose::set_now(at);
        let mut due = Vec::new();
        kernel(|kernel| {
            for (number, node) in kernel.nodes.iter().enumerate() {
                if !node.stopped && node.timer.is_some_and(|timer| timer <= at) {
                    kernel.ready.insert(number);
                }
            }
            while kernel.events.peek().is_some_and(|event| event.at <= at) {
                due.extend(kernel.events.pop());
            }
        });
        due.into_iter().for_each(happen);
    }
    if violation().is_none() {
        interpose::set_now(end.max(interpose::now()));
    }
}

fn happen(event: Event) {
    let Event { to, action, .. } = event;
    match to {
        None => action(),
        Some(to) if is_alive(to) => kernel(|kernel| {
            let slot = &mut kernel.nodes[to.node];
            slot.inbox.push_back(action);
            if !slot.stopped {
                kernel.ready.insert(to.node);
            }
        }),
        Some(_) => drop(action),
    }
}

fn next_ready() -> Option<usize> {
    kernel(|kernel| {
        while let Some(node) = kernel.ready.pop_first() {
            let slot = &kernel.nodes[node];
            if slot.runtime.is_some() && !slot.stopped {
                return Some(node);
            }
        }
        None
    })
}

fn next_time() -> Option<u64> {
    kernel(|kernel| {
        let timers =
            kernel.nodes.iter().filter(|node| !node.stopped && node.runtime.is_some()).filter_map(|node| node.timer);
        timers.chain(kernel.events.peek().map(|event| event.at)).min()
    })
}

/// Runs a node until it has nothing to do.
fn step(node: usize) {
    let (runtime, skew) = kernel(|kernel| {
        kernel.running = Some(node);
        let slot = &mut kernel.nodes[node];
        (slot.runtime.take(), slot.skew)
    });
    let Some(runtime) = runtime else { return };
    detail("runs", node as u64, 0);
    interpose::set_skew(skew);
    // What was said of an earlier step.
    interpose::take_wait();
    let wait = runtime.block_on(poll_fn(|context| {
        if let Some(wait) = interpose::take_wait() {
            return Poll::Ready(wait);
        }
        if interpose::looks() > RESTLESS {
            return Poll::Ready(Wait::Forever);
        }
        interpose::wake_when_idle(context.waker());
        while let Some(action) = kernel(|kernel| kernel.nodes[node].inbox.pop_front()) {
            action();
        }
        Poll::Pending
    }));
    interpose::set_skew(0);
    if interpose::looks() > RESTLESS {
        violated("progress", "a process never rests: its tasks wake each other while no time passes");
    }
    kernel(|kernel| {
        kernel.running = None;
        let slot = &mut kernel.nodes[node];
        slot.runtime = Some(runtime);
        slot.timer = match wait {
            Wait::Forever => None,
            Wait::Milliseconds(wait) => Some(interpose::now() + u64::from(wait) * 1_000_000),
        };
    });
}

/// Asks the world something: `there` from now it does `work`, and the answer is here `back` later. It does so also if
/// no task waits for the answer any more.
pub(crate) fn ask<T: Send + 'static>(
    there: Duration,
    back: Duration,
    work: impl FnOnce() -> T + 'static,
) -> impl Future<Output = T> + Send {
    let answered = ask_for(there, back, work);
    async move {
        match answered.await {
            Ok(answer) => answer,
            // Only with this process.
            Err(_) => std::future::pending().await,
        }
    }
}

fn ask_for<T: Send + 'static>(
    there: Duration,
    back: Duration,
    work: impl FnOnce() -> T + 'static,
) -> tokio::sync::oneshot::Receiver<T> {
    let (tell, answered) = tokio::sync::oneshot::channel();
    let asker = current();
    after(there, move || {
        let answer = work();
        after_at(asker, back, move || _ = tell.send(answer));
    });
    answered
}
