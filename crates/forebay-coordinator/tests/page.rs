//! The web page in a real browser: it shows what the coordinator says, and takes names for text, whatever is in them.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use forebay_coordinator::api::Mount;
use forebay_coordinator::fake::FakeCache;
use forebay_coordinator::jobs::{JobSpec, LoadSpec};
use forebay_coordinator::{ApiClient, ClusterView, Coordinator, CoordinatorOptions};
use forebay_state::{FileOptions, FileStore};
use forebay_types::FsPath;
use serde_json::{Value, json};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(90);
/// What would change the page if it were taken for markup.
const NASTY: &str = "<img src=x onerror=\"document.title='taken'\">";

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
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--virtual-time-budget=12000", "--dump-dom"])
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
    let cache = Arc::new(FakeCache::new(4 << 20));
    cache.put("/s3/plain", 5 << 20, 0);
    // No file has a slash in its name.
    cache.put(&format!("/s3/{NASTY}"), 7 << 20, 0);
    let options = CoordinatorOptions::new("coordinator-0", "127.0.0.1:0".parse().unwrap(), "9.9.9");
    let coordinator = Coordinator::start(options, store, Arc::clone(&cache) as _, Arc::new(View)).await.unwrap();
    let client = ApiClient::new(&coordinator.address().to_string()).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let submit = JobSpec::Load(LoadSpec::new(FsPath::new(format!("/s3/{NASTY}")).unwrap()));
    while client.submit(&submit).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let options = [("note".to_owned(), NASTY.to_owned())].into();
    client.add_mount(&Mount { path: "/s3".into(), origin: "s3://bucket".into(), options }).await.unwrap();
    // Plots have something to show after two samples.
    while client.series(forebay_coordinator::Window::Recent).await.unwrap().points.len() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "no samples come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let page = dom(browser, &format!("http://{}/", coordinator.address())).await;
    for shown in
        ["coordinator-0 · 9.9.9", "w1", "draining", "128 GiB", "s3://bucket", "as of ", "<path class=\"memory\""]
    {
        assert!(page.contains(shown), "`{shown}` is not on the page: {page}");
    }
    // In a warning, a group, a job, a mount and a hot file.
    assert!(page.matches("&lt;img src=x").count() >= 5, "{page}");
    assert!(!page.contains("<img"), "a name was taken for markup: {page}");
    assert!(page.contains("<title>Forebay</title>"));
    coordinator.close().await;
}
