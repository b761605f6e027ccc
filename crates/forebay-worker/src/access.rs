//! Which callers may read what is cached, and who may change what is mounted. Pure.
//!
//! What is cached is of versions of objects, and these are of origins. Each origin that is mounted, or once was, has a
//! number, which is the label of its blocks in the store ([`forebay_store::Store::label`]). From the access lists of
//! the mounts follows for each caller a set of such numbers, which it carries along: a hit looks at one bit of it
//! ([`forebay_transport::ProvedCaller::may_read`]). So a block that two mounts lead to may be read by those whom one of
//! the two lets in, and one that no mount leads to any more by nobody. Names are asked for by path: there the list of
//! the mount decides that leads to the path.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_transport::Caller;
use forebay_types::{AccessList, BitSet, Failure, FailureKind, FileId, FsPath, Permission};

use crate::namespace::Namespace;

/// Who may read what is cached.
#[derive(Clone, Default)]
pub(crate) struct Access {
    /// The label of each origin, by its URL: also of one that is not mounted any more, since blocks have it.
    labels: Arc<HashMap<Arc<str>, u32>>,
    /// Those of the origins that are mounted.
    mounted: BitSet,
    /// Those of them that are not only for the clients on a list.
    open: BitSet,
    /// Access lists, each with the label of the origin that it lets read, in the order of the labels.
    lists: Vec<(u32, Arc<AccessList>)>,
    /// Those of the origins that a list was ever about: also of one that is not mounted any more, of which some may be cached.
    listed: BitSet,
    /// Whether one of these is not mounted any more.
    hides: bool,
    /// Counts the changes, up to the greatest number: what callers remember is of one epoch.
    epoch: u32,
}

impl Access {
    /// As the mounts say. Labels stay as they were `before`.
    pub(crate) fn of(namespace: &Namespace, before: &Self) -> Self {
        let mut labels = HashMap::clone(&before.labels);
        let (mut mounted, mut open, mut lists) = (BitSet::default(), BitSet::default(), Vec::new());
        for mount in namespace.mounts() {
            // Nobody mounts as many origins as there are numbers.
            let next = u32::try_from(labels.len()).unwrap_or(u32::MAX);
            let label = *labels.entry(Arc::clone(mount.origin.url())).or_insert(next);
            mounted.insert(label);
            match &mount.list {
                Some(list) => lists.push((label, Arc::clone(list))),
                None => open.insert(label),
            }
        }
        lists.sort_by_key(|(label, _)| *label);
        let mut listed = before.listed.clone();
        lists.iter().for_each(|(label, _)| listed.insert(*label));
        let hides = labels.values().any(|label| listed.contains(*label) && !mounted.contains(*label));
        let epoch = before.epoch.saturating_add(1);
        Self { labels: Arc::new(labels), mounted, open, lists, listed, hides, epoch }
    }

    /// Another one than that of the tables before.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The labels of the origins that are mounted.
    pub(crate) fn mounted(&self) -> &BitSet {
        &self.mounted
    }

    /// Those of them that are not only for the clients on a list.
    pub(crate) fn open(&self) -> &BitSet {
        &self.open
    }

    /// The label of an origin that is mounted, or was.
    pub(crate) fn label(&self, url: &str) -> Option<u32> {
        self.labels.get(url).copied()
    }

    /// Whether the origin with this label is mounted.
    pub(crate) fn is_mounted(&self, label: u32) -> bool {
        self.mounted.contains(label)
    }

    /// Whether a mount has an access list.
    pub(crate) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Whether `caller` may read what has this label.
    pub(crate) fn may_read(&self, caller: &Caller, label: u32) -> bool {
        let Caller::Proved(proved) = caller else { return self.lets_read(caller, label) };
        let known = proved.may_read(label, self.epoch);
        known.unwrap_or_else(|| proved.work_out(label, self.epoch, |label| self.lets_read(caller, label)))
    }

    /// Whether `caller` may read whatever is cached. What is left in the cache of a mount that had an access list and was
    /// removed is nobody's, so then this is for the cluster's own alone until the worker starts again.
    pub(crate) fn shows_all(&self, caller: &Caller) -> bool {
        caller.is_of_cluster() || (!self.hides && self.lists.iter().all(|(label, _)| self.lets_read(caller, *label)))
    }

    /// The same as [`Self::may_read`], by the lists as they are.
    pub(crate) fn lets_read(&self, caller: &Caller, label: u32) -> bool {
        match caller {
            caller if caller.is_of_cluster() => self.mounted.contains(label),
            Caller::Proved(caller) => {
                self.open.contains(label) || self.lists_of(label).any(|list| list.may_read(caller.name()))
            }
            Caller::Unproved | Caller::Local => self.open.contains(label),
        }
    }

    fn lists_of(&self, label: u32) -> impl Iterator<Item = &AccessList> {
        let first = self.lists.partition_point(|(other, _)| *other < label);
        self.lists[first..].iter().take_while(move |(other, _)| *other == label).map(|(_, list)| &**list)
    }
}

/// Whether `list` lets `caller` do what asks for `wish`.
pub(crate) fn lets(list: &AccessList, caller: &Caller, wish: Permission) -> bool {
    match caller {
        caller if caller.is_of_cluster() => true,
        Caller::Proved(caller) => match wish {
            Permission::Read => list.may_read(caller.name()),
            Permission::Write => list.may_write(caller.name()),
            _ => false,
        },
        Caller::Unproved | Caller::Local => false,
    }
}

/// Why the mount at `at` does not let `caller` do at `path` what asks for `wish`.
#[cold]
pub(crate) fn denied_at(caller: &Caller, wish: Permission, path: &FsPath, at: &FsPath) -> Failure {
    denied(caller, format!("may not {wish} {path}: the access list of the mount {at} does not name it"), wish)
}

/// Why `caller` may not read a file.
#[cold]
pub(crate) fn denied_file(caller: &Caller, file: FileId) -> Failure {
    let what = format!("may not read file {file}: no access list of a mount that shows it names it");
    denied(caller, what, Permission::Read)
}

fn denied(caller: &Caller, what: String, wish: Permission) -> Failure {
    let remedy = match caller {
        Caller::Proved(_) => format!("an admin gives the mount a list that does, with `forebay mounts add --{wish}`"),
        Caller::Unproved | Caller::Local => {
            "such mounts are for clients that prove who they are over TCP: set `security.mode` on workers and clients"
                .to_owned()
        }
    };
    Failure::new(FailureKind::PermissionDenied, format!("{caller} {what}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use forebay_origin::{FakeOrigin, Origin};
    use forebay_types::Role;

    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    fn namespace(mounts: &[(&str, &str)], lists: &[(&str, &[&str])]) -> Namespace {
        let origin = |url: &str| Arc::new(FakeOrigin::new(url)) as Arc<dyn Origin>;
        let namespace = Namespace::new(mounts.iter().map(|(at, url)| (path(at), origin(url)))).unwrap();
        namespace.with_access(lists.iter().map(|(at, read)| (path(at), AccessList::new(read, &[]).unwrap())))
    }

    fn proved(role: Role, name: &str) -> Caller {
        Caller::proved(role, name, &format!("spiffe://d/forebay/c/{role}/{name}"))
    }

    /// The URLs of the origins that `caller` may read.
    fn readable<'a>(access: &Access, caller: &Caller, urls: &[&'a str]) -> Vec<&'a str> {
        let may_read = |url: &&str| access.label(url).is_some_and(|label| access.may_read(caller, label));
        urls.iter().copied().filter(may_read).collect()
    }

    #[test]
    fn who_reads_what_follows_from_the_lists_of_the_mounts_as_they_are_now() {
        let urls = ["fake://a", "fake://b", "fake://c"];
        let mounts = [("/a", urls[0]), ("/b", urls[1]), ("/c", urls[2])];
        let (team, other) = (proved(Role::Reader, "team-a"), proved(Role::Writer, "team-b"));
        let (worker, admin) = (proved(Role::Worker, "team-x"), proved(Role::Admin, "root"));

        let open = Access::of(&namespace(&mounts, &[]), &Access::default());
        for caller in [&team, &other, &worker, &admin, &Caller::Local, &Caller::Unproved] {
            assert_eq!(readable(&open, caller, &urls), urls, "{caller}");
        }
        let lists: [(&str, &[&str]); 2] = [("/a", &["team-a"]), ("/b", &["team-*"])];
        let listed = Access::of(&namespace(&mounts, &lists), &open);
        assert_eq!(readable(&listed, &team, &urls), urls);
        assert_eq!(readable(&listed, &other, &urls), urls[1..]);
        assert_eq!(readable(&listed, &proved(Role::Reader, "x"), &urls), urls[2..]);
        assert_eq!(readable(&listed, &Caller::Unproved, &urls), urls[2..], "no list is for those who prove nothing");
        for caller in [&worker, &admin, &Caller::Local] {
            assert_eq!(readable(&listed, caller, &urls), urls, "{caller}");
        }
        // A mount that is removed is nobody's, and its label no other origin's.
        let others = [("/a", "fake://d"), ("/b", urls[1])];
        let removed = Access::of(&namespace(&others, &lists), &listed);
        for caller in [&team, &worker, &admin, &Caller::Local] {
            assert_eq!(readable(&removed, caller, &urls), [urls[1]], "{caller}");
        }
        assert_eq!(urls.map(|url| removed.label(url)), urls.map(|url| listed.label(url)));
        assert!(urls.iter().all(|url| removed.label(url) != removed.label("fake://d")));
        assert_eq!(readable(&removed, &Caller::Unproved, &urls), [""; 0]);
    }

    #[test]
    fn all_is_shown_to_whom_no_list_leaves_out() {
        let mounts = [("/a", "fake://a"), ("/b", "fake://b")];
        let open = Access::of(&namespace(&mounts, &[]), &Access::default());
        let listed = Access::of(&namespace(&mounts, &[("/b", &["team-b"])]), &open);
        let (team, other) = (proved(Role::Reader, "team-b"), proved(Role::Writer, "team-a"));
        for caller in [&team, &other, &Caller::Unproved, &Caller::Local] {
            assert!(open.shows_all(caller), "{caller}");
        }
        for (caller, shown) in [
            (&team, true),
            (&other, false),
            (&Caller::Unproved, false),
            (&Caller::Local, true),
            (&proved(Role::Worker, "w"), true),
        ] {
            assert_eq!(listed.shows_all(caller), shown, "{caller}");
        }
        // What was for some alone is in the cache still when its mount is gone.
        let removed = Access::of(&namespace(&mounts[..1], &[]), &listed);
        for caller in [&team, &other, &Caller::Unproved] {
            assert!(!removed.shows_all(caller), "{caller}");
        }
        assert!(removed.shows_all(&Caller::Local) && removed.shows_all(&proved(Role::Worker, "w")));
        let again = Access::of(&namespace(&mounts, &[("/b", &["team-b"])]), &removed);
        assert_eq!([&team, &other].map(|caller| again.shows_all(caller)), [true, false]);
        let unlisted = Access::of(&namespace(&mounts, &[]), &removed);
        assert!(unlisted.shows_all(&other), "now it is for all");
    }

    #[test]
    fn what_two_mounts_show_is_for_those_whom_one_of_them_lets_in() {
        let mounts = [("/a", "fake://a"), ("/too", "fake://a")];
        let lists: [(&str, &[&str]); 2] = [("/a", &["team-a"]), ("/too", &["team-b"])];
        let both = Access::of(&namespace(&mounts, &lists), &Access::default());
        for (name, may_read) in [("team-a", true), ("team-b", true), ("team-c", false)] {
            let found = readable(&both, &proved(Role::Reader, name), &["fake://a"]);
            assert_eq!(!found.is_empty(), may_read, "{name}");
        }
        let open = Access::of(&namespace(&mounts, &lists[..1]), &both);
        assert_eq!(readable(&open, &Caller::Unproved, &["fake://a"]), ["fake://a"]);
    }

    #[test]
    fn a_refusal_says_who_wanted_what_and_what_helps() {
        let (team, at) = (proved(Role::Writer, "team-a"), path("/b"));
        let list = AccessList::new(&["team-a"], &["loader"]).unwrap();
        assert!(lets(&list, &team, Permission::Read) && !lets(&list, &team, Permission::Write));
        assert!(
            lets(&list, &proved(Role::Admin, "x"), Permission::Write) && lets(&list, &Caller::Local, Permission::Read)
        );
        assert!(!lets(&list, &Caller::Unproved, Permission::Read));
        let refused = denied_at(&team, Permission::Write, &path("/b/x"), &at);
        assert_eq!(refused.kind(), FailureKind::PermissionDenied);
        assert_eq!(
            refused.message(),
            "`spiffe://d/forebay/c/writer/team-a` may not write /b/x: the access list of the mount /b does not name it; an \
             admin gives the mount a list that does, with `forebay mounts add --write`"
        );
        let refused = denied_file(&Caller::Unproved, FileId([7; 16]));
        assert!(refused.message().contains("proved no identity") && refused.message().contains("`security.mode`"));
    }
}
