//! Embeds a worker that caches a directory, and reads a file from it: `cargo run --example embed -- /srv/datasets /train/000.tar`.

use forebay_node::{Node, types};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: embed DIRECTORY /FILE".into());
    };
    let worker = Node::builder().worker().setting(format!("mounts=/=file://{directory}"));
    let worker = worker.setting("worker.rpc.bind.host=127.0.0.1").setting("worker.rpc.port=0").start().await?;
    let address = worker.addresses().worker[0];
    let reader = Node::builder().client().setting(format!("cluster.workers={address}")).start().await?;
    let client = reader.client().ok_or("the node has no client")?;
    let types::FileKind::File(version) = client.stat(&types::FsPath::new(&file)?, false).await?.attr.kind else {
        return Err(format!("{file} is a directory").into());
    };
    let bytes = client.open(version.clone()).read(0, u32::try_from(version.size)?).await?;
    println!("{} bytes of {file} from the worker at {address}", bytes.iter().map(|span| span.len()).sum::<usize>());
    reader.shutdown().await?;
    Ok(worker.shutdown().await?)
}
