//! An S3 server on a directory, for the demo and for tests that want one in a process of its own.
//!
//! Prints the line `listening on http://127.0.0.1:PORT` once it serves, and ends with SIGTERM or Ctrl-C.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use forebay_testkit::{S3Server, S3ServerOptions};
use tokio::signal::unix::{SignalKind, signal};

/// A small S3 server on a directory, for tests and demonstrations.
#[derive(Parser)]
struct Arguments {
    /// The directory to serve; its subdirectories are the buckets. It is made if it is not there.
    #[arg(long)]
    dir: PathBuf,
    /// The port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The access key that requests must be signed with.
    #[arg(long, default_value = "forebay-test")]
    access_key: String,
    /// Its secret key.
    #[arg(long, default_value = "forebay-test-secret")]
    secret_key: String,
    /// How long each request waits before it is answered
    #[arg(long, default_value = "0", value_parser = forebay_types::parse_duration)]
    latency: Duration,
    /// A bucket to make first; may be given several times.
    #[arg(long)]
    bucket: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { dir, port, access_key, secret_key, latency, bucket } = Arguments::parse();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let server = S3Server::start_with(&dir, S3ServerOptions { port, access_key, secret_key, latency })?;
    for name in bucket {
        server.create_bucket(&name).with_context(|| format!("cannot make the bucket {name}"))?;
    }
    println!("listening on {}", server.url());
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}
