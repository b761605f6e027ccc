//! Reads into memory of a GPU, with a library of fake functions in the place of CUDA's driver. A worker of a directory in this process: all
//! bytes go through pinned buffers. Those of a worker beside it are copied where they lie in `python/tests/test_cuda.py`.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use forebay_session::runtime::runtime;
use forebay_session::{DeviceRead, DeviceStream, Error, Place, Session, Settings, count_devices};
use libloading::Library;

const SOON: Duration = Duration::from_secs(60);
const LARGE: usize = (9 << 20) + 123;
const MISSING: &str = "/nowhere/libcuda.so.1";

/// The fake library, which the driver of this process is.
struct Fake {
    library: Library,
    _directory: tempfile::TempDir,
}

impl Fake {
    /// Compiles it, and says where it is; none where there is no compiler.
    fn compiled() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-cuda/tests/fake/cuda.c");
        let path: PathBuf = directory.path().join("libcuda.so.1");
        let arguments = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-o"];
        let said = match Command::new("cc").args(arguments).arg(&path).arg(&source).output() {
            Ok(said) => said,
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                return None;
            }
        };
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        // SAFETY: every test of this program waits for this before it does anything else, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var("TESTS_OF_FOREBAY_CUDA_LIBRARY", &path) };
        // SAFETY: the fake does nothing when it is loaded.
        let library = unsafe { Library::new(&path) }.unwrap();
        Some(Self { library, _directory: directory })
    }

    /// What the fake counts.
    fn count(&self, name: &str) -> usize {
        // SAFETY: a function of the fake of this type.
        unsafe { self.library.get::<unsafe extern "C" fn() -> usize>(name).unwrap()() }
    }

    fn in_use(&self) -> c_int {
        // SAFETY: a function of the fake of this type.
        unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>("fake_in_use").unwrap()() }
    }

    fn allocate(&self, length: usize) -> u64 {
        // SAFETY: a function of the fake of this type.
        unsafe { self.library.get::<unsafe extern "C" fn(c_int, usize) -> u64>("fake_allocate").unwrap()(1, length) }
    }

    fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; length];
        // SAFETY: a function of the fake of this type, which writes `length` bytes.
        let known = unsafe {
            self.library.get::<unsafe extern "C" fn(u64, *mut c_void, usize) -> c_int>("fake_read").unwrap()(
                address,
                bytes.as_mut_ptr().cast(),
                length,
            )
        };
        assert_eq!(known, 1);
        bytes
    }

    fn fail(&self, call: &str, after: c_int, code: c_int) {
        let call = CString::new(call).unwrap();
        // SAFETY: a function of the fake of this type.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char, c_int, c_int)>("fake_fail").unwrap()(
                call.as_ptr(),
                after,
                code,
            );
        }
    }

    fn delay(&self, times: usize) {
        // SAFETY: a function of the fake of this type.
        unsafe { self.library.get::<unsafe extern "C" fn(usize)>("fake_delay").unwrap()(times) };
    }
}

/// The fake, for one test at a time: it counts for the whole process.
fn fake() -> Option<(&'static Fake, MutexGuard<'static, ()>)> {
    static FAKE: OnceLock<Option<Fake>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let fake = FAKE.get_or_init(Fake::compiled).as_ref()?;
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fake.fail("", 0, 0);
    fake.delay(0);
    // What the test before has let go of.
    until(|| fake.in_use() == 0);
    Some((fake, turn))
}

fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn origin() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("large"), content(LARGE)).unwrap();
    directory
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    runtime().unwrap().block_on(async { tokio::time::timeout(SOON, work).await.expect("it does not hang") })
}

fn started(directory: &Path) -> Arc<Session> {
    let more = [("worker_memory_size", "64MiB"), ("worker.memory.prewarm", "false")];
    let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let settings = Settings { up: Some(directory.display().to_string()), more, ..Settings::default() };
    wait(Session::start(settings)).unwrap()
}

/// A read of `/large`, or of what is at another path.
fn at(path: &str, offset: u64, length: usize, to: u64) -> DeviceRead {
    // SAFETY: memory of a test, which looks at it when the read has ended.
    unsafe { DeviceRead::new(Place::Path(path.into()), offset, length, to) }
}

fn default_stream() -> DeviceStream {
    // SAFETY: the default stream.
    unsafe { DeviceStream::new(0) }
}

fn read(session: &Arc<Session>, reads: Vec<DeviceRead>, device: Option<u32>) -> Result<Vec<usize>, Error> {
    wait(Arc::clone(session).read_into_device(reads, device, default_stream()))
}

#[test]
fn bytes_of_files_arrive_in_the_memory_of_a_gpu_and_all_is_given_back() {
    let Some((fake, _turn)) = fake() else { return };
    fake.delay(5);
    let (origin, wanted) = (origin(), content(LARGE));
    let (session, to) = (started(origin.path()), fake.allocate(LARGE + 1000));
    assert_eq!(count_devices(), Ok(2));
    let followed = fake.count("fake_followed");
    for device in [Some(1), None] {
        let reads = vec![at("/large", 0, LARGE + 500, to), at("/large", 7, 0, 0)];
        assert_eq!(read(&session, reads, device), Ok(vec![LARGE, 0]));
        assert!(fake.bytes(to, LARGE) == wanted);
    }
    // After what the default stream had.
    assert_eq!(fake.count("fake_followed"), followed + 2);
    let parts =
        vec![at("/large", (4 << 20) - 10, 20, to), at("/large", 100, 50, to + 20), at("/large", 1 << 40, 9, to)];
    assert_eq!(read(&session, parts, None), Ok(vec![20, 50, 0]));
    assert_eq!(fake.bytes(to, 20), wanted[(4 << 20) - 10..(4 << 20) + 10]);
    assert_eq!(fake.bytes(to + 20, 50), wanted[100..150]);
    // No more than the slots have.
    assert!((1..=16 * (4 << 20)).contains(&fake.count("fake_registered")));
    wait(Arc::clone(&session).close()).unwrap();
    until(|| fake.in_use() == 0);
}

#[test]
fn what_cuda_refuses_is_an_error_by_its_name_and_the_next_read_goes_on() {
    let Some((fake, _turn)) = fake() else { return };
    let (origin, to) = (origin(), fake.allocate(LARGE));
    let session = started(origin.path());
    let all = || vec![at("/large", 0, LARGE, to)];
    for (call, name, errno) in [
        ("cuMemHostRegister", "CUDA_ERROR_OUT_OF_MEMORY (2)", libc::ENOMEM),
        ("cuMemcpyHtoDAsync", "CUDA_ERROR_INVALID_VALUE (1)", libc::EINVAL),
        ("cuEventQuery", "CUDA_ERROR_ILLEGAL_ADDRESS (700)", libc::EIO),
    ] {
        let code = name.rsplit_once('(').unwrap().1.trim_end_matches(')').parse().unwrap();
        // Before there are buffers, which are registered once.
        if call == "cuMemHostRegister" {
            assert_eq!(fake.count("fake_registered"), 0);
        }
        fake.fail(call, 0, code);
        let error = read(&session, all(), Some(1)).unwrap_err();
        assert!(error.errno == errno && error.to_string().contains(name), "{call}: {error:?}");
        fake.fail("", 0, 0);
        assert_eq!(read(&session, all(), Some(1)), Ok(vec![LARGE]));
        assert!(fake.bytes(to, LARGE) == content(LARGE));
    }
    for (device, address, errno) in
        [(Some(7), to, libc::ENODEV), (Some(0), to, libc::EFAULT), (None, 4096, libc::EFAULT)]
    {
        let error = read(&session, vec![at("/large", 0, 100, address)], device).unwrap_err();
        assert_eq!(error.errno, errno, "{error}");
    }
    let error = read(&session, vec![at("/missing", 0, 100, to)], None).unwrap_err();
    assert_eq!((error.errno, error.path.as_deref()), (libc::ENOENT, Some(&b"/missing"[..])));
}

#[test]
fn nothing_is_copied_any_more_once_a_read_was_dropped() {
    let Some((fake, _turn)) = fake() else { return };
    let (origin, to) = (origin(), fake.allocate(LARGE));
    let session = started(origin.path());
    assert_eq!(read(&session, vec![at("/large", 0, LARGE, to)], None), Ok(vec![LARGE]));
    // Its copies do not end by themselves for a while.
    fake.delay(200);
    let before = fake.count("fake_copied");
    let reading = Arc::clone(&session).read_into_device(vec![at("/large", 0, LARGE, to)], None, default_stream());
    let given_up = wait(async { tokio::time::timeout(Duration::from_millis(1), reading).await });
    let after = fake.count("fake_copied");
    fake.delay(0);
    // Whatever it had begun was waited for, and the same memory is another's now.
    assert_eq!(read(&session, vec![at("/large", 0, 1000, to)], None), Ok(vec![1000]));
    let gone_on = fake.count("fake_copied") - after;
    assert!(gone_on == 1000, "{gone_on} bytes; {given_up:?}, {before}");
}

#[test]
fn a_file_that_was_replaced_is_read_as_it_is_now() {
    let Some((fake, _turn)) = fake() else { return };
    let (origin, to) = (origin(), fake.allocate(100));
    let session = started(origin.path());
    assert_eq!(read(&session, vec![at("/large", 0, 100, to)], None), Ok(vec![100]));
    // Elsewhere in the file, so that it is not cached.
    std::fs::write(origin.path().join("large"), vec![7; LARGE + 1]).unwrap();
    assert_eq!(read(&session, vec![at("/large", 8 << 20, 100, to)], None), Ok(vec![100]));
    assert_eq!(fake.bytes(to, 100), [7; 100]);
}

#[test]
fn without_a_driver_it_is_an_error_with_a_remedy() {
    // The environment is not read while it is changed.
    drop(fake());
    // In a process of its own: this one has a driver already.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["a_process_without_a_driver", "--exact", "--ignored", "--nocapture"])
        .env("TESTS_OF_FOREBAY_CUDA_LIBRARY", MISSING)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(MISSING) && said.contains("read into memory of the host"), "{said}");
}

#[test]
#[ignore = "a process of other tests"]
fn a_process_without_a_driver() {
    if std::env::var_os("TESTS_OF_FOREBAY_CUDA_LIBRARY").is_some_and(|path| path == MISSING) {
        let error = count_devices().unwrap_err();
        assert_eq!(error.errno, libc::ENODEV);
        println!("{error}");
    }
}
