//! Calls whose threads wait for their answers themselves, as far as it is one whether UCX or verbs carry them: whether a thread may, and
//! what is to end before its link has.

use std::time::Instant;

use forebay_transport::Request;
use forebay_transport::driving::{self, DriveOptions, Restraint, Turn, Waits};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::client_link::{Answer, Call, Command};

/// The longest body of a request that is sent so: one that fits a message's header, or a frame.
const SMALL_BODY: usize = 512;

/// What came of a call that the calling thread may have waited for.
pub(crate) enum Asked {
    /// Its answer.
    Ended(Answer),
    /// It is under way, and ends with this.
    Late(mpsc::UnboundedSender<Command>),
    /// It has not been made. `may_wait`: the thread may wait for who makes it.
    Not { call: Call, may_wait: bool },
}

/// What threads of one link pass that wait for answers themselves.
pub(crate) struct Gate {
    options: DriveOptions,
    waits: Waits,
    /// What is to end before the link has: threads, tasks.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Gate {
    /// Nobody waits yet.
    pub(crate) fn new(options: DriveOptions) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        Self { options, waits: Waits::new(options.spin), tasks, stop }
    }

    /// Whether the calling thread may wait for the answer to `request` itself.
    ///
    /// # Errors
    /// It may not. Whether it may wait for who makes the call, then.
    pub(crate) fn enter<'a>(&self, request: &Request, restraint: &'a Restraint) -> Result<Entered<'a>, bool> {
        if request.body_len() > SMALL_BODY {
            return Err(true);
        }
        let turn = driving::begin(&self.options, request.deadline).ok_or(true)?;
        let token = self.token();
        if restraint.holds_back() {
            return Err(false);
        }
        Ok(Entered { _token: token, turn, restraint })
    }

    /// How a thread waits here.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Who closes the link waits for whoever has one of these.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Cancelled when the link is closed.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Ends what goes on for the link, and returns when it has ended: no thread waits then, and no call is late.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The same without waiting.
    pub(crate) fn give_up(&self) {
        self.stop.cancel();
    }
}

/// The right of a thread to wait for one answer.
pub(crate) struct Entered<'a> {
    _token: TaskTrackerToken,
    turn: Turn,
    restraint: &'a Restraint,
}

impl Entered<'_> {
    /// When it has waited for long enough.
    pub(crate) fn until(&self) -> Instant {
        self.turn.until()
    }

    /// It has its answer.
    pub(crate) fn answered(&self) {
        self.turn.answered();
        self.restraint.prompt();
    }

    /// It waited in vain.
    pub(crate) fn late(&self) {
        self.restraint.late();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use bytes::Bytes;
    use forebay_transport::Op;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn request(body: usize) -> Request {
        Request::on_path(Op::Stat, Bytes::from(vec![0; body]), LONG)
    }

    #[test]
    fn who_may_wait_itself_does_unless_the_request_is_long_or_answers_were_late() {
        let gate = Gate::new(DriveOptions { wait: LONG, ..DriveOptions::default() });
        let restraint = Restraint::default();
        assert!(matches!(gate.enter(&request(0), &restraint), Err(true)), "nobody permitted it");
        let permitted =
            |length| driving::permitted(usize::MAX, || gate.enter(&request(length), &restraint).map(drop)).0;
        assert_eq!(permitted(SMALL_BODY), Ok(()));
        assert_eq!(permitted(SMALL_BODY + 1), Err(true));
        let enters = || gate.enter(&request(0), &restraint).unwrap();
        assert_eq!(driving::permitted(usize::MAX, || enters().answered()).1, 1);
        driving::permitted(usize::MAX, || enters().late());
        assert_eq!(permitted(0), Err(false), "it is not waited for, nor for who makes it");
    }

    #[tokio::test]
    async fn a_link_is_closed_when_no_thread_waits() {
        let gate = Gate::new(DriveOptions { wait: LONG, ..DriveOptions::default() });
        let restraint = Restraint::default();
        let entered = driving::permitted(usize::MAX, || gate.enter(&request(0), &restraint)).0.unwrap();
        let mut closing = pin!(gate.close());
        tokio::select! {
            biased;
            () = &mut closing => panic!("a thread waits"),
            () = std::future::ready(()) => {}
        }
        assert!(gate.stop().is_cancelled());
        drop(entered);
        closing.await;
    }
}
