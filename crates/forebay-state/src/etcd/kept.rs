//! What is made once and kept, by whoever needs it first.
//!
//! Making it goes on where it was left if who began it does not wait any longer: the next one waits for the same. Were it begun anew
//! each time, whoever has a deadline that is shorter than it takes would never get it. Of an etcd with users that is what a client takes:
//! its password costs etcd a tenth of a second of a processor by design, and callers that all begin anew keep etcd from answering any.

use std::pin::Pin;

use super::failure::Failure;

/// How it is made.
pub(super) type Making<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Something, once it is needed.
pub(super) struct Kept<T> {
    value: Option<T>,
    making: Option<Making<T>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { value: None, making: None }
    }
}

impl<T: Clone> Kept<T> {
    /// It, made with `make` if it is not there and not being made.
    ///
    /// # Errors
    /// Those of making it. The next one makes it anew then.
    pub(super) async fn get(&mut self, make: impl FnOnce() -> Making<T>) -> Result<T, Failure> {
        if let Some(value) = &self.value {
            return Ok(value.clone());
        }
        let made = self.making.get_or_insert_with(make).as_mut().await;
        self.making = None;
        let value = made?;
        Ok(self.value.insert(value).clone())
    }

    /// The next one makes it anew.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    /// Takes three seconds; the `fails`th time it fails.
    fn making(times: &AtomicUsize, fails: usize) -> Making<usize> {
        let time = times.fetch_add(1, Ordering::Relaxed) + 1;
        Box::pin(async move {
            sleep(Duration::from_secs(3)).await;
            if time == fails { Err(Failure::Unknown("not today".to_owned())) } else { Ok(time) }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_less_long_than_it_takes_leaves_it_to_the_next_one() {
        let (mut kept, times) = (Kept::default(), AtomicUsize::new(0));
        let within = Duration::from_secs(2);
        assert!(timeout(within, kept.get(|| making(&times, 0))).await.is_err());
        assert_eq!(timeout(within, kept.get(|| making(&times, 0))).await, Ok(Ok(1)));
        assert_eq!(timeout(Duration::ZERO, kept.get(|| making(&times, 0))).await, Ok(Ok(1)));
        assert_eq!(times.load(Ordering::Relaxed), 1);
        kept.forget();
        assert_eq!(kept.get(|| making(&times, 0)).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_made_is_made_anew() {
        let (mut kept, times) = (Kept::default(), AtomicUsize::new(0));
        assert_eq!(kept.get(|| making(&times, 1)).await, Err(Failure::Unknown("not today".to_owned())));
        assert_eq!(kept.get(|| making(&times, 1)).await, Ok(2));
    }
}
