//! The session, as Python calls it.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_client::OpenFile;
use forebay_session::fork::OfProcess;
use forebay_session::{DeviceRead, DeviceStream, Error, Existing, FetchTo, Place, Range, Read, Settings, Within};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::buffers::{Held, NewBytes, bytes_of};
use crate::calling::call;
use crate::errors::{exception, raised};
use crate::file::File;
use crate::values::{entries, entry, path_of};
use crate::view::View;
use crate::writer::Writer;

/// A client of workers, or of a worker in this process. Every function with a `done` is also one of asyncio's: see `forebay.aio`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Session(OfProcess<Arc<forebay_session::Session>>);

/// Everything below a path, in pages.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Walk(OfProcess<Arc<forebay_session::Walk>>);

impl Session {
    /// It, if this process started it.
    fn get(&self) -> PyResult<Arc<forebay_session::Session>> {
        self.0.get().cloned().ok_or_else(|| raised(Error::inherited("client")))
    }
}

/// A file that is open, what has one (`forebay.File`), or a path.
fn place_of(object: &Bound<'_, PyAny>) -> PyResult<Place> {
    if object.cast::<PyString>().is_ok() || object.cast::<PyBytes>().is_ok() {
        return path_of(object).map(Place::Path);
    }
    if let Ok(file) = object.cast::<File>() {
        return of_file(file);
    }
    match object.getattr_opt(intern!(object.py(), "_native_file"))? {
        Some(has_one) => of_file(has_one.call0()?.cast::<File>()?),
        None => path_of(object).map(Place::Path),
    }
}

fn of_file(file: &Bound<'_, File>) -> PyResult<Place> {
    let file = file.get().get().ok_or_else(|| raised(Error::inherited("file")))?;
    Ok(Place::File(Arc::clone(file)))
}

/// Reads of `(file or path, offset, length)` into new `bytes`. Those stay with the work, and so for as long as it writes to them.
fn ranges_of(py: Python<'_>, ranges: &Bound<'_, PyAny>) -> PyResult<(Vec<NewBytes>, Vec<Read>)> {
    let (mut filled, mut all) = (Vec::new(), Vec::new());
    for range in ranges.try_iter()? {
        let (place, offset, length): (Bound<'_, PyAny>, u64, usize) = range?.extract()?;
        let (bytes, into) = NewBytes::new(py, length)?;
        all.push(Read { place: place_of(&place)?, offset, into });
        filled.push(bytes);
    }
    Ok((filled, all))
}

/// A file and its size, or the exception in its place.
fn opened_file(py: Python<'_>, opened: Result<Arc<OpenFile>, Error>) -> PyResult<Py<PyAny>> {
    let file = match opened {
        Ok(file) => file,
        Err(error) => return Ok(exception(py, error)),
    };
    let (size, replicas) = (file.version().size, file.replicas());
    Ok((Py::new(py, File::new(file, replicas))?, size).into_pyobject(py)?.into_any().unbind())
}

fn existing(exclusive: bool) -> Existing {
    if exclusive { Existing::Kept } else { Existing::Replaced }
}

#[pymethods]
impl Session {
    /// Starts a session.
    #[staticmethod]
    #[pyo3(signature = (etcd, workers, up, config, settings, done=None))]
    fn start(
        py: Python<'_>,
        etcd: Vec<String>,
        workers: Vec<String>,
        up: Option<String>,
        config: Option<PathBuf>,
        settings: Vec<(String, String)>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let settings = Settings { etcd, workers, up, file: config, more: settings };
        call(py, done, Held::default(), forebay_session::Session::start(settings), |py, started| {
            Ok(Py::new(py, Self(OfProcess::new(started)))?.into_any())
        })
    }

    /// The fields of an entry.
    #[pyo3(signature = (path, revalidate, done=None))]
    fn stat(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        revalidate: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.stat(path_of(path)?, revalidate);
        call(py, done, Held::default(), work, |py, found| Ok(entry(py, &found)?.into_any().unbind()))
    }

    /// The fields of the entries of a directory.
    #[pyo3(signature = (path, done=None))]
    fn listing(&self, py: Python<'_>, path: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let work = self.get()?.list(path_of(path)?);
        call(py, done, Held::default(), work, |py, found| entries(py, &found))
    }

    /// What is below a path: so many levels of it, and of that what has a path that begins with `prefix`.
    #[pyo3(signature = (path, depth=None, prefix=None))]
    fn walk(&self, path: &Bound<'_, PyAny>, depth: Option<usize>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<Walk> {
        let prefix = prefix.map(path_of).transpose()?.unwrap_or_default();
        let walk = self.get()?.walk(&path_of(path)?, Within { depth, prefix }).map_err(raised)?;
        Ok(Walk(OfProcess::new(Arc::new(walk))))
    }

    /// The file at a path, and the fields of its entry.
    #[pyo3(signature = (path, done=None))]
    fn open(&self, py: Python<'_>, path: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let work = self.get()?.open(path_of(path)?);
        call(py, done, Held::default(), work, |py, (file, found)| {
            let pair = (Py::new(py, File::new(file, found.replicas))?, entry(py, &found)?);
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// The file that another process had open.
    fn reopen(&self, description: &[u8], replicas: u8) -> PyResult<File> {
        let file = self.get()?.reopen(description, replicas).map_err(raised)?;
        Ok(File::new(file, replicas))
    }

    /// Carries out reads `(file or path, offset, buffer)`; the number of bytes of each.
    #[pyo3(signature = (reads, done=None))]
    fn read_into(&self, py: Python<'_>, reads: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let expected = reads.len().unwrap_or(0);
        let (mut held, mut all) = (Held::with_capacity(expected), Vec::with_capacity(expected));
        for read in reads.try_iter()? {
            let (place, offset, buffer): (Bound<'_, PyAny>, u64, Bound<'_, PyAny>) = read?.extract()?;
            all.push(Read { place: place_of(&place)?, offset, into: held.memory_of(&buffer)? });
        }
        let work = self.get()?.read(all);
        call(py, done, held, work, |py, counts| Ok(PyList::new(py, counts)?.into_any().unbind()))
    }

    /// Carries out reads `(file or path, offset, address, length)` into memory of a GPU; the number of bytes of each.
    #[pyo3(signature = (reads, device, stream, done=None))]
    fn read_into_device(
        &self,
        py: Python<'_>,
        reads: &Bound<'_, PyAny>,
        device: Option<u32>,
        stream: usize,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let mut all = Vec::with_capacity(reads.len().unwrap_or(0));
        for read in reads.try_iter()? {
            let (place, offset, address, length): (Bound<'_, PyAny>, u64, u64, usize) = read?.extract()?;
            // SAFETY: the caller said so, as the documentation of the function demands.
            all.push(unsafe { DeviceRead::new(place_of(&place)?, offset, length, address) });
        }
        // SAFETY: as above.
        let stream = unsafe { DeviceStream::new(stream) };
        let work = self.get()?.read_into_device(all, device, stream);
        call(py, done, Held::default(), work, |py, counts| Ok(PyList::new(py, counts)?.into_any().unbind()))
    }

    /// Reads `(file or path, offset, length)`; the bytes of each.
    #[pyo3(signature = (ranges, done=None))]
    fn read_ranges(&self, py: Python<'_>, ranges: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let (filled, all) = ranges_of(py, ranges)?;
        let session = self.get()?;
        let work = async move { Ok::<_, Error>((session.read(all).await?, filled)) };
        call(py, done, Held::default(), work, |py, (counts, filled)| {
            let bytes = filled.into_iter().zip(counts).map(|(bytes, count)| bytes.finish(py, count));
            Ok(PyList::new(py, bytes)?.into_any().unbind())
        })
    }

    /// The same where an exception takes the place of the bytes that cannot be read. Between two ranges, up to `max_gap` bytes may be
    /// fetched that nobody wants.
    #[pyo3(signature = (ranges, done=None, max_gap=None))]
    fn read_each(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
        max_gap: Option<u32>,
    ) -> PyResult<Py<PyAny>> {
        let (filled, all) = ranges_of(py, ranges)?;
        let session = self.get()?;
        let work = async move { Ok::<_, Error>((session.read_each(all, max_gap).await?, filled)) };
        call(py, done, Held::default(), work, |py, (outcomes, filled)| {
            let found = filled.into_iter().zip(outcomes).map(|(bytes, outcome)| match outcome {
                Ok(count) => bytes.finish(py, count).into_any(),
                Err(error) => exception(py, error),
            });
            Ok(PyList::new(py, found.collect::<Vec<_>>())?.into_any().unbind())
        })
    }

    /// The files at paths and their sizes, as they are believed to be, or are with `revalidate`; an exception where there is none.
    #[pyo3(signature = (paths, revalidate, done=None))]
    fn open_each(
        &self,
        py: Python<'_>,
        paths: &Bound<'_, PyAny>,
        revalidate: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let paths = paths.try_iter()?.map(|path| path_of(&path?)).collect::<PyResult<Vec<_>>>()?;
        let work = self.get()?.open_each(paths, revalidate);
        call(py, done, Held::default(), work, |py, opened| {
            let files = opened.into_iter().map(|opened| opened_file(py, opened)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, files)?.into_any().unbind())
        })
    }

    /// Fetches ranges `(file or path, offset, length)` before they are read, here or to the workers that own them.
    #[pyo3(signature = (ranges, to_workers, done=None))]
    fn fetch(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        to_workers: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let mut all = Vec::with_capacity(ranges.len().unwrap_or(0));
        for range in ranges.try_iter()? {
            let (place, offset, length): (Bound<'_, PyAny>, u64, u64) = range?.extract()?;
            all.push(Range { place: place_of(&place)?, offset, length });
        }
        let to = if to_workers { FetchTo::Workers } else { FetchTo::Here };
        let work = self.get()?.fetch(all, to);
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }

    /// A view of `length` bytes of a file.
    #[pyo3(signature = (place, offset, length, done=None))]
    fn view(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        offset: u64,
        length: usize,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.view(place_of(place)?, offset, length);
        call(py, done, Held::default(), work, |py, view| Ok(Py::new(py, View::new(view))?.into_any()))
    }

    /// Begins to write a file; with `exclusive`, one that is not there.
    #[pyo3(signature = (path, exclusive, done=None))]
    fn create(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        exclusive: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.create(path_of(path)?, existing(exclusive));
        call(py, done, Held::default(), work, |py, writer| Ok(Py::new(py, Writer::new(writer))?.into_any()))
    }

    /// Makes a path a file of these bytes: the fields of its entry.
    #[pyo3(signature = (path, bytes, exclusive, done=None))]
    fn put(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        bytes: &Bound<'_, PyAny>,
        exclusive: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.put(path_of(path)?, bytes_of(bytes)?, existing(exclusive));
        call(py, done, Held::default(), work, |py, made| Ok(entry(py, &made)?.into_any().unbind()))
    }

    /// Makes a path a file with the bytes of another: the fields of its entry.
    #[pyo3(signature = (source, target, done=None))]
    fn copy(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.copy(path_of(source)?, path_of(target)?);
        call(py, done, Held::default(), work, |py, made| Ok(entry(py, &made)?.into_any().unbind()))
    }

    /// Removes a file.
    #[pyo3(signature = (path, done=None))]
    fn remove(&self, py: Python<'_>, path: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let work = self.get()?.remove(path_of(path)?);
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }

    /// Makes a directory: the fields of its entry.
    #[pyo3(signature = (path, done=None))]
    fn make_directory(&self, py: Python<'_>, path: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let work = self.get()?.make_directory(path_of(path)?);
        call(py, done, Held::default(), work, |py, made| Ok(entry(py, &made)?.into_any().unbind()))
    }

    /// Removes an empty directory.
    #[pyo3(signature = (path, done=None))]
    fn remove_directory(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.remove_directory(path_of(path)?);
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }

    /// Has the origin asked again about a path, or, with `below`, about everything.
    #[pyo3(signature = (path, below, done=None))]
    fn refresh(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        below: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let work = self.get()?.refresh(path_of(path)?, below);
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }

    /// Ends the session.
    #[pyo3(signature = (done=None))]
    fn close(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let work = self.get()?.close();
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }
}

#[pymethods]
impl Walk {
    /// The fields of some more entries; `None` after the last.
    #[pyo3(signature = (done=None))]
    fn next_page(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let walk = self.0.get().cloned().ok_or_else(|| raised(Error::inherited("iterator")))?;
        let work = async move { walk.next_page().await };
        call(py, done, Held::default(), work, |py, page| match page {
            Some(page) => entries(py, &page),
            None => Ok(py.None()),
        })
    }
}
