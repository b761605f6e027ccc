//! The cases of the suite. Each panics when the transport breaks its contract.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_types::FailureKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::service::body;
use super::{Behaviour, Fixture, Scripted, assert_bytes, digest, is_link_error, pool, read, until, within};
use crate::error::{CallError, LinkError};
use crate::op::Op;
use crate::reply::{Provenance, Reply};
use crate::request::Request;
use crate::traits::Transport;
use crate::wire::{MAX_BODY_BESIDE_PAYLOAD, MAX_REQUEST_BODY, MAX_UPLOAD_BODY};

/// A deadline that does not pass.
const LONG: Duration = Duration::from_secs(60);
/// A deadline that is meant to pass.
const BRIEF: Duration = Duration::from_millis(150);
/// A deadline of what fails sooner.
const LITTLE: Duration = Duration::from_secs(3);
/// What changes something, and what an admin may ask for.
const CHANGES: [Op; 4] = [Op::Change, Op::Upload, Op::Free, Op::Refresh];

async fn start<F: Fixture>() -> (Arc<Scripted>, F, Arc<dyn Transport>) {
    let service = Scripted::new();
    let fixture = F::start(service.clone()).await;
    let transport = fixture.transport();
    (service, fixture, transport)
}

async fn answer(transport: &Arc<dyn Transport>, request: Request) -> Result<Reply, CallError> {
    let into = pool(1).try_alloc(request.length as usize);
    within("an answer", transport.call(request, into)).await
}

fn is_refused_as(result: &Result<Reply, CallError>, kind: FailureKind) -> bool {
    matches!(result, Err(CallError::Service(failure)) if failure.kind() == kind)
}

fn timed_out(result: &Result<Reply, CallError>) -> bool {
    match result {
        Err(CallError::Link(LinkError::TimedOut { .. })) => true,
        Err(CallError::Service(failure)) => failure.kind() == FailureKind::TimedOut,
        _ => false,
    }
}

/// Any length, any offset, from a service that answers at once or later.
pub async fn reads_of_any_size_bring_the_right_bytes<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    const LENGTHS: [u32; 14] =
        [0, 1, 2, 63, 64, 65, 4095, 4096, 16_320, 16_384, 16_385, 32_769, (1 << 20) - 1, 4 << 20];
    for (index, length) in LENGTHS.into_iter().enumerate() {
        for (behaviour, offset) in [(Behaviour::AtOnce, 0), (Behaviour::Later, 12_345)] {
            let request = read(behaviour, index as u64, offset, length, LONG);
            let reply = answer(&transport, request.clone()).await.unwrap();
            assert_bytes(&reply, &request, length as usize);
            assert_eq!(reply.provenance, Provenance { memory: 1, disk: 2, origin: length });
        }
    }
}

/// Fewer bytes than asked for are an answer.
pub async fn a_short_answer_lands_as_it_is<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    let request = read(Behaviour::Short, 3, 7, 100_000, LONG);
    let reply = answer(&transport, request.clone()).await.unwrap();
    assert_bytes(&reply, &request, 50_000);
}

/// Bodies of requests and of replies, up to the protocol's limits, and not beyond.
pub async fn bodies_go_both_ways<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    for length in [0, 1, 200, 16_384, MAX_REQUEST_BODY as usize] {
        let body = Bytes::from((0..length).map(|at| at as u8).collect::<Vec<_>>());
        let reply = answer(&transport, Request::on_path(Op::Stat, body.clone(), LONG)).await.unwrap();
        assert!(reply.body == body, "a body of {length} bytes came back different");
    }
    let page = answer(&transport, Request::on_path(Op::List, Bytes::new(), LONG)).await.unwrap();
    assert!(page.body.len() == crate::wire::MAX_REPLY_BODY as usize && page.body.iter().all(|byte| *byte == b'x'));
    assert!(answer(&transport, Request::on_path(Op::Ping, Bytes::new(), LONG)).await.unwrap().body.is_empty());
}

/// A body and a payload in one answer, both ways up to the limits; and what is not asked for does not come.
pub async fn a_question_about_a_small_file_brings_body_and_payload<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    for (path, room) in [(1, 0), (1, 500), (1, 1 << 20), (200, 1 << 20), (300, 256 << 10), (4096, 1 << 20)] {
        let mut request = Request::on_path(Op::StatRead, Bytes::from(vec![b'p'; path]), LONG);
        request.length = room;
        let reply = answer(&transport, request.clone()).await.unwrap();
        assert_eq!(reply.body, request.body.slice(..path.min(MAX_BODY_BESIDE_PAYLOAD as usize)));
        assert_bytes(&reply, &request, (room as usize).min(path * 1000));
    }
}

/// Bodies beyond those of ordinary requests, in one piece and in two. A transport that does not take them says so, and sends
/// nothing.
pub async fn large_bodies_arrive_whole_or_are_refused_and_hold_up_no_reads<F: Fixture>() {
    let (service, fixture, transport) = start::<F>().await;
    let takes_them = !transport.kind().is_rdma();
    let carries_changes = fixture.carries_changes();
    let upload = |head: usize, tail: usize| {
        let bytes = body(head + tail);
        let mut request = Request::on_path(Op::Upload, bytes.slice(..head), LONG);
        request.tail = bytes.slice(head..);
        (request, digest(&bytes))
    };
    let check = |(request, expected): (Request, Bytes)| {
        let transport = Arc::clone(&transport);
        async move {
            let length = request.body_len();
            let result = within("an upload", transport.call(request, None)).await;
            if length > MAX_REQUEST_BODY as usize && !takes_them {
                assert!(is_refused_as(&result, FailureKind::InvalidArgument), "{result:?}");
            } else if carries_changes {
                assert!(result.unwrap().body == expected, "{length} bytes arrived different");
            } else {
                assert!(is_refused_as(&result, FailureKind::PermissionDenied), "{result:?}");
            }
        }
    };
    let small = MAX_REQUEST_BODY as usize;
    for (head, tail) in [(0, 0), (100, 5000), (small, 0), (1, small - 1), (0, small), (small + 1, 0), (7, small)] {
        check(upload(head, tail)).await;
    }
    let largest = MAX_UPLOAD_BODY as usize;
    let too_large = within("a refusal", transport.call(upload(1, largest).0, None)).await;
    let many = (0..6).map(|number| tokio::spawn(check(upload(number, (9 << 20) + number)))).collect::<Vec<_>>();
    let all = tokio::spawn(check(upload(200, largest - 200)));
    for index in 0..100 {
        let request = read(Behaviour::Later, index, 0, 4096, LONG);
        assert_bytes(&answer(&transport, request.clone()).await.unwrap(), &request, 4096);
    }
    for upload in many.into_iter().chain([all]) {
        within("uploads at once", upload).await.unwrap();
    }
    // In one process, nothing is sent and the service does what it likes.
    assert!(too_large.is_err() || transport.kind() == crate::TransportKind::Local);
    assert_eq!(service.started(), service.ended());
}

/// Where a transport carries reads alone, nothing of a change reaches the service. Its connection goes on: a read that is under
/// way on it is answered.
pub async fn changes_reach_the_service_or_are_refused_and_cost_no_other_call<F: Fixture>() {
    let (service, fixture, transport) = start::<F>().await;
    let slow = read(Behaviour::Gated, 1, 0, 5000, LONG);
    let waiting = tokio::spawn({
        let (transport, slow) = (Arc::clone(&transport), slow.clone());
        async move { answer(&transport, slow).await }
    });
    until("the read reaches the service", || service.started() == 1).await;
    for op in CHANGES {
        let before = service.started();
        let result = answer(&transport, Request::on_path(op, Bytes::from_static(b"/a/b"), LONG)).await;
        let (is_right, reaches_it) = match fixture.carries_changes() {
            true => (result.is_ok(), 1),
            false => (is_refused_as(&result, FailureKind::PermissionDenied), 0),
        };
        assert!(is_right, "{op:?}: {result:?}");
        assert_eq!(service.started() - before, reaches_it, "{op:?}");
        let request = read(Behaviour::AtOnce, 2, 0, 100, LONG);
        assert_bytes(&answer(&transport, request.clone()).await.unwrap(), &request, 100);
    }
    service.open(1);
    assert_bytes(&within("the read that waited", waiting).await.unwrap().unwrap(), &slow, 5000);
}

/// A failure arrives as the service gave it, and the link lives on.
pub async fn failures_carry_their_kind_and_their_message<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    for _ in 0..2 {
        let result = answer(&transport, read(Behaviour::Fails, 0, 0, 4096, LONG)).await;
        let Err(CallError::Service(failure)) = result else { panic!("{result:?}") };
        assert_eq!((failure.kind(), failure.message()), (FailureKind::VersionChanged, "`/a/b` changed: été"));
    }
}

/// A service that gives too much is at fault, and its bytes go nowhere.
pub async fn a_reply_never_carries_more_than_was_asked_for<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    let result = answer(&transport, read(Behaviour::TooMuch, 0, 0, 1000, LONG)).await;
    assert!(is_refused_as(&result, FailureKind::Internal), "{result:?}");
    let request = read(Behaviour::AtOnce, 1, 0, 1000, LONG);
    assert_bytes(&answer(&transport, request.clone()).await.unwrap(), &request, 1000);
}

/// Many at once, of different sizes, from different tasks.
pub async fn a_thousand_calls_at_once_get_their_own_answers<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    let pool = pool(16);
    let calls = (0..1000u64).map(|index| {
        let (transport, pool) = (Arc::clone(&transport), pool.clone());
        tokio::spawn(async move {
            let behaviour = if index % 2 == 0 { Behaviour::AtOnce } else { Behaviour::Later };
            let length = (index as u32 * 37) % 9000;
            let request = read(behaviour, index, index as u32, length, LONG);
            let into = pool.alloc(length as usize, LONG).await.unwrap();
            let reply = transport.call(request.clone(), Some(into)).await.unwrap();
            assert_bytes(&reply, &request, length as usize);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        within("a call", call).await.unwrap();
    }
    assert_eq!(pool.used(), 0);
}

/// The deadline is kept when the service never answers, whatever its length.
pub async fn a_service_that_hangs_costs_the_deadline_and_no_more<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    for deadline in [Duration::from_micros(300), BRIEF] {
        let begin = Instant::now();
        let result = answer(&transport, read(Behaviour::Never, 0, 0, 4096, deadline)).await;
        assert!(timed_out(&result), "{result:?}");
        // It would never be answered.
        assert!(begin.elapsed() >= deadline && begin.elapsed() < deadline + LONG / 2, "{:?}", begin.elapsed());
    }
}

/// Calls that hang do not hold up those behind them.
pub async fn calls_that_wait_do_not_delay_others<F: Fixture>() {
    let (service, _fixture, transport) = start::<F>().await;
    let waiting: Vec<_> = (0..50)
        .map(|index| {
            let transport = Arc::clone(&transport);
            tokio::spawn(async move { answer(&transport, read(Behaviour::Gated, index, 0, 100, LONG)).await })
        })
        .collect();
    until("the calls reach the service", || service.started() == 50).await;
    // Before those that wait would be given up.
    let request = read(Behaviour::Later, 1, 0, 4096, LONG / 2);
    assert_bytes(&answer(&transport, request.clone()).await.unwrap(), &request, 4096);
    service.open(50);
    for call in waiting {
        assert!(within("a call that waited", call).await.unwrap().is_ok());
    }
}

/// Callers that leave, one after the other, leave everything as it was.
pub async fn a_cancelled_call_disturbs_no_other<F: Fixture>() {
    let (service, _fixture, transport) = start::<F>().await;
    let staying = tokio::spawn({
        let transport = Arc::clone(&transport);
        async move { answer(&transport, read(Behaviour::Gated, 9, 0, 5000, LONG)).await }
    });
    until("the call that stays reaches the service", || service.started() == 1).await;
    for _ in 0..20 {
        let leaving = answer(&transport, read(Behaviour::Never, 0, 0, 4096, LONG));
        assert!(tokio::time::timeout(Duration::from_millis(2), leaving).await.is_err());
    }
    service.open(1);
    let reply = within("the call that stayed", staying).await.unwrap().unwrap();
    assert_bytes(&reply, &read(Behaviour::Gated, 9, 0, 5000, LONG), 5000);
}

/// Invariant 3 for a caller that leaves.
pub async fn nobody_sees_the_buffer_of_a_cancelled_call_while_it_may_be_written<F: Fixture>() {
    let (service, _fixture, transport) = start::<F>().await;
    assert!(abandoned_buffer(&service, &transport, LONG).await);
}

/// Invariant 3 for a deadline that passes.
pub async fn nobody_sees_the_buffer_of_a_timed_out_call_while_it_may_be_written<F: Fixture>() {
    let mut deadline = BRIEF;
    loop {
        // A fresh one each time: a call that was given up may still arrive.
        let (service, _fixture, transport) = start::<F>().await;
        if abandoned_buffer(&service, &transport, deadline).await {
            return;
        }
        deadline *= 2;
    }
}

/// Begins a read into all the memory that there is, and leaves it: at once, or at its deadline. Then checks that the next owner of
/// that memory has it to itself while the service answers. False when the time was over before the read was there, as where
/// connecting takes long.
async fn abandoned_buffer(service: &Arc<Scripted>, transport: &Arc<dyn Transport>, deadline: Duration) -> bool {
    const WHOLE: usize = 4 << 20;
    let memory = pool(1);
    let call = tokio::spawn({
        let (transport, into) = (Arc::clone(transport), memory.try_alloc(WHOLE));
        async move { transport.call(read(Behaviour::Gated, 1, 0, WHOLE as u32, deadline), into).await }
    });
    until("the call reaches the service, or ends", || service.started() == 1 || call.is_finished()).await;
    if service.started() == 0 {
        assert!(within("the call", call).await.unwrap().is_err());
        return false;
    }
    if deadline == LONG {
        call.abort();
        assert!(within("the cancelled call", call).await.is_err());
    } else {
        let result = within("the call's deadline", call).await.unwrap();
        assert!(timed_out(&result), "{result:?}");
    }
    let mark = |mut buffer: forebay_memory::SpanMut| {
        buffer.fill(0xee);
        buffer
    };
    // A transport may give the memory back early if it knows that nothing will be written to it any more.
    let early = memory.try_alloc(WHOLE).map(mark);
    service.open(1);
    until("the service is done", || service.ended() == 1).await;
    let next = match early {
        Some(buffer) => buffer,
        None => mark(within("the memory comes back", memory.alloc(WHOLE, LONG)).await.unwrap()),
    };
    // Whatever was on its way when the service was done has arrived before this answer.
    for index in 0..8 {
        let request = read(Behaviour::AtOnce, index, 0, 1000, LONG);
        assert_bytes(&answer(transport, request.clone()).await.unwrap(), &request, 1000);
    }
    assert!(next.iter().all(|byte| *byte == 0xee), "the transport wrote to memory that it did not own any more");
    true
}

/// The same under load: buffers change hands at once, and every answer is checked to the last byte.
pub async fn reads_stay_right_while_others_are_cancelled_and_time_out<F: Fixture>() {
    let (_, _fixture, transport) = start::<F>().await;
    let memory = pool(2);
    let tasks = (0..8u64).map(|seed| {
        let (transport, memory) = (Arc::clone(&transport), memory.clone());
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            for _ in 0..60 {
                let length = random.random_range(1..300_000);
                let into = memory.alloc(length as usize, LONG).await.unwrap();
                let (behaviour, deadline) = match random.random_range(0..6) {
                    0 => (Behaviour::Never, Duration::from_millis(random.random_range(0..20))),
                    1 => (Behaviour::Later, Duration::from_millis(random.random_range(0..4))),
                    2 | 3 => (Behaviour::AtOnce, LONG),
                    _ => (Behaviour::Later, LONG),
                };
                let request = read(behaviour, random.random(), random.random_range(0..1000), length, deadline);
                let call = transport.call(request.clone(), Some(into));
                let patience = Duration::from_micros(random.random_range(0..20_000));
                let patience = if random.random_bool(0.3) { patience } else { LONG };
                match tokio::time::timeout(patience, call).await {
                    Ok(Ok(reply)) => assert_bytes(&reply, &request, length as usize),
                    Ok(result) => assert!(deadline < LONG && timed_out(&result), "{request:?}: {result:?}"),
                    Err(_) => assert!(patience < LONG),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        within("a task", task).await.unwrap();
    }
    until("all memory comes back", || memory.used() == 0).await;
}

/// Death costs the calls that are under way and no more.
pub async fn a_peer_that_dies_fails_its_calls_and_serves_again_when_it_is_back<F: Fixture>() {
    let (service, fixture, transport) = start::<F>().await;
    let memory = pool(8);
    let calls: Vec<_> = (0..8)
        .map(|index| {
            let (transport, into) = (Arc::clone(&transport), memory.try_alloc(4 << 20));
            tokio::spawn(async move { transport.call(read(Behaviour::Gated, index, 0, 4 << 20, LONG), into).await })
        })
        .collect();
    until("the calls reach the service", || service.started() == 8).await;
    // Some are in the middle of their transfer, perhaps, and the others wait.
    service.open(4);
    if !fixture.kill().await {
        service.open(4);
        for call in calls {
            assert!(within("a call", call).await.unwrap().is_ok());
        }
        return;
    }
    let mut lost = 0;
    for call in calls {
        let result = within("a call to a dead peer", call).await.unwrap();
        assert!(result.is_ok() || is_link_error(&result), "{result:?}");
        lost += usize::from(result.is_err());
    }
    assert!(lost >= 4, "only {lost} calls failed");
    until("all memory comes back", || memory.used() == 0).await;
    let result = answer(&transport, read(Behaviour::AtOnce, 0, 0, 100, LITTLE)).await;
    assert!(is_link_error(&result), "{result:?}");
    fixture.revive().await;
    let request = read(Behaviour::AtOnce, 5, 0, 100_000, LONG);
    assert_bytes(&answer(&transport, request.clone()).await.unwrap(), &request, 100_000);
}

/// After `close`, nothing is under way, nothing is held, and calls fail.
pub async fn close_waits_until_every_operation_has_ended<F: Fixture>() {
    let (service, _fixture, transport) = start::<F>().await;
    let memory = pool(1);
    let calls: Vec<_> = (0..20)
        .map(|index| {
            let (transport, into) = (Arc::clone(&transport), memory.try_alloc(4096));
            tokio::spawn(async move { transport.call(read(Behaviour::Gated, index, 0, 4096, LONG), into).await })
        })
        .collect();
    until("the calls reach the service", || service.started() == 20).await;
    // The callers of some have left.
    for call in calls.iter().take(10) {
        call.abort();
    }
    // In one process there is nothing to end: the calls run in their callers' tasks.
    let local = transport.kind() == crate::TransportKind::Local;
    if local {
        service.open(20);
    }
    within("close", transport.close()).await;
    if !local {
        assert_eq!(memory.used(), 0);
    }
    for call in calls.into_iter().skip(10) {
        let result = within("a call", call).await.unwrap();
        assert!(local || is_link_error(&result), "{result:?}");
    }
    let result = answer(&transport, read(Behaviour::AtOnce, 0, 0, 100, LONG)).await;
    assert!(is_link_error(&result), "{result:?}");
    within("a second close", transport.close()).await;
}
