//! What the documents say of the code is so.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// Every Rust file of the repository.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let is_ours = name != "target" && !name.as_encoded_bytes().starts_with(b".");
            is_ours.then(|| sources(&path, found));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of functions in the sources.
fn functions() -> HashSet<String> {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let mut names = HashSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for after in text.split("fn ").skip(1) {
            let name: String = after.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            names.insert(name);
        }
    }
    names
}

#[test]
fn every_invariant_of_the_architecture_has_the_tests_that_it_names() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Invariants").nth(1).expect("a section on invariants").split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
    assert_eq!(rows.len(), 8, "an invariant a row: {rows:#?}");
    let functions = functions();
    for row in rows {
        let tests: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        assert!(tests.len() >= 2, "{row}");
        for test in tests {
            assert!(functions.contains(test), "there is no test `{test}`: {row}");
        }
    }
}

/// The sentences of `docs/SEMANTICS.md` that are promises: its bullets from "Reading" on.
fn promises() -> HashSet<String> {
    let text = std::fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    let promising = text.split("\n## Reading\n").nth(1).expect("a section on reading");
    promising.lines().filter_map(|line| line.strip_prefix("* ")).map(str::to_owned).collect()
}

/// What tests quote: the lines `/// > …` above them, put together where they follow each other.
fn quotes() -> HashSet<String> {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let (mut found, mut quote) = (HashSet::new(), String::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().map(str::trim).chain([""]) {
            match line.strip_prefix("/// > ") {
                Some(more) if quote.is_empty() => quote = more.to_owned(),
                Some(more) => quote = format!("{quote} {more}"),
                None if quote.is_empty() => {}
                None => drop(found.insert(std::mem::take(&mut quote))),
            }
        }
    }
    found
}

#[test]
fn every_promise_of_the_semantics_is_quoted_by_a_test_and_nothing_else_is() {
    let (promises, quotes) = (promises(), quotes());
    assert!(promises.len() > 40, "{promises:#?}");
    let untested: Vec<_> = promises.difference(&quotes).collect();
    assert!(untested.is_empty(), "promises of docs/SEMANTICS.md that no test quotes: {untested:#?}");
    let unsaid: Vec<_> = quotes.difference(&promises).collect();
    assert!(unsaid.is_empty(), "tests quote what docs/SEMANTICS.md does not say: {unsaid:#?}");
}

#[test]
fn every_file_that_the_documents_link_to_is_there() {
    let documents = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/BENCHMARKS.md",
        "docs/benchmarks/aims.md",
        "docs/benchmarks/cluster.md",
        "docs/benchmarks/hot-path.md",
        "docs/benchmarks/latency.md",
        "docs/benchmarks/method.md",
        "docs/benchmarks/network.md",
        "docs/benchmarks/peers.md",
        "docs/benchmarks/reading.md",
        "docs/benchmarks/run.md",
        "docs/benchmarks/simulation.md",
        "docs/benchmarks/writing.md",
        "docs/PLAN.md",
        "docs/RDMA.md",
        "docs/SEMANTICS.md",
        "docs/guides/benchmarking.md",
        "docs/guides/ipoib.md",
        "docs/guides/rdma.md",
        "docs/guides/troubleshooting.md",
    ];
    for document in documents {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let directory = root().join(document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|after| after.split(')').next()) {
            let path = link.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            assert!(directory.join(path).exists(), "{document} links to {path}, which is not there");
        }
    }
}
