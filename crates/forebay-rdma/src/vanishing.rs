//! Network devices that vanish while an I/O thread starts.
//!
//! A UCX context lists the devices of the host, and its worker opens them a moment later. Where containers come and go, so do their
//! devices, and one that was listed and is gone fails the whole worker. The next context does not list it.

use forebay_ucx::{Error, Status};

use crate::RdmaError;

/// How often an I/O thread is started for that reason.
const TRIES: u32 = 5;

/// What comes of `start`, which is tried again while devices vanish under it.
pub(crate) fn retried<T>(mut start: impl FnMut() -> Result<T, RdmaError>) -> Result<T, RdmaError> {
    let mut tries = 1;
    loop {
        match start() {
            Err(RdmaError::Ucx(error @ Error::Worker { status: Status::NO_DEVICE, .. })) if tries < TRIES => {
                tracing::info!(%error, "a network device has vanished while RDMA was starting, it is started again");
                tries += 1;
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vanished() -> RdmaError {
        Error::Worker { what: "create a worker", status: Status::NO_DEVICE }.into()
    }

    #[test]
    fn devices_that_vanish_cost_another_try_and_nothing_else_does() {
        let mut tries = 0;
        let mut failing = |times, error: fn() -> RdmaError| {
            tries = 0;
            let ended = retried(|| {
                tries += 1;
                if tries <= times { Err(error()) } else { Ok(()) }
            });
            (ended.is_ok(), tries)
        };
        assert_eq!(failing(2, vanished), (true, 3));
        assert_eq!(failing(u32::MAX, vanished), (false, TRIES), "not for ever");
        assert_eq!(failing(1, || RdmaError::Thread(String::new())), (false, 1));
    }
}
