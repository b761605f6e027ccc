//! What a fabric needs of UCX that others do not.

use crate::context::Context;
use crate::error::Error;
use crate::library::Library;
use crate::options::Options;
use crate::resource::Resource;

/// A kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// One with events: InfiniBand, RoCE, TCP, shared memory.
    Events,
    /// EFA alone. Its SRD signals no events, so a worker that waits for them does not use it at all, and its GET is
    /// emulated under error handling by peer, which every endpoint uses: 1 MiB by rendezvous took 785 µs, eagerly 23.
    Efa,
}

impl Fabric {
    /// A context with `options` and what its fabric needs besides: only a context knows what there is.
    ///
    /// # Errors
    /// As [`Context::new`].
    pub fn context(library: &'static Library, options: Options) -> Result<(Context, Self), Error> {
        let context = Context::new(library, &options)?;
        match Self::of(context.resources()) {
            Self::Events => Ok((context, Self::Events)),
            efa @ Self::Efa => {
                drop(context);
                Ok((Context::new(library, &efa.adapt(options))?, efa))
            }
        }
    }

    /// The one that a context with these resources runs on.
    pub(crate) fn of(resources: &[Resource]) -> Self {
        let has = |prefixes: &[&str]| {
            resources.iter().any(|resource| prefixes.iter().any(|prefix| resource.transport.starts_with(prefix)))
        };
        // A card that has events beside it is the better choice, and UCX's: EFA's own unreliable datagrams are no such card.
        if has(&["srd"]) && !has(&["rc_", "dc_"]) { Self::Efa } else { Self::Events }
    }

    /// `options` with what it needs.
    pub(crate) fn adapt(self, options: Options) -> Options {
        match self {
            Self::Events => options,
            // Connections are made over TCP, and its device is another one.
            Self::Efa => options.prefer("CM_USE_ALL_DEVICES", "y").prefer("RNDV_THRESH", "inf").polled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(names: &[&str]) -> Fabric {
        let resource = |name: &&str| Resource { transport: (*name).to_owned(), device: "x:1".to_owned() };
        Fabric::of(&names.iter().map(resource).collect::<Vec<_>>())
    }

    #[test]
    fn efa_alone_is_polled_and_sends_eagerly() {
        assert_eq!(fabric(&["tcp", "self", "ud_verbs", "srd"]), Fabric::Efa);
        let adapted = Fabric::Efa.adapt(Options::tuned());
        assert!(!adapted.event_driven);
        assert_eq!(adapted.value("RNDV_THRESH"), Some("inf"));
        assert_eq!(adapted.value("CM_USE_ALL_DEVICES"), Some("y"), "it connects over the device of another card");
    }

    #[test]
    fn everything_else_waits_for_events() {
        for names in [&["tcp", "sysv", "cma"][..], &["rc_verbs", "ud_verbs"], &["rc_mlx5", "dc_mlx5", "srd"], &[]] {
            assert_eq!(fabric(names), Fabric::Events, "{names:?}");
        }
        let adapted = Fabric::Events.adapt(Options::tuned());
        assert!(adapted.event_driven);
        assert_eq!(adapted.value("RNDV_THRESH"), None);
        assert_eq!(adapted.value("CM_USE_ALL_DEVICES"), Some("n"));
    }
}
