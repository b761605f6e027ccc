//! Reads into memory of the caller's, waited for or under way, and ranges that are fetched ahead.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use forebay_session::fork::OfProcess;
use forebay_session::runtime::{runtime, wait};
use forebay_session::{Error, FetchTo, Place, Range};
use tokio::task::JoinHandle;

use crate::arguments::{array, given, hand_out, live, memory, take_back, text};
use crate::client::Client;
use crate::ending::{AtEnd, Ending, own};
use crate::error::{answer, outcome};
use crate::file::File;

/// What forebay_wait says of an operation that has not ended.
const UNDER_WAY: c_int = 1;
/// So many milliseconds are as many as it takes.
const UNLIMITED: i64 = -1;

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
    /// Of the task.
    ending: Arc<Ending>,
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

/// Has an eventfd(2) of the caller's told when an operation has ended: 1 is added to it then, or at once if it has. From then on
/// forebay_wait does not return 1. So a program waits for reads and for whatever else it polls. Many operations may have the same eventfd,
/// and it may be closed at any time: the library has a descriptor of its own. An operation that is freed tells, too.
///
/// Returns 0, or a negative errno: -EBADF, or -EINVAL for a descriptor of something else.
///
/// # Safety
/// None but that the pointers are what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_notify(operation: Option<&Operation>, eventfd: c_int) -> c_int {
    outcome(|| {
        let running = live(&given(operation, "operation")?.0, "operation")?;
        running.ending.tell(own(eventfd)?);
        Ok(())
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
    let ending = Arc::new(Ending::default());
    let at_end = AtEnd::of(&ending);
    let task = runtime()?.spawn(async move {
        // Dropped after the work, which writes to no memory then.
        let _at_end = at_end;
        work.await
    });
    let running = Running { task: Some(task), outcome: Ok(Vec::new()), ending };
    hand_out(Operation(OfProcess::new(running)), place);
    Ok(())
}

impl Running {
    /// What it gave, waited for; none while it is under way.
    ///
    /// # Errors
    /// Its own.
    fn ended(&mut self, milliseconds: i64) -> Result<Option<&[usize]>, Error> {
        // Who was told of the end may be here before the task is gone.
        let milliseconds = if self.ending.is_over() { UNLIMITED } else { milliseconds };
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn begun(work: impl Future<Output = Result<Vec<usize>, Error>> + Send + 'static) -> *mut Operation {
        let mut operation = std::ptr::null_mut();
        begin(work, &mut operation).unwrap();
        operation
    }

    #[test]
    fn an_operation_that_told_of_its_end_is_not_under_way_any_more() {
        let told = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for round in 0..200 {
            let (ends, end) = tokio::sync::oneshot::channel::<usize>();
            let operation = begun(async move {
                match end.await {
                    Ok(got) => Ok(vec![got]),
                    Err(_) => panic!("for the test"),
                }
            });
            // SAFETY: it is freed below.
            assert_eq!(unsafe { forebay_notify(operation.as_ref(), told.as_raw_fd()) }, 0);
            if round % 10 == 9 {
                drop(ends);
            } else {
                ends.send(round).unwrap();
            }
            let mut count = [0_u8; 8];
            rustix::io::read(&told, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1);
            let mut got = 0;
            // SAFETY: as above, and there is one read.
            let outcome = unsafe { forebay_wait(operation.as_mut(), 0, &mut got) };
            let wanted = if round % 10 == 9 { (-libc::EIO, 0) } else { (0, round) };
            assert_eq!((outcome, got), wanted);
            // SAFETY: it is not used any more.
            unsafe { forebay_operation_free(operation) };
        }
    }

    #[test]
    fn an_operation_that_is_given_up_tells_too() {
        let told = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let operation = begun(std::future::pending());
        // SAFETY: it is freed below.
        assert_eq!(unsafe { forebay_notify(operation.as_ref(), told.as_raw_fd()) }, 0);
        // SAFETY: as above; `got` may be NULL.
        assert_eq!(unsafe { forebay_wait(operation.as_mut(), 0, std::ptr::null_mut()) }, UNDER_WAY);
        // SAFETY: it is not used any more.
        unsafe { forebay_operation_free(operation) };
        let mut count = [0_u8; 8];
        rustix::io::read(&told, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        // SAFETY: NULL is looked at.
        assert_eq!(unsafe { forebay_notify(None, told.as_raw_fd()) }, -libc::EINVAL);
    }
}
