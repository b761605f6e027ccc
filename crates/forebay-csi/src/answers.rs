//! Asking a mount something that its daemon answers: whether it lives, how much there is.
//!
//! A daemon that hangs keeps whoever asks it. So a thread asks, which the driver does not wait for longer than a few
//! seconds, and of which there are only so many for each mount.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::error::Refusal;

/// How long an answer is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Threads that may wait for one mount.
const MAX_WAITING: usize = 4;

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    /// The daemon answered.
    Given(T),
    /// There is no daemon any more.
    Dead,
    /// There is one, and it says nothing.
    Silent,
}

/// The questions under way.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    limit: Duration,
    waiting: Arc<Mutex<HashMap<PathBuf, usize>>>,
}

impl Default for Answers {
    fn default() -> Self {
        Self { limit: ANSWER_WITHIN, waiting: Arc::default() }
    }
}

impl Answers {
    /// What `question` gives for the mount at `path`.
    ///
    /// # Errors
    /// The kernel's own, about something else than the daemon.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        question: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<Answer<T>, Refusal> {
        let Some(waiting) = Waiting::begin(&self.waiting, path) else { return Ok(Answer::Silent) };
        let (tell, told) = oneshot::channel();
        let asking = move || {
            let answer = question(&waiting.path);
            drop(waiting);
            let _ = tell.send(answer);
        };
        std::thread::Builder::new()
            .name("forebay-ask".to_owned())
            .spawn(asking)
            .map_err(|error| Refusal::internal(format!("cannot start a thread: {error}")))?;
        match tokio::time::timeout(self.limit, told).await {
            Ok(Ok(Ok(answer))) => Ok(Answer::Given(answer)),
            // A request that was under way while the daemon died is aborted; those after it find no connection.
            Ok(Ok(Err(Errno::NOTCONN | Errno::CONNABORTED))) => Ok(Answer::Dead),
            Ok(Ok(Err(errno))) => Err(Refusal::internal(format!("cannot look at {}: {errno}", path.display()))),
            Ok(Err(_)) => Err(Refusal::internal(format!("cannot look at {}: the thread ended", path.display()))),
            Err(_) => Ok(Answer::Silent),
        }
    }
}

/// A thread that waits for a mount, while it is there.
struct Waiting {
    path: PathBuf,
    all: Arc<Mutex<HashMap<PathBuf, usize>>>,
}

impl Waiting {
    fn begin(all: &Arc<Mutex<HashMap<PathBuf, usize>>>, path: &Path) -> Option<Self> {
        let mut counts = all.lock();
        let count = counts.entry(path.to_owned()).or_default();
        if *count == MAX_WAITING {
            return None;
        }
        *count += 1;
        Some(Self { path: path.to_owned(), all: Arc::clone(all) })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_is_gone_is_told_from_one_that_answers() {
        let (answers, path) = (Answers::default(), Path::new("/k"));
        assert_eq!(answers.ask(path, |_| Ok(7)).await, Ok(Answer::Given(7)));
        for errno in [Errno::NOTCONN, Errno::CONNABORTED] {
            assert_eq!(answers.ask(path, move |_| Err::<(), _>(errno)).await, Ok(Answer::Dead));
        }
        assert!(answers.ask(path, |_| Err::<(), _>(Errno::NOENT)).await.is_err());
        assert!(answers.waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn a_daemon_that_hangs_costs_no_more_than_a_few_threads() {
        let (answers, path) = (Answers::default(), Path::new("/k"));
        let hasty = Answers { limit: Duration::from_millis(1), ..answers.clone() };
        let mut held = Vec::new();
        for _ in 0..MAX_WAITING {
            let (release, wait) = mpsc::channel::<()>();
            held.push(release);
            let hangs = move |_: &Path| {
                let _ = wait.recv();
                Ok(())
            };
            assert_eq!(hasty.ask(path, hangs).await, Ok(Answer::Silent));
        }
        // No thread is there to be asked any more.
        assert_eq!(answers.ask(path, |_| Ok(())).await, Ok(Answer::Silent));
        assert_eq!(answers.ask(Path::new("/other"), |_| Ok(7)).await, Ok(Answer::Given(7)));
    }
}
