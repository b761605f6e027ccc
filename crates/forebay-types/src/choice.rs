//! Choices among a few names that an operator makes and a part carries out: one definition for the setting and for the part.

/// Defines choices, each of which can be written by name. The first is the default.
macro_rules! choices {
    ($($(#[doc = $doc:literal])+ $name:ident {
        $(#[doc = $first_doc:literal])+ $first:ident = $first_text:literal,
        $($(#[doc = $choice_doc:literal])+ $choice:ident = $text:literal,)+
    })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            $first,
            $($(#[doc = $choice_doc])+ $choice,)+
        }

        impl $name {
            /// All names, the default's first.
            pub const NAMES: &[&str] = &[$first_text, $($text),+];

            /// The name as it is written in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$choice => $text,)+
                }
            }

            /// The choice of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $first_text => Some(Self::$first),
                    $($text => Some(Self::$choice),)+
                    _ => None,
                }
            }
        }
    )+};
}

choices! {
    /// How bytes on a worker's disk get to a reader.
    ServeMode {
        /// `O_DIRECT` into memory of our own, past the page cache.
        Dio = "dio",
        /// Buffered reads through the page cache.
        PageCache = "pagecache",
        /// The reader sends from the file itself, with `splice` or `sendfile`: from disk to socket without a copy.
        Splice = "splice",
    }

    /// What connections over TCP are protected from, besides who is at their other end.
    TcpSecurity {
        /// All bytes are encrypted and authenticated.
        Encrypt = "encrypt",
        /// Both ends prove who they are; then bytes go in plain text, and large replies without a copy.
        Auth = "auth",
    }

    /// What an audit log has of what was permitted. What was refused it always has.
    AuditEvents {
        /// What changes something, at the origin, in the cache or in the cluster, and who was admitted.
        Changes = "changes",
        /// Also lookups, listings and opens by path, and reads of the REST interface.
        All = "all",
    }

    /// How a worker reads and writes its disks.
    IoBackend {
        /// io_uring where the kernel and seccomp allow it, else threads.
        Auto = "auto",
        /// io_uring, or fail at start.
        Uring = "uring",
        /// `pread` and `pwrite` on a pool of threads.
        Threads = "threads",
    }

    /// How FUSE requests come from the kernel.
    FuseIo {
        /// What serves most reads fastest: `/dev/fuse`, as far as was measured (ADR 0014).
        Auto = "auto",
        /// io_uring, or fail to mount.
        Uring = "uring",
        /// `/dev/fuse`.
        Device = "device",
    }

    /// Whether the kernel sends large payloads over TCP from where they lie (`MSG_ZEROCOPY`). Either way they arrive the same.
    TcpZeroCopy {
        /// Where it makes no copy after all: the first on each connection shows it. Not to peers on this host, where it always does.
        Auto = "auto",
        /// Whatever the kernel does.
        On = "on",
        /// Never.
        Off = "off",
    }

    /// What an S3-compatible server checks of what is uploaded to it.
    S3Checksum {
        /// `crc64nvme` on AWS, `sha256` elsewhere, unless the environment says otherwise.
        Auto = "auto",
        /// The SHA-256 that every request is signed with: every server knows it, and it costs a worker most.
        Sha256 = "sha256",
        /// A CRC-64/NVME, as Amazon's own clients send it; requests are signed without their content. As strong against accidents, and
        /// costs next to nothing; against people in between, `https` is needed with either.
        Crc64Nvme = "crc64nvme",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_found_by_its_name_and_the_first_is_the_default() {
        for name in ServeMode::NAMES {
            assert_eq!(ServeMode::named(name).unwrap().as_str(), *name);
        }
        assert_eq!(ServeMode::named("Dio"), None);
        assert_eq!((ServeMode::default(), S3Checksum::default()), (ServeMode::Dio, S3Checksum::Auto));
    }
}
