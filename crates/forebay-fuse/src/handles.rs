//! Open handles: from the number that the kernel hands back to what it stands for.
//!
//! This lies on the path of every read, so a look-up takes no lock and writes to no memory that another reader reads:
//! a handle is an index into chunks of slots that never move, and a slot is an `ArcSwap`. A map with deferred
//! reclamation would do as well, but would keep the buffers of a closed file for an unbounded while; here they go with
//! the close.
//!
//! The upper half of a handle is a serial number: a handle that was released is unknown, also when its slot is in use
//! again.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use forebay_handover::{HandleNumbers, Handles};
use forebay_locks::Mutex;

/// Slots in the first chunk; each further one has twice as many as the one before.
const FIRST_CHUNK: u32 = 64;
/// In all about 67 million slots.
const CHUNKS: usize = 20;

struct Slotted<T> {
    handle: u64,
    value: T,
}

type Chunk<T> = Box<[ArcSwapOption<Slotted<T>>]>;

/// What is open.
pub(crate) struct HandleTable<T> {
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    vacancies: Mutex<Vacancies>,
}

#[derive(Default)]
struct Vacancies {
    freed: Vec<u32>,
    never_used: u32,
    serial: u32,
}

impl<T> HandleTable<T> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], vacancies: Mutex::default() }
    }

    /// A handle for `value`; `None` when there are more than the table can number.
    pub(crate) fn insert(&self, value: T) -> Option<u64> {
        let (index, serial) = {
            let mut vacancies = self.vacancies.lock();
            let index = match vacancies.freed.pop() {
                Some(index) => index,
                None => {
                    let index = vacancies.never_used;
                    place(index)?;
                    vacancies.never_used += 1;
                    index
                }
            };
            vacancies.serial = vacancies.serial.wrapping_add(1);
            (index, vacancies.serial)
        };
        let handle = u64::from(serial) << 32 | u64::from(index);
        self.put(handle, value)?;
        Some(handle)
    }

    /// Puts a value into the slot of its handle; `None` when there is no such slot.
    fn put(&self, handle: u64, value: T) -> Option<()> {
        // The lower half is the index.
        let (chunk, slot) = place(handle as u32)?;
        let slots = self.chunks[chunk].get_or_init(|| {
            let slots = FIRST_CHUNK << chunk;
            (0..slots).map(|_| ArcSwapOption::empty()).collect()
        });
        slots[slot].store(Some(Arc::new(Slotted { handle, value })));
        Some(())
    }

    /// What is open as the next process is told of it. To be called when nothing is opened or closed.
    pub(crate) fn handed<R>(&self, mut told: impl FnMut(&T) -> R) -> Handles<R> {
        let vacancies = self.vacancies.lock();
        let mut open = Vec::new();
        for index in 0..vacancies.never_used {
            if let Some(slotted) = self.slot(u64::from(index)).and_then(|slot| slot.load_full()) {
                open.push((slotted.handle, told(&slotted.value)));
            }
        }
        Handles { open, numbers: HandleNumbers { freed: vacancies.freed.clone(), serial: vacancies.serial } }
    }

    /// A table of what another process had open, in which handles that it released stay unknown.
    pub(crate) fn restored<R>(handed: Handles<R>, mut value_of: impl FnMut(R) -> T) -> Self {
        let table = Self::new();
        let Handles { open, numbers: HandleNumbers { freed, serial } } = handed;
        // As many as the slots of a table, which are no more than that.
        let never_used = u32::try_from(open.len() + freed.len()).unwrap_or(u32::MAX);
        for (handle, value) in open {
            table.put(handle, value_of(value));
        }
        *table.vacancies.lock() = Vacancies { freed, never_used, serial };
        table
    }

    /// What `look` says of the value behind `handle`; `None` when it is not open.
    pub(crate) fn with<R>(&self, handle: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        let loaded = self.slot(handle)?.load();
        let slotted = loaded.as_ref().filter(|slotted| slotted.handle == handle)?;
        Some(look(&slotted.value))
    }

    /// Releases `handle`. The value goes when the last look at it ends. Returns whether it was open.
    pub(crate) fn remove(&self, handle: u64) -> bool {
        let Some(slot) = self.slot(handle) else { return false };
        // Only the kernel's one release of a handle comes here, so no other thread empties the slot in between.
        let open = slot.load().as_ref().is_some_and(|slotted| slotted.handle == handle);
        if open {
            slot.store(None);
            self.vacancies.lock().freed.push(handle as u32);
        }
        open
    }

    fn slot(&self, handle: u64) -> Option<&ArcSwapOption<Slotted<T>>> {
        // The lower half is the index.
        let (chunk, slot) = place(handle as u32)?;
        self.chunks[chunk].get()?.get(slot)
    }
}

/// The chunk of slot `index`, and where in it.
fn place(index: u32) -> Option<(usize, usize)> {
    let shifted = index.checked_add(FIRST_CHUNK)?;
    let chunk = (shifted.ilog2() - FIRST_CHUNK.ilog2()) as usize;
    (chunk < CHUNKS).then(|| (chunk, (shifted - (FIRST_CHUNK << chunk)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn slots_lie_side_by_side() {
        assert_eq!(place(0), Some((0, 0)));
        assert_eq!(place(63), Some((0, 63)));
        assert_eq!(place(64), Some((1, 0)));
        assert_eq!(place(191), Some((1, 127)));
        assert_eq!(place(192), Some((2, 0)));
        assert_eq!(place(u32::MAX), None);
    }

    #[test]
    fn a_released_handle_is_unknown_and_its_value_gone() {
        let table = HandleTable::new();
        let value = Arc::new(());
        let handle = table.insert(Arc::clone(&value)).unwrap();
        assert!(table.remove(handle));
        assert_eq!(Arc::strong_count(&value), 1);
        let second = table.insert(value).unwrap();
        assert_eq!(second as u32, handle as u32, "the slot is used again");
        assert!(table.with(handle, |_| ()).is_none());
        assert!(!table.remove(handle));
        assert!(table.with(second, |_| ()).is_some());
    }

    #[test]
    fn readers_and_openers_do_not_disturb_each_other() {
        let table = HandleTable::new();
        let shared = table.insert(7u64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let value = thread << 32 | round;
                        let handle = table.insert(value).unwrap();
                        assert_eq!(table.with(handle, |value| *value), Some(value));
                        assert_eq!(table.with(shared, |value| *value), Some(7));
                        assert!(table.remove(handle));
                    }
                });
            }
        });
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in prop::collection::vec((any::<bool>(), any::<usize>()), 0..300)) {
            let table = HandleTable::new();
            let mut model = BTreeMap::new();
            for (insert, which) in steps {
                if insert || model.is_empty() {
                    model.insert(table.insert(which).unwrap(), which);
                } else {
                    let handle = *model.keys().nth(which % model.len()).unwrap();
                    prop_assert!(table.remove(handle));
                    model.remove(&handle);
                }
                for (handle, value) in &model {
                    prop_assert_eq!(table.with(*handle, |value| *value), Some(*value));
                }
            }
        }

        #[test]
        fn a_table_of_another_process_goes_on_as_the_one_that_it_was(
            before in prop::collection::vec((any::<bool>(), any::<usize>()), 0..200),
            after in prop::collection::vec((any::<bool>(), any::<usize>()), 0..200),
        ) {
            let (table, mut model) = (HandleTable::new(), BTreeMap::new());
            let mut released = Vec::new();
            let mut step = |table: &HandleTable<usize>, (insert, which): (bool, usize)| {
                if insert || model.is_empty() {
                    assert_eq!(model.insert(table.insert(which).unwrap(), which), None, "a handle is given once");
                } else {
                    let handle = *model.keys().nth(which % model.len()).unwrap();
                    assert!(table.remove(handle));
                    model.remove(&handle);
                    released.push(handle);
                }
            };
            before.into_iter().for_each(|what| step(&table, what));
            let table = HandleTable::restored(table.handed(|value| *value), |value| value);
            after.into_iter().for_each(|what| step(&table, what));
            for (handle, value) in &model {
                prop_assert_eq!(table.with(*handle, |value| *value), Some(*value));
            }
            prop_assert!(released.iter().all(|handle| table.with(*handle, |_| ()).is_none()));
        }

        #[test]
        fn no_handle_makes_it_panic(handle: u64) {
            let table = HandleTable::new();
            let known = table.insert(()).unwrap();
            prop_assert_eq!(table.with(handle, |()| ()).is_some(), handle == known);
        }
    }
}
