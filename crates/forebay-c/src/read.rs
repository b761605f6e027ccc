//! Reads into memory of the caller's, waited for or under way, and ranges that are fetched ahead.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use forebay_session::fork::OfProcess;
use forebay_session::runtime::{runtime, wait};
use forebay_session::{Error, FetchTo, Place, Range};
use tokio::task::JoinHandle;

use crate::arguments::{array, given, hand_out, memory, take_back, text};
use crate::client::Client;
use crate::error::{answer, outcome};
use crate::file::File;

/// What forebay_wait says of an operation that has not ended.
const UNDER_WAY: c_int = 1;

/// A range of a file, and memory for it. Of `file` and `path` one is given, and the other is NULL.
#[repr(C)]
pub struct Read {
    /// The file.
    pub file: *const File,
    /// Its path: the file that is there now.
    pub path: *const c_char,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: usize,
    /// Where to, of any alignment: host memory, pinned or not. forebay_prefetch needs none.
    pub into: *mut c_void,
}

/// Reads or fetches that are under way. One thread at a time uses it.
pub struct Operation(OfProcess<Running>);

struct Running {
    /// None once it has ended.
    task: Option<JoinHandle<Result<Vec<usize>, Error>>>,
    /// What came of it then: how many bytes each read got.
    outcome: Result<Vec<usize>, Error>,
}

/// Carries out `count` reads, which must not overlap in memory. Each fills its memory, and gets fewer bytes only at the end of its file;
/// `got`, which may be NULL, has room for so many numbers of bytes. When it returns, nothing writes to the memory any more.
///
/// Returns 0, or the negative errno of the first read that failed.
///
/// # Safety
/// There are so many reads, each with so much memory, and so much room in `got`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_read(
    client: Option<&Client>,
    reads: *const Read,
    count: usize,
    got: *mut usize,
) -> c_int {
    outcome(|| {
        let session = given(client, "client")?.session()?;
        // SAFETY: as the caller says, for as long as this call takes.
        let reads = unsafe { reads_of(reads, count) }?;
        let counts = wait(session.read(reads))??;
        // SAFETY: as the caller says.
        unsafe { put(&counts, got) };
        Ok(())
    })
}

/// Begins `count` reads, and returns at once. Their memory is the library's until forebay_wait says that they have ended, or the
/// operation is freed. `reads` itself may go at once.
///
/// # Safety
/// There are so many reads, each with so much memory for so long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_begin(
    client: Option<&Client>,
    reads: *const Read,
    count: usize,
    operation: Option<&mut *mut Operation>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(operation, "operation")?);
        // SAFETY: as the caller says: an operation that is freed lets go of the memory first.
        let reads = unsafe { reads_of(reads, count) }?;
        begin(session.read(reads), place)
    })
}

/// Begins to fetch `count` ranges before they are read: to this process, or, with `to_workers`, to the workers that own them, for who
/// reads them elsewhere. Errors are met by who reads them, too. Fetches take memory from what is cached: announce no more than there
/// is room for.
///
/// # Safety
/// There are so many ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_prefetch(
    client: Option<&Client>,
    ranges: *const Read,
    count: usize,
    to_workers: bool,
    operation: Option<&mut *mut Operation>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(operation, "operation")?);
        // SAFETY: as the caller says.
        let ranges = unsafe { array(ranges, count, "ranges") }?.iter().map(|range| {
            // SAFETY: as the caller says.
            let place = unsafe { place_of(range) }?;
            Ok(Range { place, offset: range.offset, length: range.length as u64 })
        });
        let ranges = ranges.collect::<Result<_, Error>>()?;
        let to = if to_workers { FetchTo::Workers } else { FetchTo::Here };
        begin(async move { session.fetch(ranges, to).await.map(|()| Vec::new()) }, place)
    })
}

/// Waits until an operation has ended, for so many milliseconds at most: 0 only looks, and with a negative number it waits as long as it
/// takes. `got`, which may be NULL, is told how many bytes each read got.
///
/// Returns 0 once it has ended, 1 while it is under way, or the negative errno of the first read that failed.
///
/// # Safety
/// `got` has room for a number for each read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_wait(operation: Option<&mut Operation>, milliseconds: i64, got: *mut usize) -> c_int {
    answer(|| {
        let operation = given(operation, "operation")?;
        let Some(running) = operation.0.get_mut() else { return Err(Error::inherited("operation")) };
        let Some(counts) = running.ended(milliseconds)? else { return Ok(UNDER_WAY) };
        // SAFETY: as the caller says.
        unsafe { put(counts, got) };
        Ok(0)
    })
}

/// Gives an operation up if it is under way, and frees it; NULL is none. When it returns, nothing writes to its memory any more.
///
/// # Safety
/// `operation` is of forebay_begin or forebay_prefetch, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_operation_free(operation: *mut Operation) {
    outcome(|| {
        // SAFETY: as the caller says.
        drop(unsafe { take_back(operation) });
        Ok(())
    });
}

fn begin(
    work: impl Future<Output = Result<Vec<usize>, Error>> + Send + 'static,
    place: &mut *mut Operation,
) -> Result<(), Error> {
    let task = runtime()?.spawn(work);
    let running = Running { task: Some(task), outcome: Ok(Vec::new()) };
    hand_out(Operation(OfProcess::new(running)), place);
    Ok(())
}

impl Running {
    /// What it gave, waited for; none while it is under way.
    ///
    /// # Errors
    /// Its own.
    fn ended(&mut self, milliseconds: i64) -> Result<Option<&[usize]>, Error> {
        if let Some(task) = &mut self.task {
            let ended = match u64::try_from(milliseconds) {
                Ok(milliseconds) => {
                    let soon = async { tokio::time::timeout(Duration::from_millis(milliseconds), task).await };
                    let Ok(ended) = wait(soon)? else { return Ok(None) };
                    ended
                }
                Err(_) => wait(task)?,
            };
            self.task = None;
            self.outcome = ended.unwrap_or_else(|_| Err(Error::lost("the operation")));
        }
        self.outcome.as_deref().map(Some).map_err(Clone::clone)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // No longer than the copying of a few pieces. Without a runtime there is no task either.
            let _ = wait(task);
        }
    }
}

/// What is to be read.
///
/// # Safety
/// There are so many reads, each with so much memory until the reads end or are dropped.
unsafe fn reads_of(reads: *const Read, count: usize) -> Result<Vec<forebay_session::Read>, Error> {
    // SAFETY: as demanded.
    let reads = unsafe { array(reads, count, "reads") }?.iter().map(|read| {
        // SAFETY: as demanded.
        let (place, into) = unsafe { (place_of(read)?, memory(read.into.cast(), read.length)?) };
        Ok(forebay_session::Read { place, offset: read.offset, into })
    });
    reads.collect()
}

/// Of which file.
///
/// # Safety
/// `file` and `path` are NULL or what they say.
unsafe fn place_of(read: &Read) -> Result<Place, Error> {
    // SAFETY: as demanded.
    let file = unsafe { read.file.as_ref() };
    match (file, read.path.is_null()) {
        (Some(file), true) => Ok(Place::File(file.open()?.clone())),
        // SAFETY: as demanded.
        (None, false) => Ok(Place::Path(unsafe { text(read.path, "path") }?.to_vec())),
        _ => Err(Error::argument("a read names both or none of file and path", "give one, and NULL for the other")),
    }
}

/// Tells how many bytes each read got.
///
/// # Safety
/// `got` is NULL or has room for them.
unsafe fn put(counts: &[usize], got: *mut usize) {
    if !got.is_null() {
        // SAFETY: as demanded; it is not memory of the library's.
        unsafe { std::ptr::copy_nonoverlapping(counts.as_ptr(), got, counts.len()) };
    }
}
