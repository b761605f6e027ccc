//! Clients, names and listings.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use forebay_session::fork::OfProcess;
use forebay_session::runtime::wait;
use forebay_session::{Error, Session, Settings};

use crate::arguments::{array, given, hand_out, live, take_back, text};
use crate::error::outcome;

/// A setting of a client.
#[repr(C)]
pub struct Setting {
    /// "up", "etcd", "workers" or "config": where to read from, and the configuration file in the place of the machine's. Anything else
    /// is a key of the configuration, such as "client.memory.size".
    pub name: *const c_char,
    /// Its value. Lists are written with commas between.
    pub value: *const c_char,
}

/// What a name is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Last modification, nanoseconds since 1970; 0 where the origin knows none.
    pub modified_ns: i64,
    /// Whether it is a file; otherwise it is a directory.
    pub is_file: bool,
    /// Whether it may be changed here.
    pub is_writable: bool,
}

/// Is told of a name of a listing, which is there until it returns. Anything but 0 ends the listing.
pub type ListCallback =
    Option<unsafe extern "C" fn(context: *mut c_void, path: *const c_char, entry: *const Entry) -> c_int>;

/// A client of workers, or of a worker in this process. Any number of threads may use it.
pub struct Client(OfProcess<Arc<Session>>);

impl Client {
    /// Its session.
    ///
    /// # Errors
    /// When the process was forked since.
    pub(crate) fn session(&self) -> Result<Arc<Session>, Error> {
        live(&self.0, "client").cloned()
    }
}

impl From<&forebay_session::Entry> for Entry {
    fn from(entry: &forebay_session::Entry) -> Self {
        let size = entry.version.as_ref().map_or(0, |version| version.size);
        let (is_file, is_writable) = (entry.version.is_some(), entry.writable);
        Self { size, modified_ns: entry.modified_nanos, is_file, is_writable }
    }
}

/// Starts a client with `count` settings, of which one says where to read from; if none does, the configuration of the machine has to.
/// It is ended by forebay_client_free.
///
/// Returns 0, or a negative errno: -EINVAL for settings that make no sense.
///
/// # Safety
/// `settings` are so many, of strings that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_client_start(
    settings: *const Setting,
    count: usize,
    client: Option<&mut *mut Client>,
) -> c_int {
    outcome(|| {
        let place = given(client, "client")?;
        // SAFETY: as the caller says.
        let settings = unsafe { settings_of(array(settings, count, "settings")?) }?;
        let session = wait(Session::start(settings))??;
        hand_out(Client(OfProcess::new(session)), place);
        Ok(())
    })
}

/// The settings that they come to.
///
/// # Safety
/// Their strings end with a NUL.
unsafe fn settings_of(given: &[Setting]) -> Result<Settings, Error> {
    let mut settings = Settings::default();
    for setting in given {
        // SAFETY: as demanded.
        let (name, value) =
            unsafe { (text(setting.name, "the name of a setting")?, text(setting.value, "a setting")?) };
        let (name, value) = (String::from_utf8_lossy(name), OsStr::from_bytes(value));
        let words = || value.to_string_lossy().into_owned();
        let list = || words().split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect();
        match &*name {
            "up" => settings.up = Some(words()),
            "etcd" => settings.etcd = list(),
            "workers" => settings.workers = list(),
            "config" => settings.file = Some(value.into()),
            _ => settings.more.push((name.into_owned(), words())),
        }
    }
    Ok(settings)
}

/// Ends a client and its connections, and frees it; NULL is none. Files fail from then on, and views stay.
///
/// # Safety
/// `client` is of forebay_client_start, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_client_free(client: *mut Client) {
    outcome(|| {
        // SAFETY: as the caller says.
        let client = unsafe { take_back(client) };
        match client.as_ref().and_then(|client| client.0.get()) {
            Some(session) => wait(Arc::clone(session).close())?,
            None => Ok(()),
        }
    });
}

/// What `path` is: absolute, as "/dir/file". With `revalidate`, the origin is asked whatever a cache says.
///
/// Returns 0, or a negative errno: -ENOENT if there is no such name.
///
/// # Safety
/// `path` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stat(
    client: Option<&Client>,
    path: *const c_char,
    revalidate: bool,
    entry: Option<&mut Entry>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(entry, "entry")?);
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?.to_vec();
        *place = Entry::from(&wait(session.stat(path, revalidate))??);
        Ok(())
    })
}

/// Tells `callback` of the names in the directory `path`, by their whole paths; of a file, its own.
///
/// Returns 0, also when the callback ended the listing, or a negative errno.
///
/// # Safety
/// `path` ends with a NUL, and `callback` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_list(
    client: Option<&Client>,
    path: *const c_char,
    callback: ListCallback,
    context: *mut c_void,
) -> c_int {
    outcome(|| {
        let (session, callback) = (given(client, "client")?.session()?, given(callback, "callback")?);
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?.to_vec();
        for found in wait(session.list(path))?? {
            let next = "rename the object: C cannot name it";
            let path = CString::new(found.path.clone())
                .map_err(|_| Error::argument("a name with a NUL byte", next).about(&found.path))?;
            // SAFETY: as the caller says; path and entry are there until it returns.
            if unsafe { callback(context, path.as_ptr(), &Entry::from(&found)) } != 0 {
                break;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_places_and_keys() {
        let given = [
            (c"workers", c"a:1, b:2,"),
            (c"config", c"/etc/forebay.toml"),
            (c"client.memory.size", c"1GiB"),
            (c"up", c"s3://b"),
        ];
        let given = given.map(|(name, value)| Setting { name: name.as_ptr(), value: value.as_ptr() });
        // SAFETY: they are literals.
        let settings = unsafe { settings_of(&given) }.unwrap();
        assert_eq!(
            (settings.up.as_deref(), &settings.workers[..]),
            (Some("s3://b"), &["a:1", "b:2"].map(str::to_owned)[..])
        );
        assert_eq!(settings.file.as_deref(), Some("/etc/forebay.toml".as_ref()));
        assert_eq!(settings.more, [("client.memory.size".to_owned(), "1GiB".to_owned())]);
        let nameless = [Setting { name: std::ptr::null(), value: c"x".as_ptr() }];
        // SAFETY: NULL is looked at.
        assert!(unsafe { settings_of(&nameless) }.is_err());
    }
}
