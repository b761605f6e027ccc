//! Who has to go when room is wanted back, and what comes only if there is some.

use super::*;

#[test]
fn room_that_is_wanted_back_is_that_of_files_which_were_not_used_since_then() {
    let mut rig = Rig::new(limits(10 * MIB));
    for number in 0..4 {
        rig.hold(number, MIB);
        rig.now += Duration::from_secs(1);
    }
    let since = rig.now;
    rig.now += Duration::from_secs(1);
    // 1 is open, 2 was used just now, and 4 was asked for.
    assert_eq!(rig.open(1, MIB), Answer::Ready);
    assert_eq!(rig.open(2, MIB), Answer::Ready);
    rig.close(2);
    rig.want(4, MIB).unwrap();
    rig.settle();
    rig.index.reclaim(1, since, rig.now);
    rig.obey();
    rig.settle();
    assert_eq!(rig.whole(), [1, 2, 3, 4], "the one that was used longest ago, and no more than is wanted");
    rig.index.reclaim(10 * MIB, since, rig.now);
    rig.obey();
    // What goes already counts.
    rig.index.reclaim(MIB, rig.now, rig.now);
    rig.obey();
    assert_eq!(rig.removing.len(), 1);
    rig.settle();
    assert_eq!(rig.whole(), [1, 2, 4]);
    rig.close(1);
}

#[test]
fn a_file_that_is_read_as_a_whole_comes_if_there_is_room_and_drives_nothing_out() {
    let mut rig = Rig::new(limits(10 * MIB));
    let reads = |rig: &mut Rig, number: u32, from_start: u64| {
        let (file, version) = version(number, 4 * MIB);
        rig.sizes.insert(file, 4 * MIB);
        let reading = Reading { bytes: from_start, from_start, ..Reading::default() };
        rig.index.reads(file, &version, reading, rig.now);
        rig.obey();
    };
    assert_eq!(rig.open(1, 4 * MIB), Answer::No);
    reads(&mut rig, 1, MIB / 4);
    assert_eq!(rig.filling.len(), 0);
    reads(&mut rig, 1, MIB / 2);
    reads(&mut rig, 1, MIB);
    assert_eq!(rig.filling.len(), 1);
    rig.settle();
    assert_eq!(rig.open(1, 4 * MIB), Answer::Ready);
    rig.close(1);
    for number in 2..6 {
        assert_eq!(rig.open(number, 4 * MIB), Answer::No);
        reads(&mut rig, number, MIB);
        rig.settle();
    }
    assert_eq!(rig.whole(), [1, 2], "there is no room for more");
}

#[test]
fn a_file_of_which_wrong_bytes_were_read_as_its_fill_ended_is_shown_to_nobody() {
    let mut rig = Rig::new(limits(10 * MIB));
    let (file, _) = version(1, MIB);
    assert_eq!((rig.open(1, MIB), rig.open(1, MIB)), (Answer::No, Answer::No));
    assert_eq!(rig.filling, [file]);
    rig.index.checked(file, None, false, rig.now);
    rig.obey();
    rig.end_fill(0, None);
    assert_eq!(rig.removing, [file]);
    assert_eq!(rig.open(1, MIB), Answer::No);
    rig.settle();
    assert!(rig.whole().is_empty());
}

#[test]
fn what_a_fill_has_just_written_is_not_taken_for_memory_that_somebody_else_holds() {
    let mut rig = Rig::new(limits(20 * MIB));
    let (file, _) = version(1, 8 * MIB);
    assert_eq!((rig.open(1, 8 * MIB), rig.open(1, 8 * MIB)), (Answer::No, Answer::No));
    // A block of it, of which it has not told yet.
    rig.index.free(16 * MIB, rig.now);
    assert_eq!(rig.index.missing(), 0);
    rig.index.progress(&file, 4 * MIB);
    rig.index.free(16 * MIB, rig.now);
    assert_eq!(rig.index.missing(), 0);
    rig.index.free(10 * MIB, rig.now);
    assert_eq!(rig.index.missing(), 2 * MIB, "what cannot be the next block of it");
}
