//! What a client asks workers about the room of origins.

use std::sync::Arc;

use forebay_client::{Client, ClientOptions, Connector, OriginRoom};
use forebay_cluster::{Member, StaticMembership};
use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Store, StoreOptions};
use forebay_transport::fake::FakeTransport;
use forebay_transport::{Flags, Op, Request, Response, Service, Transport};
use forebay_types::{ByteSize, Failure, FailureKind, FsPath};

/// A worker of which this client may not see the counters.
struct Reserved;

#[async_trait::async_trait]
impl Service for Reserved {
    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        if request.op != Op::Stats || !request.flags.contains(Flags::BELOW) {
            return Err(Failure::new(FailureKind::PermissionDenied, "a reader may not observe"));
        }
        let told = r#"{ "origins": [{ "path": "/d", "room": { "free": 3, "total": 7, "in_memory": false } }] }"#;
        Ok(Response::of_body(told.into()))
    }
}

struct Connects;

impl Connector for Connects {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::new(FakeTransport::new("worker", Arc::new(Reserved) as Arc<dyn Service>))
    }
}

#[tokio::test]
async fn the_room_of_origins_is_told_to_who_may_not_see_counters() {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64))).unwrap();
    let buffers = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let (members, runtime) = (Arc::new(StaticMembership::new(["worker"])), tokio::runtime::Handle::current());
    let client = Client::new(members, Arc::new(Connects), buffers, ClientOptions::default(), runtime);
    let path = FsPath::new("/d").unwrap();
    assert_eq!(client.origin_rooms().await.unwrap(), [OriginRoom { path, free: 3, total: 7 }]);
    assert!(client.worker_stats().await.into_iter().all(|(_, told)| told.is_err()));
    client.close().await;
}
