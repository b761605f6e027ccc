//! Many connections, little memory, and what is told of both.

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use forebay_rdma::{
    FabricOptions, IoThread, IoThreadOptions, IoThreadStats, RdmaServer, RdmaTransport, Resource, ServerOptions, Trace,
};
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, read, until, within};
use forebay_transport::{Op, Request, Transport};
use forebay_types::ByteSize;

const CONNECTIONS: usize = 1000;

/// Memory of this process that is backed, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_made_and_used_at_once() {
    let Some(library) = library() else { return };
    let server = serve(library, 0, Scripted::new()).await;
    let buffers = pool(64);
    let io_threads: Vec<_> = (0..4).map(|_| io_thread_of(library, "client", buffers.clone())).collect();
    let link = |index: usize| {
        let io_thread = Arc::clone(&io_threads[index % io_threads.len()]);
        Arc::new(RdmaTransport::new(server.local_addr().to_string(), io_thread, client_options()))
    };
    assert_serves(&link(0)).await;
    let (before, start) = (resident(), Instant::now());
    let links: Vec<_> = (0..CONNECTIONS).map(link).collect();
    let mut quarters = Vec::new();
    for (index, link) in links.iter().enumerate() {
        if index % (CONNECTIONS / 4) == 0 {
            quarters.push(Instant::now());
        }
        let request = read(Behaviour::AtOnce, index as u64, 0, 1000, LONG);
        let reply = link.call(request.clone(), buffers.try_alloc(1000)).await.unwrap();
        assert_bytes(&reply, &request, 1000);
    }
    let made = start.elapsed();
    quarters.push(Instant::now());
    let memory = resident().saturating_sub(before);
    assert!(server.connections() >= CONNECTIONS, "{}", server.connections());
    let start = Instant::now();
    let calls: Vec<_> = (0..CONNECTIONS as u64)
        .map(|index| {
            let (link, buffers) = (Arc::clone(&links[index as usize]), buffers.clone());
            tokio::spawn(async move {
                let request = read(Behaviour::Later, index, 0, 20_000, LONG);
                let into = buffers.alloc(20_000, LONG).await.unwrap();
                let reply = link.call(request.clone(), Some(into)).await.unwrap();
                assert_bytes(&reply, &request, 20_000);
            })
        })
        .collect();
    for call in calls {
        within("all calls at once", call).await.unwrap();
    }
    println!(
        "{CONNECTIONS} connections: {:.2} ms and {} KiB each, both sides; a call on all of them at once {:?}",
        made.as_secs_f64() * 1e3 / CONNECTIONS as f64,
        memory / CONNECTIONS as u64,
        start.elapsed()
    );
    // Each of the last costs what each of the first did, on whatever machine: with a cost that grows by what is there it is seven times.
    let quarters: Vec<_> = quarters.windows(2).map(|ends| ends[1] - ends[0]).collect();
    assert!(quarters[3] < 4 * quarters[0] + Duration::from_secs(5), "{quarters:?}");
    assert!(memory / (CONNECTIONS as u64) < 512, "{memory} KiB");
    let counted: usize = io_threads.iter().map(|io_thread| io_thread.stats().connections).sum();
    assert!(counted >= CONNECTIONS, "{counted}");
    drop(links);
    until("the server has seen them leave", || server.connections() == 0).await;
    for io_thread in io_threads {
        within("an I/O thread ends", io_thread.close()).await;
    }
    within("the server ends", server.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_queue_for_registered_memory_and_all_get_their_turn() {
    let Some(library) = library() else { return };
    let server = serve(library, 0, Scripted::new()).await;
    // Two blocks for sixteen readers.
    let buffers = pool(8);
    let io_thread = io_thread_of(library, "client", buffers.clone());
    let link = Arc::new(RdmaTransport::new(server.local_addr().to_string(), Arc::clone(&io_thread), client_options()));
    let turns = Arc::new(Mutex::new(Vec::new()));
    let readers: Vec<_> = (0..16)
        .map(|index| {
            let (link, buffers, turns) = (Arc::clone(&link), buffers.clone(), Arc::clone(&turns));
            tokio::spawn(async move {
                for _ in 0..8 {
                    let request = read(Behaviour::Later, index, 7, 100_000, LONG);
                    let into = buffers.alloc(4 << 20, LONG).await.unwrap();
                    turns.lock().unwrap().push(index);
                    let reply = link.call(request.clone(), Some(into)).await.unwrap();
                    assert_bytes(&reply, &request, request.length as usize);
                }
            })
        })
        .collect();
    for reader in readers {
        within("every reader ends", reader).await.unwrap();
    }
    // In turn: by the time that one has had all of its turns, each has had some.
    let turns = turns.lock().unwrap().clone();
    let had = |reader: u64, by: usize| turns[..by].iter().filter(|turn| **turn == reader).count();
    let first_done = (1..=turns.len()).find(|by| had(turns[by - 1], *by) == 8).unwrap();
    assert!((0..16).all(|reader| had(reader, first_done) >= 1), "{turns:?}");
    assert!(io_thread.stats().waits > 0);
    assert_eq!((buffers.used(), buffers.occupancy().failures), (0, 0));
    link.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_says_what_it_is_doing() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = serve(library, 0, service.clone()).await;
    let (io_thread, link) = link(library, server.local_addr());
    let idle = IoThreadStats { registered: ByteSize::mib(64), ..IoThreadStats::default() };
    assert_eq!(io_thread.stats(), idle);
    assert_serves(&link).await;
    until("what was sent has ended", || io_thread.stats() == IoThreadStats { connections: 1, ..idle }).await;
    assert_eq!(server.io_thread().stats().connections, 1);
    link.close().await;
    assert_eq!(io_thread.stats(), idle);
    until("the server has seen it leave", || server.io_thread().stats().connections == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_are_recorded_by_stage_where_that_is_wanted() {
    let Some(library) = library() else { return };
    let (trace, registered) = (Arc::new(Trace::new()), pool(64));
    let io_thread = traced_io_thread(library, "server", registered, &trace);
    let options =
        ServerOptions { trace: Some(Arc::clone(&trace)), ..ServerOptions::new(address(0), CLUSTER, BLOCK_SIZE) };
    let server = RdmaServer::bind(io_thread, options, Scripted::new()).await.unwrap();
    let io_thread = io_thread_of(library, "client", pool(64));
    let options = forebay_rdma::ClientOptions { trace: Some(Arc::clone(&trace)), ..client_options() };
    let link = RdmaTransport::new(server.local_addr().to_string(), io_thread, options);
    let slow = Duration::from_millis(300);
    for length in [100, 1 << 20] {
        for behaviour in [Behaviour::AtOnce, Behaviour::Later, Behaviour::Fails] {
            let _ = call(&link, read(behaviour, 1, 0, length, LONG)).await;
        }
    }
    let _ = call(&link, read(Behaviour::Never, 1, 0, 100, slow)).await;
    call(&link, Request::on_path(Op::Stat, b"/a".as_slice().into(), LONG)).await.unwrap();
    // The server's last answer may be recorded after the client has it, and what the client gave up when it has really ended.
    let mut reports: Vec<forebay_rdma::trace::TraceReport> = Vec::new();
    until("everything is recorded", || {
        reports.push(trace.report());
        let counts = [0, 1, 2].map(|kind| reports.iter().map(|report| report.operations[kind].count).sum::<u64>());
        counts == [7, 1, 8]
    })
    .await;
    let sum = |kind: usize, of: fn(&forebay_rdma::trace::OperationReport) -> u64| -> u64 {
        reports.iter().map(|report| of(&report.operations[kind])).sum()
    };
    let moved = 2 * (100 + (1 << 20));
    for (kind, count, failures, bytes) in [(0, 7, 3, moved), (1, 1, 0, 0), (2, 8, 3, moved)] {
        let found =
            (sum(kind, |of| of.count), sum(kind, |of| of.failures.values().sum()), sum(kind, |of| of.bytes.as_u64()));
        assert_eq!(found, (count, failures, bytes), "kind {kind}: {reports:?}");
    }
    let longest = reports.iter().filter_map(|report| report.operations[2].store).map(|store| store.max).max().unwrap();
    assert!(longest >= slow, "the service's share: {longest:?}");
    assert_eq!(reports.iter().filter_map(|report| report.registration).map(|stage| stage.count).sum::<u64>(), 1);
    link.close().await;
    server.close().await;
}

#[test]
fn ucx_takes_what_is_asked_of_the_fabric_by_the_names_that_all_its_transports_share() {
    let Some(library) = library() else { return };
    let fabric = FabricOptions {
        gid_index: Some(1),
        service_level: Some(3),
        traffic_class: Some(106),
        partition_key: Some(0x8001),
        mtu: Some(1024),
        ack_timeout: Some(Duration::from_millis(500)),
        retry_count: Some(7),
        rnr_retry_count: Some(7),
    };
    // Over shared memory nothing comes of it; an option that UCX does not know is an error all the same.
    match IoThread::start(library, IoThreadOptions { fabric, ..io_thread_options("fabric", pool(8)) }) {
        Ok(io_thread) => assert_eq!(io_thread.name(), "fabric"),
        Err(error) if library.transports().is_ok_and(|found| !found.iter().any(Resource::is_rdma)) => {
            // Its module for InfiniBand, whose options these are, is not installed.
            let known = ["IB_GID_INDEX", "IB_SL", "IB_TRAFFIC_CLASS", "IB_PKEY", "IB_PATH_MTU", "RC_"]
                .iter()
                .any(|key| error.to_string().contains(key));
            assert!(known, "{error}");
            skipped(&error);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn dropping_a_lane_ends_its_thread() {
    let Some(library) = library() else { return };
    let named = |name: &str| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        threads
            .filter(|thread| {
                let path = thread.as_ref().unwrap().path().join("comm");
                std::fs::read_to_string(path).is_ok_and(|found| found.trim() == name)
            })
            .count()
    };
    let io_thread: Arc<IoThread> = io_thread_of(library, "dropped", pool(8));
    assert_eq!(named("rdma-dropped"), 1);
    drop(io_thread);
    // Waited for; the kernel may list it for a moment longer.
    let start = Instant::now();
    while named("rdma-dropped") > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "its thread still runs");
        std::thread::sleep(Duration::from_millis(1));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let io_thread = io_thread_of(library, "dropped", pool(8));
        drop(io_thread);
        until("it ends all the same", || named("rdma-dropped") == 0).await;
    });
}
