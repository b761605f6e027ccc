//! What a fuzzer has clients do who want to be accepted over RDMA, and when: they are admitted over TCP, connect, say hello with a tag, are
//! denied, and their certificates end.

use std::fmt::Debug;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use forebay_identity::{
    ClusterKey, Identity, LiveIdentity, Material, PASS_LIFETIME, Pass, Passes, Peer, Scope, Standing, Trust,
};
use forebay_locks::Mutex;
use forebay_transport::{Flags, Op};
use forebay_types::Role;

use crate::security::{Proved, ServerSecurity, denied};

/// Clients that there are: one of each role.
pub const CLIENTS: usize = Role::ALL.len();
/// When it all begins.
const BEGINS: Duration = Duration::from_secs(1_767_225_600);

/// A worker, and who may come to it.
pub struct Members {
    worker: Arc<LiveIdentity>,
    clients: [Identity; CLIENTS],
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A client is admitted over TCP.
    Admit {
        /// Which.
        client: usize,
        /// What it says that it will connect with.
        client_id: u64,
        /// The half of its pass that it is to show.
        number: u64,
        /// When its certificate ends, from the beginning on.
        until: Duration,
    },
    /// Somebody connects.
    Connect {
        /// With this client id; 0 for none.
        client_id: u64,
    },
    /// Somebody says hello.
    Greet {
        /// On a connection with this client id; 0 for none.
        client_id: u64,
        /// What the hello shows.
        tag: u64,
    },
    /// Time passes.
    Wait(Duration),
    /// These are denied from now on, a bit for each client, and nobody else is.
    Deny(u8),
}

impl Members {
    /// New ones, with a certificate that lasts for as long as anybody fuzzes.
    ///
    /// # Errors
    /// What this machine lacks, in words.
    pub fn new() -> Result<Self, String> {
        let (scope, key) = (told(Scope::new("forebay", "prod"))?, told(ClusterKey::generate())?);
        let (now, years) = (SystemTime::now(), Duration::from_secs(10 * 365 * 24 * 3600));
        let authority = told(key.authority(&scope, Role::Worker))?;
        let issued = told(authority.issue("w1", now - years, now + years))?;
        let trust = Trust::new(scope.clone(), &[authority.certificate().clone()], [])?;
        let worker = LiveIdentity::new(told(Material::new(issued, trust, now))?);
        let clients = Role::ALL.map(|role| scope.identity(role, "team-a"));
        let clients: Vec<Identity> = told(clients.into_iter().collect::<Result<_, _>>())?;
        Ok(Self { worker, clients: clients.try_into().map_err(|_| "there is a client of each role".to_owned())? })
    }
}

fn told<T, E: Debug>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{error:?}"))
}

/// All of it happens to a worker that also accepts who shows nothing, or not.
///
/// # Panics
/// When somebody is taken for another one, or is accepted without a pass that waits, or twice with one; when somebody stays who is denied,
/// or may do over RDMA what changes anything; when a reason is more than a line of a log.
pub fn admission(members: &Members, accepts_plain: bool, steps: &[Step]) {
    // As it is before anybody is.
    members.worker.deny([]);
    let security = ServerSecurity {
        live: Arc::clone(&members.worker),
        passes: Arc::new(Mutex::new(Passes::default())),
        accepts_plain,
    };
    let (start, waited) = (Instant::now(), Duration::ZERO);
    let (waiting, within) = (Vec::new(), Vec::new());
    let mut door = Door { members, security, start, waited, waiting, within, denied: [false; CLIENTS] };
    for step in steps {
        match *step {
            Step::Admit { client, client_id, number, until } => door.admit(client % CLIENTS, client_id, number, until),
            Step::Connect { client_id } => door.connect(NonZeroU64::new(client_id)),
            Step::Greet { client_id, tag } => door.greet(NonZeroU64::new(client_id), tag),
            Step::Wait(time) => door.waited = door.waited.saturating_add(time),
            Step::Deny(clients) => door.deny(clients),
        }
        door.all_stand_as_they_should();
    }
    members.worker.deny([]);
}

/// A pass that waits.
struct Waiting {
    client: usize,
    client_id: u64,
    pass: Pass,
    issued: Duration,
    until: SystemTime,
}

/// The door, and what whoever stands beside it would write down.
struct Door<'a> {
    members: &'a Members,
    security: ServerSecurity,
    start: Instant,
    waited: Duration,
    waiting: Vec<Waiting>,
    within: Vec<(usize, SystemTime, Proved)>,
    denied: [bool; CLIENTS],
}

impl Door<'_> {
    fn now(&self) -> Instant {
        self.start + self.waited
    }

    fn clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + BEGINS + self.waited
    }

    fn admit(&mut self, client: usize, client_id: u64, number: u64, until: Duration) {
        self.expire();
        let pass = Pass { client: number, server: !number };
        let until = SystemTime::UNIX_EPOCH + BEGINS + until;
        let peer = Peer { identity: self.members.clients[client].clone(), until, authority: None };
        let issued = self.security.passes.lock().issue(client_id, pass, peer, self.now());
        assert_eq!(issued.is_ok(), client_id != 0, "bounds are far: {issued:?}");
        if issued.is_ok() {
            self.waiting.push(Waiting { client, client_id, pass, issued: self.waited, until });
        }
    }

    fn connect(&mut self, client_id: Option<NonZeroU64>) {
        self.expire();
        let is_accepted = self.security.lets_in(client_id, self.now());
        match client_id {
            None => assert_eq!(is_accepted, self.security.accepts_plain),
            Some(id) => assert!(!is_accepted || self.waiting.iter().any(|waiting| waiting.client_id == id.get())),
        }
    }

    fn greet(&mut self, client_id: Option<NonZeroU64>, tag: u64) {
        self.expire();
        let identified = self.security.identify(client_id, tag, self.now());
        let Some(client_id) = client_id else { return assert!(matches!(identified, Ok(None)), "it proves nothing") };
        let is_this = |waiting: &Waiting| waiting.client_id == client_id.get() && waiting.pass.client == tag;
        let expected = self.waiting.iter().position(is_this).map(|at| self.waiting.remove(at));
        let (proved, Waiting { client, pass, until, .. }) = match (identified, expected) {
            (Ok(Some(proved)), Some(expected)) => (proved, expected),
            (Err(why), None) => return is_one_line(&why),
            (identified, expected) => unreachable!("{identified:?}, where one waits: {}", expected.is_some()),
        };
        let identity = &self.members.clients[client];
        assert!(proved.pass == pass && proved.identity() == identity);
        assert_eq!(proved.caller.role(), Some(identity.role()));
        assert_eq!(proved.caller.identity(), Some(&*identity.to_string()));
        only_reads(&proved);
        match self.security.takes_in(&proved, self.clock()) {
            Ok(()) => {
                assert!(!self.denied[client]);
                self.within.push((client, until, proved));
            }
            Err(why) => {
                assert!(self.denied[client] && why == denied(identity));
                is_one_line(&why);
            }
        }
    }

    fn deny(&mut self, clients: u8) {
        self.denied = std::array::from_fn(|client| clients >> client & 1 != 0);
        let denied = self.members.clients.iter().zip(self.denied).filter(|(_, is_denied)| *is_denied);
        self.members.worker.deny(denied.map(|(identity, _)| identity.clone()));
    }

    /// Passes that were not used in time are good for nothing.
    fn expire(&mut self) {
        let waited = self.waited;
        self.waiting.retain(|waiting| waited - waiting.issued < PASS_LIFETIME);
    }

    fn all_stand_as_they_should(&self) {
        for (client, until, proved) in &self.within {
            let expected = match (self.denied[*client], self.clock() > *until) {
                (true, _) => Standing::Denied,
                (false, true) => Standing::Expired,
                (false, false) => Standing::Good,
            };
            assert_eq!(self.security.standing(proved, self.clock()), expected);
        }
    }
}

/// Nobody changes anything over RDMA, and nobody does what its role may not.
fn only_reads(proved: &Proved) {
    for op in (0..=u8::MAX).filter_map(Op::from_wire) {
        for flags in [Flags::default(), Flags::BELOW, Flags::SCRUB] {
            let goes_over_tcp =
                matches!(op, Op::Change | Op::Upload | Op::Free | Op::Refresh | Op::Adopt | Op::Stats | Op::Admit);
            let may = op.permission(flags).is_none_or(|permission| proved.identity().role().may(permission));
            assert_eq!(proved.refusal(op, flags).is_none(), may && !goes_over_tcp, "{op:?} {flags:?}");
        }
    }
}

fn is_one_line(told: &str) {
    assert!(!told.contains(char::is_control), "{told:?}");
}
