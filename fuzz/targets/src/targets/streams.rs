//! Streams of bytes that arrive in pieces.

use forebay_memory::Pool;
use forebay_types::ByteSize;

use crate::input::{Input, Output};
use crate::support::pool;
use crate::targets::Seed;

/// Most of a stream that is taken: several times what a connection holds back of headers.
const MAX: usize = 256 << 10;

thread_local! {
    static POOL: Pool = pool(ByteSize::mib(16));
}

/// The sizes of pieces, a stream behind them, and whether its checksums are to be put right.
fn cut(input: &mut Input<'_>) -> (bool, Vec<u16>) {
    let flags = input.u8();
    let cuts = (0..flags >> 4).map(|_| input.u16()).collect();
    (flags & 1 != 0, cuts)
}

/// What precedes a stream in a seed.
fn uncut(cuts: &[u16]) -> Output {
    cuts.iter().fold(Output::default().u8(1 | (cuts.len() as u8) << 4), |output, cut| output.u16(*cut))
}

pub(super) mod tcp_requests {
    use super::*;
    use bytes::Bytes;
    use forebay_transport::message::UploadRequest;
    use forebay_transport::wire::RequestHeader;
    use forebay_transport::{Op, Request};
    use forebay_types::{BlockKey, FileId};
    use std::time::Duration;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (puts_right, cuts) = cut(&mut input);
        let mut stream = input.take(MAX).to_vec();
        if puts_right {
            crate::seal::requests(&mut stream);
        }
        forebay_tcp::fuzzing::requests(&stream, &cuts);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let sent = |id, request: Request| {
            [&RequestHeader::of(id, &request).encode()[..], &request.body, &request.tail].concat()
        };
        let second = Duration::from_secs(1);
        let block = BlockKey { file: FileId([7; 16]), index: 3 };
        let read = sent(1, Request::on_block(Op::Read, block, 4096, 65536, second));
        let stat = sent(2, Request::on_path(Op::Stat, Bytes::from_static(b"/a/b"), second));
        let ping = sent(0, Request::on_path(Op::Ping, Bytes::new(), second));
        let upload =
            UploadRequest { path: b"/up".to_vec(), part: None, only_new: false, bytes: Bytes::from(vec![7; 500]) };
        let upload = sent(3, upload.request(second));
        // Over 64 KiB: it needs leave.
        let large = sent(4, Request::on_path(Op::Upload, Bytes::from(vec![1; 65 << 10]), second));
        vec![
            ("ping_read_stat", uncut(&[]).bytes([ping.clone(), read.clone(), stat.clone()].concat()).done()),
            ("in_pieces", uncut(&[1, 63, 64, 65]).bytes([stat, upload, read, ping.clone()].concat()).done()),
            ("large", uncut(&[4096]).bytes([ping, large[..2000].to_vec()].concat()).done()),
        ]
    }
}

pub(super) mod tcp_replies {
    use super::*;
    use forebay_transport::Provenance;
    use forebay_transport::wire::ReplyHeader;
    use forebay_types::FailureKind;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (puts_right, cuts) = cut(&mut input);
        let calls: Vec<_> = (0..input.u8() % 8).map(|_| (input.u16(), input.u8() & 1 != 0)).collect();
        let mut stream = input.take(MAX).to_vec();
        if puts_right {
            crate::seal::replies(&mut stream);
        }
        POOL.with(|pool| forebay_tcp::fuzzing::replies(&stream, &cuts, &calls, pool));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let sent = |id, failure, body: &[u8], payload: &[u8]| {
            let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
            let provenance = Provenance { memory: payload_len, ..Provenance::default() };
            [&ReplyHeader { id, failure, body_len, payload_len, provenance }.encode()[..], body, payload].concat()
        };
        let calls = |output: Output| {
            let calls = [(100, 0), (600, 0), (0, 0), (700, 1)];
            let output = output.u8(calls.len() as u8);
            calls.iter().fold(output, |output, (limit, left)| output.u16(*limit).u8(*left))
        };
        let stream = [
            sent(0, None, b"", b""),
            sent(2, None, b"body", &[2; 600]),
            sent(4, None, b"", &[4; 700]),
            sent(3, Some(FailureKind::NotFound), b"no such file", b""),
            sent(1, None, b"", &[1; 100]),
        ];
        let goodbye = sent(0, Some(FailureKind::Unavailable), b"the worker stops", b"");
        vec![
            ("all_sorts", calls(uncut(&[])).bytes(stream.concat()).done()),
            ("in_pieces", calls(uncut(&[1, 64, 1000, 7])).bytes(stream.concat()).done()),
            ("goodbye", calls(uncut(&[70])).bytes([stream[0].clone(), goodbye].concat()).done()),
        ]
    }
}

pub(super) mod tcp_records {
    use super::*;

    /// Bytes of a message, at most: some records.
    const MAX_MESSAGE: usize = 40 << 10;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (flips, cuts) = cut(&mut input);
        let flip = flips.then(|| input.u32() as usize);
        let count = usize::from(input.u8() % 8);
        let lengths: Vec<usize> = (0..count).map(|_| usize::from(input.u16()) % MAX_MESSAGE).collect();
        // Their bytes do not matter: they are encrypted.
        let text: Vec<u8> = (0..MAX_MESSAGE).map(|at| (at % 251) as u8).collect();
        let messages: Vec<&[u8]> = lengths.iter().map(|length| &text[..*length]).collect();
        forebay_tcp::fuzzing::records(&messages, flip, input.take(MAX), &cuts);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let messages = |output: Output, lengths: &[u16]| {
            lengths.iter().fold(output.u8(lengths.len() as u8), |output, length| output.u16(*length))
        };
        let whole =
            |cuts: &[u16]| cuts.iter().fold(Output::default().u8((cuts.len() as u8) << 4), |to, cut| to.u16(*cut));
        vec![
            ("in_pieces", messages(whole(&[1, 4, 5, 9000]), &[64, 0, 16384, 16385, 39000]).done()),
            ("changed", messages(uncut(&[100]).u32(3000), &[64, 64, 64, 64]).done()),
            ("header_changed", messages(uncut(&[]).u32(8 * 3), &[300, 300]).done()),
            ("plain_text", messages(whole(&[]), &[64]).bytes(b"GET / HTTP/1.1\r\n\r\n").done()),
            ("alert", messages(whole(&[]), &[]).bytes([21, 3, 3, 0, 2, 1, 0]).done()),
        ]
    }
}

pub(super) mod perftest {
    use super::*;
    use forebay_perftest::fuzzing::{STREAM_LEN, answered, asked, samples, stream};

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        match input.u8() % 4 {
            0 => asked(input.rest()),
            1 => answered(input.rest(), false),
            2 => answered(input.rest(), true),
            _ => stream(&input.array::<STREAM_LEN>(), input.u32() % 65),
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let (requests, answers) = samples();
        let named = ["open", "usage", "stream", "refused"];
        let mut seeds = vec![("requests", Output::default().u8(0).bytes(requests.concat()).done())];
        seeds.push(("offer", Output::default().u8(1).bytes(&answers[0]).done()));
        seeds.extend(
            named.iter().zip(&answers[1..]).map(|(name, answer)| (*name, Output::default().u8(2).bytes(answer).done())),
        );
        seeds.push(("read", Output::default().u8(3).bytes([0; STREAM_LEN]).u32(4).done()));
        seeds.push(("write", Output::default().u8(3).bytes([1, 1]).bytes([0; STREAM_LEN - 2]).u32(4).done()));
        seeds
    }
}
