//! What can be chosen of materialised files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::ByteSize;

use crate::lender::Lender;
use crate::policy::Rules;

/// So many opens more make a small file worth it, where nobody asked for files. To fill one of 100 KiB takes as long as two to six opens
/// save afterwards (ADR 0036). So about that many are waited for: what a fill costs in vain is then no more than what was spent on the
/// opens before.
const SMALL_OPENS: u32 = 4;

/// Where files are materialised, and which. The names are those of the keys `client.local.*`.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The most bytes that they may take.
    pub size: ByteSize,
    /// A directory on a local disk; `None`: memory.
    pub dir: Option<PathBuf>,
    /// What tells this mount from others that use the directory: its cluster and mountpoint.
    pub owner: String,
    /// Larger files are taken only if a job or a command asks for them.
    pub max_file_size: ByteSize,
    /// So many opens make a file worth it.
    pub min_opens: u32,
    /// The first open of a file up to this size waits for it.
    pub first_open_size: ByteSize,
    /// How long an open waits.
    pub first_open_wait: Duration,
    /// Files that are filled at once.
    pub fills: u32,
    /// How often every byte is checked again; zero: never.
    pub check_interval: Duration,
    /// How much of that is read in a second.
    pub check_bandwidth: ByteSize,
    /// Whether what was written to a directory is read back from the disk.
    pub check_writes: bool,
    /// Nobody asked for them: where there can be none, that is no reason for a warning.
    pub is_automatic: bool,
    /// Whose memory they share; `None`: they have their own. Of no effect with a directory.
    pub lender: Option<Arc<dyn Lender>>,
}

impl LocalOptions {
    /// What makes a file worth it.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            size: self.size.as_u64(),
            max_file_size: self.max_file_size.as_u64(),
            min_opens: self.min_opens,
            small_min_opens: self.is_automatic.then(|| self.min_opens.saturating_add(SMALL_OPENS)),
            first_open_size: self.first_open_size.as_u64(),
        }
    }
}
