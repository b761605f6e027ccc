//! A context: a set of devices and transports, and the memory registered with them.
//!
//! A context may be used from any thread (UCX guards it with locks of its own), while each [`crate::Worker`] made from it
//! belongs to one. It lives as long as any worker, endpoint or registration of it.

use std::ffi::CString;
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_ucx_sys as sys;

use crate::error::{Error, Status};
use crate::exit::InUse;
use crate::library::Library;
use crate::options::{Options, is_known, name_before_1_17};
use crate::registration::Mapped;
use crate::resource::{self, Resource};
use crate::text::printed;

/// A context of UCX. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) shared: Arc<ContextShared>,
}

pub(crate) struct ContextShared {
    pub(crate) library: &'static Library,
    pub(crate) handle: sys::ucp_context_h,
    pub(crate) event_driven: bool,
    resources: Vec<Resource>,
    unknown: Vec<String>,
    /// Memory registered with this context: deregistered when the context ends, not before.
    pub(crate) mapped: Mutex<Vec<Arc<Mapped>>>,
    /// Memory that peers hold keys of: they may write to it until it is deregistered.
    pub(crate) exposed: Mutex<Vec<SpanMut>>,
    _in_use: InUse,
}

// SAFETY: the context is made with `mt_workers_shared`, by which UCX locks it on every use; the rest is Send and Sync.
unsafe impl Send for ContextShared {}
// SAFETY: as above.
unsafe impl Sync for ContextShared {}

impl Context {
    /// A context with `options`.
    ///
    /// # Errors
    /// [`Error::UnknownOption`] and [`Error::InvalidOption`] name the option; [`Error::Context`] when no device and
    /// transport is left.
    pub fn new(library: &'static Library, options: &Options) -> Result<Self, Error> {
        // UCX's tables of modules and settings are global, and filled by the first contexts.
        let settings = library.settings.lock();
        let mut config = Config::read(library)?;
        let mut unknown = Vec::new();
        let mut refused = Vec::new();
        for setting in &options.settings {
            let overridden = !setting.needed && std::env::var_os(format!("UCX_{}", setting.key)).is_some();
            let name = if library.has(17) { &setting.key } else { name_before_1_17(&setting.key) };
            if !overridden && config.modify(name, &setting.value) != Status::OK {
                refused.push(setting);
            }
        }
        let known = library.known_options();
        let unknown_here = |key: &str| known.as_ref().is_some_and(|known| !is_known(known, key));
        for setting in refused {
            // Modules that no context has loaded yet do not count here, which is why an option may be merely preferred.
            match (unknown_here(&setting.key), setting.needed) {
                (true, false) => unknown.push(setting.key.clone()),
                (true, true) => {
                    let key = setting.key.clone();
                    return Err(Error::UnknownOption { key, version: library.version() });
                }
                (false, _) => {
                    return Err(Error::InvalidOption { key: setting.key.clone(), value: setting.value.clone() });
                }
            }
        }
        let handle = init(library, &config, options)?;
        drop(config);
        // Built before anything can fail, so that the handle has an owner.
        let mut shared = ContextShared {
            library,
            handle,
            event_driven: options.event_driven,
            resources: Vec::new(),
            unknown: Vec::new(),
            mapped: Mutex::default(),
            exposed: Mutex::default(),
            _in_use: InUse::begin(),
        };
        // Before 1.21 an unknown option is taken in silence. All modules are loaded now, so all options are known.
        if let Some(known) = library.known_options() {
            for setting in options.settings.iter().filter(|setting| !is_known(&known, &setting.key)) {
                if setting.needed {
                    return Err(Error::UnknownOption { key: setting.key.clone(), version: library.version() });
                }
                if !unknown.contains(&setting.key) {
                    unknown.push(setting.key.clone());
                }
            }
        }
        drop(settings);
        // SAFETY: the context is alive, and the stream open.
        let text = printed(|stream| unsafe { (library.ucp().ucp_context_print_info)(handle, stream) });
        shared.resources = resource::of_context(&text);
        shared.unknown = unknown;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The library that it is of.
    #[must_use]
    pub fn library(&self) -> &'static Library {
        self.shared.library
    }

    /// Whether its workers can be waited for by events. EFA's are polled.
    #[must_use]
    pub fn is_event_driven(&self) -> bool {
        self.shared.event_driven
    }

    /// The devices and transports that it uses.
    #[must_use]
    pub fn resources(&self) -> &[Resource] {
        &self.shared.resources
    }

    /// The preferred options that this version of UCX does not know.
    #[must_use]
    pub fn unknown_options(&self) -> &[String] {
        &self.shared.unknown
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

fn init(library: &Library, config: &Config, options: &Options) -> Result<sys::ucp_context_h, Error> {
    let wakeup = if options.event_driven { sys::UCP_FEATURE_WAKEUP } else { 0 };
    let one_sided = if options.one_sided { sys::UCP_FEATURE_RMA } else { 0 };
    // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
    let mut params: sys::ucp_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = (sys::UCP_PARAM_FIELD_FEATURES | sys::UCP_PARAM_FIELD_MT_WORKERS_SHARED).into();
    params.features = (sys::UCP_FEATURE_AM | one_sided | wakeup).into();
    params.mt_workers_shared = 1;
    let mut handle = std::ptr::null_mut();
    let (major, minor) = (sys::OLDEST.major, sys::OLDEST.minor);
    // SAFETY: parameters and configuration are valid, and `handle` is a place for the answer.
    let status = unsafe { (library.ucp().ucp_init_version)(major, minor, &params, config.handle, &mut handle) };
    if status == sys::UCS_OK {
        return Ok(handle);
    }
    let transports = options.value("TLS").unwrap_or("its default transports");
    let devices = options.value("NET_DEVICES").unwrap_or("all devices");
    Err(Error::Context { settings: format!("{transports} on {devices}"), status: Status(status) })
}

/// `ucp_config_t`, released on drop.
struct Config {
    library: &'static Library,
    handle: *mut sys::ucp_config_t,
}

impl Config {
    /// The environment's settings.
    fn read(library: &'static Library) -> Result<Self, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: no prefix and no file, and a place for the answer.
        let status = unsafe { (library.ucp().ucp_config_read)(std::ptr::null(), std::ptr::null(), &mut handle) };
        match status {
            sys::UCS_OK => Ok(Self { library, handle }),
            _ => Err(Error::Context { settings: "the settings of its environment".to_owned(), status: Status(status) }),
        }
    }

    fn modify(&mut self, key: &str, value: &str) -> Status {
        let (Ok(key), Ok(value)) = (CString::new(key), CString::new(value)) else {
            return Status(sys::UCS_ERR_INVALID_PARAM);
        };
        // SAFETY: a live configuration and two C strings, which UCX copies.
        Status(unsafe { (self.library.ucp().ucp_config_modify)(self.handle, key.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: the configuration is ours and not used again.
        unsafe { (self.library.ucp().ucp_config_release)(self.handle) }
    }
}

impl Drop for ContextShared {
    fn drop(&mut self) {
        for mapped in self.mapped.get_mut() {
            mapped.deregister(self.library.ucp(), self.handle);
        }
        // SAFETY: workers, endpoints and registrations hold the context, so this is its last use.
        unsafe { (self.library.ucp().ucp_cleanup)(self.handle) }
    }
}

impl std::fmt::Debug for ContextShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("library", &self.library).field("resources", &self.resources).finish()
    }
}
