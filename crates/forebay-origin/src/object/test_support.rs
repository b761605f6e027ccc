//! Clients of S3 servers, and an S3 server that is as flat as the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_testkit::{CannedRequest, CannedResponse, CannedServer};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
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
    by_key: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    generation: u64,
    /// Listings of names leave the marker of the directory itself out, as file gateways' do.
    hides_markers: bool,
}

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    etag: String,
    /// `x-amz-meta-forebay-upload`.
    mark: String,
}

struct Upload {
    key: String,
    mark: String,
    /// By number: entity tag and bytes.
    parts: BTreeMap<u32, (String, Vec<u8>)>,
}

#[derive(serde::Deserialize)]
struct CompleteMultipartUpload {
    #[serde(rename = "Part")]
    parts: Vec<CompletedPart>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CompletedPart {
    part_number: u32,
    #[serde(rename = "ETag")]
    etag: String,
}

impl FlatS3 {
    pub(crate) fn start() -> Self {
        let objects = Arc::new(Mutex::new(Objects::default()));
        let served = Arc::clone(&objects);
        Self { objects, server: CannedServer::start(move |request| served.lock().answer(request)).unwrap() }
    }

    pub(crate) fn start_hiding_markers() -> Self {
        let server = Self::start();
        server.objects.lock().hides_markers = true;
        server
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.server.requests()
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        self.objects.lock().put(key, bytes.to_vec(), "", "");
    }

    pub(crate) fn delete(&self, key: &str) {
        self.objects.lock().by_key.remove(key);
    }
}

impl Objects {
    fn put(&mut self, key: &str, bytes: Vec<u8>, suffix: &str, mark: &str) -> String {
        let etag = format!("\"{}{suffix}\"", self.next());
        self.by_key.insert(key.to_owned(), Object { bytes, etag: etag.clone(), mark: mark.to_owned() });
        etag
    }

    fn next(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    fn answer(&mut self, request: &CannedRequest) -> CannedResponse {
        let url = Url::parse(&format!("http://h{}", request.target)).unwrap();
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        if query.contains_key("list-type") {
            return self.list(&query);
        }
        if request.method == "GET" && query.contains_key("uploads") {
            return self.list_uploads(&query);
        }
        let path = url.path().strip_prefix("/bucket/").unwrap();
        let mut key = String::from(object_store::path::Path::from_url_path(path).unwrap());
        if path.ends_with('/') {
            key.push('/');
        }
        match &*request.method {
            "GET" if query.contains_key("uploadId") => self.list_parts(&key, &query),
            "GET" | "HEAD" => self.read(request, &key),
            "PUT" if query.contains_key("uploadId") => self.part(request, &key, &query),
            "PUT" => self.write(request, &key),
            "POST" if query.contains_key("uploads") => {
                let id = self.next().to_string();
                let mark = request.header("x-amz-meta-forebay-upload").to_owned();
                self.uploads.insert(id.clone(), Upload { key, mark, parts: BTreeMap::new() });
                let body =
                    format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
                CannedResponse::new(200, body)
            }
            "POST" => self.complete(request, &key, &query["uploadId"]),
            "DELETE" => match query.get("uploadId") {
                Some(id) if self.uploads.remove(id).is_none() => CannedResponse::s3_error(404, "NoSuchUpload", "gone"),
                Some(_) => CannedResponse::new(204, ""),
                None => {
                    self.by_key.remove(&key);
                    CannedResponse::new(204, "")
                }
            },
            other => panic!("{other}"),
        }
    }

    fn write(&mut self, request: &CannedRequest, key: &str) -> CannedResponse {
        if request.header("if-none-match") == "*" && self.by_key.contains_key(key) {
            return CannedResponse::s3_error(412, "PreconditionFailed", "it is there");
        }
        let source = request.header("x-amz-copy-source");
        if source.is_empty() {
            let etag = self.put(key, request.body.to_vec(), "", "");
            return CannedResponse::new(200, "").with("etag", etag);
        }
        let source = object_store::path::Path::from_url_path(source.strip_prefix("bucket/").unwrap()).unwrap();
        let Some(Object { bytes, .. }) = self.by_key.get(source.as_ref()).cloned() else {
            return CannedResponse::s3_error(404, "NoSuchKey", "gone");
        };
        let etag = self.put(key, bytes, "", "").replace('"', "&quot;");
        CannedResponse::new(200, format!("\n <CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>"))
    }

    fn part(&mut self, request: &CannedRequest, key: &str, query: &BTreeMap<String, String>) -> CannedResponse {
        let etag = format!("\"part-{}\"", self.next());
        match self.uploads.get_mut(&query["uploadId"]).filter(|upload| upload.key == key) {
            Some(upload) => {
                let number = query["partNumber"].parse().unwrap();
                upload.parts.insert(number, (etag.clone(), request.body.to_vec()));
                CannedResponse::new(200, "").with("etag", etag)
            }
            None => CannedResponse::s3_error(404, "NoSuchUpload", "gone"),
        }
    }

    fn complete(&mut self, request: &CannedRequest, key: &str, id: &str) -> CannedResponse {
        let Some(upload) = self.uploads.get(id).filter(|upload| upload.key == key) else {
            return CannedResponse::s3_error(404, "NoSuchUpload", "gone");
        };
        let list: CompleteMultipartUpload = quick_xml::de::from_reader(&request.body[..]).unwrap();
        let (mut whole, count) = (Vec::new(), list.parts.len());
        for CompletedPart { part_number, etag } in list.parts {
            match upload.parts.get(&part_number) {
                Some((known, bytes)) if *known == etag => whole.extend_from_slice(bytes),
                _ => return CannedResponse::s3_error(400, "InvalidPart", "not that one"),
            }
        }
        let mark = self.uploads.remove(id).unwrap().mark;
        let etag = self.put(key, whole, &format!("-{count}"), &mark).replace('"', "&quot;");
        let body = format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>");
        CannedResponse::new(200, body)
    }

    fn list_parts(&self, key: &str, query: &BTreeMap<String, String>) -> CannedResponse {
        let Some(upload) = self.uploads.get(&query["uploadId"]).filter(|upload| upload.key == key) else {
            return CannedResponse::s3_error(404, "NoSuchUpload", "gone");
        };
        let (max, after): (usize, u32) =
            (query["max-parts"].parse().unwrap(), query["part-number-marker"].parse().unwrap());
        let beyond: Vec<_> = upload.parts.iter().filter(|(number, _)| **number > after).collect();
        let mut body = format!("<ListPartsResult><IsTruncated>{}</IsTruncated>", beyond.len() > max);
        for (number, (etag, bytes)) in beyond.into_iter().take(max) {
            let (etag, size) = (etag.replace('"', "&quot;"), bytes.len());
            body += &format!(
                "<Part><PartNumber>{number}</PartNumber><LastModified>2024-05-06T07:08:09.000Z</LastModified>\
                 <ETag>{etag}</ETag><Size>{size}</Size></Part>"
            );
        }
        CannedResponse::new(200, body + "</ListPartsResult>")
    }

    fn list_uploads(&self, query: &BTreeMap<String, String>) -> CannedResponse {
        let get = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let (key_marker, id_marker, max) = (get("key-marker"), get("upload-id-marker"), get("max-uploads"));
        let is_beyond =
            |key: &str, id: &str| key > key_marker || (key == key_marker && !id_marker.is_empty() && id > id_marker);
        let all = self.uploads.iter().map(|(id, upload)| (upload.key.as_str(), id.as_str()));
        let found: BTreeSet<(&str, &str)> =
            all.filter(|(key, id)| key.starts_with(get("prefix")) && is_beyond(key, id)).collect();
        let max: usize = max.parse().unwrap();
        let mut body = String::from("<ListMultipartUploadsResult>");
        for (key, id) in found.iter().take(max) {
            let key = escape(key);
            body += &format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId>\
                 <Initiated>2024-05-06T07:08:09.000Z</Initiated></Upload>"
            );
        }
        if let Some((key, id)) = found.iter().take(max).next_back().filter(|_| found.len() > max) {
            let key = escape(key);
            body += &format!(
                "<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker>\
                 <NextUploadIdMarker>{id}</NextUploadIdMarker>"
            );
        }
        CannedResponse::new(200, body + "</ListMultipartUploadsResult>")
    }

    fn read(&self, request: &CannedRequest, key: &str) -> CannedResponse {
        let Some(Object { bytes, etag, mark }) = self.by_key.get(key) else {
            return CannedResponse::s3_error(404, "NoSuchKey", "gone");
        };
        if !matches!(request.header("if-match"), "" | "*") && request.header("if-match") != etag {
            return CannedResponse::s3_error(412, "PreconditionFailed", "other etag");
        }
        let dated = |response: CannedResponse| {
            let dated = response.with("etag", etag).with("last-modified", "Mon, 06 May 2024 07:08:09 GMT");
            if mark.is_empty() { dated } else { dated.with("x-amz-meta-forebay-upload", mark) }
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
                if get("delimiter").is_empty() {
                    return Some(key.clone());
                }
                Some(rest.split_once('/').map_or_else(|| key.clone(), |(directory, _)| format!("{prefix}{directory}/")))
            })
            .filter(|name| name.as_str() > after)
            .filter(|name| !(self.hides_markers && name == prefix && !get("delimiter").is_empty()))
            .collect();
        let mut body = String::from("<ListBucketResult>");
        for name in names.iter().take(max) {
            let key = escape(name);
            let is_object = !name.ends_with('/') || name == prefix || get("delimiter").is_empty();
            match self.by_key.get(name).filter(|_| is_object) {
                Some(Object { bytes, etag, .. }) => {
                    body += &format!(
                        "<Contents><Key>{key}</Key><Size>{}</Size><ETag>{etag}</ETag>\
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
