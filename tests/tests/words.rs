//! Words that the code and its documents have left behind for the field's (CONTRIBUTING.md, "Words") do not come back.

use std::path::{Path, PathBuf};

/// What is not to be written, and what is written instead.
const GONE: [(&str, &str); 27] = [
    ("Glance", "StreamFastPath"),
    ("glance", "stream fast path"),
    ("Whence", "FetchSource"),
    ("Departure", "FetchGuard"),
    ("Flight", "InFlightFetch"),
    ("Flights", "InFlightFetches"),
    ("Tally", "counts"),
    ("tally", "counts"),
    ("Ground", "FileBackend"),
    ("Shelf", "FileIndex"),
    ("Crew", "LoadThreads"),
    ("crew", "load threads"),
    ("Carrier", "Channel"),
    ("carrier", "channel, transport"),
    ("shelf", "file index"),
    ("MOST", "MAX"),
    ("LEAST", "MIN"),
    ("seam", "interface, trait"),
    ("SectorSums", "SectorChecksums"),
    ("sums", "checksums, totals"),
    ("wait awake", "busy-poll"),
    ("waits awake", "busy-polls"),
    ("static-ish", "what it is"),
    ("he", "it"),
    ("his", "its"),
    ("him", "it"),
    ("himself", "itself"),
];

/// Records of what was, this list, and what others wrote.
const LEFT_OUT: [&str; 6] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/PLAN.md",
    "docs/adr/",
    "tests/tests/words.rs",
    "crates/forebay-ucx-sys/src/bindings.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn texts(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let is_ours = name != "target" && name != "corpus" && !name.as_encoded_bytes().starts_with(b".");
            is_ours.then(|| texts(&path, found));
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "md") {
            found.push(path);
        }
    }
}

/// Whether a line has a word, or words, and not as a part of another. A constant's name counts as the words that it is made of.
fn has(line: &str, word: &str) -> bool {
    let is_constant = word.chars().all(char::is_uppercase);
    let is_part = |letter: char| letter.is_alphanumeric() || (letter == '_' && !is_constant);
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[test]
fn no_word_that_was_left_behind_comes_back() {
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    texts(&root(), &mut files);
    for file in files {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        if LEFT_OUT.iter().any(|left_out| name.starts_with(left_out)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            // What programs depend on keeps its name.
            if line.contains("serde(alias") || line.contains(".sums") {
                continue;
            }
            let gone = GONE.iter().filter(|(word, _)| has(line, word));
            wrong.extend(gone.map(|(word, now)| format!("{name}:{number}: `{word}`, now `{now}`: {}", line.trim())));
        }
    }
    assert!(wrong.is_empty(), "{} lines:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_word_is_found_alone_and_in_the_name_of_a_constant() {
    assert!(has("what he has", "he") && has("He, or he", "he") && !has("the cache", "he") && !has("he_has", "he"));
    assert!(has("MOST_PARTS", "MOST") && has("BUFFERS_MOST", "MOST") && !has("UTMOST", "MOST"));
}
