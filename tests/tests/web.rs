//! The coordinator's web page in a browser: what it shows is what there is, and it asks nothing but the coordinator.

use std::time::Duration;

use forebay_e2e::{Bucket, Setup, Tree, browser, eventually, finish, forebay, page};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn the_web_page_shows_the_cluster_its_jobs_mounts_and_files_in_a_browser() {
    let Some(browser) = browser() else { return };
    let bucket = Bucket::new();
    let mut tree = Tree::default();
    tree.add("dir/<b>not bold & \"quoted\"</b>.bin", 9 << 20);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).flag("--web=0").up(&bucket);
    let coordinator = mount.summary()["coordinator"].as_str().expect("the coordinator's address").to_owned();
    let job = |arguments: &[&str]| {
        let mut command = forebay(&[]);
        finish(command.args(arguments).args(["--coordinator", &coordinator]), SOON)
    };
    let _ = job(&["job", "load", "--path", "/dir", "--submit", "--watch"]).succeeded();
    let _ = job(&["job", "load", "--path", "/missing", "--submit", "--watch"]);
    let listed = job(&["mounts", "list"]).succeeded().text();
    assert!(listed.starts_with(&format!("/  {}  (configured)", bucket.url())), "what it shows itself: {listed}");
    let taken = job(&["mounts", "add", "/", &bucket.url()]);
    assert!(taken.code != Some(0), "its own path is taken");
    let _ = job(&["mounts", "add", "/more", &bucket.url(), "-o", "s3.region=moon-1"]).succeeded();
    for _ in 0..40 {
        tree.verify(&mount.root());
    }
    let profile = tempfile::tempdir().expect("a directory");
    let url = mount.summary()["page"].as_str().expect("the page's URL").to_owned();
    let (origin, _token) = url.split_once("/#token=").expect("a token");
    let mut dom = String::new();
    eventually("the page shows all of it", SOON * 2, || {
        dom = page(browser, &url, profile.path(), &["--dump-dom"]).succeeded().text();
        let all = ["local", "load /dir", "SUCCEEDED", "load /missing", "FAILED", "/more", "moon-1", "s3://data"];
        let of_itself = ["configured", "of 128 MiB", "1 active of 1", "forebay · ", "the last "];
        all.iter().chain(&of_itself).all(|expected| dom.contains(expected))
    });
    assert!(dom.contains("<svg"), "plots: {dom}");
    assert!(!dom.contains("<b>not bold"), "names are text, never markup: {dom}");
    let strange = dom.match_indices("http").filter(|(at, _)| {
        let address = &dom[*at..];
        let ours = address.starts_with(origin);
        let names = ["http://www.w3.org/", "http-equiv", "https://github.com/forebay"];
        !ours && !names.iter().any(|name| address.starts_with(name)) && address.starts_with("http")
    });
    let strange: Vec<&str> = strange.map(|(at, _)| dom[at..].split(['"', '<', ' ']).next().unwrap_or("")).collect();
    assert!(strange.iter().all(|address| !address.contains("://")), "the page needs others: {strange:?}");
    let picture = profile.path().join("page.png");
    let shot = format!("--screenshot={}", picture.display());
    let _ = page(browser, &url, profile.path(), &[&shot, "--window-size=1200,1600"]).succeeded();
    assert!(std::fs::metadata(&picture).expect("a picture").len() > 10_000);
    if let Some(keep) = std::env::var_os("FOREBAY_TEST_PICTURE") {
        std::fs::copy(&picture, keep).expect("keeping the picture");
    }
}
