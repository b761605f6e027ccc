//! The same where payload comes in messages: what a worker sends of it reaches no memory but the receives of its client, and of those
//! only what the client asked for is copied.

use super::*;

/// A frame of payload.
fn piece(call: u64, offset: usize, bytes: &[u8]) -> Vec<u8> {
    frame_with(PAYLOAD, 0, (offset as u32, call), bytes)
}

/// A payload of so many bytes, in frames.
fn pieces(call: u64, length: usize) -> Vec<Vec<u8>> {
    const EACH: usize = 8000;
    let starts = (0..length).step_by(EACH);
    starts.map(|start| piece(call, start, &[0x5a; EACH][..EACH.min(length - start)])).collect()
}

/// The answer behind a payload.
fn behind(call: u64, said: usize) -> Vec<u8> {
    let mut answer = frame(REPLY, &reply(call, said as u32).encode());
    answer[1] = 1;
    answer
}

fn answered(call: u64, length: usize) -> Vec<Vec<u8>> {
    [pieces(call, length), vec![behind(call, length)]].concat()
}

fn assert_landed(reply: Result<Reply, CallError>) {
    let Payload::Landed(bytes) = reply.unwrap().payload else { panic!("it did not land") };
    assert!(bytes.len() == ASKED && bytes.iter().all(|byte| *byte == 0x5a), "what is right works");
}

#[test]
fn payload_that_the_protocol_does_not_allow_fails_the_call_and_ends_the_connection() {
    let Some(client) = Client::in_messages() else { return };
    let some = || piece(1, 0, &[7; 100]);
    let begun = frame(REPLY, &{
        let mut header = reply(1, 0);
        header.body_len = 100;
        header.encode()
    });
    let cases: [(&str, Vec<Vec<u8>>); 10] = [
        ("payload of a call that there is not", vec![piece(77, 0, &[7; 100])]),
        ("payload that begins with a gap", vec![piece(1, 1, &[7; 100])]),
        ("the same twice", vec![some(), some()]),
        ("payload far behind the buffer", vec![some(), piece(1, u32::MAX as usize, &[7; 100])]),
        ("one byte more than was asked for", pieces(1, ASKED + 1)),
        ("a frame of nothing", vec![piece(1, 0, &[])]),
        ("in the middle of a message", vec![begun, some()]),
        ("an answer that says more than came", vec![some(), behind(1, 101)]),
        ("an answer that says less", vec![some(), behind(1, 99)]),
        ("an answer that knows nothing of it", vec![some(), frame(REPLY, &reply(1, 0).encode())]),
    ];
    for (case, frames) in cases {
        client.breaks(case, ASKED, |pair| frames.iter().for_each(|frame| pair.send(frame, Post::default())));
    }
    let (result, _pair) = client.read_answered(ASKED, |pair, request| {
        assert_eq!(window(request), Remote::default(), "no place is offered");
        answered(1, ASKED).iter().for_each(|frame| pair.send(frame, Post::default()));
    });
    assert_landed(result);
}

#[test]
fn who_left_has_its_memory_back_at_once_and_what_still_comes_is_dropped() {
    let Some(client) = Client::in_messages() else { return };
    let ask = |within| {
        let (link, into) = (Arc::clone(&client.link), client.buffers.try_alloc(ASKED));
        let request = read(Behaviour::AtOnce, 0, 0, ASKED as u32, within);
        client.runtime.spawn(async move { link.call(request, into).await })
    };
    let call = ask(std::time::Duration::from_secs(20));
    let (mut pair, _) = client.raw.serve_one();
    let late = answered(1, ASKED);
    pair.send(&late[0], Post::default());
    let result = client.runtime.block_on(call).unwrap();
    assert!(matches!(result, Err(CallError::Link(LinkError::TimedOut { .. }))), "{result:?}");
    // The connection is there, and its answer has not come.
    client.assert_nothing_held();
    let call = ask(LONG);
    pair.hear("another request");
    late[1..].iter().chain(&answered(2, ASKED)).for_each(|frame| pair.send(frame, Post::default()));
    assert_landed(client.runtime.block_on(call).unwrap());
}

#[test]
fn a_client_without_windows_gets_payload_in_messages_and_one_that_offers_a_place_all_the_same_loses_its_connection() {
    let Some(scene) = Scene::new() else { return };
    let raw = Raw::new(&scene.devices.client);
    let mut pair = raw.connect(&scene.devices, scene.address(), &messages_offer(64, 4096)).unwrap();
    pair.send(&frame(HELLO, &hello()), Post::default());
    assert_eq!(pair.hear("a welcome")[0], WELCOME);
    pair.send(&frame(REQUEST, &honest(1, ASKED as u32)), Post::default());
    let mut came = Vec::new();
    let said = loop {
        let frame = pair.hear("payload, and an answer");
        let (place, rest) = (window(&frame), &frame[16..]);
        if frame[0] == REPLY {
            assert_eq!(frame[1], 1, "its payload went before");
            break ReplyHeader::decode(rest[..HEADER_LEN].try_into().unwrap()).unwrap();
        }
        assert_eq!((frame[0], place), (PAYLOAD, Remote { address: 1, key: came.len() as u32 }));
        came.extend_from_slice(rest);
    };
    assert_eq!((said.id, said.failure, said.payload_len as usize), (1, None, came.len()));
    let right = call(&scene.link, read(Behaviour::AtOnce, 0, 0, ASKED as u32, LONG));
    let Payload::Landed(right) = scene.runtime.block_on(right).unwrap().payload else { panic!("it did not land") };
    assert!(came == right[..], "the same bytes come either way");
    pair.send(&frame_with(REQUEST, 0, (7, 4096), &honest(2, ASKED as u32)), Post::default());
    let (header, reason) = pair.reply("a place");
    println!("{}", String::from_utf8_lossy(&reason));
    assert_eq!((header.id, header.failure), (CONNECTION_ID, Some(FailureKind::InvalidArgument)));
    pair.ends("a place");
    scene.end();
}
