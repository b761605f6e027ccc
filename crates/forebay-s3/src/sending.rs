//! An object that is put, on its way to the origin: in one request if it fits into a part, and in parts otherwise.
//! While a part is sent, the next one is received.

use bytes::Bytes;
use forebay_client::Client;
use forebay_types::{Attr, FailureKind, FsPath};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::failure;
use crate::receive::Incoming;
use crate::served::Served;

/// The longest part that a worker takes, in bytes.
pub(crate) const MAX_PART: u64 = 64 << 20;
/// The shortest part that object stores take, in bytes, but for the last one.
pub(crate) const MIN_PART: u64 = 5 << 20;
/// The longest object that is put at once, in bytes: as Amazon has it.
pub(crate) const MAX_PUT: u64 = 5 << 30;

/// Where the bytes come from that an object is made of.
pub(crate) trait Parts {
    /// The next `length` bytes, or those that are left.
    ///
    /// # Errors
    /// What a client is told when they cannot be had.
    async fn part(&mut self, length: u64) -> S3Result<Bytes>;

    /// Looks whether these were all, and what they should be.
    ///
    /// # Errors
    /// What a client is told when they were not.
    async fn finish(self) -> S3Result<()>;
}

impl Parts for Incoming<'_> {
    async fn part(&mut self, length: u64) -> S3Result<Bytes> {
        Incoming::part(self, length).await
    }

    async fn finish(self) -> S3Result<()> {
        Incoming::finish(self).await
    }
}

/// How long the parts are of an object that does not fit into one of `part` bytes, where each of two may have `room`.
fn in_turn(part: u64, room: u64) -> u64 {
    part.min(room.max(MIN_PART))
}

/// An upload that was begun. Dropped before it is complete, as when a client leaves, it is given up at the origin.
struct Upload {
    client: Client,
    path: FsPath,
    id: String,
    is_over: bool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (client, path, id) = (self.client.clone(), self.path.clone(), std::mem::take(&mut self.id));
        // Requests are answered within a runtime.
        tokio::spawn(async move {
            if let Err(failure) = client.abort_upload(&path, &id).await {
                tracing::warn!(%path, %failure, "an upload that was given up may be left at the origin");
            }
        });
    }
}

impl Served {
    /// Makes `path` a file of what comes in, all `length` bytes of it; with `only_new`, where there is none.
    ///
    /// # Errors
    /// When it does not come as it should, and those of the origin.
    pub(crate) async fn send(
        &self,
        path: &FsPath,
        mut incoming: impl Parts,
        length: u64,
        only_new: bool,
    ) -> S3Result<Attr> {
        // The condition is of one request to the origin.
        let part = if only_new { MAX_PART } else { self.part_size.min(MAX_PART) };
        if only_new && length > part {
            let message = format!("`If-None-Match: *` is kept for objects of up to {part} bytes");
            return Err(S3Error::with_message(S3ErrorCode::NotImplemented, message));
        }
        let each = in_turn(part, self.memory.each_of_two());
        // Two parts: one that is sent, and one that comes.
        let held = if length <= part { length } else { length.min(2 * each) };
        let share = self.memory.share_of_incoming(held).await;
        let _share = share.map_err(|failure| failure::told(&failure))?;
        if length <= part {
            let bytes = incoming.part(length).await?;
            incoming.finish().await?;
            let made = match only_new {
                true => self.client.create(path, bytes).await,
                false => self.client.put(path, bytes).await,
            };
            return made.map_err(|failure| match failure.kind() {
                FailureKind::Exists if only_new => {
                    S3Error::with_message(S3ErrorCode::PreconditionFailed, "there is an object with this key")
                }
                _ => failure::of_write(&failure),
            });
        }
        let id = self.client.begin_upload(path).await.map_err(|failure| failure::of_write(&failure))?;
        let mut upload = Upload { client: self.client.clone(), path: path.clone(), id, is_over: false };
        let mut tags = Vec::new();
        let mut bytes = incoming.part(each).await?;
        // 5 GiB are fewer parts than there may be.
        for number in 1.. {
            let sending = async {
                let sent = self.client.upload_part(path, &upload.id, number, bytes).await;
                sent.map_err(|failure| failure::of_write(&failure))
            };
            let (tag, next) = tokio::try_join!(sending, incoming.part(each))?;
            tags.push(tag);
            if next.is_empty() {
                break;
            }
            bytes = next;
        }
        incoming.finish().await?;
        let completed = self.client.complete_upload(path, &upload.id, length, &tags).await;
        let attr = completed.map_err(|failure| failure::of_write(&failure))?;
        upload.is_over = true;
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::BodyMemory;

    #[tokio::test(start_paused = true)]
    async fn two_parts_leave_half_of_the_memory_to_those_who_read() {
        // The least that may be set, and parts as long as they may be.
        let size = 128 << 20;
        let memory = BodyMemory::new(size);
        let part = in_turn(MAX_PART, memory.each_of_two());
        assert_eq!(part, 32 << 20);
        let coming = memory.share_of_incoming(2 * part).await.unwrap();
        assert!(memory.share(size / 2).await.is_ok());
        drop(coming);
        assert_eq!(in_turn(8 << 20, memory.each_of_two()), 8 << 20, "what fits stays as it is set");
        assert_eq!(in_turn(MAX_PART, BodyMemory::new(1).each_of_two()), MIN_PART);
    }
}
