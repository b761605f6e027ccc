//! A read that is divided among paths: the shell around [`Stripe`].
//!
//! Each part lands in its piece of the caller's buffer, by a request of its own. A part that is asked for again lands
//! in other memory, since its piece may still be written to (invariant 3), and takes only what there is at once. What
//! has come is one buffer again, without a copy, if all parts landed in the caller's; otherwise it is copied together.
//!
//! Parts ask for what the worker has ([`Flags::CACHED`]). If it lacks some of it, the whole read is asked for by one
//! request: it is one request to the origin then, and not one for each part.

use std::time::Duration;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, Flags, Op, Payload, Provenance, Reply, Request};
use forebay_types::{Failure, FailureKind, SECTOR_SIZE, SectorChecksums};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::striping::{AfterFailure, Division, MAX_PATHS, MIN_STRIPED, PartOfRead, Stripe, parts_of};

/// What a read that is divided needs of the paths.
pub(super) trait Ways: Sync {
    /// Asks for a part over `path`.
    fn ask(
        &self,
        path: usize,
        request: Request,
        into: SpanMut,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send;

    /// A part of `bytes` over `path` is late. The path to ask for it as well, if there is one; none where it is not to be
    /// asked for again.
    fn is_late(&self, path: usize, bytes: u32, waited: Duration, is_to_be_asked: bool) -> Option<usize>;

    /// A part of `bytes` over `path` failed. The path to ask for it instead, if there is one.
    fn has_failed(&self, path: usize, bytes: u32) -> Option<usize>;

    /// Memory for so many bytes, if there is some at once.
    fn spare(&self, bytes: u32) -> Option<SpanMut>;
}

/// What came of a read that was divided.
pub(super) enum Outcome {
    /// This, as of any request.
    Answered(Result<Reply, CallError>),
    /// The worker has not all of it: it is to be asked for as a whole.
    NotCached,
    /// It came, and there is no memory to put it together in: it is to be read anew.
    Anew,
}

/// Whether a request is one that may be divided.
pub(super) fn may_be_divided(request: &Request) -> bool {
    // What a worker is to check, it checks once. Checksums are of whole sectors.
    let is_plain = !request.flags.contains(Flags::SCRUB) && !request.flags.contains(Flags::CACHED);
    let is_large = request.op == Op::Read && request.length >= MIN_STRIPED;
    is_large && is_plain && request.offset.is_multiple_of(SECTOR_SIZE)
}

/// What has come of a part.
struct Came {
    bytes: SpanMut,
    body: Bytes,
    provenance: Provenance,
}

/// Carries out `request`, divided so.
pub(super) async fn read(ways: &impl Ways, request: &Request, into: SpanMut, division: &Division) -> Outcome {
    let began = Instant::now();
    let parts = parts_of(request, division);
    let mut stripe = Stripe::new(parts.len(), began.into_std());
    let mut came: SmallVec<[Option<Came>; MAX_PATHS]> = parts.iter().map(|_| None).collect();
    let attempt = |number: usize, path: usize, into: SpanMut| {
        let PartOfRead { offset, length, .. } = parts[number];
        let (flags, deadline) = (request.flags.and(Flags::CACHED), request.deadline.saturating_sub(began.elapsed()));
        let request = Request { offset, length, flags, deadline, ..request.clone() };
        async move { (number, path, ways.ask(path, request, into).await) }
    };
    let mut under_way = FuturesUnordered::new();
    let mut rest = into;
    for (number, part) in parts.iter().enumerate() {
        // The buffer has room for the whole read: who calls has checked that.
        let (own, others) = rest.split_at(part.length as usize);
        rest = others;
        under_way.push(attempt(number, part.path, own));
    }
    while !stripe.is_done() {
        if under_way.is_empty() {
            // What is missing is under way, so this does not happen; if it did, nothing would end the wait.
            return Outcome::Anew;
        }
        let ended = {
            let look_at = stripe.look_at();
            let due = async {
                match look_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ended = under_way.next() => ended,
                () = due => None,
            }
        };
        let now = Instant::now();
        let Some((number, path, answer)) = ended else {
            while let Some(number) = stripe.late(now.into_std()) {
                let PartOfRead { path, length, .. } = parts[number];
                let room = ways.spare(length);
                let other = ways.is_late(path, length, now - began, room.is_some());
                if let Some((other, room)) = other.zip(room) {
                    stripe.asked(number);
                    under_way.push(attempt(number, other, room));
                }
            }
            continue;
        };
        match answer {
            Ok(reply) => {
                if stripe.came(number, now.into_std()) {
                    match landed(reply, parts[number].length) {
                        Ok(part) => came[number] = Some(part),
                        Err(failure) => return Outcome::Answered(Err(CallError::Service(failure))),
                    }
                }
            }
            Err(CallError::Service(failure)) if failure.kind() == FailureKind::NotCached => return Outcome::NotCached,
            Err(CallError::Service(failure)) => return Outcome::Answered(Err(CallError::Service(failure))),
            Err(CallError::Link(error)) => match stripe.failed(number) {
                AfterFailure::Wait => {}
                AfterFailure::Again => {
                    // The caller has no time left for another path, either.
                    if now - began >= request.deadline {
                        return Outcome::Answered(Err(error.into()));
                    }
                    let length = parts[number].length;
                    let other = ways.has_failed(path, length);
                    let Some((other, room)) = other.and_then(|other| Some((other, ways.spare(length)?))) else {
                        return Outcome::Answered(Err(error.into()));
                    };
                    stripe.asked(number);
                    under_way.push(attempt(number, other, room));
                }
                AfterFailure::GiveUp => return Outcome::Answered(Err(error.into())),
            },
        }
    }
    // Those that were asked twice are given up here; their memory stays with the transport until it is done with it.
    drop(under_way);
    match together(came.into_iter().flatten(), request.length, |bytes| ways.spare(bytes)) {
        Some(reply) => Outcome::Answered(Ok(reply)),
        None => Outcome::Anew,
    }
}

/// What a reply brought of a part, which is all of it.
fn landed(reply: Reply, length: u32) -> Result<Came, Failure> {
    let Reply { provenance, body, payload } = reply;
    match payload {
        Payload::Landed(bytes) if bytes.len() == length as usize => Ok(Came { bytes, body, provenance }),
        Payload::Landed(bytes) => {
            let message = format!("a worker sent {} of {length} bytes of a part of a read", bytes.len());
            Err(Failure::new(FailureKind::Corrupt, message))
        }
        Payload::None | Payload::Shared(_) => {
            Err(Failure::new(FailureKind::Internal, "a part of a read did not land where it was asked to"))
        }
    }
}

/// The parts as one reply; none, if they lie apart and there is no memory to put them together in.
fn together(
    parts: impl Iterator<Item = Came>,
    length: u32,
    spare: impl FnOnce(u32) -> Option<SpanMut>,
) -> Option<Reply> {
    let parts: SmallVec<[Came; MAX_PATHS]> = parts.collect();
    let (body, none) = (checksums(&parts), Provenance::default());
    let provenance = parts.iter().fold(none, |all, part| all.and(part.provenance));
    let mut pieces: SmallVec<[SpanMut; MAX_PATHS]> = SmallVec::new();
    for Came { bytes, .. } in parts {
        match pieces.pop() {
            None => pieces.push(bytes),
            Some(before) => match before.joined(bytes) {
                Ok(both) => pieces.push(both),
                Err((before, next)) => pieces.extend([before, next]),
            },
        }
    }
    Some(Reply { provenance, body, payload: Payload::Landed(one_of(pieces, length, spare)?) })
}

/// Pieces that follow one another, as one.
fn one_of(
    mut pieces: SmallVec<[SpanMut; MAX_PATHS]>,
    length: u32,
    spare: impl FnOnce(u32) -> Option<SpanMut>,
) -> Option<SpanMut> {
    if pieces.len() == 1 {
        return pieces.pop();
    }
    let mut all = spare(length)?;
    let mut at = 0;
    for piece in &pieces {
        all.get_mut(at..at + piece.len())?.copy_from_slice(piece);
        at += piece.len();
    }
    Some(all)
}

/// The checksums of all parts, if any came. Those that a worker vouches for and sent none of are computed here: then
/// all of the read has some, and what came with checksums is checked.
fn checksums(parts: &[Came]) -> Bytes {
    if parts.iter().all(|part| part.body.is_empty()) {
        return Bytes::new();
    }
    let of = |part: &Came| {
        let sectors = part.bytes.len().div_ceil(SECTOR_SIZE as usize);
        let sent = SectorChecksums::from_bytes(part.body.clone()).filter(|sent| sent.len() == sectors);
        sent.unwrap_or_else(|| SectorChecksums::of(&part.bytes))
    };
    parts.iter().flat_map(|part| of(part).as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use forebay_locks::Mutex;
    use forebay_memory::{Pool, PoolOptions};
    use forebay_transport::LinkError;
    use forebay_types::{BlockKey, ByteSize, FileId};

    use super::*;

    const PART: usize = 2 * SECTOR_SIZE as usize;

    fn pool() -> Pool {
        Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) }).unwrap()
    }

    fn part(mut bytes: SpanMut, of: u8, has_checksums: bool) -> Came {
        bytes.fill(of);
        let body = if has_checksums { SectorChecksums::of(&bytes).as_bytes().clone() } else { Bytes::new() };
        let provenance = Provenance { memory: bytes.len() as u32, ..Provenance::default() };
        Came { bytes, body, provenance }
    }

    fn landed_in(reply: Option<Reply>) -> (SpanMut, Bytes, u32) {
        let Some(Reply { provenance, body, payload: Payload::Landed(bytes) }) = reply else { panic!("it landed") };
        (bytes, body, provenance.memory)
    }

    #[test]
    fn parts_of_one_buffer_are_that_buffer_again_and_no_memory_is_asked_for() {
        let pool = pool();
        let (head, tail) = pool.try_alloc(2 * PART).unwrap().split_at(PART);
        let parts = [part(head, 1, true), part(tail, 2, true)];
        let (bytes, body, memory) = landed_in(together(parts.into_iter(), 2 * PART as u32, |_| panic!("not needed")));
        assert!(bytes[..PART] == [1; PART] && bytes[PART..] == [2; PART]);
        assert_eq!((body, memory), (SectorChecksums::of(&bytes).as_bytes().clone(), 2 * PART as u32));
    }

    #[test]
    fn a_part_that_landed_elsewhere_is_copied_to_the_others_if_there_is_memory() {
        let pool = pool();
        let parts = || {
            let (head, _late) = pool.try_alloc(2 * PART).unwrap().split_at(PART);
            [part(head, 1, false), part(pool.try_alloc(PART).unwrap(), 2, true)].into_iter()
        };
        let spare = |bytes: u32| pool.try_alloc(bytes as usize);
        let (bytes, body, _) = landed_in(together(parts(), 2 * PART as u32, spare));
        assert!(bytes[..PART] == [1; PART] && bytes[PART..] == [2; PART]);
        assert_eq!(body, SectorChecksums::of(&bytes).as_bytes(), "what came without checksums gets some");
        assert!(together(parts(), 2 * PART as u32, |_| None).is_none());
        drop(bytes);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn large_reads_that_begin_with_a_sector_may_be_divided() {
        let block = BlockKey { file: FileId([1; 16]), index: 0 };
        let read = |offset, length, flags| {
            let request = Request::on_block(Op::Read, block, offset, length, Duration::from_secs(1));
            may_be_divided(&request.with_flags(flags))
        };
        let plain = Flags::CHECKSUMS;
        assert!(read(0, 4 << 20, plain) && read(SECTOR_SIZE, MIN_STRIPED, plain));
        assert!(!read(1, 4 << 20, plain) && !read(0, MIN_STRIPED - 1, plain));
        assert!(!read(0, 4 << 20, plain.and(Flags::SCRUB)) && !read(0, 4 << 20, Flags::CACHED));
        assert!(!may_be_divided(&Request::on_block(Op::Fill, block, 0, 4 << 20, Duration::from_secs(1))));
    }

    /// Three paths. What is asked for over the first one never comes, and its card keeps the buffer; over the second one
    /// all comes; over the third one requests fail.
    struct Cards {
        pool: Pool,
        kept: Mutex<Vec<SpanMut>>,
        asked: Mutex<Vec<usize>>,
    }

    impl Ways for Cards {
        async fn ask(&self, path: usize, request: Request, mut into: SpanMut) -> Result<Reply, CallError> {
            self.asked.lock().push(path);
            match path {
                0 => {
                    self.kept.lock().push(into);
                    std::future::pending().await
                }
                1 => {
                    let length = request.length as usize;
                    into.truncate(length);
                    into.fill((request.offset / SECTOR_SIZE) as u8);
                    let provenance = Provenance { memory: request.length, ..Provenance::default() };
                    Ok(Reply { provenance, body: Bytes::new(), payload: Payload::Landed(into) })
                }
                _ => Err(LinkError::Lost { peer: "worker".to_owned(), reason: "it is dead".to_owned() }.into()),
            }
        }

        fn is_late(&self, _path: usize, _bytes: u32, _waited: Duration, is_to_be_asked: bool) -> Option<usize> {
            is_to_be_asked.then_some(1)
        }

        fn has_failed(&self, _path: usize, _bytes: u32) -> Option<usize> {
            Some(1)
        }

        fn spare(&self, bytes: u32) -> Option<SpanMut> {
            self.pool.try_alloc(bytes as usize)
        }
    }

    /// A read of two parts over these paths.
    async fn read_over(cards: &Cards, paths: [usize; 2], deadline: Duration) -> Outcome {
        let block = BlockKey { file: FileId([1; 16]), index: 0 };
        let request = Request::on_block(Op::Read, block, 0, 2 * PART as u32, deadline);
        let into = cards.pool.try_alloc(2 * PART).unwrap();
        read(cards, &request, into, &Division::from_iter(paths.map(|path| (path, PART as u32)))).await
    }

    fn cards() -> Cards {
        Cards { pool: pool(), kept: Mutex::default(), asked: Mutex::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_place_of_a_part_that_came_by_another_path_is_nobodys_while_its_card_may_write_there() {
        let cards = cards();
        let outcome = read_over(&cards, [0, 1], Duration::from_secs(60)).await;
        let Outcome::Answered(Ok(reply)) = outcome else { panic!("it came over the other path") };
        let (bytes, ..) = landed_in(Some(reply));
        assert_eq!(*cards.asked.lock(), [0, 1, 1]);
        // The card of the first request wakes up, long after the reader has its bytes.
        let mut kept = cards.kept.lock().pop().unwrap();
        kept.fill(0xbb);
        assert!(bytes[..PART] == [0; PART] && bytes[PART..] == [2; PART], "they lie elsewhere");
        drop(bytes);
        assert!(cards.pool.used() > 0, "and nobody else gets its memory meanwhile");
        drop(kept);
        assert_eq!(cards.pool.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_whose_path_fails_is_asked_for_again_unless_the_caller_has_no_time_for_that() {
        let cards = cards();
        let outcome = read_over(&cards, [2, 1], Duration::from_secs(60)).await;
        assert!(matches!(outcome, Outcome::Answered(Ok(_))) && *cards.asked.lock() == [2, 1, 1]);
        cards.asked.lock().clear();
        let outcome = read_over(&cards, [2, 1], Duration::ZERO).await;
        assert!(matches!(outcome, Outcome::Answered(Err(CallError::Link(_)))), "the reason why it failed");
        assert!(cards.asked.lock().len() <= 2, "and nothing more is asked");
    }
}
