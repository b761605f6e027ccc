//! Where the parts of an object begin that was uploaded in several: a HEAD with the number of a part tells, which the object
//! store's client cannot send. A server that passes over the number answers what it says of the whole, and has told nothing.

use forebay_types::{Failure, FailureKind, FilePart, FileVersion, VersionTag};
use http::header::IF_MATCH;
use http::{HeaderMap, HeaderValue, Method};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;

use super::ObjectStoreOrigin;
use super::exchange::Exchange;
use super::failure::Problem;
use super::listing::quoted;
use crate::names::{check_part, check_path, invalid, shown};
use crate::retry::Verdict;
use crate::stats::Operation;

/// The status of a part that an object has not.
const NO_SUCH_PART: u16 = 416;
/// How many parts an object has.
const COUNT: &str = "x-amz-mp-parts-count";

/// Why an answer does not say where a part lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Untold {
    /// It is of another version.
    Changed,
    /// It says nothing of parts.
    Silent,
    /// Its parts and its size do not go together.
    Nonsense,
}

impl ObjectStoreOrigin {
    pub(super) async fn part_at(&self, version: &FileVersion, number: u32) -> Result<Option<FilePart>, Failure> {
        let (url, path) = (&self.requests.url, &version.path);
        if version.origin != *url {
            return Err(invalid(url, path, "a version of another origin was asked of this one"));
        }
        check_path(url, path)?;
        check_part(url, path, number)?;
        let (_, key) = self.key(path)?;
        let VersionTag::Etag(tag) = &version.tag else { return Err(self.silent(path)) };
        if self.client.asking.is_none() {
            return Err(self.silent(path));
        }
        let mut attempts = self.requests.attempts(Operation::Stat, path);
        loop {
            let exchange = Exchange::default();
            match attempts.run(self.part_once(version, tag, &key, number, &exchange)).await {
                Ok(part) => return Ok(part),
                Err(problem) => attempts.retry_or_give_up(problem, !exchange.observed().sent).await?,
            }
        }
    }

    async fn part_once(
        &self,
        version: &FileVersion,
        tag: &str,
        key: &Path,
        number: u32,
        exchange: &Exchange,
    ) -> Result<Option<FilePart>, Problem> {
        let (url, path) = (&self.requests.url, &version.path);
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::HEAD;
        // A weak tag never matches (RFC 9110, 13.1.1); the check of the answer has to do.
        let condition = HeaderValue::from_str(tag).ok().filter(|_| !tag.starts_with("W/"));
        request.headers_mut().extend(condition.map(|tag| (IF_MATCH, tag)));
        let query = [("partNumber", number.to_string())];
        let response = match self.send(path, (key, &query), request, exchange).await {
            Ok(response) => response,
            Err(_) if exchange.observed().status == NO_SUCH_PART => return Ok(None),
            Err(problem) if problem.failure.kind() == FailureKind::NotFound => {
                return Err(Problem::version_changed(url, path));
            }
            Err(problem) => return Err(problem),
        };
        part_in(response.headers(), tag, version.size, number).map(Some).map_err(|untold| match untold {
            Untold::Changed => Problem::version_changed(url, path),
            Untold::Silent => Problem { verdict: Verdict::Final, failure: self.silent(path) },
            Untold::Nonsense => {
                let place = shown(url, path);
                Problem::transient(format!("{place}: what is told of part {number} does not go with the file"))
            }
        })
    }

    fn silent(&self, path: &[u8]) -> Failure {
        let message = format!("{}: the origin does not tell where its parts begin", shown(&self.requests.url, path));
        Failure::new(FailureKind::Unsupported, message)
    }
}

/// Where the head of an answer says that part `number` lies, of an object with this entity tag and so many bytes.
fn part_in(headers: &HeaderMap, tag: &str, size: u64, number: u32) -> Result<FilePart, Untold> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("etag").map(quoted).is_none_or(|etag| etag != tag) {
        return Err(Untold::Changed);
    }
    let range = text("content-range").ok_or(Untold::Silent)?;
    let count = text(COUNT).map_or_else(|| count_in(tag), |count| count.parse().ok()).ok_or(Untold::Silent)?;
    let (start, last, whole) = content_range(range).ok_or(Untold::Nonsense)?;
    // The first part is where the object begins, the last one where it ends, and no other one is.
    let is_so = start <= last
        && last < size
        && whole == size
        && (number == 1) == (start == 0)
        && (number == count) == (last + 1 == size)
        && number <= count;
    if is_so { Ok(FilePart { range: start..last + 1, count }) } else { Err(Untold::Nonsense) }
}

/// The number of parts with which an entity tag ends.
fn count_in(tag: &str) -> Option<u32> {
    tag.trim_end_matches('"').rsplit_once('-')?.1.parse().ok()
}

/// The numbers of `bytes FIRST-LAST/SIZE`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAG: &str = "\"abc-3\"";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn part(range: &str, count: &str, number: u32) -> Result<FilePart, Untold> {
        part_in(&headers(&[("etag", TAG), ("content-range", range), (COUNT, count)]), TAG, 25, number)
    }

    #[test]
    fn a_part_lies_where_it_is_told_if_that_goes_with_the_object() {
        for (number, range, expected) in
            [(1, "bytes 0-9/25", 0..10), (2, "bytes 10-19/25", 10..20), (3, "bytes 20-24/25", 20..25)]
        {
            assert_eq!(part(range, "3", number), Ok(FilePart { range: expected, count: 3 }));
        }
        let untold = headers(&[("etag", "abc-3"), ("content-range", "bytes 10-19/25")]);
        assert_eq!(part_in(&untold, TAG, 25, 2), Ok(FilePart { range: 10..20, count: 3 }), "the tag tells how many");
        for (range, count, number) in [
            ("bytes 0-9/26", "3", 1),
            ("bytes 0-9/*", "3", 1),
            ("bytes 9-0/25", "3", 2),
            ("0-9/25", "3", 1),
            ("bytes 10-25/25", "3", 3),
            ("bytes 10-19/25", "3", 1),
            ("bytes 0-9/25", "3", 2),
            ("bytes 10-24/25", "3", 2),
            ("bytes 10-19/25", "3", 3),
            ("bytes 10-19/25", "1", 2),
            ("bytes 0-24/25", "3", 1),
            ("bytes 18446744073709551615-18446744073709551615/25", "3", 2),
        ] {
            assert_eq!(part(range, count, number), Err(Untold::Nonsense), "{range} of {count}, {number}");
        }
    }

    #[test]
    fn what_is_told_of_another_version_or_of_the_whole_is_not_told_of_a_part() {
        let of = |lines: &[(&'static str, &str)]| part_in(&headers(lines), TAG, 25, 1);
        assert_eq!(of(&[("etag", TAG)]), Err(Untold::Silent));
        assert_eq!(of(&[("etag", TAG), (COUNT, "3")]), Err(Untold::Silent));
        assert_eq!(of(&[("etag", TAG), ("content-range", "bytes 0-9/25"), (COUNT, "many")]), Err(Untold::Silent));
        assert_eq!(of(&[("content-range", "bytes 0-9/25"), (COUNT, "3")]), Err(Untold::Changed));
        assert_eq!(of(&[("etag", "\"abd-3\""), ("content-range", "bytes 0-9/25")]), Err(Untold::Changed));
    }

    proptest! {
        #[test]
        fn what_is_believed_lies_within_the_object(range in "bytes [0-9]{0,20}-[0-9]{0,20}/25", number in 1u32..5) {
            if let Ok(FilePart { range, count }) = part(&range, "3", number) {
                prop_assert!(range.start < range.end && range.end <= 25 && number <= count);
            }
        }
    }
}
