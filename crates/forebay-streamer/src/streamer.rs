//! A streamer: submissions of ranges, each of which is answered once, in the order in which they arrive.
//!
//! A file is opened once for a submission, so all of its ranges are of one version. Its ranges are read side by side, each by a task of
//! its own, and no more of them than [`RANGES_AT_ONCE`] by a streamer: a model is one submission of a thousand tensors. When a streamer
//! ends, its tasks are given up, and what writes to the caller's memory has stopped before the caller goes on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_session::runtime::{runtime, wait};
use forebay_session::{Entry, Error, Within};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::codes::{Code, complain};
use crate::owed::{InOrder, Owed};
use crate::places::{Origin, Place, Rules};
use crate::sources::{Credentials, Destination, Sources};

/// Ranges that are read at once. What of them waits for workers is bounded by the session.
const RANGES_AT_ONCE: usize = 32;

/// Ranges of a file.
pub(crate) struct FileRequest {
    pub(crate) path: String,
    /// Where each begins, in bytes, and where it goes.
    pub(crate) ranges: Vec<(u64, Destination)>,
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) submission: u64,
    /// Which file of the submission, and which range of the file.
    pub(crate) file: u32,
    pub(crate) range: u32,
    pub(crate) code: Code,
    /// Whether it is the last of its submission.
    pub(crate) is_last: bool,
}

/// See above.
pub(crate) struct Streamer {
    shared: Arc<Shared>,
    answers: Mutex<Receiver<Answer>>,
    owed: Mutex<Owed>,
    /// Answers to those who take them in order.
    in_order: Mutex<InOrder>,
    strategy: Mutex<Option<String>>,
}

struct Shared {
    runtime: &'static Runtime,
    sources: Sources,
    tell: Sender<Answer>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl Streamer {
    /// One that reads what `rules` say.
    ///
    /// # Errors
    /// When there is no runtime.
    pub(crate) fn new(rules: Rules) -> Result<Self, Error> {
        let (tell, answers) = channel();
        let shared = Shared {
            runtime: runtime()?,
            sources: Sources::new(rules),
            tell,
            places: Arc::new(Semaphore::new(RANGES_AT_ONCE)),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
        };
        let (answers, owed, in_order) = (Mutex::new(answers), Mutex::default(), Mutex::default());
        Ok(Self { shared: Arc::new(shared), answers, owed, in_order, strategy: Mutex::default() })
    }

    /// What the caller says of the object store.
    ///
    /// # Errors
    /// As [`Sources::set_credentials`].
    pub(crate) fn set_credentials(&self, credentials: Credentials) -> Result<(), Code> {
        self.shared.sources.set_credentials(credentials)
    }

    /// How the caller wants files to be read, which Forebay knows by itself: it may only not change.
    ///
    /// # Errors
    /// When it was something else before.
    pub(crate) fn set_strategy(&self, wanted: &str) -> Result<(), Code> {
        let mut strategy = self.strategy.lock();
        if strategy.as_deref().is_some_and(|known| known != wanted) {
            return Err(Code::StrategyConflict);
        }
        *strategy = Some(wanted.to_owned());
        Ok(())
    }

    /// Begins to read for a caller that takes answers in order, of one submission at a time.
    ///
    /// # Errors
    /// When answers to the last one are owed.
    pub(crate) fn submit_in_order(&self, files: Vec<FileRequest>) -> Result<(), Code> {
        let mut in_order = self.in_order.lock();
        if !in_order.is_over() {
            return Err(Code::Busy);
        }
        // So many fit into the callers' numbers.
        in_order.begin(files.iter().map(|file| file.ranges.len() as u32));
        self.submit(files);
        Ok(())
    }

    /// The next answer in order, waited for: which file, which range, and what became of it.
    ///
    /// # Errors
    /// [`Code::Finished`] when none is owed.
    pub(crate) fn answer_in_order(&self) -> Result<(u32, u32, Code), Code> {
        let mut in_order = self.in_order.lock();
        loop {
            if let Some(answer) = in_order.next() {
                return Ok(answer);
            }
            let answer = self.answer(None)?;
            in_order.came(answer.file, answer.range, answer.code);
        }
    }

    /// Begins to read; the number of the submission.
    pub(crate) fn submit(&self, files: Vec<FileRequest>) -> u64 {
        let submission = self.owed.lock().begin(files.iter().map(|file| file.ranges.len()).sum());
        // The callers' numbers of files are 32 bits wide.
        for (number, file) in (0_u32..).zip(files).filter(|(_, file)| !file.ranges.is_empty()) {
            self.shared.spawn(Arc::clone(&self.shared).file(submission, number, file));
        }
        submission
    }

    /// The next answer, waited for.
    ///
    /// # Errors
    /// [`Code::Finished`] when none is owed, [`Code::TimedOut`].
    pub(crate) fn answer(&self, timeout: Option<Duration>) -> Result<Answer, Code> {
        let answers = self.answers.lock();
        if self.owed.lock().is_none() {
            return Err(Code::Finished);
        }
        let received = match timeout {
            Some(timeout) => answers.recv_timeout(timeout),
            None => answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let answer = received.map_err(|error| match error {
            RecvTimeoutError::Timeout => Code::TimedOut,
            RecvTimeoutError::Disconnected => Code::Finished,
        })?;
        Ok(Answer { is_last: self.owed.lock().answered(answer.submission), ..answer })
    }

    /// Tells `found` of the files below a path, as the caller names them, and their sizes in bytes.
    ///
    /// # Errors
    /// When it cannot be listed, which was said why.
    pub(crate) fn list(&self, path: &str, is_recursive: bool, found: &mut dyn FnMut(&str, u64)) -> Result<(), Code> {
        let listed = match self.shared.sources.place(path) {
            Place::Local(local) => list_local(&local, is_recursive, found).map_err(|error| error.to_string()),
            Place::Cached { origin, path, prefix, root } => {
                let mut told = |entry: &Entry| {
                    if let Some(version) = &entry.version {
                        let name = String::from_utf8_lossy(entry.path.get(root.len()..).unwrap_or_default());
                        found(&format!("{prefix}{name}"), version.size);
                    }
                };
                self.list_cached(origin, path, is_recursive, &mut told).map_err(|error| error.to_string())
            }
        };
        listed.map_err(|error| {
            complain(&format!("cannot list {path}: {error}"));
            Code::FileAccess
        })
    }

    /// Tells `told` of what is below a path of a namespace, between two waits: it may call the library as well.
    fn list_cached(
        &self,
        origin: Origin,
        path: String,
        is_recursive: bool,
        told: &mut dyn FnMut(&Entry),
    ) -> Result<(), Error> {
        let session = wait(self.shared.sources.session(origin))??;
        if !is_recursive {
            wait(session.list(path.into_bytes()))??.iter().for_each(told);
            return Ok(());
        }
        let walk = session.walk(path.as_bytes(), Within::default())?;
        while let Some(page) = wait(walk.next_page())?? {
            page.iter().for_each(&mut *told);
        }
        Ok(())
    }
}

impl Drop for Streamer {
    fn drop(&mut self) {
        self.shared.ended.cancel();
        self.shared.tasks.close();
        // No longer than the copying of a few pieces. The wait is for tasks of the runtime, so there is one.
        let _ = wait(self.shared.tasks.wait());
    }
}

/// An answer that is owed. Dropped before it is known, as by a panic, it is told as [`Code::Unknown`]: the caller waits for it.
struct Promise {
    shared: Arc<Shared>,
    answer: Answer,
}

impl Promise {
    fn keep(mut self, code: Code) {
        self.answer.code = code;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // Nobody may ask any more.
        let _ = self.shared.tell.send(self.answer);
    }
}

impl Shared {
    /// Carries out `work` unless the streamer ends.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ended = self.ended.clone();
        let work = async move {
            ended.run_until_cancelled(work).await;
        };
        self.tasks.spawn_on(work, self.runtime.handle());
    }

    /// Opens a file, and has its ranges read.
    async fn file(self: Arc<Self>, submission: u64, file: u32, request: FileRequest) {
        // The callers' numbers of ranges are 32 bits wide, too.
        let owed = (0_u32..).zip(request.ranges).map(|(range, (offset, into))| {
            let answer = Answer { submission, file, range, code: Code::Unknown, is_last: false };
            (Promise { shared: Arc::clone(&self), answer }, offset, into)
        });
        let owed: Vec<_> = owed.collect();
        let opened = self.sources.open(&request.path).await;
        for (promise, offset, into) in owed {
            let opened = match &opened {
                Ok(opened) => opened.clone(),
                Err(code) => {
                    promise.keep(*code);
                    continue;
                }
            };
            // Never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            let shared = Arc::clone(&self);
            self.spawn(async move {
                let read = opened.read(offset, into, &shared.tasks, &shared.ended).await;
                promise.keep(read.err().unwrap_or(Code::Success));
                drop(place);
            });
        }
    }
}

fn list_local(path: &std::path::Path, is_recursive: bool, found: &mut dyn FnMut(&str, u64)) -> std::io::Result<()> {
    if path.is_file() {
        found(&path.to_string_lossy(), path.metadata()?.len());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?.path();
        // What goes away meanwhile is not there.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_file() {
            found(&entry.to_string_lossy(), metadata.len());
        } else if is_recursive && metadata.is_dir() && !entry.is_symlink() {
            list_local(&entry, is_recursive, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Option<Duration> = Some(Duration::from_secs(30));

    fn local() -> Streamer {
        Streamer::new(Rules::default()).unwrap()
    }

    fn request(path: &std::path::Path, ranges: &mut [(u64, &mut [u8])]) -> FileRequest {
        let ranges = ranges.iter_mut().map(|(offset, buffer)| {
            // SAFETY: the tests look at buffers once they were answered for, and keep them longer than the streamer.
            (*offset, unsafe { Destination::new(buffer.as_mut_ptr(), buffer.len()) }.unwrap())
        });
        FileRequest { path: path.display().to_string(), ranges: ranges.collect() }
    }

    #[test]
    fn every_range_is_answered_once_also_those_that_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let (mut first, mut nothing, mut beyond, mut missing) = ([0_u8; 4], [0_u8; 0], [0_u8; 4], [0_u8; 0]);
        let streamer = local();
        let files = vec![
            request(&directory.path().join("missing"), &mut [(0, &mut missing[..])]),
            request(&path, &mut []),
            request(&path, &mut [(6, &mut first[..]), (2, &mut nothing[..]), (8, &mut beyond[..])]),
        ];
        let submission = streamer.submit(files);
        let mut answers: Vec<_> = (0..4).map(|_| streamer.answer(SOON).unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.submission == submission));
        assert_eq!(answers.iter().map(|answer| answer.is_last).collect::<Vec<_>>(), [false, false, false, true]);
        answers.sort_by_key(|answer| (answer.file, answer.range));
        let told = |answer: &Answer| (answer.file, answer.range, answer.code);
        let codes = [Code::FileAccess, Code::Success, Code::Success, Code::EndOfFile];
        let wanted =
            [(0, 0), (2, 0), (2, 1), (2, 2)].into_iter().zip(codes).map(|((file, range), code)| (file, range, code));
        assert_eq!(answers.iter().map(told).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        assert_eq!(streamer.answer(None), Err(Code::Finished));
        drop(streamer);
        assert_eq!(&first, b"6789");
    }

    #[test]
    fn an_answer_that_nobody_came_to_give_is_given() {
        let streamer = local();
        let submission = streamer.owed.lock().begin(1);
        let answer = Answer { submission, file: 0, range: 0, code: Code::Unknown, is_last: false };
        let promise = Promise { shared: Arc::clone(&streamer.shared), answer };
        streamer.shared.spawn(async move {
            let _promise = promise;
            panic!("for the test");
        });
        assert_eq!(streamer.answer(SOON).unwrap(), Answer { is_last: true, ..answer });
    }

    #[test]
    fn who_waits_for_so_long_only_is_told_and_a_streamer_that_ends_has_let_go_of_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        pipe(&path);
        let mut bytes = [0_u8; 4];
        let streamer = local();
        let _ = streamer.submit(vec![request(&path, &mut [(0, &mut bytes[..])])]);
        // Nobody has opened the other end of the pipe yet.
        assert_eq!(streamer.answer(Some(Duration::from_millis(20))), Err(Code::TimedOut));
        let other_end = std::fs::File::options().write(true).open(&path).unwrap();
        drop(other_end);
        drop(streamer);
    }

    fn pipe(path: &std::path::Path) {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: it is a string that ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn names_are_listed_as_the_caller_names_them() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        for name in ["a.safetensors", "deep/b.json"] {
            std::fs::write(directory.path().join(name), "xy").unwrap();
        }
        let listed = |path: &str, is_recursive| {
            let mut found = Vec::new();
            let outcome = local().list(path, is_recursive, &mut |path: &str, size| found.push((path.to_owned(), size)));
            found.sort();
            outcome.map(|()| found)
        };
        let root = directory.path().display().to_string();
        let [first, second] = ["a.safetensors", "deep/b.json"].map(|name| (format!("{root}/{name}"), 2));
        assert_eq!(listed(&root, false).unwrap(), std::slice::from_ref(&first));
        assert_eq!(listed(&root, true).unwrap(), [first, second]);
        assert_eq!(listed(&format!("{root}/missing"), true), Err(Code::FileAccess));
    }
}
