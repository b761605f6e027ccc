//! The end of a server while a disk hangs that it sends from.

mod common;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use common::*;
use forebay_tcp::ServerOptions;
use forebay_transport::conformance::{Behaviour, read, until, within};
use forebay_transport::{FileSlice, Op, Provenance, Request, Response, ResponsePayload, Service, Transport};
use forebay_types::Failure;

const LENGTH: u32 = 4096;

/// Answers reads from a file.
struct Filed {
    file: Arc<File>,
    is_asked: AtomicBool,
}

#[async_trait::async_trait]
impl Service for Filed {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op != Op::Read {
            return None;
        }
        self.is_asked.store(true, Ordering::Release);
        let slice = FileSlice { file: Arc::clone(&self.file), offset: 0, length: LENGTH, pin: Box::new(()) };
        let payload = ResponsePayload::File(slice);
        Some(Response { provenance: Provenance::default(), body: Bytes::new(), payload })
    }

    async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Ok(Response::of_body(Bytes::new()))
    }
}

#[test]
fn a_server_ends_in_seconds_though_a_disk_hangs_that_it_sends_from() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        // The only thread that may wait for a disk does.
        let (goes_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let hangs = tokio::task::spawn_blocking(move || _ = may_go_on.recv());
        let file = tempfile::tempfile().unwrap();
        file.set_len(LENGTH.into()).unwrap();
        let service = Arc::new(Filed { file: Arc::new(file), is_asked: AtomicBool::new(false) });
        let server = serve(ServerOptions { io_threads: Some(0), ..server_options() }, service.clone());
        let client = link(server.local_addr(), client_options());
        let asking = tokio::spawn({
            let client = Arc::clone(&client);
            async move { call(&client, read(Behaviour::AtOnce, 1, 0, LENGTH, LONG)).await }
        });
        until("it is asked", || service.is_asked.load(Ordering::Acquire)).await;
        within("the end of the server", server.close()).await;
        assert!(!hangs.is_finished(), "the disk hangs still");
        // Then the connection ends, too.
        drop(goes_on);
        within("the disk", hangs).await.unwrap();
        drop(within("the call", asking).await.unwrap());
        client.close().await;
    });
}
