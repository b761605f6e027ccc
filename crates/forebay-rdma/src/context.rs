//! UCX's context of an I/O thread: devices, transports and settings.

use forebay_ucx::{Context, Fabric, Library, Options, Resource};

use crate::options::IoThreadOptions;
use crate::{RdmaError, sockets};

/// What is left of UCX's transports when those are taken out by which anybody reaches a worker, accepted or not: its TCP listens
/// for itself, and to UD, DC and EFA's SRD whoever knows a number can send. A connection of RC is two queue pairs that were told
/// of each other. `^` takes out all that follow; `ud` and `dc` stand for those of every kind of card.
const ONLY_CONNECTED: &str = "^tcp,ud,dc,srd";

/// A context for what `options` name, with the settings that their fabric needs.
pub(crate) fn context(library: &'static Library, options: &IoThreadOptions) -> Result<Context, RdmaError> {
    let mut settings = Options::tuned();
    if !options.devices.is_empty() {
        settings = settings.devices(options.devices.iter().map(String::as_str));
    }
    if !options.transports.is_empty() {
        settings = settings.transports(options.transports.iter().map(String::as_str));
    } else if options.only_connected {
        // What an operator has in UCX_TLS stays: it names transports, too.
        settings = settings.prefer("TLS", ONLY_CONNECTED);
    }
    for (key, value) in options.fabric.settings() {
        settings = settings.set(key, &value);
    }
    let version = library.version();
    if let Some((key, value)) = sockets::setting(version, &options.transports) {
        settings = settings.set(key, value);
    }
    let (context, fabric) = Fabric::context(library, settings)?;
    sockets::check(fabric, version, &options.transports)?;
    if fabric == Fabric::Efa {
        tracing::info!(card = options.name, "the card is EFA: it is polled, and payload is sent eagerly");
    }
    Ok(context)
}

/// No peer can be reached over these `resources`.
pub(crate) fn alone(options: &IoThreadOptions, resources: &[Resource]) -> RdmaError {
    let named = |names: &[String], otherwise: &str| match names {
        [] => otherwise.to_owned(),
        names => names.join(","),
    };
    let otherwise = if options.only_connected { ONLY_CONNECTED } else { "its transports" };
    let (transports, devices) = (named(&options.transports, otherwise), named(&options.devices, "all devices"));
    let found: Vec<_> = resources.iter().map(ToString::to_string).collect();
    RdmaError::Alone { settings: format!("{transports} on {devices}"), found: named(&found, "nothing") }
}
