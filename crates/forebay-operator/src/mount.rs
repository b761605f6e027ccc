//! What becomes of a `ForebayMount`: a plain function of what it says and of the mounts that the cluster has.
//!
//! Path, origin and options of an object never change (the API server sees to that): to show something else at a path
//! is to take away what is there, with all that is open in it. Its access list may change, and is not taken away by
//! leaving it out, which would open the mount to everybody. What was mounted by hand and is the same is taken over.

use forebay_coordinator::api::{Mount, MountList};
use forebay_types::FsPath;

use crate::condition::Verdict;
use crate::resources::MountSpec;

/// What is to be done for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The coordinator is to mount this. It says whether it could.
    Add(Mount),
    /// Nothing; this is how it stands.
    Keep(Verdict),
}

/// What is to be done for an object that is there. `predecessor` is the object that has the path.
#[must_use]
pub fn step(spec: &MountSpec, predecessor: Option<&str>, seen: &MountList) -> Step {
    let wanted = match wanted(spec) {
        Ok(wanted) => wanted,
        Err(problem) => return Step::Keep(problem),
    };
    let path = &wanted.path;
    if let Some(other) = predecessor {
        let message = format!("the ForebayMount {other} has {path}; delete one of the two");
        return Step::Keep(Verdict::no("PathTaken", message));
    }
    let at_path = |mounts: &[Mount]| mounts.iter().find(|mount| mount.path == *path).cloned();
    match (at_path(&seen.mounts), at_path(&seen.configured)) {
        (Some(known), _) if known == wanted => Step::Keep(shown(&wanted)),
        (Some(known), _) if !shows_the_same(&known, &wanted) => Step::Keep(taken(&known)),
        (Some(_), _) if wanted.acl.is_none() => {
            let message = format!(
                "the mount {path} has an access list; say in `acl` who may use it, or remove it with `forebay mounts \
                 remove {path}` to open it to all"
            );
            Step::Keep(Verdict::no("AccessList", message))
        }
        (None, Some(configured)) if configured == wanted => {
            Step::Keep(Verdict::yes("Configured", format!("the configuration shows {} at {path}", wanted.origin)))
        }
        (None, Some(configured)) => Step::Keep(taken(&configured)),
        _ => Step::Add(wanted),
    }
}

/// How it stands when the coordinator has mounted it.
#[must_use]
pub fn shown(mount: &Mount) -> Verdict {
    Verdict::yes("Shown", format!("{} shows {}", mount.path, mount.origin))
}

/// The path to be removed with an object that goes, if any. `is_contested`: another object wants the path, too.
#[must_use]
pub fn forget(spec: &MountSpec, is_contested: bool, seen: &MountList) -> Option<FsPath> {
    let wanted = wanted(spec).ok().filter(|_| !is_contested)?;
    let is_ours = seen.mounts.iter().any(|known| known.path == wanted.path && shows_the_same(known, &wanted));
    if is_ours { FsPath::new(&wanted.path).ok() } else { None }
}

/// The mount of an object, its path as the coordinator writes it.
fn wanted(spec: &MountSpec) -> Result<Mount, Verdict> {
    let MountSpec { path, origin, options, acl } = spec.clone();
    let path = FsPath::new(&path).map_err(|problem| Verdict::no("Refused", format!("spec.path: {problem}")))?;
    Ok(Mount { path: path.to_string(), origin, options, acl })
}

fn shows_the_same(known: &Mount, wanted: &Mount) -> bool {
    (&known.origin, &known.options) == (&wanted.origin, &wanted.options)
}

fn taken(known: &Mount) -> Verdict {
    let Mount { path, origin, .. } = known;
    Verdict::no("PathTaken", format!("{origin} is mounted at {path}; remove that first, or take another path"))
}

#[cfg(test)]
mod tests {
    use forebay_coordinator::api::MountAcl;

    use super::*;

    fn spec(path: &str, origin: &str) -> MountSpec {
        MountSpec { path: path.into(), origin: origin.into(), ..MountSpec::default() }
    }

    fn mount(path: &str, origin: &str) -> Mount {
        Mount { path: path.into(), origin: origin.into(), options: [].into(), acl: None }
    }

    fn seen(mounts: &[Mount]) -> MountList {
        MountList { mounts: mounts.to_vec(), configured: Vec::new() }
    }

    fn reason(step: Step) -> (bool, &'static str) {
        match step {
            Step::Keep(verdict) => (verdict.holds, verdict.reason),
            Step::Add(mount) => panic!("{mount:?}"),
        }
    }

    #[test]
    fn what_is_not_there_is_added_and_what_is_there_is_left_alone() {
        let wanted = spec("/s3", "s3://bucket");
        let other = mount("/other", "s3://bucket/other");
        assert_eq!(step(&wanted, None, &seen(std::slice::from_ref(&other))), Step::Add(mount("/s3", "s3://bucket")));
        let both = seen(&[other, mount("/s3", "s3://bucket")]);
        assert_eq!(reason(step(&wanted, None, &both)), (true, "Shown"));
        assert_eq!(forget(&wanted, false, &both), Some(FsPath::new("/s3").unwrap()));
    }

    #[test]
    fn what_others_have_mounted_is_neither_replaced_nor_removed() {
        let wanted = spec("/s3", "s3://bucket");
        let theirs = seen(&[mount("/s3", "s3://another")]);
        assert_eq!(reason(step(&wanted, None, &theirs)), (false, "PathTaken"));
        assert_eq!(forget(&wanted, false, &theirs), None);
        let configured = |origin| MountList { mounts: Vec::new(), configured: vec![mount("/s3", origin)] };
        assert_eq!(reason(step(&wanted, None, &configured("s3://bucket"))), (true, "Configured"));
        assert_eq!(reason(step(&wanted, None, &configured("s3://another"))), (false, "PathTaken"));
        assert_eq!(forget(&wanted, false, &configured("s3://bucket")), None);
    }

    #[test]
    fn of_two_objects_one_has_the_path_and_it_stays_when_the_other_goes() {
        let wanted = spec("/s3", "s3://bucket");
        let there = seen(&[mount("/s3", "s3://bucket")]);
        assert_eq!(reason(step(&wanted, Some("first"), &there)), (false, "PathTaken"));
        assert_eq!(forget(&wanted, true, &there), None);
    }

    #[test]
    fn an_access_list_is_changed_and_not_taken_away_by_leaving_it_out() {
        let acl = |names: &[&str]| {
            Some(MountAcl { read: names.iter().map(|name| (*name).to_owned()).collect(), write: Vec::new() })
        };
        let there = seen(&[Mount { acl: acl(&["team-a"]), ..mount("/s3", "s3://bucket") }]);
        let open = spec("/s3", "s3://bucket");
        assert_eq!(reason(step(&open, None, &there)), (false, "AccessList"));
        let narrowed = MountSpec { acl: acl(&["team-b"]), ..open.clone() };
        let added = Mount { acl: acl(&["team-b"]), ..mount("/s3", "s3://bucket") };
        assert_eq!(step(&narrowed, None, &there), Step::Add(added));
        assert!(forget(&narrowed, false, &there).is_some(), "it goes with its object, whatever its list is");
    }

    #[test]
    fn a_path_that_is_none_is_refused_before_anybody_is_asked() {
        let Step::Keep(verdict) = step(&spec("s3", "s3://bucket"), None, &seen(&[])) else { panic!() };
        assert_eq!((verdict.holds, verdict.reason), (false, "Refused"));
        assert!(verdict.message.starts_with("spec.path: "), "{}", verdict.message);
        assert_eq!(forget(&spec("s3", "s3://bucket"), false, &seen(&[])), None);
    }
}
