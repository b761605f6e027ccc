//! What a stranger on the data port leaves in the log. A program of its own: what threads of other tests log first, with no
//! subscriber, is switched off for all (`tracing` asks the thread that comes by a line first).

mod common;

use std::sync::Arc;

use common::*;
use forebay_tcp::ServerOptions;
use forebay_transport::conformance::{Scripted, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::level_filters::LevelFilter;

#[tokio::test]
async fn a_stranger_makes_one_line_in_the_log_which_names_him_and_the_reason() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false);
    tracing::subscriber::set_global_default(subscriber.with_max_level(LevelFilter::WARN).finish()).unwrap();
    let server = serve(ServerOptions { io_threads: Some(1), ..server_options() }, Scripted::new());
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let peer = stream.local_addr().unwrap();
    stream.write_all(&[b'?'; 4096]).await.unwrap();
    wait_for_close(&mut stream).await;
    until("it is gone", || server.connections() == 0).await;
    server.close().await;
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("WARN") && text.contains(&peer.to_string()) && text.contains("does not speak"), "{text}");
}

#[derive(Clone, Default)]
struct Log(Arc<forebay_locks::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
