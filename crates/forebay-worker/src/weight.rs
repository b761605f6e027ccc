//! What is remembered of names is bounded in bytes, and counted in names.

/// What is known of one name takes so many bytes at most, or counts as that of several: whoever asks chooses paths and
/// tokens, and may make them as long as a request.
const BYTES_OF_A_NAME: usize = 1 << 10;

/// As how many names something counts that has so many, and so many bytes besides them.
pub(crate) fn names(names: usize, bytes: usize) -> u32 {
    u32::try_from(names.max(1) + bytes / BYTES_OF_A_NAME).unwrap_or(u32::MAX)
}
