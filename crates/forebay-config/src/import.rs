//! Taking over the configuration of other systems: an `alluxio-site.properties`, or a `juicefs mount` line, becomes the
//! `forebay.toml` that means the same.
//!
//! `import/properties.rs` reads the syntax of properties, `import/alluxio.rs` knows which property is which key and how its value
//! is written; `import/command.rs` reads command lines and `/etc/fstab`, `import/juicefs.rs` knows the options.
//! `import/translation.rs` collects what they find, and `import/outcome.rs` is what is told of it. What is not known is listed, never dropped in silence.

mod alluxio;
mod command;
mod fuse;
mod juicefs;
mod outcome;
mod properties;
mod translation;

use crate::error::ConfigErrors;
pub use outcome::{Import, Note, Unknown};
use translation::Translation;

/// Translates the Alluxio properties in `bytes`, a file that errors call `name`: UTF-8, or ISO-8859-1 as Java writes them. The
/// result is one that [`crate::Config::load`] accepts.
///
/// # Errors
/// Every property whose value is bad or cannot be kept, with its line.
pub fn alluxio_properties(name: &str, bytes: impl AsRef<[u8]>) -> Result<Import, ConfigErrors> {
    let heading = "# From Alluxio's properties. Keys that are not here have Forebay's defaults.";
    let mut translation = Translation::new(name, heading, alluxio::property_of);
    let (text, latin1) = properties::decode(bytes.as_ref());
    if let Some(line) = latin1 {
        translation.note(line, "this is not UTF-8: the file was read as ISO-8859-1, Java's own encoding".to_owned());
    }
    match properties::parse(&text) {
        Ok(properties) => alluxio::translate(&mut translation, &properties),
        Err(bad) => bad.into_iter().for_each(|(line, why)| translation.problem(line, why)),
    }
    translation.finish()
}

/// Translates the mount of JuiceFS in `text`, a file that errors call `name`: a `juicefs mount …` command, alone or in a script or
/// a unit of systemd, or a line of `/etc/fstab`. The result is one that [`crate::Config::load`] accepts, and says which command of
/// Forebay mounts.
///
/// # Errors
/// Every option whose value is bad or cannot be kept, with its line; that there is no mount in it, or more than one.
pub fn juicefs_mount(name: &str, text: &str) -> Result<Import, ConfigErrors> {
    let heading = "# From a mount of JuiceFS. Keys that are not here have Forebay's defaults.";
    let mut translation = Translation::new(name, heading, |_| None);
    match command::mounts(text) {
        Ok(mounts) => juicefs::translate(&mut translation, &mounts),
        Err((line, why)) => translation.problem(line, why),
    }
    translation.finish()
}

/// The properties that [`alluxio_properties`] knows, and what becomes of each: for documentation.
#[must_use]
pub fn known_properties() -> Vec<(&'static str, String)> {
    alluxio::documented()
}

/// The options that [`juicefs_mount`] knows, and what becomes of each: for documentation.
#[must_use]
pub fn known_options() -> Vec<(&'static str, String)> {
    juicefs::documented()
}
