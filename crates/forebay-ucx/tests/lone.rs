//! A worker that threads hand to one another, with its connection and what is under way on it.

mod common;

use std::time::Instant;

use bytes::Bytes;
use common::*;
use forebay_memory::{Pool, SpanMut};
use forebay_ucx::{Context, Error, Fetch, Incoming, LoneWorker, MessageReceiver, Registration, Status};

/// What has come, in the order of its coming.
struct Inbox {
    pool: Pool,
    registration: Option<Registration>,
    came: Vec<Vec<u8>>,
    failed: usize,
}

impl MessageReceiver for Inbox {
    fn message(&mut self, _from: usize, id: u16, _header: &[u8], data: Incoming<'_>) -> Option<Fetch> {
        assert_eq!(id, REPLY);
        match data {
            Incoming::Here(bytes) => {
                self.came.push(bytes.to_vec());
                None
            }
            Incoming::Announced(length) => {
                Some(Fetch { into: self.pool.try_alloc(length)?, registration: self.registration.clone() })
            }
        }
    }

    fn fetched(&mut self, into: Option<SpanMut>, outcome: Result<usize, Error>) {
        match (into, outcome) {
            (Some(into), Ok(length)) => self.came.push(into[..length].to_vec()),
            _ => self.failed += 1,
        }
    }
}

fn lone(context: &Context, pool: &Pool, registration: Option<&Registration>) -> LoneWorker<Inbox> {
    let inbox = Inbox { pool: pool.clone(), registration: registration.cloned(), came: Vec::new(), failed: 0 };
    LoneWorker::new(context, None, &[REPLY], inbox).unwrap()
}

/// Asks as a thread without a runtime does.
fn ask(lone: &mut LoneWorker<Inbox>, connection: usize, bytes: &[u8]) {
    let before = lone.receiver().came.len();
    lone.send(connection, REQUEST, b"", Bytes::copy_from_slice(bytes));
    let begun = Instant::now();
    while lone.receiver().came.len() == before {
        assert!(begun.elapsed() < DEADLINE / 2 && lone.failure(connection).is_none(), "{:?}", lone.failure(connection));
        if lone.progress() == 0 {
            lone.sleep(DEADLINE / 100).unwrap();
        }
    }
    assert!(lone.receiver().came[before] == bytes, "{} bytes", bytes.len());
}

#[test]
fn one_thread_after_the_other_asks_by_it_and_sleeps_until_the_answer_has_come() {
    over_each_fabric(|context| async move {
        let (server, pools) = (Driven::new(&context), [pool(8), pool(8)]);
        let [of_server, of_client] = pools.each_ref().map(|pool| Registration::whole(&context, pool).unwrap());
        echo(&server.worker, pools[0].clone(), Some(of_server));
        let listener = server.worker.listen(LOOPBACK).unwrap();
        let address = listener.address();
        let accepting = accept_everyone(listener);
        let mut lone = lone(&context, &pools[1], Some(&of_client));
        let mut connection = None;
        for round in 0..4 {
            let thread = tokio::task::spawn_blocking(move || {
                let key = connection.unwrap_or_else(|| lone.connect(address, None, false).unwrap());
                // The first has to be short, and the last is fetched.
                for length in [8, 4096, 100_000, 1 << 20] {
                    ask(&mut lone, key, &pattern(round, length));
                }
                (lone, key)
            });
            let (back, key) = thread.await.unwrap();
            (lone, connection) = (back, Some(key));
            // And a task, meanwhile.
            let before = lone.receiver().came.len();
            lone.send(key, REQUEST, b"", Bytes::from(pattern(9, 5000)));
            let came = lone.until(|lone| (lone.receiver().came.len() > before).then_some(())).await;
            came.unwrap();
        }
        assert_eq!(lone.receiver().failed, 0);
        let key = connection.unwrap();
        lone.close(key);
        assert_eq!(lone.failure(key), Some(Status::CANCELED));
        lone.until(|lone| (lone.operations() == 0).then_some(())).await.unwrap();
        tokio::task::spawn_blocking(move || drop(lone)).await.unwrap();
        assert_eq!(pools[1].used(), 0);
        accepting.abort();
    });
}

#[test]
fn what_is_under_way_when_it_is_dropped_gives_its_memory_back() {
    over_each_fabric(|context| async move {
        let (server, pools) = (Driven::new(&context), [pool(8), pool(8)]);
        echo(&server.worker, pools[0].clone(), None);
        let listener = server.worker.listen(LOOPBACK).unwrap();
        let address = listener.address();
        let accepting = accept_everyone(listener);
        let mut lone = lone(&context, &pools[1], None);
        let lone = tokio::task::spawn_blocking(move || {
            let key = lone.connect(address, None, false).unwrap();
            ask(&mut lone, key, &pattern(1, 8));
            lone.send(key, REQUEST, b"", Bytes::from(pattern(2, 1 << 20)));
            lone.progress();
            lone
        });
        let lone = lone.await.unwrap();
        tokio::task::spawn_blocking(move || drop(lone)).await.unwrap();
        until("all memory is back", || pools[1].used() == 0).await;
        accepting.abort();
    });
}
