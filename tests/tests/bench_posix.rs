//! `forebay bench posix` with the real fio: what it leaves, what it does to caches, what it survives, and what it refuses.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_e2e::run_bench as run;
use forebay_e2e::{Bucket, Fio, Mount, Setup, bench, eventually, finish, forebay, installed, once, signal};
use forebay_testkit::{DataSet, bound, is_long_run};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// No command in these tests takes longer, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Of a directory that knows no direct reads, maybe: one sequential sweep of one file.
const ONE_SWEEP: [&str; 7] = ["--buffered", "--layouts", "single", "--accesses", "sequential", "--states", "warm"];

fn record(output: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(output.join("record.json")).ok()?).ok()
}

fn steps(record: &Value) -> &[Value] {
    record["steps"].as_array().expect("steps")
}

fn rules(record: &Value) -> Vec<&str> {
    record["findings"].as_array().expect("findings").iter().filter_map(|finding| finding["rule"].as_str()).collect()
}

/// A bucket, mounted by `forebay up`.
fn mounted() -> Option<(Bucket, Mount)> {
    Fio::find()?;
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).memory("64MiB").up(&bucket);
    Some((bucket, mount))
}

/// Processes that have this in their command line: those of a run name where they read.
fn processes_about(text: &Path) -> Vec<(u32, String)> {
    let text = text.to_string_lossy();
    let numbers =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let line = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    };
    numbers.filter_map(line).filter(|(_, line)| line.contains(&*text)).collect()
}

/// A run that is under way; killed at the end.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn wait(&mut self) -> Option<i32> {
        once("it ends", SOON, || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_on_a_mount_leaves_its_results_and_nothing_else() {
    let Some((bucket, mount)) = mounted() else { return };
    let results = TempDir::new().unwrap();
    let output = results.path().join("results");
    let arguments = ["--layouts", "single,multiple", "--accesses", "sequential", "--numjobs", "1,2", "--full-sweep"];
    let finished = run(&mount.root(), &output, &arguments).succeeded();
    let record = record(&output).expect("a record");
    assert_eq!((&record["finished"], &record["benchmark"]), (&Value::Bool(true), &Value::from("posix")));
    // Two states, of one file shared and several in both patterns, with one job and two.
    assert_eq!(steps(&record).len(), 2 * (1 + 2) * 2, "{record:#}");
    for step in steps(&record) {
        let outcome = &step["outcome"];
        assert_eq!((&step["case"]["target"], &step["case"]["workers"]), (&"forebay".into(), &1.into()), "{step}");
        // How much that is in a second is the machine's business.
        let bytes = outcome["operations"].as_u64().unwrap() * step["case"]["block_bytes"].as_u64().unwrap();
        assert!(bytes >= if is_long_run() { 4 * MIB } else { 1 } && outcome["bytes"] == bytes, "{step}");
        assert!(outcome["cpu"]["machine"].as_f64() >= outcome["cpu"]["fio"].as_f64(), "{step}");
        let latency = |name: &str| outcome["latency"][name].as_f64().unwrap();
        assert!(latency("p50") <= latency("p99") && latency("p999") <= latency("max"), "{step}");
        let long = step["case"]["state"] == "warm";
        // The proof of what it is called.
        let received = outcome["origin_bytes"].as_u64();
        // Each job reads the same from the start, once or again and again.
        let new = (bytes / step["case"]["jobs"].as_u64().unwrap()).min(4 * MIB);
        assert!(if long { received == Some(0) } else { received >= Some(new) }, "{step}");
        assert!(!long || outcome["cpu"]["machine"].as_f64() > Some(0.0), "{step}");
    }
    let target = &record["targets"][0];
    assert_eq!(target["file_system"], "fuse.forebay");
    assert!(target["cache"].as_str().unwrap().starts_with("forebay job load and free"), "{target}");
    let table = std::fs::read_to_string(output.join("steps.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + steps(&record).len(), "{table}");
    assert!(finished.stderr.contains(", 0 B from the origin"), "{}", finished.stderr);
    assert!(finished.stderr.contains("and removed in the end: 10 MiB in 4 files to "), "{}", finished.stderr);
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script src"), "{} bytes", page.len());
    // Of a second and one round: that is said wherever a figure stands, on the page and in the terminal. And the samples are in it.
    assert!(finished.text().starts_with("Reading with fio: forebay [quick]\n"), "{}", finished.text());
    assert!(finished.text().contains("\nMachine and settings [quick]\n"), "{}", finished.text());
    assert_eq!(page.matches("<section ").count() + 1, page.matches("class=\"mark\">quick<").count());
    assert!(
        page.contains("download=\"steps.csv\" href=\"data:text/csv,target%2C")
            || page.contains("href=\"data:text/csv,target,")
    );
    // Before each step, and while it read.
    let load = std::fs::read_to_string(output.join("load.csv")).unwrap();
    assert_eq!(load.lines().next(), Some("time,step,phase,busy_percent,stolen_percent"));
    for phase in ["before", "reading"] {
        let numbers = load.lines().filter(|line| line.contains(&format!(",{phase},")));
        let numbers: std::collections::BTreeSet<_> = numbers.filter_map(|line| line.split(',').nth(1)).collect();
        assert_eq!(numbers.len(), steps(&record).len(), "{phase}: {load}");
    }
    let log = std::fs::read_to_string(output.join("run.log")).unwrap();
    assert!(log.contains(" fio --readonly ") && log.contains("--rw=write"), "{log}");
    assert!(std::fs::read_to_string(output.join("fio/011.fio")).unwrap().contains("[section-1]"));
    for number in 0..12 {
        let said = std::fs::read(output.join(format!("fio/{number:03}.json"))).unwrap();
        assert!(serde_json::from_slice::<Value>(&said).unwrap()["jobs"].is_array());
    }
    // A line a step, where there is no terminal.
    assert!(
        finished.stderr.contains("measuring  12/12 forebay cold multiple distinct sequential"),
        "{}",
        finished.stderr
    );
    assert!(finished.text().contains("report.html, steps.csv and record.json are in"), "{}", finished.text());
    assert!(!mount.path("forebay-bench").exists());
    let left = std::fs::read_dir(bucket.path_of("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), Vec::<std::ffi::OsString>::new(), "nothing is left in the bucket");

    // Once more: there is nothing left to do, and the same is printed.
    let again = run(&mount.root(), &output, &arguments).succeeded();
    assert_eq!(again.text(), finished.text());
    // Asked something else, it does not mix.
    let other = ["--layouts", "single", "--numjobs", "1,4"];
    run(&mount.root(), &output, &other).failed(2, &["--numjobs was `1,2`, not `1,4`", "another --output"]);
    let shown = finish(
        forebay(&[]).args(["bench", "posix", "--compare"]).args([&output, &output]).arg("--output").arg(results.path()),
        LIMIT,
    );
    assert!(shown.succeeded().text().contains("compare.html") && results.path().join("compare.html").is_file());
}

/// Origin bytes that `work` takes.
fn fetched(bucket: &Bucket, work: impl FnOnce()) -> u64 {
    let before = bucket.proxy().counts().bytes;
    work();
    bucket.proxy().counts().bytes - before
}

#[test]
fn warm_is_in_the_cache_before_it_is_read_and_cold_is_not() {
    let Some((bucket, mount)) = mounted() else { return };
    // The data was put there by others: it is used, and stays.
    bucket.put("forebay-bench/single/single", DataSet::new(1), 4 * MIB);
    let results = TempDir::new().unwrap();
    let sweep = ["--layouts", "single", "--accesses", "sequential", "--numjobs", "1", "--repeat", "3"];
    let measure = |state: &str, name: &str| {
        let arguments = [&sweep[..], &["--states", state]].concat();
        let _ = run(&mount.root(), &results.path().join(name), &arguments).succeeded();
    };
    let jobs = |kind: &str| {
        // Other tests' mounts may be on this machine.
        let coordinator = mount.summary()["coordinator"].as_str().expect("it has one");
        let list = ["job", "list", "--format", "json", "--coordinator", coordinator];
        let list = finish(forebay(&[]).args(list), SOON).succeeded().text();
        let jobs = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        jobs.filter(|job| job["spec"]["kind"] == kind).collect::<Vec<_>>()
    };
    let warm = fetched(&bucket, || measure("warm", "warm"));
    let loads = jobs("load");
    assert_eq!((loads.len(), &loads[0]["state"]), (1, &"SUCCEEDED".into()), "{loads:?}");
    assert_eq!(loads[0]["progress"]["fetched_bytes"], 4 * MIB, "{loads:?}");
    assert!(warm < 5 * MIB, "the job loads it once, and fio finds it: {warm} bytes");
    assert_eq!(jobs("free").len(), 0, "what is not ours is left in the cache, too");
    let cold = fetched(&bucket, || measure("cold", "cold"));
    assert_eq!(jobs("free").len(), 3);
    assert!((12 * MIB..14 * MIB).contains(&cold), "each of three steps fetches it once: {cold} bytes");
    assert_eq!(bucket.object("forebay-bench/single/single").len() as u64, 4 * MIB);
    let sizes = "--size is another one; what is there is not ours";
    run(&mount.root(), &results.path().join("other"), &["--layouts", "single", "--size", "8MiB"])
        .failed(2, &["with 4194304 bytes where 8388608 are needed"]);
    assert_eq!(bucket.object("forebay-bench/single/single").len() as u64, 4 * MIB, "{sizes}");
}

#[test]
fn layouts_that_fit_one_by_one_are_each_wholly_in_the_cache_when_their_turn_comes() {
    let Some((bucket, mount)) = mounted() else { return };
    let (results, output) = (TempDir::new().unwrap(), "r");
    // Of 64 MiB.
    let sizes = ["--size", "40MiB", "--files", "10", "--file-size", "4MiB", "--layouts", "single,multiple"];
    let arguments = [&sizes[..], &["--accesses", "sequential", "--states", "warm", "--numjobs", "1,2"]].concat();
    let output = results.path().join(output);
    let told = run(&mount.root(), &output, &arguments).succeeded().stderr;
    let record = record(&output).unwrap();
    let state = |step: &Value| step["case"]["state"].as_str().map(str::to_owned);
    assert!(
        steps(&record).len() == 6 && steps(&record).iter().all(|step| state(step).as_deref() == Some("warm")),
        "{record}"
    );
    assert!(told.contains("all of it is removed"), "{told}");
    drop(bucket);
}

#[test]
fn another_directory_is_measured_in_turns_and_compared() {
    let Some((_bucket, mount)) = mounted() else { return };
    let (results, other) = (TempDir::new().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let output = results.path().join("results");
    let against = other.path().display().to_string();
    let arguments =
        ["--against", &against, "--layouts", "single", "--states", "warm", "--numjobs", "1", "--repeat", "2"];
    let finished = run(&mount.root(), &output, &[&arguments[..], &["--buffered", "--keep"]].concat()).succeeded();
    let record = record(&output).unwrap();
    let name = other.path().file_name().unwrap().to_string_lossy().into_owned();
    let order: Vec<(&str, u64)> = steps(&record)
        .iter()
        .filter(|step| step["case"]["access"] == "random")
        .map(|step| (step["case"]["target"].as_str().unwrap(), step["round"].as_u64().unwrap()))
        .collect();
    // Backwards in every other round.
    assert_eq!(order, [("forebay", 0), (&name, 0), (&name, 1), ("forebay", 1)], "{record:#}");
    assert_eq!(record["targets"][1]["file_system"], "tmpfs");
    assert!(rules(&record).contains(&"against"), "{:?}", rules(&record));
    assert!(finished.text().contains(&name), "{}", finished.text());
    assert!(other.path().join("forebay-bench/single/single").exists(), "it is kept, as asked");
    assert!(mount.path("forebay-bench/single/single").exists());
}

#[test]
fn an_interrupted_run_cleans_up_and_goes_on_after_its_last_step() {
    let Some(_) = Fio::find() else { return };
    let directory = TempDir::new().unwrap();
    let (data, output) = (directory.path().join("data"), directory.path().join("results"));
    std::fs::create_dir(&data).unwrap();
    let arguments = [&ONE_SWEEP[..], &["--numjobs", "1,2,3,4,5,6", "--full-sweep"]].concat();
    let measured = || record(&output).map_or(0, |record| steps(&record).len());
    let mut running = Running::start(&mut bench(&data, &output, &arguments));
    eventually("a step is measured", SOON, || measured() >= 1);
    signal(running.0.id(), Signal::HUP);
    let then = measured();
    eventually("it goes on", SOON, || measured() > then);
    let reads = |(_, line): &(u32, String)| line.contains("fio --readonly ");
    eventually("fio reads", SOON, || processes_about(&data).iter().any(reads));
    let interrupted = Instant::now();
    signal(running.0.id(), Signal::INT);
    assert_eq!(running.wait(), Some(130));
    assert!(interrupted.elapsed() < bound(Duration::from_secs(20), SOON), "{:?}", interrupted.elapsed());
    assert_eq!(processes_about(&data), []);
    assert!(!data.join("forebay-bench").exists(), "it cleaned up");
    let before = record(&output).unwrap();
    assert_eq!(before["finished"], false);
    assert!((2..6).contains(&steps(&before).len()), "{before:#}");
    assert!(output.join("report.html").is_file());

    let finished = run(&data, &output, &arguments).succeeded();
    let after = record(&output).unwrap();
    assert_eq!((&after["finished"], &after["begun"]), (&Value::Bool(true), &before["begun"]));
    assert_eq!(&steps(&after)[..steps(&before).len()], steps(&before));
    let jobs: Vec<u64> = steps(&after).iter().map(|step| step["case"]["jobs"].as_u64().unwrap()).collect();
    assert_eq!(jobs, [1, 2, 3, 4, 5, 6]);
    assert!(finished.stderr.contains("going on after step"), "{}", finished.stderr);
    assert!(!data.join("forebay-bench").exists());
}

#[test]
fn whoever_interrupts_twice_does_not_wait() {
    let Some(_) = Fio::find() else { return };
    let directory = TempDir::new().unwrap();
    let (data, output) = (directory.path().join("data"), directory.path().join("results"));
    std::fs::create_dir(&data).unwrap();
    let begun = directory.path().join("begun");
    // As something that waits for a mount which is dead: it cannot be asked to end. (But does, in a test.)
    let command = format!("trap '' TERM; echo $$ >'{}'; for i in $(seq 60); do sleep 1; done", begun.display());
    let arguments = [&ONE_SWEEP[..5], &["--numjobs", "1", "--states", "cold", "--cold-command", &command]].concat();
    let mut running = Running::start(&mut bench(&data, &output, &arguments));
    let pid = || std::fs::read_to_string(&begun).ok()?.trim().parse::<u32>().ok();
    let pid = once("the command runs", SOON, pid);
    signal(running.0.id(), Signal::INT);
    signal(running.0.id(), Signal::TERM);
    assert_eq!(running.wait(), Some(130));
    signal(pid, Signal::KILL);
    let mut told = String::new();
    std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut told).unwrap();
    assert!(told.contains("ended at once by another") && told.contains("made.json lists them"), "{told}");
    assert!(data.join("forebay-bench/single/single").exists(), "it did not clean up");
    let made = std::fs::read_to_string(output.join("made.json")).unwrap();
    assert!(made.contains("forebay-bench/single/single"), "{made}");
}

#[test]
fn a_run_whose_terminal_is_lost_comes_to_its_end() {
    let (Some(_), Some(script)) = (Fio::find(), installed("script")) else { return };
    let directory = TempDir::new().unwrap();
    let (data, output) = (directory.path().join("data"), directory.path().join("results"));
    std::fs::create_dir(&data).unwrap();
    let run = bench(&data, &output, &[&ONE_SWEEP[..], &["--numjobs", "1,2,3", "--full-sweep"]].concat());
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    let line = words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
    // A terminal of its own, in which the run is; with its master the terminal ends, and all in it hear of it.
    let mut command = Command::new(script);
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut terminal = Running::start(&mut command);
    eventually("a step is measured", SOON, || record(&output).is_some_and(|record| !steps(&record).is_empty()));
    let program = run.get_program().to_str().unwrap();
    let run = processes_about(&output).into_iter().find(|(_, line)| line.starts_with(program));
    let (pid, _) = run.expect("the run");
    terminal.0.kill().unwrap();
    terminal.0.wait().unwrap();
    eventually("it comes to its end", SOON, || forebay_e2e::ended(pid));
    let record = record(&output).unwrap();
    assert_eq!((&record["finished"], steps(&record).len()), (&Value::Bool(true), 3), "{record:#}");
    assert!(output.join("report.html").is_file());
    assert!(!data.join("forebay-bench").exists());
}

/// `forebay bench posix --serve` on a free port.
struct Server {
    running: Running,
    address: String,
}

impl Server {
    fn start(ip: &str) -> Self {
        let free = TcpListener::bind((ip, 0)).unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let mut command = forebay(&[]);
        command.args(["bench", "posix", "--serve", &address]);
        let mut running = Running::start(&mut command);
        let mut first = String::new();
        let out = running.0.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut first).unwrap();
        assert!(first.contains(&format!(" serves at {address} as process ")), "{first}");
        Self { running, address }
    }

    /// Ctrl-C.
    fn end(&mut self) {
        signal(self.running.0.id(), Signal::INT);
        assert_eq!(self.running.wait(), Some(0));
        TcpListener::bind(&self.address).expect("its fio has ended, too");
    }
}

#[test]
fn two_hosts_read_at_once_and_one_that_is_not_there_is_told() {
    let Some(_) = Fio::find() else { return };
    let directory = TempDir::new().unwrap();
    let output = |name: &str| directory.path().join(name);
    let mut servers = [Server::start("127.0.0.1"), Server::start("127.0.0.2")];
    // As when its terminal is closed.
    signal(servers[0].running.0.id(), Signal::HUP);
    let hosts = servers.each_ref().map(|server| server.address.clone()).join(",");
    let arguments =
        [&ONE_SWEEP[..3], &["--states", "warm", "--accesses", "random", "--numjobs", "2", "--clients", &hosts]];
    let arguments = arguments.concat();
    let _ = run(directory.path(), &output("both"), &arguments).succeeded();
    let found = record(&output("both")).unwrap();
    let [step] = steps(&found) else { panic!("{found:#}") };
    assert_eq!((&step["case"]["clients"], &step["case"]["jobs"]), (&2.into(), &2.into()));
    let clients = step["outcome"]["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 2, "{step}");
    // Of both clients' operations together, between what either of them says.
    let p99 = |latency: &Value| latency["p99"].as_f64().unwrap();
    let [one, other] = [&clients[0], &clients[1]].map(|client| p99(&client["latency"]));
    let both = p99(&step["outcome"]["latency"]);
    assert!((one.min(other)..=one.max(other)).contains(&both), "{step}");
    let said = std::fs::read_to_string(output("both").join("fio/000.json")).unwrap();
    assert!(said.contains("\"bins\""), "fio's histograms");
    let sum: f64 = clients.iter().map(|client| client["bytes_per_second"].as_f64().unwrap()).sum();
    assert!((step["outcome"]["bytes_per_second"].as_f64().unwrap() - sum).abs() < 1.0, "{step}");
    assert_eq!(std::fs::read_to_string(output("both").join("fio/hosts")).unwrap().lines().count(), 2);

    servers[1].end();
    let missing = run(directory.path(), &output("one"), &arguments);
    let start = format!("start one there: `forebay bench posix --serve {}`", servers[1].address);
    missing.failed(2, &[&servers[1].address, &start, "nohup fio --server=ip:127.0.0.2,"]);
    servers[0].end();

    let [one, other] = ["one-client", "both"].map(|name| directory.path().join(name));
    let alone = [&ONE_SWEEP[..3], &["--states", "warm", "--accesses", "random", "--numjobs", "2"]].concat();
    let _ = run(directory.path(), &one, &alone).succeeded();
    let mut scaling = forebay(&[]);
    scaling.args(["bench", "posix", "--scaling"]).args([one, other]).arg("--output").arg(directory.path());
    let scaling = finish(&mut scaling, SOON).succeeded();
    assert!(output("scaling.html").exists());
    assert!(scaling.text().contains("?W/2C"), "{}", scaling.text());
}

#[test]
fn a_command_empties_a_cache_that_nobody_knows() {
    let Some(_) = Fio::find() else { return };
    let directory = TempDir::new().unwrap();
    let (data, output, emptied) =
        (directory.path().join("data"), directory.path().join("results"), directory.path().join("emptied"));
    std::fs::create_dir(&data).unwrap();
    let command = format!("echo \"$FOREBAY_BENCH_DIRECTORY\" >> '{}'", emptied.display());
    let arguments = [&ONE_SWEEP[..5], &["--numjobs", "1,2", "--states", "cold", "--cold-command", &command]].concat();
    let _ = run(&data, &output, &arguments).succeeded();
    let place = data.canonicalize().unwrap().join("forebay-bench/single");
    let told: Vec<PathBuf> = std::fs::read_to_string(&emptied).unwrap().lines().map(PathBuf::from).collect();
    assert_eq!(told, [place.clone(), place]);
    let failing =
        [&ONE_SWEEP[..5], &["--numjobs", "1", "--states", "cold", "--cold-command", "echo sorry >&2; exit 1"]];
    run(&data, &directory.path().join("failed"), &failing.concat()).failed(1, &["sorry", "try it by hand"]);
    assert!(!data.join("forebay-bench").exists(), "it cleaned up then, too");
}

#[test]
fn what_would_be_run_is_shown_and_what_cannot_be_is_refused_at_once() {
    let Some(_) = Fio::find() else { return };
    let directory = TempDir::new().unwrap();
    let output = directory.path().join("results");
    let shown = run(directory.path(), &output, &["--dry-run", "--numjobs", "1,4", "--ioengine", "psync"]).succeeded();
    let lines = shown.text();
    assert!(lines.contains("fio --name=data_prep --ioengine=psync"), "{lines}");
    assert!(lines.contains("[section-3]\nioengine=psync"), "{lines}");
    assert!(lines.contains("--iodepth=1 --rw=randread") && lines.contains("/results/fio/"), "{lines}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");

    run(Path::new("/no/such/directory"), &output, &[]).failed(3, &["/no/such/directory cannot be measured"]);
    run(directory.path(), &output, &["--numjobs", "4,2"]).failed(2, &["--numjobs is not in order"]);
    run(directory.path(), &output, &["--file-size", "100KiB"]).failed(2, &["whole blocks"]);
    run(directory.path(), &output, &["--plan", "seed"]).failed(2, &["--plan", "reference"]);
    let huge = ["--size", "1000TiB", "--layouts", "single", "--buffered"];
    run(directory.path(), &output, &huge).failed(2, &["has room for", "choose smaller --size"]);
    // A file among the results that is not a run's stays as it is.
    let log = directory.path().join("run.log");
    std::fs::write(&log, "precious").unwrap();
    run(directory.path(), directory.path(), &[]).failed(2, &["holds `run.log` and no record.json", "another --output"]);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "precious");
    for everybody in ["0.0.0.0:0", "8.8.8.8"] {
        let serve = finish(forebay(&[]).args(["bench", "posix", "--serve", everybody]), SOON);
        serve.failed(2, &["whoever reaches it may run anything as this user", "--insecure"]);
    }
    // All at once: the network is not named here, but what keeps it from running is.
    run(directory.path(), &output, &["--clients", "127.0.0.1:1,127.0.0.2:1", "--size", "1000TiB"])
        .failed(2, &["no fio server answers at 127.0.0.1:1", "no fio server answers at 127.0.0.2:1", "has room for"]);
    let path = directory.path().join("no-programs").display().to_string();
    finish(bench(directory.path(), &output, &[]).env("PATH", path), SOON).failed(3, &["fio is not installed"]);
}
