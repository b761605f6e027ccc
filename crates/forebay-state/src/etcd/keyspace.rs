//! The keys of one cluster in etcd, all below `/forebay/<cluster>/`: lists in pages, commits, and both sides' names for keys.

use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp};

use super::failure::Failure;
use super::members::{Members, Repeat};
use crate::{Committed, Condition, Entry, Revision, Snapshot, StateError, Transaction, Write};

/// The first page of a list, in entries. Most values are small; where they are not, pages get smaller.
const PAGE: i64 = 1000;

/// Where the keys are, and which members are asked for them.
#[derive(Debug)]
pub(super) struct Keyspace {
    pub(super) members: Members,
    /// `/forebay/<cluster>/`.
    pub(super) root: String,
}

impl Keyspace {
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.root)
    }

    pub(super) fn entry(&self, pair: KeyValue) -> Entry {
        let revision = Revision(pair.mod_revision().unsigned_abs());
        let (key, value) = pair.into_key_value();
        Entry { key: self.relative(&key), value: value.into(), revision }
    }

    /// The key as our users know it. All keys are theirs; those of other programs are shown as well as they can be.
    pub(super) fn relative(&self, key: &[u8]) -> String {
        String::from_utf8_lossy(key.strip_prefix(self.root.as_bytes()).unwrap_or(key)).into_owned()
    }

    /// Lists in pages, all of the revision of the first.
    pub(super) async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        let operation = format!("list `{prefix}`");
        let (start, end) = range(&self.full(prefix));
        // A list that takes so long that etcd compacts its revision begins again; the deadline is for the whole.
        let listing = async {
            loop {
                if let Some(snapshot) = self.list_once(&start, &end).await? {
                    return Ok(snapshot);
                }
            }
        };
        let listed = tokio::time::timeout(self.members.deadline(), listing).await;
        listed.unwrap_or(Err(Failure::TimedOut)).map_err(|failure| self.members.error(&operation, failure))
    }

    /// `None` if the revision was compacted meanwhile.
    async fn list_once(&self, start: &[u8], end: &[u8]) -> Result<Option<Snapshot>, Failure> {
        let mut snapshot = Snapshot::default();
        let (mut from, mut limit) = (start.to_vec(), PAGE);
        loop {
            let options = GetOptions::new().with_range(end).with_limit(limit);
            let options = match snapshot.revision.0 {
                0 => options,
                revision => options.with_revision(to_i64(revision)),
            };
            let get = |mut client: Client| {
                let (from, options) = (from.clone(), options.clone());
                async move { client.get(from, Some(options)).await }
            };
            let mut page = match self.members.call(Repeat::Always, get).await {
                Ok(page) => page,
                Err(Failure::TooLarge) if limit > 1 => {
                    limit = (limit / 8).max(1);
                    continue;
                }
                Err(Failure::NoSuchRevision) => return Ok(None),
                Err(failure) => return Err(failure),
            };
            if snapshot.revision.0 == 0 {
                let revision = page.header().map_or(0, etcd_client::ResponseHeader::revision);
                snapshot.revision = Revision(revision.unsigned_abs());
            }
            let more = page.more();
            for pair in page.take_kvs() {
                from.clear();
                from.extend_from_slice(pair.key());
                from.push(0);
                snapshot.entries.push(self.entry(pair));
            }
            if !more {
                return Ok(Some(snapshot));
            }
        }
    }

    pub(super) async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        let operation = transaction.describe();
        let leased = transaction.writes.iter().find_map(|write| match write {
            Write::Put { key, lease: Some(_), .. } => Some(key.clone()),
            _ => None,
        });
        let compares: Vec<Compare> = transaction.conditions.iter().map(|condition| self.compare(condition)).collect();
        let writes: Vec<TxnOp> = transaction.writes.into_iter().map(|write| self.operation(write)).collect();
        let txn = Txn::new().when(compares).and_then(writes);
        let commit = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        match self.members.call(Repeat::IfNotCarriedOut, commit).await {
            Ok(answer) if answer.succeeded() => {
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                Ok(Committed::Done(Revision(revision.unsigned_abs())))
            }
            Ok(_) => Ok(Committed::Conflict),
            Err(Failure::NoSuchLease) => {
                let (store, key) = (self.members.name().to_owned(), leased.unwrap_or_default());
                Err(StateError::LeaseLost { store, key })
            }
            Err(failure) => Err(self.members.error(&operation, failure)),
        }
    }

    fn compare(&self, condition: &Condition) -> Compare {
        let key = self.full(condition.key());
        match condition {
            Condition::Absent(_) => Compare::create_revision(key, CompareOp::Equal, 0),
            Condition::Present(_) => Compare::create_revision(key, CompareOp::Greater, 0),
            // To etcd a key that is absent has revision 0.
            Condition::Unchanged(_, Revision(0)) => Compare::create_revision(key, CompareOp::Less, 0),
            Condition::Unchanged(_, revision) => Compare::mod_revision(key, CompareOp::Equal, to_i64(revision.0)),
        }
    }

    fn operation(&self, write: Write) -> TxnOp {
        match write {
            Write::Put { key, value, lease } => {
                let options = lease.map(|lease| PutOptions::new().with_lease(to_i64(lease.0)));
                TxnOp::put(self.full(&key), value, options)
            }
            Write::Delete { key } => TxnOp::delete(self.full(&key), None),
            Write::DeletePrefix { prefix } => {
                let (start, end) = range(&self.full(&prefix));
                TxnOp::delete(start, Some(DeleteOptions::new().with_range(end)))
            }
        }
    }
}

/// The keys that start with `prefix`, from the first to the one after the last. The prefix is UTF-8, in which no byte is
/// 0xff, and not empty.
pub(super) fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (prefix.as_bytes().to_vec(), end)
}

/// etcd's revisions and leases are positive and signed; one of another origin matches nothing there.
pub(super) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
