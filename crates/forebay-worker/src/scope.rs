//! What a worker serves and how: its namespace and its policies, as they are now.
//!
//! From the namespace follows who may see what ([`Access`]).
//!
//! Both change while the worker runs. A change replaces the whole [`Scope`]; what is under way goes on with the one that it
//! started with, and what is remembered says under which one it was learned. What the policies say of a file is worked out
//! once for each file version and scope, not for each miss.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use forebay_engine::Keeping;
use forebay_locks::Mutex;
use forebay_store::{Account, Keep};
use forebay_transport::Caller;
use forebay_types::{Attr, ByteSize, Failure, FileId, FileVersion, FsPath, MAX_REPLICAS, Permission, PolicyTable};
use moka::sync::Cache;

use crate::access::{self, Access};
use crate::fast_access::FastAccess;
use crate::namespace::{Namespace, Resolved};

/// How long the attributes of an immutable file are believed: no cache entry lives as long.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Files whose rules are remembered: some 100 bytes each.
const FILES: u64 = 262_144;

/// What is served, and how.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) namespace: Namespace,
    access: Access,
    pub(crate) policies: PolicyTable,
    has_policies: bool,
    metadata_ttl: Duration,
    /// Whether this worker changes what it serves, where the origins let it.
    pub(crate) takes_changes: bool,
    /// Counts the changes.
    pub(crate) number: u64,
}

/// How the blocks of a file are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRules {
    pub(crate) keeping: Keeping,
    /// How many workers hold each block.
    pub(crate) replicas: u8,
}

impl Default for FileRules {
    fn default() -> Self {
        Self { keeping: Keeping::default(), replicas: 1 }
    }
}

/// How what is known of a name is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameRules {
    /// How long listings and absence are believed, and attributes of what may change.
    pub(crate) ttl: Duration,
    is_immutable: bool,
    pub(crate) replicas: u8,
}

impl NameRules {
    /// How long this answer is believed.
    pub(crate) fn believed(&self, answer: &Result<Attr, Failure>) -> Duration {
        match answer {
            Ok(attr) if self.is_immutable && attr.version().is_some() => self.ttl.max(FOR_EVER),
            _ => self.ttl,
        }
    }

    /// Whether no answer is believed, so that none need be remembered.
    pub(crate) fn believes_nothing(&self) -> bool {
        self.ttl.is_zero() && !self.is_immutable
    }
}

impl Scope {
    /// What the policies say of a name.
    pub(crate) fn of_name(&self, path: &FsPath) -> NameRules {
        if !self.has_policies {
            return NameRules { ttl: self.metadata_ttl, is_immutable: false, replicas: 1 };
        }
        let policy = self.policies.of(path);
        NameRules {
            ttl: policy.metadata_ttl.unwrap_or(self.metadata_ttl),
            is_immutable: policy.immutable.unwrap_or_default(),
            replicas: policy.replicas.unwrap_or(1).clamp(1, MAX_REPLICAS),
        }
    }

    /// Whether `path` is where an origin can be changed.
    pub(crate) fn is_writable(&self, path: &FsPath) -> bool {
        let takes_changes =
            || matches!(self.namespace.resolve(path), Resolved::Origin(origin, _) if origin.takes_changes());
        self.takes_changes && takes_changes()
    }

    /// Whether `caller` may do what asks for `wish`, which is to read or to write, at `path`.
    ///
    /// # Errors
    /// [`FailureKind::PermissionDenied`](forebay_types::FailureKind::PermissionDenied).
    pub(crate) fn admits(&self, caller: &Caller, path: &FsPath, wish: Permission) -> Result<(), Failure> {
        if !self.access.has_lists() {
            return Ok(());
        }
        match self.namespace.mount_of(path) {
            Some((mount, _)) if mount.list.as_ref().is_some_and(|list| !access::lets(list, caller, wish)) => {
                Err(access::denied_at(caller, wish, path, &mount.at))
            }
            _ => Ok(()),
        }
    }

    /// Whether `caller` may read what is cached with this label.
    pub(crate) fn may_read(&self, caller: &Caller, label: u32) -> bool {
        self.access.may_read(caller, label)
    }

    /// Whether `caller` may read whatever is cached.
    pub(crate) fn shows_all(&self, caller: &Caller) -> bool {
        self.access.shows_all(caller)
    }

    /// Counts the changes of what is mounted and who may use it. How it is cached does not count: policies of hot files come
    /// and go.
    pub(crate) fn shown_number(&self) -> u64 {
        self.access.epoch().into()
    }

    /// Whether `caller` may read `file`, of the origin with this URL.
    ///
    /// # Errors [`FailureKind::PermissionDenied`](forebay_types::FailureKind::PermissionDenied), and what a file fails
    /// with that no mount leads to.
    pub(crate) fn admits_to_file(&self, caller: &Caller, file: FileId, url: &str) -> Result<(), Failure> {
        match self.access.label(url).filter(|label| self.access.is_mounted(*label)) {
            Some(label) if self.may_read(caller, label) => Ok(()),
            Some(_) => Err(access::denied_file(caller, file)),
            // It may be mounted, and where nobody has to prove anything, what is cached is better than nothing.
            None if self.namespace.lacks() && !self.namespace.is_guarded() => Ok(()),
            None => Err(self.namespace.no_mount_on(url)),
        }
    }

    /// What they say of a file; of one that shows at several paths, at that of the longest mount.
    pub(crate) fn of_file(&self, version: &FileVersion) -> FileRules {
        if !self.has_policies {
            return FileRules::default();
        }
        let Some(path) = self.path_of(version) else { return FileRules::default() };
        let policy = self.policies.of(&path);
        let keep = Keep {
            priority: policy.priority.unwrap_or_default(),
            pinned: policy.pin.unwrap_or_default(),
            account: self.policies.quota_of(&path).map(|(prefix, _)| account_of(prefix)),
        };
        let keeping = if policy.skip_cache.unwrap_or_default() { Keeping::Not } else { Keeping::As(keep) };
        FileRules { keeping, replicas: policy.replicas.unwrap_or(1).clamp(1, MAX_REPLICAS) }
    }

    /// Where a file shows.
    pub(crate) fn path_of(&self, version: &FileVersion) -> Option<FsPath> {
        self.namespace.paths_of(&version.origin, &version.path).next()
    }

    /// The quotas, each with the path that it is for and its account.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = (&FsPath, Account, ByteSize)> {
        let quota = |(path, policy): &'_ (FsPath, forebay_types::CachePolicy)| {
            policy.quota.map(|quota| (account_of(path), quota))
        };
        self.policies.rules().filter_map(move |rule| quota(rule).map(|(account, quota)| (&rule.0, account, quota)))
    }
}

fn account_of(path: &FsPath) -> Account {
    Account::of(path.as_bytes())
}

/// The scope of a worker. Requests share it.
pub(crate) struct Scopes {
    current: ArcSwap<Scope>,
    /// The same as the current one's access, as a hit looks at it.
    fast: FastAccess,
    /// Held by who changes the namespace.
    changes: Mutex<()>,
    files: Cache<FileId, (u64, FileRules)>,
}

impl Scopes {
    pub(crate) fn new(namespace: Namespace, metadata_ttl: Duration, takes_changes: bool) -> Self {
        let (access, policies) = (Access::of(&namespace, &Access::default()), PolicyTable::default());
        let scope = Scope { namespace, access, policies, has_policies: false, metadata_ttl, takes_changes, number: 0 };
        let fast = FastAccess::default();
        fast.set(&scope.access, scope.namespace.is_guarded());
        let (current, changes) = (ArcSwap::from_pointee(scope), Mutex::default());
        Self { current, fast, changes, files: Cache::new(FILES) }
    }

    pub(crate) fn current(&self) -> Arc<Scope> {
        self.current.load_full()
    }

    /// Returns the scope before.
    pub(crate) fn set_namespace(&self, namespace: Namespace) -> Arc<Scope> {
        let _alone = self.changes.lock();
        let before = self.current.rcu(|scope| Scope {
            access: Access::of(&namespace, &scope.access),
            namespace: namespace.clone(),
            number: scope.number + 1,
            ..Scope::clone(scope)
        });
        self.fast.set(&self.current.load().access, namespace.is_guarded());
        before
    }

    /// The same.
    pub(crate) fn set_policies(&self, policies: PolicyTable) -> Arc<Scope> {
        let has_policies = policies.rules().next().is_some();
        self.current.rcu(|scope| Scope {
            policies: policies.clone(),
            has_policies,
            number: scope.number + 1,
            ..Scope::clone(scope)
        })
    }

    /// Whether what is cached with this label may be shown to `caller` at once; without one, it is not known which
    /// origin it is of.
    #[inline]
    pub(crate) fn shows(&self, caller: &Caller, label: Option<u32>) -> bool {
        self.fast.shows(caller, label).unwrap_or_else(|| self.shows_after_all(caller, label))
    }

    #[cold]
    fn shows_after_all(&self, caller: &Caller, label: Option<u32>) -> bool {
        label.is_some_and(|label| self.current.load().may_read(caller, label))
    }

    /// The label of what is cached of an origin, if it is mounted, or was.
    pub(crate) fn label(&self, url: &str) -> Option<u32> {
        self.current.load().access.label(url)
    }

    /// What the policies say of a file.
    pub(crate) fn of_file(&self, file: FileId, version: &FileVersion) -> FileRules {
        let scope = self.current.load();
        if !scope.has_policies {
            return FileRules::default();
        }
        if let Some((number, rules)) = self.files.get(&file)
            && number == scope.number
        {
            return rules;
        }
        let rules = scope.of_file(version);
        self.files.insert(file, (scope.number, rules));
        rules
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use forebay_origin::{FakeOrigin, Origin};
    use forebay_types::{AccessList, CachePolicy, Priority, Role};

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn a_file_is_treated_as_the_policies_of_its_path_say_as_they_are_now() {
        let origin = FakeOrigin::new("fake://bucket");
        let version = origin.put("models/a", b"abc".as_slice());
        let namespace = Namespace::new([(path("/s3"), Arc::new(origin) as Arc<dyn Origin>)]).unwrap();
        let scopes = Scopes::new(namespace, Duration::from_secs(60), true);
        let rules = || scopes.of_file(version.id(), &version);
        assert_eq!(rules(), FileRules::default());
        let on_models = CachePolicy { pin: Some(true), priority: Some(Priority::High), ..CachePolicy::default() };
        let on_all = CachePolicy { quota: Some(ByteSize::mib(1)), replicas: Some(3), ..CachePolicy::default() };
        scopes.set_policies(PolicyTable::new([(path("/s3/models"), on_models), (path("/s3"), on_all.clone())]));
        let account = Some(Account::of(b"/s3"));
        let keep = Keep { priority: Priority::High, pinned: true, account };
        assert_eq!(rules(), FileRules { keeping: Keeping::As(keep), replicas: 3 });
        assert_eq!(rules(), FileRules { keeping: Keeping::As(keep), replicas: 3 }, "remembered");
        let skipped = CachePolicy { skip_cache: Some(true), ..CachePolicy::default() };
        scopes.set_policies(PolicyTable::new([(path("/s3"), skipped)]));
        assert_eq!(rules(), FileRules { keeping: Keeping::Not, replicas: 1 });
        let shown = scopes.current().shown_number();
        scopes.set_policies(PolicyTable::default());
        assert_eq!(scopes.current().shown_number(), shown, "nobody sees more or less for that");
        scopes.set_namespace(Namespace::default());
        assert_eq!(rules(), FileRules::default(), "it shows nowhere");
        assert_ne!(scopes.current().shown_number(), shown);
    }

    /// Real threads: hits of one open connection, while the list of the mount changes.
    #[test]
    fn a_list_whose_change_has_ended_holds_for_each_hit_from_then_on() {
        const CHANGES: u32 = 2000;
        let namespace = |names: &[&str]| {
            let (at, origin) = (path("/a"), Arc::new(FakeOrigin::new("fake://a")) as Arc<dyn Origin>);
            let list = AccessList::new(names, &[]).unwrap();
            Namespace::new([(at.clone(), origin)]).unwrap().with_access([(at, list)])
        };
        let scopes = Scopes::new(namespace(&["team-a"]), Duration::from_secs(60), true);
        let label = scopes.label("fake://a");
        let caller = Caller::proved(Role::Reader, "team-a", "spiffe://d/forebay/c/reader/team-a");
        // The last change that has begun, and that has ended. The list names the caller after each second one.
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        let hits = || {
            let mut last = 0;
            while last < CHANGES {
                last = ended.load(Ordering::Acquire);
                let is_shown = scopes.shows(&caller, label);
                let was_alone = begun.load(Ordering::Acquire) == last;
                assert!(!was_alone || is_shown == last.is_multiple_of(2), "{is_shown} after change {last}");
            }
        };
        std::thread::scope(|threads| {
            let readers = [threads.spawn(hits), threads.spawn(hits)];
            for change in 1..=CHANGES {
                let names: &[&str] = if change.is_multiple_of(2) { &["team-a"] } else { &[] };
                begun.store(change, Ordering::Release);
                scopes.set_namespace(namespace(names));
                ended.store(change, Ordering::Release);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn policies_take_back_nothing_that_callers_remember() {
        let origin = Arc::new(FakeOrigin::new("fake://a")) as Arc<dyn Origin>;
        let list = AccessList::new(&["team-a"], &[]).unwrap();
        let namespace = Namespace::new([(path("/a"), origin)]).unwrap().with_access([(path("/a"), list)]);
        let scopes = Scopes::new(namespace, Duration::from_secs(60), true);
        let label = scopes.label("fake://a");
        let caller = Caller::proved(Role::Reader, "team-a", "spiffe://d/forebay/c/reader/team-a");
        assert_eq!(scopes.fast.shows(&caller, label), None);
        assert!(scopes.shows(&caller, label));
        let pinned = CachePolicy { pin: Some(true), ..CachePolicy::default() };
        scopes.set_policies(PolicyTable::new([(path("/a"), pinned)]));
        assert_eq!(scopes.fast.shows(&caller, label), Some(true), "a hit does not look at the table");
    }

    #[test]
    fn only_files_are_believed_for_ever() {
        let scopes = Scopes::new(Namespace::default(), Duration::from_secs(60), true);
        let immutable = CachePolicy { immutable: Some(true), ..CachePolicy::default() };
        scopes.set_policies(PolicyTable::new([(path("/a"), immutable)]));
        let (inside, outside) = (scopes.current().of_name(&path("/a/b")), scopes.current().of_name(&path("/b")));
        let file = Ok(Attr::file(FakeOrigin::new("fake://o").put("f", b"".as_slice())));
        let ttl = Duration::from_secs(60);
        assert_eq!((inside.believed(&file), outside.believed(&file)), (FOR_EVER, ttl));
        assert_eq!(inside.believed(&Ok(Attr::directory())), ttl);
        assert_eq!(inside.believed(&Err(Failure::new(forebay_types::FailureKind::NotFound, "no"))), ttl);
    }
}
