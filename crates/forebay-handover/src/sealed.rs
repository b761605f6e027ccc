//! Memory that nobody changes any more: how a state goes to another process, however large it is.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// A state of a million inodes has some hundred megabytes.
const MAX_BYTES: u64 = 2 << 30;
/// With these, what was looked at is what is there.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Memory with these bytes.
///
/// # Errors
/// When there is none, or no descriptor.
pub fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("forebay-state", flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The bytes of sealed memory.
///
/// # Errors
/// `InvalidData` for what is not sealed or too large; those of `read(2)`.
pub fn read_sealed(memory: impl AsFd) -> io::Result<Vec<u8>> {
    let file = File::from(memory.as_fd().try_clone_to_owned()?);
    // Of what is no memory the kernel does not say.
    let seals = fcntl_get_seals(&file).map_err(|_| wrong("it is no memory that was given"))?;
    if !seals.contains(SEALS) {
        return Err(wrong("the memory that was given is not sealed"));
    }
    let length = file.metadata()?.len();
    if length > MAX_BYTES {
        return Err(wrong("the memory that was given is too large"));
    }
    // At most 2 GiB.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_sealed_and_nobody_can_change_it() {
        let bytes: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
        let memory = sealed(&bytes).unwrap();
        assert_eq!(read_sealed(&memory).unwrap(), bytes);
        let file = File::from(memory);
        file.write_all_at(b"x", 0).unwrap_err();
        file.set_len(1).unwrap_err();
        file.set_len(1 << 20).unwrap_err();
        assert_eq!(read_sealed(&file).unwrap(), bytes);
        assert_eq!(read_sealed(sealed(b"").unwrap()).unwrap(), b"");
    }

    #[test]
    fn what_somebody_could_still_change_is_refused() {
        let plain = tempfile::tempfile().unwrap();
        assert_eq!(read_sealed(&plain).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(read_sealed(&open).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fcntl_add_seals(&open, SealFlags::WRITE | SealFlags::SEAL).unwrap();
        assert_eq!(read_sealed(&open).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
