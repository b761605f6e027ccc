//! Looking a name up, together with the bytes of a small file where its directory has earned it, and fetching a small file that is
//! opened ([`crate::small`] says which).
//!
//! What comes is checked against its checksums and put where the client buffers what it prefetches; the read that follows finds it
//! there. What is there already is not asked for again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_cluster::PlacementKey;
use forebay_engine::Fetched;
use forebay_memory::SpanMut;
use forebay_transport::message::{StatReadReply, StatReply};
use forebay_transport::{Flags, Op, Payload, Request};
use forebay_types::{BlockKey, BlockLayout, Failure, FileVersion, FsPath, SectorChecksums, SectorRange};

use crate::open_file::OpenFile;
use crate::shared::ClientShared;

/// What `path` is, asked of the worker that owns its directory.
pub(crate) async fn stat(shared: &ClientShared, path: &FsPath, flags: Flags) -> Result<StatReply, Failure> {
    let directory = path.parent();
    // A directory's listing tells the attributes of its names, so one worker is asked about all of them.
    let key = PlacementKey::from(&directory);
    // What a worker in this process has is as near as what is buffered here. One whose memory this process merely sees is a
    // round trip away all the same.
    let is_here = shared.small.is_off() || shared.router.routes().is_local(key, 1);
    let into = if is_here { None } else { room_for(shared, path, &directory) };
    let body = path.as_bytes().to_vec().into();
    let Some(into) = into else {
        let body = shared.router.ask(key, Op::Stat, body, flags).await?;
        let stat = StatReply::decode(&body)?;
        if !is_here {
            shared.small.learned(&directory, &stat.attr);
        }
        return Ok(stat);
    };
    // Of several workers, the one that knows the name is rarely the one that is to fetch the bytes.
    let is_alone = shared.router.routes().links.len() == 1;
    let flags = flags.and(Flags::CHECKSUMS).and(if is_alone { Flags::default() } else { Flags::CACHED });
    let mut request = Request::on_path(Op::StatRead, body, shared.options.request_timeout).with_flags(flags);
    // Less than a buffer may have.
    request.length = into.len() as u32;
    let reply = shared.router.call(key, request, Some(into)).await?;
    shared.stats.delivered(reply.provenance);
    let StatReadReply { stat, checksums } = StatReadReply::decode(&reply.body)?;
    shared.small.learned(&directory, &stat.attr);
    if let Payload::Landed(filled) = reply.payload
        && let Some(version) = stat.attr.version()
        && keep(shared, version, filled, checksums).is_some()
    {
        // It is small.
        shared.small.answered(&directory, path, version.id(), version.size as u32);
    }
    Ok(stat)
}

/// Room for the bytes of `path`, if they are worth asking for and there is some now: a question about a name waits for no
/// memory.
fn room_for(shared: &ClientShared, path: &FsPath, directory: &FsPath) -> Option<SpanMut> {
    let room = shared.small.wants(directory)?;
    let is_here =
        |(file, size)| shared.engine.store().is_in_memory(&BlockKey { file, index: 0 }, 0, size) || shared.keeps(file);
    if shared.small.came(path).is_some_and(is_here) {
        return None;
    }
    shared.engine.store().try_landing(room)
}

/// Has the reads that follow find the bytes of a file, if they are all there and what their checksums say.
fn keep(shared: &ClientShared, version: &FileVersion, filled: SpanMut, checksums: Bytes) -> Option<()> {
    let length = u32::try_from(version.size).ok().filter(|length| filled.len() == *length as usize)?;
    let (key, sectors) = (BlockKey { file: version.id(), index: 0 }, SectorRange::covering(0, length)?);
    if BlockLayout::new(version.size, shared.options.block_size).block_len(0) != length {
        return None;
    }
    let store = shared.engine.store();
    let Some(checksums) = SectorChecksums::from_bytes(checksums).filter(|checksums| !checksums.is_empty()) else {
        // The worker vouches for them.
        store.publish(key, sectors, length, filled);
        return Some(());
    };
    let fetched = Fetched { filled, checksums: None, from_cache: 0 };
    match fetched.checked(sectors, length, checksums.clone()) {
        Ok(Fetched { filled, .. }) => {
            store.publish_checksummed(key, sectors, length, filled, checksums);
            Some(())
        }
        // The read has its worker check it.
        Err(sector) => {
            shared.stats.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(block = %key, sector, "a small file arrived corrupt");
            None
        }
    }
}

/// Starts fetching a small file that is opened, unless it is here or a worker owns it whose memory this process sees: its
/// reader is about to ask for all of it.
pub(crate) fn fetch_small(shared: &Arc<ClientShared>, file: &OpenFile) {
    let version = file.version();
    shared.small.opened(version);
    let key = BlockKey { file: file.id(), index: 0 };
    let (layout, length) = (file.layout(), version.size as u32);
    let is_wanted = shared.small.is_small(version) && layout.blocks() == 1 && !file.is_near(&key);
    if !is_wanted || shared.engine.store().is_in_memory(&key, 0, length) {
        return;
    }
    let Ok(permit) = Arc::clone(&shared.prefetches).try_acquire_owned() else { return };
    let (client, version) = (Arc::clone(shared), Arc::new(version.clone()));
    let task = async move {
        match client.engine.fill(&version, key, layout, 0, length).await {
            Ok(_) => drop(client.stats.prefetched.fetch_add(u64::from(length), Ordering::Relaxed)),
            // The reader will meet the same failure, and gets it as an error.
            Err(failure) => tracing::debug!(%key, %failure, "prefetch failed"),
        }
        drop(permit);
    };
    shared.tasks.spawn_on(task, &shared.runtime);
}
