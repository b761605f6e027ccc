//! What is written down of a draft, so that it can be finished when its process is gone.
//!
//! A record tells where each byte of the file is. That is *exact* only when it is written at a quiet moment: at the
//! start of a sync, and when one failed. In between, writes are not written down one by one; the staged file alone then
//! tells what was written, and that is enough where there is no base: holes are zeros, and its length is the file's.
//! What is gone, and the parts that have it, is always right: it is written down before the bytes go.

use std::fmt::Write as _;

use forebay_types::{FileVersion, FsPath};
use serde::{Deserialize, Serialize};

use crate::process::Process;

/// The version of the format.
pub(crate) const FORMAT: u32 = 1;

/// What is known of a draft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u32,
    /// For people; names may be any bytes, so `path_hex` counts.
    pub(crate) path: String,
    pub(crate) path_hex: String,
    /// The mount that wrote it: its mountpoint.
    pub(crate) owner: String,
    #[serde(flatten)]
    pub(crate) process: Process,
    /// When it was opened, milliseconds since 1970.
    pub(crate) since: u64,
    /// Why it could not be uploaded when that was tried last.
    pub(crate) error: Option<String>,
    pub(crate) size: u64,
    /// The version that the unwritten bytes come from, as [`FileVersion::encode`] has it, in hexadecimal.
    pub(crate) base: Option<String>,
    pub(crate) base_limit: u64,
    /// Whether `staged` and `zeros` are right, and the tags of parts whose bytes are not gone.
    pub(crate) exact: bool,
    pub(crate) staged: Vec<(u64, u64)>,
    pub(crate) zeros: Vec<(u64, u64)>,
    pub(crate) gone: Vec<(u64, u64)>,
    /// How the file is cut into parts: so many, of that size.
    pub(crate) schedule: Vec<(u32, u64)>,
    pub(crate) upload: Option<UploadRecord>,
}

/// An upload that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadRecord {
    /// The path that it was begun for.
    pub(crate) path_hex: String,
    pub(crate) name: String,
    /// Number, length and tag of parts that arrived.
    pub(crate) parts: Vec<(u32, u64, String)>,
}

impl Record {
    /// Where the file belongs.
    pub(crate) fn fs_path(&self) -> Result<FsPath, String> {
        path_of_hex(&self.path_hex)
    }

    /// The version that the unwritten bytes come from.
    pub(crate) fn base_version(&self) -> Result<Option<FileVersion>, String> {
        let Some(text) = &self.base else { return Ok(None) };
        let bytes = from_hex(text).ok_or("its base is not hexadecimal")?;
        FileVersion::decode(&bytes).map(Some).map_err(|error| format!("its base: {error}"))
    }
}

impl UploadRecord {
    /// The path that it was begun for.
    pub(crate) fn fs_path(&self) -> Result<FsPath, String> {
        path_of_hex(&self.path_hex)
    }
}

fn path_of_hex(text: &str) -> Result<FsPath, String> {
    let bytes = from_hex(text).ok_or("its path is not hexadecimal")?;
    FsPath::new(bytes).map_err(|error| error.to_string())
}

/// Lower case, two digits a byte.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The other way round; `None`: these are no such digits.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| if let [high, low] = *pair { Some(digit(high)? << 4 | digit(low)?) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_survive_hexadecimal(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".*") {
            let _ = from_hex(&text);
            let _ = serde_json::from_str::<Record>(&text);
        }
    }
}
