//! Who receives on a connection that a task serves, and that threads drive now and then: one word.
//!
//! ```text
//!              take: the task is told                 leave: nobody else waits
//!   ┌─ WATCHED ───────────────────────▶ DRIVEN ────────────────────────▶ RESTING ─┐
//!   │     ▲                              │  ▲                              │  │   │
//!   │     │ leave: the task is told      │  └────────── take ──────────────┘  │   │
//!   │     └───────────── CALLED ◀────────┘ call                               │   │
//!   └─◀── call: the task is told, or it looks and finds that nobody drove ────┘◀──┘
//! ```
//!
//! * *watched*: the task receives. The runtime wakes it for whatever arrives;
//! * *driven*: a thread receives, and brings each answer that comes to its call. The runtime does not watch the connection, or it
//!   would wake the task for each answer;
//! * *called*: the same, and somebody else has begun a call, so that the thread gives the connection back to the task when it has
//!   its own answer;
//! * *resting*: nobody receives, and there is nothing to be received. The next thread that waits may drive without a word to the
//!   task. The task looks now and then whether anybody did, and watches again if not.
//!
//! What must not happen is that a call waits, and nobody receives: who begins one that it does not drive itself says so
//! ([`Helm::call`]) once the connection knows of it, and who stops driving says whether others wait. The model (`model.rs`)
//! tries all orders.
//!
//! To receive twice at once, as for a moment when a thread takes over, must do no harm: messages are whole, and each is taken by
//! one of them.

use super::sync::{AtomicU32, Ordering};

const WATCHED: u32 = 0;
const DRIVEN: u32 = 1;
const CALLED: u32 = 2;
const RESTING: u32 = 3;

/// From whom a thread took it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The task, which is to be told: the runtime should watch no more.
    FromTask,
    /// Nobody.
    Free,
}

/// See above. Watched at first.
#[derive(Debug)]
pub struct Helm {
    state: AtomicU32,
    /// How often it was taken.
    taken: AtomicU32,
}

impl Default for Helm {
    fn default() -> Self {
        Self { state: AtomicU32::new(WATCHED), taken: AtomicU32::new(0) }
    }
}

impl Helm {
    /// The calling thread drives from now on, unless another one does. [`Helm::leave`] must follow.
    pub fn take(&self) -> Option<Taken> {
        let taken = match self.become_driven(RESTING) {
            true => Taken::Free,
            false if self.become_driven(WATCHED) => Taken::FromTask,
            false => return None,
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(taken)
    }

    fn become_driven(&self, from: u32) -> bool {
        self.state.compare_exchange(from, DRIVEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The thread that drives stops. `others_wait`: for answers. True: the task is to be told, since it receives from now on.
    #[must_use = "nobody receives before the task is told"]
    pub fn leave(&self, others_wait: bool) -> bool {
        if !others_wait && self.state.compare_exchange(DRIVEN, RESTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return false;
        }
        // Not a store: loom takes one and a call's exchange for unordered, though no value comes between what that reads and writes.
        self.state.swap(WATCHED, Ordering::AcqRel);
        true
    }

    /// A call has begun whose caller does not drive. True: the task is to be told, since it receives from now on.
    #[must_use = "nobody receives before the task is told"]
    pub fn call(&self) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let next = match state {
                RESTING => WATCHED,
                DRIVEN => CALLED,
                _ => return false,
            };
            match self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return state == RESTING,
                Err(now) => state = now,
            }
        }
    }

    /// Whether the task receives.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.state.load(Ordering::Acquire) == WATCHED
    }

    /// How often a thread has begun to drive, for a task that looks whether any did.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The task receives again, if nobody drives.
    pub fn watch(&self) {
        // If that fails, it is watched already, or somebody drives, who will leave it as it is to be.
        let _ = self.state.compare_exchange(RESTING, WATCHED, Ordering::AcqRel, Ordering::Relaxed);
    }
}
