//! What a caller is told.

use std::ffi::{CStr, c_int};
use std::io::Write as _;

/// The codes of `libstreamer.so`, by their numbers there. Those that are never given here are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    /// There are no more answers.
    Finished = 1,
    /// A file cannot be opened or read.
    FileAccess = 2,
    /// A range ends beyond the end of its file.
    EndOfFile = 3,
    InvalidParameter = 7,
    /// A request for nothing, which 0.16 refuses.
    EmptyRequest = 8,
    /// The one request that 0.16 allows is under way.
    Busy = 9,
    Unknown = 11,
    TimedOut = 16,
    CredentialsAlreadySet = 18,
    StrategyConflict = 20,
}

impl Code {
    pub(crate) fn number(self) -> c_int {
        self as c_int
    }
}

/// The words for a code of a caller's.
pub(crate) fn words(code: c_int) -> &'static CStr {
    const CODES: [(Code, &CStr); 11] = [
        (Code::Success, c"Request sent successfully"),
        (Code::Finished, c"Finished all responses"),
        (Code::FileAccess, c"File access error; forebay_streamer wrote the reason to standard error"),
        (Code::EndOfFile, c"End of file reached"),
        (Code::InvalidParameter, c"Invalid request parameters; forebay_streamer wrote the reason to standard error"),
        (Code::EmptyRequest, c"Empty request parameters"),
        (Code::Busy, c"Streamer is handling previous request"),
        (Code::Unknown, c"Unknown Error; forebay_streamer wrote the reason to standard error"),
        (Code::TimedOut, c"Timed out waiting for a response"),
        (Code::CredentialsAlreadySet, c"Credentials are already set; start another streamer for others"),
        (Code::StrategyConflict, c"Another file system strategy is set; start another streamer for it"),
    ];
    let found = CODES.iter().find(|(known, _)| known.number() == code);
    found.map_or(c"Invalid response code", |(_, words)| words)
}

/// Says on standard error what a number cannot.
pub(crate) fn complain(what: &str) {
    // If nobody can read it, that is no reason to end what goes on.
    let _ = writeln!(std::io::stderr(), "forebay_streamer: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_words_and_others_are_none() {
        assert_eq!(words(Code::Busy.number()), c"Streamer is handling previous request");
        assert_eq!(words(0), c"Request sent successfully");
        assert_eq!((words(4), words(-1)), (c"Invalid response code", c"Invalid response code"));
    }
}
