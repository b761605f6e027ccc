//! `forebay stats` in a terminal: its table fits, whatever its width, and is drawn anew when that changes.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_e2e::{Bucket, Mount, Setup, Tree, eventually, forebay, signal, terminal};
use rustix::process::Signal;
use rustix::termios::{Winsize, tcsetwinsize};

const SOON: Duration = Duration::from_secs(60);

/// A terminal in which a program runs.
struct Terminal {
    master: OwnedFd,
    program: Child,
    /// What the program wrote.
    text: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

fn size(columns: u16) -> Winsize {
    Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    fn watching(mount: &Mount, columns: u16, arguments: &[&str]) -> Self {
        let (master, slave) = terminal();
        tcsetwinsize(&master, size(columns)).expect("a terminal has a size");
        let mut command = forebay(&[]);
        command.args(["stats", "--interval", "0.1"]).arg(mount.root()).args(arguments).env_remove("COLUMNS");
        let program = command.stdin(Stdio::null()).stdout(slave).stderr(Stdio::inherit()).spawn().expect("forebay");
        let text = Arc::new(Mutex::new(Vec::new()));
        let (written, mut read) = (Arc::clone(&text), File::from(master.try_clone().expect("a descriptor")));
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of the last program is an error of the terminal.
            while let Ok(count @ 1..) = read.read(&mut buffer) {
                written.lock().expect("nobody panics with it").extend_from_slice(&buffer[..count]);
            }
        });
        Self { master, program, text, reading: Some(reading) }
    }

    fn resize(&self, columns: u16) {
        tcsetwinsize(&self.master, size(columns)).expect("a terminal has a size");
        // It is no process's controlling terminal, so the kernel signals none.
        signal(self.program.id(), Signal::WINCH);
    }

    /// What was written since the screen was last emptied, without colours.
    fn screen(&self) -> Vec<String> {
        let text = self.text.lock().expect("nobody panics with it");
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.rsplit("\x1b[2J\x1b[H").next().unwrap_or_default();
        let plain = ["\x1b[1m", "\x1b[2m", "\x1b[0m"].iter().fold(last.to_owned(), |text, code| text.replace(code, ""));
        // What is not a whole line yet is left for the next look.
        let whole = plain.rfind('\n').map_or("", |end| &plain[..end]);
        assert!(!whole.contains('\x1b'), "{whole:?}");
        whole.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
    }

    /// Waits until there are so many lines.
    fn lines(&self, count: usize) -> Vec<String> {
        eventually("lines come", SOON, || self.screen().len() >= count);
        self.screen()
    }

    fn emptied(&self) -> usize {
        let text = self.text.lock().expect("nobody panics with it");
        String::from_utf8_lossy(&text).matches("\x1b[2J").count()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

fn widest(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn the_table_of_stats_fits_terminals_of_any_width_and_follows_a_change_of_it() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(1, 1 << 20);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).option("coordinator.port=0").up(&bucket);
    tree.verify(&mount.root());
    for columns in [80u16, 100, 143, 235] {
        for arguments in [&[][..], &["-l", "1"], &["-l", "1", "--schema", "ufmcreol"]] {
            let lines = Terminal::watching(&mount, columns, arguments).lines(8);
            assert!(widest(&lines) <= usize::from(columns), "{columns}, {arguments:?}: {lines:#?}");
            assert!(lines[0].contains("usage"), "{lines:#?}");
        }
    }
    let usual = Terminal::watching(&mount, 80, &[]).lines(5);
    assert!(usual.iter().filter(|line| line.contains("usage")).count() == 1, "one line an interval: {usual:#?}");
    assert!(usual[0].contains("--") && !usual[2].contains("--"), "of one line each: {usual:#?}");
    assert!(!usual[0].contains("rdma"), "what it does not count is left out: {usual:#?}");

    let terminal = Terminal::watching(&mount, 235, &["--schema", "ufmcreo"]);
    let wide = terminal.lines(6);
    assert!(widest(&wide) > 100 && terminal.emptied() == 0, "{wide:#?}");
    terminal.resize(80);
    eventually("it is drawn anew", SOON, || terminal.emptied() == 1);
    let narrow = terminal.lines(10);
    assert!(widest(&narrow) <= 80, "{narrow:#?}");
    assert!(narrow[1].starts_with("ufmc") && narrow[3].starts_with("reo"), "each line has its letters: {narrow:#?}");
    terminal.resize(235);
    eventually("and wide again", SOON, || terminal.emptied() == 2 && terminal.screen().len() > 4);
    assert!(terminal.screen()[0].contains("remotecache"));
}
