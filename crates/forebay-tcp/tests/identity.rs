//! Attacks on identities at the data port: each by a real connection to a real server.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::identities::{Cluster, HOUR, options_of, proving, server_security};
use common::{BLOCK_SIZE, LONG, assert_serves, call, client_options, closed, link, serve, server_options};
use forebay_identity::{LiveIdentity, Pass, Passes};
use forebay_locks::Mutex;
use forebay_tcp::{ClientOptions, CloseReason, ServerOptions, TcpSecurity, TcpTransport};
use forebay_transport::conformance::{Behaviour, Scripted, read, until, within};
use forebay_transport::{CallError, Caller, Flags, LinkError, Op, Request, Response, Service};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn a_read() -> Request {
    read(Behaviour::AtOnce, 1, 0, 4096, LONG)
}

/// Why identities do not fit, with what helps.
async fn refusal(link: &TcpTransport) -> String {
    match call(link, a_read()).await {
        Err(CallError::Link(LinkError::Unproved { reason, .. })) => {
            assert!(
                reason.split_once("; ").is_some_and(|(what, remedy)| !what.is_empty() && !remedy.is_empty()),
                "{reason}"
            );
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_of_the_cluster_reads() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    for role in [Role::Reader, Role::Writer, Role::Admin, Role::Worker, Role::Coordinator] {
        assert_serves(&cluster.link(&server, role)).await;
    }
    let named = |name: &str| {
        let security = proving(&cluster.live(Role::Reader, "team-a"), TcpSecurity::Encrypt).named(name);
        link(server.local_addr(), ClientOptions { security: Some(security), ..client_options() })
    };
    assert_serves(&named("node1")).await;
    let refused = refusal(&named("node2")).await;
    assert!(refused.contains("worker/node1` listens there, and not the worker `node2`"), "{refused}");
    assert_eq!(closed(&server, CloseReason::Unproved), 0);
    server.close().await;
}

/// Says who asks.
struct Names;

#[async_trait::async_trait]
impl Service for Names {
    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Ok(Response::of_body(request.caller.to_string().into()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_is_told_who_asks_and_not_by_those_who_ask() {
    let cluster = Cluster::new();
    let security = Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt));
    let proving = serve(ServerOptions { security, ..server_options() }, Arc::new(Names));
    let plain = serve(server_options(), Arc::new(Names));
    let who = async |link: &TcpTransport| {
        // What a caller says of itself stays where it is.
        let request = Request::on_path(Op::Stat, Bytes::new(), LONG).by(Caller::Local);
        String::from_utf8(call(link, request).await.unwrap().body.to_vec()).unwrap()
    };
    let reader = who(&cluster.link(&proving, Role::Reader)).await;
    assert_eq!(reader, "`spiffe://example.org/forebay/prod/reader/team-a`");
    assert_eq!(who(&link(plain.local_addr(), client_options())).await, "somebody who proved no identity");
    proving.close().await;
    plain.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_proof_no_answer() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let refused = refusal(&link(server.local_addr(), client_options())).await;
    assert!(refused.contains("it speaks TLS only"), "{refused}");
    let refused = refusal(&Cluster::new().link(&server, Role::Admin)).await;
    assert!(refused.contains("no authority"), "{refused}");
    until("both are counted", || closed(&server, CloseReason::Unproved) >= 2).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_admits_nobody() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let live = LiveIdentity::new(cluster.material(Role::Admin, "late", cluster.trust(None), Duration::from_secs(1)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = refusal(&link(server.local_addr(), options_of(&live))).await;
    assert!(refused.contains("refuses the certificate of this process"), "{refused}");
    server.close().await;
}

/// What etcd says about an address costs availability, and no byte.
#[tokio::test(flavor = "multi_thread")]
async fn an_impostor_at_a_workers_address_gets_no_request() {
    let cluster = Cluster::new();
    // A tenant who listens, with the certificate of a reader.
    let impostor = cluster.server(&cluster.live(Role::Reader, "mallory"));
    let refused = refusal(&cluster.link(&impostor, Role::Reader)).await;
    assert!(refused.contains("reader/mallory` listens there, and not the worker"), "{refused}");
    // One who has no certificate at all, and speaks our protocol in plain text.
    let plain = serve(server_options(), Scripted::new());
    let refused = refusal(&cluster.link(&plain, Role::Reader)).await;
    assert!(refused.contains("it does not speak TLS"), "{refused}");
    impostor.close().await;
    plain.close().await;
}

/// What else does not fit is told by its name, within TLS, too; and who goes away in the middle of a handshake denies nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_identities_is_taken_for_a_denial() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let options = ClientOptions { block_size: BLOCK_SIZE / 4, ..cluster.options(Role::Reader, "team-a") };
    let result = call(&link(server.local_addr(), options), a_read()).await;
    let Err(CallError::Link(LinkError::Refused { reason, .. })) = result else { panic!("{result:?}") };
    assert!(reason.contains("`block.size`"), "{reason}");

    let mut waiting = TcpStream::connect(server.local_addr()).await.unwrap();
    until("it is taken in", || server.greeting() > 0).await;
    server.close().await;
    let mut said = Vec::new();
    let _ = within("it is closed", waiting.read_to_end(&mut said)).await;
    assert!(said.is_empty(), "plain text would say that it does not speak TLS: {said:?}");

    let listener = TcpListener::bind(common::loopback()).await.unwrap();
    let away = link(listener.local_addr().unwrap(), cluster.options(Role::Reader, "team-a"));
    let closes = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            drop(client);
        }
    });
    let result = call(&away, a_read()).await;
    assert!(matches!(&result, Err(CallError::Link(LinkError::Connect { .. }))), "{result:?}");
    closes.abort();
}

/// For one connection over UCX, which proves nothing itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_goes_to_who_proved_who_it_is_and_may_read() {
    let cluster = Cluster::new();
    let passes = Arc::<Mutex<Passes>>::default();
    let security = Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt));
    let options = ServerOptions { security, passes: Some(Arc::clone(&passes)), ..server_options() };
    let server = serve(options, Scripted::new());
    let admit = || Request::on_path(Op::Admit, Bytes::copy_from_slice(&7_u64.to_le_bytes()), LONG);
    let reply = call(&cluster.link(&server, Role::Reader), admit()).await.unwrap();
    let pass = Pass::decode(&reply.body).unwrap();
    let (_, peer) = passes.lock().redeem(7, pass.client, Instant::now()).unwrap();
    assert_eq!((peer.identity.role(), peer.identity.name()), (Role::Reader, "team-a"));
    let refused = call(&cluster.link(&server, Role::Metrics), admit()).await;
    let Err(CallError::Service(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.kind(), FailureKind::PermissionDenied);
    server.close().await;
    let without = cluster.worker();
    let none = call(&cluster.link(&without, Role::Reader), admit()).await;
    let Err(CallError::Service(none)) = none else { panic!("{none:?}") };
    assert_eq!(none.kind(), FailureKind::Unsupported);
    without.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_changes_frees_and_plants_nothing() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let block = BlockKey { file: FileId([1; 16]), index: 0 };
    let asks = |op: Op, body: &'static [u8]| {
        let request = Request::on_block(op, block, 0, 0, LONG);
        Request { body: Bytes::from_static(body), ..request }
    };
    let reader = cluster.link(&server, Role::Reader);
    for (op, permission) in [
        (Op::Change, "write"),
        (Op::Upload, "write"),
        (Op::Free, "manage"),
        (Op::Adopt, "replicate"),
        (Op::Stats, "observe"),
    ] {
        let Err(CallError::Service(why)) = call(&reader, asks(op, b"x")).await else { panic!("{op:?}") };
        assert_eq!(why.kind(), FailureKind::PermissionDenied, "{why:?}");
        assert!(why.message().contains(&format!("a reader may not {permission}")), "{why:?}");
    }
    // What has a worker ask for everything again, or check all that it has.
    for (op, flags, permission) in [(Op::Refresh, Flags::BELOW, "write"), (Op::Coverage, Flags::SCRUB, "manage")] {
        let Err(CallError::Service(why)) = call(&reader, asks(op, b"/").with_flags(flags)).await else {
            panic!("{op:?}")
        };
        assert_eq!(why.kind(), FailureKind::PermissionDenied, "{why:?}");
        assert!(why.message().contains(&format!("a reader may not {permission}")), "{why:?}");
        assert!(call(&reader, asks(op, b"/")).await.is_ok(), "{op:?}");
    }
    // What a mount shows of the room of origins.
    assert!(call(&reader, asks(Op::Stats, b"").with_flags(Flags::BELOW)).await.is_ok());
    assert_serves(&reader).await;
    let writer = cluster.link(&server, Role::Writer);
    assert!(call(&writer, asks(Op::Change, b"x")).await.is_ok());
    assert!(matches!(call(&writer, asks(Op::Adopt, b"x")).await, Err(CallError::Service(_))));
    // No memory is given to the body of what is not allowed.
    let body = Bytes::from(vec![7; 1 << 20]);
    let upload = Request { body, ..Request::on_path(Op::Upload, Bytes::new(), LONG) };
    let refused = call(&reader, upload.clone()).await;
    assert!(matches!(&refused, Err(CallError::Link(LinkError::Unproved { .. }))), "{refused:?}");
    assert_eq!(server.body_memory_gauge()(), 0);
    assert!(call(&writer, upload).await.is_ok());
    until("it is counted", || closed(&server, CloseReason::Denied) == 1).await;
    server.close().await;
}

/// What a client has sent proves nothing on another connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_handshake_admits_nobody() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let listener = TcpListener::bind(common::loopback()).await.unwrap();
    let through = listener.local_addr().unwrap();
    let address = server.local_addr();
    // Somebody on the path, who writes down what the client says.
    let tap = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(address).await.unwrap();
        let (mut said, mut heard) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        let mut record = Vec::new();
        loop {
            tokio::select! {
                count = client.read(&mut said) => match count {
                    Ok(count @ 1..) => {
                        record.extend_from_slice(&said[..count]);
                        server.write_all(&said[..count]).await.unwrap();
                    }
                    _ => return record,
                },
                count = server.read(&mut heard) => match count {
                    Ok(count @ 1..) => client.write_all(&heard[..count]).await.unwrap(),
                    _ => return record,
                },
            }
        }
    });
    let options = ClientOptions { connections: 1, ..cluster.options(Role::Admin, "root") };
    let admin = link(through, options);
    assert_serves(&admin).await;
    drop(admin);
    let record = within("the tap ends", tap).await.unwrap();
    assert!(record.len() > 500, "{}", record.len());
    let before = closed(&server, CloseReason::Unproved);
    let mut replay = TcpStream::connect(address).await.unwrap();
    replay.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    let _ = within("it is closed", replay.read_to_end(&mut answer)).await;
    until("it is counted", || closed(&server, CloseReason::Unproved) == before + 1).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_denied_is_gone_within_seconds() {
    let cluster = Cluster::new();
    let (live, service) = (cluster.live(Role::Worker, "node1"), Scripted::new());
    let security = Some(server_security(&live, TcpSecurity::Encrypt));
    let server = serve(ServerOptions { security, ..server_options() }, service.clone());
    let (good, bad) =
        (cluster.link(&server, Role::Reader), link(server.local_addr(), cluster.options(Role::Reader, "mallory")));
    assert_serves(&good).await;
    assert_serves(&bad).await;
    let never = {
        let bad = Arc::clone(&bad);
        tokio::spawn(async move { call(&bad, read(Behaviour::Never, 1, 0, 10, 2 * LONG)).await })
    };
    until("the call is there", || service.started() == 3).await;
    let mallory = cluster.identity(Role::Reader, "mallory");
    live.replace(cluster.material(Role::Worker, "node1", cluster.trust(Some(mallory)), HOUR));
    let ended = within("its call ends", never).await.unwrap();
    let Err(CallError::Link(LinkError::Unproved { reason, .. })) = ended else { panic!("{ended:?}") };
    assert!(reason.contains("reader/mallory` is denied; "), "{reason}");
    assert!(refusal(&bad).await.contains("the certificate of this process"));
    assert!(closed(&server, CloseReason::Denied) >= 1);
    assert_serves(&good).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_the_certificate_of_its_client() {
    let cluster = Cluster::new();
    let server = cluster.worker();
    let short = |seconds| cluster.material(Role::Reader, "short", cluster.trust(None), Duration::from_secs(seconds));
    let live = LiveIdentity::new(short(4));
    let reader = link(server.local_addr(), options_of(&live));
    // A machine that does other things may take longer to connect than that lasts.
    for seconds in [8, 16, 32, 64] {
        if call(&reader, a_read()).await.is_ok() {
            break;
        }
        live.replace(short(seconds));
    }
    assert_serves(&reader).await;
    // It is renewed in time, and the connection has the old one. The calls notice nothing.
    live.replace(cluster.material(Role::Reader, "short", cluster.trust(None), HOUR));
    let started = std::time::Instant::now();
    while closed(&server, CloseReason::Expired) == 0 {
        assert!(started.elapsed() < LONG);
        assert_serves(&reader).await;
    }
    assert_serves(&reader).await;
    assert_eq!(closed(&server, CloseReason::Denied), 0);
    server.close().await;
}

/// Who has stolen a key makes itself certificates that last for ever. When the key is replaced, what they opened ends, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_the_key_that_let_it_in() {
    let (old, new) = (Cluster::new(), Cluster::new());
    let live = old.live(Role::Worker, "node1");
    let server = old.server(&live);
    let reader = old.link(&server, Role::Reader);
    assert_serves(&reader).await;
    live.replace(new.material(Role::Worker, "node1", new.trust(None), HOUR));
    until("it is told to go", || closed(&server, CloseReason::Expired) >= 1 && server.connections() == 0).await;
    // It believes this worker no more, either.
    assert!(call(&reader, a_read()).await.is_err());
    assert_serves(&new.link(&server, Role::Reader)).await;
    server.close().await;
}

/// While a cluster is being changed, both are let in; and nobody is brought down by that.
#[tokio::test(flavor = "multi_thread")]
async fn plain_text_is_let_in_where_that_is_said() {
    let cluster = Cluster::new();
    let security = server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt).accepting_plain();
    let server = serve(ServerOptions { security: Some(security), ..server_options() }, Scripted::new());
    assert_serves(&link(server.local_addr(), client_options())).await;
    let reader = cluster.link(&server, Role::Reader);
    assert_serves(&reader).await;
    let change = Request { body: Bytes::from_static(b"x"), ..Request::on_path(Op::Change, Bytes::new(), LONG) };
    assert!(matches!(call(&reader, change).await, Err(CallError::Service(_))));
    server.close().await;
}

/// A cluster of clients may come at once, as when a job starts on all nodes: none is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn eight_hundred_connections_are_admitted() {
    let cluster = Cluster::new();
    let security = Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt));
    // They come from one address here, and from two hundred elsewhere.
    // All prove who they are at the same time, on a machine that may do something else.
    let options = ServerOptions { security, max_greeting_per_client: 1024, hello_timeout: LONG, ..server_options() };
    let server = serve(options, Scripted::new());
    let live = cluster.live(Role::Reader, "team-a");
    let options = || ClientOptions { connections: 1, connect_timeout: LONG, ..options_of(&live) };
    let began = std::time::Instant::now();
    let links: Vec<_> = (0..800).map(|_| link(server.local_addr(), options())).collect();
    let asked = links.iter().map(|link| call(link, a_read()));
    for answer in futures::future::join_all(asked).await {
        assert!(answer.is_ok(), "{answer:?}");
    }
    println!("{} connections, and a read over each, in {:?}", server.connections(), began.elapsed());
    assert_eq!((server.connections(), closed(&server, CloseReason::Unproved)), (800, 0));
    server.close().await;
}

/// Sessions are resumed, and those of one worker are of no use at another.
#[tokio::test(flavor = "multi_thread")]
async fn many_connections_come_at_once() {
    let cluster = Cluster::new();
    let servers = [cluster.worker(), cluster.server(&cluster.live(Role::Worker, "node2"))];
    let live = cluster.live(Role::Reader, "team-a");
    let links: Vec<_> = (0..64).map(|at| link(servers[at % 2].local_addr(), options_of(&live))).collect();
    futures::future::join_all(links.iter().map(|link| assert_serves(link))).await;
    for server in &servers {
        assert_eq!(closed(server, CloseReason::Unproved), 0);
        server.close().await;
    }
}
