//! The web page in a real browser: it shows what the coordinator says, and takes names for text, whatever is in them.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use forebay_coordinator::api::Mount;
use forebay_coordinator::fake::FakeCache;
use forebay_coordinator::jobs::{JobSpec, LoadSpec};
use forebay_coordinator::{ApiClient, ClusterView, Coordinator, CoordinatorOptions};
use forebay_state::{FileOptions, FileStore, StateStore as _, Transaction, encode_segment};
use forebay_types::FsPath;
use serde_json::{Value, json};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(90);
/// What would change the page if it were taken for markup.
const NASTY: &str = "<img src=x onerror=\"document.title='taken'\">";

/// Puts into the title how wide the page is, and how wide it would like to be.
const MEASURE: &str = "<script>setInterval(() => {
  const parts = [document.documentElement, ...document.querySelectorAll('.scroll')];
  document.title = `cut: ${parts.filter((part) => part.scrollWidth > part.clientWidth).length}, ${innerWidth} wide`;
}, 100)</script></body>";

/// A coordinator's page of these members, and of `cache`, with the same once more at `/measured`.
async fn serving(members: Vec<Value>, cache: Arc<FakeCache>, directory: &std::path::Path) -> Coordinator {
    let store = Arc::new(FileStore::open(directory, FileOptions::default()).await.unwrap());
    let page = include_str!("../web/index.html").replace("</body>", MEASURE);
    let page = move || async move { ([(axum::http::header::CONTENT_TYPE, "text/html; charset=utf-8")], page) };
    let mut options =
        CoordinatorOptions::new("127.0.0.1:19999", "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(), "9.9.9");
    options.pages = axum::Router::new().route("/measured", axum::routing::get(page));
    options.mounts =
        vec![Mount { path: "/".into(), origin: "s3://training-data/2026".into(), options: [].into(), acl: None }];
    Coordinator::start(options, store, cache, Arc::new(Members(members))).await.unwrap()
}

struct Members(Vec<Value>);

#[async_trait::async_trait]
impl ClusterView for Members {
    async fn status(&self) -> Value {
        json!({ "name": "gpu-cluster", "members": self.0, "warnings": [] })
    }
}

/// The page is right, and nothing of it is cut, in a narrow window and in a wide one. With `FOREBAY_TEST_PICTURE`, a directory,
/// pictures of it are kept there.
async fn assert_page(browser: &str, coordinator: &Coordinator, name: &str, contents: &[&str]) {
    let address = coordinator.address().unwrap();
    for width in [500, 1280] {
        let size = format!("--window-size={width},1400");
        let page = shown(browser, &format!("http://{address}/measured"), &["--dump-dom", &size]).await;
        for expected in contents {
            assert!(page.contains(expected), "{name}, {width}: `{expected}` is not on the page: {page}");
        }
        let title = page.split("<title>").nth(1).unwrap().split('<').next().unwrap();
        assert_eq!(title, format!("cut: 0, {width} wide"), "{name}: {page}");
        if let Some(directory) = std::env::var_os("FOREBAY_TEST_PICTURE") {
            let picture = std::path::Path::new(&directory).join(format!("{name}-{width}.png"));
            let picture = format!("--screenshot={}", picture.display());
            shown(browser, &format!("http://{address}/"), &[&picture, &size]).await;
        }
    }
}

/// What a worker says of itself that served so many bytes.
fn counters(number: u64, served: u64) -> Value {
    let listener = |port: u64| json!({ "card": format!("mlx5_{port}:1"), "connections": number });
    json!({
        "version": "9.9.9",
        "worker": { "bytes_memory": 7 * served, "bytes_disk": 2 * served, "bytes_origin": served },
        "store": {
            "memory": { "capacity": 64u64 << 30, "used": (number << 30) / 2 },
            "disks": [{ "capacity": 1u64 << 40, "used": number << 35 }, { "capacity": 1u64 << 40, "used": number << 34 }],
        },
        "rdma": { "listeners": [listener(0), listener(1)] },
        "origins": [{ "path": "/", "opened": number != 3 }],
        "hottest": [{ "path": format!("/models/shard-{number:05}-of-00020.safetensors"), "bytes_per_minute": number << 20 }],
    })
}

fn named(number: u64) -> String {
    format!("cache-node-{number}.pod.internal.example.org:29999")
}

fn member(number: u64) -> Value {
    json!({
        "name": named(number), "group": if number <= 12 { "training" } else { "inference" }, "state": "active",
        "share": 0.05, "version": "9.9.9", "capacity": { "memory": 64u64 << 30, "disk": 2u64 << 40 },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_no_worker_of_one_and_of_twenty_tells_the_truth_and_is_not_cut() {
    let Some(browser) = browser().await else {
        let _ = writeln!(std::io::stderr(), "skipped: no Chromium is installed (apt-get install chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    for count in [0, 1, 20u64] {
        let (name, cache) = (format!("page-{count}"), Arc::new(FakeCache::new(4 << 20)));
        cache.set_workers(Vec::new());
        let members = (1..=count).map(member).collect();
        let state = directory.path().join(&name);
        std::fs::create_dir(&state).unwrap();
        let coordinator = serving(members, Arc::clone(&cache), &state).await;
        let client = ApiClient::new(&coordinator.address().unwrap().to_string()).unwrap();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut served = 0;
        // A line has two ends at least.
        while client.series(forebay_coordinator::Window::Recent).await.unwrap().points.len() < 4 {
            served += 50 << 20;
            // One of them is away.
            let answer = |number| match number {
                20 => Err(forebay_types::Failure::new(forebay_types::FailureKind::Unavailable, "connection refused")),
                number => Ok(counters(number, served)),
            };
            cache.set_workers((1..=count).map(|number| (named(number).into(), answer(number))));
            assert!(tokio::time::Instant::now() < deadline, "no samples come");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let always = ["gpu-cluster · 127.0.0.1:19999 · 9.9.9", "s3://training-data/2026", "the last ", "No jobs."];
        let more: &[&str] = match count {
            0 => &["0 active of 0", "No worker is known.", "not offered", "Nothing was read"],
            1 => &[
                "1 active of 1",
                "512 MiB of 64 GiB",
                "48 GiB of 2 TiB",
                "2 paths, 2 connections",
                "training",
                "90.0 %",
            ],
            _ => &[
                "20 active of 20",
                "inference, training",
                "95 GiB of 1.3 TiB",
                "does not answer",
                "mlx5_1:1 (19)",
                "<circle class=\"memory\"",
                "25 %",
                "shard-00019-of-00020",
                "cannot be opened on cache-node-3.pod.internal.example.org:29999: ",
            ],
        };
        assert_page(browser, &coordinator, &name, &[&always[..], more].concat()).await;
        coordinator.close().await;
    }
}

struct View;

#[async_trait::async_trait]
impl ClusterView for View {
    async fn status(&self) -> Value {
        let member = |name: &str, state: &str| {
            json!({ "name": name, "group": NASTY, "state": state, "share": 0.5, "version": "9.9.9",
                    "capacity": { "memory": 64u64 << 30, "disk": 1u64 << 40 } })
        };
        json!({ "members": [member("w1", "active"), member("w2", "draining")], "warnings": [NASTY] })
    }
}

/// The first browser that is installed.
async fn browser() -> Option<&'static str> {
    for name in ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"] {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        if version.is_ok_and(|status| status.success()) {
            return Some(name);
        }
    }
    None
}

/// The page as the browser has it after a few seconds of its own time.
async fn dom(browser: &str, url: &str) -> String {
    shown(browser, url, &["--dump-dom"]).await
}

async fn shown(browser: &str, url: &str, arguments: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"])
        .arg("--virtual-time-budget=12000")
        .args(arguments)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the browser does not end").unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_cluster_and_takes_no_name_for_markup() {
    let Some(browser) = browser().await else {
        // Past the test harness, which shows what it captured of failed tests only.
        let _ = writeln!(std::io::stderr(), "skipped: no Chromium is installed (apt-get install chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::open(directory.path(), FileOptions::default()).await.unwrap());
    // A worker that was asked to leave, and did.
    let drained = Transaction::new().put(format!("drains/{}", encode_segment(NASTY)), "{}");
    store.commit(drained).await.unwrap();
    let cache = Arc::new(FakeCache::new(4 << 20));
    cache.put("/s3/plain", 5 << 20, 0);
    // No file has a slash in its name.
    cache.put(&format!("/s3/{NASTY}"), 7 << 20, 0);
    let options =
        CoordinatorOptions::new("coordinator-0", "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(), "9.9.9");
    let coordinator = Coordinator::start(options, store, Arc::clone(&cache) as _, Arc::new(View)).await.unwrap();
    let client = ApiClient::new(&coordinator.address().unwrap().to_string()).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let submit = JobSpec::Load(LoadSpec::new(FsPath::new(format!("/s3/{NASTY}")).unwrap()));
    while client.submit(&submit).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let options = [("note".to_owned(), NASTY.to_owned())].into();
    client.add_mount(&Mount { path: "/s3".into(), origin: "s3://bucket".into(), options, acl: None }).await.unwrap();
    // Plots have something to show after two samples.
    while client.series(forebay_coordinator::Window::Recent).await.unwrap().points.len() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "no samples come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let page = dom(browser, &format!("http://{}/", coordinator.address().unwrap())).await;
    for shown in [
        "coordinator-0 · 9.9.9",
        "w1",
        "draining",
        "not there",
        "128 GiB",
        "s3://bucket",
        "as of ",
        "<path class=\"memory\"",
    ] {
        assert!(page.contains(shown), "`{shown}` is not on the page: {page}");
    }
    // In a warning, a group, a drain, a job, a mount and a hot file.
    assert!(page.matches("&lt;img src=x").count() >= 6, "{page}");
    assert!(!page.contains("<img"), "a name was taken for markup: {page}");
    assert!(page.contains("<title>Forebay</title>"));
    coordinator.close().await;
}

/// What asked for the page and for what it shows: the address, and what it proved with.
type Asked = Arc<forebay_locks::Mutex<Vec<(String, Option<String>)>>>;

/// The page, before an interface that answers to one token alone. (The real interface speaks TLS, and asks for a certificate or for the
/// token: `tests/tests/http_access.rs`.)
async fn page_that_needs(token: &'static str) -> (std::net::SocketAddr, Asked) {
    use axum::http::{StatusCode, header};
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    let answer = move |request: axum::extract::Request| {
        let shown = request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let is_good = shown.as_deref() == Some(&*format!("Bearer {token}"));
        seen.lock().push((request.uri().to_string(), shown));
        let mounts = r#"{"mounts":[{"path":"/s3","origin":"s3://behind-a-token"}],"configured":[]}"#;
        let refused = r#"{"error":{"message":"no","remedy":"none"}}"#;
        let (status, media_type, text) = match (request.uri().path(), is_good) {
            ("/", _) => (StatusCode::OK, "text/html; charset=utf-8", include_str!("../web/index.html")),
            ("/forebay.css", _) => (StatusCode::OK, "text/css; charset=utf-8", include_str!("../web/forebay.css")),
            ("/forebay.js", _) => (StatusCode::OK, "text/javascript; charset=utf-8", include_str!("../web/forebay.js")),
            ("/api/v1/mounts", true) => (StatusCode::OK, "application/json", mounts),
            (_, true) => (StatusCode::NOT_FOUND, "application/json", refused),
            (_, false) => (StatusCode::UNAUTHORIZED, "application/json", refused),
        };
        std::future::ready((status, [(header::CONTENT_TYPE, media_type)], text))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    (address, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_token_of_its_fragment_in_a_header_and_nowhere_else() {
    let Some(browser) = browser().await else {
        let _ = writeln!(std::io::stderr(), "skipped: no Chromium is installed (apt-get install chromium)");
        return;
    };
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let (address, asked) = page_that_needs(TOKEN).await;
    let page = dom(browser, &format!("http://{address}/")).await;
    assert!(page.contains("asks for a token") && !page.contains("behind-a-token"), "{page}");
    let page = dom(browser, &format!("http://{address}/#token={TOKEN}")).await;
    assert!(page.contains("s3://behind-a-token") && !page.contains(TOKEN), "{page}");
    let asked = asked.lock();
    assert!(asked.iter().all(|(uri, _)| !uri.contains(TOKEN)), "{asked:?}");
    let shown = asked.iter().filter(|(_, shown)| shown.is_some());
    assert!(shown.clone().count() > 0 && shown.clone().all(|(uri, _)| uri.starts_with("/api/v1/")), "{asked:?}");
}
