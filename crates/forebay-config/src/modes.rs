//! The settings that are a choice among a few names: those that parts carry out are theirs, too (`forebay_types`).

use forebay_types::{AuditEvents, FuseIo, IoBackend, S3Checksum, ServeMode, TcpSecurity, TcpZeroCopy};

use crate::nearest::nearest;
use crate::value::{Scalar, quoted};

/// Has choices be values of settings.
macro_rules! scalar {
    ($($name:ident)+) => {$(
        impl Scalar for $name {
            fn form() -> String {
                match Self::NAMES {
                    [only] => format!("`{only}`"),
                    names => format!("one of {}", names.join(", ")),
                }
            }

            fn parse(text: &str) -> Result<Self, String> {
                Self::named(text).ok_or_else(|| {
                    let guess = nearest(text, Self::NAMES.iter().copied());
                    let guess = guess.map(|name| format!(": did you mean `{name}`?")).unwrap_or_default();
                    format!("`{text}` is not {}{guess}", Self::form())
                })
            }

            fn toml(&self) -> String {
                quoted(self.as_str())
            }
        }
    )+};
}

macro_rules! choices {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $choice_doc:literal])+ $choice:ident = $text:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $choice_doc])+ $choice,)+
        }

        impl $name {
            const NAMES: &[&str] = &[$($text),+];

            /// The name as it is written in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$choice => $text,)+
                }
            }
        }

        impl $name {
            fn named(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$choice),)+
                    _ => None,
                }
            }
        }

        scalar! { $name }
    )+};
}

scalar! { AuditEvents FuseIo IoBackend S3Checksum ServeMode TcpSecurity TcpZeroCopy }

choices! {
    /// How both ends of a connection prove who they are.
    SecurityMode {
        /// They do not.
        Off = "off",
        /// By certificates that processes make for themselves, from the key of the cluster.
        Key = "key",
        /// By certificates that others issue.
        Mtls = "mtls",
    }
    /// Whether processes on one host see a worker's memory.
    SharedMemory {
        /// Where it costs the worker nothing.
        Auto = "auto",
        /// Also where its memory is in small pages then, or fail at start.
        On = "on",
        /// Never.
        Off = "off",
    }

    /// What drives the cards for RDMA.
    RdmaProvider {
        /// Verbs between processes that both have them, else UCX.
        Auto = "auto",
        /// libibverbs and librdmacm alone.
        Verbs = "verbs",
        /// UCX alone.
        Ucx = "ucx",
    }

    /// Whether a large read is divided among several cards.
    RdmaStriping {
        /// Where that ends it earlier.
        Auto = "auto",
        /// Never: a request goes over one card.
        Off = "off",
    }

    /// What happens when RDMA was asked for and does not work.
    RdmaFallback {
        /// Never TCP: other replicas are tried, then the read fails. Without RDMA at start the process stops.
        Never = "never",
        /// TCP while the process runs, and RDMA again later. Without RDMA at start the process stops.
        Auto = "auto",
        /// As `auto`, and without RDMA at start the process runs on TCP.
        TcpAtStart = "tcp-at-start",
    }

    /// What becomes of a mount when its process is told to end.
    OnStop {
        /// It is left to systemd where that starts the next process, and unmounted otherwise.
        Auto = "auto",
        /// It is unmounted.
        Unmount = "unmount",
        /// It is left to whoever keeps it, for the next process.
        Leave = "leave",
    }

    /// Where written data goes.
    WriteMode {
        /// To the origin, and not into the cache.
        Through = "through",
        /// Nowhere: nothing can be written.
        None = "none",
    }

    /// The least important messages that are logged.
    LogLevel {
        /// Only what needs someone to act.
        Error = "error",
        /// Also what was survived.
        Warn = "warn",
        /// Also what changed: started, joined, fell back.
        Info = "info",
        /// Also each decision.
        Debug = "debug",
        /// Also each request.
        Trace = "trace",
    }

    /// The form of log lines.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_choice_is_refused_with_the_choices_and_the_nearest() {
        let error = ServeMode::parse("page-cache").unwrap_err();
        assert_eq!(error, "`page-cache` is not one of dio, pagecache, splice: did you mean `pagecache`?");
        assert_eq!(RdmaFallback::parse("tcp-at-start"), Ok(RdmaFallback::TcpAtStart));
        assert_eq!(RdmaProvider::parse("verbs"), Ok(RdmaProvider::Verbs));
        assert!(RdmaProvider::parse("verb").is_err_and(|error| error.contains("did you mean `verbs`?")));
    }
}
