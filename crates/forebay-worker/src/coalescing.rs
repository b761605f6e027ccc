//! Request coalescing for questions whose answer must not be older than they are.
//!
//! Whoever wants to know what an origin says now cannot take the answer of a request that is under way: the origin may have
//! given it before the question came. But the question can share a request that has not begun. So each key has one request
//! under way, and all questions that come meanwhile share the next one, which begins when that has ended. A thousand mounts that
//! ask about one name at once cost an origin two requests, and so does a client that asks without end and waits for nothing.
//! A question waits for two requests at most.
//!
//! A request holds the next one up for [`MAX_HOLD`] only. Where one is stuck, as on a connection that died, the next one begins
//! beside it.
//!
//! Requests run in the tasks of those who wait for them. When the last of those has left, its request ends.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

/// How long a request may hold up the next one about the same key. Most origins answer in a tenth of that; and it bounds how many
/// are under way at an origin that does not answer at all.
const MAX_HOLD: Duration = Duration::from_secs(1);

/// The requests about all keys. Clones are the same.
#[derive(Clone)]
pub(crate) struct Coalescing<K, A>(Arc<Mutex<Requests<K, A>>>);

struct Requests<K, A> {
    /// For each key that somebody waits for.
    latest: HashMap<K, Latest<A>>,
    /// How many there were.
    count: u64,
}

/// The latest request about a key.
struct Latest<A> {
    number: u64,
    has_begun: bool,
    answer: WeakShared<BoxFuture<'static, A>>,
}

impl<K, A> Coalescing<K, A> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Requests { latest: HashMap::new(), count: 0 })))
    }
}

impl<K, A> Coalescing<K, A>
where
    K: Clone + Eq + Hash + Send + 'static,
    A: Clone + Send + Sync + 'static,
{
    /// The answer of a request about `key` that begins after this call: of the next one, if others wait for that already,
    /// otherwise of `request`.
    pub(crate) async fn ask(&self, key: K, request: impl Future<Output = A> + Send + 'static) -> A {
        self.join(key, request).await
    }

    fn join(&self, key: K, request: impl Future<Output = A> + Send + 'static) -> Shared<BoxFuture<'static, A>> {
        let mut requests = self.0.lock();
        let before = match requests.latest.get(&key).map(|latest| (latest.has_begun, latest.answer.upgrade())) {
            Some((false, Some(next))) => return next,
            Some((_, before)) => before,
            None => None,
        };
        requests.count += 1;
        let number = requests.count;
        let place = Place { requests: Arc::clone(&self.0), key: key.clone(), number };
        let answer = async move {
            if let Some(before) = before {
                // When it ends is all that matters here, or that it takes too long.
                let _ = tokio::time::timeout(MAX_HOLD, before).await;
            }
            place.begin();
            request.await
        };
        // Each who waits polls it. With the budget of a task that waits in many places, it would wake them all whenever that is used
        // up, and they would poll it again, without end.
        let answer = tokio::task::coop::unconstrained(answer).boxed().shared();
        // It has not been polled.
        if let Some(weak) = answer.downgrade() {
            requests.latest.insert(key, Latest { number, has_begun: false, answer: weak });
        }
        answer
    }
}

/// The place of a request among the latest ones. However the request ends, it leaves it.
struct Place<K: Eq + Hash, A> {
    requests: Arc<Mutex<Requests<K, A>>>,
    key: K,
    number: u64,
}

impl<K: Eq + Hash, A> Place<K, A> {
    /// Those who come from now on have come too late for it.
    fn begin(&self) {
        let mut requests = self.requests.lock();
        if let Some(latest) = requests.latest.get_mut(&self.key).filter(|latest| latest.number == self.number) {
            latest.has_begun = true;
        }
    }
}

impl<K: Eq + Hash, A> Drop for Place<K, A> {
    fn drop(&mut self) {
        let mut requests = self.requests.lock();
        if requests.latest.get(&self.key).is_some_and(|latest| latest.number == self.number) {
            requests.latest.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    const TAKES: Duration = Duration::from_millis(100);
    /// Timers go by whole milliseconds.
    const ROUNDING: Duration = Duration::from_millis(10);

    /// An origin that says when it was asked.
    #[derive(Clone)]
    struct Origin {
        coalescing: Coalescing<&'static str, Instant>,
        begun: Arc<AtomicUsize>,
    }

    impl Origin {
        fn new() -> Self {
            Self { coalescing: Coalescing::new(), begun: Arc::default() }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        /// Somebody asks, and would have it take this long. Gives when the question came, and when the request began.
        fn ask(&self, key: &'static str, takes: Duration) -> JoinHandle<(Instant, Instant)> {
            let (coalescing, begun) = (self.coalescing.clone(), Arc::clone(&self.begun));
            let request = async move {
                begun.fetch_add(1, Ordering::SeqCst);
                let at = Instant::now();
                tokio::time::sleep(takes).await;
                at
            };
            tokio::spawn(async move { (Instant::now(), coalescing.ask(key, request).await) })
        }

        async fn until_begun(&self, count: usize) {
            while self.begun() < count {
                tokio::task::yield_now().await;
            }
        }

        fn keys(&self) -> usize {
            self.coalescing.0.lock().latest.len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_come_while_a_request_is_under_way_share_the_next_one() {
        let (origin, start) = (Origin::new(), Instant::now());
        let first = origin.ask("a", TAKES);
        origin.until_begun(1).await;
        let others: Vec<_> = (0..1000).map(|_| origin.ask("a", TAKES)).collect();
        let elsewhere = origin.ask("b", TAKES);
        assert_eq!(
            (first.await.unwrap().1, elsewhere.await.unwrap().1),
            (start, start),
            "another key waits for nothing"
        );
        for other in others {
            let (_, began) = other.await.unwrap();
            assert!(began >= start + TAKES, "it is told what the first one was");
        }
        assert!(start.elapsed() <= 2 * TAKES + ROUNDING, "{:?}", start.elapsed());
        assert_eq!((origin.begun(), origin.keys()), (3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_is_older_than_its_question_and_none_takes_longer_than_two_requests() {
        let origin = Origin::new();
        let mut asked = Vec::new();
        for _ in 0..200 {
            asked.push(tokio::spawn({
                let origin = origin.clone();
                async move {
                    let (came, began) = origin.ask("a", TAKES).await.unwrap();
                    (came, began, Instant::now())
                }
            }));
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
        for question in asked {
            let (came, began, answered) = question.await.unwrap();
            assert!(began >= came, "{:?}", came - began);
            assert!(answered - came <= 2 * TAKES + ROUNDING, "{:?}", answered - came);
        }
        assert!((10..=16).contains(&origin.begun()), "{} requests in 1.4 s", origin.begun());
        assert_eq!(origin.keys(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_stuck_holds_up_the_next_one_for_a_moment_only() {
        let (origin, start) = (Origin::new(), Instant::now());
        let stuck = origin.ask("a", 1000 * MAX_HOLD);
        origin.until_begun(1).await;
        for turn in 1..=3_u32 {
            origin.ask("a", TAKES).await.unwrap();
            let limit = turn * (MAX_HOLD + TAKES + ROUNDING);
            assert!(start.elapsed() <= limit, "{turn}: {:?}", start.elapsed());
        }
        assert!(!stuck.is_finished());
        assert_eq!((origin.begun(), origin.keys()), (4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_takes_no_answer_along_and_leaves_nothing_behind() {
        let origin = Origin::new();
        let leaves = origin.ask("a", TAKES);
        origin.until_begun(1).await;
        let (next, stays) = (origin.ask("a", TAKES), origin.ask("a", TAKES));
        tokio::time::sleep(TAKES / 2).await;
        // The one whose request is under way, and the one whose request the others wait for.
        for left in [leaves, next] {
            left.abort();
            assert!(left.await.unwrap_err().is_cancelled());
        }
        let (came, began) = stays.await.unwrap();
        assert!(began >= came);
        assert_eq!((origin.begun(), origin.keys()), (2, 0));
        let alone = origin.ask("a", TAKES);
        origin.until_begun(3).await;
        alone.abort();
        assert!(alone.await.unwrap_err().is_cancelled());
        assert_eq!(origin.keys(), 0);
        let (came, began) = origin.ask("a", TAKES).await.unwrap();
        assert_eq!(came, began, "it waits for no request that ended with its caller");
    }
}
