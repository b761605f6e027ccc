//! The server's side of one-sided access: memory, its keys, and a thread that has transports in software do their part.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, PoolError};
use forebay_types::ByteSize;
use forebay_ucx::{ConnectionRequest, Context, Endpoint, Listener, Message, Payload, Protocol, Registration, Worker};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::plan::{AREA_FRAMES, BLOCKS, CONNECT_DEADLINE, MAX_CLIENTS, MAX_JOBS};
use crate::server::sessions::Sessions;
use crate::wire::{GREETING, WELCOME};
use crate::{memory, pattern};

/// Endpoints at once: one for each job of each client, and one for each that looks at the lanes first.
const MAX_ENDPOINTS: usize = MAX_CLIENTS * (MAX_JOBS as usize + 1);
/// How long operations may take to end when the thread does.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// The thread.
pub(super) struct OneSided {
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What clients need to reach the memory.
pub(super) struct Exposed {
    pub(super) port: u16,
    pub(super) blocks: Vec<Vec<u8>>,
    pub(super) areas: Vec<Vec<Vec<u8>>>,
}

/// The thread's state: the sessions that wait for a greeting, by endpoint.
type Greetings = Rc<RefCell<HashMap<usize, oneshot::Sender<CancellationToken>>>>;

impl OneSided {
    /// Registers and exposes memory, and listens at `address`; port 0 takes a free one. Blocks while memory is registered.
    pub(super) fn start(
        context: &Context,
        address: SocketAddr,
        sessions: Arc<Sessions>,
    ) -> Result<(Self, Exposed), Error> {
        let frames = BLOCKS + MAX_CLIENTS * AREA_FRAMES;
        // A pool of its own: a card checks accesses against all that is registered together.
        let pool = memory::pool(ByteSize::bytes((frames * FRAME_SIZE) as u64))?;
        let registration = Registration::whole(context, &pool)?;
        let mut keys = Vec::with_capacity(frames);
        for frame in 0..frames {
            let exhausted = || PoolError::Exhausted { capacity: pool.capacity(), waited: Duration::ZERO };
            let mut span = pool.try_alloc(FRAME_SIZE).ok_or_else(exhausted)?;
            if frame < BLOCKS {
                pattern::fill(pattern::block_seed(frame as u32), 0, &mut span);
            }
            keys.push(registration.expose(span)?.key()?);
        }
        let areas = keys.split_off(BLOCKS).chunks(AREA_FRAMES).map(<[_]>::to_vec).collect();
        let stop = CancellationToken::new();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("one-sided".to_owned()).spawn({
            let (context, stop) = (context.clone(), stop.clone());
            move || run(&context, address, &sessions, &stop, &ready)
        })?;
        let started = is_ready.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended at once").into()));
        let port = started?;
        Ok((Self { stop, thread: Mutex::new(Some(thread)) }, Exposed { port, blocks: keys, areas }))
    }

    /// Ends every endpoint and the thread.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It ends by panic only through a fault of ours, which has been reported.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for OneSided {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn run(
    context: &Context,
    address: SocketAddr,
    sessions: &Arc<Sessions>,
    stop: &CancellationToken,
    ready: &std::sync::mpsc::Sender<Result<u16, Error>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error.into()))),
    };
    // Tasks are dropped before the worker is: they hold endpoints.
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let greetings = Greetings::default();
        let made = Worker::new(context).map_err(Error::from).and_then(|worker| {
            welcome(&worker, Rc::clone(&greetings), Arc::clone(sessions))?;
            let listener = worker.listen(address)?;
            Ok((worker, listener))
        });
        let (worker, listener) = match made {
            Ok(made) => made,
            Err(error) => return drop(ready.send(Err(error))),
        };
        // The starter waits for this.
        let _ = ready.send(Ok(listener.address().port()));
        // A task of its own: the future that a runtime blocks on looks at the operating system each time it yields.
        let driver = worker.clone();
        let mut driver = tokio::task::spawn_local(async move { driver.drive().await });
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(&listener, &greetings) => {}
            Ok(Err(error)) = &mut driver => tracing::error!(%error, "one-sided access of the benchmark has ended"),
        }
        driver.abort();
        let _ = driver.await;
        drop(listener);
        if !worker.close(CLOSE_WITHIN).await {
            tracing::error!("operations of the benchmark did not end; their memory is kept");
        }
    });
    drop(local);
}

/// Has `worker` answer greetings that name a session, and tell what waits for the endpoint's.
fn welcome(worker: &Worker, greetings: Greetings, sessions: Arc<Sessions>) -> Result<(), Error> {
    let handler = move |message: Message<'_>| {
        let Some(from) = message.from else { return };
        // Without a session the waiting task is not told, and the endpoint is closed.
        let Some(waiting) = greetings.borrow_mut().remove(&from.key()) else { return };
        let session = message.header.try_into().ok().map(u64::from_le_bytes);
        if let Some(ended) = session.and_then(|session| sessions.end_of(session)) {
            from.am_send(WELCOME, b"", Payload::None, None, Protocol::Eager).detach();
            let _ = waiting.send(ended);
        }
    };
    Ok(worker.on_message(GREETING, handler)?)
}

/// Accepts endpoints, each for as long as its session lasts.
async fn accept(listener: &Listener, greetings: &Greetings) {
    let mut endpoints = JoinSet::new();
    loop {
        let request: ConnectionRequest = tokio::select! {
            request = listener.accept() => request,
            Some(_) = endpoints.join_next(), if !endpoints.is_empty() => continue,
        };
        if endpoints.len() >= MAX_ENDPOINTS {
            request.reject();
            continue;
        }
        match request.accept() {
            Ok(endpoint) => {
                // Before anything else may run: its greeting may be here already.
                let (greeted, greeting) = oneshot::channel();
                greetings.borrow_mut().insert(endpoint.key(), greeted);
                endpoints.spawn_local(hold(endpoint, greeting, Rc::clone(greetings)));
            }
            Err(error) => tracing::debug!(%error, "a client of the benchmark did not connect"),
        }
    }
}

/// Keeps an endpoint until it fails or its session ends.
async fn hold(endpoint: Endpoint, greeting: oneshot::Receiver<CancellationToken>, greetings: Greetings) {
    let life = async {
        let greeting = tokio::time::timeout(CONNECT_DEADLINE, greeting).await;
        if let Ok(Ok(ended)) = greeting {
            ended.cancelled().await;
        }
    };
    tokio::select! {
        _ = endpoint.failed() => {}
        () = life => {}
    }
    greetings.borrow_mut().remove(&endpoint.key());
    endpoint.close(true).await;
}
