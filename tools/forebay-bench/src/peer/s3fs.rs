//! s3fs, with a cache of whole files on disk (here: tmpfs).

use std::process::Command;

use crate::fixture::BUCKET;
use crate::peer::program::{program, version};
use crate::peer::{Mounted, Peer, Place};

/// s3fs.
pub(crate) struct S3fs;

impl Peer for S3fs {
    fn name(&self) -> &'static str {
        "s3fs"
    }

    fn version(&self) -> Option<String> {
        let line = version("s3fs", "--version", " V")?;
        line.split(" V").nth(1)?.split_whitespace().next().map(ToOwned::to_owned)
    }

    fn settings(&self) -> &'static str {
        "`use_cache=…,parallel_count=8,multipart_size=16,stat_cache_expire=3600,max_stat_cache_size=100000,ro`"
    }

    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted> {
        let server = place.server();
        let options = [
            format!("url={}", server.url()),
            format!("use_cache={}", place.empty_cache()?.display()),
            "use_path_request_style,endpoint=us-east-1,parallel_count=8,multipart_size=16".to_owned(),
            // The small server knows version 2 of listings only, and keeps no modes and owners.
            "stat_cache_expire=3600,max_stat_cache_size=100000,ro,listobjectsv2,complement_stat".to_owned(),
        ];
        let mut command = Command::new(program("s3fs"));
        command
            .arg(BUCKET)
            .arg(place.mountpoint())
            .args(["-f", "-o", &options.join(",")])
            .env("AWSACCESSKEYID", server.access_key())
            .env("AWSSECRETACCESSKEY", server.secret_key());
        Mounted::foreign(command, &place.mountpoint(), &place.log())
    }
}
