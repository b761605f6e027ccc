//! Finding libucp, checking it, and resolving its functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::Ucp;
use crate::search::{SONAME, in_wheels};

/// The environment variable that names the library to load, a path.
pub const LIBRARY_VARIABLE: &str = "FOREBAY_UCX_LIBRARY";
/// The oldest version that is used: Debian 12's.
pub const OLDEST: Version = Version { major: 1, minor: 13, patch: 0 };
/// The newest version whose headers these bindings were compared with.
pub const NEWEST_KNOWN: Version = Version { major: 1, minor: 23, patch: 0 };

/// A version of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes when the ABI does.
    pub major: u32,
    /// Peers of unequal minor versions may not understand each other.
    pub minor: u32,
    /// A correction.
    pub patch: u32,
}

impl Version {
    /// Whether the bindings fit it.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.major == OLDEST.major && self >= OLDEST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why there is no libucp to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// None anywhere.
    #[error(
        "libucp is not installed (looked for {searched}); install UCX {OLDEST} or newer (Debian: libucx0, Fedora: ucx), \
         or name the file in {LIBRARY_VARIABLE}"
    )]
    NotFound {
        /// Where it was looked for.
        searched: String,
    },
    /// There is a file, but it cannot be loaded, or it is no libucp.
    #[error("cannot load {path}: {reason}; install UCX again, or name another libucp in {LIBRARY_VARIABLE}")]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The dynamic linker's words.
        reason: String,
    },
    /// A version that does not work.
    #[error(
        "{path} is UCX {version}, and {OLDEST} or newer of the same major version is needed; upgrade it, or name another \
         libucp in {LIBRARY_VARIABLE}"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it is.
        version: Version,
    },
}

/// `ucs_log_func_t`: file, line, function, level, component, format and `va_list`; 0 ends the handling of the message.
/// A `va_list` argument is passed as a pointer by the ABIs of x86-64 and AArch64.
pub type LogHandler = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    *const c_char,
    c_int,
    *const c_void,
    *const c_char,
    *mut c_void,
) -> c_int;

/// A libucp that was loaded.
pub struct Loaded {
    /// Its functions.
    pub ucp: Ucp,
    /// The file, as the dynamic linker knows it.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
    /// `ucs_log_push_handler(handler)`: sends UCX's log messages to `handler`. These four are of no public header, but
    /// in every version; each is done without where it is missing.
    pub log_push_handler: Option<unsafe extern "C" fn(LogHandler)>,
    /// `ucs_debug_disable_signals()`: gives SIGSEGV and similar signals back to the handlers that they had before UCX.
    pub debug_disable_signals: Option<unsafe extern "C" fn()>,
    /// `ucs_config_parser_print_all_opts(stream, prefix, flags, list, filter)`: every setting there is. Versions that
    /// have no filter ignore that argument.
    pub config_print_all:
        Option<unsafe extern "C" fn(*mut libc::FILE, *const c_char, c_int, *mut c_void, *const c_char)>,
    /// `&ucs_config_global_list`: the list to give it.
    pub config_list: *mut c_void,
}

// SAFETY: function pointers and the address of a static of a library that is never unloaded; what may be called from
// which thread is the callers' business.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// Loads libucp: the file `path` if one is given, else the one that [`LIBRARY_VARIABLE`] names, else what the dynamic
/// linker finds by soname, else one in the folder of a known Python wheel. A file that was named must do; no other is
/// tried in its stead. What is loaded is never unloaded.
///
/// # Errors
/// [`LoadError`], which says what to do.
pub fn load(path: Option<&Path>) -> Result<Loaded, LoadError> {
    let named = path
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from));
    if let Some(path) = named {
        return match open(&path) {
            Ok(library) => resolve(library, &path),
            Err(reason) => Err(LoadError::Unloadable { path, reason }),
        };
    }
    let soname = PathBuf::from(SONAME);
    let mut searched = vec![format!("{SONAME}: not known to the dynamic linker")];
    match open(&soname) {
        Ok(library) => return resolve(library, &soname),
        // A library that lacks one of its own must be named, not passed over in silence.
        Err(reason) if !reason.starts_with(SONAME) => return Err(LoadError::Unloadable { path: soname, reason }),
        Err(_) => {}
    }
    for path in in_wheels() {
        match open(&path) {
            Ok(library) => return resolve(library, &path),
            Err(reason) => searched.push(reason),
        }
    }
    searched.push("no Python wheel with one".to_owned());
    Err(LoadError::NotFound { searched: searched.join("; ") })
}

fn open(path: &Path) -> Result<Library, String> {
    set_quiet_variables();
    // SAFETY: UCX's constructors are meant to run in any process: they read the environment and the CPU's features, and
    // install signal handlers, which `forebay-ucx` takes out again. NODELETE: its threads and hooks outlive any handle.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
    opened.map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    })
}

fn resolve(library: Library, path: &Path) -> Result<Loaded, LoadError> {
    let unloadable = |reason: String| LoadError::Unloadable { path: path.to_path_buf(), reason };
    let library = libloading::Library::from(library);
    // SAFETY: each type is that of the C declaration of the symbol, in all accepted versions.
    let (push, signals, print, list) = unsafe {
        (
            library.get::<unsafe extern "C" fn(LogHandler)>(b"ucs_log_push_handler\0").map(|symbol| *symbol).ok(),
            library.get::<unsafe extern "C" fn()>(b"ucs_debug_disable_signals\0").map(|symbol| *symbol).ok(),
            library
                .get::<unsafe extern "C" fn(*mut libc::FILE, *const c_char, c_int, *mut c_void, *const c_char)>(
                    b"ucs_config_parser_print_all_opts\0",
                )
                .map(|symbol| *symbol)
                .ok(),
            library.get::<*mut c_void>(b"ucs_config_global_list\0").map(|symbol| *symbol).ok(),
        )
    };
    // SAFETY: the types of the functions are those of UCX's header.
    let ucp = unsafe { Ucp::from_library(library) }.map_err(|error| unloadable(error.to_string()))?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three valid places for the answer.
    unsafe { (ucp.ucp_get_version)(&mut major, &mut minor, &mut patch) };
    let version = Version { major, minor, patch };
    let path = path_of(ucp.ucp_get_version as *const c_void).unwrap_or_else(|| path.to_path_buf());
    if !version.is_usable() {
        return Err(LoadError::Version { path, version });
    }
    Ok(Loaded {
        ucp,
        path,
        version,
        log_push_handler: push,
        debug_disable_signals: signals,
        config_print_all: print,
        config_list: list.unwrap_or(std::ptr::null_mut()),
    })
}

/// The file that the code at `address` is from.
fn path_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: `Dl_info` is plain pointers, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about, and `info` is a valid place for the answer.
    let known = unsafe { libc::dladdr(address, &mut info) } != 0;
    if !known || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success the name is a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(name.to_str().ok()?);
    Some(path.canonicalize().unwrap_or(path))
}

/// Makes those settings of UCX that only environment variables make, which must be there when it is loaded: no handlers
/// for SIGSEGV and its kin, and no hooks in `mmap`, `munmap` and the like: what is registered here is pools, which stay
/// mapped until they are deregistered.
///
/// The environment may be changed only while no other thread can read it, so this does nothing unless the process has
/// one thread: a program that wants it loads libucp first thing. A variable that the user has set is left alone.
fn set_quiet_variables() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, |tasks| tasks.count());
    if threads != 1 {
        return;
    }
    for (name, value) in [("UCX_HANDLE_ERRORS", "none"), ("UCX_MEM_EVENTS", "n")] {
        if std::env::var_os(name).is_none() {
            // SAFETY: this is the only thread of the process, so no other thread reads the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_remedy() {
        let error = load(Some(Path::new("/nowhere/libucp.so.0"))).err().unwrap();
        let text = error.to_string();
        assert!(text.contains("/nowhere/libucp.so.0") && text.contains(LIBRARY_VARIABLE), "{text}");
    }

    #[test]
    fn a_library_that_is_not_libucp_is_refused_by_name() {
        let error = load(Some(Path::new("libm.so.6"))).err().unwrap();
        assert!(matches!(&error, LoadError::Unloadable { path, .. } if path == Path::new("libm.so.6")), "{error}");
        assert!(error.to_string().contains("uc"), "{error}");
    }

    #[test]
    fn old_and_foreign_versions_are_told_from_usable_ones() {
        let usable = |major, minor| Version { major, minor, patch: 1 }.is_usable();
        assert!(usable(1, 13) && usable(1, 23) && usable(1, 40));
        assert!(!usable(1, 12) && !usable(2, 0));
        let error =
            LoadError::Version { path: "/usr/lib/libucp.so.0".into(), version: Version { minor: 12, ..OLDEST } };
        let text = error.to_string();
        assert!(text.contains("/usr/lib/libucp.so.0 is UCX 1.12.0") && text.contains("1.13.0 or newer"), "{text}");
    }
}
