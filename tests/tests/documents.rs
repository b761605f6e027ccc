//! What the documents say of the code is so.

use std::collections::{HashMap, HashSet};
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

/// The threat model names its attacks as functions: words with at least three underscores.
#[test]
fn every_attack_of_the_threat_model_is_a_test() {
    let text = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let section = text.split("## Threat model").nth(1).expect("a section").split("\n## ").next().unwrap();
    let is_function = |word: &&str| {
        word.matches('_').count() >= 3
            && word.chars().all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter))
    };
    let attacks: Vec<_> = section.split('`').skip(1).step_by(2).filter(is_function).collect();
    assert!(attacks.len() >= 20, "{attacks:#?}");
    let functions = functions();
    let missing: Vec<_> = attacks.into_iter().filter(|attack| !functions.contains(*attack)).collect();
    assert!(missing.is_empty(), "SECURITY.md names tests that are not there: {missing:#?}");
}

/// The file that the table of attacks calls so: one of `tests/tests/`, or, behind the name of a crate, one of its tests or
/// of its sources.
fn file_of_tests(place: &str) -> PathBuf {
    let of_crate = |name: &str| root().join(format!("crates/forebay-{name}"));
    match place.split_once('/') {
        Some((name, path)) if path.starts_with("src/") => of_crate(name).join(path),
        Some((name, path)) if of_crate(name).is_dir() => of_crate(name).join("tests").join(path),
        _ => root().join("tests/tests").join(place),
    }
}

#[test]
fn every_attack_of_the_table_has_the_tests_that_it_names() {
    let text = std::fs::read_to_string(root().join("docs/VERIFICATION.md")).unwrap();
    let section =
        text.split("\n## Attacks and their tests\n").nth(1).expect("a section").split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")).collect();
    for row in &rows {
        assert!(row.trim_matches('|').split('|').all(|cell| !cell.trim().is_empty()), "a cell says nothing: {row}");
    }
    let named: Vec<_> = section.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs::")).collect();
    assert!(rows.len() > 20 && named.len() > 80, "{} tests in {} rows", named.len(), rows.len());
    let is_there = |place: &str, test: &str| {
        let file = std::fs::read_to_string(file_of_tests(&format!("{place}.rs"))).unwrap_or_default();
        file.contains(&format!("fn {test}("))
    };
    let missing: Vec<_> = named.iter().filter(|(place, test)| !is_there(place, test)).collect();
    assert!(missing.is_empty(), "docs/VERIFICATION.md names tests that are not there: {missing:#?}");
}

/// The sentences of `docs/SEMANTICS.md` that are promises: its bullets from "Reading" on.
fn promises() -> HashSet<String> {
    let text = std::fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    let promising = text.split("\n## Reading\n").nth(1).expect("a section on reading");
    let mut promises: Vec<String> = Vec::new();
    for line in promising.lines() {
        match (line.strip_prefix("* "), line.strip_prefix("  ")) {
            (Some(promise), _) => promises.push(promise.to_owned()),
            (None, Some(more)) => promises.last_mut().expect("a bullet to go on").push_str(&format!(" {more}")),
            (None, None) => {}
        }
    }
    promises.into_iter().collect()
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

/// Every Markdown file of the repository, but for what is built and what fuzzers found.
fn markdown(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let is_ours = !["target", "corpus", "artifacts", ".git"].iter().any(|other| name == *other);
            is_ours.then(|| markdown(&path, found));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The three or more backticks or tildes that a line begins with.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let mark = line.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
    let length = line.len() - line.trim_start_matches(mark).len();
    (length >= 3).then(|| &line[..length])
}

/// The lines of a document outside of its blocks of code, for each of which there is an empty one.
fn without_blocks(text: &str) -> Vec<&str> {
    let (mut kept, mut block) = (Vec::new(), None);
    for line in text.lines() {
        match (block, fence(line)) {
            (None, None) => kept.push(line),
            (None, Some(begin)) => {
                kept.push("");
                block = Some(begin);
            }
            (Some(begin), Some(end)) if end.starts_with(begin) && line.trim() == end => block = None,
            (Some(_), _) => {}
        }
    }
    kept
}

/// A paragraph without the code in it: what stands between two runs of as many backticks.
fn without_code(paragraph: &str) -> String {
    let runs = |text: &str| text.len() - text.trim_start_matches('`').len();
    let (mut kept, mut rest) = (String::new(), paragraph);
    while let Some(begin) = rest.find('`') {
        let length = runs(&rest[begin..]);
        kept.push_str(&rest[..begin]);
        rest = &rest[begin + length..];
        let mut at = 0;
        while let Some(end) = rest[at..].find('`').map(|found| at + found) {
            at = end + runs(&rest[end..]);
            if at - end == length {
                rest = &rest[at..];
                break;
            }
        }
    }
    kept + rest
}

/// What a document links to. Nothing in code is a link.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in without_blocks(text).split(|line| line.trim().is_empty()) {
        let paragraph = without_code(&paragraph.join("\n"));
        let targets = paragraph.split("](").skip(1).filter_map(|after| after.split([')', ' ', '\n']).next());
        found.extend(targets.map(str::to_owned));
    }
    found
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> HashSet<String> {
    let (mut found, mut counts) = (HashSet::new(), HashMap::<String, usize>::new());
    for line in without_blocks(text) {
        let heading = line.trim_start_matches('#');
        if !(1..=6).contains(&(line.len() - heading.len())) || !heading.starts_with(' ') {
            continue;
        }
        let mut parts = heading.trim().split("](");
        let mut words = parts.next().unwrap_or_default().to_owned();
        parts.filter_map(|part| part.split_once(')')).for_each(|(_target, after)| words.push_str(after));
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        let slug = words.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
        let count = counts.entry(slug.clone()).or_default();
        found.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

#[test]
fn every_file_that_the_documents_link_to_is_there() {
    let mut documents = Vec::new();
    markdown(&root(), &mut documents);
    assert!(documents.len() > 60, "{documents:#?}");
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in &documents {
        let (text, name) = (std::fs::read_to_string(document).unwrap(), document.display());
        for link in links(&text).into_iter().filter(|link| !link.contains(':')) {
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            if !target.exists() {
                wrong.push(format!("{name} links to {path}, which is not there"));
            } else if !anchor.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
                let has_anchor = anchors(&std::fs::read_to_string(&target).unwrap()).contains(anchor);
                (!has_anchor).then(|| wrong.push(format!("{name} links to {link}, which has no such heading")));
            }
        }
    }
    assert!(checked > 200, "{checked} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn links_and_anchors_are_those_that_github_makes() {
    let text = "# One: `two_three`, *four*\n## One\n## [One](x.md)\n#no\n\
                [a](b.md#c) `[d](e)` [`f`\ng](h \"i\") ``j`[k](l)``\n```text\n# m\n[n](o)\n```\n\
                ~~~\n```\n~~~\n[p](#q)\n";
    assert_eq!(links(text), ["x.md", "b.md#c", "h", "#q"]);
    let made = ["one-two_three-four", "one", "one-1"].map(str::to_owned);
    assert_eq!(anchors(text), HashSet::from(made));
}

/// Words of a page, with one space between them.
fn words(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Keys of the configuration with their defaults, as the example file has them.
fn defaults() -> HashMap<String, String> {
    let text = std::fs::read_to_string(root().join("docs/forebay.example.toml")).unwrap();
    let keys = text.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
    keys.map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned())).collect()
}

/// What has a number in parentheses behind its name in code, and that number as a file of the configuration has it.
fn numbers(words: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, mark) in words.match_indices("` (") {
        let name = words[..at].rsplit('`').next().unwrap_or_default();
        let number = words[at + mark.len()..].split([')', ';', ',']).next().unwrap_or_default();
        let (number, unit) = number.split_once(' ').unwrap_or((number, ""));
        let unit = match unit {
            "min" | "minute" | "minutes" => "m",
            "µs" => "us",
            unit => unit,
        };
        if number.starts_with(|letter: char| letter.is_ascii_digit()) {
            found.push((name.to_owned(), format!("{number}{unit}")));
        }
    }
    found
}

/// Decisions, measurements and plans are of their time.
#[test]
fn a_number_behind_a_key_is_its_default() {
    let mut documents = Vec::new();
    markdown(&root().join("docs"), &mut documents);
    let of_their_time = ["adr", "benchmarks", "PLAN.md"];
    documents.retain(|path| !path.iter().any(|part| of_their_time.iter().any(|name| part == *name)));
    let defaults = defaults();
    assert!(defaults.len() > 100, "{defaults:#?}");
    let (mut compared, mut wrong) = (0, Vec::new());
    for document in documents {
        for (key, number) in numbers(&words(&document)) {
            let Some(default) = defaults.get(&key) else { continue };
            compared += 1;
            if *default != number {
                wrong.push(format!("{}: {key} is {default}, and not {number}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty() && compared > 15, "of {compared}: {wrong:#?}");
    let text = "`a.b` (90 s), `c`\n(5 minutes; 0 turns it off), `d` (see `e` (3, or more)), `f` (Linux 6.9)";
    let expected = [("a.b", "90s"), ("c", "5m"), ("e", "3")].map(|(key, number)| (key.to_owned(), number.to_owned()));
    assert_eq!(numbers(&text.replace('\n', " ")), expected);
}
