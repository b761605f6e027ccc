//! Who may ask a coordinator for what, and whom a coordinator takes for the one that leads.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_coordinator::api::{Mount, Policy};
use forebay_coordinator::{
    ApiClient, ApiError, Coordinator, CoordinatorOptions, Listen, PlainConnector, SecureConnector,
};
use forebay_identity::{ClusterKey, Live, LiveTokens, Material, Scope, Trust, http_client_config, new_token};
use forebay_metrics::Access;
use forebay_private::socket_address;
use forebay_state::{StateStore, Transaction};
use forebay_types::Role;
use serde_json::json;

use support::{Cluster, PATIENCE, bare, end, leads, load, path, refusal};

const HOUR: Duration = Duration::from_secs(3600);
/// A free port of this machine.
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A key, and all that whoever has it can be.
struct Key(ClusterKey);

impl Key {
    fn new() -> Self {
        Self(ClusterKey::generate().unwrap())
    }

    fn live(&self, role: Role) -> Arc<Live> {
        let (now, scope) = (SystemTime::now(), Scope::new("example.org", "prod").unwrap());
        let authority = |role| self.0.authority(&scope, role).unwrap();
        let authorities = Role::ALL.map(|role| authority(role).certificate().clone());
        let trust = Trust::new(scope.clone(), &authorities, []).unwrap();
        let credentials = authority(role).issue("one", now - HOUR, now + HOUR).unwrap();
        Live::new(Material::new(credentials, trust, now).unwrap())
    }

    /// A coordinator that demands proof. It has the identity of `role`, which may be a wrong one.
    async fn coordinator(&self, cluster: &Cluster, name: &str, role: Role) -> Coordinator {
        let live = self.live(role);
        let leader = http_client_config(&live, Some(Role::Coordinator)).unwrap();
        let mut options = CoordinatorOptions::new(name, SocketAddr::from(LOOPBACK), "9.9.9");
        options.access = Access::proved(&live, LiveTokens::open(Vec::new()).unwrap(), false).unwrap();
        options.leader = Arc::new(SecureConnector::over(PlainConnector::default(), leader));
        cluster.start(options).await
    }

    /// Somebody of this role, who asks `coordinator`.
    fn client(&self, role: Role, coordinator: &Coordinator) -> ApiClient {
        let config = http_client_config(&self.live(role), Some(Role::Coordinator)).unwrap();
        ApiClient::from_source(&coordinator.address().unwrap().to_string(), None, Some(config)).unwrap()
    }
}

fn s3() -> Mount {
    Mount { path: "/s3".into(), origin: "s3://bucket".into(), options: [].into(), acl: None }
}

/// The status of a refusal; 200 for none.
fn status<T>(answer: Result<T, ApiError>) -> u16 {
    answer.err().map_or(200, |error| refusal(error).0)
}

#[tokio::test]
async fn an_admin_changes_what_a_coordinator_reads_and_nobody_else_sees_anything() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let coordinator = key.coordinator(&cluster, "one", Role::Coordinator).await;
    leads(&coordinator).await;
    for role in [Role::Reader, Role::Writer, Role::Worker, Role::Metrics] {
        let client = key.client(role, &coordinator);
        let read = client.mounts().await;
        assert!(read.as_ref().unwrap_err().to_string().contains(&format!("a {role} may not manage")), "{read:?}");
        assert_eq!(status(read), 403);
        assert_eq!(status(client.stats().await), 403);
        assert_eq!(status(client.add_mount(&s3()).await), 403);
        assert_eq!(status(client.submit(&load()).await), 403);
    }
    let (admin, other) = (key.client(Role::Admin, &coordinator), key.client(Role::Coordinator, &coordinator));
    assert_eq!(status(other.mounts().await), 200);
    assert_eq!(status(other.add_mount(&s3()).await), 403);
    assert_eq!(status(other.set_policy(&Policy { path: "/s3".into(), ..Policy::default() }).await), 403);
    assert_eq!(status(other.drain("w1").await), 403);
    assert_eq!(admin.add_mount(&s3()).await.unwrap(), s3());
    admin.remove_mount(&path("/s3")).await.unwrap();
    assert_eq!(admin.mounts().await.unwrap(), []);
    let (told, text) = bare(&coordinator, "GET", "/api/v1/mounts", None).await;
    assert!(told == 400 && text.contains("TLS_ONLY") && text.contains("security.mode"), "{told} {text}");
    coordinator.close().await;
}

#[tokio::test]
async fn who_proves_itself_asks_no_one_who_is_no_coordinator() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let impostor = key.coordinator(&cluster, "impostor", Role::Reader).await;
    let refused = key.client(Role::Admin, &impostor).mounts().await.unwrap_err();
    assert!(refused.to_string().contains("listens there, and no coordinator"), "{refused}");
    let stranger = Key::new().client(Role::Admin, &impostor).mounts().await.unwrap_err();
    assert!(stranger.to_string().contains("no authority"), "{stranger}");
    let (plain, _) = cluster.coordinator("plain").await;
    let refused = key.client(Role::Admin, &plain).mounts().await.unwrap_err();
    assert!(refused.to_string().contains("does not speak TLS"), "{refused}");
    impostor.close().await;
    plain.close().await;
}

#[tokio::test]
async fn a_job_is_passed_on_to_a_coordinator_that_proves_to_be_one_and_to_nobody_else() {
    let (cluster, key) = (Cluster::new().await, Key::new());
    let leader = key.coordinator(&cluster, "leader", Role::Coordinator).await;
    leads(&leader).await;
    let other = key.coordinator(&cluster, "other", Role::Coordinator).await;
    let admin = key.client(Role::Admin, &other);
    let submitted = admin.submit(&load()).await.unwrap();
    assert_eq!(end(&admin, &submitted.job.id).await.coordinator, "leader");
    leader.close().await;
    other.close().await;

    // Somebody who may write to the state names a server of its own.
    let cluster = Cluster::new().await;
    let theirs = Cluster::new().await;
    let impostor = key.coordinator(&theirs, "impostor", Role::Reader).await;
    leads(&impostor).await;
    let record = json!({ "name": "impostor", "address": impostor.address().unwrap().to_string() }).to_string();
    cluster.store.commit(Transaction::new().put("leader", record)).await.unwrap();
    let coordinator = key.coordinator(&cluster, "one", Role::Coordinator).await;
    let refused = key.client(Role::Admin, &coordinator).submit(&load()).await.unwrap_err();
    let (status, code, message) = refusal(refused);
    assert_eq!((status, &*code), (503, "NO_LEADER"), "{message}");
    assert!(message.contains("listens there, and no coordinator"), "{message}");
    assert!(impostor.reports().is_empty(), "it was asked for nothing");
    coordinator.close().await;
    impostor.close().await;
}

#[tokio::test]
async fn a_coordinator_of_one_user_asks_for_nothing_at_its_socket_and_for_a_token_at_its_port() {
    let (cluster, directory, token) = (Cluster::new().await, tempfile::tempdir().unwrap(), new_token().unwrap());
    let socket = directory.path().join("private/rest.sock");
    let listen = Listen { address: Some(SocketAddr::from(LOOPBACK)), socket: Some(socket.clone()) };
    let mut options = CoordinatorOptions::new("one", listen, "9.9.9");
    options.access = Access::by_token(LiveTokens::only(&token, Role::Admin));
    let coordinator = cluster.start(options).await;
    leads(&coordinator).await;
    assert_eq!(coordinator.socket(), Some(&*socket));
    let address = coordinator.address().unwrap();

    let own = ApiClient::new(&socket_address(&socket)).unwrap();
    assert_eq!(own.add_mount(&s3()).await.unwrap(), s3());
    let proving = http_client_config(&Key::new().live(Role::Admin), Some(Role::Coordinator)).unwrap();
    let proving = ApiClient::from_source(&socket_address(&socket), None, Some(proving)).unwrap();
    assert_eq!(proving.mounts().await.unwrap(), [s3()], "nothing is to be proved to a socket");

    let stranger = ApiClient::new(&address.to_string()).unwrap();
    assert_eq!(status(stranger.mounts().await), 401);
    assert_eq!(status(stranger.remove_mount(&path("/s3")).await), 401);
    for (at, expected) in [("/", 200), ("/forebay.css", 200), ("/forebay.js", 200), ("/metrics", 401), ("/readyz", 401)]
    {
        assert_eq!(bare(&coordinator, "GET", at, None).await.0, expected, "{at}");
    }
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    for (shown, expected) in [(token.as_str(), 200), (&token[..63], 401), ("", 401)] {
        let asked = http.get(format!("http://{address}/api/v1/mounts")).bearer_auth(shown).send().await.unwrap();
        assert_eq!(asked.status(), expected, "{shown}");
    }
    coordinator.close().await;
    assert!(!socket.exists());
}
