//! Which connections a server takes in, and which make way when places run short. Pure: `H` is what tells a connection
//! to go, and the caller brings the time.
//!
//! A connection that has not greeted yet has proven nothing. Such ones have places of their own, fewer than the others,
//! so that they take none from whoever may talk. When those are all taken, the oldest makes way: an honest client
//! greets within a round trip, and has done so by then. Of connections that have greeted, the one makes way that has
//! been idle longest: its client notices nothing, and connects again when it wants something.
//!
//! No client, which is an address, may take all places of either kind. An address is taken as it is: the prefix of an
//! IPv6 network would be one client for a whole cluster that lives in it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a connection may take for its hello before it makes way for another: many times what an honest one takes,
/// also when a whole cluster connects at once.
const SPARED: Duration = Duration::from_millis(500);
/// Connections that were told to make way, and whose place is taken already, while they finish what they do.
const MAX_LEAVING: usize = 64;

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// For connections that have greeted.
    pub greeted: usize,
    /// Those of them that one client may have.
    pub greeted_per_client: usize,
    /// For connections that have not greeted yet.
    pub greeting: usize,
    /// Those of them that one client may have.
    pub greeting_per_client: usize,
    /// A connection that was idle for this long makes way for another.
    pub makes_way_after: Duration,
}

/// What becomes of a connection that has just been made.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<H> {
    /// It has a place.
    Taken {
        /// Its number from now on.
        number: u64,
        /// Whose place it was, which is to go at once.
        makes_way: Option<H>,
    },
    /// Its client has too many that have not greeted.
    Refused,
    /// All places are taken by some that may yet greet: to be asked again after so long, or when one has left or
    /// greeted.
    Later(Duration),
}

/// Why a connection that has greeted is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are so many already, and none is idle.
    Full(usize),
    /// Its client has so many already, and none is idle.
    Client(usize),
    /// It greeted too late, and made way for another.
    MadeWay,
}

/// Since when a connection is idle. It writes this itself, without a lock, and [`Admission`] reads it when places run
/// short.
#[derive(Debug)]
pub struct LastUse {
    began: Instant,
    /// Microseconds from `began`, or [`BUSY`].
    idle_at: AtomicU64,
}

const BUSY: u64 = u64::MAX;

impl LastUse {
    /// Of a connection that is idle from `now` on.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { began: now, idle_at: AtomicU64::new(0) }
    }

    /// It is idle since then; `None`: it is being answered.
    pub fn set(&self, idle_since: Option<Instant>) {
        let micros = |at: Instant| {
            let passed = at.saturating_duration_since(self.began);
            passed.as_secs() * 1_000_000 + u64::from(passed.subsec_micros())
        };
        self.idle_at.store(idle_since.map_or(BUSY, micros), Ordering::Relaxed);
    }

    /// Since when it is idle, if it is.
    #[must_use]
    pub fn idle_since(&self) -> Option<Instant> {
        match self.idle_at.load(Ordering::Relaxed) {
            BUSY => None,
            micros => self.began.checked_add(Duration::from_micros(micros)),
        }
    }
}

#[derive(Debug)]
struct Greeting<H> {
    client: IpAddr,
    since: Instant,
    handle: H,
}

#[derive(Debug)]
struct Greeted<H> {
    client: IpAddr,
    last_use: Arc<LastUse>,
    handle: H,
}

/// How many places a client has.
#[derive(Debug, Default)]
struct Held {
    greeting: usize,
    greeted: usize,
}

/// The places of a server.
#[derive(Debug)]
pub struct Admission<H> {
    limits: AdmissionLimits,
    next: u64,
    /// By number, so the oldest is the first.
    greeting: BTreeMap<u64, Greeting<H>>,
    greeted: HashMap<u64, Greeted<H>>,
    /// Told to make way, and still there.
    leaving: HashSet<u64>,
    clients: HashMap<IpAddr, Held>,
}

impl<H: Clone> Admission<H> {
    /// No connections yet.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Self {
        Self {
            limits,
            next: 1,
            greeting: BTreeMap::new(),
            greeted: HashMap::new(),
            leaving: HashSet::new(),
            clients: HashMap::new(),
        }
    }

    /// How many connections have greeted.
    #[must_use]
    pub fn greeted_count(&self) -> usize {
        self.greeted.len()
    }

    /// How many have not greeted yet.
    #[must_use]
    pub fn greeting_count(&self) -> usize {
        self.greeting.len()
    }

    /// A connection from `client` was made, and `handle` tells it to go.
    pub fn arrive(&mut self, client: IpAddr, handle: &H, now: Instant) -> Arrival<H> {
        let client = client.to_canonical();
        let of_client = self.clients.get(&client).map_or(0, |held| held.greeting);
        let goes = if of_client >= self.limits.greeting_per_client {
            match self.overdue_greeting(Some(client), now) {
                Ok(oldest) => Some(oldest),
                Err(_) => return Arrival::Refused,
            }
        } else if self.greeting.len() >= self.limits.greeting {
            match self.overdue_greeting(None, now) {
                Ok(oldest) => Some(oldest),
                Err(wait) => return Arrival::Later(wait),
            }
        } else {
            None
        };
        let makes_way = goes.and_then(|oldest| self.end_greeting(oldest)).map(|oldest| oldest.handle);
        let number = self.next;
        self.next += 1;
        self.greeting.insert(number, Greeting { client, since: now, handle: handle.clone() });
        self.clients.entry(client).or_default().greeting += 1;
        Arrival::Taken { number, makes_way }
    }

    /// Connection `number` has said a hello that is right; it says by `last_use` when it is idle. Whoever is given back
    /// makes way for it, when it has answered what it is at.
    ///
    /// # Errors
    /// [`Refusal`]: it is to be told so and closed.
    pub fn greeted(&mut self, number: u64, last_use: &Arc<LastUse>, now: Instant) -> Result<Option<H>, Refusal> {
        let Some(Greeting { client, .. }) = self.greeting.get(&number) else { return Err(Refusal::MadeWay) };
        let (client, limits) = (*client, self.limits);
        let of_client = self.clients.get(&client).map_or(0, |held| held.greeted);
        let goes = if of_client >= limits.greeted_per_client {
            Some(self.idle_longest(Some(client), now).ok_or(Refusal::Client(limits.greeted_per_client))?)
        } else if self.greeted.len() >= limits.greeted {
            Some(self.idle_longest(None, now).ok_or(Refusal::Full(limits.greeted))?)
        } else {
            None
        };
        let makes_way = goes.and_then(|idle| self.send_away(idle));
        let Some(Greeting { handle, .. }) = self.end_greeting(number) else { return Err(Refusal::MadeWay) };
        self.clients.entry(client).or_default().greeted += 1;
        self.greeted.insert(number, Greeted { client, last_use: Arc::clone(last_use), handle });
        Ok(makes_way)
    }

    /// All that have been idle for `timeout`, which are to go.
    pub fn expire(&mut self, timeout: Duration, now: Instant) -> Vec<H> {
        let is_over = |greeted: &Greeted<H>| {
            greeted.last_use.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= timeout)
        };
        let over: Vec<u64> =
            self.greeted.iter().filter(|(_, greeted)| is_over(greeted)).map(|(number, _)| *number).collect();
        over.into_iter().filter_map(|number| self.send_away(number)).collect()
    }

    /// Connection `number` is gone.
    pub fn leave(&mut self, number: u64) {
        if self.end_greeting(number).is_none() && self.end_greeted(number).is_none() {
            self.leaving.remove(&number);
        }
    }

    /// The connection that has not greeted for longest, if that is long enough; else how long until it is.
    fn overdue_greeting(&self, client: Option<IpAddr>, now: Instant) -> Result<u64, Duration> {
        let mut of_client = self.greeting.iter().filter(|(_, greeting)| client.is_none_or(|of| of == greeting.client));
        let Some((number, oldest)) = of_client.next() else { return Err(SPARED) };
        let left = SPARED.saturating_sub(now.saturating_duration_since(oldest.since));
        if left.is_zero() { Ok(*number) } else { Err(left) }
    }

    /// The connection that has been idle for longest, if that is long enough.
    fn idle_longest(&self, client: Option<IpAddr>, now: Instant) -> Option<u64> {
        if self.leaving.len() >= MAX_LEAVING {
            return None;
        }
        let of_client = self.greeted.iter().filter(|(_, greeted)| client.is_none_or(|of| of == greeted.client));
        let idle = of_client.filter_map(|(number, greeted)| Some((greeted.last_use.idle_since()?, *number)));
        let (since, number) = idle.min()?;
        (now.saturating_duration_since(since) >= self.limits.makes_way_after).then_some(number)
    }

    fn send_away(&mut self, number: u64) -> Option<H> {
        let greeted = self.end_greeted(number)?;
        self.leaving.insert(number);
        Some(greeted.handle)
    }

    fn end_greeting(&mut self, number: u64) -> Option<Greeting<H>> {
        let ended = self.greeting.remove(&number)?;
        self.give_back(ended.client, |held| held.greeting -= 1);
        Some(ended)
    }

    fn end_greeted(&mut self, number: u64) -> Option<Greeted<H>> {
        let ended = self.greeted.remove(&number)?;
        self.give_back(ended.client, |held| held.greeted -= 1);
        Some(ended)
    }

    /// Forgets a client with its last connection.
    fn give_back(&mut self, client: IpAddr, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.clients.get_mut(&client) {
            change(held);
            if held.greeting == 0 && held.greeted == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: AdmissionLimits = AdmissionLimits {
        greeted: 4,
        greeted_per_client: 3,
        greeting: 3,
        greeting_per_client: 2,
        makes_way_after: Duration::from_secs(10),
    };

    fn host(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    /// A server with a clock.
    struct Scene {
        admission: Admission<u64>,
        now: Instant,
        handles: u64,
    }

    impl Scene {
        fn new() -> Self {
            Self { admission: Admission::new(LIMITS), now: Instant::now(), handles: 0 }
        }

        /// A connection whose handle is the number that it would be given next.
        fn arrive(&mut self, client: IpAddr) -> Arrival<u64> {
            self.handles = self.admission.next;
            self.admission.arrive(client, &self.handles, self.now)
        }

        fn taken(&mut self, client: IpAddr) -> u64 {
            match self.arrive(client) {
                Arrival::Taken { number, makes_way: None } => number,
                other => panic!("{other:?}"),
            }
        }

        fn greet(&mut self, number: u64) -> (Result<Option<u64>, Refusal>, Arc<LastUse>) {
            let last_use = Arc::new(LastUse::new(self.now));
            (self.admission.greeted(number, &last_use, self.now), last_use)
        }

        /// A connection that has greeted, and is idle from now on.
        fn greeted(&mut self, client: IpAddr) -> (u64, Arc<LastUse>) {
            let number = self.taken(client);
            let (outcome, last_use) = self.greet(number);
            assert_eq!(outcome, Ok(None));
            (number, last_use)
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }
    }

    #[test]
    fn who_does_not_greet_takes_no_place_from_those_who_have_and_makes_way_for_those_who_may() {
        let mut scene = Scene::new();
        let [oldest, _, _] = [1, 2, 3].map(|client| scene.taken(host(client)));
        assert_eq!(scene.arrive(host(4)), Arrival::Later(SPARED), "they may be honest");
        scene.now += SPARED / 2;
        assert_eq!(scene.arrive(host(4)), Arrival::Later(SPARED / 2));
        scene.now += SPARED / 2;
        let Arrival::Taken { number, makes_way } = scene.arrive(host(4)) else { panic!("it is not taken") };
        assert_eq!(makes_way, Some(oldest));
        assert_eq!(scene.greet(oldest).0, Err(Refusal::MadeWay), "a hello that comes too late");
        assert_eq!(scene.greet(number).0, Ok(None));
        assert_eq!((scene.admission.greeting_count(), scene.admission.greeted_count()), (2, 1));
    }

    #[test]
    fn a_host_that_does_not_greet_costs_only_itself() {
        let mut scene = Scene::new();
        let oldest = scene.taken(host(1));
        scene.taken(host(1));
        assert_eq!(scene.arrive(host(1)), Arrival::Refused);
        scene.taken(host(2));
        scene.pass(1);
        let Arrival::Taken { makes_way, .. } = scene.arrive(host(1)) else { panic!("it is not taken") };
        assert_eq!(makes_way, Some(oldest), "its own, though others are there, too");
    }

    #[test]
    fn who_was_idle_longest_makes_way_and_who_is_being_answered_stays() {
        let mut scene = Scene::new();
        let (_, first) = scene.greeted(host(1));
        let (second, _) = scene.greeted(host(2));
        let (third, _) = scene.greeted(host(3));
        scene.pass(1);
        scene.greeted(host(4));
        first.set(None);
        scene.pass(8);
        let early = scene.taken(host(5));
        assert_eq!(scene.greet(early).0, Err(Refusal::Full(4)), "none is idle for long");
        scene.admission.leave(early);
        scene.pass(1);
        for expected in [second, third] {
            let late = scene.taken(host(5));
            assert_eq!(scene.greet(late).0, Ok(Some(expected)));
        }
        let last = scene.taken(host(6));
        assert_eq!(
            scene.greet(last).0,
            Err(Refusal::Full(4)),
            "the first is being answered, the fourth was just there"
        );
        // Who was used again is not the one that was idle longest.
        first.set(Some(scene.now));
        scene.pass(9);
        let fourth = 4;
        assert_eq!(scene.greet(last).0, Ok(Some(fourth)));
    }

    #[test]
    fn a_host_with_all_its_connections_gets_one_more_only_for_one_of_its_own() {
        let mut scene = Scene::new();
        scene.greeted(host(9));
        scene.pass(1);
        let uses: Vec<_> = (0..3).map(|_| scene.greeted(host(1))).collect();
        scene.pass(20);
        uses.iter().for_each(|(_, last_use)| last_use.set(None));
        let more = scene.taken(host(1));
        assert_eq!(scene.greet(more).0, Err(Refusal::Client(3)), "the other host's idle one stays");
        uses[1].1.set(Some(scene.now - Duration::from_secs(10)));
        assert_eq!(scene.greet(more).0, Ok(Some(uses[1].0)));
    }

    #[test]
    fn what_was_idle_for_the_timeout_goes() {
        let mut scene = Scene::new();
        let timeout = Duration::from_secs(3600);
        let (idle, _) = scene.greeted(host(1));
        let (_, busy) = scene.greeted(host(2));
        busy.set(None);
        scene.pass(3599);
        assert!(scene.admission.expire(timeout, scene.now).is_empty());
        scene.pass(1);
        assert_eq!(scene.admission.expire(timeout, scene.now), [idle]);
        assert!(scene.admission.expire(timeout, scene.now).is_empty(), "it was told");
        scene.admission.leave(idle);
        assert!(scene.admission.leaving.is_empty());
    }

    #[test]
    fn those_that_do_not_leave_though_they_were_told_are_few() {
        let mut scene = Scene::new();
        (1..=4).for_each(|client| drop(scene.greeted(host(client))));
        let mut told = Vec::new();
        loop {
            scene.pass(10);
            let number = scene.taken(host(5));
            match scene.greet(number).0 {
                Ok(makes_way) => told.extend(makes_way),
                Err(refusal) => {
                    assert!(matches!(refusal, Refusal::Full(_) | Refusal::Client(_)));
                    scene.admission.leave(number);
                    break;
                }
            }
        }
        assert_eq!(told.len(), MAX_LEAVING);
        scene.admission.leave(told[0]);
        let number = scene.taken(host(5));
        assert!(scene.greet(number).0.is_ok());
    }

    #[test]
    fn an_address_of_ipv4_is_one_client_however_it_is_written() {
        let mut scene = Scene::new();
        let mapped = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        scene.taken(host(1));
        scene.taken(mapped.into());
        assert_eq!(scene.arrive(host(1)), Arrival::Refused);
    }

    proptest! {
        #[test]
        fn no_limit_is_passed_and_nothing_is_left_of_those_who_left(
            steps in prop::collection::vec((0u8..5, 0u8..4, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut scene = Scene::new();
            let mut alive: Vec<(u64, Option<Arc<LastUse>>)> = Vec::new();
            for (step, client, pick) in steps {
                let at = (!alive.is_empty()).then(|| pick.index(alive.len()));
                match (step, at) {
                    (0, _) => if let Arrival::Taken { number, .. } = scene.arrive(host(client)) {
                        alive.push((number, None));
                    },
                    (1, Some(at)) if alive[at].1.is_none() => {
                        let (outcome, last_use) = scene.greet(alive[at].0);
                        if outcome.is_ok() { alive[at].1 = Some(last_use) }
                    }
                    (2, Some(at)) => scene.admission.leave(alive.swap_remove(at).0),
                    (3, Some(at)) => if let Some(last_use) = &alive[at].1 {
                        last_use.set((client > 0).then_some(scene.now));
                    },
                    _ => scene.pass(u64::from(client) * 4),
                }
                let admission = &scene.admission;
                prop_assert!(admission.greeting_count() <= LIMITS.greeting);
                prop_assert!(admission.greeted_count() <= LIMITS.greeted);
                for held in admission.clients.values() {
                    prop_assert!(held.greeting <= LIMITS.greeting_per_client);
                    prop_assert!(held.greeted <= LIMITS.greeted_per_client);
                }
                let held: usize = admission.clients.values().map(|held| held.greeting + held.greeted).sum();
                prop_assert_eq!(held, admission.greeting_count() + admission.greeted_count());
            }
            alive.into_iter().for_each(|(number, _)| scene.admission.leave(number));
            prop_assert!(scene.admission.clients.is_empty() && scene.admission.leaving.is_empty());
        }
    }
}
