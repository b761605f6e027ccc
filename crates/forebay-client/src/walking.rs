//! Fetching the files of directories before they are opened, as [`crate::walks`] says, and listing directories, which
//! tells it what there is.
//!
//! A file is brought into memory of this process: to its buffers, or to the memory of a worker in it or on this host.
//! Nobody waits for it, so it takes a place of those for what was announced ([`ClientShared::announced`]), in line with
//! that, and no stream's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_cluster::PlacementKey;
use forebay_transport::message::ListRequest;
use forebay_transport::{Flags, Op};
use forebay_types::{BlockKey, BlockLayout, Failure, FileVersion, FsPath, Piece};

use crate::fetching::{FetchTo, Fetcher};
use crate::listed::{Listed, ListedName};
use crate::pace::FetchSource;
use crate::shared::ClientShared;
use crate::showing;
use crate::walk::Outcome;
use crate::walks::{Guess, Limits, NextPage, Wanted};

/// The part of what may be fetched ahead of all readers that goes to files which are not open yet: streams keep the
/// rest.
const PART: u64 = 4;

/// One page of the directory `path`.
pub(crate) async fn list(
    shared: &Arc<ClientShared>,
    path: &FsPath,
    token: Option<String>,
    max: u32,
    flags: Flags,
) -> Result<Listed, Failure> {
    let request = ListRequest { path: path.as_bytes().to_vec(), token: token.clone(), max };
    let body = shared.router.ask(PlacementKey::from(path), Op::List, request.encode(), flags).await?;
    let listed = shared.pages.read(path, token.clone(), max, &body)?;
    if let Some(limits) = limits(shared) {
        let is_here = |name: &ListedName| is_here(shared, name);
        let now = shared.began.elapsed();
        let wanted = shared.walks.lock().listed(token.as_deref(), &listed.page, max, now, limits, &is_here);
        begin(shared, wanted);
    }
    Ok(listed)
}

/// A file of this version is opened.
pub(crate) fn opened(shared: &Arc<ClientShared>, version: &FileVersion) {
    let Some(limits) = limits(shared) else { return };
    let is_here = |name: &ListedName| is_here(shared, name);
    let now = shared.began.elapsed();
    let wanted = shared.walks.lock().opened(version, now, limits, &is_here);
    begin(shared, wanted);
}

/// How far to go; `None`: nowhere.
fn limits(shared: &ClientShared) -> Option<Limits> {
    let small = u64::from(shared.small.largest().min(shared.options.block_size));
    let budget = shared.options.directory_budget;
    if budget == 0 || small == 0 {
        return None;
    }
    Some(Limits { budget: budget.min(showing::ahead_at_most(shared) / PART), small })
}

/// Whether memory of this process has a file, or the kernel reads it by itself.
fn is_here(shared: &ClientShared, name: &ListedName) -> bool {
    let Some((file, length)) = name.version_id().zip(u32::try_from(name.entry().attr.size()).ok()) else {
        return false;
    };
    let key = BlockKey { file, index: 0 };
    let routes = shared.router.routes_seen();
    let local = routes.local.as_ref().and_then(|link| link.transport.memory());
    local.is_some_and(|memory| memory.holds(&key, 0, length))
        || shared.engine.store().is_in_memory(&key, 0, length)
        || shared.keeps(file)
}

/// Begins what is wanted, and counts what came of earlier guesses.
fn begin(shared: &Arc<ClientShared>, wanted: Wanted) {
    let Wanted { fetch, list, outcome } = wanted;
    count(shared, outcome);
    shared.stats.files_ahead.fetch_add(fetch.len() as u64, Ordering::Relaxed);
    for guess in fetch {
        let client = Arc::clone(shared);
        shared.tasks.spawn_on(async move { fetch_guess(&client, &guess).await }, &shared.runtime);
    }
    if let Some(next) = list {
        let client = Arc::clone(shared);
        shared.tasks.spawn_on(async move { list_on(&client, next).await }, &shared.runtime);
    }
}

fn count(shared: &ClientShared, outcome: Outcome) {
    for (counter, more) in
        [(&shared.stats.files_ahead_used, outcome.used), (&shared.stats.files_ahead_wasted, outcome.wasted)]
    {
        if more > 0 {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Fetches a file, if by its turn it was not opened.
async fn fetch_guess(shared: &Arc<ClientShared>, guess: &Guess) {
    // None are given any more once the client is closed.
    let Ok(_place) = shared.announced.acquire().await else { return };
    let (directory, name) = (guess.page.directory(), guess.name());
    let Some((version, id)) = name.entry().attr.version().zip(name.version_id()) else { return };
    if !shared.walks.lock().is_guessed(directory, guess.place) {
        return;
    }
    let (key, replicas) = (BlockKey { file: id, index: 0 }, name.entry().attr.replicas);
    shared.router.replicate(id, replicas);
    let is_near = {
        let (routes, place) = (shared.router.routes(), PlacementKey::from(&key));
        routes.is_local(place, replicas) || routes.is_near(place, replicas)
    };
    // What a worker nearby has is as good as here, and showing it would keep it from being evicted until then.
    let to = if is_near { FetchTo::Workers } else { FetchTo::Here };
    let fetcher = Fetcher {
        client: Arc::clone(shared),
        version: Arc::new(version.clone()),
        id,
        layout: BlockLayout::new(version.size, shared.options.block_size),
        replicas,
        pace: Arc::clone(&shared.walks_pace),
    };
    // It is small.
    let length = version.size as u32;
    let brought = match fetcher.piece(Piece { index: 0, offset: 0, length }, to).await {
        Ok(source) => {
            if !is_near && let Some(path) = name.path_in(directory) {
                shared.small.brought(path, id, length);
            }
            Some(!is_near || source == FetchSource::Origin)
        }
        // A reader that opens it meets the same failure, or finds another version.
        Err(failure) => {
            tracing::debug!(file = %id, %failure, "a file was not fetched ahead");
            None
        }
    };
    let outcome = shared.walks.lock().fetched(directory, guess.place, brought, shared.began.elapsed());
    count(shared, outcome);
}

/// Lists the page that comes next in a directory that is being walked.
async fn list_on(shared: &Arc<ClientShared>, next: NextPage) {
    let NextPage { directory, token, max } = next;
    if let Err(failure) = list(shared, &directory, Some(token), max, Flags::default()).await {
        tracing::debug!(%directory, %failure, "a directory that is walked cannot be listed further");
        shared.walks.lock().not_listed(&directory);
    }
}
