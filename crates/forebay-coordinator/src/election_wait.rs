//! Waiting for a coordinator that leads.
//!
//! Right after a start, and until the lease of a leader that died has ended, no coordinator runs jobs. What is refused
//! for that reason alone has changed nothing, or can be asked for again: a job that is under way is joined, and one
//! that is stopped stays so.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::ApiError;

/// Between two tries: an election takes milliseconds with a healthy state store.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks again while no coordinator leads, for up to `within` from the first refusal on. `on_wait` is told that one once.
///
/// # Errors
/// Those of `ask`: at once where a leader would not help, or the last one when the time is over.
pub async fn once_led<T, F>(
    within: Duration,
    on_wait: impl FnOnce(&ApiError),
    mut ask: impl FnMut() -> F,
) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    let first = match ask().await {
        Err(error) if error.is_without_leader() && !within.is_zero() => error,
        answer => return answer,
    };
    let deadline = Instant::now() + within;
    on_wait(&first);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        sleep(PAUSE.min(left)).await;
        match ask().await {
            Err(error) if error.is_without_leader() && Instant::now() < deadline => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::api::NO_LEADER;

    fn refused(code: &str) -> ApiError {
        ApiError::Refused { status: 503, code: code.into(), message: "no".into(), remedy: "wait".into() }
    }

    /// Asks with `answers` in turn, the last one for ever; says what came of it, after how long and how many waits were told.
    async fn asked(within: u64, answers: &[Result<u8, &str>]) -> (Result<u8, ApiError>, Duration, u32) {
        let (tries, told, began) = (RefCell::new(0), Cell::new(0), Instant::now());
        let answer = once_led(
            Duration::from_secs(within),
            |_| told.set(told.get() + 1),
            || {
                let mut tries = tries.borrow_mut();
                let answer = answers[answers.len().min(*tries + 1) - 1].map_err(refused);
                *tries += 1;
                async { answer }
            },
        );
        (answer.await, began.elapsed(), told.get())
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_waits_for_a_leader_and_says_so_once() {
        let (answer, took, told) = asked(10, &[Err(NO_LEADER), Err(NO_LEADER), Err(NO_LEADER), Ok(7)]).await;
        assert_eq!((answer.unwrap(), took, told), (7, PAUSE * 3, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_he_said_or_for_anything_else() {
        let (answer, took, told) = asked(10, &[Err(NO_LEADER)]).await;
        assert!(answer.unwrap_err().is_without_leader());
        assert_eq!((took, told), (Duration::from_secs(10), 1));
        let (answer, took, told) = asked(0, &[Err(NO_LEADER), Ok(7)]).await;
        assert!(answer.is_err() && took.is_zero() && told == 0);
        for other in [Ok(7), Err("TOO_MANY"), Err("UNAVAILABLE")] {
            let (_, took, told) = asked(10, &[other, Err(NO_LEADER)]).await;
            assert!(took.is_zero() && told == 0, "{other:?}");
        }
        let (answer, ..) = asked(10, &[Err(NO_LEADER), Err("NOT_FOUND")]).await;
        assert!(!answer.unwrap_err().is_without_leader());
    }
}
