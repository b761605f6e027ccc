//! Settings in the environment: `FOREBAY_WORKER_MEMORY_SIZE=4GiB`.
//!
//! A `FOREBAY_…` variable that stands for no key is refused, since it is most likely a misspelt one. Two kinds are let
//! be: those that the program reads itself, and those that Kubernetes puts into every container for each Service
//! (`FOREBAY_WORKER_PORT_29999_TCP_ADDR` for one called `forebay-worker`).

use std::ffi::OsString;
use std::sync::LazyLock;

use crate::assignment::Assignment;
use crate::error::Problem;
use crate::key::Key;
use crate::keys::KEYS;
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::table::PREFIX;
use crate::value::Raw;

/// Read before there is a configuration: by the program, the file's name, a filter for the log, and where run state lies; by what streams
/// models (`forebay-streamer`), which paths lead where; by what a keeper of a mount starts, that it did; and by the CSI driver, of a
/// process that it starts again, whose credentials that had.
const READ_ELSEWHERE: [&str; 7] = [
    "FOREBAY_CONFIG",
    "FOREBAY_CSI_CREDENTIALS_OF_DRIVER",
    "FOREBAY_LOG",
    "FOREBAY_RUN_DIR",
    "FOREBAY_STARTED_BY_KEEPER",
    "FOREBAY_STREAMER_MAP",
    "FOREBAY_STREAMER_UP",
];

/// The variable of each key, in the order of the table.
static VARIABLES: LazyLock<Vec<String>> = LazyLock::new(|| KEYS.iter().map(Key::variable).collect());

pub(crate) fn assignments(
    variables: &[(OsString, OsString)],
    assignments: &mut Vec<Assignment>,
    problems: &mut Vec<Problem>,
) {
    let mut variables: Vec<(&str, &OsString)> =
        variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value))).collect();
    // The environment has no order worth keeping: errors should not change theirs from run to run.
    variables.sort_unstable();
    for (variable, value) in variables {
        if !variable.starts_with(PREFIX)
            || READ_ELSEWHERE.contains(&variable)
            || is_kubernetes_service(variable, &value.to_string_lossy())
        {
            continue;
        }
        let known = KEYS.iter().zip(VARIABLES.iter()).find(|(_, known)| *known == variable);
        let Some((key, _)) = known else {
            let nearest = nearest(variable, VARIABLES.iter().map(String::as_str)).map(str::to_owned);
            problems.push(Problem::UnknownVariable { variable: variable.to_owned(), nearest });
            continue;
        };
        let at = Origin::Environment { variable: variable.to_owned() };
        match value.to_str() {
            Some(text) => assignments.push(Assignment { key, raw: Raw::Text(text.to_owned()), at }),
            None => problems.push(Problem::BadValue { at, key: key.name, why: "it is not UTF-8".to_owned() }),
        }
    }
}

/// The variables that Kubernetes documents as "service environment variables": `NAME_SERVICE_HOST`,
/// `NAME_SERVICE_PORT[_PORTNAME]`, `NAME_PORT=tcp://…` and `NAME_PORT_<number>_<protocol>[_PROTO|_PORT|_ADDR]`.
fn is_kubernetes_service(variable: &str, value: &str) -> bool {
    if variable.ends_with("_SERVICE_HOST") || variable.contains("_SERVICE_PORT") {
        return true;
    }
    if variable.ends_with("_PORT") && value.contains("://") {
        return true;
    }
    variable.split("_PORT_").skip(1).any(|rest| {
        let mut words = rest.split('_');
        let is_number = words.next().is_some_and(|word| word.parse::<u16>().is_ok());
        is_number && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_looks_like_a_variable_that_is_let_be() {
        for key in KEYS {
            assert!(!is_kubernetes_service(&key.variable(), "1"), "{}", key.variable());
            assert!(!READ_ELSEWHERE.contains(&key.variable().as_str()));
        }
    }

    #[test]
    fn the_variables_of_a_kubernetes_service_are_recognised() {
        for (variable, value) in [
            ("FOREBAY_WORKER_SERVICE_HOST", "10.0.0.1"),
            ("FOREBAY_WORKER_SERVICE_PORT", "29999"),
            ("FOREBAY_WORKER_SERVICE_PORT_RPC", "29999"),
            ("FOREBAY_WORKER_RPC_PORT", "tcp://10.0.0.1:29999"),
            ("FOREBAY_WORKER_PORT_29999_TCP", "tcp://10.0.0.1:29999"),
            ("FOREBAY_WORKER_PORT_29999_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(is_kubernetes_service(variable, value), "{variable}");
        }
        assert!(!is_kubernetes_service("FOREBAY_WORKER_PORT_NUMBER", "1"));
    }
}
