//! The S3 endpoint as its clients see it: a real process in front of a worker, asked by a client that knows nothing of
//! Forebay, and by whoever reaches its port.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use forebay_e2e::{
    Bucket, Cluster, S3Key, S3Keys, S3Scene, Setup, assert_s3_refused, at, credentials, eventually, finish, forebay,
    ruled_out_by_mode, s3_status,
};
use forebay_testkit::DataSet;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::signer::{Method, Signer as _};
use object_store::{
    Error, GetOptions, GetRange, MultipartUpload as _, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, UpdateVersion,
};

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const BUCKET: &str = S3Scene::BUCKET;
const PLAIN: &str = "its clients speak plain text, and know no authority of the cluster";

#[test]
fn an_s3_client_reads_through_the_cache() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let (large, small) = (DataSet::new(1), DataSet::new(2));
    let size = 9 * MIB + 5;
    scene.bucket.put("train/large", large, size);
    scene.bucket.put("train/a-b", small, 10);
    scene.bucket.put("train/a/x y+ü", small, 10);
    scene.bucket.put("empty", small, 0);
    assert_eq!(large.first_difference(0, &scene.read("train/large")), None);
    let gets = scene.bucket.gets();
    assert_eq!(scene.read("train/large").len() as u64, size);
    assert_eq!(scene.bucket.gets(), gets, "it was cached");
    assert_eq!(small.first_difference(0, &scene.read("train/a/x y+ü")), None);
    assert!(scene.read("empty").is_empty());

    let client = scene.client();
    scene.run(async {
        let path = at("train/large");
        for range in [0..1, 4 * MIB - 1..4 * MIB + 1, MIB..8 * MIB, size - 1..size, size - 3..size + 100] {
            let bytes = client.get_range(&path, range.clone()).await.unwrap();
            assert_eq!(bytes.len() as u64, range.end.min(size) - range.start);
            assert_eq!(large.first_difference(range.start, &bytes), None, "{range:?}");
        }
        let of = |range| GetOptions { range: Some(range), ..GetOptions::default() };
        let tail = client.get_opts(&path, of(GetRange::Suffix(7))).await.unwrap();
        assert_eq!(tail.range, size - 7..size);
        assert_eq!(large.first_difference(size - 7, &tail.bytes().await.unwrap()), None);

        let listed = client.list_with_delimiter(Some(&at("train"))).await.unwrap();
        let prefixes: Vec<String> = listed.common_prefixes.iter().map(ToString::to_string).collect();
        let names: Vec<String> = listed.objects.iter().map(|object| object.location.to_string()).collect();
        assert_eq!(prefixes, ["train/a"]);
        assert_eq!(names, ["train/a-b", "train/large"]);
        let all: Vec<_> = client.list(None).map_ok(|object| object.location.to_string()).try_collect().await.unwrap();
        assert_eq!(all, ["empty", "train/a-b", "train/a/x y+ü", "train/large"], "in the order of keys");

        let head = client.head(&path).await.unwrap();
        assert_eq!(head.size, size);
        assert_eq!(head.e_tag, listed.objects[1].e_tag, "one tag in listings and answers");
        let missing = client.head(&at("train/none")).await.unwrap_err();
        assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
        let directory = client.head(&at("train")).await.unwrap_err();
        assert!(matches!(directory, Error::NotFound { .. }), "{directory}");
    });
    assert!(!scene.endpoint.log_text().contains("ERROR"), "what is not there is no error of ours");
}

#[test]
fn conditions_of_reads_hold_and_if_match_pins_a_version() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    // What is remembered is believed for long; a client that knows better is believed at once.
    let scene = S3Scene::with(&["metadata.ttl=1h"]);
    scene.bucket.put("k", DataSet::new(1), 100);
    let (client, path) = (scene.client(), at("k"));
    let head = scene.run(client.head(&path)).unwrap();
    let matching = |tag: &str| GetOptions { if_match: Some(tag.to_owned()), ..GetOptions::default() };
    let tag = head.e_tag.clone().unwrap();
    scene.run(client.get_opts(&path, matching(&tag))).unwrap();
    let other = scene.run(client.get_opts(&path, matching("\"other\""))).unwrap_err();
    assert!(matches!(other, Error::Precondition { .. }), "{other}");
    let known = GetOptions { if_none_match: Some(tag.clone()), ..GetOptions::default() };
    let same = scene.run(client.get_opts(&path, known)).unwrap_err();
    assert!(matches!(same, Error::NotModified { .. }), "{same}");
    let since = GetOptions { if_modified_since: Some(head.last_modified), ..GetOptions::default() };
    let unmodified = scene.run(client.get_opts(&path, since)).unwrap_err();
    assert!(matches!(unmodified, Error::NotModified { .. }), "{unmodified}");

    scene.bucket.put("k", DataSet::new(2), 200);
    let origin = scene.origin();
    let new_tag = scene.run(origin.head(&path)).unwrap().e_tag.unwrap();
    assert_ne!(new_tag, tag);
    let got = scene.run(async { client.get_opts(&path, matching(&new_tag)).await?.bytes().await }).unwrap();
    assert_eq!(DataSet::new(2).first_difference(0, &got), None);
    let old = scene.run(client.get_opts(&path, matching(&tag))).unwrap_err();
    assert!(matches!(old, Error::Precondition { .. }), "{old}");
}

#[test]
fn what_is_written_over_s3_is_at_the_origin_when_the_answer_comes() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let origin = scene.origin();
    let client = scene.client();
    let at_origin = |key: &str| {
        let (origin, path) = (&origin, at(key));
        scene.run(async move { origin.get(&path).await?.bytes().await }).map(|bytes| bytes.to_vec())
    };
    let data = DataSet::new(7);
    // One request, and one that goes on in parts.
    for (key, size) in [("put/small", 1000), ("put/large", 20 * MIB + 3), ("put/nothing", 0)] {
        let put = scene.run(client.put(&at(key), PutPayload::from(data.expected(0..size)))).unwrap();
        let bytes = at_origin(key).unwrap();
        assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (size, None), "{key}");
        assert_eq!(scene.run(client.head(&at(key))).unwrap().e_tag, put.e_tag, "{key}");
        assert_eq!(scene.read(key), bytes);
    }
    let path = at("put/parts");
    scene.run(async {
        let mut upload = client.put_multipart(&path).await.unwrap();
        for part in 0..3 {
            let bytes = data.expected(part * 6 * MIB..((part + 1) * 6 * MIB).min(13 * MIB));
            upload.put_part(PutPayload::from(bytes)).await.unwrap();
        }
        upload.complete().await.unwrap();
    });
    let bytes = at_origin("put/parts").unwrap();
    assert_eq!((bytes.len() as u64, data.first_difference(0, &bytes)), (13 * MIB, None));

    scene.run(client.copy(&path, &at("put/copy"))).unwrap();
    assert_eq!(at_origin("put/copy").unwrap(), bytes);
    scene.run(client.delete(&path)).unwrap();
    assert!(matches!(at_origin("put/parts").unwrap_err(), Error::NotFound { .. }));
    let gone = scene.run(client.head(&path)).unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    scene.run(client.delete(&path)).unwrap();

    // Of those who make an object only where there is none, one does.
    let path = at("put/new");
    let create = |number: u8| {
        let (client, path) = (&client, &path);
        let only_new = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        async move { client.put_opts(path, PutPayload::from(vec![number; 100]), only_new).await.map(|_| number) }
    };
    let created = scene.run(futures::future::join_all((0..8).map(create)));
    let made: Vec<u8> = created.iter().filter_map(|created| created.as_ref().ok().copied()).collect();
    let mut refused = created.iter().filter_map(|created| created.as_ref().err());
    assert_eq!(made.len(), 1, "{created:?}");
    assert!(refused.all(|error| matches!(error, Error::AlreadyExists { .. })), "{created:?}");
    assert_eq!(at_origin("put/new").unwrap(), vec![made[0]; 100]);
    // What could not be kept.
    let version = UpdateVersion { e_tag: Some("\"other\"".to_owned()), version: None };
    let update = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
    let refused = scene.run(client.put_opts(&path, PutPayload::from("x"), update)).unwrap_err();
    assert_eq!(at_origin("put/new").unwrap().len(), 100, "{refused}");
    assert_eq!(scene.bucket.server().uploads(), Vec::<String>::new());
}

#[test]
fn a_part_that_breaks_off_or_is_not_what_was_signed_makes_nothing() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    let put = scene.signed(Method::PUT, "broken");
    let wrong = format!("x-amz-content-sha256: {}", "0".repeat(64));
    let answer = scene.ask("PUT", &put, &["content-length: 3", &wrong], b"abc");
    assert!(s3_status(&answer) >= 400, "{answer}");
    let answer = scene.ask("PUT", &put, &["content-length: 3", "content-md5: AAAAAAAAAAAAAAAAAAAAAA=="], b"abc");
    assert_s3_refused(&answer, 400, "BadDigest");
    // The client leaves in the middle.
    let mut stream = TcpStream::connect(scene.endpoint.address()).unwrap();
    let (host, length) = (scene.endpoint.address(), 20 * MIB);
    let head = format!("PUT {put} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![7; 10 << 20]).unwrap();
    drop(stream);
    eventually("the upload that was begun is given up", SOON, || scene.bucket.server().uploads().is_empty());
    let origin = scene.origin();
    assert!(matches!(scene.run(origin.head(&at("broken"))).unwrap_err(), Error::NotFound { .. }));
    let answer = scene.ask("PUT", &put, &["content-length: 3"], b"abc");
    assert_eq!(s3_status(&answer), 200, "{answer}");
    assert_eq!(scene.read("broken"), b"abc");
}

#[test]
fn readers_over_s3_while_an_object_is_replaced_never_see_a_mix() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::with(&["metadata.ttl=0s"]);
    let size = 24 * MIB;
    scene.bucket.put("k", DataSet::new(0), size);
    let client = scene.client();
    let (mut whole, mut broken) = (0, 0);
    for round in 1..12 {
        let mut stream = scene.run(client.get(&at("k"))).unwrap().into_stream();
        let mut bytes = scene.run(stream.next()).unwrap().unwrap().to_vec();
        scene.bucket.put("k", DataSet::new(round), size);
        let rest: Result<Vec<_>, Error> = scene.run(stream.try_collect());
        match rest {
            Ok(rest) => {
                bytes.extend(rest.concat());
                assert_eq!(bytes.len() as u64, size, "a body that ends early is an error");
                whole += 1;
            }
            Err(_) => broken += 1,
        }
        let versions = (0..=round).filter(|version| DataSet::new(*version).first_difference(0, &bytes).is_none());
        assert_eq!(versions.count(), 1, "a mix after {whole} whole and {broken} broken answers");
    }
}

#[test]
fn a_key_does_what_its_role_lets_it_and_nothing_once_it_is_taken_away() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put("k", DataSet::new(1), 10);
    let path = at("k");
    let reader = scene.keys.add("reader", "team-a");
    let client = scene.client_of(&reader);
    eventually("the new key is known", SOON, || scene.run(client.head(&path)).is_ok());
    for refused in [
        scene.run(client.put(&path, PutPayload::from("x"))).map(|_| ()),
        scene.run(client.copy(&path, &at("copy"))),
        scene.run(client.put_multipart(&at("parts"))).map(|_| ()),
    ] {
        let refused = format!("{:?}", refused.unwrap_err());
        assert!(refused.contains("AccessDenied"), "{refused}");
    }
    // Several are deleted by one request, which tells what became of each.
    assert!(scene.run(client.delete(&path)).is_err());
    assert_eq!(DataSet::new(1).first_difference(0, &scene.read("k")), None);

    let wrong = S3Key { secret: "0".repeat(64), ..reader.clone() };
    let refused = scene.run(scene.client_of(&wrong).head(&path)).unwrap_err();
    assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused}");
    scene.keys.remove(&reader);
    eventually("the key is none any more", SOON, || scene.run(client.head(&path)).is_err());
    assert!(scene.run(scene.client().head(&path)).is_ok(), "others go on");
}

#[test]
fn whoever_signs_with_no_key_of_ours_gets_nothing_over_s3() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put("k", DataSet::new(1), 10);
    let target = format!("/{BUCKET}/k");
    assert_s3_refused(&scene.ask("GET", &target, &[], b""), 403, "AccessDenied");
    assert_s3_refused(&scene.ask("GET", "/", &[], b""), 403, "AccessDenied");
    assert_s3_refused(&scene.ask("GET", &target, &["authorization: AWS KEY:c2ln"], b""), 400, "InvalidRequest");
    assert_s3_refused(&scene.ask("GET", &target, &["authorization: Bearer token"], b""), 400, "InvalidRequest");
    let old = format!("{target}?AWSAccessKeyId=K&Signature=s&Expires=9999999999");
    assert_s3_refused(&scene.ask("GET", &old, &[], b""), 400, "InvalidRequest");
    // The origin's own key is none here.
    let server = scene.bucket.server();
    let foreign = S3Key { access: server.access_key().to_owned(), secret: server.secret_key().to_owned() };
    let refused = scene.run(scene.client_of(&foreign).head(&at("k"))).unwrap_err();
    assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused}");
    assert_eq!(scene.bucket.gets(), 0, "nobody was asked for it");
}

#[test]
fn a_signed_url_reads_and_writes_nothing_but_what_it_is_for() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put_text("k", "open");
    scene.bucket.put_text("secret", "hush");
    let get = scene.signed(Method::GET, "k");
    let answer = scene.ask("GET", &get, &[], b"");
    assert!(s3_status(&answer) == 200 && answer.ends_with("\r\n\r\nopen"), "{answer}");
    let part = scene.ask("GET", &get, &["range: bytes=1-2"], b"");
    assert!(s3_status(&part) == 206 && part.contains("content-range: bytes 1-2/4"), "{part}");

    assert_s3_refused(&scene.ask("GET", &get.replace("/k?", "/secret?"), &[], b""), 403, "SignatureDoesNotMatch");
    assert_eq!(s3_status(&scene.ask("PUT", &get, &["content-length: 1"], b"x")), 403);
    let overridden = format!("{get}&response-content-type=text%2Fhtml");
    assert_s3_refused(&scene.ask("GET", &overridden, &[], b""), 403, "SignatureDoesNotMatch");
    let put = scene.signed(Method::PUT, "copy");
    let copy = format!("x-amz-copy-source: /{BUCKET}/secret");
    assert_s3_refused(&scene.ask("PUT", &put, &[&copy, "content-length: 0"], b""), 403, "AccessDenied");

    let client = scene.client();
    let short = scene.run(client.signed_url(Method::GET, &at("k"), Duration::from_secs(1))).unwrap();
    let short = format!("{}?{}", short.path(), short.query().unwrap());
    eventually("the URL expires", SOON, || s3_status(&scene.ask("GET", &short, &[], b"")) == 403);
}

#[test]
fn requests_over_s3_that_make_no_sense_cost_nobody_else_anything() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let scene = S3Scene::start();
    scene.bucket.put_text("k", "open");
    let get = scene.signed(Method::GET, "k");
    // Paths that lead elsewhere, and whatever their signature says, are nothing.
    for path in
        ["/sets/../../etc/passwd", "/sets/%2e%2e/%2e%2e/etc/passwd", "/sets//etc/passwd", "/..%2f..", "//", "/%00"]
    {
        let answer = scene.ask("GET", path, &[], b"");
        assert!((400..=404).contains(&s3_status(&answer)), "{path}: {answer}");
    }
    let long = format!("x-long: {}", "x".repeat(1 << 20));
    let answer = scene.ask("GET", &get, &[&long], b"");
    assert!(answer.is_empty() || s3_status(&answer) >= 400, "{}", &answer[..answer.len().min(300)]);
    let many: Vec<String> = (0..500).map(|at| format!("x-{at}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let answer = scene.ask("GET", &get, &many, b"");
    assert!(answer.is_empty() || s3_status(&answer) >= 400, "{answer}");
    let put = scene.signed(Method::PUT, "huge");
    assert_s3_refused(&scene.ask("PUT", &put, &["content-length: 9223372036854775807"], b"x"), 400, "EntityTooLarge");
    let chunked = scene.ask("PUT", &put, &["transfer-encoding: chunked"], b"1\r\nx\r\n0\r\n\r\n");
    assert_s3_refused(&chunked, 411, "MissingContentLength");

    // Those who say nothing, and those who send no body, keep nobody waiting.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(scene.endpoint.address()).unwrap()).collect();
    let host = scene.endpoint.address();
    let head = format!("PUT {put} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 1000\r\n\r\n");
    let slow: Vec<_> = (0..20).map(|_| TcpStream::connect(scene.endpoint.address()).unwrap()).collect();
    slow.iter().for_each(|mut stream| stream.write_all(head.as_bytes()).unwrap());
    assert_eq!(scene.read("k"), b"open");
    drop((silent, slow));
    assert!(scene.endpoint.runs());
}

#[test]
fn who_serves_s3_has_keys_that_nobody_else_reads_and_says_what_it_demands() {
    let keys = S3Keys::new();
    let workers = ["--workers", "127.0.0.1:1"];
    let setup = || Setup::without_origin().argument(workers[0], workers[1]);
    setup().s3_that_ends().failed(2, &["has no keys", "forebay key s3"]);
    let named = credentials(&keys.path());
    setup().option(&named).s3_that_ends().failed(2, &["has no key in it"]);
    keys.add("reader", "team-a");
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    setup().option(&named).s3_that_ends().failed(2, &["chmod 600"]);
    if !ruled_out_by_mode("it listens beyond the machine") {
        let open = setup().argument("--listen", "0.0.0.0:0");
        open.s3_that_ends().failed(2, &["the S3 endpoint would listen at 0.0.0.0:0", "security.mode"]);
    }
    Setup::without_origin().option(&named).s3_that_ends().failed(2, &["no workers are named"]);
}

#[test]
fn with_a_mode_it_speaks_tls_and_access_lists_and_the_denied_count_for_who_signs() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let Some(cluster) = Cluster::start(1) else { return };
    let secrets = tempfile::tempdir().unwrap();
    let (key, settings) = (secrets.path().join("cluster.key"), secrets.path().join("forebay.toml"));
    let denied = secrets.path().join("denied");
    std::fs::write(&key, finish(forebay(&[]).args(["key", "create"]), SOON).succeeded().stdout).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&settings, format!("[security]\nmode = \"key\"\nkey_file = {key:?}\n")).unwrap();
    std::fs::write(&denied, "spiffe://forebay/forebay/forebay/reader/gone\n").unwrap();
    let part = |setup: Setup| setup.option("security.mode=key").option(&format!("security.key_file={}", key.display()));
    let worker = part(cluster.setup()).memory("128MiB").member("w1");
    let coordinator = part(cluster.setup()).coordinator();
    for team in ["team-a", "team-b"] {
        cluster.bucket.put_text(&format!("{team}/k"), team);
        let (at, origin) = (format!("/{team}"), format!("{}/{team}", cluster.bucket.url()));
        let address = coordinator.address();
        let mut add = forebay(&[]);
        add.args(["mounts", "add", &at, &origin, "--read", team, "--coordinator", &address, "--config"]);
        let _ = finish(add.arg(&settings).args(cluster.mount_options()), SOON).succeeded();
    }
    let keys = S3Keys::new();
    let [ours, theirs, gone] = ["team-a", "team-b", "gone"].map(|client| keys.add("reader", client));
    let denies = format!("security.denied_file={}", denied.display());
    let endpoint = part(cluster.setup()).option(&denies).s3([], &keys);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let get = |bucket: &str, key: &S3Key| {
        let client = endpoint.secure_client(bucket, key);
        runtime.block_on(async { client.get(&at("k")).await?.bytes().await })
    };
    eventually("the endpoint shows the mounts", SOON, || {
        get("team-a", &ours).is_ok() && get("team-b", &theirs).is_ok()
    });
    assert_eq!(&get("team-a", &ours).unwrap()[..], b"team-a");
    for (bucket, key) in [("team-b", &ours), ("team-a", &theirs), ("team-a", &gone), ("team-b", &gone)] {
        let refused = get(bucket, key).unwrap_err();
        assert!(matches!(refused, Error::PermissionDenied { .. }), "{bucket}: {refused}");
    }
    // Without etcd it knows no lists, and is no admin who passes those that the worker knows.
    let unaware = part(Setup::without_origin().option("block.size=256KiB")).s3([&worker], &keys);
    for bucket in ["team-a", "team-b"] {
        let client = unaware.secure_client(bucket, &ours);
        let refused = runtime.block_on(async { client.get(&at("k")).await }).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::PermissionDenied { .. }), "{bucket}: {refused}");
    }
    let mut plain = TcpStream::connect(endpoint.address()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(s3_status(&answer) == 400 && answer.contains("TLS"), "{answer}");
}

/// A client of an endpoint that has the origin as its one bucket.
fn client_at(address: SocketAddr, key: &S3Key) -> object_store::aws::AmazonS3 {
    object_store::aws::AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(forebay_e2e::BUCKET)
        .with_access_key_id(&key.access)
        .with_secret_access_key(&key.secret)
        .build()
        .unwrap()
}

#[test]
fn up_serves_its_origin_as_one_bucket() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let (bucket, keys) = (Bucket::new(), S3Keys::new());
    let key = keys.add("reader", "me");
    bucket.put_text("dir/k", "open");
    let port = forebay_testkit::ReservedPort::new().unwrap();
    let listens = format!("s3.port={}", port.address().port());
    let mount = Setup::of(&bucket).options(&[&listens, &credentials(&keys.path())]).up(&bucket);
    let client = client_at(port.address(), &key);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(async { client.get(&at("dir/k")).await?.bytes().await }).unwrap();
    assert_eq!(&read[..], b"open");
    assert_eq!(std::fs::read_to_string(mount.root().join("dir/k")).unwrap(), "open");
}

#[test]
fn a_worker_serves_what_it_caches_over_s3_too() {
    if ruled_out_by_mode(PLAIN) {
        return;
    }
    let (bucket, keys) = (Bucket::new(), S3Keys::new());
    let key = keys.add("reader", "me");
    let data = DataSet::new(7);
    bucket.put("dir/k", data, 3 * MIB);
    let port = forebay_testkit::ReservedPort::new().unwrap();
    let listens = format!("s3.port={}", port.address().port());
    let setup = Setup::of(&bucket).memory("128MiB").options(&[&listens, &credentials(&keys.path())]);
    let _worker = setup.worker(&bucket);
    let client = client_at(port.address(), &key);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = || runtime.block_on(async { client.get(&at("dir/k")).await?.bytes().await });
    eventually("the worker serves S3", SOON, || read().is_ok());
    let fetched = bucket.gets();
    let found = read().unwrap();
    assert_eq!((found.len() as u64, data.first_difference(0, &found)), (3 * MIB, None));
    assert_eq!(bucket.gets(), fetched, "what is cached is not fetched once more");
}

/// What `/readyz` of a listener for probes says.
fn readiness(address: SocketAddr) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    write!(stream, "GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn an_endpoint_is_ready_for_as_long_as_a_worker_answers() {
    let (bucket, keys) = (Bucket::new(), S3Keys::new());
    let _ = keys.add("reader", "me");
    let mut worker = Setup::of(&bucket).memory("128MiB").worker(&bucket);
    let port = forebay_testkit::ReservedPort::new().unwrap();
    let probes = format!("client.health.port={}", port.address().port());
    let _endpoint = Setup::without_origin().options(&[&probes]).s3([&worker], &keys);
    eventually("it is ready", SOON, || readiness(port.address()) == Some(200));
    worker.kill();
    eventually("it is not ready", SOON, || readiness(port.address()) == Some(503));
}
