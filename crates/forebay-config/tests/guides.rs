//! What guides and references say of settings holds: the defaults that they name, and the arithmetic of sizes.

use std::path::{Path, PathBuf};

use forebay_config::{Config, KEYS, Key};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// Of disks, cards and object stores.
const GB: u64 = 1_000_000_000;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// A page in one line, as it is read.
fn page(name: &str) -> String {
    let text = std::fs::read_to_string(docs().join(name)).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pages() -> Vec<PathBuf> {
    let directories = [docs(), docs().join("guides")];
    let entries = directories.iter().flat_map(|directory| std::fs::read_dir(directory).unwrap());
    let mut pages: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    // What is made from the table is compared elsewhere.
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("CLI.md"));
    pages
}

/// The default of a key as guides write it: `256MiB`, `90s`, `19999`.
fn default_of(key: &Key) -> String {
    key.default_toml().unwrap_or_default().trim_matches('"').to_owned()
}

/// Each key with a number in brackets behind it, `client.memory.size` (256 MiB), and that number.
fn named(text: &str) -> Vec<(&'static Key, String)> {
    let mut found = Vec::new();
    for key in KEYS {
        let before = format!("`{}` (", key.name);
        for (at, _) in text.match_indices(&before) {
            let rest = &text[at + before.len()..];
            let value = rest.split([',', ';', ')']).next().unwrap_or_default();
            if value.starts_with(|first: char| first.is_ascii_digit()) {
                let value: String = value.split_whitespace().collect();
                found.push((key, value.replace("min", "m")));
            }
        }
    }
    found
}

#[test]
fn defaults_that_pages_name_are_those_of_the_table() {
    let mut seen = 0;
    for path in pages() {
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (key, value) in named(&text) {
            assert_eq!(value, default_of(key), "{}: `{}`", path.display(), key.name);
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn a_number_in_brackets_behind_a_key_is_taken_for_its_default() {
    let found =
        named("`client.memory.size` (256 MiB) and `client.request_timeout` (90 s, each), `fuse.threads` (more)");
    let mut found: Vec<_> = found.into_iter().map(|(key, value)| (key.name, value)).collect();
    found.sort_unstable();
    assert_eq!(found, [("client.memory.size", "256MiB".to_owned()), ("client.request_timeout", "90s".to_owned())]);
}

/// The example of the guide to sizes, worked out once more from what the page and the table begin with.
#[test]
fn the_guide_to_sizes_reckons_right() {
    let (page, config) = (page("guides/sizing.md"), Config::default());
    let says = |text: &str| assert!(page.contains(text), "the guide does not say: {text}");
    says("64 GPU nodes that read a 40 TiB data set once an epoch, 4 GB/s each at most");
    says("2 × 7.68 TB of NVMe");
    let (nodes, set): (u64, u64) = (64, 40 * TIB);

    // Capacity.
    let disks = (2 * 7_680 * GB + TIB / 2) / TIB;
    says(&format!("{disks} TiB of NVMe and 64 GiB each"));
    let full = u64::from(config.worker_eviction_high_watermark);
    says(&format!("of which {} % stay free (worker.eviction.high_watermark)", 100 - full));
    let hundredths = (40 * 100 * 100 + disks * full / 2) / (disks * full);
    says(&format!("40 TiB / ({disks} × 0.{full}) is {}.{:02}: four", hundredths / 100, hundredths % 100));
    assert_eq!((40_u64 * 100).div_ceil(disks * full), 4);
    says("100 KB take 128 KiB");
    assert_eq!(100_000_u64.next_power_of_two(), 128 << 10);

    // Throughput.
    let wanted = nodes * 4;
    says(&format!("64 × 4 GB/s is {wanted} GB/s"));
    says(&format!("{wanted} / (12 × 0.7) is {} workers", (wanted * 10).div_ceil(12 * 7)));

    // The origin.
    let (at_once, get) = (u64::from(config.origin_max_concurrency), config.origin_max_get_size.as_u64());
    let origin = nodes * at_once * get * 20;
    says(&format!(
        "64 workers × {at_once} requests × {} MiB / 50 ms are {} GB/s",
        get >> 20,
        (origin + 5 * GB) / (10 * GB) * 10
    ));
    says(&format!("At 20 GB/s the first pass takes {} minutes", (set / (20 * GB) + 30) / 60));
    let gets = (set / get + 50_000) / 100_000;
    says(&format!("It is {}.{} million GETs", gets / 10, gets % 10));
}

#[test]
fn the_checklist_of_a_gpu_node_reserves_what_it_says() {
    let page = page("guides/gpu-node.md");
    let (_, after) = page.split_once("vm.nr_hugepages = ").unwrap();
    let pages: u64 = after.split(' ').next().unwrap().parse().unwrap();
    assert!(page.contains(&format!("{} GiB of pages of 2 MiB", pages * (2 << 20) / GIB)), "{pages}");
}
