//! A service behind programmable delays, losses and deaths, in tokio's time: with `start_paused`, in no time at all.
//!
//! It behaves as a remote peer does, not as a function call: payload is copied into the caller's buffer; an operation
//! has a task of its own that owns the buffer, and goes on when its caller leaves; a lost message is lost until the
//! connection is, so its buffer stays away until [`FakeTransport::kill`] or [`Transport::close`].
//!
//! What is to go wrong with a call is decided when the call is made, so a script of faults hits the calls in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::{SpanMut, Spans};
use forebay_types::{Failure, FailureKind};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{CallError, LinkError};
use crate::op::Op;
use crate::reply::{Payload, Reply, Response, ResponsePayload};
use crate::request::Request;
use crate::traits::{Service, Transport, TransportKind};

/// How long messages travel: half of it to the service, half of it back.
#[derive(Clone, Debug, Default)]
pub enum Delay {
    /// No time.
    #[default]
    None,
    /// Always as long.
    Fixed(Duration),
    /// Between `least` and `most`, the same for the same seed; replies overtake each other.
    Random {
        /// Where the sequence starts.
        seed: u64,
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
}

/// The link.
pub struct FakeTransport {
    shared: Arc<FakeTransportShared>,
}

struct FakeTransportShared {
    peer: String,
    service: Arc<dyn Service>,
    faults: Mutex<Faults>,
    hang: watch::Sender<bool>,
    tasks: TaskTracker,
}

struct Faults {
    delay: Delay,
    random: StdRng,
    drop_requests: u32,
    drop_replies: u32,
    fail_next: VecDeque<CallError>,
    /// Replies that are held back to be let go in reverse order; at most so many.
    reorder: usize,
    held: Vec<oneshot::Sender<()>>,
    /// Operations that will come to the point where replies are held.
    coming: usize,
    /// The life of the peer, until it is killed.
    life: CancellationToken,
    down: bool,
    closed: bool,
    calls: HashMap<Op, u64>,
}

/// What is to happen to one call.
struct Plan {
    delay: Duration,
    drop_request: bool,
    drop_reply: bool,
    life: CancellationToken,
}

impl FakeTransport {
    /// A link to `service`, without faults. `peer` is its address, for messages.
    #[must_use]
    pub fn new(peer: impl Into<String>, service: Arc<dyn Service>) -> Self {
        let faults = Faults {
            delay: Delay::None,
            random: StdRng::seed_from_u64(0),
            drop_requests: 0,
            drop_replies: 0,
            fail_next: VecDeque::new(),
            reorder: 0,
            held: Vec::new(),
            coming: 0,
            life: CancellationToken::new(),
            down: false,
            closed: false,
            calls: HashMap::new(),
        };
        let (hang, _) = watch::channel(false);
        let faults = Mutex::new(faults);
        Self {
            shared: Arc::new(FakeTransportShared {
                peer: peer.into(),
                service,
                faults,
                hang,
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// Calls take so long from now on, besides what the service takes.
    pub fn delay(&self, delay: Delay) {
        let mut faults = self.shared.faults.lock();
        if let Delay::Random { seed, .. } = delay {
            faults.random = StdRng::seed_from_u64(seed);
        }
        faults.delay = delay;
    }

    /// The next `count` requests never reach the service.
    pub fn drop_requests(&self, count: u32) {
        self.shared.faults.lock().drop_requests = count;
    }

    /// The service acts on the next `count` requests, and its replies are lost.
    pub fn drop_replies(&self, count: u32) {
        self.shared.faults.lock().drop_replies = count;
    }

    /// Replies are held back, up to `window` of them or until no other is coming, and then arrive last first. 0 ends
    /// that.
    pub fn reorder(&self, window: usize) {
        let mut faults = self.shared.faults.lock();
        faults.reorder = window;
        faults.release();
    }

    /// The next `count` calls end with `error`, and the service never sees them.
    pub fn fail_next(&self, count: usize, error: &CallError) {
        self.shared.faults.lock().fail_next.extend(std::iter::repeat_n(error.clone(), count));
    }

    /// Whether the peer stands still: it takes requests and does nothing until it goes on.
    pub fn hang(&self, hang: bool) {
        self.shared.hang.send_replace(hang);
    }

    /// The peer dies: what is under way is lost, and nothing connects until [`FakeTransport::revive`].
    pub fn kill(&self) {
        let mut faults = self.shared.faults.lock();
        faults.down = true;
        faults.life.cancel();
    }

    /// The peer is there again.
    pub fn revive(&self) {
        let mut faults = self.shared.faults.lock();
        faults.down = false;
        faults.life = CancellationToken::new();
    }

    /// How many calls of `op` there were, those included that failed.
    #[must_use]
    pub fn calls(&self, op: Op) -> u64 {
        self.shared.faults.lock().calls.get(&op).copied().unwrap_or(0)
    }
}

impl Faults {
    fn travel_time(&mut self) -> Duration {
        match self.delay {
            Delay::None => Duration::ZERO,
            Delay::Fixed(delay) => delay,
            Delay::Random { least, most, .. } => self.random.random_range(least..=most.max(least)),
        }
    }

    fn plan(&mut self) -> Plan {
        let drop_request = self.drop_requests > 0;
        self.drop_requests = self.drop_requests.saturating_sub(1);
        let drop_reply = !drop_request && self.drop_replies > 0;
        self.drop_replies -= u32::from(drop_reply);
        self.coming += usize::from(!drop_request && !drop_reply);
        Plan { delay: self.travel_time(), drop_request, drop_reply, life: self.life.clone() }
    }

    /// Lets the held replies go, last first, when there are enough or no more are coming.
    fn release(&mut self) {
        if self.held.len() >= self.reorder || self.held.len() >= self.coming {
            for reply in self.held.drain(..).rev() {
                // One that is no longer waited for was killed.
                let _ = reply.send(());
            }
        }
    }
}

/// An operation that will come to the point where replies are held, or has ended before.
struct Coming<'a>(&'a FakeTransportShared);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut faults = self.0.faults.lock();
        faults.coming -= 1;
        faults.release();
    }
}

impl FakeTransportShared {
    fn lost(&self, reason: &str) -> LinkError {
        LinkError::Lost { peer: self.peer.clone(), reason: reason.to_owned() }
    }

    /// Begins a call: what happens to it, or why it fails at once.
    fn admit(&self, op: Op) -> Result<Plan, CallError> {
        let mut faults = self.faults.lock();
        *faults.calls.entry(op).or_default() += 1;
        if faults.closed {
            return Err(self.lost("it was closed").into());
        }
        if faults.down {
            let reason = "connection refused".to_owned();
            return Err(LinkError::Connect { peer: self.peer.clone(), reason }.into());
        }
        match faults.fail_next.pop_front() {
            Some(error) => Err(error),
            None => Ok(faults.plan()),
        }
    }

    /// One operation, from the sending of the request to the arrival of the reply. It owns the buffer.
    async fn operate(&self, request: Request, into: Option<SpanMut>, plan: Plan) -> Result<Reply, CallError> {
        let coming = (!plan.drop_request && !plan.drop_reply).then(|| Coming(self));
        let exchange = async {
            travel(plan.delay / 2).await;
            if plan.drop_request {
                std::future::pending::<()>().await;
            }
            // The sender lives as long as `self`.
            let _ = self.hang.subscribe().wait_for(|hang| !hang).await;
            let answer = self.answer(&request).await;
            if plan.drop_reply {
                std::future::pending::<()>().await;
            }
            travel(plan.delay / 2).await;
            self.hold().await;
            drop(coming);
            answer
        };
        let response = tokio::select! {
            biased;
            () = plan.life.cancelled() => return Err(self.lost("the peer died").into()),
            answer = exchange => answer.map_err(CallError::Service)?,
        };
        land(response, into).map_err(CallError::Service)
    }

    async fn answer(&self, request: &Request) -> Result<Response, Failure> {
        if let Some(response) = self.service.try_handle(request) {
            return response.fitting(request);
        }
        match tokio::time::timeout(request.deadline, self.service.handle(request.clone(), false)).await {
            Ok(answer) => answer?.fitting(request),
            Err(_) => Err(Failure::new(FailureKind::TimedOut, "no answer within the request's deadline")),
        }
    }

    /// Waits until this reply may be let go.
    async fn hold(&self) {
        let released = {
            let mut faults = self.faults.lock();
            if faults.reorder == 0 {
                return;
            }
            let (release, released) = oneshot::channel();
            faults.held.push(release);
            faults.release();
            released
        };
        // Dropped only together with the transport.
        let _ = released.await;
    }
}

async fn travel(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Copies the payload into the caller's buffer, as a network would.
fn land(response: Response, into: Option<SpanMut>) -> Result<Reply, Failure> {
    let Response { provenance, body, payload } = response;
    let spans = match payload {
        ResponsePayload::None => Spans::new(),
        ResponsePayload::Spans(spans) => spans,
        ResponsePayload::File(_) => {
            let message = "the service answered with a file, which the fake transport does not take";
            return Err(Failure::new(FailureKind::Internal, message));
        }
    };
    let payload = into.map_or(Payload::None, |mut into| {
        let mut end = 0;
        for span in &spans {
            // It fits: the request's limit and the response were both checked.
            into[end..end + span.len()].copy_from_slice(span);
            end += span.len();
        }
        into.truncate(end);
        Payload::Landed(into)
    });
    Ok(Reply { provenance, body, payload })
}

#[async_trait::async_trait]
impl Transport for FakeTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        request.payload_limit(into.as_ref()).map_err(CallError::Service)?;
        let (deadline, op) = (request.deadline, request.op);
        let plan = self.shared.admit(op)?;
        let into = into.filter(|_| op.brings_payload());
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            let result = shared.operate(request, into, plan).await;
            // A caller that has left loses nothing: its buffer goes back to the pool here.
            let _ = answer.send(result);
        });
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.shared.lost("its task was stopped").into()),
            Err(_) => Err(LinkError::TimedOut { peer: self.shared.peer.clone(), waited: deadline }.into()),
        }
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Fake
    }

    fn peer(&self) -> &str {
        &self.shared.peer
    }

    async fn close(&self) {
        {
            let mut faults = self.shared.faults.lock();
            faults.closed = true;
            faults.life.cancel();
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for FakeTransport {
    fn drop(&mut self) {
        let mut faults = self.shared.faults.lock();
        faults.closed = true;
        faults.life.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Behaviour, Fixture, Scripted, is_link_error, read};
    use tokio::time::Instant;

    /// What the suite needs to run against the fake.
    struct Faked(Arc<FakeTransport>);

    #[async_trait::async_trait]
    impl Fixture for Faked {
        async fn start(service: Arc<dyn Service>) -> Self {
            Self(Arc::new(FakeTransport::new("fake", service)))
        }

        fn transport(&self) -> Arc<dyn Transport> {
            self.0.clone()
        }

        async fn kill(&self) -> bool {
            self.0.kill();
            true
        }

        async fn revive(&self) {
            self.0.revive();
        }
    }

    crate::transport_conformance!(Faked);

    fn fake() -> (Arc<Scripted>, Arc<FakeTransport>) {
        let service = Scripted::new();
        (Arc::clone(&service), Arc::new(FakeTransport::new("fake", service)))
    }

    async fn call(fake: &FakeTransport, deadline: Duration) -> Result<Reply, CallError> {
        let pool = crate::conformance::pool(1);
        fake.call(read(Behaviour::AtOnce, 1, 0, 100, deadline), pool.try_alloc(100)).await
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn delays_pass_in_virtual_time() {
        let (_, fake) = fake();
        fake.delay(Delay::Fixed(Duration::from_secs(60)));
        let start = Instant::now();
        call(&fake, LONG).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(60));
        fake.delay(Delay::Random { seed: 7, least: Duration::from_secs(1), most: Duration::from_secs(2) });
        let start = Instant::now();
        call(&fake, LONG).await.unwrap();
        assert!((1.0..=2.0).contains(&start.elapsed().as_secs_f64()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_request_never_reaches_the_service_and_a_lost_reply_does() {
        let (service, fake) = fake();
        fake.drop_requests(1);
        assert!(is_link_error(&call(&fake, LONG).await));
        assert_eq!(service.started(), 0);
        fake.drop_replies(1);
        assert!(matches!(call(&fake, LONG).await, Err(CallError::Link(LinkError::TimedOut { .. }))));
        assert_eq!(service.started(), 1);
        assert!(call(&fake, LONG).await.is_ok());
        assert_eq!(fake.calls(Op::Read), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn replies_arrive_last_first_when_they_are_reordered() {
        let (_, fake) = fake();
        fake.reorder(3);
        let order = Arc::new(Mutex::new(Vec::new()));
        let calls = (0..4).map(|number| {
            let (fake, order) = (Arc::clone(&fake), Arc::clone(&order));
            tokio::spawn(async move {
                call(&fake, LONG).await.unwrap();
                order.lock().push(number);
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        assert_eq!(*order.lock(), [2, 1, 0, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_hangs_costs_the_deadline_and_then_goes_on() {
        let (_, fake) = fake();
        fake.hang(true);
        let start = Instant::now();
        assert!(is_link_error(&call(&fake, Duration::from_secs(5)).await));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        let (answer, ()) = tokio::join!(call(&fake, LONG), async { fake.hang(false) });
        assert!(answer.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_calls_fail_as_told() {
        let (service, fake) = fake();
        let error = CallError::Service(Failure::new(FailureKind::Corrupt, "scripted"));
        fake.fail_next(2, &error);
        for _ in 0..2 {
            assert_eq!(call(&fake, LONG).await.unwrap_err(), error);
        }
        assert!(call(&fake, LONG).await.is_ok());
        assert_eq!(service.started(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_buffer_of_a_lost_message_comes_back_when_the_connection_ends() {
        let (_, fake) = fake();
        let pool = crate::conformance::pool(1);
        fake.drop_requests(1);
        let request = read(Behaviour::AtOnce, 1, 0, 100, Duration::from_secs(1));
        assert!(fake.call(request, pool.try_alloc(100)).await.is_err());
        assert!(pool.used() > 0);
        fake.close().await;
        assert_eq!(pool.used(), 0);
    }
}
