//! A mount that a keeper has, too: so it outlives a crash of this process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_handover::{Identity, Journal, Keeps, Kept};
use forebay_locks::Mutex;
use serde_json::{Value, json};
use tracing::warn;

/// How a mount outlives a crash of the process that serves it.
#[derive(Clone, Debug)]
pub struct Survival {
    /// Who keeps it until the next process comes.
    pub keeper: Arc<dyn Keeps>,
    /// What that process must have in common with this one.
    pub identity: Identity,
}

/// A mount that is kept.
#[derive(Debug)]
pub(crate) struct Keeping {
    keeper: Mutex<Arc<dyn Keeps>>,
    /// How often another one has taken the place of one that had ended.
    renewed: AtomicU64,
    journal: Journal,
    /// `None`: it is not for this process to say any more what becomes of it.
    what: Mutex<Option<Kept>>,
}

impl Keeping {
    /// Has `keeper` keep `what`, of which `journal` writes to the memory.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn begin(keeper: Arc<dyn Keeps>, journal: Journal, what: Kept) -> io::Result<Self> {
        keeper.keep(&what)?;
        let renewed = AtomicU64::new(0);
        Ok(Self { keeper: Mutex::new(keeper), renewed, journal, what: Mutex::new(Some(what)) })
    }

    /// This process serves after all, whatever another one may have told the keeper.
    pub(crate) fn again(&self) {
        if let Some(what) = &*self.what.lock()
            && let Err(error) = self.keeper().keep(what)
        {
            warn!(%error, "the mount is not kept any more: it ends if this process is killed");
        }
    }

    /// Another process serves it.
    pub(crate) fn leave(&self) {
        if self.what.lock().take().is_some() {
            self.keeper().leave();
        }
    }

    /// Who has it.
    pub(crate) fn keeper(&self) -> Arc<dyn Keeps> {
        Arc::clone(&self.keeper.lock())
    }

    /// Whether the keeper is there.
    pub(crate) fn is_there(&self) -> bool {
        self.keeper().is_there()
    }

    /// Whether this process has it kept by a keeper that has ended.
    pub(crate) fn lacks_keeper(&self) -> bool {
        self.what.lock().is_some() && !self.is_there()
    }

    /// Has `keeper` keep it in the place of one that has ended. False: this process has nothing more to say of it.
    ///
    /// # Errors
    /// When it does not take it.
    pub(crate) fn renew(&self, keeper: Arc<dyn Keeps>) -> io::Result<bool> {
        // For as long as this is locked, nobody else says anything of it to either keeper.
        let what = self.what.lock();
        let Some(what) = &*what else { return Ok(false) };
        keeper.keep(what)?;
        *self.keeper.lock() = keeper;
        self.renewed.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Whether it is `keeper` who has it.
    pub(crate) fn is_by(&self, keeper: &Arc<dyn Keeps>) -> bool {
        Arc::ptr_eq(&self.keeper(), keeper)
    }

    /// It is kept for the next process, and this one has nothing more to say of it.
    pub(crate) fn entrusted(&self) {
        drop(self.what.lock().take());
    }

    /// It has ended, unless another process serves it.
    pub(crate) fn forget(&self) {
        // What is held here goes first: the kernel ends the mount with the last descriptor.
        let had = self.what.lock().take().map(drop);
        if had.is_some() {
            self.keeper().forget();
        }
    }

    /// What there is to say of it, as a JSON object.
    pub(crate) fn report(&self) -> Value {
        let (journal, states) = self.journal.length().unwrap_or_default();
        let keeper = self.keeper();
        json!({
            "by": keeper.name(),
            "process": keeper.process(),
            "there": keeper.is_there(),
            "renewed": self.renewed.load(Ordering::Relaxed),
            "journal_bytes": journal,
            "states": states,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;

    /// One that notes what it is told.
    #[derive(Debug, Default)]
    struct Noting(Mutex<Vec<&'static str>>);

    impl Keeps for Noting {
        fn name(&self) -> &'static str {
            "test"
        }

        fn process(&self) -> Option<u32> {
            None
        }

        fn keep(&self, _: &Kept) -> io::Result<()> {
            self.0.lock().push("keep");
            Ok(())
        }

        fn leave(&self) {
            self.0.lock().push("leave");
        }

        fn forget(&self) {
            self.0.lock().push("forget");
        }

        fn is_there(&self) -> bool {
            true
        }
    }

    #[test]
    fn who_has_left_a_mount_or_forgotten_it_has_no_more_to_say() {
        let descriptor = || -> OwnedFd { File::open("/dev/null").unwrap().into() };
        let what = || Kept { memory: descriptor(), connection: descriptor(), clones: Vec::new() };
        let keeper = Arc::new(Noting::default());
        let begin = || Keeping::begin(Arc::clone(&keeper) as Arc<dyn Keeps>, Journal::default(), what()).unwrap();
        let (left, forgotten, entrusted) = (begin(), begin(), begin());
        left.again();
        left.leave();
        forgotten.forget();
        entrusted.entrusted();
        for keeping in [left, forgotten, entrusted] {
            keeping.again();
            keeping.forget();
            keeping.leave();
        }
        assert_eq!(*keeper.0.lock(), ["keep", "keep", "keep", "keep", "leave", "forget"]);
    }

    #[test]
    fn another_keeper_takes_the_place_of_one_that_has_ended_unless_the_mount_is_left() {
        let descriptor = || -> OwnedFd { File::open("/dev/null").unwrap().into() };
        let what = Kept { memory: descriptor(), connection: descriptor(), clones: Vec::new() };
        let (first, second, third) = (Arc::<Noting>::default(), Arc::<Noting>::default(), Arc::<Noting>::default());
        let keeping = Keeping::begin(Arc::clone(&first) as Arc<dyn Keeps>, Journal::default(), what).unwrap();
        assert!(!keeping.lacks_keeper());
        assert!(keeping.renew(Arc::clone(&second) as Arc<dyn Keeps>).unwrap());
        keeping.again();
        keeping.leave();
        assert!(!keeping.renew(Arc::clone(&third) as Arc<dyn Keeps>).unwrap());
        assert_eq!(*first.0.lock(), ["keep"]);
        assert_eq!(*second.0.lock(), ["keep", "keep", "leave"]);
        assert!(third.0.lock().is_empty());
        assert_eq!(keeping.report()["renewed"], 1);
    }
}
