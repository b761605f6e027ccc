//! Verbs of a client that change the namespace.
//!
//! A change goes to the worker that is asked about the name, so that what it made is known there at once. Names and listings that
//! another worker is asked about are asked for again there, before the change is told to be done: its author sees it in whatever
//! it asks next. A worker that cannot be told is made to forget everything before it is asked again ([`crate::missed`]).
//!
//! The parts of a file that is uploaded are spread over all workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forebay_cluster::PlacementKey;
use forebay_transport::message::{Change, ChangeReply, PartsReply, UploadRequest, UploadsReply};
use forebay_transport::{CallError, Flags, Op, Request};
use forebay_types::{Attr, Failure, FailureKind, FsPath, PartPage, UploadMarker, UploadPage};

use crate::attempts::no_workers;
use crate::client::Client;
use crate::router::Changed;
use crate::routes::Link;

/// Which workers have dropped what they remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// How many did.
    pub workers: usize,
    /// Those that could not be reached, and why.
    pub unreached: Vec<(Arc<str>, Failure)>,
}

impl Client {
    /// Makes `path` a file of these bytes, at most [`forebay_transport::wire::MAX_PART`] of them.
    ///
    /// # Errors
    /// Those of the origin, and whatever kept the workers from asking it.
    pub async fn put(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure> {
        self.put_as(path, bytes, false).await
    }

    /// Makes `path` a file of these bytes where there is nothing of that name: of several who do so at once, one does.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`FailureKind::Exists`] where there is something. After an answer was lost, that may be what was made
    /// here. [`FailureKind::Unsupported`] by an origin that has no such promise, [`FailureKind::InvalidArgument`] by a worker of a
    /// release that does not know it.
    pub async fn create(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure> {
        self.put_as(path, bytes, true).await
    }

    async fn put_as(&self, path: &FsPath, bytes: Bytes, only_new: bool) -> Result<Attr, Failure> {
        let upload = UploadRequest { path: path.as_bytes().to_vec(), part: None, only_new, bytes };
        let changed = self.send_change(path, upload.request(Duration::ZERO), false).await;
        let reply = self.settled(path, changed, false).await?;
        self.uploaded(upload.bytes.len());
        attr_of(path, reply)
    }

    /// Begins the upload of `path` in parts, and names it. Nothing is seen of it before it is complete.
    ///
    /// # Errors
    /// As for [`Client::put`].
    pub async fn begin_upload(&self, path: &FsPath) -> Result<String, Failure> {
        let change = Change::Begin { path: path.as_bytes().to_vec() };
        Ok(reply_of(self.send(names_of(path), request_of(&change)).await)?.token)
    }

    /// Sends part `number`, from 1 to 10,000, of an upload; the answer is its tag. A part that is sent again replaces the one
    /// before.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`FailureKind::NotFound`] when there is no such upload (any more).
    pub async fn upload_part(&self, path: &FsPath, upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        let part = Some((upload.to_owned(), number));
        let upload = UploadRequest { path: path.as_bytes().to_vec(), part, only_new: false, bytes };
        // Digits are a name.
        let place = path.join(number.to_string().as_bytes()).unwrap_or_else(|_| path.clone());
        let changed = self.send(PlacementKey::from(&place), upload.request(Duration::ZERO)).await;
        let tag = reply_of(changed)?.token;
        self.uploaded(upload.bytes.len());
        Ok(tag)
    }

    /// Makes `path` a file of `size` bytes from the parts with these tags, the first part's first.
    ///
    /// # Errors
    /// As for [`Client::upload_part`]; [`FailureKind::Corrupt`] when the parts do not add up to `size`.
    pub async fn complete_upload(
        &self,
        path: &FsPath,
        upload: &str,
        size: u64,
        parts: &[String],
    ) -> Result<Attr, Failure> {
        let (upload, parts) = (upload.to_owned(), parts.to_vec());
        let change = Change::Complete { path: path.as_bytes().to_vec(), upload, size, parts };
        attr_of(path, self.change(path, &change, false).await?)
    }

    /// Gives an upload up; no failure when there is none.
    ///
    /// # Errors
    /// As for [`Client::put`].
    pub async fn abort_upload(&self, path: &FsPath, upload: &str) -> Result<(), Failure> {
        let change = Change::Abort { path: path.as_bytes().to_vec(), upload: upload.to_owned() };
        reply_of(self.send(names_of(path), request_of(&change)).await)?;
        Ok(())
    }

    /// The parts of an upload with numbers above `after`, at most `max` of them, as the origin has them now, whoever sent them.
    /// Their tags are those that [`Client::upload_part`] answers.
    ///
    /// # Errors
    /// As for [`Client::upload_part`]; [`FailureKind::Unsupported`] by an origin that does not tell,
    /// [`FailureKind::InvalidArgument`] by a worker of a release that does not know this.
    pub async fn list_parts(&self, path: &FsPath, upload: &str, after: u32, max: u32) -> Result<PartPage, Failure> {
        let asked = Change::Parts { path: path.as_bytes().to_vec(), upload: upload.to_owned(), after, max };
        let told = self.ask_of_uploads(names_of(path), &asked).await?;
        Ok(PartsReply::decode(&told)?.0)
    }

    /// The uploads under way of files below `directory` whose paths there start with `prefix`, at most `max` of them, after
    /// `after`, as the origin has them now, whoever began them. Paths are below the directory. An upload may have another name
    /// here than [`Client::begin_upload`] answered; both mean it.
    ///
    /// # Errors
    /// As for [`Client::list_parts`]; [`FailureKind::Unsupported`] also where several mounts lie below.
    pub async fn list_uploads(
        &self,
        directory: &FsPath,
        prefix: &[u8],
        after: Option<UploadMarker>,
        max: u32,
    ) -> Result<UploadPage, Failure> {
        let after = after.map(|UploadMarker { path, upload }| (path, upload));
        let path = directory.as_bytes().to_vec();
        let asked = Change::Uploads { path, prefix: prefix.to_vec(), after, max };
        let told = self.ask_of_uploads(PlacementKey::from(directory), &asked).await?;
        Ok(UploadsReply::decode(&told)?.0)
    }

    /// What comes of a request that is made as changes are, and changes nothing.
    async fn ask_of_uploads(&self, key: PlacementKey, asked: &Change) -> Result<Bytes, Failure> {
        let timeout = self.shared.options.request_timeout;
        self.shared.router.change(key, request_of(asked), timeout).await.result
    }

    /// Makes `path` a directory.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`FailureKind::Exists`] when there is anything of that name.
    pub async fn make_directory(&self, path: &FsPath) -> Result<Attr, Failure> {
        let change = Change::MakeDirectory { path: path.as_bytes().to_vec() };
        let changed = self.send_change(path, request_of(&change), true).await;
        let repeated = changed.repeated;
        match self.settled(path, changed, true).await {
            // Made by the first of several tries, whose answer was lost.
            Err(failure) if repeated && failure.kind() == FailureKind::Exists => {
                let attr = self.stat(path, true).await?.attr;
                if attr.version().is_none() { Ok(attr) } else { Err(failure) }
            }
            reply => attr_of(path, reply?),
        }
    }

    /// Removes the directory `path`.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`FailureKind::NotEmpty`] when there is a name in it, [`FailureKind::NotFound`],
    /// [`FailureKind::NotADirectory`].
    pub async fn remove_directory(&self, path: &FsPath) -> Result<(), Failure> {
        let change = Change::RemoveDirectory { path: path.as_bytes().to_vec() };
        let changed = self.send_change(path, request_of(&change), true).await;
        let repeated = changed.repeated;
        match self.settled(path, changed, true).await {
            Err(failure) if repeated && failure.kind() == FailureKind::NotFound => Ok(()),
            reply => reply.map(|_| ()),
        }
    }

    /// Removes the file `path`; no failure when it is not there.
    ///
    /// # Errors
    /// As for [`Client::put`].
    pub async fn remove(&self, path: &FsPath) -> Result<(), Failure> {
        self.change(path, &Change::Remove { path: path.as_bytes().to_vec() }, false).await?;
        Ok(())
    }

    /// Makes `to` a file with the bytes that `from` has now. Both are on one origin.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`FailureKind::NotFound`]; [`FailureKind::CrossDevice`] from one origin to another; and
    /// [`FailureKind::InvalidArgument`] where both names are of one object, as under two mounts of its origin: whoever would remove the
    /// old name after that would remove the only copy.
    pub async fn copy(&self, from: &FsPath, to: &FsPath) -> Result<Attr, Failure> {
        let change = Change::Copy { from: from.as_bytes().to_vec(), to: to.as_bytes().to_vec() };
        attr_of(to, self.change(to, &change, false).await?)
    }

    /// Has all workers forget what they know of `path`, its place in its directory's listing and its own listing; with `below`
    /// of everything below it, too.
    ///
    /// # Errors
    /// When a worker that can be reached does not, or none can be reached.
    pub async fn refresh(&self, path: &FsPath, below: bool) -> Result<Refreshed, Failure> {
        let router = &self.shared.router;
        let routes = Arc::clone(&router.routes());
        let flags = if below { Flags::BELOW } else { Flags::default() };
        let asks = routes.all().map(|link| {
            let request = Request::on_path(Op::Refresh, path.as_bytes().to_vec().into(), router.timeout());
            async move { (link, link.transport.call(request.with_flags(flags), None).await) }
        });
        let mut refreshed = Refreshed::default();
        for (link, answer) in futures::future::join_all(asks).await {
            let is_reached = !matches!(&answer, Err(CallError::Link(_)));
            match router.note(link, answer) {
                Ok(_) => refreshed.workers += 1,
                Err(failure) if is_reached => return Err(failure.context(&link.member)),
                Err(failure) => refreshed.unreached.push((Arc::clone(&link.member), failure)),
            }
        }
        match refreshed.unreached.first() {
            _ if refreshed.workers > 0 => Ok(refreshed),
            Some((worker, failure)) => Err(failure.clone().context(worker)),
            None => Err(no_workers()),
        }
    }

    /// A change of `path`; `lists`: it is a directory that comes or goes.
    async fn change(&self, path: &FsPath, change: &Change, lists: bool) -> Result<ChangeReply, Failure> {
        let changed = self.send_change(path, request_of(change), lists).await;
        self.settled(path, changed, lists).await
    }

    /// Sends a change of `path` to the worker that is asked about it.
    async fn send_change(&self, path: &FsPath, request: Request, lists: bool) -> Changed {
        let changes = &self.shared.router.changes;
        changes.change(names_of(path));
        if lists {
            changes.change(PlacementKey::from(path));
        }
        self.send(names_of(path), request).await
    }

    async fn send(&self, key: PlacementKey, request: Request) -> Changed {
        let is_change = request.op == Op::Change;
        let changed = self.shared.router.change(key, request, self.shared.options.change_timeout).await;
        if is_change && changed.result.is_ok() {
            self.shared.stats.changes.fetch_add(1, Ordering::Relaxed);
        }
        changed
    }

    /// The answer to a change of `path`, when those that are asked about it and did not make it have been told. Also of one that
    /// failed after it was sent to several: it may have been made.
    async fn settled(&self, path: &FsPath, changed: Changed, lists: bool) -> Result<ChangeReply, Failure> {
        if changed.result.is_err() && !changed.repeated {
            return reply_of(changed);
        }
        let by = changed.by.as_ref();
        let of_name = self.tell_owner(names_of(path), path, by);
        let of_listing = async {
            if lists {
                self.tell_owner(PlacementKey::from(path), path, by).await;
            }
        };
        tokio::join!(of_name, of_listing);
        reply_of(changed)
    }

    /// Has the worker that owns `key` ask the origin again about `path`, unless it is `by`, which knows.
    async fn tell_owner(&self, key: PlacementKey, path: &FsPath, by: Option<&Arc<Link>>) {
        let router = &self.shared.router;
        let owner = router.routes().owners(key, 1).next().map(Arc::clone);
        let Some(owner) = owner.filter(|owner| by.is_none_or(|by| !Arc::ptr_eq(by, owner))) else { return };
        // One that does not answer is not waited for by each change, and makes up for all of them when it is back.
        let is_worth_it = router.judge.admits(&owner);
        let told = match is_worth_it {
            true => router.refresh(&owner, path, Flags::default()).await,
            false => Err(Failure::new(FailureKind::Unavailable, "it did not answer lately")),
        };
        if let Err(failure) = told {
            owner.missed.note();
            tracing::debug!(worker = %owner.member, %path, %failure, "worker was not told of a change");
        }
    }

    fn uploaded(&self, bytes: usize) {
        self.shared.stats.uploads.fetch_add(1, Ordering::Relaxed);
        self.shared.stats.uploaded.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The owner of this is asked about the name.
fn names_of(path: &FsPath) -> PlacementKey {
    PlacementKey::from(&path.parent())
}

/// Its deadline is set when it is sent.
fn request_of(change: &Change) -> Request {
    Request::on_path(Op::Change, change.encode(), Duration::ZERO)
}

fn reply_of(changed: Changed) -> Result<ChangeReply, Failure> {
    ChangeReply::decode(&changed.result?)
}

fn attr_of(path: &FsPath, reply: ChangeReply) -> Result<Attr, Failure> {
    let fault = || Failure::new(FailureKind::Internal, format!("{path}: the worker does not say what it is now"));
    reply.attr.ok_or_else(fault)
}
