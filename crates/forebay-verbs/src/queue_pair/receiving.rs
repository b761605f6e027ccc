//! Receives: what lies in one until it is the card's again.

use forebay_verbs_sys as sys;

use super::{QueuePair, RECEIVE};
use crate::error::{Error, by_result};

impl QueuePair {
    /// The message of `length` bytes that lies in a receive. Empty while the card has that.
    #[must_use]
    pub fn message_in(&self, receive: u32, length: usize) -> &[u8] {
        if self.with_card.get(receive as usize) != Some(&false) {
            return &[];
        }
        let (place, capacity) = (self.memory.receives.at(receive), self.memory.receives.length());
        // SAFETY: the card does not have the frame; it gets it again by a call that borrows `self` alone.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), length.min(capacity)) }
    }

    /// Gives a receive whose message was looked at to the card again. No effect on one that it has.
    ///
    /// # Errors
    /// [`Error::Refused`]: the connection is to be ended.
    pub fn receive_again(&mut self, receive: u32) -> Result<(), Error> {
        let Some(with_card) = self.with_card.get_mut(receive as usize).filter(|with_card| !**with_card) else {
            return Ok(());
        };
        let receives = &self.memory.receives;
        let mut piece = sys::ibv_sge {
            addr: receives.at(receive).addr().get() as u64,
            length: receives.length() as u32,
            lkey: receives.lkey(),
        };
        let mut request = sys::ibv_recv_wr {
            wr_id: RECEIVE | u64::from(receive),
            next: std::ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
        };
        let mut failed = std::ptr::null_mut();
        *with_card = true;
        self.invalidated[receive as usize] = None;
        // SAFETY: the pair is alive; the request names a frame that nobody looks at while the card has it.
        let result = unsafe { sys::ibv_post_recv(self.pair.as_ptr(), &raw mut request, &raw mut failed) };
        if result != 0 {
            // A list of one was not taken.
            *with_card = false;
        }
        by_result("post a receive", result)
    }
}
