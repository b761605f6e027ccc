//! What a fuzzer feeds to the reader of listings and of what an object store answers to a change.

use std::collections::BTreeSet;

use super::exchange;
use super::listing::{Listed, Position, RawPage, is_usable_name, merge, parse};

/// An object store's listing of a directory arrives in `pages`.
///
/// # Panics
/// When a name is given out that cannot be shown, or twice where the store named it once; when more is given than was asked for.
pub fn listing(pages: &[&[u8]], prefix: &str, max: usize) {
    let (mut held, mut named, mut given_out) = (Vec::new(), Vec::new(), Vec::new());
    for (number, xml) in pages.iter().enumerate() {
        let Ok(mut page) = parse(xml) else { return };
        // Whether there is a next one.
        page.next = (number + 1 < pages.len()).then(|| "next".to_owned());
        named.extend(page.objects.iter().map(|object| object.key.clone()).chain(page.prefixes.iter().cloned()));
        let directories = page.prefixes.len();
        let given = merge(prefix, std::mem::take(&mut held), page, max);
        assert!(given.directories.len() + given.files.len() <= max.max(directories));
        let names = given.directories.iter().chain(given.files.iter().map(|(name, _)| name));
        given_out.extend(names.inspect(|name| assert!(is_usable_name(name), "{name:?}")).cloned());
        let Some(next) = given.next else { break };
        assert_eq!(position(&next), next);
        held = next.held;
    }
    let different: BTreeSet<&String> = named.iter().collect();
    if different.len() == named.len() && named.iter().all(|name| name.starts_with(prefix)) {
        let names: BTreeSet<&String> = given_out.iter().collect();
        assert_eq!(names.len(), given_out.len(), "a name comes once");
    }
}

/// A client sends `text` as the token of a page.
///
/// # Panics
/// When it is not written again as it was, or merging what it holds gives out what cannot be shown.
pub fn token(text: &str, max: usize) {
    let Ok(read) = serde_json::from_str::<Position>(text) else { return };
    assert_eq!(position(&read), read);
    let given = merge("", read.held, RawPage::default(), max);
    assert!(given.files.len() <= max);
    assert!(given.files.iter().all(|(name, Listed { .. })| is_usable_name(name)));
}

/// An object store answers a request with `body`.
///
/// # Panics
/// When the status that is told is another one.
pub fn answer(status: u16, body: &[u8]) {
    assert_eq!(exchange::read_answer(status, body).status, status);
}

fn position(position: &Position) -> Position {
    let text = serde_json::to_string(position).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
