//! A payload that lies in a file.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

/// Bytes of a file, for a transport that can send them without user space seeing them.
pub struct FileSlice {
    /// The file.
    pub file: Arc<File>,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// Whatever keeps the bytes from being overwritten until they are sent.
    pub pin: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for FileSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileSlice({} bytes at {})", self.length, self.offset)
    }
}
