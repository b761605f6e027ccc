//! Changes of the namespace, and the bytes of files that are written: all of it goes through to the origin, and nothing is
//! cached of it but what the metadata cache learns.
//!
//! What a client names is checked before an origin hears of it, and whether that client may change it: a mount cannot
//! be changed by way of what it is mounted on, and what exists only to lead to mounts cannot be changed at all. Blocks
//! of versions that are replaced stay until they are evicted: a handle that has one open goes on reading it.

use std::sync::Arc;

use bytes::Bytes;
use forebay_origin::Origin;
use forebay_transport::message::{
    Change, ChangeReply, MAX_PARTS, MAX_UPLOADS, PartsReply, UploadRequest, UploadsReply,
};
use forebay_transport::wire::MAX_PART;
use forebay_transport::{Caller, Flags, Request, Response};
use forebay_types::{Attr, Failure, FailureKind, FsPath, OriginUrl, Permission, UploadMarker, UploadPage};

use crate::metadata::Changing;
use crate::namespace::Resolved;
use crate::requests::path_of;
use crate::scope::Scope;
use crate::worker::Worker;

/// The longest name of an upload, and the longest tag of a part, in bytes: those of S3 have some 200.
const MAX_NAME: usize = 4096;

/// A name below a mount that takes changes.
struct Target {
    scope: Arc<Scope>,
    path: FsPath,
    origin: Arc<dyn Origin>,
    /// The path below the mount.
    below: Vec<u8>,
}

impl Worker {
    /// Changes the namespace.
    pub(crate) async fn change(&self, request: &Request) -> Result<Response, Failure> {
        let caller = &request.caller;
        let reply = match Change::decode(&request.body)? {
            Change::MakeDirectory { path } => self.make_directory(caller, &path).await?,
            Change::RemoveDirectory { path } => {
                let Target { scope, path, origin, below } = self.target(caller, &path)?;
                let _changing = self.metadata.changing(&scope, &path, true);
                origin.remove_directory(&below).await?;
                ChangeReply::default()
            }
            Change::Remove { path } => {
                let Target { scope, path, origin, below } = self.target(caller, &path)?;
                let _changing = self.metadata.changing(&scope, &path, false);
                origin.remove(&below).await?;
                ChangeReply::default()
            }
            Change::Copy { from, to } => self.copy(caller, &from, &to).await?,
            Change::Begin { path } => {
                let Target { origin, below, .. } = self.target(caller, &path)?;
                ChangeReply { attr: None, token: origin.begin_upload(&below).await? }
            }
            Change::Complete { path, upload, size, parts } => {
                check_upload(&upload, size, &parts)?;
                self.complete(self.target(caller, &path)?, &upload, size, &parts).await?
            }
            Change::Abort { path, upload } => {
                check_name(&upload)?;
                let Target { origin, below, .. } = self.target(caller, &path)?;
                origin.abort_upload(&below, &upload).await?;
                ChangeReply::default()
            }
            Change::Parts { path, upload, after, max } => {
                check_name(&upload)?;
                let Target { origin, below, .. } = self.target(caller, &path)?;
                let page = origin.list_parts(&below, &upload, after, (max as usize).clamp(1, MAX_PARTS)).await?;
                return Ok(Response::of_body(PartsReply(page).encode()));
            }
            Change::Uploads { path, prefix, after, max } => {
                let after = after.map(|(path, upload)| UploadMarker { path, upload });
                let page = self.uploads(caller, &path, &prefix, after, max).await?;
                return Ok(Response::of_body(UploadsReply(page).encode()));
            }
        };
        Ok(Response::of_body(reply.encode()))
    }

    /// The uploads under way of files below a directory, told by the origin that is behind all of them.
    async fn uploads(
        &self,
        caller: &Caller,
        path: &[u8],
        prefix: &[u8],
        after: Option<UploadMarker>,
        max: u32,
    ) -> Result<UploadPage, Failure> {
        let (path, scope) = (path_of(path)?, self.scope_of_changes()?);
        // Of several mounts, each has a list of its own, and none shows what lies under another one.
        if let Some(name) = scope.namespace.names_below(&path).into_iter().find(|name| leads_to(name, prefix)) {
            let name = String::from_utf8_lossy(name);
            let message = format!("{path}: mounts lie below, under `{name}`; ask for the uploads of each by itself");
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        if matches!(scope.namespace.resolve(&path), Resolved::Virtual) {
            return Ok(UploadPage::default());
        }
        let Target { origin, below, .. } = within(scope, caller, path)?;
        let directory = if below.is_empty() { below } else { [&below[..], b"/"].concat() };
        let at_origin = |name: &[u8]| [&directory[..], name].concat();
        let after = after.map(|UploadMarker { path, upload }| UploadMarker { path: at_origin(&path), upload });
        let max = (max as usize).clamp(1, MAX_UPLOADS);
        let mut page = origin.list_uploads(&at_origin(prefix), after.as_ref(), max).await?;
        let here = |path: &mut Vec<u8>| match path.strip_prefix(&directory[..]) {
            Some(name) => {
                *path = name.to_vec();
                true
            }
            None => false,
        };
        page.uploads.retain_mut(|pending| here(&mut pending.path));
        if page.next.as_mut().is_some_and(|next| !here(&mut next.path)) {
            let message = format!("{}: it tells uploads that were not asked for", origin.url());
            return Err(Failure::new(FailureKind::Internal, message));
        }
        Ok(page)
    }

    /// Takes a file, or a part of one, to the origin.
    pub(crate) async fn upload(&self, request: &Request) -> Result<Response, Failure> {
        let UploadRequest { path, part, only_new, bytes } = UploadRequest::decode(request)?;
        let length = bytes.len();
        if length > MAX_PART as usize {
            return Err(invalid(format!("{length} bytes are over the limit of {MAX_PART} for one upload")));
        }
        let target = self.target(&request.caller, &path)?;
        let reply = match part {
            None => self.put(target, bytes, only_new).await?,
            Some((upload, number)) => {
                check_name(&upload)?;
                if number == 0 || number as usize > MAX_PARTS {
                    return Err(invalid(format!("there is no part {number}: parts are counted from 1 to {MAX_PARTS}")));
                }
                let token = target.origin.upload_part(&target.below, &upload, number, bytes).await?;
                ChangeReply { attr: None, token }
            }
        };
        self.counters.uploaded(length);
        Ok(Response::of_body(reply.encode()))
    }

    /// Has names asked for again.
    pub(crate) async fn refresh(&self, request: &Request) -> Result<Response, Failure> {
        let path = path_of(&request.body)?;
        match request.flags.contains(Flags::BELOW) {
            true => self.rates.forget_all(&request.caller, || self.metadata.forget_all()).await,
            false => self.metadata.forget(&path),
        }
        Ok(Response::of_body(Bytes::new()))
    }

    async fn make_directory(&self, caller: &Caller, path: &[u8]) -> Result<ChangeReply, Failure> {
        let path = path_of(path)?;
        let scope = self.scope_of_changes()?;
        if scope.namespace.leads_to_mounts(&path) {
            return Err(Failure::new(FailureKind::Exists, format!("{path}: a mount is there")));
        }
        let Target { scope, path, origin, below } = within(scope, caller, path)?;
        let changing = self.metadata.changing(&scope, &path, true);
        let attr = origin.make_directory(&below).await?;
        Ok(made(changing, attr).await)
    }

    async fn put(&self, target: Target, bytes: Bytes, only_new: bool) -> Result<ChangeReply, Failure> {
        let Target { scope, path, origin, below } = target;
        let changing = self.metadata.changing(&scope, &path, false);
        let attr = match only_new {
            true => origin.create(&below, bytes).await?,
            false => origin.put(&below, bytes).await?,
        };
        Ok(made(changing, attr).await)
    }

    async fn complete(
        &self,
        target: Target,
        upload: &str,
        size: u64,
        parts: &[String],
    ) -> Result<ChangeReply, Failure> {
        let Target { scope, path, origin, below } = target;
        let changing = self.metadata.changing(&scope, &path, false);
        // Who asks again after a lost answer hears what was made then, and somebody may have replaced it since.
        let attr = origin.complete_upload(&below, upload, size, parts).await?;
        Ok(ChangeReply { attr: Some(changing.completed(attr).await), token: String::new() })
    }

    async fn copy(&self, caller: &Caller, from: &[u8], to: &[u8]) -> Result<ChangeReply, Failure> {
        let (from, to) = (path_of(from)?, self.target(caller, to)?);
        to.scope.admits(caller, &from, Permission::Read)?;
        let is_directory = || Failure::new(FailureKind::IsADirectory, format!("{from}: a mount is there"));
        let Target { scope, path, origin, below } = to;
        let (source, from_below) = match scope.namespace.resolve(&from) {
            _ if scope.namespace.leads_to_mounts(&from) => return Err(is_directory()),
            Resolved::Origin(source, from_below) => (source, from_below),
            Resolved::Virtual => return Err(is_directory()),
            Resolved::Nothing => return Err(scope.namespace.nothing_at(&from)),
        };
        // Several mounts may lead to it. There is nothing to copy, and whoever moves it would remove the only one there is.
        if OriginUrl::are_one_object((&**source.url(), from_below), (&**origin.url(), &below[..])) {
            return Err(invalid(format!("{from} and {path} are one object, on {}", origin.url())));
        }
        if source.url() != origin.url() {
            let message =
                format!("{from} is on {}, {path} on {}: copy it by reading and writing", source.url(), origin.url());
            return Err(Failure::new(FailureKind::CrossDevice, message));
        }
        let changing = self.metadata.changing(&scope, &path, false);
        let attr = origin.copy(from_below, &below).await?;
        Ok(made(changing, attr).await)
    }

    /// What a change of `path` is to change.
    ///
    /// # Errors
    /// When nothing can be changed there, or not by `caller`, and why.
    fn target(&self, caller: &Caller, path: &[u8]) -> Result<Target, Failure> {
        let path = path_of(path)?;
        let scope = self.scope_of_changes()?;
        if scope.namespace.leads_to_mounts(&path) {
            return Err(Failure::new(FailureKind::NotPermitted, format!("{path} cannot be changed: a mount is there")));
        }
        within(scope, caller, path)
    }

    fn scope_of_changes(&self) -> Result<Arc<Scope>, Failure> {
        let scope = self.scopes.current();
        match scope.takes_changes {
            true => Ok(scope),
            false => Err(read_only("this worker takes no changes: its `write.mode` is `none`".to_owned())),
        }
    }
}

/// The place of a name in an origin that takes changes, and takes them of `caller`.
fn within(scope: Arc<Scope>, caller: &Caller, path: FsPath) -> Result<Target, Failure> {
    scope.admits(caller, &path, Permission::Write)?;
    let (origin, below) = match scope.namespace.resolve(&path) {
        Resolved::Origin(origin, below) => (Arc::clone(origin), below.to_vec()),
        Resolved::Virtual | Resolved::Nothing => {
            let parent = path.parent();
            return Err(match scope.namespace.leads_to_mounts(&parent) {
                true => read_only(format!("{path} cannot be made: {parent} only leads to mounts")),
                false => scope.namespace.nothing_at(&path),
            });
        }
    };
    if !origin.takes_changes() {
        return Err(read_only(format!("{path}: {} takes no changes", origin.url())));
    }
    Ok(Target { scope, path, origin, below })
}

/// Whether files of which a path starts with `prefix` may lie under `name`.
fn leads_to(name: &[u8], prefix: &[u8]) -> bool {
    match prefix.iter().position(|byte| *byte == b'/') {
        Some(slash) => *name == prefix[..slash],
        None => name.starts_with(prefix),
    }
}

/// The answer to a change that made something.
async fn made(changing: Changing<'_>, attr: Attr) -> ChangeReply {
    ChangeReply { attr: Some(changing.made(attr).await), token: String::new() }
}

/// What completes an upload: names, and no more bytes than the parts can have.
fn check_upload(upload: &str, size: u64, parts: &[String]) -> Result<(), Failure> {
    check_name(upload)?;
    parts.iter().try_for_each(|tag| check_name(tag))?;
    let most = parts.len() as u64 * u64::from(MAX_PART);
    if parts.is_empty() || parts.len() > MAX_PARTS || size > most {
        return Err(invalid(format!("{size} bytes cannot be in {} parts", parts.len())));
    }
    Ok(())
}

/// The name of an upload, or the tag of a part: whatever an origin gave, but something.
fn check_name(name: &str) -> Result<(), Failure> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        length => Err(invalid(format!("a name of an upload, or a tag, of {length} bytes"))),
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureKind::InvalidArgument, message)
}

fn read_only(message: String) -> Failure {
    Failure::new(FailureKind::ReadOnly, message)
}
