//! Who may use what: access lists of mounts, and what is shown to an HTTP listener.

use forebay_cluster::records::mounts::AclRecord;
use forebay_types::{MAX_LISTED, Role};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod access_lists {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let name = String::from_utf8_lossy(input.piece()).into_owned();
        let Ok(record) = serde_json::from_slice::<AclRecord>(input.rest()) else { return };
        let written = serde_json::to_vec(&record).expect("names can be written");
        assert_eq!(serde_json::from_slice::<AclRecord>(&written).ok().as_ref(), Some(&record));
        let list = match record.list() {
            Ok(list) => list,
            Err(error) => {
                let told = error.to_string();
                return assert!(!told.contains(char::is_control) && told.chars().count() < 2000, "{told:?}");
            }
        };
        assert!(record.read.len() <= MAX_LISTED && record.write.len() <= MAX_LISTED);
        let (may_write, may_read) = (is_listed(&record.write, &name), is_listed(&record.read, &name));
        assert_eq!(list.may_write(&name), may_write);
        assert_eq!(list.may_read(&name), may_read || may_write);
        for listed in record.read.iter().chain(&record.write) {
            // As itself, or as the beginning that it is.
            assert!(list.may_read(listed.strip_suffix('*').unwrap_or(listed)), "{listed}");
        }
    }

    fn is_listed(listed: &[String], name: &str) -> bool {
        listed.iter().any(|listed| match listed.split_once('*') {
            Some((beginning, _)) => name.get(..beginning.len()) == Some(beginning),
            None => name == listed,
        })
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |name: &str, json: &str| Output::default().piece(name).bytes(json).done();
        let list = r#"{"read":["team-*","loader"],"write":["team-a"]}"#;
        vec![
            ("reader", seed("team-b", list)),
            ("writer", seed("team-a", list)),
            ("nobody", seed("loader2", list)),
            ("all", seed("", r#"{"read":["*"]}"#)),
            ("no_name", seed("a", r#"{"write":["a*b","\u001b[2J"]}"#)),
            ("unknown_field", seed("a", r#"{"read":["a"],"deny":["b"]}"#)),
        ]
    }
}

pub(super) mod authorization {
    use super::*;
    use forebay_metrics::fuzzing::authorization as shown;

    /// Most values of the header.
    const MAX: usize = 3;
    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let role = Role::ALL[usize::from(flags >> 2) % Role::ALL.len()];
        let mut values = Vec::new();
        while !input.is_empty() && values.len() < MAX {
            let value = input.piece();
            // The token, which nobody guesses, where a value ends in `!`.
            values.push(match value.split_last() {
                Some((b'!', scheme)) if flags & 1 != 0 => [scheme, SECRET.as_bytes()].concat(),
                _ => value.to_vec(),
            });
        }
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        shown(&values, SECRET, role);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |flags: u8, values: &[&str]| {
            values.iter().fold(Output::default().u8(flags), |output, value| output.piece(value)).done()
        };
        vec![
            ("bearer", seed(1 | 2 << 2, &["Bearer !"])),
            ("metrics", seed(1 | 5 << 2, &["bearer   !"])),
            ("twice", seed(1, &["Bearer !", "Bearer !"])),
            ("basic", seed(1, &["Basic !"])),
            ("wrong", seed(0, &["Bearer 0123456789abcdef0123456789abcdeF"])),
            ("no_text", seed(0, &["Bearer \u{e9}\t"])),
        ]
    }
}

pub(super) mod http_hosts {
    use super::*;
    use forebay_metrics::fuzzing::hosts;

    /// Most lines of headers.
    const MAX: usize = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let uri = String::from_utf8_lossy(input.piece());
        let mut lines = Vec::new();
        while !input.is_empty() && lines.len() < MAX {
            lines.push((input.u8(), input.piece()));
        }
        hosts(flags & 1 == 0, if uri.is_empty() { "/" } else { &uri }, &lines);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        const HOST: u8 = 0;
        const ORIGIN: u8 = 1;
        const SITE: u8 = 2;
        const MODE: u8 = 3;
        const DESTINATION: u8 = 4;
        let seed = |flags: u8, uri: &str, lines: &[(u8, &str)]| {
            let start = Output::default().u8(flags).piece(uri);
            lines.iter().fold(start, |output, (number, value)| output.u8(*number).piece(value)).done()
        };
        let ours = (HOST, "Node1.example.org.:19999");
        let (elsewhere, opens) = ((SITE, "cross-site"), [(MODE, "navigate"), (DESTINATION, "document")]);
        vec![
            ("own_name", seed(0, "", &[ours])),
            ("address", seed(1, "", &[(HOST, "[::1]:80"), (ORIGIN, "http://[0::1]")])),
            ("rebound", seed(0, "", &[(HOST, "evil.example:19999")])),
            ("another_page", seed(1, "", &[ours, (ORIGIN, "http://evil.example")])),
            ("own_page", seed(1, "", &[ours, (ORIGIN, "http://node1.example.org:19999")])),
            ("page_in_front", seed(1, "", &[ours, (ORIGIN, "https://cache.example.com")])),
            ("sandbox", seed(1, "", &[ours, (ORIGIN, "null")])),
            ("a_link", seed(0, "", &[ours, elsewhere, opens[0], opens[1]])),
            ("a_frame", seed(0, "", &[ours, elsewhere, opens[0], (DESTINATION, "iframe")])),
            ("two_hosts", seed(0, "", &[ours, (HOST, "localhost")])),
            ("whole_uri", seed(0, "http://evil.example/x", &[ours])),
        ]
    }
}
