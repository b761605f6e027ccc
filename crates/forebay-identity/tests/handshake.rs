//! Attacks on identities: each in a handshake between two real ends of TLS, over buffers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use forebay_identity::testing::{HOUR, hostile_client};
use forebay_identity::{
    Authority, ClusterKey, Credentials, Identity, IdentityError, LiveIdentity, Material, Peer, Reload, Scope, Settings,
    Side, Source, Trust, Watch, certificates_pem, client_config, http_client_config, http_server_config, reason,
    server_config,
};
use forebay_types::Role;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

fn now() -> SystemTime {
    SystemTime::now()
}

fn scope() -> Scope {
    Scope::new("example.org", "prod").unwrap()
}

fn authorities(key: &ClusterKey, scope: &Scope) -> Vec<CertificateDer<'static>> {
    Role::ALL.map(|role| key.authority(scope, role).unwrap().certificate().clone()).to_vec()
}

fn trust(key: &ClusterKey, scope: &Scope) -> Trust {
    Trust::new(scope.clone(), &authorities(key, scope), []).unwrap()
}

fn issue(authority: &Authority, name: &str) -> Credentials {
    authority.issue(name, now() - HOUR, now() + HOUR).unwrap()
}

/// An end that is in order.
fn end(key: &ClusterKey, role: Role, name: &str) -> Arc<LiveIdentity> {
    let credentials = issue(&key.authority(&scope(), role).unwrap(), name);
    LiveIdentity::new(Material::new(credentials, trust(key, &scope()), now()).unwrap())
}

/// What each end knows of the other, or why it left.
type Ends = (Result<Peer, String>, Result<Peer, String>);

/// Carries the handshake through, and a byte in both directions.
fn shake(client: ClientConfig, believes: &LiveIdentity, server: &Arc<LiveIdentity>) -> Ends {
    shake_with(client, believes, server_config(server, &[b"x"]).unwrap(), server)
}

fn shake_with(client: ClientConfig, believes: &LiveIdentity, listens: ServerConfig, server: &LiveIdentity) -> Ends {
    let name = ServerName::try_from("worker").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server_end = ServerConnection::new(Arc::new(listens)).unwrap();
    let (mut client_failed, mut server_failed) = (None, None);
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut read = &wire[..];
        while !read.is_empty() && server_failed.is_none() {
            server_end.read_tls(&mut read).unwrap();
            server_failed = server_end.process_new_packets().err().map(|error| reason(&error));
        }
        let mut wire = Vec::new();
        while server_end.wants_write() {
            server_end.write_tls(&mut wire).unwrap();
        }
        let mut read = &wire[..];
        while !read.is_empty() && client_failed.is_none() {
            client.read_tls(&mut read).unwrap();
            client_failed = client.process_new_packets().err().map(|error| reason(&error));
        }
    }
    let seen = |chain: Option<&[CertificateDer<'_>]>, live: &LiveIdentity, side| {
        live.material().trust().verify(chain.unwrap_or_default(), side, now()).map_err(|error| error.to_string())
    };
    let by_client = match client_failed {
        Some(error) => Err(error),
        None if client.is_handshaking() => Err("not ended".to_owned()),
        None => seen(client.peer_certificates(), believes, Side::Server),
    };
    let by_server = match server_failed {
        Some(error) => Err(error),
        None if server_end.is_handshaking() => Err("not ended".to_owned()),
        None => seen(server_end.peer_certificates(), server, Side::Client),
    };
    (by_client, by_server)
}

fn meet(client: &Arc<LiveIdentity>, server: &Arc<LiveIdentity>) -> Ends {
    shake(client_config(client, &[b"x"]).unwrap(), client, server)
}

/// How a worker in order answers somebody who presents these credentials.
fn refusal(key: &ClusterKey, credentials: Option<&Credentials>) -> String {
    let worker = end(key, Role::Worker, "node1");
    let (_, by_worker) = shake(hostile_client(credentials, &[]), &worker, &worker);
    by_worker.expect_err("believed")
}

#[test]
fn two_of_one_cluster_know_each_other_by_name() {
    let key = ClusterKey::generate().unwrap();
    let (reader, worker) = (end(&key, Role::Reader, "team-a"), end(&key, Role::Worker, "node1"));
    let (by_client, by_server) = meet(&reader, &worker);
    assert_eq!(by_client.unwrap().identity.to_string(), "spiffe://example.org/forebay/prod/worker/node1");
    assert_eq!(by_server.unwrap().identity.to_string(), "spiffe://example.org/forebay/prod/reader/team-a");
}

#[test]
fn another_key_is_of_no_use() {
    let key = ClusterKey::generate().unwrap();
    let other = ClusterKey::generate().unwrap().authority(&scope(), Role::Admin).unwrap();
    let refused = refusal(&key, Some(&issue(&other, "mallory")));
    assert!(refused.contains("no authority for role admin"), "{refused}");
}

#[test]
fn no_certificate_is_no_admission() {
    let refused = refusal(&ClusterKey::generate().unwrap(), None);
    assert!(refused.contains("certificate"), "{refused}");
}

#[test]
fn the_right_key_of_another_cluster_is_a_stranger() {
    let key = ClusterKey::generate().unwrap();
    for other in [Scope::new("example.org", "test").unwrap(), Scope::new("example.com", "prod").unwrap()] {
        let credentials = issue(&key.authority(&other, Role::Admin).unwrap(), "mallory");
        let refused = refusal(&key, Some(&credentials));
        assert!(refused.contains("another cluster"), "{refused}");
    }
}

#[test]
fn time_is_kept() {
    let key = ClusterKey::generate().unwrap();
    let authority = key.authority(&scope(), Role::Reader).unwrap();
    let expired = authority.issue("late", now() - 2 * HOUR, now() - HOUR).unwrap();
    let refused = refusal(&key, Some(&expired));
    assert!(refused.contains("has expired"), "{refused}");
    let early = authority.issue("early", now() + HOUR, now() + 2 * HOUR).unwrap();
    let refused = refusal(&key, Some(&early));
    assert!(refused.contains("not valid yet"), "{refused}");
    assert!(authority.issue("never", now(), now() - HOUR).is_err());
}

#[test]
fn who_is_denied_is_out_though_the_certificate_is_good() {
    let key = ClusterKey::generate().unwrap();
    let (reader, worker) = (end(&key, Role::Reader, "team-a"), end(&key, Role::Worker, "node1"));
    let name: Identity = reader.material().identity().clone();
    let denying = Trust::new(scope(), &authorities(&key, &scope()), [name]).unwrap();
    let credentials = issue(&key.authority(&scope(), Role::Worker).unwrap(), "node1");
    worker.replace(Material::new(credentials, denying, now()).unwrap());
    let (_, by_server) = meet(&reader, &worker);
    assert!(by_server.unwrap_err().contains("is denied"));
}

/// A session that began before somebody was denied does not bring it back in.
#[test]
fn a_resumed_session_is_judged_anew() {
    let key = ClusterKey::generate().unwrap();
    let (reader, worker) = (end(&key, Role::Reader, "team-a"), end(&key, Role::Worker, "node1"));
    meet(&reader, &worker).1.unwrap();
    let chain = issue(&key.authority(&scope(), Role::Reader).unwrap(), "team-a").chain().to_vec();
    let trust = |denied: Option<Identity>| Trust::new(scope(), &authorities(&key, &scope()), denied).unwrap();
    assert!(trust(None).verify(&chain, Side::Client, now()).is_ok());
    let name = reader.material().identity().clone();
    assert!(matches!(trust(Some(name)).verify(&chain, Side::Client, now()), Err(IdentityError::Denied(_))));
    assert!(matches!(trust(None).verify(&chain, Side::Client, now() + 3 * HOUR), Err(IdentityError::Expired(_))));
}

#[test]
fn an_impostor_is_seen_by_who_connects() {
    let key = ClusterKey::generate().unwrap();
    let (reader, impostor) = (end(&key, Role::Reader, "team-a"), end(&key, Role::Reader, "mallory"));
    // Another reader is of the cluster, so TLS lets it stand; that it is no worker is plain to see.
    let (by_client, _) = meet(&reader, &impostor);
    assert_eq!(by_client.unwrap().identity.role(), Role::Reader);
    let stranger = ClusterKey::generate().unwrap();
    let (by_client, _) = meet(&reader, &end(&stranger, Role::Worker, "node1"));
    assert!(by_client.unwrap_err().contains("no authority"));
}

/// A browser has no certificate, and shows something else. One that is shown has to be good.
#[test]
fn an_http_listener_goes_on_with_who_has_no_certificate_and_with_no_false_one() {
    let key = ClusterKey::generate().unwrap();
    let coordinator = end(&key, Role::Coordinator, "c1");
    let asked_by = |client| {
        let listens = http_server_config(&coordinator).unwrap();
        shake_with(client, &coordinator, listens, &coordinator).1
    };
    assert!(
        asked_by(hostile_client(None, &[])).unwrap_err().contains("no certificate"),
        "nobody is at the other end, by name"
    );
    let stranger = issue(&ClusterKey::generate().unwrap().authority(&scope(), Role::Admin).unwrap(), "mallory");
    assert!(asked_by(hostile_client(Some(&stranger), &[])).unwrap_err().contains("no authority"));
    let admin = end(&key, Role::Admin, "alice");
    let seen = asked_by(http_client_config(&admin, Some(Role::Coordinator)).unwrap()).unwrap();
    assert_eq!((seen.identity.role(), seen.identity.name()), (Role::Admin, "alice"));
}

#[test]
fn who_means_a_coordinator_goes_on_with_no_reader() {
    let key = ClusterKey::generate().unwrap();
    let (admin, reader) = (end(&key, Role::Admin, "alice"), end(&key, Role::Reader, "mallory"));
    let reached = |expects| {
        let client = http_client_config(&admin, expects).unwrap();
        shake_with(client, &admin, http_server_config(&reader).unwrap(), &reader).0
    };
    let refused = reached(Some(Role::Coordinator)).unwrap_err();
    assert!(refused.contains("mallory` listens there, and no coordinator"), "{refused}");
    assert_eq!(reached(None).unwrap().identity.role(), Role::Reader);
}

fn write(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

fn key_settings(file: PathBuf) -> Settings {
    let source =
        Source::Key { file, role: Role::Worker, name: "node1".to_owned(), hosts: Vec::new(), lifetime: 24 * HOUR };
    Settings { scope: scope(), source, also: None, denied: None }
}

#[test]
fn a_key_is_replaced_without_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    let (old, new) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
    write(&path, &old.to_pem(), 0o600);
    let (mut watch, material) = Watch::begin(key_settings(path.clone()), now()).unwrap();
    let live = LiveIdentity::new(material);
    assert!(matches!(watch.look(now()), Reload::Unchanged));

    // Nodes get the file one after the other: those of one step meet those of the next.
    let (of_old, of_new) = (old.to_pem(), new.to_pem());
    let steps =
        [of_old.to_string(), format!("{}{}", *of_old, *of_new), format!("{}{}", *of_new, *of_old), of_new.to_string()];
    let ahead = directory.path().join("ahead.key");
    let node = |file: &Path, text: &str| {
        write(file, text, 0o600);
        LiveIdentity::new(Watch::begin(key_settings(file.to_owned()), now()).unwrap().1)
    };
    for pair in steps.windows(2) {
        if pair[0] != steps[0] {
            write(&path, &pair[0], 0o600);
            let Reload::New(material) = watch.look(now()) else { panic!("not seen") };
            live.replace(*material);
        }
        let next = node(&ahead, &pair[1]);
        for (client, worker) in [(&live, &next), (&next, &live)] {
            let (by_client, by_worker) = meet(client, worker);
            assert!(by_client.is_ok() && by_worker.is_ok(), "{by_client:?} {by_worker:?}");
        }
    }
    let (first, last) = (node(&ahead, &steps[0]), node(&directory.path().join("last.key"), &steps[3]));
    assert!(meet(&first, &last).1.is_err() && meet(&last, &first).1.is_err());
}

#[test]
fn what_was_good_stays_while_files_are_wrong_and_it_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    let key = ClusterKey::generate().unwrap();
    write(&path, &key.to_pem(), 0o600);
    let (mut watch, _) = Watch::begin(key_settings(path.clone()), now()).unwrap();
    write(&path, &key.to_pem()[..40], 0o600);
    assert!(matches!(watch.look(now()), Reload::Refused(_)));
    assert!(matches!(watch.look(now()), Reload::Unchanged));
    write(&path, &key.to_pem(), 0o644);
    let Reload::Refused(error) = watch.look(now()) else { panic!("not seen") };
    assert!(error.to_string().contains("chmod 600"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(watch.look(now()), Reload::Refused(_)));
    write(&path, &key.to_pem(), 0o600);
    assert!(matches!(watch.look(now()), Reload::Unchanged));
}

#[test]
fn a_certificate_of_our_own_is_renewed_when_half_of_its_time_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    write(&path, &ClusterKey::generate().unwrap().to_pem(), 0o600);
    let began = now();
    let (mut watch, material) = Watch::begin(key_settings(path), began).unwrap();
    assert!(material.until() > began + 23 * HOUR);
    assert!(matches!(watch.look(began + 11 * HOUR), Reload::Unchanged));
    let Reload::New(renewed) = watch.look(began + 12 * HOUR) else { panic!("not renewed") };
    assert!(renewed.until() > began + 35 * HOUR);
    assert!(matches!(watch.look(began + 13 * HOUR), Reload::Unchanged));
}

#[test]
fn files_of_others_are_checked_as_a_pair() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let key = ClusterKey::generate().unwrap();
    let workers = key.authority(&scope(), Role::Worker).unwrap();
    let (first, second) = (issue(&workers, "node1"), issue(&workers, "node1"));
    write(&at("tls.crt"), &first.chain_pem(), 0o644);
    write(&at("tls.key"), &first.key_pem(), 0o600);
    write(&at("ca.crt"), &certificates_pem(&authorities(&key, &scope())), 0o644);
    let source = Source::Files { certificate: at("tls.crt"), key: at("tls.key"), authorities: at("ca.crt") };
    let settings = Settings { scope: scope(), source, also: None, denied: Some(at("denied")) };
    assert!(Watch::begin(settings.clone(), now()).is_err(), "a file of the denied that is not there denies nobody");
    write(&at("denied"), "# nobody yet\n", 0o644);
    let (mut watch, material) = Watch::begin(settings.clone(), now()).unwrap();
    assert_eq!(material.identity().name(), "node1");

    // Half of the new pair is there.
    write(&at("tls.crt"), &second.chain_pem(), 0o644);
    let Reload::Refused(error) = watch.look(now()) else { panic!("not seen") };
    assert!(error.to_string().contains("are no pair"), "{error}");
    write(&at("tls.key"), &second.key_pem(), 0o600);
    assert!(matches!(watch.look(now()), Reload::New(_)));

    // Somebody is denied from now on.
    write(&at("denied"), "spiffe://example.org/forebay/prod/reader/team-a # left\n", 0o644);
    let Reload::New(material) = watch.look(now()) else { panic!("not seen") };
    assert!(material.trust().denies(&scope().identity(Role::Reader, "team-a").unwrap()));
    write(&at("denied"), "team-b\n", 0o644);
    let Reload::Refused(error) = watch.look(now()) else { panic!("not seen") };
    assert!(error.to_string().contains("`team-b` is no identity"), "{error}");

    // A certificate that others would not believe is of no use to its owner.
    write(&at("denied"), "", 0o644);
    let strangers = ClusterKey::generate().unwrap();
    write(&at("ca.crt"), &certificates_pem(&authorities(&strangers, &scope())), 0o644);
    let Reload::Refused(error) = watch.look(now()) else { panic!("not seen") };
    assert!(error.to_string().contains("would be refused by others"), "{error}");
}

/// Only what speaks TLS 1.3 gets an answer.
#[test]
fn nothing_older_is_spoken() {
    let worker = end(&ClusterKey::generate().unwrap(), Role::Worker, "node1");
    for config in [server_config(&worker, &[b"x"]).unwrap(), http_server_config(&worker).unwrap()] {
        for (what, sent) in [
            ("plain text", &b"GET / HTTP/1.1\r\n\r\n"[..]),
            ("a hello of TLS 1.2", &hello_of_tls12()[..]),
            ("a hello of Forebay", b"FBAY\x01\x00\x00\x00\x00\x00\x00\x00"),
        ] {
            let mut server = ServerConnection::new(Arc::new(config.clone())).unwrap();
            let _ = server.read_tls(&mut &sent[..]);
            assert!(server.process_new_packets().is_err(), "{what}");
        }
    }
}

/// ClientHello without the extension `supported_versions` (RFC 5246, 7.4.1.2), as clients before TLS 1.3 send it.
fn hello_of_tls12() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    body.extend([0, 2, 0xc0, 0x2b, 1, 0]);
    // supported_groups: x25519; signature_algorithms: ed25519, ecdsa_secp256r1_sha256
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 6, 0, 4, 8, 7, 4, 3];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut message = vec![1, 0, 0, body.len() as u8];
    message.extend(body);
    let mut record = vec![22, 3, 1, 0, message.len() as u8];
    record.extend(message);
    record
}
