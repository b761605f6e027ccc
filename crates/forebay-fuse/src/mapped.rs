//! Whether a program maps a file: the kernel does not say so, but its table of the program's mappings does.
//!
//! To the mount a fault is a read. One that is large and begins where none before ended may be a fault, around which the kernel reads
//! as far as it reads ahead, or a program's own large read at a random place. Only the first is worth the whole file: the other asks
//! for what it wants. So where there are such reads, the thread that asks is looked up.
//!
//! The table is read by a thread that answers no request: to read it takes the lock of the program's memory, for which a program that
//! maps something else may wait meanwhile, which waits in turn for the fault that is to be answered.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};

/// So much of a table is looked at: some hundred thousand mappings.
const MAX_TABLE: u64 = 16 << 20;

/// Whether the process of thread `pid` maps a file with this inode number. Not where the table may not be read: that takes what a debugger
/// may. Of what file system the file is, is not asked: our numbers have 64 bits, and others' are small.
pub(crate) fn is_mapped_by(pid: u32, ino: u64) -> bool {
    let Ok(table) = File::open(format!("/proc/{pid}/maps")) else { return false };
    has(BufReader::new(table.take(MAX_TABLE)), ino)
}

/// Whether a table such as `7f3a1000-7f3a2000 r--s 00000000 00:2f 12345   /mnt/data/file` has this inode.
fn has(mut table: impl BufRead, ino: u64) -> bool {
    let mut line = Vec::new();
    loop {
        line.clear();
        match table.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return false,
        }
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let number = fields.nth(4).and_then(|field| std::str::from_utf8(field).ok());
        if number.is_some_and(|number| number.trim_end().parse::<u64>() == Ok(ino)) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_searched_for_the_number_of_the_inode_and_nothing_else() {
        let table = b"55d0c000-55d0d000 r--p 00000000 08:01 42     /usr/bin/cat\n\
                      7f3a1000-7f3a2000 r--s 00000000 00:2f 17446744073709551615    /mnt/data/\xff name 7\n\
                      7ffd0000-7ffd1000 rw-p 00000000 00:00 0 \nnonsense\n\n7ffe r 0 0 9";
        let is_there = |ino| has(&table[..], ino);
        assert!(is_there(42) && is_there(17_446_744_073_709_551_615) && is_there(9));
        assert!(!is_there(7) && !is_there(8) && !is_there(1));
    }

    #[test]
    fn a_file_that_this_process_maps_is_found_and_one_of_no_process_is_not() {
        use std::os::fd::AsFd as _;
        use std::os::unix::fs::MetadataExt as _;
        let memory = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (file, pid) = (File::from(memory), std::process::id());
        file.set_len(4096).unwrap();
        let ino = file.metadata().unwrap().ino();
        assert!(!is_mapped_by(pid, ino));
        let window = forebay_memory::Window::map(file.as_fd(), 4096).unwrap();
        assert!(is_mapped_by(pid, ino) && !is_mapped_by(u32::MAX, ino));
        drop(window);
    }
}
