//! Requests on names: what one is, and what is in a directory. And others that any worker answers.
//!
//! The worker that owns a directory hears of all changes in it, so it is asked, and the next one when it does not answer. A
//! question that it keeps waiting is sent to another one as well ([`crate::hedging`]). That one was told of nothing, and may
//! remember what was before, so it is asked for what the origin says now: because a worker is late, nobody is told what is older
//! than what that worker would say. Whoever made a change sees it, for it was at the origin when that was acknowledged.
//!
//! Questions to a worker that is known to be slow go elsewhere at once, as if it could not be reached. The one in its place believes
//! for `metadata.ttl` what it has heard itself, and about what this client has changed it asks the origin.
//!
//! Who insists on what the origin says now asks the owner alone, slow or not: it is to learn that, too, since it answers those who
//! ask next and do not insist. What is no question is never sent twice.

use std::sync::Arc;

use bytes::Bytes;
use forebay_cluster::PlacementKey;
use forebay_memory::SpanMut;
use forebay_transport::{Flags, Op, Reply, Request};
use forebay_types::Failure;

use crate::attempts::Verdict;
use crate::hedging::{Hedge, NoHedge, Race, Raced};
use crate::router::Router;
use crate::routes::{Link, Routes};

impl Router {
    /// Calls about `key`, worker after worker, until one answers what settles the matter.
    ///
    /// A payload lands in `into`; workers that are asked after the first are asked for none.
    pub(crate) async fn call(
        &self,
        key: PlacementKey,
        mut request: Request,
        mut into: Option<SpanMut>,
    ) -> Result<Reply, Failure> {
        let is_hedged = self.hedging.applies_to(&request);
        let mut attempts = self.attempts(key, 1, self.timeout()).avoiding_slow(is_hedged.then_some(request.op));
        let flags = request.flags;
        loop {
            let Some((link, mut left)) = attempts.next() else {
                (into, request.length) = (None, 0);
                match Box::pin(self.when_all_are_silent(&mut attempts, &request)).await {
                    None => continue,
                    Some(settled) => return settled,
                }
            };
            if let Some(changes) = link.missed.due() {
                if let Err(error) = self.catch_up(&link, changes, left).await {
                    attempts.pass_over(&link, error);
                    continue;
                }
                left = attempts.left();
            }
            request.deadline = left;
            // Only owners are told of changes.
            request.flags = match attempts.is_stand_in(&link) && self.changes.has_changed(key) {
                true => flags.and(Flags::REVALIDATE),
                false => flags,
            };
            let into = into.take();
            if into.is_none() {
                request.length = 0;
            }
            let verdict = match is_hedged && !link.is_local {
                true => {
                    let raced = self.raced_on_name(&attempts.routes, &link, key, &request, into).await;
                    attempts.judge_all(&link, raced)
                }
                false => attempts.judge(&link, self.counted(&link, request.clone(), into).await),
            };
            match verdict {
                Verdict::Settled(result) => return result,
                Verdict::AskNext => {}
            }
        }
    }

    /// A request on the namespace, to the worker that owns `key`.
    pub(crate) async fn ask(&self, key: PlacementKey, op: Op, body: Bytes, flags: Flags) -> Result<Bytes, Failure> {
        let mut request = Request::on_path(op, body, self.timeout());
        request.flags = flags;
        Ok(self.call(key, request, None).await?.body)
    }

    /// A question about a name to one member, and to others when it is overdue.
    async fn raced_on_name(
        &self,
        routes: &Routes,
        link: &Link,
        key: PlacementKey,
        request: &Request,
        into: Option<SpanMut>,
    ) -> Raced {
        let began = tokio::time::Instant::now();
        let mut asked = Vec::new();
        let mut hedge = || {
            let Some(other) = routes.another(link, (key, 1), request.op, &asked) else { return Err(NoHedge::Unasked) };
            asked.push(Arc::clone(&other));
            // What is sent later has only what is left of the time, and no buffer.
            let deadline = request.deadline.saturating_sub(began.elapsed());
            let flags = request.flags.and(Flags::REVALIDATE);
            let request = Request { flags, deadline, length: 0, ..request.clone() };
            let by = Some(Arc::clone(&other));
            Ok(Hedge { by, answer: Box::pin(async move { self.counted(&other, request, None).await }) })
        };
        let first = self.counted(link, request.clone(), into);
        self.hedging.race(Race::of(link, request), first, &mut hedge).await
    }
}
