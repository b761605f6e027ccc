//! The clock: requests that are signed for a time too far from the server's are refused.

use std::mem::MaybeUninit;

use serde::{Deserialize, Serialize};

/// The clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Whether the kernel was told that something keeps it right; `None` when it does not say.
    pub is_synchronized: Option<bool>,
}

impl Clock {
    /// Asks the kernel.
    #[must_use]
    pub fn read() -> Self {
        /// What the call gives for a clock that nothing keeps right.
        const TIME_ERROR: libc::c_int = 5;
        let mut timex = MaybeUninit::<libc::timex>::zeroed();
        // SAFETY: zeroes are a valid `timex`; its modes are then none, so the call only reads the clock's state.
        let state = unsafe { libc::adjtimex(timex.as_mut_ptr()) };
        Self { is_synchronized: (state >= 0).then_some(state != TIME_ERROR) }
    }
}
