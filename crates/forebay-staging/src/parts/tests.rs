use super::*;
use proptest::prelude::*;

const QUIET: Duration = Duration::from_millis(200);

fn parts(steps: &[(u32, u64)]) -> Parts {
    Parts::new(Arc::new(Schedule::of_steps(steps).unwrap()))
}

fn all(_: &Range<u64>) -> bool {
    true
}

#[test]
fn a_part_goes_early_when_it_is_whole_and_quiet() {
    let (mut parts, start) = (parts(&[(100, 10)]), Instant::now());
    assert!(!parts.write(0..9, start));
    assert_eq!(parts.due(start + QUIET, QUIET, all), Due::Never);
    let later = start + Duration::from_millis(100);
    assert!(parts.write(8..12, later));
    assert_eq!(parts.due(later, QUIET, all), Due::At(later + QUIET));
    assert_eq!(parts.due(later, Duration::ZERO, all), Due::Part(1, 0..10));
    parts.write(3..4, later + QUIET / 2);
    assert_eq!(parts.due(later + QUIET, QUIET, all), Due::At(later + QUIET / 2 + QUIET));
    assert_eq!(parts.due(later + QUIET * 2, QUIET, all), Due::Part(1, 0..10), "until it is started");
    assert_eq!(parts.due(later + QUIET * 2, QUIET, all), Due::Part(1, 0..10));
    let generation = parts.start(1, later).unwrap();
    assert_eq!((parts.start(1, later), parts.due(later + QUIET * 2, QUIET, all)), (None, Due::Never));
    parts.sent(1, generation, 10, "a".to_owned());
    assert_eq!(parts.due(later + QUIET * 9, QUIET, all), Due::Never);
    assert_eq!(parts.arrived().collect::<Vec<_>>(), [(1, 0..10)]);
}

#[test]
fn a_writer_that_never_went_back_has_its_parts_sent_without_waiting() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.resize(50, 0, now);
    parts.write(0..6, now);
    parts.write(6..14, now);
    assert_eq!(parts.due(now, QUIET, all), Due::Part(1, 0..10));
    // It may come back once more.
    parts.write(0..1, now);
    parts.write(14..20, now);
    assert_eq!(parts.due(now, QUIET, all), Due::At(now + QUIET));
}

#[test]
fn a_part_that_is_written_again_while_it_is_under_way_is_sent_again() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.write(0..20, now);
    let generation = parts.start(1, now).unwrap();
    parts.write(0..10, now);
    assert_eq!(parts.due(now, Duration::ZERO, all), Due::Part(2, 10..20), "not the one that is under way");
    parts.sent(1, generation, 10, "old".to_owned());
    assert_eq!(parts.arrived().count(), 0);
    let target = Target { generation: parts.generation(), size: 20 };
    assert_eq!(parts.next_unsent(1, target), Some((1, 0..10)));
    let generation = parts.start(1, now).unwrap();
    parts.sent(1, generation, 10, "new".to_owned());
    let generation = parts.start(2, now).unwrap();
    assert_eq!(parts.tags(target), None);
    parts.sent(2, generation, 10, "two".to_owned());
    assert_eq!(parts.tags(target), Some(vec!["new".to_owned(), "two".to_owned()]));
    assert!(!parts.settle(None, parts.generation(), 20));
}

#[test]
fn a_few_bytes_do_not_make_a_part_go_again() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.write(0..10, now);
    let generation = parts.start(1, now).unwrap();
    parts.sent(1, generation, 10, "a".to_owned());
    for _ in 0..9 {
        parts.write(4..5, now);
    }
    assert_eq!(parts.due(now, Duration::ZERO, all), Due::Never);
    parts.write(4..5, now);
    assert_eq!(parts.due(now, Duration::ZERO, |_| false), Due::Never, "bytes that are not staged are missing");
    parts.write(4..5, now);
    assert_eq!(parts.due(now, Duration::ZERO, all), Due::Part(1, 0..10));
}

#[test]
fn what_is_written_during_a_sync_is_dirty_after_it() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.write(0..25, now);
    let target = Target { generation: parts.generation(), size: 25 };
    for number in 1..=3 {
        let range = parts.next_unsent(number, target).unwrap().1;
        let generation = parts.start(number, now).unwrap();
        parts.sent(number, generation, range.end - range.start, number.to_string());
    }
    parts.write(24..40, now);
    assert_eq!(parts.tags(target).unwrap(), ["1", "2", "3"], "the last carries what it must");
    parts.write(0..1, now);
    assert!(parts.settle(None, target.generation, 40));
    assert_eq!((1..=4).map(|number| parts.is_untouched(number)).collect::<Vec<_>>(), [false, true, false, false]);
}

#[test]
fn a_cut_drops_parts_but_remembers_what_is_under_way() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.write(0..40, now);
    for number in [1, 2, 3] {
        let generation = parts.start(number, now).unwrap();
        parts.sent(number, generation, 10, number.to_string());
    }
    let generation = parts.start(4, now).unwrap();
    parts.resize(40, 15, now);
    assert_eq!(parts.arrived().collect::<Vec<_>>(), [(1, 0..10)], "the second is cut, the others are dropped");
    assert_eq!(parts.start(4, now), None, "it is still under way");
    parts.resize(15, 40, now);
    parts.sent(4, generation, 10, "old".to_owned());
    let target = Target { generation: parts.generation(), size: 40 };
    let unsent: Vec<u32> = (1..=4).filter(|&n| parts.next_unsent(n, target).is_some_and(|(m, _)| m == n)).collect();
    assert_eq!(unsent, [2, 3, 4]);
}

#[test]
fn an_upload_that_is_gone_is_sent_anew() {
    let (mut parts, now) = (parts(&[(100, 10)]), Instant::now());
    parts.write(0..20, now);
    let generation = parts.start(1, now).unwrap();
    parts.sent(1, generation, 10, "a".to_owned());
    parts.start(2, now);
    parts.forget_sent();
    assert_eq!(parts.in_flight(), 0);
    let target = Target { generation: parts.generation(), size: 20 };
    assert_eq!(parts.next_unsent(1, target), Some((1, 0..10)));
    assert_eq!(parts.due(now, Duration::ZERO, all), Due::Part(1, 0..10));
}

#[derive(Clone, Debug)]
enum Event {
    Write(u64, u64),
    Resize(u64),
    Start(u32),
    End(bool),
    Gone,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..60u64, 1..20u64).prop_map(|(start, length)| Event::Write(start, length)),
        1 => (0..60u64).prop_map(Event::Resize),
        3 => (1..9u32).prop_map(Event::Start),
        3 => any::<bool>().prop_map(Event::End),
        1 => Just(Event::Gone),
    ]
}

proptest! {
    /// The bytes of the model are the steps that wrote them; a sync at the end must complete with exactly them.
    #[test]
    fn a_sync_completes_with_what_was_written(events in prop::collection::vec(event(), 0..80)) {
        let (mut parts, now) = (parts(&[(4, 5), (100, 10)]), Instant::now());
        let (mut model, mut under_way, mut arrived) = (Vec::new(), Vec::new(), BTreeMap::new());
        let range_of = |parts: &Parts, number, size| parts.range(number, size);
        for (step, event) in events.into_iter().enumerate() {
            match event {
                Event::Write(start, length) => {
                    model.resize(model.len().max((start + length) as usize), 0);
                    model[start as usize..(start + length) as usize].fill(step + 1);
                    parts.write(start..start + length, now);
                }
                Event::Resize(size) => {
                    parts.resize(model.len() as u64, size, now);
                    model.resize(size as usize, 0);
                }
                Event::Start(number) => {
                    let range = range_of(&parts, number, model.len() as u64);
                    if !range.is_empty() && let Some(generation) = parts.start(number, now) {
                        let bytes = model[range.start as usize..range.end as usize].to_vec();
                        under_way.push((number, generation, bytes));
                    }
                }
                Event::End(well) => if !under_way.is_empty() {
                    let (number, generation, bytes) = under_way.remove(0);
                    if well {
                        parts.sent(number, generation, bytes.len() as u64, step.to_string());
                        arrived.insert(step.to_string(), bytes);
                    } else {
                        parts.failed(number);
                    }
                }
                Event::Gone => {
                    under_way.clear();
                    parts.forget_sent();
                }
            }
            prop_assert_eq!(parts.in_flight(), under_way.len());
            for (number, range) in parts.arrived() {
                prop_assert!(range.end <= model.len() as u64, "part {} is beyond the end", number);
            }
        }
        for (number, generation, bytes) in under_way {
            parts.sent(number, generation, bytes.len() as u64, format!("late {number}"));
            arrived.insert(format!("late {number}"), bytes);
        }
        let target = Target { generation: parts.generation(), size: model.len() as u64 };
        let mut from = 1;
        while let Some((number, range)) = parts.next_unsent(from, target) {
            let generation = parts.start(number, now).unwrap();
            parts.sent(number, generation, range.end - range.start, format!("last {number}"));
            arrived.insert(format!("last {number}"), model[range.start as usize..range.end as usize].to_vec());
            from = number + 1;
        }
        let tags = parts.tags(target).unwrap();
        let whole: Vec<usize> = tags.iter().flat_map(|tag| arrived[tag].clone()).collect();
        prop_assert_eq!(whole, model);
        prop_assert!(!parts.settle(None, target.generation, target.size));
    }
}
