//! What can be chosen of a staging directory.

use std::path::PathBuf;
use std::time::Duration;

use forebay_types::ByteSize;

/// Where and how files are staged.
#[derive(Clone, Debug)]
pub struct StagingOptions {
    /// The directory; made when it is not there. Several mounts may share it.
    pub dir: PathBuf,
    /// Most bytes that this process stages in it. What other processes stage there, or left there, does not count.
    pub size: ByteSize,
    /// The size of the first 2,000 parts, 5 MiB to 64 MiB.
    pub part_size: ByteSize,
    /// Most bytes of parts that are being sent at once, 64 MiB or more.
    pub memory: ByteSize,
    /// How long a writer waits for room.
    pub timeout: Duration,
    /// How long a part must be left unwritten before it is sent ahead of the file's sync.
    pub quiet: Duration,
    /// The mount that stages, for people: its mountpoint.
    pub owner: String,
}

impl StagingOptions {
    /// A part that was not written for so long goes up before its file is closed. Shorter, and a part that is written in pieces by
    /// several writers would go up more than once.
    pub const QUIET: Duration = Duration::from_millis(200);
}
