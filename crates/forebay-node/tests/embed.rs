//! Nodes that a program embeds: what stands in `examples/`, and what the handle says and does.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_node::error::Exit;
use forebay_node::types::{FileKind, FsPath};
use forebay_node::{Node, NodeBuilder, UserError};

const SOON: Duration = Duration::from_secs(60);
const CONTENT: &[u8] = b"what a cache must never get wrong";

fn origin() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), CONTENT).unwrap();
    directory
}

fn quiet(builder: NodeBuilder) -> NodeBuilder {
    let settings = ["worker.rpc.bind.host=127.0.0.1", "worker.rpc.port=0", "worker.memory.size=16MiB"];
    let settings = settings.into_iter().chain(["worker.memory.prewarm=false", "worker.web.port=0"]);
    settings.fold(builder, NodeBuilder::setting)
}

fn shows(builder: NodeBuilder, directory: &Path) -> NodeBuilder {
    builder.setting(format!("mounts=/=file://{}", directory.display()))
}

async fn read(node: &Node) -> Vec<u8> {
    let client = node.client().expect("a client");
    let attr = client.stat(&FsPath::new("/file").unwrap(), false).await.unwrap().attr;
    let FileKind::File(version) = attr.kind else { panic!("{attr:?}") };
    let spans = client.open(version.clone()).read(0, version.size as u32).await.unwrap();
    spans.iter().flat_map(|span| span.iter().copied()).collect()
}

#[test]
fn the_example_reads_a_file_from_the_worker_that_it_embeds() {
    let directory = origin();
    // Beside the directory of this test.
    let here = std::env::current_exe().unwrap();
    let example = here.ancestors().nth(2).unwrap().join("examples/embed");
    let output = Command::new(example).arg(directory.path()).arg("/file").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with(&format!("{} bytes of /file", CONTENT.len())), "{said}");
    let lines = include_str!("../../../examples/embed.rs").lines().count();
    assert!(lines < 30, "{lines} lines");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_and_its_client_are_one_node_or_two() {
    let directory = origin();
    let both = shows(quiet(Node::builder()), directory.path()).worker().client().start().await.unwrap();
    tokio::time::timeout(SOON, both.ready()).await.expect("ready without a cluster");
    assert_eq!(read(&both).await, CONTENT);
    let addresses = both.addresses();
    assert_eq!((addresses.worker.len(), addresses.coordinator, addresses.mountpoint), (1, None, None));
    let workers = format!("cluster.workers={}", addresses.worker[0]);
    let reader = Node::builder().client().setting(workers).start().await.unwrap();
    assert_eq!(read(&reader).await, CONTENT);
    assert!(tokio::time::timeout(Duration::from_millis(10), reader.ended()).await.is_err(), "nothing is mounted");
    reader.shutdown().await.unwrap();
    both.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_node_has_a_coordinator_that_leads_and_a_port_only_if_that_was_asked_for() {
    let (directory, state) = (origin(), tempfile::tempdir().unwrap());
    let builder = || {
        let builder = quiet(Node::builder()).setting(format!("coordinator.state_dir={}", state.path().display()));
        builder.standalone(format!("file://{}", directory.path().display()))
    };
    let node = builder().start().await.unwrap();
    tokio::time::timeout(SOON, node.ready()).await.expect("it leads");
    assert_eq!(read(&node).await, CONTENT);
    let addresses = node.addresses();
    assert_eq!((addresses.worker.len(), addresses.coordinator, addresses.page), (0, None, None));
    node.shutdown().await.unwrap();
    let node = builder().web(Some(0)).start().await.unwrap();
    let addresses = node.addresses();
    let (coordinator, page) = (addresses.coordinator.unwrap(), addresses.page.unwrap());
    assert!(coordinator.ip().is_loopback() && page.starts_with(&format!("http://{coordinator}/#token=")), "{page}");
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_node_that_is_to_leave_nothing_makes_no_directory() {
    let (directory, place) = (origin(), tempfile::tempdir().unwrap());
    let state = place.path().join("state");
    let builder = quiet(Node::builder()).setting(format!("coordinator.state_dir={}", state.display()));
    let builder = builder.standalone(format!("file://{}", directory.path().display())).state_in_memory();
    let node = builder.start().await.unwrap();
    tokio::time::timeout(SOON, node.ready()).await.expect("it leads");
    assert_eq!(read(&node).await, CONTENT);
    assert!(!state.exists());
    node.shutdown().await.unwrap();
    assert!(!state.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_says_what_to_set() {
    let refused = |error: UserError, words: &str| {
        assert_eq!(error.exit, Exit::Usage, "{error:?}");
        assert!(error.what.contains(words) && error.next.is_some(), "{error:?}");
    };
    refused(Node::builder().check().unwrap_err(), "nothing to run");
    refused(Node::builder().worker().check().unwrap_err(), "no origin to cache");
    refused(Node::builder().client().check().unwrap_err(), "no workers are named");
    refused(Node::builder().mount("/mnt").check().unwrap_err(), "no workers are named");
    refused(Node::builder().setting("worker.memory.size=lots").worker().check().unwrap_err(), "worker.memory.size");
    let huge = Node::builder().setting("worker.memory.size=1024TiB").setting("mounts=/=file:///").worker().check();
    refused(huge.unwrap_err(), "worker.memory.size is 1PiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_cancels_nothing_of_its_caller() {
    let token = tokio_util::sync::CancellationToken::new();
    let builder = quiet(Node::builder()).standalone("file:///no/such/origin").cancelled_by(token.clone());
    assert!(builder.start().await.is_err());
    assert!(!token.is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_given_up_ends_what_it_has_started() {
    let directory = origin();
    let given_up = tokio_util::sync::CancellationToken::new();
    given_up.cancel();
    let builder = shows(quiet(Node::builder()), directory.path()).worker().cancelled_by(given_up);
    let error = builder.start().await.err().expect("it was given up");
    assert_eq!(error.exit, Exit::Interrupted);
}
