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
