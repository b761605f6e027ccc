//! What the selector decides, event by event.

use super::*;
use proptest::prelude::*;

const RETRY: Duration = Duration::from_secs(300);
const SILENCE: Duration = Duration::from_secs(2);
const TWO_CARDS: [PathKind; 3] = [PathKind::Rdma, PathKind::Rdma, PathKind::Tcp];

fn selector(fallback: Fallback, kinds: &[PathKind]) -> PathSelector {
    PathSelector::new(PathPolicy { fallback, retry_after: RETRY, silence: SILENCE }, kinds.iter().copied())
}

/// The path that is to be probed now, if one is.
fn due(paths: &mut PathSelector, now: Instant) -> Option<usize> {
    let pings = paths.look(now).pings;
    assert!(pings.len() <= 1, "{pings:?}");
    pings.first().map(|ping| match ping {
        Ping::Probe(path) => *path,
        Ping::Suspected(path) => panic!("path {path} is suspected of nothing"),
    })
}

#[test]
fn requests_go_to_a_random_idle_card_and_never_to_tcp_while_one_is_up() {
    let mut paths = selector(Fallback::Auto, &TWO_CARDS);
    let start = Instant::now();
    assert_eq!(paths.choose(1, start), Choice::Use(1));
    assert_eq!(paths.choose(1, start), Choice::Use(0), "the other one is busy");
    paths.answered(1, start);
    assert_eq!(paths.choose(0, start), Choice::Use(1), "whatever chance says");
}

#[test]
fn a_card_that_fails_is_left_out_and_probed() {
    let mut paths = selector(Fallback::Auto, &TWO_CARDS);
    let start = Instant::now();
    assert_eq!(paths.choose(0, start), Choice::Use(0));
    assert_eq!(paths.failed(0, "link down".into(), start), Some(Switch::PathDown(0)));
    for random in 0..4 {
        assert_eq!(paths.choose(random, start), Choice::Use(1));
        paths.answered(1, start);
    }
    assert_eq!(due(&mut paths, start + RETRY - Duration::from_millis(1)), None);
    assert_eq!(due(&mut paths, start + RETRY), Some(0));
    assert_eq!(due(&mut paths, start + RETRY), None, "one probe at a time");
    assert_eq!(paths.probed(0, Err("still".into()), start + RETRY), None);
    assert_eq!(due(&mut paths, start + RETRY), None);
    assert_eq!(due(&mut paths, start + 2 * RETRY), Some(0));
    assert_eq!(paths.probed(0, Ok(()), start + 2 * RETRY), Some(Switch::PathUp(0)));
    assert_eq!(paths.choose(0, start), Choice::Use(0));
}

#[test]
fn with_auto_the_last_card_gives_way_to_tcp_and_takes_over_again() {
    let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(paths.choose(0, start), Choice::Use(0));
    }
    assert_eq!(paths.failed(0, "gone".into(), start), Some(Switch::FellBack));
    assert_eq!(paths.failed(0, "gone".into(), start), None, "one switch, however many requests it cost");
    assert!(paths.has_another(start));
    assert_eq!(paths.choose(0, start), Choice::Use(1));
    assert_eq!(paths.failed(1, "gone, too".into(), start), None, "that is for the worker's health");
    assert_eq!(paths.choose(0, start), Choice::Use(1));
    assert_eq!(due(&mut paths, start + RETRY), Some(0));
    assert_eq!(paths.choose(0, start), Choice::Use(1), "nobody waits for a probe");
    assert_eq!(paths.probed(0, Ok(()), start + RETRY), Some(Switch::FailedBack));
    assert_eq!(paths.choose(0, start), Choice::Use(0));
}

#[test]
fn with_never_requests_fail_with_the_reason_unless_a_probe_is_due_or_under_way() {
    let mut paths = selector(Fallback::Never, &[PathKind::Rdma, PathKind::Tcp]);
    let start = Instant::now();
    let refused = |cause: &str| Choice::Refuse(cause.to_owned());
    assert_eq!(paths.choose(0, start), Choice::Use(0));
    assert_eq!(paths.failed(0, "connection lost".into(), start), Some(Switch::Unreachable));
    assert!(paths.has_another(start), "it may be the connection only");
    assert_eq!(paths.choose(0, start), Choice::Wait);
    assert_eq!(due(&mut paths, start), Some(0), "so it is tried again at once");
    assert_eq!(paths.choose(0, start), Choice::Wait);
    assert_eq!(paths.probed(0, Err("port 59999 refused".into()), start), None);
    assert!(!paths.has_another(start));
    assert_eq!(paths.choose(0, start), refused("port 59999 refused"));
    let soon = start + RETRY_WITHOUT_FALLBACK;
    assert_eq!(paths.look(start).next, Some(soon), "with or without requests");
    assert_eq!(paths.choose(0, soon), Choice::Wait);
    assert_eq!(due(&mut paths, soon), Some(0), "nothing takes its place: it is not left alone for long");
    assert_eq!(paths.probed(0, Err("still".into()), soon), None);
    assert_eq!(paths.choose(0, soon), refused("still"));
    let later = soon + RETRY_WITHOUT_FALLBACK;
    assert_eq!(due(&mut paths, later), Some(0));
    assert_eq!(paths.probed(0, Ok(()), later), Some(Switch::FailedBack));
    assert_eq!(paths.choose(0, later), Choice::Use(0));
}

#[test]
fn a_request_without_an_answer_does_not_condemn_a_path_that_answers_pings() {
    let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(paths.choose(0, start), Choice::Use(0));
    }
    assert!(!paths.begin_watch(), "with one card nothing is to be watched until there is something against it");
    paths.suspect(0, start);
    paths.suspect(0, start);
    assert!(paths.begin_watch());
    assert!(!paths.begin_watch(), "one watches");
    assert_eq!(paths.look(start).pings, [Ping::Suspected(0)]);
    assert_eq!(paths.look(start).pings, [], "one ping at a time");
    assert_eq!(paths.choose(0, start), Choice::Use(0));
    assert_eq!(paths.cleared(0, Ok(()), start), None);
    assert!(paths.look(start).done);
    paths.suspect(0, start);
    assert_eq!(paths.look(start).pings, [Ping::Suspected(0)]);
    assert_eq!(paths.cleared(0, Err("no answer".into()), start), Some(Switch::FellBack));
    paths.suspect(0, start);
    assert_eq!(paths.look(start).pings, [], "it is down already");
}

#[test]
fn when_one_of_several_cards_is_silent_all_are_asked_and_those_that_say_nothing_are_passed_over() {
    let second = Duration::from_secs(1);
    let start = Instant::now();
    for fallback in [Fallback::Auto, Fallback::Never] {
        let mut paths = selector(fallback, &TWO_CARDS);
        assert_eq!(paths.choose(0, start), Choice::Use(0));
        assert!(paths.begin_watch());
        let look = paths.look(start + second);
        assert_eq!((look.pings, look.next), (vec![], Some(start + SILENCE)));
        let asked = start + SILENCE;
        assert_eq!(paths.look(asked).pings, [Ping::Suspected(0), Ping::Suspected(1)]);
        assert_eq!(paths.choose(0, asked + second), Choice::Use(1), "they have time to answer");
        paths.answered(1, asked + second);
        let doubtful = asked + SILENCE;
        let instead = if fallback == Fallback::Auto { 2 } else { 1 };
        assert_eq!(paths.choose(0, doubtful), Choice::Use(instead));
        assert_eq!(paths.cleared(1, Ok(()), doubtful), None);
        assert!(!paths.left(instead, doubtful));
        assert_eq!(paths.choose(1, doubtful), Choice::Use(1), "one lives");
        assert_eq!(paths.failed(0, "silent".into(), doubtful), Some(Switch::PathDown(0)));
    }
}

#[test]
fn a_card_that_answers_is_not_silent_however_many_requests_wait() {
    let mut paths = selector(Fallback::Auto, &TWO_CARDS);
    let start = Instant::now();
    for _ in 0..4 {
        paths.choose(0, start);
    }
    assert!(paths.begin_watch());
    let soon = start + SILENCE / 2;
    (0..2).for_each(|path| paths.answered(path, soon));
    let look = paths.look(start + SILENCE);
    assert_eq!((look.pings, look.next), (vec![], Some(soon + SILENCE)));
    (0..2).for_each(|path| assert!(!paths.left(path, start + SILENCE)));
    assert!(paths.look(start + 9 * SILENCE).done, "nobody waits for an answer");
}

#[test]
fn a_card_that_everybody_leaves_before_it_answers_is_asked_once_they_have_waited_for_long_enough() {
    let (mut now, wait, hour) = (Instant::now(), SILENCE / 4, Duration::from_secs(3600));
    let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
    for turn in 1..=11 {
        assert_eq!(paths.choose(0, now), Choice::Use(0));
        assert!(!paths.begin_watch());
        now += wait;
        match turn {
            // With an answer in between it begins anew.
            4 | 7 => paths.answered(0, now),
            _ => assert_eq!(paths.left(0, now), turn == 11),
        }
        // Nobody waits for it meanwhile.
        now += hour;
    }
    assert_eq!(paths.choose(0, now), Choice::Use(0));
    assert!(paths.begin_watch());
    assert_eq!(paths.look(now).pings, [Ping::Suspected(0)]);
    assert_eq!(paths.cleared(0, Err("silent".into()), now), Some(Switch::FellBack));
    assert!(!paths.left(0, now + hour), "it is down");
    assert_eq!(paths.choose(0, now), Choice::Use(1));
}

#[test]
fn what_was_under_way_when_a_path_failed_does_not_put_its_probe_off() {
    let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
    let start = Instant::now();
    for _ in 0..2 {
        assert_eq!(paths.choose(0, start), Choice::Use(0));
    }
    assert_eq!(paths.failed(0, "gone".into(), start), Some(Switch::FellBack));
    assert_eq!(due(&mut paths, start + RETRY), Some(0));
    assert_eq!(paths.failed(0, "late".into(), start + RETRY), None);
    assert_eq!(due(&mut paths, start + 3 * RETRY), None, "it is being probed");
}

#[test]
fn paths_in_the_place_of_those_that_were_down_are_probed_before_they_are_used() {
    let start = Instant::now();
    let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]).on_probation("moved", start);
    assert_eq!(paths.choose(0, start), Choice::Use(1));
    assert_eq!(due(&mut paths, start), Some(0));
    assert_eq!(paths.probed(0, Ok(()), start), Some(Switch::FailedBack));
    assert_eq!(paths.choose(0, start), Choice::Use(0));
}

#[test]
fn a_refusal_says_why_there_is_no_rdma() {
    let mut paths = selector(Fallback::Never, &[PathKind::Tcp]).without_because("UCX 1.13 there, 1.20 here".into());
    assert_eq!(paths.choose(0, Instant::now()), Choice::Refuse("UCX 1.13 there, 1.20 here".into()));
    let causes: Vec<_> = paths.causes().flatten().collect();
    assert!(matches!(&causes[..], [cause] if cause.contains("UCX 1.13") && cause.contains("never")), "{causes:?}");
}

#[test]
fn a_worker_without_rdma_is_reached_over_tcp_if_that_is_allowed() {
    let now = Instant::now();
    assert_eq!(selector(Fallback::Auto, &[PathKind::Tcp]).choose(7, now), Choice::Use(0));
    assert!(matches!(selector(Fallback::Never, &[PathKind::Tcp]).choose(7, now), Choice::Refuse(_)));
}

proptest! {
    #[test]
    fn a_request_never_goes_to_a_path_that_is_down_nor_to_tcp_while_a_card_is_up(
        events in prop::collection::vec((0u8..5, 0usize..3, any::<u64>()), 1..200),
        never: bool,
    ) {
        let fallback = if never { Fallback::Never } else { Fallback::Auto };
        let mut paths = selector(fallback, &TWO_CARDS);
        let mut now = Instant::now();
        let (mut up, mut sent) = ([true, true], [0u32; 3]);
        for (event, path, random) in events {
            match event {
                0 | 1 => match paths.choose(random, now) {
                    Choice::Use(index) => {
                        let allowed = if index == 2 { up == [false, false] && !never } else { up[index] };
                        prop_assert!(allowed);
                        sent[index] += 1;
                    }
                    Choice::Refuse(_) | Choice::Wait => prop_assert!(never && up == [false, false]),
                },
                2 if sent[path] > 0 => {
                    paths.answered(path, now);
                    sent[path] -= 1;
                }
                3 if sent[path] > 0 => {
                    paths.failed(path, "x".into(), now);
                    sent[path] -= 1;
                    if path < 2 { up[path] = false; }
                }
                4 => {
                    now += RETRY;
                    let well = if random % 2 == 0 { Ok(()) } else { Err("y".to_owned()) };
                    for ping in paths.look(now).pings {
                        match ping {
                            Ping::Probe(index) => {
                                prop_assert!(index < 2 && !up[index]);
                                paths.probed(index, well.clone(), now);
                                up[index] = well.is_ok();
                            }
                            Ping::Suspected(index) => {
                                prop_assert!(index < 2 && up[index]);
                                paths.cleared(index, well.clone(), now);
                                up[index] = well.is_ok();
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn where_reads_are_striped_paths_that_are_up_share_them_and_a_part_that_failed_goes_elsewhere() {
    let (start, part) = (Instant::now(), (1 << 20, None));
    let shared = |paths: &mut PathSelector| paths.divide(4 << 20, start).map(|division| division.len());
    let striped = |fallback| selector(fallback, &TWO_CARDS).striping([None; 3]);
    let mut paths = striped(Fallback::Auto);
    assert_eq!(shared(&mut paths), Some(2));
    assert_eq!(paths.instead_of(0, part, true, 0, start), Some(1), "another card before TCP");
    assert_eq!(paths.choose(1, start), Choice::Use(1), "any of those that are alike");
    assert_eq!(paths.failed(1, "link down".into(), start), Some(Switch::PathDown(1)));
    assert_eq!(shared(&mut paths), None, "one is left");
    assert_eq!(paths.instead_of(1, part, false, 0, start), Some(0));
    assert_eq!(paths.instead_of(0, part, false, 0, start), None, "what is late has nowhere else to go");
    assert_eq!(paths.instead_of(0, part, true, 0, start), Some(2), "what failed has");
    assert_eq!(paths.instead_of(2, part, true, 1, start), Some(0));
    let mut paths = striped(Fallback::Never);
    assert_eq!(paths.choose(0, start), Choice::Use(0));
    assert_eq!(paths.failed(0, "link down".into(), start), Some(Switch::PathDown(0)));
    assert_eq!(paths.instead_of(1, part, true, 0, start), None, "TCP is not allowed");
    let mut one = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]).striping([None; 2]);
    assert!(one.loads().is_none() && shared(&mut one).is_none());
}
