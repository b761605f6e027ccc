//! Clients of S3 servers, and an S3 server that is as flat as the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_testkit::{CannedRequest, CannedResponse, CannedServer};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use parking_lot::Mutex;
use url::Url;

use crate::{ObjectStoreOrigin, OriginOptions};

/// An origin at `endpoint`, its options changed by `tune`, that sees nothing of this machine's environment.
pub(crate) fn s3_origin(
    endpoint: &str,
    url: &str,
    (access_key, secret_key): (&str, &str),
    tune: impl FnOnce(&mut OriginOptions),
) -> ObjectStoreOrigin {
    let mut options = OriginOptions::default();
    options.s3.endpoint = Some(endpoint.to_owned());
    tune(&mut options);
    let pairs = [("AWS_ACCESS_KEY_ID", access_key), ("AWS_SECRET_ACCESS_KEY", secret_key)];
    let variables = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    ObjectStoreOrigin::new(&Url::parse(url).unwrap(), url, &options, &variables).unwrap()
}

/// A client that writes.
pub(crate) fn s3_store(endpoint: &str, bucket: &str, (access_key, secret_key): (&str, &str)) -> Arc<dyn ObjectStore> {
    let builder = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_access_key_id(access_key)
        .with_secret_access_key(secret_key)
        .with_allow_http(true);
    Arc::new(builder.build().unwrap())
}

/// S3 without directories below it: any keys together, markers, shadowed files. Knows no signatures.
pub(crate) struct FlatS3 {
    objects: Arc<Mutex<Objects>>,
    server: CannedServer,
}

#[derive(Default)]
struct Objects {
    by_key: BTreeMap<String, (Vec<u8>, u64)>,
    generation: u64,
}

impl FlatS3 {
    pub(crate) fn start() -> Self {
        let objects = Arc::new(Mutex::new(Objects::default()));
        let served = Arc::clone(&objects);
        Self { objects, server: CannedServer::start(move |request| served.lock().answer(request)).unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.server.requests()
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let mut objects = self.objects.lock();
        objects.generation += 1;
        let generation = objects.generation;
        objects.by_key.insert(key.to_owned(), (bytes.to_vec(), generation));
    }

    pub(crate) fn delete(&self, key: &str) {
        self.objects.lock().by_key.remove(key);
    }
}

impl Objects {
    fn answer(&self, request: &CannedRequest) -> CannedResponse {
        let url = Url::parse(&format!("http://h{}", request.target)).unwrap();
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        if query.contains_key("list-type") {
            return self.list(&query);
        }
        let path = url.path().strip_prefix("/bucket/").unwrap();
        let key = object_store::path::Path::from_url_path(path).unwrap();
        let Some((bytes, generation)) = self.by_key.get(key.as_ref()) else {
            return CannedResponse::s3_error(404, "NoSuchKey", "gone");
        };
        let etag = format!("\"{generation}\"");
        if !matches!(request.header("if-match"), "" | "*") && request.header("if-match") != etag {
            return CannedResponse::s3_error(412, "PreconditionFailed", "other etag");
        }
        let dated = |response: CannedResponse| {
            response.with("etag", etag.clone()).with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
        };
        if request.method == "HEAD" {
            return dated(CannedResponse::new(200, "").with("content-length", bytes.len().to_string()));
        }
        let range = request.header("range").strip_prefix("bytes=").unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
        let part = bytes[start..=end].to_vec();
        dated(CannedResponse::new(206, part).with("content-range", format!("bytes {start}-{end}/{}", bytes.len())))
    }

    fn list(&self, query: &BTreeMap<String, String>) -> CannedResponse {
        let get = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let (prefix, after) = (get("prefix"), get("continuation-token"));
        let max: usize = get("max-keys").parse().unwrap();
        let names: BTreeSet<String> = self
            .by_key
            .keys()
            .filter_map(|key| {
                let rest = key.strip_prefix(prefix)?;
                Some(rest.split_once('/').map_or_else(|| key.clone(), |(directory, _)| format!("{prefix}{directory}/")))
            })
            .filter(|name| name.as_str() > after)
            .collect();
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let mut body = String::from("<ListBucketResult>");
        for name in names.iter().take(max) {
            let key = escape(name);
            match self.by_key.get(name).filter(|_| !name.ends_with('/') || name == prefix) {
                Some((bytes, generation)) => {
                    body += &format!(
                        "<Contents><Key>{key}</Key><Size>{}</Size><ETag>\"{generation}\"</ETag>\
                     <LastModified>2024-05-06T07:08:09.000Z</LastModified></Contents>",
                        bytes.len()
                    )
                }
                None => body += &format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
            }
        }
        if let Some(last) = names.iter().take(max).next_back().filter(|_| names.len() > max) {
            body += &format!("<NextContinuationToken>{}</NextContinuationToken>", escape(last));
        }
        CannedResponse::new(200, body + "</ListBucketResult>")
    }
}
