//! What the HTTP listeners of this process did not answer, counted.
//!
//! For the whole process, as [`crate::ProcessStats`] is: its listeners are several, and start before and after what
//! their pages show.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::family::Families;

/// Why something was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A request that asked for another host.
    Host,
    /// A request of a page of another origin.
    Origin,
    /// A request that named no host, or several.
    Malformed,
    /// A connection of an address that has its share of all places.
    Share,
    /// A request in plain text where TLS is spoken.
    Plain,
    /// A handshake that failed, or a request of somebody who proves nothing.
    Proof,
    /// A request of somebody whose role may not ask for it.
    Role,
}

impl Reason {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Host, "host"),
        (Self::Origin, "origin"),
        (Self::Malformed, "malformed"),
        (Self::Share, "share"),
        (Self::Plain, "plain"),
        (Self::Proof, "proof"),
        (Self::Role, "role"),
    ];
}

static REFUSED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// Counts one.
pub(crate) fn count(reason: Reason) {
    REFUSED[reason as usize].fetch_add(1, Ordering::Relaxed);
}

/// Adds what the HTTP listeners of this process refused.
pub fn collect_refused(families: &mut Families) {
    let mut refused = families
        .counter("forebay_http_refused_total", "HTTP requests and connections that this process refused, by reason");
    for (reason, name) in Reason::ALL {
        refused = refused.add([("reason", name)], REFUSED[reason as usize].load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        for (at, (reason, _)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
        // Other tests of this process count, too.
        let before = REFUSED[Reason::Share as usize].load(Ordering::Relaxed);
        count(Reason::Share);
        assert!(REFUSED[Reason::Share as usize].load(Ordering::Relaxed) > before);
        let mut families = Families::new();
        collect_refused(&mut families);
        assert!(families.iter().all(|family| family.fault().is_none() && family.samples.len() == Reason::ALL.len()));
    }
}
