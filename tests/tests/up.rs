//! What `forebay up` shows of a mount is its user's alone: it listens at no port, another user gets to none of its
//! sockets, and its web page is there only when it was asked for, and for who has its token.

use std::fs::Permissions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{
    Bucket, Mount, Setup, Tree, as_stranger, finish, forebay, is_long_run, is_root, ruled_out_by_mode, skipped,
};

const SOON: Duration = Duration::from_secs(30);

/// The run state of the mount, which every user may read.
fn run_state(mount: &Mount) -> String {
    let pid_file = mount.summary()["pid_file"].as_str().expect("a pid file");
    std::fs::read_to_string(Path::new(pid_file).with_extension("json")).expect("the run state")
}

/// The ports that the process listens at.
fn ports(mount: &Mount) -> Vec<u16> {
    let process = PathBuf::from(format!("/proc/{}", mount.pid()));
    let opened = std::fs::read_dir(process.join("fd")).expect("the process").map_while(Result::ok);
    let own: Vec<String> = opened
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let tables = ["net/tcp", "net/tcp6"].map(|table| std::fs::read_to_string(process.join(table)).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let listening = lines.filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // In the order of proc(5): local address, remote address, state, …, inode; 0A listens.
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let is_ours = *state == "0A" && own.iter().any(|own| own == inode);
        is_ours.then(|| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()).flatten()
    });
    listening.collect()
}

fn mounted(setup: impl FnOnce(Setup) -> Setup) -> (Bucket, Tree, Mount) {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 1 << 20);
    tree.put_into(&bucket, "");
    let mount = setup(Setup::of(&bucket)).up(&bucket);
    (bucket, tree, mount)
}

#[test]
fn up_listens_at_no_port_and_commands_reach_it() {
    let (_bucket, tree, mount) = mounted(|setup| setup);
    tree.verify(&mount.root());
    assert_eq!(ports(&mount), [0_u16; 0]);
    assert!(mount.summary()["page"].is_null() && mount.summary()["web"].is_null(), "{}", mount.summary());
    let listed = mount.ask(&["fs", "ls"]).succeeded().text();
    assert!(listed.contains("file00"), "{listed}");
    assert_eq!(mount.ask_of("file00", &["fs", "cat"]).succeeded().stdout.len(), 1 << 20);
    let _ = mount.ask(&["fs", "refresh"]).succeeded();
    assert!(mount.own_stats()["fuse"]["read_bytes"].as_u64() > Some(0));
    assert!(mount.counter("/worker/requests/read") > 0, "`fs cat` asked the worker");
    let _ = mount.ask(&["job", "load", "--submit", "--watch", "--path"]).succeeded();
}

/// `up` is ready when it says so: a job right behind it finds a coordinator that leads.
#[test]
fn a_job_right_behind_up_is_taken_every_time() {
    let bucket = Bucket::new();
    Tree::of_equal_files(1, 1 << 16).put_into(&bucket, "");
    let times = if is_long_run() { 100 } else { 3 };
    for _ in 0..times {
        let mount = Setup::of(&bucket).up(&bucket);
        // It waits for no leader.
        let _ = mount.ask(&["job", "load", "--submit", "--wait", "0s", "--path"]).succeeded();
    }
}

#[test]
fn another_user_gets_nothing_of_what_up_has() {
    let (_bucket, _tree, mount) = mounted(|setup| setup);
    let sockets = mount.sockets();
    let directory = sockets[0].parent().expect("a directory").to_owned();
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for socket in &sockets {
        assert_eq!((mode(socket), socket.parent()), (0o600, Some(&*directory)), "{}", socket.display());
    }
    let tried = as_stranger(move || {
        let connected = sockets.iter().map(|socket| UnixStream::connect(socket).err().map(|error| error.kind()));
        let entered = directory.read_dir().err().map(|error| error.kind());
        connected.chain([entered]).collect::<Vec<_>>()
    });
    let Some(tried) = tried else { return };
    assert_eq!(tried, [Some(ErrorKind::PermissionDenied); 4]);
}

#[test]
fn another_user_who_gets_to_a_socket_of_up_all_the_same_is_sent_away() {
    if !is_root() {
        return skipped("only root can open a way to the sockets");
    }
    let (_bucket, _tree, mount) = mounted(|setup| setup);
    let sockets = mount.sockets();
    // A second name where every user gets to, on the same file system, and for every user.
    let run_directory = sockets[0].parent().and_then(Path::parent).and_then(Path::parent).expect("a directory");
    let open = tempfile::tempdir_in(run_directory).expect("a directory");
    std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).expect("opening it");
    let ways: Vec<PathBuf> = (0..sockets.len()).map(|number| open.path().join(number.to_string())).collect();
    for (socket, way) in sockets.iter().zip(&ways) {
        if let Err(error) = std::fs::hard_link(socket, way) {
            return skipped(&format!("a socket has no second name here: {error}"));
        }
        std::fs::set_permissions(way, Permissions::from_mode(0o666)).expect("opening it");
    }
    let heard = as_stranger(move || {
        let hear = |way: &PathBuf| {
            let mut stream = UnixStream::connect(way).expect("the way is open");
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            let _ = stream.write_all(b"GET /api/v1/cluster HTTP/1.0\r\nhost: localhost\r\n\r\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut heard = Vec::new();
            let ended = stream.read_to_end(&mut heard).map_err(|error| error.kind());
            (heard, ended)
        };
        ways.iter().map(hear).collect::<Vec<_>>()
    });
    for (heard, ended) in heard.into_iter().flatten() {
        assert!(heard.is_empty(), "{}", String::from_utf8_lossy(&heard));
        assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    }
}

/// The status of the answer to a request with these lines.
fn status(address: SocketAddr, page: &str, lines: &str) -> u16 {
    let mut stream = TcpStream::connect(address).expect("connecting");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    write!(stream, "GET {page} HTTP/1.0\r\nhost: {address}\r\n{lines}\r\n").expect("asking");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {answer:?}"))
}

#[test]
fn the_web_page_of_up_is_for_who_has_its_token() {
    if ruled_out_by_mode("it speaks plain text to pages") {
        return;
    }
    let (_bucket, _tree, mount) = mounted(|setup| setup.flag("--web=0"));
    let url = mount.summary()["page"].as_str().expect("the page's URL");
    let (address, token) = url.trim_start_matches("http://").split_once("/#token=").expect("a token");
    let address: SocketAddr = address.parse().expect("an address");
    let metrics: SocketAddr = mount.summary()["web"].as_str().and_then(|web| web.parse().ok()).expect("an address");
    assert!(address.ip().is_loopback() && metrics.ip().is_loopback());
    let mut listening = ports(&mount);
    listening.sort_unstable();
    let mut expected = [address.port(), metrics.port()];
    expected.sort_unstable();
    assert_eq!(listening, expected);
    let authorization = format!("Authorization: Bearer {token}\r\n");
    for page in ["/api/v1/cluster", "/api/v1/openapi.json", "/metrics", "/stats", "/healthz", "/readyz"] {
        assert_eq!(status(address, page, ""), 401, "{page}");
        assert_eq!(status(address, page, "Authorization: Bearer 0\r\n"), 401, "{page}");
    }
    assert_eq!(status(address, "/", ""), 200, "the page itself has nothing to hide");
    assert_eq!((status(metrics, "/metrics", ""), status(metrics, "/stats", "")), (401, 401));
    assert_eq!(status(address, "/api/v1/cluster", &authorization), 200);
    assert_eq!(status(metrics, "/metrics", &authorization), 200);
    // Who may read these has not got the token.
    let log = std::fs::read_to_string(mount.log()).expect("the log");
    assert!(!run_state(&mount).contains(token) && !log.contains(token));
    let again = mounted(|setup| setup.flag("--web=0"));
    assert!(!again.2.summary()["page"].as_str().expect("a URL").contains(token), "each has its own");
}

#[test]
fn with_a_key_the_page_of_up_takes_its_token_all_the_same_and_its_user_needs_no_key_for_rest() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("cluster.key");
    let made = finish(forebay(&[]).args(["key", "create"]), SOON).succeeded().text();
    std::fs::write(&key, made).expect("writing the key");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("closing it to others");
    let settings = ["security.mode=key".to_owned(), format!("security.key_file={}", key.display())];
    let settings = settings.each_ref().map(String::as_str);
    let (_bucket, _tree, mount) = mounted(|setup| setup.flag("--web=0").options(&settings));
    let proving = settings.into_iter().flat_map(|setting| ["-o", setting]);
    let cat: Vec<&str> = ["fs", "cat"].into_iter().chain(proving).collect();
    assert_eq!(mount.ask_of("file00", &cat).succeeded().stdout.len(), 1 << 20, "who reads proves who it is");
    let _ = mount.ask(&["job", "load", "--submit", "--watch", "--path"]).succeeded();
    let url = mount.summary()["page"].as_str().expect("the page's URL");
    let (address, token) = url.trim_start_matches("http://").split_once("/#token=").expect("a token");
    let address: SocketAddr = address.parse().expect("an address");
    assert_eq!(status(address, "/api/v1/cluster", ""), 401);
    assert_eq!(status(address, "/api/v1/cluster", &format!("Authorization: Bearer {token}\r\n")), 200);
}
