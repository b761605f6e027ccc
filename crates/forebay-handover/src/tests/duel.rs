//! Both processes as plain machines, in virtual time, over a channel that loses nothing while both live: whatever dies, and
//! whenever, there is never more than one that serves.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::giving::{self, Giver, Outcome};
use crate::identity::Identity;
use crate::identity::tests::identity;
use crate::message::{Ask, Order, Refusal, Say};
use crate::taking::{self, NotTaken, Taker};

/// What happens besides the protocol.
#[derive(Clone, Debug)]
struct Script {
    order: Order,
    patience: Duration,
    /// So often it is looked for writers, and there is one.
    writers: u32,
    /// Whether one is opened while it is looked, once.
    late_writer: bool,
    is_drained: bool,
    is_given: bool,
    is_understood: bool,
    can_serve: bool,
    /// After so many steps, one of them dies.
    death: Option<(u32, Side)>,
    /// After so many steps, the new one is stopped, and goes on when nothing else moves any more.
    stop: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            order: Order::ServeFirst,
            patience: Duration::from_secs(60),
            writers: 0,
            late_writer: false,
            is_drained: true,
            is_given: true,
            is_understood: true,
            can_serve: true,
            death: None,
            stop: None,
        }
    }
}

struct World {
    script: Script,
    now: Instant,
    giver: Option<Giver>,
    taker: Option<Taker>,
    look_at: Option<Instant>,
    to_old: VecDeque<Ask>,
    to_new: VecDeque<Say>,
    old_actions: VecDeque<giving::Action>,
    new_actions: VecDeque<taking::Action>,
    /// Whether each has closed its end.
    old_closed: bool,
    new_closed: bool,
    /// Whether the old one has said that it hears no more, and has seen the end since.
    deaf: bool,
    saw_end: bool,
    is_stopped: bool,
    outcome: Option<Outcome>,
    /// Whether the old one has left the mount to a keeper, after the new one had failed.
    rescued: bool,
    taken: Option<Result<(), NotTaken>>,
    /// Whose files the user was told of.
    told: Vec<String>,
    /// Whether the new process has what belongs to the kernel.
    holds: bool,
}

impl World {
    fn new(script: Script, next: Identity, cannot: Option<Refusal>) -> Self {
        let now = Instant::now();
        let (taker, first) = Taker::new(next, script.order, script.patience, now);
        Self {
            now,
            giver: Some(Giver::new(identity(), cannot, now)),
            taker: Some(taker),
            look_at: None,
            to_old: VecDeque::new(),
            to_new: VecDeque::new(),
            old_actions: VecDeque::new(),
            new_actions: first.into(),
            old_closed: false,
            new_closed: false,
            deaf: false,
            saw_end: false,
            is_stopped: false,
            outcome: None,
            rescued: false,
            taken: None,
            told: Vec::new(),
            holds: false,
            script,
        }
    }

    /// Runs until nothing moves any more.
    fn run(mut self) -> Self {
        for step in 0..10_000 {
            match self.script.death {
                Some((at, Side::Old)) if at == step => {
                    (self.giver, self.old_closed) = (None, true);
                    self.old_actions.clear();
                }
                Some((at, Side::New)) if at == step => {
                    (self.taker, self.new_closed, self.holds) = (None, true, false);
                    self.new_actions.clear();
                }
                _ => {}
            }
            self.is_stopped |= self.script.stop.take_if(|at| *at == step).is_some();
            let moved = self.step_old() | (!self.is_stopped && self.step_new());
            self.check();
            if !moved && !self.pass() && !std::mem::take(&mut self.is_stopped) {
                return self;
            }
        }
        panic!("it does not end");
    }

    /// Never more than one serves.
    fn check(&self) {
        let old = self.giver.as_ref().is_some_and(Giver::serves);
        let new = self.new_serves();
        assert!(!(old && new), "both serve: {:?}", self.script);
        assert!(!(self.rescued && new), "it serves what a keeper has: {:?}", self.script);
        assert!(!new || self.holds, "it serves what it does not hold: {:?}", self.script);
    }

    /// It serves only once it has said so.
    fn new_serves(&self) -> bool {
        let is_to_say = self.new_actions.iter().any(|action| *action == taking::Action::Send(Ask::Serving));
        self.taker.as_ref().is_some_and(Taker::serves) && !is_to_say
    }

    /// The time moves on to what is due next. False: nothing is.
    fn pass(&mut self) -> bool {
        let old = self.giver.as_ref().and_then(Giver::deadline).filter(|_| self.outcome.is_none());
        let new = self.taker.as_ref().and_then(Taker::deadline);
        let new = new.filter(|_| self.taken.is_none() && !self.is_stopped);
        let Some(next) = old.into_iter().chain(new).chain(self.look_at).min() else { return false };
        self.now = self.now.max(next);
        if self.look_at.is_some_and(|at| at <= self.now) {
            self.look_at = None;
            let writers = self.writers();
            self.tell_old(giving::Event::Writers(writers));
        } else if old.is_some_and(|at| at <= self.now) {
            self.tell_old(giving::Event::Late);
        } else {
            self.tell_new(taking::Event::Late);
        }
        true
    }

    fn writers(&mut self) -> Vec<String> {
        if self.script.writers == 0 {
            return Vec::new();
        }
        self.script.writers -= 1;
        vec!["/written".to_owned()]
    }

    fn tell_old(&mut self, event: giving::Event) {
        if let Some(giver) = &mut self.giver {
            self.old_actions.extend(giver.on(event, self.now));
        }
    }

    fn tell_new(&mut self, event: taking::Event) {
        if let Some(taker) = &mut self.taker {
            self.new_actions.extend(taker.on(event, self.now));
        }
    }

    fn step_old(&mut self) -> bool {
        if let Some(action) = self.old_actions.pop_front() {
            self.act_old(action);
            return true;
        }
        if self.giver.is_none() || self.outcome.is_some() {
            return false;
        }
        if let Some(ask) = self.to_old.pop_front() {
            self.tell_old(giving::Event::Asked(ask));
            return true;
        }
        // The end is seen once.
        if std::mem::take(&mut self.new_closed) || (self.deaf && !std::mem::replace(&mut self.saw_end, true)) {
            self.tell_old(giving::Event::Closed);
            return true;
        }
        false
    }

    fn act_old(&mut self, action: giving::Action) {
        match action {
            giving::Action::Send(say) => {
                let is_told = say == Say::Yours;
                self.to_new.push_back(say);
                if is_told {
                    self.tell_old(giving::Event::Told);
                }
            }
            giving::Action::LookForWriters(at) => self.look_at = Some(at),
            giving::Action::Drain(_) if self.script.is_drained => {
                let late = std::mem::take(&mut self.script.late_writer).then(|| "/late".to_owned());
                self.tell_old(giving::Event::Drained(late.into_iter().collect()));
            }
            giving::Action::Drain(_) => self.tell_old(giving::Event::NotDrained(Refusal::Unanswered(3))),
            giving::Action::Give if self.script.is_given => self.to_new.push_back(Say::Given),
            giving::Action::Give => self.tell_old(giving::Event::NotGiven("no memory".to_owned())),
            giving::Action::TakeBack => {
                self.to_new.push_back(Say::TakenBack);
                self.deaf = true;
            }
            giving::Action::Resume => {}
            giving::Action::Release => self.tell_old(giving::Event::Released),
            giving::Action::Rescue => self.rescued = true,
            giving::Action::End(outcome) => {
                self.old_actions.clear();
                (self.outcome, self.old_closed, self.look_at) = (Some(outcome), true, None);
            }
        }
    }

    fn step_new(&mut self) -> bool {
        if let Some(action) = self.new_actions.pop_front() {
            self.act_new(action);
            return true;
        }
        if self.taker.is_none() || self.taken.is_some() {
            return false;
        }
        if let Some(say) = self.to_new.pop_front() {
            self.holds |= say == Say::Given;
            self.tell_new(taking::Event::Said(say));
            return true;
        }
        if std::mem::take(&mut self.old_closed) {
            self.tell_new(taking::Event::Closed);
            return true;
        }
        false
    }

    fn act_new(&mut self, action: taking::Action) {
        match action {
            taking::Action::Send(_) if self.deaf => {
                let taken_back = self.to_new.drain(..).any(|said| said == Say::TakenBack);
                self.tell_new(taking::Event::NotHeard { taken_back });
            }
            taking::Action::Send(ask) => {
                let has_all = ask == Ask::Serving && !self.taker.as_ref().is_some_and(Taker::waits_for_release);
                self.to_old.push_back(ask);
                if has_all {
                    (self.taken, self.new_closed) = (Some(Ok(())), true);
                }
            }
            taking::Action::Tell(names) => self.told = names,
            taking::Action::Look if self.script.is_understood => self.tell_new(taking::Event::Understood),
            taking::Action::Look => self.tell_new(taking::Event::NotUnderstood("nonsense".to_owned())),
            taking::Action::Drop => self.holds = false,
            taking::Action::Serve if self.script.can_serve => self.tell_new(taking::Event::Serves),
            // It closes the connection to the kernel first, and then the one to the old process.
            taking::Action::Serve => {
                let why = NotTaken::NotUnderstood("no memory".to_owned());
                (self.taken, self.taker, self.holds, self.new_closed) = (Some(Err(why)), None, false, true);
            }
            taking::Action::End(taken) => {
                self.new_actions.clear();
                (self.taken, self.new_closed) = (Some(taken), true);
            }
        }
    }

    fn serves(&self) -> Option<Side> {
        let old = self.giver.as_ref().is_some_and(Giver::serves).then_some(Side::Old);
        old.or_else(|| self.new_serves().then_some(Side::New))
    }
}

fn run(script: Script) -> World {
    World::new(script, identity(), None).run()
}

#[test]
fn a_mount_is_handed_over_in_both_orders() {
    for order in [Order::ServeFirst, Order::ReleaseFirst] {
        let world = run(Script { order, ..Script::default() });
        assert_eq!((world.outcome.clone(), world.taken.clone()), (Some(Outcome::Gone), Some(Ok(()))), "{order:?}");
        assert_eq!(world.serves(), Some(Side::New));
    }
}

#[test]
fn writers_are_waited_for_by_name_and_no_longer_than_is_wanted() {
    let world = run(Script { writers: 20, late_writer: true, ..Script::default() });
    assert_eq!((world.serves(), world.taken), (Some(Side::New), Some(Ok(()))));

    let patience = Duration::from_secs(1);
    let world = run(Script { writers: u32::MAX, patience, ..Script::default() });
    assert_eq!((world.told.clone(), world.serves()), (vec!["/written".to_owned()], Some(Side::Old)));
    let refusal = Refusal::Writers(vec!["/written".to_owned()]);
    assert!(refusal.to_string().contains("/written"));
    assert_eq!(world.taken, Some(Err(NotTaken::Refused(refusal))));
}

#[test]
fn what_cannot_be_handed_over_is_refused_before_anything_stops() {
    let other = Identity { read_only: true, ..identity() };
    let world = World::new(Script::default(), other, None).run();
    assert_eq!(world.serves(), Some(Side::Old));
    let Some(Err(NotTaken::Refused(refusal @ Refusal::Options(_)))) = world.taken else {
        panic!("it is refused because of an option")
    };
    assert!(refusal.to_string().contains("--read-only is false, and would be true"), "{refusal}");

    let world = World::new(Script::default(), identity(), Some(Refusal::Uring)).run();
    assert_eq!((world.serves(), world.taken), (Some(Side::Old), Some(Err(NotTaken::Refused(Refusal::Uring)))));
}

#[test]
fn an_older_program_takes_nothing_over() {
    let (mut taker, first) = Taker::new(identity(), Order::ServeFirst, Duration::ZERO, Instant::now());
    let Some(taking::Action::Send(Ask::Hello(mut hello))) = first.into_iter().next() else { panic!("it greets") };
    (hello.oldest_format, hello.newest_format) = (0, crate::FORMAT - 1);
    let mut giver = Giver::new(identity(), None, Instant::now());
    let told = giver.on(giving::Event::Asked(Ask::Hello(hello)), Instant::now());
    let expected = Refusal::Format { running: crate::FORMAT, newest: crate::FORMAT - 1 };
    assert_eq!(told.first(), Some(&giving::Action::Send(Say::Refused(expected.clone()))));
    assert!(giver.serves());
    let ended = taker.on(taking::Event::Said(Say::Refused(expected.clone())), Instant::now());
    assert_eq!(ended, [taking::Action::End(Err(NotTaken::Refused(expected)))]);
}

#[test]
fn whatever_goes_wrong_before_the_new_one_serves_the_old_one_goes_on() {
    let good = Script::default;
    for script in [
        Script { is_drained: false, ..good() },
        Script { is_given: false, ..good() },
        Script { is_understood: false, ..good() },
        Script { can_serve: false, ..good() },
        Script { is_understood: false, order: Order::ReleaseFirst, ..good() },
        Script { is_drained: false, order: Order::ReleaseFirst, ..good() },
    ] {
        let world = run(script.clone());
        assert_eq!((world.serves(), world.outcome), (Some(Side::Old), Some(Outcome::Kept)), "{script:?}");
        assert!(world.taken.is_some_and(|taken| taken.is_err()) && !world.holds && !world.rescued, "{script:?}");
    }
}

/// The old one has let go of all that it would need to serve.
#[test]
fn where_the_new_one_does_not_come_to_start_a_keeper_has_the_mount() {
    let order = Order::ReleaseFirst;
    let world = run(Script { order, can_serve: false, ..Script::default() });
    assert!(world.rescued && world.serves().is_none());
    assert_eq!(world.outcome, Some(Outcome::Gone));
    let (mut rescued, mut taken_back) = (0, 0);
    for at in 0..40 {
        let world = run(Script { order, death: Some((at, Side::New)), ..Script::default() });
        // Dead before it was given anything, or after it had said that it serves: then a keeper of its own has it.
        assert!(world.rescued || world.serves() == Some(Side::Old) || world.outcome == Some(Outcome::Gone), "{at}");
        rescued += u32::from(world.rescued);
        let world = run(Script { order, stop: Some(at), ..Script::default() });
        match (world.serves(), &world.taken) {
            (Some(Side::New), Some(Ok(()))) => assert!(!world.rescued, "{at}"),
            (None, Some(Err(NotTaken::TakenBack))) => taken_back += u32::from(world.rescued),
            (Some(Side::Old), Some(Err(NotTaken::Closed | NotTaken::Silent))) => assert!(!world.rescued, "{at}"),
            other => panic!("stopped after {at}: {other:?}"),
        }
    }
    assert!(rescued > 0 && taken_back > 0);
}

/// Whenever it is stopped. Once it was told that the mount is its own it is told, too, that it is not any more; and what it has said
/// before that holds.
#[test]
fn a_new_process_that_is_stopped_costs_programs_a_minute_and_never_are_there_two() {
    let mut taken_back = 0;
    for at in 0..40 {
        let world = run(Script { stop: Some(at), ..Script::default() });
        match (world.serves(), &world.taken) {
            (Some(Side::New), Some(Ok(()))) => assert_eq!(world.outcome, Some(Outcome::Gone), "{at}"),
            (Some(Side::Old), Some(Err(NotTaken::TakenBack))) => taken_back += 1,
            (Some(Side::Old), Some(Err(NotTaken::Closed | NotTaken::Silent))) => {}
            other => panic!("stopped after {at}: {other:?}"),
        }
    }
    assert!(taken_back > 0);
}

#[test]
fn what_was_said_before_the_mount_is_taken_back_holds() {
    let now = Instant::now();
    let given = || {
        let mut giver = Giver::new(identity(), None, now);
        let hello = crate::message::Hello::new(identity(), Order::ServeFirst, Duration::ZERO);
        for event in [
            giving::Event::Asked(Ask::Hello(hello)),
            giving::Event::Writers(Vec::new()),
            giving::Event::Drained(Vec::new()),
            giving::Event::Asked(Ask::Holding),
            giving::Event::Told,
        ] {
            giver.on(event, now);
        }
        let late = giver.deadline().expect("it is not waited for without an end");
        assert_eq!(giver.on(giving::Event::Late, late), [giving::Action::TakeBack]);
        assert!(!giver.serves() && giver.may_be_served_elsewhere() && giver.deadline().is_none());
        giver
    };
    let mut served = given();
    assert_eq!(served.on(giving::Event::Asked(Ask::Serving), now), [giving::Action::Release]);
    let mut silent = given();
    let resumed = [giving::Action::Resume, giving::Action::End(Outcome::Kept)];
    assert_eq!(silent.on(giving::Event::Closed, now), resumed);
    assert!(silent.serves());
}

fn scripts() -> impl Strategy<Value = Script> {
    let order = prop_oneof![Just(Order::ServeFirst), Just(Order::ReleaseFirst)];
    let side = prop_oneof![Just(Side::Old), Just(Side::New)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (order, 0u64..3, 0u32..4, flags, prop::option::of((0u32..40, side)), prop::option::of(0u32..40)).prop_map(
        |(order, seconds, writers, (late_writer, is_drained, is_given, is_understood, can_serve), death, stop)| {
            Script {
                order,
                patience: Duration::from_secs(seconds),
                writers,
                late_writer,
                is_drained,
                is_given,
                is_understood,
                can_serve,
                death,
                stop,
            }
        },
    )
}

proptest! {
    /// `run` checks after each step that no two serve.
    #[test]
    fn never_do_both_serve_and_one_does_unless_the_one_that_has_it_dies(script in scripts()) {
        let world = run(script.clone());
        let dead = script.death.map(|(_, side)| side);
        match world.serves() {
            Some(_) => {}
            // The keeper's case: who had the mount is dead, or the old one had let go of what it needs for good.
            None => prop_assert!(dead.is_some() || world.rescued, "{:?}", script),
        }
        if dead == Some(Side::New) && script.order == Order::ServeFirst && world.outcome != Some(Outcome::Gone) {
            prop_assert_eq!(world.serves(), Some(Side::Old), "{:?}", script);
        }
    }
}
