//! What a fuzzer puts between the two ends of a session that begins: a relay that passes on what each says, or something else, and says
//! to either what it likes. Both ends are the real ones.

use std::fmt::Debug;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use forebay_identity::{ClusterKey, LiveIdentity, Material, Peer, Scope, Trust};
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, Sharing};
use forebay_transport::wire::{HELLO_LEN, Hello};
use forebay_transport::{Request, Response, Service};
use forebay_types::{Failure, FailureKind, Role};
use tokio_util::sync::CancellationToken;

use crate::greeting;
use crate::handshake::PIECE;
use crate::known::Known;
use crate::options::{ClientOptions, ServerOptions};
use crate::reach::{self, NotSeen, Seen};
use crate::security::{ClientSecurity, ServerSecurity};
use crate::sessions::{End, Line, SessionsShared};
use crate::socket::{Received, Socket, pair};

const CLUSTER: &str = "prod";
const BLOCK_SIZE: u32 = 4 << 20;
/// The worker's, as its clients know it.
const ADDRESS: &str = "w1:29999";
const INSTANCE: u64 = 7;
/// How often the relay lets both ends go on before it takes it that one has nothing to say. What each does is done in one go.
const PATIENCE: usize = 8;

/// A worker and a client of one cluster.
pub struct Members {
    worker: Arc<LiveIdentity>,
    client: Arc<LiveIdentity>,
    pool: Pool,
    /// No memory of a worker.
    nothing: File,
}

/// What the worker demands of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It takes no proof.
    Nothing,
    /// Who proves nothing is sent away.
    Proof,
    /// Both are taken.
    Either,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The worker.
    Worker,
    /// The client.
    Client,
}

/// What the relay does.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Says this itself, with a descriptor or without.
    Say {
        /// To whom.
        to: Party,
        /// The packet.
        packet: &'a [u8],
        /// Whether a descriptor goes with it, which is of no worker's memory.
        descriptor: bool,
    },
    /// Has a packet of one of them, if that says something, and does this with it.
    Have {
        /// Whose.
        from: Party,
        /// What is done.
        how: How,
    },
    /// Closes both connections.
    Leave,
}

/// What the relay does with a packet.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// Passes it on.
    Pass,
    /// Keeps it.
    Keep,
    /// Passes it on, and again.
    Twice,
    /// Passes it on as two packets, the first with so many bytes.
    Split(usize),
    /// Changes a byte.
    Change {
        /// Which.
        at: usize,
        /// The bits that change.
        flip: u8,
    },
    /// Passes it on, and keeps the descriptor.
    Rob,
}

/// What the relay saw.
#[derive(Debug, Default)]
struct Seized {
    /// The worker passed its memory.
    memory: bool,
    /// What the worker was told first.
    first: Option<Vec<u8>>,
}

/// What both ends made of it.
struct Outcome {
    worker: Result<Option<Peer>, End>,
    client: Result<Seen, NotSeen>,
    seized: Seized,
}

impl Members {
    /// New ones, whose certificates last for as long as anybody fuzzes.
    ///
    /// # Errors
    /// What this machine lacks, in words.
    pub fn new() -> Result<Self, String> {
        let (scope, key) = (told(Scope::new("forebay", CLUSTER))?, told(ClusterKey::generate())?);
        let fixed = PoolOptions::fixed(PoolOptions::MIN_SIZE);
        let pool = told(Pool::new(PoolOptions { huge_pages: false, sharing: Sharing::Always, ..fixed }))?;
        let nothing = told(File::open("/dev/null"))?;
        let worker = live(&key, &scope, Role::Worker, "w1")?;
        Ok(Self { worker, client: live(&key, &scope, Role::Reader, "team-a")?, pool, nothing })
    }

    fn worker(&self, demand: Demand) -> Result<SessionsShared, String> {
        let proving = || told(ServerSecurity::new(&self.worker));
        let security = match demand {
            Demand::Nothing => None,
            Demand::Proof => Some(proving()?),
            Demand::Either => Some(proving()?.accepting_plain()),
        };
        let options = ServerOptions { security, instance: INSTANCE, ..ServerOptions::new("", CLUSTER, BLOCK_SIZE) };
        Ok(SessionsShared {
            options,
            service: Arc::new(Silent),
            hello: Hello::ours(CLUSTER, BLOCK_SIZE),
            pool: self.pool.clone(),
            stop: CancellationToken::new(),
            sessions: AtomicU64::new(0),
            line: Mutex::new(Line::new(self.pool.capacity().as_u64())),
            greeting: Arc::default(),
            known: Known::default(),
        })
    }

    fn client(&self, proves: bool) -> Result<ClientOptions, String> {
        let security = proves.then(|| told(ClientSecurity::to_worker(&self.client))).transpose()?;
        Ok(ClientOptions { security, ..ClientOptions::new(CLUSTER, BLOCK_SIZE) })
    }
}

/// A session begins, with a relay in between that takes these steps and then passes on whatever comes. `resumes`: after another that
/// nobody was in between of, which TLS resumes.
///
/// # Panics
/// When somebody is admitted who did not say or prove what the worker demands, or sees its memory without; when one that proves who
/// it is believes what the other did not say; when two that nobody disturbs do not come together.
pub async fn begin(members: &Members, demand: Demand, client_proves: bool, resumes: bool, steps: &[Step<'_>]) {
    let ends = members.worker(demand).and_then(|worker| Ok((worker, members.client(client_proves)?)));
    let (worker, client) = ends.unwrap_or_else(|why| unreachable!("{why}"));
    let fits = demand == Demand::Either || client_proves == (demand == Demand::Proof);
    if resumes {
        assert_right(members, &worker, client_proves, &between(members, &worker, &client, &[]).await);
    }
    let outcome = between(members, &worker, &client, steps).await;
    assert_right(members, &worker, client_proves, &outcome);
    if steps.is_empty() {
        let Outcome { worker, client, .. } = outcome;
        assert_eq!((worker.is_ok(), client.is_ok()), (fits, fits), "{worker:?}, {client:?}");
    }
}

async fn between(members: &Members, worker: &SessionsShared, client: &ClientOptions, steps: &[Step<'_>]) -> Outcome {
    let ends = pair().and_then(|client| Ok((client, pair()?)));
    let ((for_client, to_client), (for_worker, to_worker)) = ends.unwrap_or_else(|why| unreachable!("{why}"));
    let at_worker = async move {
        let greeted = greeting::greet(&for_worker, worker, None).await;
        if let Err(end) = &greeted {
            // As a session does. The client may be gone.
            let _ = for_worker.send(&[IoSlice::new(&end.goodbye())]);
        }
        greeted
    };
    let relay = Relay { to_worker, to_client, nothing: &members.nothing, seized: Seized::default() };
    let (worker, client, seized) = tokio::join!(at_worker, reach::greet(for_client, ADDRESS, client), relay.run(steps));
    Outcome { worker, client, seized }
}

fn assert_right(members: &Members, worker: &SessionsShared, client_proves: bool, outcome: &Outcome) {
    let Outcome { worker: greeted, client: seen, seized } = outcome;
    match greeted {
        Ok(Some(peer)) => {
            assert!(client_proves && peer.identity == *members.client.material().identity(), "{peer:?}");
        }
        Ok(None) => {
            let takes_plain = worker.options.security.as_ref().is_none_or(ServerSecurity::accepts_plain);
            let first = seized.first.as_deref().and_then(|first| <&[u8; HELLO_LEN]>::try_from(first).ok());
            assert!(takes_plain && first.is_some_and(|hello| worker.hello.check(hello).is_ok()), "{seized:?}");
        }
        Err(end) => assert!(!seized.memory, "who is not admitted was passed the memory: {end}"),
    }
    if let (true, Ok(seen)) = (client_proves, seen) {
        assert!(matches!(greeted, Ok(Some(_))), "nobody else is believed");
        let said = (seen.instance, seen.max_requests, seen.window.length());
        let options = &worker.options;
        assert_eq!(said, (INSTANCE, options.max_requests_per_connection, members.pool.mapping().1 as u64));
    }
}

/// In between.
struct Relay<'m> {
    to_worker: Socket,
    to_client: Socket,
    nothing: &'m File,
    seized: Seized,
}

impl Relay<'_> {
    /// Takes the steps, and then passes on what comes until neither says anything more.
    async fn run(mut self, steps: &[Step<'_>]) -> Seized {
        for step in steps {
            match *step {
                Step::Say { to, packet, descriptor } => {
                    let nothing = self.nothing;
                    self.say(to, packet, Some(nothing.as_fd()).filter(|_| descriptor));
                }
                Step::Have { from, how } => {
                    self.have(from, how).await;
                }
                Step::Leave => return self.seized,
            }
        }
        // Both are asked each time.
        while self.have(Party::Client, How::Pass).await | self.have(Party::Worker, How::Pass).await {}
        self.seized
    }

    /// Whether there was a packet.
    async fn have(&mut self, from: Party, how: How) -> bool {
        let Some((mut packet, descriptor)) = self.next(from).await else { return false };
        let (to, fd) = match from {
            Party::Worker => (Party::Client, descriptor.as_ref().map(OwnedFd::as_fd)),
            Party::Client => (Party::Worker, None),
        };
        match how {
            How::Pass => self.say(to, &packet, fd),
            How::Keep => {}
            How::Twice => {
                self.say(to, &packet, fd);
                self.say(to, &packet, fd);
            }
            How::Split(at) => {
                let (first, second) = packet.split_at(at.min(packet.len()));
                self.say(to, first, fd);
                self.say(to, second, None);
            }
            How::Change { at, flip } => {
                if let Some(byte) = packet.get_mut(at) {
                    *byte ^= flip;
                }
                self.say(to, &packet, fd);
            }
            How::Rob => self.say(to, &packet, None),
        }
        true
    }

    async fn next(&mut self, from: Party) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut packet = vec![0; PIECE];
        for _ in 0..PATIENCE {
            // So that what was said is heard, and answered.
            tokio::task::yield_now().await;
            match self.socket(from).receive_with_descriptor(&mut packet) {
                Ok((Received::Packet(length), descriptor)) => {
                    packet.truncate(length);
                    self.seized.memory |= from == Party::Worker && descriptor.is_some();
                    return Some((packet, descriptor));
                }
                Ok((Received::End, _)) => return None,
                // It would have to wait, or the other end is gone.
                Err(_) => {}
            }
        }
        None
    }

    fn say(&mut self, to: Party, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) {
        let socket = self.socket(to);
        let said = match descriptor {
            Some(descriptor) => socket.send_with_descriptor(packet, descriptor),
            None => socket.send(&[IoSlice::new(packet)]),
        };
        // One that is gone hears nothing.
        if said.is_ok() && to == Party::Worker {
            self.seized.first.get_or_insert_with(|| packet.to_vec());
        }
    }

    fn socket(&self, party: Party) -> &Socket {
        match party {
            Party::Worker => &self.to_worker,
            Party::Client => &self.to_client,
        }
    }
}

/// Serves nothing: no session comes that far.
struct Silent;

#[async_trait]
impl Service for Silent {
    async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Err(Failure::new(FailureKind::Unsupported, "nothing is served here"))
    }
}

fn live(key: &ClusterKey, scope: &Scope, role: Role, name: &str) -> Result<Arc<LiveIdentity>, String> {
    let (now, years) = (SystemTime::now(), Duration::from_secs(10 * 365 * 24 * 3600));
    let authorities = [Role::Worker, Role::Reader].map(|role| told(key.authority(scope, role)));
    let authorities = authorities.into_iter().collect::<Result<Vec<_>, _>>()?;
    let authorities: Vec<_> = authorities.iter().map(|authority| authority.certificate().clone()).collect();
    let issued = told(told(key.authority(scope, role))?.issue(name, now - years, now + years))?;
    let trust = Trust::new(scope.clone(), &authorities, [])?;
    Ok(LiveIdentity::new(told(Material::new(issued, trust, now))?))
}

fn told<T, E: Debug>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{error:?}"))
}
