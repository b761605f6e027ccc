//! Signs of life of threads that others wait for, for a watchdog: a thread that sleeps because there is nothing to do is fine, and
//! one that has something to do and gets nowhere hangs.
//!
//! A thread that takes work itself has a [`Pulse`]: a count that goes up when it begins and when it ends, odd in between. That costs
//! two stores to a cache line of its own for each piece of work, no clock, and nothing else as long as nobody looks. A thread that
//! runs whatever it is given, as that of a runtime, is [`Asked`]: whoever looks gives it an answer to return, and looks later whether
//! it has. Both may be excused for a while ([`excuse`]). [`ThreadWatch`] decides which of them hang. It counts how often it has looked, and not the time: a machine that slept was
//! not looked at.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use crate::Mutex;

/// So many looks in a row, at least, must find a thread at the same piece of work after the one that found it there first.
const HANGS_AFTER: u32 = 2;
/// How often it is tried to enter a thread into the list, which a forked child may have found locked for ever.
const TRIED: usize = 1000;

/// All threads of the process that are watched.
static THREADS: Mutex<Vec<Weak<dyn Watched>>> = Mutex::new(Vec::new());
static LATEST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: RefCell<Option<Arc<Beats>>> = const { RefCell::new(None) };
    static EXCUSED: RefCell<Option<Excused>> = const { RefCell::new(None) };
}

/// Whether a thread is excused: what it sets, and whoever looks reads.
#[derive(Clone, Debug, Default)]
pub struct Excused(Arc<AtomicBool>);

impl Excused {
    /// It is the calling thread's.
    pub fn is_of_this_thread(&self) {
        EXCUSED.set(Some(self.clone()));
    }

    fn set(&self, is_excused: bool) {
        self.0.store(is_excused, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Which, of all that there ever were in this process.
    pub thread: u64,
    /// What it is called.
    pub name: String,
    /// How far it is with what it has to do; `None`: it has nothing to do, or waits for what no watchdog can help with.
    pub progress: Option<u64>,
}

trait Watched: Send + Sync {
    fn sample(&self) -> Sample;
}

#[derive(Debug)]
struct Beats {
    thread: u64,
    name: String,
    /// Odd while there is work. Only the thread itself counts.
    count: AtomicU64,
    excused: Excused,
}

impl Beats {
    fn begin(&self) {
        self.count.store((self.count.load(Ordering::Relaxed) | 1) + 2, Ordering::Relaxed);
    }

    fn end(&self) {
        self.count.store((self.count.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }
}

impl Watched for Beats {
    fn sample(&self) -> Sample {
        let count = self.count.load(Ordering::Relaxed);
        let is_at_work = count % 2 == 1 && !self.excused.get();
        Sample { thread: self.thread, name: self.name.clone(), progress: is_at_work.then_some(count) }
    }
}

/// A thread that takes work and sleeps in between. It is watched until this is dropped.
#[derive(Debug)]
pub struct Pulse(Arc<Beats>);

impl Pulse {
    /// That of the calling thread, called as the thread is. It sleeps.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let name = thread::current().name().unwrap_or("a thread").to_owned();
        let (count, excused) = (AtomicU64::new(0), Excused::default());
        excused.is_of_this_thread();
        let beats = Arc::new(Beats { thread: next(), name, count, excused });
        OWN.set(Some(Arc::clone(&beats)));
        let watched = Arc::downgrade(&beats);
        watch(watched);
        Self(beats)
    }

    /// It has something to do, or something else.
    #[inline]
    pub fn begin(&self) {
        self.0.begin();
    }

    /// It has nothing to do, and sleeps.
    #[inline]
    pub fn end(&self) {
        self.0.end();
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // The thread may go on to other things, and knows of its beats until it ends.
        self.0.end();
    }
}

/// The calling thread goes on to its next piece of work, if it has a [`Pulse`].
#[inline]
pub fn beat() {
    OWN.with_borrow(|own| own.iter().for_each(|beats| beats.begin()));
}

/// Until it is dropped, a thread is not said to hang.
#[derive(Debug)]
pub struct Excuse(Option<Excused>);

/// The calling thread waits for something that takes as long as it takes, as a disk, and for which nobody is to end the process.
#[must_use]
pub fn excuse() -> Excuse {
    let own = EXCUSED.with_borrow(Clone::clone);
    own.iter().for_each(|excused| excused.set(true));
    Excuse(own)
}

impl Drop for Excuse {
    fn drop(&mut self) {
        self.0.iter().for_each(|excused| excused.set(false));
    }
}

/// A thread that is asked for a sign of life, and watched until this is dropped.
pub struct Asked(Arc<Questions>);

struct Questions {
    thread: u64,
    name: String,
    asked: AtomicU64,
    answered: Arc<AtomicU64>,
    excused: Excused,
    ask: Box<dyn Fn(Answer) -> bool + Send + Sync>,
}

/// What a thread is to return, on that thread. What is dropped is returned: nothing hangs that has ended.
#[derive(Debug)]
pub struct Answer {
    answered: Arc<AtomicU64>,
    number: u64,
}

impl Answer {
    /// The thread is alive.
    pub fn give(self) {
        drop(self);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.answered.store(self.number, Ordering::Relaxed);
    }
}

impl Asked {
    /// One that is called `name`. `ask` has it return an answer, and waits for nothing; false: the thread has ended. It must not keep
    /// the thread from ending.
    pub fn new(name: impl Into<String>, ask: impl Fn(Answer) -> bool + Send + Sync + 'static) -> Self {
        Self::unless_excused(name, Excused::default(), ask)
    }

    /// The same of a thread that may be excused, and so has `excused`.
    pub fn unless_excused(
        name: impl Into<String>,
        excused: Excused,
        ask: impl Fn(Answer) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (asked, answered, ask) = (AtomicU64::new(0), Arc::default(), Box::new(ask));
        let questions = Arc::new(Questions { thread: next(), name: name.into(), asked, answered, excused, ask });
        let watched = Arc::downgrade(&questions);
        watch(watched);
        Self(questions)
    }
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Asked").field(&self.0.name).finish()
    }
}

impl Watched for Questions {
    fn sample(&self) -> Sample {
        let (asked, answered) = (self.asked.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed));
        let progress = if asked == answered {
            let number = asked + 1;
            self.asked.store(number, Ordering::Relaxed);
            (self.ask)(Answer { answered: Arc::clone(&self.answered), number }).then_some(answered)
        } else {
            (!self.excused.get()).then_some(answered)
        };
        Sample { thread: self.thread, name: self.name.clone(), progress }
    }
}

fn next() -> u64 {
    LATEST.fetch_add(1, Ordering::Relaxed)
}

fn watch(thread: Weak<dyn Watched>) {
    for _ in 0..TRIED {
        if let Some(mut threads) = THREADS.try_lock() {
            threads.retain(|thread| thread.strong_count() > 0);
            return threads.push(thread);
        }
        thread::yield_now();
    }
}

/// All threads of this process that are watched, as they are now. To be called by one thread at a time, at intervals that are as long as
/// any piece of work may take.
#[must_use]
pub fn samples() -> Vec<Sample> {
    let threads: Vec<_> = THREADS.lock().iter().filter_map(Weak::upgrade).collect();
    threads.iter().map(|thread| thread.sample()).collect()
}

/// Which threads hang.
#[derive(Debug)]
pub struct ThreadWatch {
    /// How far each was that was at work, and how many looks have found it there since the first.
    seen: HashMap<u64, (u64, u32)>,
    hangs_after: u32,
}

impl Default for ThreadWatch {
    fn default() -> Self {
        Self::after(HANGS_AFTER)
    }
}

impl ThreadWatch {
    /// Says of a thread that it hangs that so many looks have found at the same piece of work after the first one, and no fewer than two.
    #[must_use]
    pub fn after(looks: u32) -> Self {
        Self { seen: HashMap::new(), hangs_after: looks.max(HANGS_AFTER) }
    }

    /// Looks once more. Who hangs: at the same piece of work for that many looks.
    pub fn look(&mut self, samples: Vec<Sample>) -> Vec<String> {
        let before = std::mem::take(&mut self.seen);
        let mut hang = Vec::new();
        for Sample { thread, name, progress } in samples {
            let Some(progress) = progress else { continue };
            let again = before.get(&thread).filter(|(at, _)| *at == progress).map_or(0, |(_, looks)| looks + 1);
            self.seen.insert(thread, (progress, again));
            if again >= self.hangs_after {
                hang.push(name);
            }
        }
        hang
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn sample(thread: u64, progress: Option<u64>) -> Sample {
        Sample { thread, name: format!("thread-{thread}"), progress }
    }

    /// Whoever looks asks all threads of the process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// That of one thread among all of this process.
    fn of(name: &str) -> Option<Sample> {
        samples().into_iter().find(|sample| sample.name == name)
    }

    #[test]
    fn only_what_is_at_the_same_work_for_three_looks_hangs() {
        let mut watch = ThreadWatch::default();
        let mut look = |progress: [Option<u64>; 3]| {
            let samples = progress.iter().enumerate().map(|(thread, progress)| sample(thread as u64, *progress));
            watch.look(samples.collect())
        };
        // Idle, at something else each time, and stuck.
        assert!(look([None, Some(1), Some(7)]).is_empty());
        assert!(look([None, Some(3), Some(7)]).is_empty());
        assert_eq!(look([None, Some(5), Some(7)]), ["thread-2"]);
        assert_eq!(look([None, Some(5), Some(7)]), ["thread-2"]);
        // It goes on, and another one does not.
        assert_eq!(look([Some(1), Some(5), Some(9)]), ["thread-1"]);
        assert!(look([None, None, Some(9)]).is_empty());
        assert_eq!(look([Some(1), Some(7), Some(9)]), ["thread-2"]);
        // Idle once, and at the same place again: it is another piece of work, or was asked anew.
        assert!(look([Some(1), None, None]).is_empty());
        assert!(look([None, Some(7), Some(9)]).is_empty());
    }

    #[test]
    fn who_looks_often_looks_more_often_at_the_same_work() {
        let mut watch = ThreadWatch::after(5);
        for _ in 0..5 {
            assert!(watch.look(vec![sample(1, Some(7))]).is_empty());
        }
        assert_eq!(watch.look(vec![sample(1, Some(7))]), ["thread-1"]);
        assert_eq!(ThreadWatch::after(0).hangs_after, HANGS_AFTER);
    }

    #[test]
    fn a_thread_that_goes_on_without_its_pulse_is_at_no_work() {
        let _alone = ONE_AT_A_TIME.lock();
        let name = "was-at-work";
        let works = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let pulse = Pulse::of_this_thread();
            pulse.begin();
            // As after an error.
            drop(pulse);
            of(name).and_then(|sample| sample.progress)
        });
        assert_eq!(works.unwrap().join().unwrap(), None);
    }

    #[test]
    fn a_thread_is_at_work_between_its_beats_and_never_at_the_same_work_twice() {
        let _alone = ONE_AT_A_TIME.lock();
        let name = "a-pulse";
        let (step, may_step) = channel::<()>();
        let (done, is_done) = channel::<()>();
        let works = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let pulse = Pulse::of_this_thread();
            let stop = || {
                done.send(()).unwrap();
                may_step.recv().unwrap();
            };
            stop();
            for _ in 0..2 {
                pulse.begin();
                stop();
                // Without an end in between.
                beat();
                stop();
                pulse.end();
                stop();
            }
            pulse.begin();
            let excuse = excuse();
            stop();
            drop(excuse);
            stop();
        });
        let mut progress = Vec::new();
        for _ in 0..9 {
            is_done.recv().unwrap();
            progress.push(of(name).expect("it is watched").progress);
            step.send(()).unwrap();
        }
        let is_at_work: Vec<bool> = progress.iter().map(Option::is_some).collect();
        assert_eq!(is_at_work, [false, true, true, false, true, true, false, false, true]);
        let mut worked: Vec<u64> = progress.into_iter().flatten().collect();
        let count = worked.len();
        worked.dedup();
        assert_eq!(worked.len(), count);
        works.unwrap().join().unwrap();
        assert_eq!(of(name), None, "it has ended");
    }

    #[test]
    fn a_thread_that_is_asked_hangs_until_it_answers() {
        let _alone = ONE_AT_A_TIME.lock();
        let (question, questions) = channel::<Answer>();
        let excused = Excused::default();
        let asked = Asked::unless_excused("asked", excused.clone(), move |answer| question.send(answer).is_ok());
        let mut watch = ThreadWatch::default();
        let mut look = || {
            let own: Vec<Sample> = samples().into_iter().filter(|sample| sample.name == "asked").collect();
            assert_eq!(own.len(), 1);
            watch.look(own)
        };
        // It answers in time.
        for _ in 0..5 {
            assert!(look().is_empty());
            questions.recv().unwrap().give();
        }
        assert!(look().is_empty() && look().is_empty());
        assert_eq!(look(), ["asked"]);
        questions.recv().unwrap().give();
        assert!(look().is_empty());
        // As while it waits for a disk.
        excused.is_of_this_thread();
        let excuse = excuse();
        for _ in 0..4 {
            assert!(look().is_empty());
        }
        drop(excuse);
        assert!(look().is_empty() && look().is_empty());
        assert_eq!(look(), ["asked"]);
        questions.recv().unwrap().give();
        assert!(look().is_empty());
        // It has ended.
        drop(questions);
        for _ in 0..4 {
            assert!(look().is_empty());
        }
        drop(asked);
        assert_eq!(of("asked"), None);
    }
}
