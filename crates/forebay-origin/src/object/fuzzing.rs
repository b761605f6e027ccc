//! What a fuzzer feeds to the reader of listings, of uploads and of what an object store answers to a change.

use std::collections::BTreeSet;

use super::asking::read_lists;
use super::exchange;
use super::in_place::read_head;
use super::listing::{Listed, Position, RawPage, is_usable_name, merge, parse};

/// An object store's listing of a directory arrives in `pages`.
///
/// # Panics
/// When a name is given out that cannot be shown; when more is given than was asked for; when a name comes twice though the store
/// lists in the order of keys, as the protocol has it.
pub fn listing(pages: &[&[u8]], prefix: &str, max: usize) {
    let (mut held, mut last, mut given_out) = (Vec::new(), String::new(), Vec::new());
    let mut is_in_order = true;
    for (number, xml) in pages.iter().enumerate() {
        let Ok(mut page) = parse(xml) else { return };
        // Whether there is a next one.
        page.next = (number + 1 < pages.len()).then(|| "next".to_owned());
        let keys = page.objects.iter().map(|object| &object.key).chain(&page.prefixes);
        let named: BTreeSet<&String> = keys.clone().collect();
        is_in_order &= named.len() == keys.count() && named.first().is_none_or(|first| **first > last);
        // With the delimiter, what lies deeper is told of by its directory alone.
        let is_here =
            |key: &&String| key.strip_prefix(prefix).is_some_and(|name| !name.trim_end_matches('/').contains('/'));
        is_in_order &= named.iter().all(is_here)
            && page.objects.iter().all(|object| !object.key.ends_with('/') || object.key == prefix);
        last = named.last().map_or(last, |last| (*last).clone());
        let directories = page.prefixes.len();
        let given = merge(prefix, std::mem::take(&mut held), page, max);
        assert!(given.directories.len() + given.files.len() <= max.max(directories));
        let names = given.directories.iter().chain(given.files.iter().map(|(name, _)| name));
        given_out.extend(names.inspect(|name| assert!(is_usable_name(name), "{name:?}")).cloned());
        let Some(next) = given.next else { break };
        assert_eq!(position(&next), next);
        held = next.held;
    }
    let names: BTreeSet<&String> = given_out.iter().collect();
    assert!(!is_in_order || names.len() == given_out.len(), "a name comes once: {given_out:?}");
}

/// An object store tells the parts of an upload, or uploads.
///
/// # Panics
/// When parts are given out that nobody asked for, or in another order than that of their numbers.
pub fn uploads(xml: &[u8], after: u32, max: usize) {
    let (parts, _uploads) = read_lists(xml, after, max);
    let Some(page) = parts else { return };
    assert!(page.parts.len() <= max && page.parts.iter().all(|part| part.number > after), "{page:?}");
    assert!(page.parts.is_sorted_by(|before, part| before.number < part.number), "{page:?}");
    assert!(!page.has_more || !page.parts.is_empty(), "who goes on must know from where: {page:?}");
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

/// An object store answers a GET whose body is read in place with `bytes`.
///
/// # Panics
/// When a head is longer than what came, or another one once more has come.
pub fn head(bytes: &[u8]) {
    let Some(length) = read_head(bytes) else { return };
    assert!(length <= bytes.len());
    assert_eq!(read_head(&bytes[..length]), Some(length));
}

fn position(position: &Position) -> Position {
    let text = serde_json::to_string(position).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
