//! What a request names in its URL, for whoever keeps a record of one that is refused, and so not read: a job, a worker, a path. Pure.
//!
//! Whoever is refused may have written anything there. What can be no name is left out; what may be a secret, the listener masks.

use axum::extract::Query;
use axum::http::Uri;
use forebay_types::{FsPath, Subject};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// Bytes of a name, at most: what a host's name and a port have.
const MAX_NAME: usize = 262;

/// What names something after `?`. Whatever else is there is nobody's business.
#[derive(Deserialize)]
struct OfQuery {
    path: Option<String>,
}

/// What a request for `url` is about, which the router has at `place`: `/api/v1/jobs/{id}`.
pub(crate) fn subject_of_url(place: &str, url: &Uri) -> Subject {
    let of_query = Query::<OfQuery>::try_from_uri(url).ok().and_then(|Query(OfQuery { path })| FsPath::new(path?).ok());
    let path = of_query.map(|path| Subject::of_path(path.as_bytes())).unwrap_or_default();
    let name = |parameter| segment(place, url.path(), parameter).and_then(name_of);
    Subject { job: name("{id}"), worker: name("{worker}"), ..path }
}

/// The part of `path` that stands where `place` has `parameter`.
fn segment<'a>(place: &str, path: &'a str, parameter: &str) -> Option<&'a str> {
    let found = place.split('/').zip(path.split('/')).find(|(part, _)| *part == parameter);
    found.map(|(_, segment)| segment)
}

/// The name that `segment` spells.
fn name_of(segment: &str) -> Option<String> {
    let name = percent_decode_str(segment).decode_utf8().ok()?;
    let is_name = (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control);
    is_name.then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(place: &str, url: &str) -> Subject {
        subject_of_url(place, &url.parse().unwrap())
    }

    #[test]
    fn a_url_names_a_job_a_worker_or_a_path() {
        let job = |name: &str| Subject { job: Some(name.to_owned()), ..Subject::default() };
        let (at_job, stop) = ("/api/v1/jobs/{id}", "/api/v1/jobs/{id}/stop");
        assert_eq!(of(at_job, "/api/v1/jobs/load-1"), job("load-1"));
        assert_eq!(of(stop, "/api/v1/jobs/load-1/stop"), job("load-1"));
        // Who spells it in another way does not hide it.
        assert_eq!(of(stop, "/api/v1/jobs/%6Coad%2d1/stop"), job("load-1"));
        let worker = Subject { worker: Some("[::1]:29999".to_owned()), ..Subject::default() };
        assert_eq!(of("/api/v1/cluster/drains/{worker}", "/api/v1/cluster/drains/%5B::1%5D:29999"), worker);
        let path = Subject::of_path(b"/s3/a b");
        for query in ["path=/s3/a%20b", "path=%2Fs3%2Fa+b/", "kind=load&path=/s3/a+b&token=hush"] {
            assert_eq!(of("/api/v1/mounts", &format!("/api/v1/mounts?{query}")), path, "{query}");
        }
        assert_eq!(of("/api/v1/mounts", "/api/v1/mounts"), Subject::default());
    }

    #[test]
    fn what_is_no_name_is_left_out() {
        for query in
            ["path=hush", "path=/a/../b", "path=/a%00", "path=s3://id:hush@bucket", "path=/a&path=/b", "path", "hush"]
        {
            assert_eq!(of("/api/v1/policies", &format!("/api/v1/policies?{query}")), Subject::default(), "{query}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for segment in ["", "%0a", "a%1bm", "%ff", &long] {
            let url = format!("/api/v1/jobs/{segment}");
            assert_eq!(of("/api/v1/jobs/{id}", &url), Subject::default(), "{segment}");
        }
        let long = of("/api/v1/mounts", &format!("/api/v1/mounts?path=/{}", "a/".repeat(10_000)));
        assert_eq!(long.path.map(|path| path.len()), Some(forebay_types::MAX_SUBJECT_PATH));
    }
}
