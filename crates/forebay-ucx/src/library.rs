//! libucp, loaded once for the process.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay_locks::Mutex;
use forebay_ucx_sys as sys;

use crate::context::Context;
use crate::error::Error;
use crate::options::Options;
use crate::resource::Resource;
use crate::text::printed;

/// The UCX of this process. There is at most one: two in one process would fight over signals and hooks.
pub struct Library {
    loaded: sys::Loaded,
    /// Taken where UCX reads or changes its own global tables of settings and modules.
    pub(crate) settings: Mutex<()>,
}

static LIBRARY: Mutex<Option<&'static Library>> = Mutex::new(None);

impl Library {
    /// Loads libucp, or gives the one that is loaded: the file `path` if one is given, else the one that the environment
    /// variable `FOREBAY_UCX_LIBRARY` names, else the system's, else one in the folder of a known Python wheel.
    ///
    /// A program that calls this while it still has one thread also gets UCX without memory hooks; see
    /// [`forebay_ucx_sys::load()`]. The handlers of signals that UCX installs are taken out in any case.
    ///
    /// # Errors
    /// [`Error::Load`] when there is none to use, [`Error::OtherLibrary`] when another one than `path` is in use.
    pub fn load(path: Option<&Path>) -> Result<&'static Self, Error> {
        let mut library = LIBRARY.lock();
        if let Some(library) = *library {
            return library.unless_other(path);
        }
        let loaded = sys::load(path)?;
        if let Some(disable) = loaded.debug_disable_signals
            && std::env::var_os("UCX_HANDLE_ERRORS").is_none()
        {
            // SAFETY: gives the signals back to their former handlers; no argument, no state of ours.
            unsafe { disable() };
        }
        if let Some(push) = loaded.log_push_handler
            && std::env::var_os("UCX_LOG_FILE").is_none()
        {
            // SAFETY: the handler has the type that UCX's header declares, and lives for ever.
            unsafe { push(forward_log) };
        }
        tracing::debug!(path = %loaded.path.display(), version = %loaded.version, "loaded UCX");
        Ok(library.insert(Box::leak(Box::new(Self { loaded, settings: Mutex::new(()) }))))
    }

    fn unless_other(&'static self, path: Option<&Path>) -> Result<&'static Self, Error> {
        match path {
            Some(wanted) if wanted.canonicalize().ok().as_ref() != Some(&self.loaded.path) => {
                Err(Error::OtherLibrary { loaded: self.loaded.path.clone(), wanted: wanted.to_path_buf() })
            }
            _ => Ok(self),
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> sys::Version {
        self.loaded.version
    }

    /// The file that was loaded.
    #[must_use]
    pub fn path(&self) -> &PathBuf {
        &self.loaded.path
    }

    /// Every transport and device that UCX finds on this host.
    ///
    /// # Errors
    /// [`Error::Context`] when it finds none.
    pub fn transports(&'static self) -> Result<Vec<Resource>, Error> {
        let context = Context::new(self, &Options::new())?;
        Ok(context.resources().to_vec())
    }

    pub(crate) fn ucp(&self) -> &sys::Ucp {
        &self.loaded.ucp
    }

    /// Whether a field that came with 1.`minor` is there.
    pub(crate) fn has(&self, minor: u32) -> bool {
        self.loaded.version >= sys::Version { major: 1, minor, patch: 0 }
    }

    /// Every option that the library and the modules that it has loaded so far know, without `UCX_`; `None` where the
    /// library cannot say. To be called with `settings` taken.
    pub(crate) fn known_options(&self) -> Option<Vec<String>> {
        let print = self.loaded.config_print_all?;
        if self.loaded.config_list.is_null() {
            return None;
        }
        let flags = sys::CONFIG_PRINT_CONFIG | sys::CONFIG_PRINT_DOC | sys::CONFIG_PRINT_HIDDEN;
        let text = printed(|stream| {
            // SAFETY: the list is UCX's own, which no thread changes while `settings` is taken.
            unsafe { print(stream, c"UCX_".as_ptr(), flags, self.loaded.config_list, std::ptr::null()) }
        });
        Some(text.lines().flat_map(options_of).map(str::to_owned).collect())
    }
}

/// The options that a line of UCX's help names: `UCX_TLS=all`, and `# inherits: UCX_RC_SL, UCX_IB_SL` for the groups whose
/// members may be set together.
fn options_of(line: &str) -> impl Iterator<Item = &str> {
    let groups = line.strip_prefix("# inherits:");
    let names = groups.or_else(|| Some(line.split_once('=')?.0)).unwrap_or_default();
    names.split(',').filter_map(|name| name.trim().strip_prefix("UCX_"))
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UCX {} at {}", self.version(), self.path().display())
    }
}

unsafe extern "C" {
    /// `va_list` is passed as a pointer on x86-64 and AArch64.
    fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Sends a message of UCX to `tracing`: by default it prints to standard output, where it would spoil ours.
unsafe extern "C" fn forward_log(
    _file: *const c_char,
    _line: c_uint,
    _function: *const c_char,
    level: c_int,
    _component: *const c_void,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    /// `UCS_LOG_FUNC_RC_STOP`: no other handler needs to see the message.
    const HANDLED: c_int = 0;
    let mut buffer = [0 as c_char; 1024];
    // SAFETY: format and arguments are UCX's own, made for printf; the buffer has the size given.
    let written = unsafe { vsnprintf(buffer.as_mut_ptr(), buffer.len(), format, arguments) };
    if written < 0 {
        return HANDLED;
    }
    // SAFETY: vsnprintf ends what it writes with a zero.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy();
    // Said of every worker about options of transports that its context does not use, which is no fault.
    let level = if text.starts_with("invalid configuration") { 3 } else { level };
    // A subscriber that panics must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| match level {
        0 => tracing::error!(target: "ucx", "{text}"),
        1 | 2 => tracing::warn!(target: "ucx", "{text}"),
        3 | 4 => tracing::debug!(target: "ucx", "{text}"),
        _ => tracing::trace!(target: "ucx", "{text}"),
    }));
    HANDLED
}
