//! Writing by the functions of C: files of several parts, calls that make no sense, and an upload in a forked child.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use forebay_c::{
    Client, Entry, Setting, Upload, forebay_client_free, forebay_client_start, forebay_create, forebay_error_message,
    forebay_finish, forebay_put, forebay_upload_free, forebay_write,
};

/// Three parts, the last of which is not whole.
const LARGE: usize = (20 << 20) + 5;

/// A client of a directory, which is freed at the end.
struct Started(*mut Client);

impl Started {
    fn new(directory: &Path) -> Self {
        let up = CString::new(directory.as_os_str().as_encoded_bytes()).unwrap();
        let given = [(c"up", &*up), (c"worker.memory.size", c"64MiB"), (c"worker.memory.prewarm", c"false")];
        let given = given.map(|(name, value)| Setting { name: name.as_ptr(), value: value.as_ptr() });
        let mut client = null_mut();
        // SAFETY: they are strings that are there until it returns.
        let started = unsafe { forebay_client_start(given.as_ptr(), given.len(), Some(&mut client)) };
        assert_eq!(started, 0, "{}", message());
        Self(client)
    }

    fn get(&self) -> Option<&Client> {
        // SAFETY: it is there until this is dropped.
        unsafe { self.0.as_ref() }
    }

    fn put(&self, path: &CStr, bytes: &[u8], only_new: bool) -> (i32, u64) {
        let mut entry = Entry::default();
        let start = bytes.as_ptr().cast();
        // SAFETY: it is a string, and there are so many bytes.
        let code = unsafe { forebay_put(self.get(), path.as_ptr(), start, bytes.len(), only_new, Some(&mut entry)) };
        (code, entry.size)
    }

    fn create(&self, path: &CStr) -> *mut Upload {
        let mut upload = null_mut();
        // SAFETY: it is a string.
        let created = unsafe { forebay_create(self.get(), path.as_ptr(), false, Some(&mut upload)) };
        assert_eq!(created, 0, "{}", message());
        upload
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { forebay_client_free(self.0) };
    }
}

fn message() -> String {
    // SAFETY: it is there until another call of this thread fails.
    unsafe { CStr::from_ptr(forebay_error_message()) }.to_string_lossy().into_owned()
}

fn content() -> Vec<u8> {
    (0..LARGE).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn a_file_of_several_parts_is_written_at_once_and_in_pieces_of_any_size() {
    let origin = tempfile::tempdir().unwrap();
    let (client, wanted) = (Started::new(origin.path()), content());
    assert_eq!(client.put(c"/at once", &wanted, true), (0, LARGE as u64), "{}", message());
    assert!(std::fs::read(origin.path().join("at once")).unwrap() == wanted);
    assert_eq!(client.put(c"/at once", b"", true).0, -libc::EEXIST);
    assert_eq!(client.put(c"/at once", b"", false), (0, 0));
    assert_eq!(std::fs::read(origin.path().join("at once")).unwrap(), b"");

    let upload = client.create(c"/in pieces");
    // SAFETY: it is freed below.
    let writing = unsafe { upload.as_ref() };
    for piece in wanted.chunks(3_000_001) {
        let mut piece = piece.to_vec();
        // SAFETY: there are so many bytes.
        assert_eq!(unsafe { forebay_write(writing, piece.as_ptr().cast(), piece.len()) }, 0, "{}", message());
        // They were taken as they were.
        piece.fill(0);
    }
    assert!(!origin.path().join("in pieces").exists());
    let mut entry = Entry::default();
    // SAFETY: it is freed below.
    assert_eq!(unsafe { forebay_finish(writing, Some(&mut entry)) }, 0, "{}", message());
    assert_eq!((entry.size, entry.is_file), (LARGE as u64, true));
    assert!(std::fs::read(origin.path().join("in pieces")).unwrap() == wanted);
    // SAFETY: there is one byte.
    assert_eq!(unsafe { forebay_write(writing, b"x".as_ptr().cast(), 1) }, -libc::EINVAL);
    assert!(message().contains("create it again"), "{}", message());
    // SAFETY: it is not used any more.
    unsafe { forebay_upload_free(upload) };
}

#[test]
fn an_upload_that_is_freed_never_was_and_is_none_in_a_forked_child() {
    let origin = tempfile::tempdir().unwrap();
    let (client, wanted) = (Started::new(origin.path()), content());
    let upload = client.create(c"/file");
    // SAFETY: it is freed below.
    let writing = unsafe { upload.as_ref() };
    // SAFETY: there are so many bytes.
    assert_eq!(unsafe { forebay_write(writing, wanted.as_ptr().cast(), wanted.len()) }, 0, "{}", message());
    // SAFETY: the child calls what refuses it at once, and ends.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: there is one byte; what is freed is forgotten; `_exit` ends the child and runs nothing of this program.
            unsafe {
                let refused = forebay_write(writing, b"x".as_ptr().cast(), 1) == -libc::ESTALE;
                forebay_upload_free(upload);
                libc::_exit(i32::from(!refused));
            }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child is ours, and `status` is ours to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        }
    }
    // SAFETY: it is not used any more.
    unsafe { forebay_upload_free(upload) };
    assert!(!origin.path().join("file").exists());
    assert_eq!(std::fs::read_dir(origin.path()).unwrap().count(), 0);
}

#[test]
fn what_is_missing_is_named() {
    let nothing = null::<c_void>();
    // SAFETY: NULL is looked at.
    unsafe {
        assert_eq!(forebay_put(None, c"/x".as_ptr(), nothing, 0, false, None), -libc::EINVAL);
        assert!(message().contains("client is NULL"), "{}", message());
        assert_eq!(forebay_write(None, nothing, 0), -libc::EINVAL);
        assert!(message().contains("upload is NULL"), "{}", message());
        assert_eq!(forebay_finish(None, None), -libc::EINVAL);
        forebay_upload_free(null_mut());
    }
    let origin = tempfile::tempdir().unwrap();
    std::fs::create_dir(origin.path().join("tree")).unwrap();
    let client = Started::new(origin.path());
    // SAFETY: NULL is looked at.
    assert_eq!(unsafe { forebay_put(client.get(), c"/x".as_ptr(), nothing, 1, false, None) }, -libc::EINVAL);
    assert!(message().contains("bytes is NULL"), "{}", message());
    assert_eq!(client.put(c"relative", b"x", false).0, -libc::EINVAL);
    assert_eq!(client.put(c"/tree", b"x", false).0, -libc::EISDIR);
}
