//! Sessions and files behind the places that paths lead to.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_session::{CallerMemory, Error, OpenFile, Read, Session, Settings};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::codes::{Code, complain};
use crate::places::{Origin, Place, Rules};

/// Bytes of a local file between two looks at whether they are still wanted.
const LOCAL_PIECE: usize = 16 << 20;

/// What a caller said of an object store, by the names of `libstreamer.so`.
pub(crate) type Credentials = HashMap<String, String>;

/// Where the bytes of a range go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    start: *mut u8,
    length: usize,
}

// SAFETY: it is a right to write, which the caller of the library has given whatever thread does so.
unsafe impl Send for Destination {}

impl Destination {
    /// The `length` bytes at `start`; none if there is nothing there to write to.
    ///
    /// # Safety
    /// They stay allocated, and are written to by nobody else, until the streamer has ended.
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Option<Self> {
        (length == 0 || !start.is_null()).then_some(Self { start, length })
    }

    fn memory(self) -> CallerMemory {
        // SAFETY: as `new` demands.
        unsafe { CallerMemory::new(NonNull::new(self.start).unwrap_or(NonNull::dangling()), self.length) }
    }
}

/// A session once it is needed.
type Starting = Arc<OnceCell<Arc<Session>>>;

/// The sessions of one streamer. They end with it, and so does what they cached in this process: models are loaded once.
pub(crate) struct Sources {
    rules: Rules,
    sessions: Mutex<HashMap<Origin, Starting>>,
    credentials: Mutex<Option<Credentials>>,
}

/// A file that is open.
#[derive(Clone)]
pub(crate) enum Opened {
    Cached(Arc<Session>, Arc<OpenFile>),
    Local(Arc<std::fs::File>),
}

impl Sources {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, sessions: Mutex::default(), credentials: Mutex::default() }
    }

    /// What a caller says of the object store, for sessions that start after it. The same may be said again.
    ///
    /// # Errors
    /// When something else was said before.
    pub(crate) fn set_credentials(&self, given: Credentials) -> Result<(), Code> {
        let mut known = self.credentials.lock();
        if known.as_ref().is_some_and(|known| *known != given) {
            return Err(Code::CredentialsAlreadySet);
        }
        *known = Some(given);
        Ok(())
    }

    /// Where `path` leads.
    pub(crate) fn place(&self, path: &str) -> Place {
        self.rules.place(path)
    }

    /// The file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, which was said why.
    pub(crate) async fn open(&self, path: &str) -> Result<Opened, Code> {
        let opened = match self.place(path) {
            Place::Local(local) => {
                open_local(&local).await.map(|file| Opened::Local(Arc::new(file))).map_err(|error| error.to_string())
            }
            Place::Cached { origin, path, .. } => match self.session(origin).await {
                Ok(session) => {
                    let opened = Arc::clone(&session).open(path.into_bytes()).await;
                    opened.map(|(file, _)| Opened::Cached(session, file)).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            },
        };
        opened.map_err(|error| {
            complain(&format!("cannot open {path}: {error}"));
            Code::FileAccess
        })
    }

    /// The session of an origin.
    ///
    /// # Errors
    /// What keeps it from starting. It is tried again the next time.
    pub(crate) async fn session(&self, origin: Origin) -> Result<Arc<Session>, Error> {
        let starting = Arc::clone(self.sessions.lock().entry(origin.clone()).or_default());
        let session = starting.get_or_try_init(|| async { Session::start(self.settings(&origin)?).await }).await?;
        Ok(Arc::clone(session))
    }

    fn settings(&self, origin: &Origin) -> Result<Settings, Error> {
        let Origin::Up(origin) = origin else { return Ok(Settings::default()) };
        let credentials = self.credentials.lock();
        let credentials = credentials.as_ref().filter(|_| origin.starts_with("s3://"));
        if credentials.is_some_and(|given| is_strangers(given, |name| std::env::var(name).ok())) {
            let what =
                "the caller gives an access key that is not the one of AWS_ACCESS_KEY_ID, with which Forebay reads";
            let next = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or let FOREBAY_STREAMER_MAP \
                        lead to a cluster";
            return Err(Error::argument(what, next));
        }
        let more = credentials.map(settings_of).unwrap_or_default();
        Ok(Settings { up: Some(origin.clone()), more, ..Settings::default() })
    }
}

/// The settings that say where an object store is.
fn settings_of(credentials: &Credentials) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut set = |key: &str, value: &str| settings.push((key.to_owned(), value.to_owned()));
    if let Some(region) = credentials.get("region") {
        set("origin.s3.region", region);
    }
    if let Some(endpoint) = credentials.get("endpoint") {
        set("origin.s3.endpoint", endpoint);
        if endpoint.starts_with("http://") {
            set("origin.allow_http", "true");
        }
    }
    settings
}

/// Whether these credentials are not those that this process reads with. Secrets come from the environment or a profile, never through
/// settings, which show.
fn is_strangers(given: &Credentials, variable: impl Fn(&str) -> Option<String>) -> bool {
    given.get("access_key_id").is_some_and(|key| variable("AWS_ACCESS_KEY_ID").as_ref() != Some(key))
}

async fn open_local(path: &Path) -> io::Result<std::fs::File> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || std::fs::File::open(path)).await;
    opened.unwrap_or_else(|error| Err(io::Error::other(error)))
}

impl Opened {
    /// Reads a range, all of it. Blocking work is a task of `tasks`, which are waited for before memory is given back.
    ///
    /// # Errors
    /// Which was said why, unless the range is not within the file.
    pub(crate) async fn read(
        &self,
        offset: u64,
        into: Destination,
        tasks: &TaskTracker,
        cancelled: &CancellationToken,
    ) -> Result<(), Code> {
        let failed = |error: String| {
            complain(&format!("cannot read {} bytes at {offset} of {self}: {error}", into.length));
            Code::FileAccess
        };
        let got = match self {
            Self::Cached(session, file) => {
                let place = forebay_session::Place::File(Arc::clone(file));
                let read = Read { place, offset, into: into.memory() };
                let counts = Arc::clone(session).read(vec![read]).await.map_err(|error| failed(error.to_string()))?;
                counts.first().copied().unwrap_or(0)
            }
            Self::Local(file) => {
                let (file, cancelled) = (Arc::clone(file), cancelled.clone());
                let read = tasks.spawn_blocking(move || read_local(&file, offset, into, &cancelled)).await;
                read.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| failed(error.to_string()))?
            }
        };
        if got == into.length { Ok(()) } else { Err(Code::EndOfFile) }
    }
}

impl std::fmt::Display for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cached(_, file) => f.write_str(&String::from_utf8_lossy(&file.version().path)),
            Self::Local(file) => write!(f, "the local file with descriptor {}", file.as_raw_fd()),
        }
    }
}

/// How many bytes were there.
fn read_local(
    file: &std::fs::File,
    offset: u64,
    into: Destination,
    cancelled: &CancellationToken,
) -> io::Result<usize> {
    let mut got = 0;
    while got < into.length && !cancelled.is_cancelled() {
        let wanted = (into.length - got).min(LOCAL_PIECE);
        let at = libc::off_t::try_from(offset + got as u64).map_err(io::Error::other)?;
        // SAFETY: `got + wanted` is within the memory, which the caller of the library has given to be written to. No reference is made.
        let read = unsafe { libc::pread(file.as_raw_fd(), into.start.add(got).cast(), wanted, at) };
        match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(pairs: &[(&str, &str)]) -> Credentials {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn where_the_store_is_becomes_settings_and_a_strangers_key_is_refused() {
        let given = credentials(&[
            ("endpoint", "http://a:1"),
            ("region", "r"),
            ("access_key_id", "K"),
            ("secret_access_key", "S"),
        ]);
        let settings = settings_of(&given);
        assert!(settings.iter().all(|(_, value)| value != "K" && value != "S"));
        assert_eq!(
            settings.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["origin.s3.region", "origin.s3.endpoint", "origin.allow_http"]
        );
        let own = |name: &str| (name == "AWS_ACCESS_KEY_ID").then(|| "K".to_owned());
        assert!(!is_strangers(&given, own) && is_strangers(&given, |_| None));
        assert!(!is_strangers(&credentials(&[("region", "r")]), |_| None));
    }

    #[test]
    fn a_strangers_key_keeps_no_local_file_from_being_read() {
        let sources = Sources::new(Rules::default());
        let given = credentials(&[("access_key_id", "a key that nobody has"), ("region", "r")]);
        assert_eq!(sources.set_credentials(given), Ok(()));
        let settings = |origin: &str| sources.settings(&Origin::Up(origin.to_owned()));
        assert!(settings("s3://b").unwrap_err().to_string().contains("set AWS_ACCESS_KEY_ID"));
        assert!(settings("/nfs").unwrap().more.is_empty());
        assert_eq!(sources.settings(&Origin::Machine).unwrap(), Settings::default());
    }

    #[test]
    fn credentials_are_set_once() {
        let sources = Sources::new(Rules::default());
        let first = credentials(&[("region", "r")]);
        assert_eq!(sources.set_credentials(first.clone()), Ok(()));
        assert_eq!(sources.set_credentials(first), Ok(()));
        assert_eq!(sources.set_credentials(credentials(&[("region", "s")])), Err(Code::CredentialsAlreadySet));
    }

    #[test]
    fn a_local_file_is_read_as_far_as_it_goes_unless_nobody_wants_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = std::fs::File::open(path).unwrap();
        let mut bytes = [0_u8; 8];
        // SAFETY: the array is not looked at before it was read into.
        let into = unsafe { Destination::new(bytes.as_mut_ptr(), bytes.len()) }.unwrap();
        let cancelled = CancellationToken::new();
        assert_eq!(read_local(&file, 4, into, &cancelled).unwrap(), 6);
        cancelled.cancel();
        assert_eq!(read_local(&file, 0, into, &cancelled).unwrap(), 0);
        assert_eq!(&bytes, b"456789\0\0");
        // SAFETY: nothing is written to it.
        assert!(unsafe { Destination::new(std::ptr::null_mut(), 1) }.is_none());
    }
}
