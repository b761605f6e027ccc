//! I/O threads: what is answered on which thread, and what is left of them afterwards.

mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::*;
use forebay_tcp::{ClientOptions, ServerOptions};
use forebay_transport::conformance::{until, within};
use forebay_transport::{CallError, Op, Request, Response, Service, Transport};
use forebay_types::Failure;

/// Threads are those of the process: one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Answers with the name of the thread that answers; panics at once when it is asked to fill.
#[derive(Default)]
struct Named {
    at_once: Mutex<HashSet<String>>,
}

fn this_thread() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[async_trait::async_trait]
impl Service for Named {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        assert_ne!(request.op, Op::Fill, "on purpose");
        (request.op == Op::Stats).then(|| {
            self.at_once.lock().unwrap().insert(this_thread());
            Response::of_body(Bytes::from(this_thread()))
        })
    }

    async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
        tokio::task::yield_now().await;
        Ok(Response::of_body(Bytes::from(this_thread())))
    }
}

fn ask(op: Op) -> Request {
    Request::on_path(op, Bytes::new(), LONG)
}

fn io_threads_alive() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("tcp-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_at_once_is_answered_on_an_io_thread_and_everything_else_on_the_servers_runtime() {
    let _alone = ALONE.lock().await;
    let service = Arc::new(Named::default());
    let server = serve(ServerOptions { io_threads: Some(2), ..server_options() }, service.clone());
    let clients: Vec<_> =
        (0..4).map(|_| link(server.local_addr(), ClientOptions { connections: 1, ..client_options() })).collect();
    for client in &clients {
        let first = call(client, ask(Op::Stats)).await.unwrap().body;
        assert!(first.starts_with(b"tcp-"), "{first:?}");
        for _ in 0..10 {
            assert_eq!(call(client, ask(Op::Stats)).await.unwrap().body, first);
            let later = call(client, ask(Op::Stat)).await.unwrap().body;
            assert!(!later.starts_with(b"tcp-"), "{later:?}");
        }
    }
    // Four connections share two threads evenly.
    assert_eq!(service.at_once.lock().unwrap().len(), 2);
    assert_eq!(io_threads_alive(), 2);
    within("close", server.close()).await;
    assert_eq!(server.connections(), 0);
    // The kernel lists a thread that was joined for a moment longer.
    until("the threads are gone", || io_threads_alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_its_connection_and_no_other_of_its_thread() {
    let _alone = ALONE.lock().await;
    let server = serve(ServerOptions { io_threads: Some(1), ..server_options() }, Arc::new(Named::default()));
    let one = || link(server.local_addr(), ClientOptions { connections: 1, ..client_options() });
    let (first, second) = (one(), one());
    for client in [&first, &second] {
        call(client, ask(Op::Stats)).await.unwrap();
    }
    let lost = call(&first, ask(Op::Fill)).await;
    assert!(matches!(lost, Err(CallError::Link(_))), "{lost:?}");
    until("it is gone", || server.connections() == 1).await;
    call(&second, ask(Op::Stats)).await.unwrap();
    // It is made again by the next call.
    call(&first, ask(Op::Stats)).await.unwrap();
    within("close", server.close()).await;
    // The kernel lists a thread that was joined for a moment longer.
    until("the thread is gone", || io_threads_alive() == 0).await;
}

#[test]
fn io_threads_end_when_the_runtime_that_accepts_goes_away() {
    let alone = ALONE.blocking_lock();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (serving, asking) = (runtime(), runtime());
    let server = serving.block_on(async {
        serve(ServerOptions { io_threads: Some(2), ..server_options() }, Arc::new(Named::default()))
    });
    asking.block_on(async {
        let client = link(server.local_addr(), client_options());
        call(&client, ask(Op::Stats)).await.unwrap();
        serving.shutdown_background();
        until("no thread is left", || io_threads_alive() == 0).await;
        client.close().await;
    });
    drop((server, alone));
}
