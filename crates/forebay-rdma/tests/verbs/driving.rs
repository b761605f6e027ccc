//! Threads that wait for the answers to their reads themselves, over verbs: they post and poll, and the I/O thread goes on with what is
//! late; through windows, and with payload in messages. The suite runs over such threads, too.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_rdma::{ClientOptions, Listening};
use forebay_transport::Service;
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, read, until};
use forebay_types::ByteSize;

use crate::common::driving::{self, Ends, Threads, drive};
use crate::common::verbs::{Devices, devices};
use crate::common::{self, LONG};

/// Both ends over verbs; with payload in messages, if so many bytes of buffers are for it.
struct Verbs(Devices, Option<ByteSize>);

#[async_trait::async_trait]
impl Ends for Verbs {
    async fn serve(&self, port: u16, service: Arc<dyn Service>) -> Arc<dyn Listening> {
        Arc::new(self.0.serve(port, service, None).await)
    }

    fn threads(&self, server: SocketAddr) -> Threads {
        let options = ClientOptions { drive: drive(), ..common::client_options() };
        Threads::new(self.0.link_by(server, options, common::pool(8), self.1), None)
    }
}

fn through_windows() -> Option<Verbs> {
    Some(Verbs(devices()?, None))
}

/// Through windows; and in messages, of which there are more than fit at once.
fn both() -> Vec<Verbs> {
    let Some(through_windows) = through_windows() else { return Vec::new() };
    let in_messages = devices().map(|devices| Verbs(devices, Some(ByteSize::kib(64))));
    std::iter::once(through_windows).chain(in_messages).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_has_its_answers_over_a_connection_of_its_own_that_goes_when_nobody_uses_it() {
    let Some(ends) = through_windows() else { return };
    let server = ends.serve(0, Scripted::new()).await;
    let threads = ends.threads(server.local_addr());
    threads.until_driven(&*server, 50).await;
    // What is long goes the usual way.
    let long = read(Behaviour::AtOnce, 1, 0, 1 << 20, LONG);
    assert_bytes(&threads.ask(long.clone()).await.unwrap(), &long, 1 << 20);
    until("it goes, as nobody uses it", || server.stats().connections == 1).await;
    let again = read(Behaviour::AtOnce, 2, 0, 4096, LONG);
    assert_bytes(&threads.ask(again.clone()).await.unwrap(), &again, 4096);
    threads.end(&*server).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it() {
    for ends in both() {
        driving::an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it(&ends).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_never_answered_gives_its_memory_back() {
    for ends in both() {
        driving::a_read_that_is_never_answered_gives_its_memory_back(&ends).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_closed_ends_what_a_thread_has_asked_for() {
    let Some(ends) = through_windows() else { return };
    driving::a_link_that_is_closed_ends_what_a_thread_has_asked_for(&ends).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_worker_has_ended_meanwhile_are_not_asked() {
    let Some(ends) = through_windows() else { return };
    driving::connections_that_the_worker_has_ended_meanwhile_are_not_asked(&ends).await;
}
