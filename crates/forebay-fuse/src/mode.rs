//! How one inode is open in the kernel: served by us, or passed through to a materialised file.
//!
//! The kernel refuses to have one inode open in both ways (the program gets `EIO`), so the first open decides for as long as any
//! handle is open. A file that is materialised while it is open the other way waits for the next first open.
//!
//! Two things follow:
//!
//! * Every open of an inode that is passed through names the **same** backing, or is answered [`How::Direct`]: the kernel counts it
//!   with the others, brings its reads to us, and maps the backing all the same. So no open is ever refused.
//! * No handle may write to an inode that is passed through: readers would not see it. [`Mode::write`] says so, and the
//!   writer gets an inode of its own.
//!
//! What is counted here goes up before the kernel hears of an open and down after the kernel has ended it: it is never below what
//! the kernel counts, so deciding on it is safe. Pure: it takes opens and releases and says how. Reads never come here.

/// How the handles of one inode are open. `B` is what they are passed through to.
#[derive(Debug, Default)]
pub(crate) enum Mode<B> {
    /// There are none.
    #[default]
    Free,
    /// So many, which we serve.
    Cached(u32),
    /// All of them pass through to this.
    Passed {
        /// What to.
        backing: B,
        /// How many.
        handles: u32,
    },
}

/// How one handle is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How<B> {
    /// We serve it, through the kernel's page cache.
    Cached,
    /// The kernel reads the backing.
    Passed(B),
    /// We serve what is read, and the kernel maps the backing.
    Direct(B),
}

impl<B> How<B> {
    /// What the kernel is to be told of, if anything.
    pub(crate) fn backing(&self) -> Option<&B> {
        match self {
            Self::Cached => None,
            Self::Passed(backing) | Self::Direct(backing) => Some(backing),
        }
    }
}

/// What a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The bytes, from wherever they come fastest.
    Anyhow,
    /// To be served by us: a backing on a disk would want reads to be aligned.
    ByUs,
}

/// The inode is passed through: it cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IsPassed;

impl<B: Clone> Mode<B> {
    /// One more handle for reading, where the inode is open already. `None`: it is not, and if there is something to pass it
    /// through to, [`Mode::read`] follows.
    pub(crate) fn join(&mut self, reading: Reading) -> Option<How<B>> {
        match self {
            Self::Free => None,
            Self::Cached(_) | Self::Passed { .. } => Some(self.read(None, reading)),
        }
    }

    /// One more handle for reading. `offered` is what it may be passed through to, if it is not decided yet.
    pub(crate) fn read(&mut self, offered: Option<B>, reading: Reading) -> How<B> {
        match self {
            Self::Free => match offered.filter(|_| reading == Reading::Anyhow) {
                Some(backing) => {
                    *self = Self::Passed { backing: backing.clone(), handles: 1 };
                    How::Passed(backing)
                }
                None => {
                    *self = Self::Cached(1);
                    How::Cached
                }
            },
            Self::Cached(handles) => {
                *handles += 1;
                How::Cached
            }
            Self::Passed { backing, handles } => {
                *handles += 1;
                match reading {
                    Reading::Anyhow => How::Passed(backing.clone()),
                    Reading::ByUs => How::Direct(backing.clone()),
                }
            }
        }
    }

    /// One more writer.
    ///
    /// # Errors
    /// When the inode is passed through.
    pub(crate) fn write(&mut self) -> Result<(), IsPassed> {
        match self {
            Self::Free => *self = Self::Cached(1),
            Self::Cached(handles) => *handles += 1,
            Self::Passed { .. } => return Err(IsPassed),
        }
        Ok(())
    }

    /// One handle less. What they all passed through to, if it was the last such one.
    pub(crate) fn leave(&mut self) -> Option<B> {
        match self {
            Self::Cached(handles) | Self::Passed { handles, .. } if *handles > 1 => {
                *handles -= 1;
                None
            }
            _ => match std::mem::replace(self, Self::Free) {
                Self::Passed { backing, .. } => Some(backing),
                Self::Free | Self::Cached(_) => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// With this to pass it through to.
        Read(Option<u8>, bool),
        Write,
        /// Of one of the open handles.
        Release(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (prop::option::of(any::<u8>()), any::<bool>()).prop_map(|(offered, by_us)| Step::Read(offered, by_us)),
            1 => Just(Step::Write),
            3 => any::<usize>().prop_map(Step::Release),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// What the kernel keeps of an inode, and its rule.
    #[derive(Default)]
    struct Kernel {
        cached: usize,
        passed: Vec<u8>,
    }

    impl Kernel {
        /// Whether it takes the answer to an open.
        fn take(&mut self, how: &How<u8>) -> bool {
            match how.backing() {
                None => self.cached += 1,
                Some(backing) => self.passed.push(*backing),
            }
            let is_mixed = self.cached > 0 && !self.passed.is_empty();
            !is_mixed && self.passed.windows(2).all(|pair| pair[0] == pair[1])
        }

        fn release(&mut self, how: &How<u8>) {
            match how.backing() {
                None => self.cached -= 1,
                Some(_) => drop(self.passed.pop()),
            }
        }
    }

    proptest! {
        #[test]
        fn no_sequence_of_opens_and_releases_makes_the_kernel_refuse_one(steps in steps()) {
            let (mut mode, mut kernel, mut handles) = (Mode::default(), Kernel::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Read(offered, by_us) => {
                        let reading = if by_us { Reading::ByUs } else { Reading::Anyhow };
                        let how = match mode.join(reading) {
                            Some(how) => how,
                            None => {
                                prop_assert!(handles.is_empty());
                                let how = mode.read(offered, reading);
                                prop_assert_eq!(how.backing().copied(), offered.filter(|_| !by_us), "the first one decides");
                                how
                            }
                        };
                        prop_assert!(kernel.take(&how));
                        prop_assert!(!by_us || !matches!(how, How::Passed(_)));
                        handles.push(how);
                    }
                    Step::Write => {
                        let is_passed = !kernel.passed.is_empty();
                        prop_assert_eq!(mode.write().is_err(), is_passed, "exactly then it needs an inode of its own");
                        if !is_passed {
                            prop_assert!(kernel.take(&How::Cached));
                            handles.push(How::Cached);
                        }
                    }
                    Step::Release(which) if !handles.is_empty() => {
                        let how = handles.swap_remove(which % handles.len());
                        kernel.release(&how);
                        let last = how.backing().copied().filter(|_| handles.is_empty());
                        prop_assert_eq!(mode.leave(), last, "the backing goes with the last handle, and only then");
                    }
                    Step::Release(_) => {}
                }
                prop_assert_eq!(matches!(mode, Mode::Passed { .. }), !kernel.passed.is_empty());
                prop_assert_eq!(matches!(mode, Mode::Free), handles.is_empty());
            }
        }
    }

    #[test]
    fn a_file_that_is_open_the_other_way_waits_for_the_last_close() {
        let mut mode = Mode::default();
        assert_eq!(mode.read(None, Reading::Anyhow), How::Cached);
        assert_eq!(mode.read(Some(7), Reading::Anyhow), How::Cached);
        assert_eq!((mode.leave(), mode.leave()), (None, None));
        assert_eq!(mode.read(Some(7), Reading::Anyhow), How::Passed(7));
        assert_eq!(mode.join(Reading::ByUs), Some(How::Direct(7)), "counted with those that pass through");
    }

    #[test]
    fn a_release_too_many_changes_nothing() {
        let mut mode = Mode::<u8>::default();
        assert_eq!(mode.leave(), None);
        assert!(matches!(mode, Mode::Free));
    }
}
