//! What a process that serves a mount answers on this machine, over a Unix socket beside its run state: a question comes as a
//! JSON object and the end, and a JSON object and the end go back. An empty question gets the report.
//!
//! * the report is the client's side: what it read from where, its buffers, and its paths to workers;
//! * a refresh makes the mount and the kernel forget names, so that they are asked for again;
//! * [`mod@local`] has files materialised and dropped, and lists them.
//!
//! Of a `forebay mount`, every user may ask, as every user may read the run state: the socket only tells, and forgets only what
//! can be had again. There are two exceptions: only root and the user of the mount may ask for what takes room, and for names
//! in a mount that is for its user alone. Of a `forebay up`, only its user and root may ask at all. No client can keep the
//! socket busy, because places, bytes and time are bounded: of the places, another user has a share, and all others leave some
//! to the user of the mount and to root.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_locks::Mutex;
use forebay_private::PrivateListener;
use forebay_types::FsPath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::local;

/// How long an answer may take: it is made of counters.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a refresh may take: the kernel is told of each name.
const REFRESH_WITHIN: Duration = Duration::from_secs(60);
/// A client that is silent for this long and does not end asks nothing.
const SILENCE: Duration = Duration::from_millis(500);
/// Bytes of an answer that are read, at most.
const MAX_BYTES: u64 = 4 << 20;
/// Bytes of a question: a path, each byte of which takes up to four.
const MAX_ASKED: u64 = 64 << 10;
/// Answers under way at once. A connection that comes when all are taken is closed.
const PLACES: usize = 16;
/// Those of all users that are not trusted: one may be several, by the numbers that it has for user namespaces.
const PLACES_OF_OTHERS: usize = 12;
/// Those of one of them.
const PLACES_OF_ONE: usize = 6;
/// How long no connection is accepted after the system refused to accept one, as when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What can be asked.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// What the process counts.
    #[default]
    Report,
    /// What is asked of its materialised files.
    Local(local::Question),
    /// Forget names.
    Refresh {
        /// Not text: a name may be none.
        path: Vec<u8>,
        /// And what is below it.
        below: bool,
    },
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Every user of this machine.
    ByAll,
    /// The user of this process, and root.
    ByOwner,
}

enum Listener {
    Open(UnixListener),
    Private(PrivateListener),
}

impl Listener {
    /// Listens at `socket`, in the place of whatever a process that was killed left there.
    fn bind(socket: &Path, asked: Asked) -> anyhow::Result<Self> {
        let open = match asked {
            Asked::ByOwner => return Ok(Self::Private(PrivateListener::bind(socket)?)),
            Asked::ByAll => || -> io::Result<UnixListener> {
                match std::fs::remove_file(socket) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let listener = UnixListener::bind(socket)?;
                std::fs::set_permissions(socket, Permissions::from_mode(0o666))?;
                Ok(listener)
            },
        };
        open().map(Self::Open).with_context(|| format!("cannot listen on {}", socket.display()))
    }

    async fn accept(&self) -> io::Result<UnixStream> {
        match self {
            Self::Open(listener) => Ok(listener.accept().await?.0),
            Self::Private(listener) => listener.accept().await,
        }
    }
}

/// The socket, while it is served. Dropping it ends it, too, without waiting.
pub struct Control {
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves `report` at `socket` to those that `asked` names, and `refresh`, which may wait for the kernel, and what is asked of the materialised files; in
    /// the place of whatever a process that was killed left there.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn serve(
        socket: &Path,
        asked: Asked,
        report: impl Fn() -> Value + Send + Sync + 'static,
        refresh: impl Fn(&FsPath, bool) -> Option<u64> + Send + Sync + 'static,
        local: local::Answerer,
    ) -> anyhow::Result<Self> {
        let listener = Listener::bind(socket, asked)?;
        let stop = CancellationToken::new();
        let answerer = Arc::new(Answerer { report: Box::new(report), refresh: Arc::new(refresh), local });
        let serving = tokio::spawn(serve(listener, answerer, stop.clone()));
        Ok(Self { stop, serving: Some(serving) })
    }

    /// Ends it, answers under way included.
    pub async fn close(mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            // It does not panic, and if it did that has been told.
            let _ = serving.await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(listener: Listener, answerer: Arc<Answerer>, stop: CancellationToken) {
    let (places, answers) = (Arc::new(Places::default()), TaskTracker::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok(stream) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // If the kernel does not say which user asks, the client is not trusted.
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        let Some(place) = places.take(user) else { continue };
        let (answerer, stop) = (Arc::clone(&answerer), stop.clone());
        answers.spawn(async move {
            let _place = place;
            tokio::select! {
                () = answerer.talk(stream, is_trusted(user)) => {}
                () = stop.cancelled() => {}
            }
        });
    }
    answers.close();
    answers.wait().await;
}

/// For each answer under way, the user that asked.
#[derive(Default)]
struct Places(Mutex<Vec<Option<u32>>>);

/// One of them, until it is dropped.
struct Place {
    places: Arc<Places>,
    user: Option<u32>,
}

impl Places {
    /// `None`: all that this user may have are taken.
    fn take(self: &Arc<Self>, user: Option<u32>) -> Option<Place> {
        let mut taken = self.0.lock();
        let others = || taken.iter().filter(|user| !is_trusted(**user));
        let has_its_share = !is_trusted(user)
            && (others().count() >= PLACES_OF_OTHERS
                || others().filter(|other| **other == user).count() >= PLACES_OF_ONE);
        if has_its_share || taken.len() >= PLACES {
            return None;
        }
        taken.push(user);
        Some(Place { places: Arc::clone(self), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        if let Some(at) = taken.iter().position(|user| *user == self.user) {
            taken.swap_remove(at);
        }
    }
}

struct Answerer {
    report: Box<Report>,
    refresh: Arc<RefreshNames>,
    local: local::Answerer,
}

type Report = dyn Fn() -> Value + Send + Sync;
/// Forgets a path, and what is below it; says how many names that were, if the kernel took them all.
type RefreshNames = dyn Fn(&FsPath, bool) -> Option<u64> + Send + Sync;

impl Answerer {
    async fn talk(&self, mut stream: UnixStream, is_trusted: bool) {
        let Ok(question) = tokio::time::timeout(ANSWER_WITHIN, question(&mut stream)).await else { return };
        let answer = match question {
            Ok(question) => self.answer(question, is_trusted).await,
            Err(error) => Err(error),
        };
        let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        let tell = async {
            // The client may have left.
            let _ = stream.write_all(answer.to_string().as_bytes()).await;
            let _ = stream.shutdown().await;
        };
        let _ = tokio::time::timeout(ANSWER_WITHIN, tell).await;
    }

    async fn answer(&self, question: Question, is_trusted: bool) -> anyhow::Result<Value> {
        match question {
            Question::Report => Ok((self.report)()),
            Question::Local(question) => self.local.answer(question, is_trusted).await,
            Question::Refresh { path, below } => {
                let (path, refresh) = (FsPath::new(path)?, Arc::clone(&self.refresh));
                let names = tokio::task::spawn_blocking(move || refresh(&path, below));
                let names = tokio::time::timeout(REFRESH_WITHIN, names).await.context("it takes too long")?;
                let names = names.context("the mount failed at it")?;
                let names = names.context("a change below it takes too long; try again when it is done")?;
                Ok(json!({ "names": names }))
            }
        }
    }
}

/// Whether this user may do what the mount's own user may.
fn is_trusted(user: Option<u32>) -> bool {
    user.is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

async fn question(stream: &mut UnixStream) -> anyhow::Result<Question> {
    let mut text = Vec::new();
    let mut asked = stream.take(MAX_ASKED);
    while let Ok(read) = tokio::time::timeout(SILENCE, asked.read_buf(&mut text)).await {
        if read? == 0 {
            break;
        }
    }
    if text.is_empty() { Ok(Question::default()) } else { Ok(serde_json::from_slice(&text)?) }
}

/// What the process behind `socket` reports.
///
/// # Errors
/// When it does not answer in time, or with something else.
pub async fn ask(socket: &Path) -> anyhow::Result<Value> {
    put(socket, &Question::Report, ANSWER_WITHIN).await
}

/// Has the mount of the process behind `socket` forget `path`, and what is below it. How many names that were.
///
/// # Errors
/// As [`ask`]; when the mount fails at it.
pub async fn refresh(socket: &Path, path: &FsPath, below: bool) -> anyhow::Result<u64> {
    let question = Question::Refresh { path: path.as_bytes().to_vec(), below };
    let answer = put(socket, &question, REFRESH_WITHIN + ANSWER_WITHIN).await?;
    answer["names"].as_u64().with_context(|| match answer["error"].as_str() {
        Some(error) => format!("the mount did not forget {path}: {error}"),
        None => format!("the process behind {} is of a version that cannot do that", socket.display()),
    })
}

/// What the process behind `socket` answers to a question about materialised files.
///
/// # Errors
/// As [`ask`]; what it says is wrong.
pub async fn local(socket: &Path, question: local::Question) -> anyhow::Result<Value> {
    let answer = put(socket, &Question::Local(question), REFRESH_WITHIN + ANSWER_WITHIN).await?;
    match answer["error"].as_str() {
        Some(error) => anyhow::bail!("{error}"),
        None => Ok(answer),
    }
}

async fn put(socket: &Path, question: &Question, within: Duration) -> anyhow::Result<Value> {
    let answer = async {
        let mut stream = UnixStream::connect(socket).await?;
        // A process that sends us away because it is busy may have closed its end by now: reading says so.
        let _ = stream.write_all(&serde_json::to_vec(question)?).await;
        let _ = stream.shutdown().await;
        let mut text = Vec::new();
        stream.take(MAX_BYTES).read_to_end(&mut text).await?;
        anyhow::ensure!(!text.is_empty(), "it is busy with others; try again");
        Ok(serde_json::from_slice(&text)?)
    };
    let answer = tokio::time::timeout(within, answer).await;
    let answer = answer.unwrap_or_else(|_| anyhow::bail!("no answer within {within:?}"));
    answer.with_context(|| format!("the process behind {} does not answer", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control that only reports.
    fn reporting(socket: &Path, report: impl Fn() -> Value + Send + Sync + 'static) -> Control {
        Control::serve(socket, Asked::ByAll, report, |_: &FsPath, _| Some(0), local::Answerer::none()).unwrap()
    }

    #[tokio::test]
    async fn a_report_is_served_until_it_is_closed_and_a_dead_socket_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        // As a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let control = reporting(&socket, || json!({ "answer": 42 }));
        for _ in 0..2 {
            assert_eq!(ask(&socket).await.unwrap(), json!({ "answer": 42 }));
        }
        control.close().await;
        let error = format!("{:#}", ask(&socket).await.unwrap_err());
        assert!(error.contains("m.sock"), "{error}");
    }

    #[tokio::test]
    async fn that_of_the_owner_is_in_a_directory_that_nobody_else_enters() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("private/m.sock");
        let control =
            Control::serve(&socket, Asked::ByOwner, || json!(1), |_: &FsPath, _| Some(0), local::Answerer::none());
        let control = control.unwrap();
        assert_eq!(ask(&socket).await.unwrap(), json!(1));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o700, 0o600));
        control.close().await;
        assert!(!socket.exists());
    }

    #[tokio::test]
    async fn who_only_listens_is_told_the_report_too() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let control = reporting(&socket, || json!(1));
        let mut text = String::new();
        UnixStream::connect(&socket).await.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "1");
        control.close().await;
    }

    #[tokio::test]
    async fn a_refresh_reaches_the_mount_and_tells_how_many_names() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let refresh_mount = |path: &FsPath, below| Some(if below { path.as_bytes().len() as u64 } else { 1 });
        let control = Control::serve(&socket, Asked::ByAll, || json!({}), refresh_mount, local::Answerer::none());
        let control = control.unwrap();
        let path = FsPath::new(b"/dir/\xff").unwrap();
        assert_eq!(refresh(&socket, &path, true).await.unwrap(), 6);
        assert_eq!(refresh(&socket, &path, false).await.unwrap(), 1);
        control.close().await;
    }

    #[tokio::test]
    async fn names_that_the_kernel_does_not_take_are_not_told_as_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let takes_none = |_: &FsPath, _: bool| None;
        let control = Control::serve(&socket, Asked::ByAll, || json!({}), takes_none, local::Answerer::none()).unwrap();
        let error = refresh(&socket, &FsPath::new("/dir").unwrap(), true).await.unwrap_err().to_string();
        assert!(error.contains("/dir") && error.contains("try again"), "{error}");
        control.close().await;
    }

    #[tokio::test]
    async fn nonsense_is_answered_with_what_is_wrong_about_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let control = reporting(&socket, || json!({}));
        for nonsense in ["{", "[1]", r#"{"refresh":{"path":[46],"below":false}}"#] {
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            stream.write_all(nonsense.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert!(text.contains("\"error\""), "{nonsense}: {text}");
        }
        control.close().await;
    }

    #[tokio::test]
    async fn a_process_that_does_not_answer_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let closes = async { drop(listener.accept().await.unwrap()) };
        let (asked, ()) = tokio::join!(ask(&socket), closes);
        assert!(asked.is_err());
    }

    #[test]
    fn another_user_has_a_share_of_the_places_and_all_others_leave_some_to_the_owner_and_root() {
        let places = Arc::new(Places::default());
        let all_of = |user| -> Vec<Place> { std::iter::from_fn(|| places.take(user)).collect() };
        let own = Some(rustix::process::geteuid().as_raw());
        let mut of_others = all_of(Some(u32::MAX - 1));
        assert_eq!(of_others.len(), PLACES_OF_ONE);
        // Users that the kernel does not name are one.
        of_others.extend(all_of(None));
        assert_eq!(of_others.len(), PLACES_OF_OTHERS);
        assert!(places.take(Some(u32::MAX - 2)).is_none());
        let of_owner = all_of(own);
        assert_eq!(of_owner.len(), PLACES - PLACES_OF_OTHERS);
        drop(of_owner);
        assert!(places.take(Some(0)).is_some());
        drop(of_others.swap_remove(0));
        assert!(places.take(None).is_none() && places.take(Some(u32::MAX - 1)).is_some());
        drop(of_others);
        assert_eq!(all_of(own).len(), PLACES, "to whom they all are left");
    }

    #[tokio::test]
    async fn those_who_ask_and_do_not_listen_take_no_more_than_their_places() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        // More than a socket's buffer holds.
        let control = reporting(&socket, || Value::String("x".repeat(2 << 20)));
        let mut deaf = Vec::new();
        for _ in 0..3 * PLACES {
            deaf.push(UnixStream::connect(&socket).await.unwrap());
        }
        let error = format!("{:#}", ask(&socket).await.unwrap_err());
        assert!(error.contains("busy") || error.contains("reset"), "{error}");
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(files < 3 * PLACES + 2 * PLACES + 64, "{files} descriptors");
        drop(deaf);
        let patience = tokio::time::Instant::now() + ANSWER_WITHIN;
        while ask(&socket).await.is_err() {
            assert!(tokio::time::Instant::now() < patience, "it does not answer any more");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before_closing = UnixStream::connect(&socket).await.unwrap();
        control.close().await;
        drop(before_closing);
    }
}
