//! The settings that are a choice among a few names.

use crate::nearest::nearest;
use crate::value::{Scalar, quoted};

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

        impl Scalar for $name {
            fn form() -> String {
                match Self::NAMES {
                    [only] => format!("`{only}`"),
                    names => format!("one of {}", names.join(", ")),
                }
            }

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$choice),)+
                    _ => {
                        let guess = nearest(text, Self::NAMES.iter().copied());
                        let guess = guess.map(|name| format!(": did you mean `{name}`?")).unwrap_or_default();
                        Err(format!("`{text}` is not {}{guess}", Self::form()))
                    }
                }
            }

            fn toml(&self) -> String {
                quoted(self.as_str())
            }
        }
    )+};
}

choices! {
    /// How a worker sends blocks from disk over TCP.
    DiskServe {
        /// `O_DIRECT` into memory of our own, then send.
        Dio = "dio",
        /// Through the page cache.
        PageCache = "pagecache",
        /// From disk to socket through a pipe, without a copy.
        Splice = "splice",
    }

    /// How a worker reads and writes its disks.
    DiskIo {
        /// io_uring where the kernel and seccomp allow it, threads otherwise.
        Auto = "auto",
        /// io_uring, or fail at start.
        Uring = "uring",
        /// A pool of threads.
        Threads = "threads",
    }

    /// How requests come from the kernel.
    FuseIo {
        /// What serves most reads fastest.
        Auto = "auto",
        /// io_uring, or fail to mount.
        Uring = "uring",
        /// `/dev/fuse`.
        Device = "device",
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

    /// Whether a worker's large replies leave over TCP from where they lie in memory.
    TcpZeroCopy {
        /// Where the kernel then makes no copy of its own: each connection tries it once.
        Auto = "auto",
        /// Whatever the kernel does.
        On = "on",
        /// Never.
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

    /// Where written data goes.
    WriteMode {
        /// To the origin, and not into the cache.
        Through = "through",
        /// Nowhere: nothing can be written.
        None = "none",
    }

    /// What an S3-compatible server checks of what is uploaded to it.
    S3Checksum {
        /// `crc64nvme` with Amazon's, `sha256` elsewhere.
        Auto = "auto",
        /// The SHA-256 that every request is signed with: every server knows it, and it costs a worker most.
        Sha256 = "sha256",
        /// A CRC-64/NVME, as Amazon's own clients send it; requests are signed without their content.
        Crc64Nvme = "crc64nvme",
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
        let error = DiskServe::parse("page-cache").unwrap_err();
        assert_eq!(error, "`page-cache` is not one of dio, pagecache, splice: did you mean `pagecache`?");
        assert_eq!(RdmaFallback::parse("tcp-at-start"), Ok(RdmaFallback::TcpAtStart));
    }
}
