//! The counters of workers of other cache groups, for the coordinator's page: its own client reads from one group only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Connector;
use forebay_cluster::Member;
use forebay_cluster::records::members::WorkerRecord;
use forebay_locks::Mutex;
use forebay_transport::{Op, Request, Transport};
use forebay_types::Failure;
use futures::{StreamExt as _, stream};
use tokio::sync::watch;

/// How long a worker may take: it answers at once, or is away.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Workers that are asked at once.
const AT_ONCE: usize = 64;
/// Workers that are asked at all: the plots have no place for more.
const MAX_WORKERS: usize = 512;

type Records = watch::Receiver<Option<Arc<BTreeMap<String, WorkerRecord>>>>;

/// The workers of the groups that are not ours.
pub(crate) struct Elsewhere {
    group: String,
    records: Records,
    connector: Arc<dyn Connector>,
    links: Mutex<BTreeMap<Place, Arc<dyn Transport>>>,
}

/// An address, and who has to listen there, where that is known.
type Place = (String, Option<String>);

fn place(record: &WorkerRecord) -> Place {
    (record.addresses.rpc.clone(), record.identity.clone())
}

impl Elsewhere {
    /// Those of `records` that are in another group than `group`, reached by `connector`.
    pub(crate) fn new(group: String, records: Records, connector: Arc<dyn Connector>) -> Self {
        Self { group, records, connector, links: Mutex::default() }
    }

    /// What each of them answers.
    pub(crate) async fn worker_stats(&self) -> Vec<(Arc<str>, Result<String, Failure>)> {
        let asks: Vec<_> = self.links().await.into_iter().map(ask).collect();
        stream::iter(asks).buffer_unordered(AT_ONCE).collect().await
    }

    /// A link to each that is there now. Those of the others are closed.
    async fn links(&self) -> Vec<(Arc<str>, Arc<dyn Transport>)> {
        let records = self.records.borrow().clone();
        let others = records.iter().flat_map(|records| records.values());
        let others: Vec<_> = others.filter(|record| record.group != self.group).take(MAX_WORKERS).collect();
        let (links, gone) = {
            let mut links = self.links.lock();
            let is_there = |link: &Place| others.iter().any(|record| place(record) == *link);
            let mut gone = Vec::new();
            links.retain(|at, link| {
                let stays = is_there(at);
                if !stays {
                    gone.push(Arc::clone(link));
                }
                stays
            });
            let link = |record: &&WorkerRecord| {
                let connect = || {
                    let address: Arc<str> = record.addresses.rpc.as_str().into();
                    self.connector.connect(&Member {
                        name: record.name.as_str().into(),
                        address,
                        weight: record.weight,
                        identity: record.identity.as_deref().map(Arc::from),
                    })
                };
                let link = links.entry(place(record)).or_insert_with(connect);
                (record.name.as_str().into(), Arc::clone(link))
            };
            (others.iter().map(link).collect(), gone)
        };
        futures::future::join_all(gone.iter().map(|link| link.close())).await;
        links
    }

    /// Ends the links.
    pub(crate) async fn close(&self) {
        let links = std::mem::take(&mut *self.links.lock());
        futures::future::join_all(links.values().map(|link| link.close())).await;
        self.connector.close().await;
    }
}

async fn ask((name, link): (Arc<str>, Arc<dyn Transport>)) -> (Arc<str>, Result<String, Failure>) {
    let request = Request::on_path(Op::Stats, Bytes::new(), ANSWER_WITHIN);
    let answer = link.call(request, None).await;
    (name, answer.map(|reply| String::from_utf8_lossy(&reply.body).into_owned()).map_err(Failure::from))
}
