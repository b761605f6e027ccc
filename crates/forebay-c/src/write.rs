//! Files that are written: in one call, or piece by piece.

use std::ffi::{c_char, c_int, c_void};

use bytes::Bytes;
use forebay_session::fork::OfProcess;
use forebay_session::runtime::wait;
use forebay_session::{Error, Existing, Writer};

use crate::arguments::{array, given, hand_out, live, take_back, text};
use crate::client::{Client, Entry};
use crate::error::outcome;

/// What is copied from the caller's memory at once: a part of an upload, unless `write.part_size` is another. A copy of all of a file would
/// take as much memory as the file.
const PIECE: usize = 8 << 20;

/// A file that is being written. One thread at a time uses it.
pub struct Upload(OfProcess<Writer>);

/// Makes `path` a file of these bytes: it appears, or is replaced, whole or not at all. With `only_new` it is refused if there is such a
/// name. `entry`, which may be NULL, is told what the file is then. When it returns, nothing reads the memory any more.
///
/// Returns 0, or a negative errno: -EEXIST, -EISDIR, and -EROFS where nothing may be written.
///
/// # Safety
/// `path` ends with a NUL, and there are so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_put(
    client: Option<&Client>,
    path: *const c_char,
    bytes: *const c_void,
    length: usize,
    only_new: bool,
    entry: Option<&mut Entry>,
) -> c_int {
    outcome(|| {
        let session = given(client, "client")?.session()?;
        // SAFETY: as the caller says, for as long as this call takes.
        let (path, bytes) = unsafe { (text(path, "path")?.to_vec(), array(bytes.cast::<u8>(), length, "bytes")?) };
        let written = wait(async {
            let writer = session.create(path, existing(only_new)).await?;
            add(&writer, bytes).await?;
            writer.finish().await
        })??;
        tell(entry, &written);
        Ok(())
    })
}

/// Begins to write the file `path`, from its beginning to its end. Nobody sees anything of it before forebay_finish. With `only_new` it is
/// refused if there is such a name. It is freed by forebay_upload_free.
///
/// Returns 0, or a negative errno, as forebay_put.
///
/// # Safety
/// `path` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_create(
    client: Option<&Client>,
    path: *const c_char,
    only_new: bool,
    upload: Option<&mut *mut Upload>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(upload, "upload")?);
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?.to_vec();
        let writer = wait(session.create(path, existing(only_new)))??;
        hand_out(Upload(OfProcess::new(writer)), place);
        Ok(())
    })
}

/// Adds bytes at the end. It returns when they are copied, and waits while `write.memory` is full: they may be on their way then, and what
/// keeps them from arriving fails a later call. After a failure the file is given up.
///
/// Returns 0, or a negative errno: -EFBIG.
///
/// # Safety
/// There are so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_write(upload: Option<&Upload>, bytes: *const c_void, length: usize) -> c_int {
    outcome(|| {
        let writer = live(&given(upload, "upload")?.0, "upload")?;
        // SAFETY: as the caller says, for as long as this call takes.
        let bytes = unsafe { array(bytes.cast::<u8>(), length, "bytes") }?;
        wait(add(writer, bytes))?
    })
}

/// Completes a file: it is there, whole, when this returns 0. `entry`, which may be NULL, is told what it is.
///
/// Returns 0, or a negative errno: the file is what it was before, unless the answer was lost.
///
/// # Safety
/// None but that the pointers are what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_finish(upload: Option<&Upload>, entry: Option<&mut Entry>) -> c_int {
    outcome(|| {
        let writer = live(&given(upload, "upload")?.0, "upload")?;
        let written = wait(writer.finish())??;
        tell(entry, &written);
        Ok(())
    })
}

/// Frees an upload; NULL is none. A file that is not finished is given up: it never was.
///
/// # Safety
/// `upload` is of forebay_create, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_upload_free(upload: *mut Upload) {
    outcome(|| {
        // SAFETY: as the caller says.
        let upload = unsafe { take_back(upload) };
        match upload.as_ref().and_then(|upload| upload.0.get()) {
            Some(writer) => wait(writer.abort())?,
            None => Ok(()),
        }
    });
}

fn existing(only_new: bool) -> Existing {
    if only_new { Existing::Kept } else { Existing::Replaced }
}

/// Adds bytes of the caller's, which the upload may hold for longer than this: so it has copies.
async fn add(writer: &Writer, bytes: &[u8]) -> Result<(), Error> {
    for piece in bytes.chunks(PIECE) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(())
}

fn tell(place: Option<&mut Entry>, written: &forebay_session::Entry) {
    if let Some(place) = place {
        *place = Entry::from(written);
    }
}
