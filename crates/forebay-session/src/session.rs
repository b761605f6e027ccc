//! A session: names, open files, reads and views, as a program asks for them.
//!
//! Everything that may wait is a future that owns what it needs, so that a binding can wait for it on the calling thread, or give it to
//! the runtime. Polled once, it has its answer wherever that is in memory of this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use forebay_client::driving::permitted_if;
use forebay_client::{Client, FetchTo, OpenFile};
use forebay_types::{Attr, Failure, FailureKind, FileKind, FileVersion, FsPath};
use futures::stream::{self, StreamExt as _};
use tokio::sync::Semaphore;

use crate::batch::{self, Gap};
use crate::caller_memory::CallerMemory;
use crate::devices::Devices;
use crate::error::Error;
use crate::fork;
use crate::handles::Handles;
use crate::nearby::{self, Nearby};
use crate::node_thread::NodeThread;
use crate::settings::{Checked, Settings};
use crate::upload::Writing;
use crate::view::{self, CopyBuffer, View, ViewBudget};
use crate::walk::{Entry, Listing, Walk, Within};

/// Reads of one batch that wait at once.
const READS_AT_ONCE: usize = 256;

/// What is read from.
#[derive(Clone)]
pub enum Place {
    /// The file that is at this path now.
    Path(Vec<u8>),
    /// A version of a file.
    File(Arc<OpenFile>),
}

/// A read into memory of the caller's, as long as that is.
pub struct Read {
    /// Of which file.
    pub place: Place,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Where to.
    pub into: CallerMemory,
}

/// A range of a file, to be fetched before it is read.
pub struct Range {
    /// Of which file.
    pub place: Place,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many bytes; those beyond the end of the file are left out.
    pub length: u64,
}

/// A client of workers, for one program.
pub struct Session {
    pub(crate) client: Client,
    node: NodeThread,
    pub(crate) handles: Handles,
    in_flight: Arc<Semaphore>,
    pub(crate) writing: Arc<Writing>,
    views: Arc<ViewBudget>,
    pub(crate) devices: Devices,
}

/// A read that has to wait, and its place in the batch.
struct Late {
    number: usize,
    read: Read,
    file: Arc<OpenFile>,
    /// What of it is not here.
    gaps: Vec<Gap>,
    /// What of that lies in a block with pieces of other reads.
    nearby: Vec<Arc<Nearby>>,
}

/// What of a batch has to wait.
#[derive(Default)]
struct Waiting {
    late: Vec<Late>,
    /// By the path, which is to be looked up once.
    unknown: HashMap<Vec<u8>, Vec<(usize, Read)>>,
}

impl Waiting {
    /// Copies what is here of a read; if that is all, notes how many bytes it got.
    fn begin(&mut self, number: usize, mut read: Read, file: Arc<OpenFile>, counts: &mut [usize]) {
        let gaps = batch::copy_hits(&file, read.offset, &mut read.into);
        if gaps.is_empty() {
            counts[number] = batch::expected(&file, read.offset, read.into.len());
        } else {
            self.late.push(Late { number, read, file, gaps, nearby: Vec::new() });
        }
    }

    /// Notes which of the reads that may be under way together have pieces in the same blocks.
    fn find_nearby(&mut self, max_gap: u32) {
        for reads in self.late.chunks_mut(READS_AT_ONCE).filter(|reads| reads.len() > 1) {
            let pieces = reads
                .iter()
                .enumerate()
                .flat_map(|(at, late)| late.gaps.iter().map(move |gap| (at, late.file.id(), gap.piece(&late.file))));
            for ((_, index), pieces) in nearby::shared_blocks(pieces) {
                let Some((first, _)) = pieces.first() else { continue };
                let file = Arc::clone(&reads[*first].file);
                let nearby = Arc::new(Nearby::new(file, index, &pieces, max_gap));
                pieces.iter().for_each(|(at, _)| reads[*at].nearby.push(Arc::clone(&nearby)));
            }
        }
    }
}

impl Session {
    /// Starts what `settings` describe. If the future is dropped, what was started ends by itself.
    ///
    /// # Errors
    /// What is wrong with the settings, or keeps the workers from being reached.
    pub async fn start(settings: Settings) -> Result<Arc<Self>, Error> {
        if fork::generation() > 0 {
            fork::renew_random_numbers();
        }
        let Checked { builder, config } = settings.check()?;
        let is_alone = settings.up.is_some();
        let views = Arc::new(ViewBudget::new(view::budget(&config, is_alone)));
        let writing = Arc::new(Writing::new(&config));
        let (node, client) = NodeThread::start(builder).await?;
        let in_flight = batch::in_flight();
        let (handles, devices) = (Handles::default(), Devices::default());
        Ok(Arc::new(Self { client, node, handles, in_flight, writing, views, devices }))
    }

    /// What `path` is. With `revalidate`, the origin is asked whatever a cache says.
    ///
    /// # Errors
    /// ENOENT, and whatever keeps the workers from saying.
    pub async fn stat(self: Arc<Self>, path: Vec<u8>, revalidate: bool) -> Result<Entry, Error> {
        let fs_path = path_of(&path)?;
        if revalidate {
            self.handles.forget(&path);
        }
        let reply = self.client.stat(&fs_path, revalidate).await.map_err(|failure| of_path(failure, &path))?;
        Ok(Entry::new(&fs_path, reply.attr))
    }

    /// The names in the directory `path`, in the origin's order; of a file, itself.
    ///
    /// # Errors
    /// As [`Session::stat`].
    pub async fn list(self: Arc<Self>, path: Vec<u8>) -> Result<Vec<Entry>, Error> {
        let fs_path = path_of(&path)?;
        let attr = self.client.stat(&fs_path, false).await.map_err(|failure| of_path(failure, &path))?.attr;
        if attr.version().is_some() {
            return Ok(vec![Entry::new(&fs_path, attr)]);
        }
        let (mut listing, mut found) = (Listing::new(fs_path), Vec::new());
        while let Some(page) = listing.next_page(&self.client).await? {
            found.extend(page);
        }
        Ok(found)
    }

    /// What is below `path` and within that, in pages: directories before what is in them. Of a file, itself.
    ///
    /// # Errors
    /// For a path that is none.
    pub fn walk(&self, path: &[u8], within: Within) -> Result<Walk, Error> {
        Ok(Walk::new(self.client.clone(), path_of(path)?, within))
    }

    /// Opens the file that is at `path` now: reads of the handle are of this version or fail with ESTALE.
    ///
    /// # Errors
    /// As [`Session::stat`]; EISDIR.
    pub async fn open(self: Arc<Self>, path: Vec<u8>) -> Result<(Arc<OpenFile>, Entry), Error> {
        let (file, attr, fs_path) = self.look_up(&path, false).await?;
        Ok((file, Entry::new(&fs_path, attr)))
    }

    /// Opens a version that was open in another process: `description` is its [`FileVersion::encode`]. Asks nobody; if the object was
    /// replaced, reads fail with ESTALE.
    ///
    /// # Errors
    /// When that is no description of a version.
    pub fn reopen(&self, description: &[u8], replicas: u8) -> Result<Arc<OpenFile>, Error> {
        let version = FileVersion::decode(description)
            .map_err(|error| Error::argument(error.to_string(), "open the file by its path"))?;
        Ok(self.client.open_replicated(version, replicas.max(1)))
    }

    /// Carries out all of `reads`; how many bytes each got: fewer than its memory holds only at the end of the file. A read by path is of
    /// one version: if the file was replaced since the path was looked up, the path is looked up again.
    ///
    /// Once the future has ended or was dropped, no memory of the caller is written to.
    ///
    /// # Errors
    /// The first, with the path; ESTALE if a version is gone. What other reads wrote by then is there.
    pub async fn read(self: Arc<Self>, reads: Vec<Read>) -> Result<Vec<usize>, Error> {
        let mut counts = vec![0; reads.len()];
        self.carry_out(reads, nearby::GAP, &mut counts, |_, error| Err(error)).await?;
        Ok(counts)
    }

    /// The same where an error is that of its read alone: what each read got, or why it did not. `max_gap` says how many bytes that
    /// nobody wants may be fetched between two short reads rather than asking the origin twice; without it, 512 KiB.
    ///
    /// # Errors
    /// None of its own.
    pub async fn read_each(
        self: Arc<Self>,
        reads: Vec<Read>,
        max_gap: Option<u32>,
    ) -> Result<Vec<Result<usize, Error>>, Error> {
        let (mut counts, mut errors) = (vec![0; reads.len()], HashMap::new());
        let note = |number: usize, error: Error| {
            errors.insert(number, error);
            Ok(())
        };
        self.carry_out(reads, max_gap.unwrap_or(nearby::GAP), &mut counts, note).await?;
        let outcome = |(number, count): (usize, usize)| errors.remove(&number).map_or(Ok(count), Err);
        Ok(counts.into_iter().enumerate().map(outcome).collect())
    }

    /// Opens the files that are at `paths`, as they were found within the time for which that may be believed, or as the origin says with
    /// `revalidate`; of each, why it cannot be opened.
    ///
    /// # Errors
    /// None of its own.
    pub async fn open_each(
        self: Arc<Self>,
        paths: Vec<Vec<u8>>,
        revalidate: bool,
    ) -> Result<Vec<Result<Arc<OpenFile>, Error>>, Error> {
        let session = self;
        let opening = paths.into_iter().map(move |path| {
            let session = Arc::clone(&session);
            async move {
                match revalidate {
                    true => Ok(session.look_up(&path, true).await?.0),
                    false => session.known(&path).await,
                }
            }
        });
        Ok(stream::iter(opening).buffered(READS_AT_ONCE).collect().await)
    }

    /// Carries out `reads`, and notes how many bytes each got. One that fails is `failed`, by its number, which says whether that ends
    /// the others.
    async fn carry_out(
        self: Arc<Self>,
        reads: Vec<Read>,
        max_gap: u32,
        counts: &mut [usize],
        mut failed: impl FnMut(usize, Error) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let mut waiting = self.begin(reads, counts);
        if !waiting.unknown.is_empty() {
            self.look_up_all(&mut waiting, counts, &mut failed).await?;
        }
        if waiting.late.is_empty() {
            return Ok(());
        }
        waiting.find_nearby(max_gap);
        let (session, is_alone) = (self, waiting.late.len() == 1);
        let finishing = waiting.late.into_iter().map(move |late| {
            let (session, number) = (Arc::clone(&session), late.number);
            // All are asked for before any is waited for.
            async move { (number, permitted_if(is_alone, session.finish(late)).await) }
        });
        let mut ending = std::pin::pin!(stream::iter(finishing).buffer_unordered(READS_AT_ONCE));
        while let Some((number, finished)) = ending.next().await {
            match finished {
                Ok(count) => counts[number] = count,
                Err(error) => failed(number, error)?,
            }
        }
        Ok(())
    }

    /// Does what can be done without waiting.
    fn begin(&self, reads: Vec<Read>, counts: &mut [usize]) -> Waiting {
        let (now, mut waiting) = (Instant::now(), Waiting::default());
        for (number, read) in reads.into_iter().enumerate() {
            let file = match &read.place {
                Place::File(file) => Ok(Arc::clone(file)),
                Place::Path(path) => self.handles.get(path, now).ok_or_else(|| path.clone()),
            };
            match file {
                Ok(file) => waiting.begin(number, read, file, counts),
                Err(path) => waiting.unknown.entry(path).or_default().push((number, read)),
            }
        }
        waiting
    }

    /// Looks up the paths that are not known, and begins their reads.
    async fn look_up_all(
        self: &Arc<Self>,
        waiting: &mut Waiting,
        counts: &mut [usize],
        failed: &mut (impl FnMut(usize, Error) -> Result<(), Error> + Send),
    ) -> Result<(), Error> {
        let unknown = std::mem::take(&mut waiting.unknown);
        let session = Arc::clone(self);
        let asking = unknown.into_iter().map(move |(path, reads)| {
            let session = Arc::clone(&session);
            async move { (session.look_up(&path, false).await, reads) }
        });
        let mut asked = std::pin::pin!(stream::iter(asking).buffer_unordered(READS_AT_ONCE));
        while let Some((found, reads)) = asked.next().await {
            for (number, read) in reads {
                match &found {
                    Ok((file, _, _)) => waiting.begin(number, read, Arc::clone(file), counts),
                    Err(error) => failed(number, error.clone())?,
                }
            }
        }
        Ok(())
    }

    async fn finish(self: Arc<Self>, late: Late) -> Result<usize, Error> {
        let Late { read: Read { place, offset, mut into }, mut file, mut gaps, nearby, .. } = late;
        nearby.iter().for_each(|nearby| nearby.begin());
        let mut is_stale = false;
        loop {
            let count = batch::expected(&file, offset, into.len());
            let filled = batch::fill(Arc::clone(&file), gaps, into, Arc::clone(&self.in_flight)).await;
            let Err((memory, failure)) = filled else { return Ok(count) };
            let Place::Path(path) = &place else { return Err(of_version(failure, &file)) };
            if is_stale || failure.kind() != FailureKind::VersionChanged {
                return Err(of_path(failure, path));
            }
            (into, is_stale) = (memory, true);
            file = self.renewed(path, &file).await?;
            // All of it, so that no byte of the old version stays.
            gaps = batch::copy_hits(&file, offset, &mut into);
        }
    }

    /// The file at `path`, where `stale` is not any more. Another read of the batch may have asked already.
    pub(crate) async fn renewed(&self, path: &[u8], stale: &OpenFile) -> Result<Arc<OpenFile>, Error> {
        if let Some(newer) = self.handles.get(path, Instant::now()).filter(|known| known.id() != stale.id()) {
            return Ok(newer);
        }
        self.handles.forget(path);
        Ok(self.look_up(path, true).await?.0)
    }

    /// Brings `ranges` nearer before they are read: some of them at once, the first ones first. What comes here takes the place of what
    /// was there, so the caller announces no more than there is room for.
    ///
    /// # Errors
    /// The first, once all others were fetched: whoever reads that range meets it, too.
    pub async fn fetch(self: Arc<Self>, ranges: Vec<Range>, to: FetchTo) -> Result<(), Error> {
        let session = self;
        let fetches = ranges.into_iter().map(move |range| Arc::clone(&session).fetch_one(range, to));
        let mut fetching = std::pin::pin!(stream::iter(fetches).buffered(READS_AT_ONCE));
        let mut outcome = Ok(());
        while let Some(fetched) = fetching.next().await {
            outcome = outcome.and(fetched);
        }
        outcome
    }

    async fn fetch_one(self: Arc<Self>, Range { place, offset, length }: Range, to: FetchTo) -> Result<(), Error> {
        let file = match &place {
            Place::File(file) => Arc::clone(file),
            Place::Path(path) => self.known(path).await?,
        };
        file.fetch(offset, length, to).await.map_err(|failure| match &place {
            Place::Path(path) => of_path(failure, path),
            Place::File(file) => of_version(failure, file),
        })
    }

    /// A view of `length` bytes at `offset`, fewer only at the end of the file. Where they lie in one piece in memory of this process or
    /// of a worker on this host, nothing is copied; otherwise, and if views hold too much of that memory already, it is a copy.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn view(self: Arc<Self>, place: Place, offset: u64, length: usize) -> Result<View, Error> {
        let path = match &place {
            Place::File(file) => return self.view_of(file, offset, length).await,
            Place::Path(path) => path,
        };
        let file = self.known(path).await?;
        let shown = match self.view_of(&file, offset, length).await {
            // Replaced since the path was looked up. What is there now may be longer.
            Err(error) if error.errno == libc::ESTALE => {
                let newer = self.renewed(path, &file).await?;
                self.view_of(&newer, offset, length).await
            }
            shown => shown,
        };
        shown.map_err(|error| error.about(path))
    }

    /// A view of one version of a file.
    async fn view_of(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, length: usize) -> Result<View, Error> {
        let length = batch::expected(file, offset, length);
        match view::shared(file, offset, length, &self.views).await {
            Ok(Some(view)) => Ok(view),
            Ok(None) => Arc::clone(self).copied(Place::File(Arc::clone(file)), offset, length).await,
            Err(failure) => Err(of_version(failure, file)),
        }
    }

    async fn copied(self: Arc<Self>, place: Place, offset: u64, length: usize) -> Result<View, Error> {
        let mut copy = CopyBuffer::new(length).ok_or_else(|| {
            let error = std::io::Error::from_raw_os_error(libc::ENOMEM);
            Error::system(&format!("cannot take {length} bytes for a view"), &error)
        })?;
        let counts = self.read(vec![Read { place, offset, into: copy.memory() }]).await?;
        Ok(copy.finish(counts.first().copied().unwrap_or(0)))
    }

    /// Ends the session. Handles that are still open fail from now on; views stay.
    pub async fn close(self: Arc<Self>) -> Result<(), Error> {
        self.handles.clear();
        self.devices.close().await;
        self.node.close().await;
        Ok(())
    }

    /// The file at `path`, as it was found within the time for which that may be believed.
    pub(crate) async fn known(&self, path: &[u8]) -> Result<Arc<OpenFile>, Error> {
        match self.handles.get(path, Instant::now()) {
            Some(file) => Ok(file),
            None => Ok(self.look_up(path, false).await?.0),
        }
    }

    /// `path` became something else, by this session.
    pub(crate) fn changed(&self, path: &[u8]) {
        self.handles.changed(path, Instant::now());
    }

    pub(crate) async fn look_up(&self, path: &[u8], revalidate: bool) -> Result<(Arc<OpenFile>, Attr, FsPath), Error> {
        let fs_path = path_of(path)?;
        let asked = Instant::now();
        let reply = self.client.stat(&fs_path, revalidate).await.map_err(|failure| of_path(failure, path))?;
        let FileKind::File(version) = &reply.attr.kind else {
            return Err(Error::is_a_directory(path));
        };
        let file = self.client.open_replicated(version.clone(), reply.attr.replicas);
        self.handles.put(path, &file, asked, reply.valid_for);
        Ok((file, reply.attr, fs_path))
    }
}

pub(crate) fn path_of(path: &[u8]) -> Result<FsPath, Error> {
    FsPath::new(path).map_err(|error| Error::from(error).about(path))
}

pub(crate) fn of_path(failure: Failure, path: &[u8]) -> Error {
    Error::from(failure).about(path)
}

pub(crate) fn of_version(failure: Failure, file: &OpenFile) -> Error {
    of_path(failure, &file.version().path)
}
