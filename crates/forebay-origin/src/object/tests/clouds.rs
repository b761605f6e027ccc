//! What is particular to the other clouds' clients and to plain http: above all, that a marker's key ends in a slash.

use std::collections::HashMap;

use forebay_locks::Mutex;
use forebay_testkit::CannedRequest;

use super::*;
use crate::conformance::all_verbs;

type Requests = Arc<Mutex<Vec<CannedRequest>>>;

fn server(answer: impl Fn(&CannedRequest) -> CannedResponse + Send + Sync + 'static) -> (CannedServer, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let server = CannedServer::start(move |request| {
        seen.lock().push(request.clone());
        answer(request)
    });
    (server.unwrap(), requests)
}

fn origin(url: &str, variables: &[(&str, &str)]) -> ObjectStoreOrigin {
    let options = OriginOptions { allow_http: true, max_attempts: 1, ..OriginOptions::default() };
    let variables: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ObjectStoreOrigin::new(&url::Url::parse(url).unwrap(), url, &options, &variables).unwrap()
}

/// The targets of the requests with this method, without their queries.
fn targets(requests: &Requests, method: &str) -> Vec<String> {
    let requests = requests.lock();
    let targets = requests.iter().filter(|request| request.method == method);
    targets.map(|request| request.target.split('?').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn azure_gets_markers_that_end_in_a_slash() {
    let made = Arc::new(Mutex::new(false));
    let state = Arc::clone(&made);
    let (server, requests) = server(move |request| match &*request.method {
        "PUT" => CannedResponse::new(201, "").with("etag", "\"1\""),
        "POST" => {
            let body = "--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n\r\n--b--\r\n";
            CannedResponse::new(202, body).with("content-type", "multipart/mixed; boundary=b")
        }
        "GET" => CannedResponse::new(200, "<EnumerationResults><Blobs></Blobs></EnumerationResults>"),
        "HEAD" if request.target == "/container/d/e/" && *state.lock() => {
            let head = CannedResponse::new(200, "").with("etag", "\"1\"").with("content-length", "0");
            head.with("last-modified", "Mon, 06 May 2024 07:08:09 GMT")
        }
        _ => CannedResponse::new(404, ""),
    });
    let url = server.url();
    let origin = origin(
        "az://container",
        &[
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
            ("AZURE_STORAGE_ENDPOINT", &url),
        ],
    );
    origin.make_directory(b"d/e").await.unwrap();
    assert_eq!(targets(&requests, "PUT"), ["/container/d/e/"]);
    *made.lock() = true;
    assert_eq!(origin.stat(b"d/e").await.unwrap(), forebay_types::Attr::directory());
    assert!(origin.list(b"d/e", None, 10).await.unwrap().entries.is_empty());
    origin.remove_directory(b"d/e").await.unwrap();
    let batch = requests.lock().iter().find(|request| request.method == "POST").unwrap().body.clone();
    let batch = String::from_utf8_lossy(&batch).into_owned();
    assert!(batch.contains("DELETE /container/d/e/ HTTP/1.1"), "{batch}");
}

#[tokio::test]
async fn google_gets_markers_that_end_in_a_slash() {
    let (server, requests) = server(|request| match &*request.method {
        "PUT" => CannedResponse::new(200, "").with("etag", "\"1\""),
        "DELETE" => CannedResponse::new(204, ""),
        "GET" if request.target.contains("prefix=gone") => {
            let marker = "<Contents><Key>gone/</Key><Size>0</Size><ETag>\"1\"</ETag>\
                          <LastModified>2024-05-06T07:08:09.000Z</LastModified></Contents>";
            CannedResponse::new(200, format!("<ListBucketResult>{marker}</ListBucketResult>"))
        }
        "GET" => CannedResponse::new(200, "<ListBucketResult></ListBucketResult>"),
        _ => CannedResponse::new(404, ""),
    });
    let account = format!(
        r#"{{"gcs_base_url":"{}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#,
        server.url()
    );
    let origin = origin("gs://bucket", &[("GOOGLE_SERVICE_ACCOUNT_KEY", &account)]);
    origin.make_directory(b"d/e").await.unwrap();
    assert_eq!(targets(&requests, "PUT"), ["/bucket/d%2Fe%2F"]);
    origin.remove_directory(b"gone").await.unwrap();
    assert_eq!(targets(&requests, "DELETE"), ["/bucket/gone%2F"]);
}

#[tokio::test]
async fn plain_http_takes_no_changes() {
    let (server, requests) = server(|_| CannedResponse::new(200, ""));
    let origin = origin(&server.url(), &[]);
    assert!(!origin.takes_changes());
    for (verb, result) in all_verbs(&origin, b"f").await {
        let failure = result.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::ReadOnly, "{verb}: {failure}");
    }
    assert_eq!(requests.lock().len(), 0);
}
