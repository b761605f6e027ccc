//! What clients of the S3 endpoint send before it is known who they are and what there is.

use forebay_s3::fuzzing::{chunks, continuation, host, key, key_file, part, request};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod s3_gate {
    use super::*;

    /// Most headers.
    const LINES: usize = 12;
    /// Headers that count, one of which half of all lines are.
    const NAMES: [&str; 8] = [
        "host",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-copy-source",
        "content-type",
        "x-amz-decoded-content-length",
        "x-amz-acl",
    ];
    const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let method = input.u8();
        let method = METHODS.get(usize::from(method % 8)).map_or_else(|| input.piece(), |known| known.as_bytes());
        let Ok(uri) = str::from_utf8(input.piece()) else { return };
        let mut lines: Vec<(&[u8], &[u8])> = Vec::new();
        while !input.is_empty() && lines.len() < LINES {
            let name = input.u8();
            let name = if name & 8 == 0 { NAMES[usize::from(name & 7)].as_bytes() } else { input.piece() };
            lines.push((name, input.piece()));
        }
        request(method, uri, &lines);
    }

    /// A request, and its headers.
    fn asks(method: u8, uri: &str, lines: &[(u8, &str)]) -> Vec<u8> {
        let begin = Output::default().u8(method).piece(uri);
        lines.iter().fold(begin, |output, (name, value)| output.u8(*name).piece(value)).done()
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let scope = "KEY/20261126/us-east-1/s3/aws4_request";
        let signed = |headers: &str| {
            format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={headers}, Signature={}", "0a".repeat(32))
        };
        let presigned = |headers: &str| {
            let (scope, headers) = (scope.replace('/', "%2F"), headers.replace(';', "%3B"));
            format!(
                "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={scope}&X-Amz-Date=20261126T000000Z\
                 &X-Amz-Expires=60&X-Amz-SignedHeaders={headers}&X-Amz-Signature={}",
                "0a".repeat(32)
            )
        };
        let (host, date) = ((0, "s3.example.org"), (2, "20261126T000000Z"));
        let hidden = ",Credential=a/s3/aws4_request,SignedHeaders=host;x-amz-copy-source;z ";
        let twice = signed("host").replacen(' ', hidden, 1);
        let in_region = signed("host").replace("us-east-1", "s3/aws4_request,SignedHeaders=host;x-amz-acl,x");
        vec![
            ("signed", asks(0, "/b/k", &[host, date, (1, &signed("host;x-amz-date"))])),
            ("presigned", asks(0, &presigned("host"), &[host])),
            ("presigned_copy", asks(1, &presigned("host"), &[host, (4, "/b/secret")])),
            ("presigned_body", asks(1, &presigned("host"), &[host, (3, "UNSIGNED-PAYLOAD")])),
            ("presigned_twice", asks(1, &format!("{}&X-Amz-SignedHeaders=x", presigned("host")), &[host])),
            ("copy", asks(1, "/b/k", &[host, (4, "/b/x"), (1, &signed("host;x-amz-copy-source"))])),
            ("unsigned_header", asks(1, "/b/k", &[host, (7, "private"), (1, &signed("host"))])),
            ("hidden", asks(1, "/b/k", &[host, (4, "/b/x"), (1, &twice)])),
            ("hidden_in_region", asks(1, "/b/k", &[host, (7, "private"), (1, &in_region)])),
            ("old", asks(0, "/b/k?AWSAccessKeyId=K&Signature=s&Expires=9", &[host])),
            ("form", asks(2, "/b", &[host, (5, "Multipart/Form-Data; boundary=x")])),
            (
                "in_chunks",
                asks(
                    1,
                    "/b/k",
                    &[host, (3, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), (1, &signed("host;x-amz-content-sha256"))],
                ),
            ),
            ("renames", asks(1, "/b/k?renameObject", &[host, (1, &signed("host"))])),
            ("part", asks(1, "/b/k?partNumber=1&uploadId=u", &[host, (1, &signed("host"))])),
        ]
    }
}

pub(super) mod s3_names {
    use super::*;

    /// Most domains.
    const DOMAINS: usize = 3;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        match kind % 4 {
            0 => {
                let (Ok(bucket), Ok(name)) = (str::from_utf8(input.piece()), str::from_utf8(input.rest())) else {
                    return;
                };
                key(bucket, name);
            }
            1 => {
                if let Ok(text) = str::from_utf8(input.rest()) {
                    continuation(text);
                }
            }
            2 => {
                let size = input.u64();
                if let Ok(text) = str::from_utf8(input.rest()) {
                    part(text, size);
                }
            }
            _ => {
                let pieces = (0..usize::from(kind >> 4) % (DOMAINS + 1)).map(|_| input.piece()).collect::<Vec<_>>();
                let domains: Result<Vec<&str>, _> = pieces.into_iter().map(str::from_utf8).collect();
                if let (Ok(domains), Ok(text)) = (domains, str::from_utf8(input.rest())) {
                    host(&domains, text);
                }
            }
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let key = |bucket: &str, key: &str| Output::default().u8(0).piece(bucket).bytes(key).done();
        let token = |text: &str| Output::default().u8(1).bytes(text).done();
        let tag = |text: &str| Output::default().u8(2).u64(5 << 20).bytes(text).done();
        let host = Output::default().u8(3 | 2 << 4).piece("s3.example.org").piece("example.org");
        vec![
            ("key", key("data", "a/b.txt")),
            ("directory", key("data", "a/b/")),
            ("no_path", key("data", "a//../b")),
            ("no_bucket", key("..", "a")),
            ("token", token("f1-612f62")),
            ("capitals", token("f1-C3BC")),
            ("key_to_go_on_from", token("a/b\u{fc}")),
            ("quoted_tag", tag("q0123456789abcdef0123456789abcdef.5242880")),
            ("plain_tag", tag("pabc-2.7")),
            ("odd_tag", tag("x22c3bc22.7")),
            ("tag_with_a_line_break", tag("pa\nb.7")),
            ("host", host.clone().bytes("data.S3.Example.Org:9000").done()),
            ("domain", host.bytes("s3.example.org").done()),
        ]
    }
}

pub(super) mod s3_keys {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        if let Ok(text) = str::from_utf8(bytes) {
            key_file(text);
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let secret = "0123456789abcdef".repeat(2);
        let seed = |text: String| text.into_bytes();
        vec![
            ("keys", seed(format!("# of team-a\n\nFBKEY {secret} reader team-a\r\n  FB.2 {secret}+/= admin b\n"))),
            ("twice", seed(format!("KEY {secret} reader a\nKEY {secret} writer b\n"))),
            ("no_signer", seed(format!("KEY {secret} worker w1"))),
            ("short", seed("KEY secret reader a".to_owned())),
            ("a_secret_as_a_name", seed(format!("KEY {} reader {secret}/+", "team-a".repeat(6)))),
            ("five_words", seed(format!("KEY {secret} reader a b"))),
            ("nothing", seed("# none\n".to_owned())),
        ]
    }
}

pub(super) mod s3_chunks {
    use super::*;

    /// Most pieces.
    const PIECES: u8 = 16;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let ends: Vec<usize> = (0..input.u8() % PIECES).map(|_| usize::from(input.u8()) + 1).collect();
        chunks(input.rest(), &ends);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let signature = ";chunk-signature=".to_owned() + &"0a".repeat(32);
        let signed = format!("5{signature}\r\nhello\r\n0{signature}\r\n\r\n");
        let body = |ends: &[u8], body: &str| {
            let begin = ends.iter().fold(Output::default().u8(ends.len() as u8), |output, end| output.u8(*end));
            begin.bytes(body).done()
        };
        vec![
            ("plain", body(&[2, 3], "5\r\nhello\r\n3\r\nyou\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n")),
            ("signed", body(&[0, 50, 9], &signed)),
            ("signed_and_too_long", body(&[], &format!("100001{signature}\r\nhello"))),
            ("cut_off", body(&[1], "fffffffff\r\nhello")),
            ("no_chunk", body(&[], "5\nhello")),
            ("many_digits", body(&[4], &format!("000000005{signature}\r\nhello\r\n"))),
            ("long_line", body(&[99, 99, 99], &"0".repeat(300))),
        ]
    }
}
