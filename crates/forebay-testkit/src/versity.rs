//! `versitygw` as a child process: an independent implementation of the S3 protocol.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long the server may take until it answers.
const START_DEADLINE: Duration = Duration::from_secs(20);
const ACCESS_KEY: &str = "forebay-test";
const SECRET_KEY: &str = "forebay-test-secret";

/// A running `versitygw` with a directory of its own; it ends when dropped.
pub struct VersityGw {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
}

impl VersityGw {
    /// Starts the server; `None`, with the reason on standard error, where it is not installed or does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let Some(binary) = find() else {
            eprintln!("no versitygw here: `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0` brings it");
            return None;
        };
        // Another process may take the port between our closing and the server's opening it.
        for _ in 0..3 {
            match Self::start_once(&binary) {
                Ok(server) => return Some(server),
                Err(error) => eprintln!("versitygw did not start: {error:#}"),
            }
        }
        None
    }

    fn start_once(binary: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(binary)
            .args(["--port", &address.to_string(), "--region", "us-east-1", "--quiet", "posix"])
            .arg(directory.path())
            .env("ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("ROOT_SECRET_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self { child, address, directory };
        let deadline = Instant::now() + START_DEADLINE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                anyhow::bail!("it ended with {status}");
            }
            anyhow::ensure!(Instant::now() < deadline, "it did not answer within {START_DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create_bucket(&self, name: &str) -> std::io::Result<()> {
        std::fs::create_dir(self.directory.path().join(name))
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The access key.
    #[must_use]
    pub fn access_key(&self) -> &str {
        ACCESS_KEY
    }

    /// The secret key.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        SECRET_KEY
    }
}

impl Drop for VersityGw {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find() -> Option<PathBuf> {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let go = Command::new("go").args(["env", "GOPATH"]).stderr(Stdio::null()).output().ok();
    let in_go = go.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("bin"));
    on_path.chain(in_go).map(|directory| directory.join("versitygw")).find(|path| path.is_file())
}
