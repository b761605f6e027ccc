//! Who the processes of this machine prove to be, and whether others will believe it.

use std::net::IpAddr;
use std::path::Path;

use forebay_config::{Config, SecurityMode, WriteMode};
use forebay_types::{Permission, Role};

use crate::checks::{Check, Section, Verdict, ports};
use crate::facts::{Certificate, Facts, Obstacle, Refusal, Security};
use crate::text::{listed, span};

/// A certificate with less than this part of its lifetime left was not renewed as it should: cert-manager does so when
/// a third is left, SPIFFE at half. A number of days would be wrong for those that last an hour.
const RENEWED_BEFORE: u64 = 5;
/// How long before its time others take a certificate all the same (`forebay_identity::CLOCK_SKEW`), in seconds.
const CLOCK_SKEW: u64 = 5 * 60;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = vec![mode(facts, config)];
    if config.security_mode == SecurityMode::Off {
        return checks;
    }
    // Settings of now may be others than those that a machine was recorded with.
    let found = facts.security.as_ref().filter(|found| found.mode == config.security_mode.as_str());
    match found {
        Some(found) => checks.extend(identity(found, config)),
        None => {
            let what = "not known: files of identities are looked at on a live machine only, as its settings name them";
            checks.push(row("identity", Verdict::Info, what));
        }
    }
    checks.push(clock(facts));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Security, name, verdict, what)
}

fn mode(facts: &Facts, config: &Config) -> Check {
    let key = config.security_key_file.display();
    match config.security_mode {
        SecurityMode::Key => row("mode", Verdict::Ok, format!("key: processes make their certificates from {key}")),
        SecurityMode::Mtls => {
            let file = config.security_cert_file.display();
            row("mode", Verdict::Ok, format!("mtls: processes present the certificate in {file}"))
        }
        SecurityMode::Off if listens_on_loopback(facts, config) => {
            row("mode", Verdict::Info, "off: nobody has to prove anything; a worker listens on loopback only")
        }
        SecurityMode::Off => {
            let what = "off: whoever reaches a worker's port may read all, and change what its credentials allow";
            row("mode", Verdict::Info, what).remedy(format!(
                "forebay key create > {key}, then copy it to all nodes, and set security.mode = \"key\" there"
            ))
        }
    }
}

/// Whether only this machine reaches a worker of this configuration over TCP.
fn listens_on_loopback(facts: &Facts, config: &Config) -> bool {
    let addresses = ports::listening(facts, config, "worker.rpc.port");
    match addresses.is_empty() {
        true => config.worker_rpc_bind_host.as_str() == "localhost",
        false => addresses.iter().all(IpAddr::is_loopback),
    }
}

fn identity(found: &Security, config: &Config) -> Vec<Check> {
    let rows = [
        found.refusal.as_ref().map(|refusal| refused(refusal, config)),
        keys(found, config),
        found.identity.as_ref().map(|identity| row("identity", Verdict::Ok, identity)),
        role(found, config),
        denied(found, config),
    ];
    let certificates = found.certificates.iter().map(|certificate| lasts(certificate, found.at));
    rows.into_iter().flatten().chain(certificates).collect()
}

fn refused(Refusal { file, obstacle }: &Refusal, config: &Config) -> Check {
    let what = match obstacle {
        Obstacle::Missing => "it is not there".to_owned(),
        Obstacle::Unreadable(words) => format!("it cannot be read: {words}"),
        Obstacle::Open(mode) => {
            format!("it is a secret, and its mode is {mode:04o}: others than its owner may open it")
        }
        Obstacle::Owner { owner, user } => format!("it belongs to user {owner}: processes of user {user} refuse it"),
        Obstacle::Pair(key) => format!("it and {key} are no pair"),
        Obstacle::Refused(reason) => format!("others would refuse it: {reason}"),
        Obstacle::Content(reason) | Obstacle::Other(reason) => reason.clone(),
    };
    // Root looks on behalf of a service that may have a user of its own.
    let verdict = if matches!(obstacle, Obstacle::Owner { user: 0, .. }) { Verdict::Warn } else { Verdict::Fail };
    let remedy = remedy(file.as_deref().unwrap_or_default(), obstacle, config);
    let check = row("file", verdict, what).remedy(remedy);
    match file {
        Some(file) => check.about(file),
        None => check,
    }
}

fn remedy(file: &str, obstacle: &Obstacle, config: &Config) -> String {
    match obstacle {
        Obstacle::Missing | Obstacle::Content(_) => origin_of(file, config),
        Obstacle::Unreadable(_) => {
            format!("look as the user that Forebay runs as: sudo -u USER forebay doctor; ls -lL {file} shows who may")
        }
        Obstacle::Open(_) => format!("chmod 600 {file}"),
        Obstacle::Owner { owner, user: 0 } => format!(
            "if Forebay runs as that user, look as it does: sudo -u '#{owner}' forebay doctor; otherwise chown 0 {file}"
        ),
        Obstacle::Owner { user, .. } => format!("chown {user} {file}"),
        Obstacle::Pair(_) => {
            "replace both files with those that were issued together; forebay key issue writes such a pair".to_owned()
        }
        Obstacle::Refused(_) => {
            "forebay key issue --role ROLE --client NAME writes another certificate, of this cluster.name and \
             security.trust_domain; date -u shows the time"
                .to_owned()
        }
        Obstacle::Other(_) => {
            "correct cluster.name and security.trust_domain, which are parts of identities; date -u shows the time"
                .to_owned()
        }
    }
}

/// Where a file of this configuration comes from.
fn origin_of(file: &str, config: &Config) -> String {
    if config.security_denied_file.as_deref().is_some_and(|denied| denied == Path::new(file)) {
        return format!("write an identity on each line of {file}, or none, or unset security.denied_file");
    }
    match config.security_mode {
        SecurityMode::Mtls => {
            "forebay key issue --role ROLE --client NAME writes tls.crt, tls.key and ca.crt; security.cert_file, \
             security.cert_key_file and security.ca_file name them"
                .to_owned()
        }
        SecurityMode::Key | SecurityMode::Off => format!(
            "scp -p NODE:{file} {file}, from a node that has it; on the first node of all, forebay key create > {file}"
        ),
    }
}

/// While there are several, the old one is as good as the new one.
fn keys(found: &Security, config: &Config) -> Option<Check> {
    let (signing, trusted) = found.keys.split_first()?;
    let check =
        |verdict, what: String| row("keys", verdict, what).about(config.security_key_file.display().to_string());
    if trusted.is_empty() {
        return Some(check(Verdict::Ok, format!("{signing} signs, as it must on all nodes")));
    }
    let what = format!("{signing} signs, and {} is trusted as well: a key is being replaced", listed(trusted));
    Some(check(Verdict::Warn, what).remedy(
        "once all nodes have both keys, put the new one first on each of them; then remove the old one from each; \
         forebay key show tells how far a node is",
    ))
}

/// Whether the role that others gave a process fits what it does. One that has the key takes the role that it needs.
fn role(found: &Security, config: &Config) -> Option<Check> {
    if config.security_mode != SecurityMode::Mtls {
        return None;
    }
    let role: Role = found.role.as_deref()?.parse().ok()?;
    // A machine whose configuration has mounts runs a worker, or a coordinator with the same configuration.
    let runs_worker = !config.mounts.is_empty();
    Some(match role {
        Role::Worker | Role::Coordinator => row("role", Verdict::Ok, role.as_str()),
        _ if runs_worker => {
            let what = format!("{role}: no client takes it for a worker, which a configuration with `mounts` is for");
            row("role", Verdict::Warn, what).remedy(
                "forebay key issue --role worker --client NODE; or leave `mounts` out where no worker is to run",
            )
        }
        _ if !role.may(Permission::Read) => {
            row("role", Verdict::Warn, format!("{role}: it may not read files, as a mount does"))
                .remedy("forebay key issue --role reader --client NAME")
        }
        _ if !role.may(Permission::Write) && config.write_mode != WriteMode::None => {
            row("role", Verdict::Info, format!("{role}: it may read, and what is written through a mount is refused"))
                .remedy("write.mode = \"none\" has mounts say so; with --role writer, forebay key issue lets it write")
        }
        _ => row("role", Verdict::Ok, format!("{role}: it may do what a mount does")),
    })
}

fn denied(found: &Security, config: &Config) -> Option<Check> {
    let file = config.security_denied_file.as_ref()?;
    let what = format!("it can be read, and denies this many: {}", found.denied?);
    Some(row("denied", Verdict::Ok, what).about(file.display().to_string()))
}

/// How much of a certificate's time is left `at` some time.
fn lasts(certificate: &Certificate, at: u64) -> Check {
    let Certificate { file, name, .. } = certificate;
    let &Certificate { is_authority, from, until, .. } = certificate;
    let check = |verdict, what: String| row("certificate", verdict, format!("{name} {what}")).about(file);
    // Forebay does not ask for the time of an authority, and other programs do.
    let useless = if is_authority { Verdict::Warn } else { Verdict::Fail };
    let renewal = match is_authority {
        true => format!("have {file} hold the authority that signs now"),
        false => format!(
            "find out what should renew it; forebay key issue writes another one, to be put in the place of {file}"
        ),
    };
    if at < from {
        let useless = if from - at > CLOCK_SKEW { useless } else { Verdict::Warn };
        return check(useless, format!("is not valid yet, for another {}", span(from - at)))
            .remedy("date -u shows the time: set the clock of this machine, or of the one that issued it");
    }
    let Some(left) = until.checked_sub(at) else {
        return check(useless, format!("expired {} ago", span(at - until))).remedy(renewal);
    };
    let lifetime = until - from;
    let what = format!("lasts another {} of {}", span(left), span(lifetime));
    // A fifth of an authority's time may be years.
    match !is_authority && left < lifetime / RENEWED_BEFORE {
        true => check(Verdict::Warn, what).remedy(renewal),
        false => check(Verdict::Ok, what),
    }
}

/// A certificate is made for minutes before and hours after the time of one clock, and judged by another one.
fn clock(facts: &Facts) -> Check {
    const NEEDED: &str = "identities need it right to five minutes";
    const REMEDY: &str = "timedatectl set-ntp true, or systemctl start chronyd; date -u shows the time";
    match facts.clock.is_synchronized {
        Some(true) => row("clock", Verdict::Ok, format!("the clock is synchronized, and {NEEDED}")),
        Some(false) => {
            row("clock", Verdict::Warn, format!("nothing keeps the clock right, and {NEEDED}")).remedy(REMEDY)
        }
        None => {
            let what = format!("the kernel does not say whether the clock is synchronized, and {NEEDED}");
            row("clock", Verdict::Warn, what).remedy(REMEDY)
        }
    }
}
