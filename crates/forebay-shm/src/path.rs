//! Where a worker's socket lies: in a directory of its user alone, under a name that follows from the worker's address.
//!
//! Both sides find it by themselves, so both must see the same directory. A name in the abstract namespace would need
//! none, but is free to every process of the network namespace: any user could take it first, and a container on the
//! host's network would reach it, whose root looks to the kernel like the worker's own.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_private::our_user;

/// What the name of a socket ends with.
pub(crate) const SOCKET: &str = ".sock";
/// What the name of its lock ends with.
pub(crate) const LOCK: &str = ".lock";
/// The most bytes of a path that `sockaddr_un` has room for, beside the zero behind it.
pub(crate) const MAX_PATH: usize = 107;

/// Where the sockets of this user's workers lie unless it is said: `/run/forebay-shm-0` for root, and
/// `/tmp/forebay-shm-UID` for others, who may make no directory in `/run`. The environment has no part in it: a worker
/// that is a service and a mount that is started by hand must come to the same.
#[must_use]
pub fn default_directory() -> PathBuf {
    let user = our_user();
    let parent = if user == 0 { "/run" } else { "/tmp" };
    PathBuf::from(format!("{parent}/forebay-shm-{user}"))
}

/// The socket in `directory` of the worker that listens on `address`, as seen from this network namespace: in another
/// one that address may be another worker's.
#[must_use]
pub fn socket_path(directory: &Path, address: SocketAddr) -> PathBuf {
    directory.join(format!("{address}@{}{SOCKET}", network_namespace()))
}

/// The number of our network namespace; zero where that cannot be seen.
fn network_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_address_leaves_room_for_a_directory() {
        let path =
            socket_path(&default_directory(), "[1111:2222:3333:4444:5555:6666:7777:8888]:65535".parse().unwrap());
        assert!(path.as_os_str().len() < MAX_PATH, "{}", path.display());
        assert_eq!(path.parent(), Some(&*default_directory()));
    }

    #[test]
    fn addresses_have_sockets_of_their_own() {
        let socket = |address: &str| socket_path(Path::new("/d"), address.parse().unwrap());
        assert_ne!(socket("127.0.0.1:1"), socket("127.0.0.1:2"));
        assert_ne!(socket("127.0.0.1:1"), socket("[::1]:1"));
        assert!(socket("127.0.0.1:1").to_str().unwrap().starts_with("/d/127.0.0.1:1@"));
    }
}
