//! Object stores: do they answer, and what time is it there.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_config::Loaded;
use forebay_doctor::facts::{OriginProbe, seconds_of_date};

use crate::exit::{Exit, Fault, UserError};
use forebay_node::assembly;

/// How long an origin may take to answer, retries included.
const ORIGIN_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take to say what time it is.
const DATE_WITHIN: Duration = Duration::from_secs(5);

/// Asks every origin of the configuration, and `more`, all at once: each with the exit code of its failure.
pub(super) async fn ask(loaded: &Loaded, more: &[String]) -> Vec<(OriginProbe, Option<Exit>)> {
    let configured = loaded.config.mounts.iter().map(|mount| &mount.origin);
    let ask = configured.chain(more).map(|url| ask_origin(loaded, url));
    futures::future::join_all(ask).await
}

async fn ask_origin(loaded: &Loaded, url: &str) -> (OriginProbe, Option<Exit>) {
    let begun = Instant::now();
    let answer = tokio::time::timeout(ORIGIN_WITHIN, assembly::probe_origin(loaded, url)).await;
    let took = begun.elapsed();
    let answer = answer.unwrap_or_else(|_| {
        let next = "check the network, proxies and origin.s3.endpoint; curl -v to the endpoint shows where it stops";
        Err(Fault::new(Exit::Unavailable, "no answer", next).into())
    });
    let (probe, exit) = match answer {
        Ok(()) => (OriginProbe::answered(url, took), None),
        Err(error) => {
            let UserError { exit, what, next } = UserError::from(&error);
            (OriginProbe::failed(url, took, what, next), Some(exit))
        }
    };
    // An origin that cannot be reached says nothing, and a wrong clock is a common reason of a refusal.
    let clock_ahead_s = match (exit, server_of(loaded, url)) {
        (None | Some(Exit::Denied), Some(server)) => clock_ahead(&server).await,
        _ => None,
    };
    (OriginProbe { clock_ahead_s, ..probe }, exit)
}

/// The server behind an origin, where it speaks HTTP.
fn server_of(loaded: &Loaded, url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    match scheme {
        "http" | "https" => {
            let authority = rest.split(['/', '?', '#']).next()?;
            // A password is not for this question.
            Some(format!("{scheme}://{}/", authority.rsplit('@').next()?))
        }
        "s3" => {
            // As the SDKs read it.
            let variable = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
            let endpoint = loaded.config.origin_s3_endpoint.clone();
            let endpoint =
                endpoint.or_else(|| variable("AWS_ENDPOINT_URL_S3")).or_else(|| variable("AWS_ENDPOINT_URL"));
            Some(endpoint.unwrap_or_else(|| "https://s3.amazonaws.com/".to_owned()))
        }
        "gs" => Some("https://storage.googleapis.com/".to_owned()),
        _ => None,
    }
}

/// How far our clock is ahead of the server's, which tells its time with every answer, a refusal too.
async fn clock_ahead(server: &str) -> Option<i64> {
    let client = reqwest::Client::builder().timeout(DATE_WITHIN).redirect(reqwest::redirect::Policy::none());
    let answer = client.build().ok()?.head(server).send().await.ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let theirs = seconds_of_date(answer.headers().get("date")?.to_str().ok()?)?;
    Some(i64::try_from(now.as_secs()).ok()? - theirs)
}

#[cfg(test)]
mod tests {
    use forebay_config::{Config, Sources};

    use super::*;

    #[test]
    fn the_server_is_asked_for_its_time_without_path_and_password() {
        let loaded = Config::load(&Sources::new().flags(["origin.s3.endpoint=http://10.0.0.1:9000"])).unwrap();
        let of = |url: &str| server_of(&loaded, url);
        assert_eq!(of("s3://bucket/prefix").as_deref(), Some("http://10.0.0.1:9000"));
        assert_eq!(of("https://me:secret@host:8443/a?b").as_deref(), Some("https://host:8443/"));
        assert_eq!((of("file:///data"), of("nonsense")), (None, None));
    }
}
