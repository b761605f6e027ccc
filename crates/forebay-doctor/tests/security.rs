//! The rows about identities.

mod support;

use forebay_config::Config;
use forebay_doctor::facts::{Certificate, Obstacle, Refusal, Security};
use forebay_doctor::{Check, Facts, Verdict};
use support::{config, facts, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

const KEY: &str = "security.mode=key";
const MTLS: &str = "security.mode=mtls";
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// When the files were looked at.
const NOW: u64 = 1_800_000_000;

/// A machine with a synchronized clock, where this was found.
fn machine(found: Option<Security>) -> Facts {
    let mut facts = facts("none", &["eth0=10.0.0.1/24"], ucx("1.20.0", &[]));
    facts.clock.is_synchronized = Some(true);
    facts.security = found;
    facts
}

fn with_key(keys: &[&str]) -> Security {
    Security {
        mode: "key".to_owned(),
        at: NOW,
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        identity: Some("spiffe://forebay/forebay/forebay/worker/node1".to_owned()),
        role: Some("worker".to_owned()),
        denied: Some(0),
        ..Security::default()
    }
}

fn with_certificates(role: &str, certificates: Vec<Certificate>) -> Security {
    Security {
        mode: "mtls".to_owned(),
        identity: Some(format!("spiffe://forebay/forebay/forebay/{role}/node1")),
        role: Some(role.to_owned()),
        certificates,
        ..with_key(&[])
    }
}

/// A certificate that began so many seconds ago, and ends so many after that.
fn certificate(began: u64, lasts: u64) -> Certificate {
    Certificate {
        file: "/etc/forebay/tls.crt".to_owned(),
        name: "spiffe://forebay/forebay/forebay/worker/node1".to_owned(),
        is_authority: false,
        from: NOW - began,
        until: NOW - began + lasts,
    }
}

/// The row about a file that stands in the way, as the whole report has it.
fn refused(mode: &str, file: &str, obstacle: Obstacle, settings: &[&str]) -> Check {
    let refusal = Refusal { file: Some(file.to_owned()), obstacle };
    let found = Security { mode: mode.to_owned(), at: NOW, refusal: Some(refusal), ..Security::default() };
    let mode = format!("security.mode={mode}");
    let config: Config = config(&[&[mode.as_str()][..], settings].concat());
    let name = format!("security file {file}");
    assert!(verdict(&machine(Some(found.clone())), &config, &name) >= Warn);
    find(&machine(Some(found)), &config, &name)
}

#[test]
fn without_a_mode_a_line_says_how_to_have_one() {
    let off = |settings: &[&str]| find(&machine(None), &config(settings), "security mode");
    let open = off(&[]);
    assert!(open.verdict == Info && open.remedy.unwrap().starts_with("forebay key create > /etc/forebay/cluster.key"));
    for host in ["127.0.0.1", "::1", "localhost"] {
        let here = off(&[format!("worker.rpc.bind.host={host}").as_str()]);
        assert!(here.verdict == Info && here.remedy.is_none() && here.what.contains("loopback"), "{here:?}");
    }
    // Its data is handed out elsewhere.
    let data = off(&["worker.rpc.bind.host=127.0.0.1", "worker.data.bind.device=eth0"]);
    assert!(data.remedy.is_some(), "{data:?}");
    assert!(!is_there(&machine(None), &config(&[]), "security clock"));
    assert!(!is_there(&machine(None), &config(&[]), "security identity"));
}

#[test]
fn a_key_that_is_in_order_shows_its_fingerprint_and_who_it_makes() {
    let facts = machine(Some(with_key(&["8352ff5b18454be7"])));
    let config = config(&[KEY]);
    assert!(find(&facts, &config, "security mode").what.contains("/etc/forebay/cluster.key"));
    let keys = find(&facts, &config, "security keys /etc/forebay/cluster.key");
    assert!(keys.verdict == Ok && keys.what.contains("8352ff5b18454be7"), "{keys:?}");
    let identity = find(&facts, &config, "security identity");
    assert_eq!((identity.verdict, &*identity.what), (Ok, "spiffe://forebay/forebay/forebay/worker/node1"));
    assert!(!is_there(&facts, &config, "security file") && !is_there(&facts, &config, "security role"));
}

#[test]
fn two_keys_are_a_change_that_someone_has_to_end() {
    let facts = machine(Some(with_key(&["8352ff5b18454be7", "0123456789abcdef"])));
    let keys = find(&facts, &config(&[KEY]), "security keys");
    assert_eq!(keys.verdict, Warn);
    assert!(keys.what.contains("8352ff5b18454be7 signs, and 0123456789abcdef is trusted"), "{keys:?}");
    assert!(keys.remedy.unwrap().contains("forebay key show"));
}

#[test]
fn a_file_that_cannot_be_used_fails_and_its_remedy_names_it() {
    let key = "/etc/forebay/cluster.key";
    let of = |obstacle: Obstacle| refused("key", key, obstacle, &[]);
    let open = of(Obstacle::Open(0o644));
    assert!(open.verdict == Fail && open.what.contains("0644"), "{open:?}");
    assert_eq!(open.remedy.as_deref(), Some("chmod 600 /etc/forebay/cluster.key"));
    let missing = of(Obstacle::Missing);
    assert!(
        missing.verdict == Fail && missing.remedy.unwrap().contains("forebay key create > /etc/forebay/cluster.key")
    );
    let content = of(Obstacle::Content("a block of it does not end".to_owned()));
    assert_eq!((content.verdict, &*content.what), (Fail, "a block of it does not end"));
    assert_eq!(of(Obstacle::Unreadable("Permission denied".to_owned())).verdict, Fail);
    let stranger = of(Obstacle::Owner { owner: 1000, user: 7 });
    assert_eq!((stranger.verdict, stranger.remedy.as_deref()), (Fail, Some("chown 7 /etc/forebay/cluster.key")));
    let service = of(Obstacle::Owner { owner: 1000, user: 0 });
    assert!(service.verdict == Warn && service.remedy.unwrap().contains("sudo -u '#1000'"));
    let certificate = "/etc/forebay/tls.crt";
    let of = |obstacle: Obstacle| refused("mtls", certificate, obstacle, &[]);
    assert!(of(Obstacle::Missing).remedy.unwrap().contains("security.ca_file"));
    assert!(of(Obstacle::Pair("/etc/forebay/tls.key".to_owned())).what.contains("/etc/forebay/tls.key"));
    assert!(of(Obstacle::Refused("no authority signed it".to_owned())).what.contains("no authority signed it"));
    let denied = refused("key", "/etc/denied", Obstacle::Missing, &["security.denied_file=/etc/denied"]);
    assert!(denied.remedy.unwrap().contains("security.denied_file"));
    // Names that cannot be in an identity are in no file.
    let refusal = Refusal { file: None, obstacle: Obstacle::Other("`a b` is no name".to_owned()) };
    let unnamed = machine(Some(Security { refusal: Some(refusal), identity: None, ..with_key(&[]) }));
    let unnamed = find(&unnamed, &config(&[KEY]), "security file");
    assert!(unnamed.verdict == Fail && unnamed.remedy.unwrap().contains("cluster.name"));
}

#[test]
fn a_certificate_is_judged_by_what_is_left_of_its_time() {
    let of = |certificate: Certificate| {
        let facts = machine(Some(with_certificates("worker", vec![certificate])));
        let (config, name) = (config(&[MTLS]), "security certificate /etc/forebay/tls.crt");
        // What is not well has a remedy.
        verdict(&facts, &config, name);
        find(&facts, &config, name)
    };
    let good = of(certificate(DAY, 90 * DAY));
    assert!(good.verdict == Ok && good.what.ends_with("worker/node1 lasts another 89 days of 90 days"), "{good:?}");
    let soon = of(certificate(73 * DAY, 90 * DAY));
    assert!(soon.verdict == Warn && soon.what.contains("another 17 days"), "{soon:?}");
    assert_eq!(of(certificate(71 * DAY, 90 * DAY)).verdict, Ok);
    // One of SPIFFE, which is renewed when half is left.
    assert_eq!(of(certificate(HOUR / 2, HOUR)).verdict, Ok);
    assert_eq!(of(certificate(HOUR - 600, HOUR)).verdict, Warn);
    assert_eq!(of(certificate(HOUR, HOUR)).verdict, Warn, "its last second");
    let expired = of(certificate(91 * DAY, 90 * DAY - 3 * HOUR));
    assert!(expired.verdict == Fail && expired.what.contains("expired 27 hours ago"), "{expired:?}");
    let early = of(Certificate { from: NOW + HOUR, until: NOW + DAY, ..certificate(0, 0) });
    assert!(early.verdict == Fail && early.what.contains("not valid yet, for another 60 minutes"), "{early:?}");
    assert!(early.remedy.unwrap().contains("date -u"));
    // Others take it.
    assert_eq!(of(Certificate { from: NOW + 60, until: NOW + DAY, ..certificate(0, 0) }).verdict, Warn);
}

#[test]
fn the_time_of_an_authority_is_no_failure() {
    let of = |from: u64, until: u64| {
        let authority = Certificate {
            file: "/etc/forebay/ca.crt".to_owned(),
            name: "CN=example".to_owned(),
            is_authority: true,
            from,
            until,
        };
        let facts = machine(Some(with_certificates("worker", vec![certificate(0, DAY), authority])));
        verdict(&facts, &config(&[MTLS]), "security certificate /etc/forebay/ca.crt")
    };
    assert_eq!(of(NOW - 3000 * DAY, NOW + 300 * DAY), Ok);
    assert_eq!((of(NOW - DAY, NOW - HOUR), of(NOW + HOUR, NOW + DAY)), (Warn, Warn));
    assert_eq!(of(u64::MAX, 0), Warn, "what nobody would write is no panic");
}

#[test]
fn the_role_in_a_certificate_fits_what_runs() {
    let of = |role: &str, settings: &[&str]| {
        let facts = machine(Some(with_certificates(role, vec![certificate(0, DAY)])));
        verdict(&facts, &config(&[&[MTLS][..], settings].concat()), "security role")
    };
    let worker = ["mounts=/=file:///"];
    assert_eq!((of("worker", &worker), of("coordinator", &worker), of("reader", &worker)), (Ok, Ok, Warn));
    assert_eq!((of("worker", &[]), of("writer", &[]), of("admin", &[]), of("metrics", &[])), (Ok, Ok, Ok, Warn));
    assert_eq!((of("reader", &[]), of("reader", &["write.mode=none"])), (Info, Ok));
}

#[test]
fn those_who_are_denied_are_counted() {
    let facts = machine(Some(Security { denied: Some(3), ..with_key(&["8352ff5b18454be7"]) }));
    assert!(!is_there(&facts, &config(&[KEY]), "security denied"));
    let denied = find(&facts, &config(&[KEY, "security.denied_file=/etc/denied"]), "security denied /etc/denied");
    assert!(denied.verdict == Ok && denied.what.ends_with(": 3"), "{denied:?}");
}

#[test]
fn with_a_mode_the_clock_has_to_be_right() {
    let of = |is_synchronized: Option<bool>| {
        let mut facts = machine(Some(with_key(&["8352ff5b18454be7"])));
        facts.clock.is_synchronized = is_synchronized;
        verdict(&facts, &config(&[KEY]), "security clock")
    };
    assert_eq!((of(Some(true)), of(Some(false)), of(None)), (Ok, Warn, Warn));
}

#[test]
fn what_was_looked_at_with_other_settings_or_not_at_all_is_not_known() {
    assert_eq!(verdict(&machine(None), &config(&[KEY]), "security identity"), Info);
    let facts = machine(Some(with_key(&["8352ff5b18454be7"])));
    assert_eq!(verdict(&facts, &config(&[MTLS]), "security identity"), Info);
    assert!(!is_there(&facts, &config(&[MTLS]), "security keys"));
}
