//! What is tested of one end.

use forebay_transport::{Op, Provenance, Request};
use std::time::Duration;

use super::*;

const OFFER: Offer =
    Offer { credits: 4, frame_length: 256, client_id: None, one_sided: false, in_messages: false, mtu: None };

fn request(body: usize) -> (Outgoing, Vec<u8>) {
    let body = Bytes::from((0..body).map(|at| at as u8).collect::<Vec<_>>());
    let request = Request::on_path(Op::Stat, body.clone(), Duration::ZERO);
    let head = RequestHeader::of(1, &request).encode();
    let whole = [&head[..], &body].concat();
    (Outgoing { body, ..Outgoing::new(Kind::Request, &head) }, whole)
}

fn next_frame(channel: &mut Channel) -> Option<(Vec<u8>, Post)> {
    let mut frame = vec![0; OFFER.frame_length as usize];
    let (post, length) = match channel.next()? {
        Next::Credits => (Post::default(), channel.fill_credits(&mut frame)),
        Next::Frame { .. } => (channel.begin(), channel.fill(&mut frame)),
    };
    frame.truncate(length);
    Some((frame, post))
}

#[test]
fn a_message_that_is_longer_than_a_frame_arrives_whole_as_far_as_credits_let_it() {
    let (mut from, mut to) = (Channel::new(&OFFER, &OFFER), Channel::new(&OFFER, &OFFER));
    let (message, whole) = request(3000);
    from.push(message);
    let mut arrived = None;
    let mut frames = 0;
    while arrived.is_none() {
        while let Some((frame, _)) = next_frame(&mut from) {
            frames += 1;
            assert_eq!(arrived, None, "nothing comes after the end");
            arrived = to.received(&frame).unwrap();
            to.receives_again(takes_credit(&frame));
        }
        if let Some((credits, _)) = next_frame(&mut to) {
            assert_eq!(from.received(&credits), Ok(None));
        }
    }
    assert_eq!(arrived.unwrap().bytes, whole);
    assert_eq!((frames, from.waiting()), (whole.len().div_ceil(256 - FRAME_HEADER), 0));
}

#[test]
fn what_is_written_goes_before_the_first_frame_and_its_key_ends_with_the_last() {
    let mut from = Channel::new(&OFFER, &OFFER);
    let (message, _) = request(300);
    let remote = Remote { address: 5, key: 7 };
    from.push(Outgoing {
        write: Some((Spans::new(), remote)),
        invalidate: Some(7),
        offered: Some((remote, 3)),
        ..message
    });
    let (first, post) = next_frame(&mut from).unwrap();
    assert_eq!(FrameHeader::decode(&first).unwrap().0.window(), Some(remote));
    assert_eq!((post.bind, post.write.map(|(_, to)| to), post.invalidate), (Some(3), Some(remote), None));
    let (last, post) = next_frame(&mut from).unwrap();
    assert_eq!(FrameHeader::decode(&last).unwrap().0.window(), None);
    assert_eq!((post.bind, post.write.map(|(_, to)| to), post.invalidate), (None, None, Some(7)));
    assert!(post.signalled && next_frame(&mut from).is_none());
}

#[test]
fn payload_in_frames_of_its_own_goes_before_its_message_and_is_no_message() {
    let (mut from, mut to) = (Channel::new(&OFFER, &OFFER), Channel::new(&OFFER, &OFFER));
    let pool = forebay_transport::conformance::pool(1);
    let mut span = pool.try_alloc(500).unwrap();
    span.iter_mut().zip(0..).for_each(|(byte, at): (_, usize)| *byte = at as u8);
    let span = span.freeze();
    let reply = ReplyHeader { id: 5, failure: None, body_len: 0, payload_len: 500, provenance: Provenance::default() };
    let head = reply.encode();
    from.push(Outgoing {
        before: Some(Leaving::new(5, Spans::from_iter([span.clone()]))),
        ..Outgoing::new(Kind::Reply, &head)
    });
    assert_eq!((from.waiting(), from.frames_waiting()), (1, 4));
    let mut came = Vec::new();
    for _ in 0..3 {
        let (frame, post) = next_frame(&mut from).unwrap();
        assert!(post.write.is_none() && !post.signalled);
        assert_eq!((to.received(&frame), takes_credit(&frame)), (Ok(None), true));
        let piece = to.piece(&frame).unwrap();
        assert_eq!((piece.call, piece.offset as usize), (5, came.len()));
        came.extend_from_slice(piece.bytes);
    }
    assert!(came == span[..]);
    let (last, post) = next_frame(&mut from).unwrap();
    assert!(post.signalled && (from.waiting(), from.frames_waiting()) == (0, 0));
    let message = to.received(&last).unwrap().unwrap();
    assert!(message.header.is_written && message.bytes == head && to.piece(&last).is_none());
}

#[test]
fn frames_that_come_where_they_may_not_are_noticed() {
    let frame = |kind: Kind, bytes: &[u8]| {
        let header = FrameHeader { kind, is_written: false, credits: 0, remote: Remote::default() };
        [&header.encode()[..], bytes].concat()
    };
    let (_, whole) = request(300);
    let received = |frames: &[Vec<u8>]| {
        let mut channel = Channel::new(&Offer { credits: 16, ..OFFER }, &OFFER);
        let (last, before) = frames.split_last().unwrap();
        before.iter().for_each(|frame| assert_eq!(channel.received(frame), Ok(None)));
        channel.received(last)
    };
    let begin = || frame(Kind::Request, &whole[..100]);
    assert_eq!(received(&[frame(Kind::More, &[1])]), Err(FrameError::Order(Kind::More as u8)));
    assert_eq!(received(&[begin(), frame(Kind::More, &[])]), Err(FrameError::Order(Kind::More as u8)));
    assert_eq!(received(&[begin(), begin()]), Err(FrameError::Order(Kind::Request as u8)));
    assert_eq!(received(&[frame(Kind::Request, &whole[..63])]), Err(FrameError::Length(63, HEADER_LEN)));
    let payload = || frame(Kind::Payload, &[1]);
    assert_eq!(received(&[begin(), payload()]), Err(FrameError::Order(Kind::Payload as u8)));
    assert_eq!(received(&[payload(), frame(Kind::More, &[1])]), Err(FrameError::Order(Kind::More as u8)));
    assert_eq!(received(&[frame(Kind::Payload, &[])]), Err(FrameError::Length(0, 1)));
    let longer = [&whole[100..], &[0]].concat();
    assert_eq!(received(&[begin(), frame(Kind::More, &longer)]), Err(FrameError::Length(265, 264)));
    assert!(received(&[begin(), frame(Kind::More, &whole[100..])]).is_ok_and(|message| message.is_some()));
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    assert!(matches!(received(&[frame(Kind::Request, &damaged)]), Err(FrameError::Wire(WireError::Checksum))));
}

#[test]
fn who_sends_without_credits_gets_none_for_it() {
    let mut channel = Channel::new(&OFFER, &OFFER);
    let header = FrameHeader { kind: Kind::Hello, is_written: false, credits: 0, remote: Remote::default() };
    let frame = header.encode();
    let mut received = || {
        let message = channel.received(&frame);
        channel.receives_again(takes_credit(&frame));
        message
    };
    (0..OFFER.credits).for_each(|_| assert!(received().is_ok_and(|message| message.is_some())));
    assert_eq!(received(), Err(FrameError::Overrun));
    (0..u32::from(u16::MAX) + 1).for_each(|_| assert_eq!(received(), Ok(None)));
    let (credits, _) = next_frame(&mut channel).unwrap();
    assert_eq!(FrameHeader::decode(&credits).unwrap().0.credits, OFFER.credits, "those that it had");
    assert!(next_frame(&mut channel).is_none());
    let mut short = Channel::new(&OFFER, &OFFER);
    assert_eq!(short.received(&[]), Err(FrameError::Short(0)));
    short.receives_again(takes_credit(&[]));
    assert!(next_frame(&mut short).is_none(), "it took no credit that could be counted");
}

#[test]
fn nobody_makes_us_keep_more_than_the_limits() {
    let mut channel = Channel::new(&OFFER, &OFFER);
    let reply = ReplyHeader {
        id: 1,
        failure: None,
        body_len: 0,
        payload_len: MAX_INSIDE + 1,
        provenance: Provenance::default(),
    };
    let header = FrameHeader { kind: Kind::Reply, is_written: false, credits: 0, remote: Remote::default() };
    let frame = [&header.encode()[..], &reply.encode()].concat();
    assert!(matches!(channel.received(&frame), Err(FrameError::Wire(WireError::Length { .. }))));
}
