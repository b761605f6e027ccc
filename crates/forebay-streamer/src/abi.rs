//! The functions of `libstreamer.so`: those whose names begin with `runai_file_streamer_` of 0.17, and the five others of 0.15.9 to 0.16.
//!
//! A caller sends requests and takes answers from one thread at a time, as the library demands; several do no harm here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_session::fork::OfProcess;

use crate::codes::{Code, complain, words};
use crate::places::Rules;
use crate::sources::{Credentials, Destination};
use crate::streamer::{FileRequest, Streamer};

/// What callers have a pointer to.
pub struct Handle(OfProcess<Streamer>);

/// Where destinations are, in 0.17: memory of the host, or of a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// 0 is the host.
    pub kind: c_int,
    /// Which GPU.
    pub number: c_int,
}

const HOST: c_int = 0;
/// What 0.17 lays destinations out to: the page of the page cache, which is where bytes of local files come from.
const BLOCK: usize = 4096;
const STRATEGIES: [&str; 4] = ["io_uring_direct", "io_uring_buffered", "libaio_direct", "sync_buffered"];

/// Is told of a file of a listing: its path, its size in bytes, and the caller's own pointer.
pub type ListCallback = Option<unsafe extern "C" fn(path: *const c_char, size: usize, context: *mut c_void)>;

fn outcome(call: impl FnOnce() -> Result<(), Code>) -> c_int {
    let code = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Code::Success,
        Ok(Err(code)) => code,
        Err(_) => {
            complain("a call was given up; this is a fault of forebay's, please report it");
            Code::Unknown
        }
    };
    code.number()
}

fn live(handle: Option<&Handle>) -> Result<&Streamer, Code> {
    let handle = handle.ok_or(Code::InvalidParameter)?;
    handle.0.get().ok_or_else(|| {
        complain("this streamer was made by the process that this one was forked from; start one here");
        Code::InvalidParameter
    })
}

fn start(place: Option<&mut *mut Handle>) -> c_int {
    outcome(|| {
        let place = place.ok_or(Code::InvalidParameter)?;
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let rules = Rules::new(&variable("FOREBAY_STREAMER_MAP"), &variable("FOREBAY_STREAMER_UP"));
        let rules = rules.map_err(|wrong| {
            complain(&wrong);
            Code::InvalidParameter
        })?;
        let streamer = Streamer::new(rules).map_err(|error| {
            complain(&error.to_string());
            Code::Unknown
        })?;
        *place = Box::into_raw(Box::new(Handle(OfProcess::new(streamer))));
        Ok(())
    })
}

/// # Safety
/// `handle` is NULL or of [`start`], and is not used any more.
unsafe fn end(handle: *mut Handle) {
    outcome(|| {
        if !handle.is_null() {
            // SAFETY: as demanded.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}

/// # Safety
/// `text` is NULL or ends with a NUL.
unsafe fn text(text: *const c_char) -> Result<String, Code> {
    if text.is_null() {
        return Err(Code::InvalidParameter);
    }
    // SAFETY: as demanded.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// # Safety
/// There are `count` elements at `start`, or it is NULL.
unsafe fn array<'a, T>(start: *const T, count: usize) -> Result<&'a [T], Code> {
    match (count, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Code::InvalidParameter),
        // SAFETY: as demanded.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// Starts a streamer.
#[unsafe(no_mangle)]
pub extern "C" fn runai_file_streamer_start(streamer: Option<&mut *mut Handle>) -> c_int {
    start(streamer)
}

/// Ends a streamer: nothing writes to the memory of its requests any more.
///
/// # Safety
/// It is of `runai_file_streamer_start`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_file_streamer_end(streamer: *mut Handle) {
    // SAFETY: as the caller says.
    unsafe { end(streamer) };
}

/// Says what the object store is, by names and values.
///
/// # Safety
/// There are so many names and values, which end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_file_streamer_set_credentials(
    streamer: Option<&Handle>,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: c_uint,
) -> c_int {
    outcome(|| {
        let streamer = live(streamer)?;
        // SAFETY: as the caller says.
        let (keys, values) = unsafe { (array(keys, count as usize)?, array(values, count as usize)?) };
        let pairs = keys.iter().zip(values).map(|(key, value)| {
            // SAFETY: as the caller says.
            unsafe { Ok((text(*key)?, text(*value)?)) }
        });
        streamer.set_credentials(pairs.collect::<Result<Credentials, Code>>()?)
    })
}

/// Says how files are to be read: known names, with commas between.
///
/// # Safety
/// They end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_file_streamer_set_fs_strategy(
    streamer: Option<&Handle>,
    candidates: *const c_char,
) -> c_int {
    outcome(|| {
        let streamer = live(streamer)?;
        // SAFETY: as the caller says.
        let wanted = unsafe { text(candidates) }?;
        let is_known = wanted.split(',').all(|name| STRATEGIES.contains(&name.trim()));
        if is_known { streamer.set_strategy(&wanted) } else { Err(Code::InvalidParameter) }
    })
}

/// Begins to read ranges of files, which are grouped by file.
///
/// # Safety
/// There are so many files, and as many ranges as their numbers come to; their memory is there until the streamer ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_file_streamer_request(
    streamer: Option<&Handle>,
    submission: Option<&mut u64>,
    num_files: c_uint,
    paths: *const *const c_char,
    num_ranges: *const c_uint,
    range_offsets: *const usize,
    range_sizes: *const usize,
    range_dsts: *const *mut c_void,
    device: Device,
) -> c_int {
    outcome(|| {
        let (streamer, submission) = (live(streamer)?, submission.ok_or(Code::InvalidParameter)?);
        *submission = 0;
        if device.kind != HOST {
            complain("memory of a GPU is not read into; give memory of the host");
            return Err(Code::InvalidParameter);
        }
        // SAFETY: as the caller says.
        let (paths, counts) = unsafe { (array(paths, num_files as usize)?, array(num_ranges, num_files as usize)?) };
        let total: usize = counts.iter().map(|count| *count as usize).sum();
        // SAFETY: as the caller says.
        let (offsets, sizes, places) =
            unsafe { (array(range_offsets, total)?, array(range_sizes, total)?, array(range_dsts, total)?) };
        let mut ranges = offsets.iter().zip(sizes).zip(places);
        let files = paths.iter().zip(counts).map(|(path, count)| {
            let ranges = ranges.by_ref().take(*count as usize).map(|((offset, size), place)| {
                // SAFETY: as the caller says.
                let into = unsafe { Destination::new(place.cast(), *size) }.ok_or(Code::InvalidParameter)?;
                Ok((*offset as u64, into))
            });
            let ranges = ranges.collect::<Result<_, Code>>()?;
            // SAFETY: as the caller says.
            Ok(FileRequest { path: unsafe { text(*path) }?, ranges })
        });
        *submission = streamer.submit(files.collect::<Result<_, Code>>()?);
        Ok(())
    })
}

/// The next range that was read, or could not be: its own code is returned. With a timeout of 0 it waits as long as it takes.
#[unsafe(no_mangle)]
pub extern "C" fn runai_file_streamer_response(
    streamer: Option<&Handle>,
    submission: Option<&mut u64>,
    file_index: Option<&mut c_uint>,
    index: Option<&mut c_uint>,
    submission_done: Option<&mut c_int>,
    timeout_ms: c_uint,
) -> c_int {
    outcome(|| {
        let streamer = live(streamer)?;
        let (Some(submission), Some(file_index), Some(index), Some(done)) =
            (submission, file_index, index, submission_done)
        else {
            return Err(Code::InvalidParameter);
        };
        let answer = streamer.answer((timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into())))?;
        (*submission, *file_index, *index) = (answer.submission, answer.file, answer.range);
        *done = c_int::from(answer.is_last);
        if answer.code == Code::Success { Ok(()) } else { Err(answer.code) }
    })
}

/// The words for a code.
#[unsafe(no_mangle)]
pub extern "C" fn runai_file_streamer_response_str(code: c_int) -> *const c_char {
    words(code).as_ptr()
}

/// What destinations are laid out to, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn runai_file_streamer_probe_direct_block_size(
    _streamer: *mut c_void,
    _paths: *const *const c_char,
    _num_paths: c_uint,
    block: Option<&mut usize>,
) -> c_int {
    outcome(|| {
        *block.ok_or(Code::InvalidParameter)? = BLOCK;
        Ok(())
    })
}

/// Tells the callback of the files below a prefix whose paths match one of the first patterns, if there are any, and none of the others.
///
/// # Safety
/// The strings end with a NUL, there are so many, and the callback may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_file_streamer_list_files(
    streamer: Option<&Handle>,
    prefix: *const c_char,
    is_recursive: c_int,
    allow_patterns: *const *const c_char,
    num_allow_patterns: c_uint,
    ignore_patterns: *const *const c_char,
    num_ignore_patterns: c_uint,
    callback: ListCallback,
    context: *mut c_void,
) -> c_int {
    outcome(|| {
        let (streamer, callback) = (live(streamer)?, callback.ok_or(Code::InvalidParameter)?);
        // SAFETY: as the caller says.
        let prefix = unsafe { text(prefix) }?;
        // SAFETY: as the caller says.
        let (allowed, ignored) = unsafe {
            (array(allow_patterns, num_allow_patterns as usize)?, array(ignore_patterns, num_ignore_patterns as usize)?)
        };
        streamer.list(&prefix, is_recursive != 0, &mut |path: &str, size: u64| {
            let Ok(path) = CString::new(path) else { return };
            // SAFETY: as the caller says.
            let matches = |pattern: &*const c_char| unsafe { libc::fnmatch(*pattern, path.as_ptr(), 0) } == 0;
            if (allowed.is_empty() || allowed.iter().any(matches)) && !ignored.iter().any(matches) {
                // SAFETY: as the caller says. A file is no larger than memory can be.
                unsafe { callback(path.as_ptr(), size as usize, context) };
            }
        })
    })
}

/// Starts a streamer, in 0.15.9 to 0.16.
#[unsafe(no_mangle)]
pub extern "C" fn runai_start(streamer: Option<&mut *mut Handle>) -> c_int {
    start(streamer)
}

/// Ends one.
///
/// # Safety
/// It is of `runai_start`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_end(streamer: *mut Handle) {
    // SAFETY: as the caller says.
    unsafe { end(streamer) };
}

/// Begins to read ranges of files. Those of a file follow one another, in it from an offset on. In memory all of them do, those of the
/// next file too, from the first destination on: there need be no other. There is one request at a time.
///
/// # Safety
/// There are so many of each, and the memory is there until the streamer ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn runai_request(
    streamer: Option<&Handle>,
    num_files: c_uint,
    paths: *const *const c_char,
    file_offsets: *const usize,
    bytesizes: *const usize,
    dsts: *const *mut c_void,
    num_sizes: *const c_uint,
    internal_sizes: *const *const usize,
    key: *const c_char,
    secret: *const c_char,
    token: *const c_char,
    region: *const c_char,
    endpoint: *const c_char,
) -> c_int {
    outcome(|| {
        let (streamer, count) = (live(streamer)?, num_files as usize);
        let names = ["access_key_id", "secret_access_key", "session_token", "region", "endpoint"];
        let given = names.into_iter().zip([key, secret, token, region, endpoint]).filter(|(_, value)| !value.is_null());
        // SAFETY: as the caller says.
        let credentials = given.map(|(name, value)| Ok((name.to_owned(), unsafe { text(value) }?)));
        let credentials = credentials.collect::<Result<Credentials, Code>>()?;
        if !credentials.is_empty() {
            streamer.set_credentials(credentials)?;
        }
        // SAFETY: as the caller says.
        let (paths, offsets, lengths) =
            unsafe { (array(paths, count)?, array(file_offsets, count)?, array(bytesizes, count)?) };
        // SAFETY: as the caller says.
        let (counts, sizes) = unsafe { (array(num_sizes, count)?, array(internal_sizes, count)?) };
        // SAFETY: as the caller says.
        let start =
            unsafe { array(dsts, count.min(1))? }.first().map_or(std::ptr::null_mut(), |start| start.cast::<u8>());
        let (mut files, mut at) = (Vec::with_capacity(count), 0_usize);
        for number in 0..count {
            // SAFETY: as the caller says.
            let (path, sizes) = unsafe { (text(paths[number])?, array(sizes[number], counts[number] as usize)?) };
            let place = if start.is_null() { start } else { start.wrapping_add(at) };
            // SAFETY: as the caller says.
            let ranges = unsafe { consecutive(offsets[number], lengths[number], place, sizes) }?;
            at = at.checked_add(lengths[number]).ok_or(Code::InvalidParameter)?;
            files.push(FileRequest { path, ranges });
        }
        if files.iter().all(|file| file.ranges.is_empty()) {
            return Err(Code::EmptyRequest);
        }
        streamer.submit_in_order(files)
    })
}

/// Ranges of these sizes that follow one another, in a file and in memory of `length` bytes.
///
/// # Safety
/// As for [`Destination::new`].
unsafe fn consecutive(
    offset: usize,
    length: usize,
    start: *mut u8,
    sizes: &[usize],
) -> Result<Vec<(u64, Destination)>, Code> {
    let mut at = 0_usize;
    let ranges = sizes.iter().map(|size| {
        let end = at.checked_add(*size).filter(|end| *end <= length).ok_or(Code::InvalidParameter)?;
        // SAFETY: as demanded; it is within the memory.
        let into = unsafe { Destination::new(start.wrapping_add(at), *size) }.ok_or(Code::InvalidParameter)?;
        let from = (offset as u64).checked_add(at as u64).ok_or(Code::InvalidParameter)?;
        at = end;
        Ok((from, into))
    });
    ranges.collect()
}

/// The next range, in order: whether it was read, its code says.
#[unsafe(no_mangle)]
pub extern "C" fn runai_response(
    streamer: Option<&Handle>,
    file_index: Option<&mut c_uint>,
    index: Option<&mut c_uint>,
) -> c_int {
    outcome(|| {
        let streamer = live(streamer)?;
        let (file_index, index) = file_index.zip(index).ok_or(Code::InvalidParameter)?;
        let (file, range, code) = streamer.answer_in_order()?;
        (*file_index, *index) = (file, range);
        if code == Code::Success { Ok(()) } else { Err(code) }
    })
}

/// The words for a code.
#[unsafe(no_mangle)]
pub extern "C" fn runai_response_str(code: c_int) -> *const c_char {
    words(code).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_one_another_within_the_memory_that_there_is() {
        let mut memory = [0_u8; 10];
        let start = memory.as_mut_ptr();
        let offsets = |sizes: &[usize]| {
            // SAFETY: nothing is written.
            let ranges = unsafe { consecutive(100, 10, start, sizes) };
            ranges.map(|ranges| ranges.into_iter().map(|(offset, _)| offset).collect::<Vec<_>>())
        };
        assert_eq!(offsets(&[4, 0, 6]), Ok(vec![100, 104, 104]));
        assert_eq!(offsets(&[4, 7]), Err(Code::InvalidParameter));
        assert_eq!(offsets(&[1, usize::MAX]), Err(Code::InvalidParameter));
    }

    #[test]
    fn what_is_null_is_an_error_and_no_crash() {
        assert_eq!(runai_start(None), Code::InvalidParameter.number());
        let answer = runai_file_streamer_response(None, None, None, None, None, 1);
        assert_eq!(answer, Code::InvalidParameter.number());
        let mut handle = std::ptr::null_mut();
        assert_eq!(runai_start(Some(&mut handle)), 0);
        // SAFETY: `handle` was just made; the null pointers are looked at.
        unsafe {
            let none = std::ptr::null();
            let asked = runai_file_streamer_list_files(
                handle.as_ref(),
                none,
                1,
                none.cast(),
                0,
                none.cast(),
                0,
                None,
                std::ptr::null_mut(),
            );
            assert_eq!(asked, Code::InvalidParameter.number());
            runai_end(handle);
            runai_end(std::ptr::null_mut());
        }
    }
}
