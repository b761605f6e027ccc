//! What somebody wrote in the place of a name, and may be a token: it is in no record. Pure.

use forebay_identity::may_hold_token;
use forebay_types::Subject;

/// What is told instead.
const MASKED: &str = "(masked)";

/// `subject` without tokens: neither those that `is_token` knows nor what has the form of one. In a path, names are masked one by one.
pub(crate) fn masked(subject: Subject, is_token: impl Fn(&str) -> bool) -> Subject {
    let is_secret = |text: &str| is_token(text) || may_hold_token(text);
    let text = |text: String| if is_secret(&text) { MASKED.to_owned() } else { text };
    let path = |path: Vec<u8>| {
        let shown = String::from_utf8_lossy(&path);
        if is_token(&shown) || is_token(shown.trim_start_matches('/')) {
            return MASKED.as_bytes().to_vec();
        }
        let names = path.split(|byte| *byte == b'/');
        let names = names.map(|name| if is_secret(&String::from_utf8_lossy(name)) { MASKED.as_bytes() } else { name });
        names.collect::<Vec<_>>().join(&b'/')
    };
    Subject { path: subject.path.map(path), job: subject.job.map(text), worker: subject.worker.map(text), ..subject }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn shown(path: &str, is_token: impl Fn(&str) -> bool) -> String {
        String::from_utf8(masked(Subject::of_path(path.as_bytes()), is_token).path.unwrap()).unwrap()
    }

    #[test]
    fn names_stay_as_they_are() {
        let named = Subject {
            job: Some("load-19a3f2b7c1d-4e5f".to_owned()),
            worker: Some("worker-3.forebay-worker.default.svc.cluster.local:29999".to_owned()),
            change: Some("load"),
            ..Subject::of_path(b"/s3/models of \xff/shard-1")
        };
        assert_eq!(masked(named.clone(), |_| false), named);
        assert_eq!(masked(Subject::default(), |_| true), Subject::default());
        assert_eq!(shown("/", |_| false), "/");
    }

    #[test]
    fn what_may_be_a_token_is_masked_wherever_it_stands() {
        let named = Subject { job: Some(TOKEN.to_owned()), worker: Some(format!("{TOKEN}:1")), ..Subject::default() };
        let masked = masked(named, |_| false);
        assert_eq!((masked.job.as_deref(), masked.worker.as_deref()), (Some(MASKED), Some(MASKED)));
        assert_eq!(shown(&format!("/s3/{TOKEN}/a"), |_| false), "/s3/(masked)/a");
        assert_eq!(shown(&format!("/s3/token={TOKEN}"), |_| false), "/s3/(masked)");
    }

    /// One of somebody's own making may have any form.
    #[test]
    fn what_is_known_as_a_token_is_masked_whatever_it_looks_like() {
        let own = "a.token.of.my/own.with.slashes.and.dots";
        let is_token = |text: &str| text == own;
        let named = Subject { job: Some(own.to_owned()), ..Subject::default() };
        assert_eq!(masked(named, is_token).job.as_deref(), Some(MASKED));
        assert_eq!(shown(&format!("/{own}"), is_token), MASKED);
        assert_eq!(shown("/a/of", |text| text == "of"), "/a/(masked)");
    }
}
