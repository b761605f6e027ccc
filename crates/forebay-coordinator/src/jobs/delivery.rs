//! What mounts did of a job that is for them, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_cluster::records::clients::DeliveryRecord;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::counts::FileCounts;

/// Files that are named of those that did not come.
const NAMED: usize = 10;

/// What mounts keep whole of what a job loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Delivery {
    /// Mounts that keep files and were there when they were asked.
    pub mounts: u64,
    /// Those of them that have done what they could.
    pub ended: u64,
    /// Those of them that went away before, and did not come back.
    pub gone: Vec<String>,
    /// What they keep, all of them together.
    pub kept: FileCounts,
    /// Files that a mount had no room for.
    pub no_room: u64,
    /// Files that a mount could not have for another reason.
    pub failed: u64,
    /// The first of both.
    pub missing: Vec<Missing>,
}

/// A file that a mount does not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Missing {
    /// Which mount.
    pub mount: String,
    /// Which file; the whole path of the job where the mount could not look for files.
    pub path: String,
    /// Why not.
    pub reason: String,
}

impl Delivery {
    /// What the mounts that were `asked` did, as they report; `alive` are still there.
    #[must_use]
    pub fn of(
        asked: &BTreeSet<String>,
        alive: &BTreeSet<String>,
        reports: &BTreeMap<String, DeliveryRecord>,
        path: &str,
    ) -> Self {
        let mut delivery = Self { mounts: asked.len() as u64, ..Self::default() };
        for mount in asked {
            let report = reports.get(mount).filter(|_| alive.contains(mount));
            let Some(report) = report else {
                if !alive.contains(mount) {
                    delivery.gone.push(mount.clone());
                }
                continue;
            };
            delivery.ended += u64::from(report.ended);
            delivery.kept.add(FileCounts { files: report.ready, bytes: report.ready_bytes });
            delivery.no_room += report.no_room;
            delivery.failed += report.failed + u64::from(report.error.is_some());
            let whole = report.error.iter().map(|error| (path, &**error));
            let files = report.first.iter().map(|(path, reason)| (&**path, &**reason));
            for (path, reason) in whole.chain(files).take(NAMED.saturating_sub(delivery.missing.len())) {
                let (mount, path, reason) = (mount.clone(), path.to_owned(), reason.to_owned());
                delivery.missing.push(Missing { mount, path, reason });
            }
        }
        delivery
    }

    /// Whether no mount that is there has anything left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended + self.gone.len() as u64 >= self.mounts
    }

    /// Files that did not come and are not named.
    pub(super) fn unnamed(&self) -> u64 {
        self.no_room.saturating_add(self.failed).saturating_sub(self.missing.len() as u64)
    }
}

/// Which of the mounts that were asked are away. A mount whose lease is lost, as when the state store was away, comes back under
/// another one a moment later, and goes on meanwhile: it is gone only when it stays away.
pub(crate) struct Absences {
    /// A mount that stays away for longer is gone.
    patience: Duration,
    since: BTreeMap<String, Instant>,
}

impl Absences {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, since: BTreeMap::new() }
    }

    /// Those that were `asked` and count as there; `present` are there `now`.
    pub(crate) fn alive(
        &mut self,
        asked: &BTreeSet<String>,
        present: &BTreeSet<String>,
        now: Instant,
    ) -> BTreeSet<String> {
        self.since.retain(|mount, _| !present.contains(mount));
        let mut alive = BTreeSet::new();
        for mount in asked {
            let since = (!present.contains(mount)).then(|| *self.since.entry(mount.clone()).or_insert(now));
            if since.is_none_or(|since| now.saturating_duration_since(since) < self.patience) {
                alive.insert(mount.clone());
            }
        }
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn it_is_over_when_all_that_are_left_have_ended() {
        let asked = names(&["a", "b", "c"]);
        let mut reports = BTreeMap::new();
        let delivery = |alive: &[&str], reports: &_| Delivery::of(&asked, &names(alive), reports, "/p");
        assert!(!delivery(&["a", "b", "c"], &reports).is_over());
        reports.insert("a".to_owned(), DeliveryRecord { ready: 2, ready_bytes: 20, ended: true, ..Default::default() });
        reports.insert("b".to_owned(), DeliveryRecord { ready: 1, ready_bytes: 10, ..Default::default() });
        let half = delivery(&["a", "b"], &reports);
        assert!(!half.is_over());
        assert_eq!((half.ended, half.gone.as_slice(), half.kept.bytes), (1, &["c".to_owned()][..], 30));
        assert!(delivery(&["a"], &reports).is_over());
    }

    #[test]
    fn a_mount_that_is_away_for_a_moment_is_not_gone() {
        let (asked, patience, start) = (names(&["a", "b"]), Duration::from_secs(30), Instant::now());
        let mut absences = Absences::new(patience);
        let mut alive = |present: &[&str], after: u64| {
            absences.alive(&asked, &names(present), start + Duration::from_secs(after)).into_iter().collect::<String>()
        };
        assert_eq!(
            (alive(&["a", "b"], 0), alive(&["a"], 10), alive(&["a"], 39)),
            ("ab".into(), "ab".into(), "ab".into())
        );
        // It comes back, and goes once more.
        assert_eq!(
            (alive(&["a", "b"], 39), alive(&["a"], 41), alive(&["a"], 70)),
            ("ab".into(), "ab".into(), "ab".into())
        );
        assert_eq!((alive(&["a"], 71), alive(&["a", "b"], 72)), ("a".into(), "ab".into()));
    }

    #[test]
    fn the_first_files_that_did_not_come_are_named_with_their_mount() {
        let first = (0..NAMED).map(|file| (format!("/p/{file}"), "no room".to_owned())).collect();
        let failing = DeliveryRecord { no_room: 40, first, ended: true, ..Default::default() };
        let lost = DeliveryRecord { error: Some("no worker".into()), ended: true, ..Default::default() };
        let reports = BTreeMap::from([("a".to_owned(), lost), ("b".to_owned(), failing)]);
        let asked = names(&["a", "b"]);
        let delivery = Delivery::of(&asked, &asked, &reports, "/p");
        assert_eq!((delivery.no_room, delivery.failed, delivery.missing.len()), (40, 1, NAMED));
        assert_eq!((&*delivery.missing[0].path, &*delivery.missing[0].reason), ("/p", "no worker"));
        assert_eq!((delivery.missing[1].mount.as_str(), delivery.unnamed()), ("b", 41 - NAMED as u64));
    }
}
