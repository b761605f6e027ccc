//! Requests on blocks: bytes of one, or that a worker shall have one.
//!
//! A read that its worker keeps waiting is sent to another one as well ([`crate::hedging`]): to those that are likely to
//! have the block because they owned it a moment ago, or own it as well, then in the order of failover, and to the origin
//! where this process reads it and no worker is left. The other one asks no worker in turn ([`Flags::UNAIDED`]), since it
//! would ask the one that does not answer. Reads of a worker that is known to be slow go elsewhere at once, likewise.
//!
//! Any worker's answer to a read is as good: the block's key names a version of a file, each worker judges for itself
//! whether its caller may read it, and whoever gets the bytes checks them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_cluster::PlacementKey;
use forebay_store::Store;
use forebay_transport::{CallError, Flags, Op, Payload, Reply, Request};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion, MAX_BLOCK_SIZE};

use crate::attempts::Verdict;
use crate::hedging::{Hedge, NoHedge, Race, Raced};
use crate::landing::Landing;
use crate::router::{Away, Router};
use crate::routes::{Link, Routes};

impl Router {
    /// A request on a block that has no payload.
    pub(crate) async fn fill(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Fill, key, offset, length, self.timeout());
        self.on_block(version, request, None).await
    }

    /// Bytes of a block. From another process, they land in a buffer of `buffers`.
    pub(crate) async fn read(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
        flags: Flags,
        buffers: &Store,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Read, key, offset, length, self.timeout()).with_flags(flags);
        self.on_block(version, request, Some(Landing::new(buffers, &mut || None, &*self.connector))).await
    }

    /// The same, landing in the caller's buffer if it can. The sender checks the bytes.
    pub(crate) async fn read_into(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
        landing: Landing<'_, '_>,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Read, key, offset, length, self.timeout());
        self.on_block(version, request, Some(landing)).await
    }

    async fn on_block(
        &self,
        version: &FileVersion,
        mut request: Request,
        mut landing: Option<Landing<'_, '_>>,
    ) -> Result<Reply, Failure> {
        let replicas = self.replicas_of(request.block.file);
        let key = PlacementKey::from(&request.block);
        let is_hedged = self.hedging.applies_to(&request);
        let mut attempts = self.attempts(key, replicas, self.timeout()).avoiding_slow(is_hedged.then_some(request.op));
        let (flags, mut has_asked_origin) = (request.flags, false);
        loop {
            let Some((link, left)) = attempts.next() else {
                let described = request.clone().with_body(version.encode().into());
                match Box::pin(self.when_all_are_silent(&mut attempts, &described)).await {
                    None => continue,
                    Some(settled) => return complete(settled?, &request),
                }
            };
            let (_turn, left) = self.downloads.turn(&link, left).await?;
            request.deadline = left;
            if is_hedged && self.hedging.has_slow() {
                request.flags = match would_ask_a_slow_one(&attempts.routes, &link, key, replicas) {
                    true => flags.and(Flags::UNAIDED),
                    false => flags,
                };
                if attempts.is_slow_resort() && !std::mem::replace(&mut has_asked_origin, true) {
                    let described = request.clone().with_body(version.encode().into());
                    let described = Request { deadline: left / 2, ..described };
                    if let Some(reply) = Box::pin(self.of_origin(described)).await {
                        return complete(reply, &request);
                    }
                    request.deadline = attempts.left();
                }
            }
            let begun = (replicas > 1).then(|| Timed::begin(&link));
            let verdict = match landing.as_mut().filter(|_| is_hedged && !link.is_local) {
                Some(landing) => {
                    let raced =
                        self.raced(&attempts.routes, &link, version, &request, (key, replicas), landing).await?;
                    if let Some(begun) = begun {
                        // Who was overtaken took at least so long: without that, it would stay the favourite.
                        begun.end(!matches!(raced.first, Some(Err(_))));
                    }
                    attempts.judge_all(&link, raced)
                }
                None => {
                    let answer = self.call_described(&link, version, &request, landing.as_mut()).await?;
                    if let Some(begun) = begun {
                        begun.end(answer.is_ok());
                    }
                    attempts.judge(&link, answer)
                }
            };
            match verdict {
                Verdict::Settled(result) => return complete(result?, &request),
                Verdict::AskNext => landing.iter_mut().for_each(|landing| landing.must_land |= attempts.paths > 0),
            }
        }
    }

    /// A read of one member, and of others when it is overdue.
    ///
    /// # Errors
    /// When there is no memory to land the answer in.
    async fn raced(
        &self,
        routes: &Routes,
        link: &Link,
        version: &FileVersion,
        request: &Request,
        (key, replicas): (PlacementKey, u8),
        landing: &mut Landing<'_, '_>,
    ) -> Result<Raced, Failure> {
        let (length, buffers) = (request.length, landing.buffers);
        let (mut asked, mut has_asked_origin) = (Vec::new(), false);
        let began = tokio::time::Instant::now();
        // What is sent later has only what is left of the time.
        let described = || {
            let request = request.clone().with_body(version.encode().into());
            Request { deadline: request.deadline.saturating_sub(began.elapsed()), ..request }
        };
        let mut hedge = || {
            let unaided = || {
                let request = described();
                Request { flags: request.flags.and(Flags::UNAIDED), ..request }
            };
            match routes.another(link, (key, replicas), request.op, &asked) {
                Some(other) => {
                    // It waits for no memory: readers that have waited for less come first.
                    let into = match other.is_near() || other.is_local {
                        true => None,
                        false => Some(buffers.try_landing(length).ok_or(NoHedge::NoMemory)?),
                    };
                    asked.push(Arc::clone(&other));
                    let (by, request) = (Some(Arc::clone(&other)), unaided());
                    Ok(Hedge { by, answer: Box::pin(async move { self.counted(&other, request, into).await }) })
                }
                None if has_asked_origin => Err(NoHedge::Unasked),
                None => {
                    let Away::Origin(origin) = &self.away else { return Err(NoHedge::Unasked) };
                    has_asked_origin = true;
                    self.stats.direct_requests.fetch_add(1, Ordering::Relaxed);
                    Ok(Hedge { by: None, answer: origin.call(unaided(), None) })
                }
            }
        };
        let into = landing.room(link, length).await?;
        let first = self.counted(link, first_of(link, version, request), into);
        let race = Race::of(link, request);
        let raced = self.hedging.race(race, first, &mut hedge).await;
        if !raced.needs_description() {
            return Ok(raced);
        }
        let into = landing.room(link, length).await?;
        Ok(self.hedging.race(race, self.counted(link, described(), into), &mut hedge).await)
    }

    /// What the origin answers to a read whose workers are all slow, where this process reads it; nothing when it fails:
    /// they are there, after all, which is why it may not take all of the time.
    #[cold]
    async fn of_origin(&self, request: Request) -> Option<Reply> {
        let Away::Origin(origin) = &self.away else { return None };
        self.stats.direct_requests.fetch_add(1, Ordering::Relaxed);
        let block = request.block;
        let answer = origin.call(request, None).await;
        answer.inspect_err(|error| tracing::debug!(%block, %error, "the origin did not answer for a slow worker")).ok()
    }

    /// A request on a block to one member, with the description of its file version if it asks for that. It is not sent with
    /// each request because those that hit need none.
    ///
    /// # Errors
    /// When there is no memory to land the answer in.
    pub(crate) async fn call_described(
        &self,
        link: &Link,
        version: &FileVersion,
        request: &Request,
        mut landing: Option<&mut Landing<'_, '_>>,
    ) -> Result<Result<Reply, CallError>, Failure> {
        let into = match &mut landing {
            Some(landing) => landing.room(link, request.length).await?,
            None => None,
        };
        let answer = self.counted(link, first_of(link, version, request), into).await;
        match &answer {
            Err(CallError::Service(failure)) if failure.kind() == FailureKind::NeedsDescription => {}
            _ => return Ok(answer),
        }
        let described = request.clone().with_body(version.encode().into());
        let into = match landing {
            Some(landing) => landing.room(link, request.length).await?,
            None => None,
        };
        Ok(self.counted(link, described, into).await)
    }
}

/// One request that a link's speed is judged by. Dropped before its end, it counts as one that failed.
struct Timed<'a> {
    link: &'a Link,
    begun: Instant,
    answered: bool,
}

impl<'a> Timed<'a> {
    fn begin(link: &'a Link) -> Self {
        link.latency.sent();
        Self { link, begun: Instant::now(), answered: false }
    }

    fn end(mut self, answered: bool) {
        self.answered = answered;
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.link.latency.ended(self.answered.then(|| self.begun.elapsed()));
    }
}

/// The request as `link` gets it first.
fn first_of(link: &Link, version: &FileVersion, request: &Request) -> Request {
    // A client that starts a file of one block is likely the first to read it there: the worker shall not have to ask.
    let is_first = request.block.index == 0 && request.offset == 0 && version.size <= u64::from(MAX_BLOCK_SIZE);
    match is_first && !link.is_local {
        true => request.clone().with_body(version.encode().into()),
        false => request.clone(),
    }
}

/// Whether the worker of `link`, if it lacks the block, would ask one for it that is slow.
#[cold]
fn would_ask_a_slow_one(routes: &Routes, link: &Link, key: PlacementKey, replicas: u8) -> bool {
    let peers = routes.topology.peers(&link.member, key, usize::from(replicas));
    peers.iter().any(|member| routes.link(&member.name).is_some_and(|peer| peer.speed.is_slow()))
}

/// A reply to a read must carry all the bytes: a service that sends fewer has a fault.
pub(crate) fn complete(reply: Reply, request: &Request) -> Result<Reply, Failure> {
    let length = match &reply.payload {
        Payload::None => 0,
        Payload::Landed(span) => span.len(),
        Payload::Shared(spans) => spans.iter().map(|span| span.len()).sum(),
    };
    if request.op == Op::Read && length != request.length as usize {
        let message = format!("a worker sent {length} of {} bytes of block {}", request.length, request.block);
        return Err(Failure::new(FailureKind::Corrupt, message));
    }
    Ok(reply)
}
